//! Services and files of an image that affect NICs in addition to the selected network manager.

use super::*;

#[test]
fn services_belong_to_their_network_manager() {
    for (service, expected) in [
        ("systemd-networkd.service", Some("systemd-networkd")),
        ("systemd-networkd.socket", Some("systemd-networkd")),
        ("systemd-networkd-wait-online@eth0.service", Some("systemd-networkd")),
        ("NetworkManager-dispatcher.service", Some("NetworkManager")),
        ("networkmanager", Some("NetworkManager")),
        ("networking.service", Some("ifupdown")),
        ("networking", Some("ifupdown")),
        ("ifupdown-wait-online.service", Some("ifupdown")),
        ("wicked.service", Some("wicked")),
        ("wickedd-auto4.service", Some("wicked")),
        ("dhcpcd@eth0.service", Some("dhcpcd")),
        ("connman.service", Some("connman")),
        ("netctl@lan.service", Some("netctl")),
        ("network.service", None),
        ("network-online.target", None),
        ("networkd-dispatcher.service", None),
        ("systemd-network-generator.service", None),
        ("systemd-resolved.service", None),
        ("dhcpcd6.service", None),
        ("", None),
    ] {
        assert_eq!(find_service_manager(service), expected, "{service}");
    }
}

#[test]
fn netplan_runs_its_renderer() {
    use NetworkBackend::{Ifupdown, Netplan, NetworkManager, Networkd};
    let ubuntu =
        "# Let NetworkManager manage all devices on this system\nnetwork:\n  version: 2\n  renderer: NetworkManager\n";
    for (system, files, expected) in [
        (Netplan, &[][..], Networkd),
        (Netplan, &[ubuntu], NetworkManager),
        (Netplan, &["network:\n  renderer: 'NetworkManager'\n"], NetworkManager),
        (Netplan, &["network:\n  # renderer: NetworkManager\n"], Networkd),
        (Netplan, &[ubuntu, "network:\n  renderer: networkd\n"], Networkd),
        (Ifupdown, &[ubuntu], Ifupdown),
        (Networkd, &[], Networkd),
    ] {
        let files: Vec<String> = files.iter().map(|text| (*text).to_owned()).collect();
        assert_eq!(system.running_manager(&files), expected, "{files:?}");
    }
}

#[test]
fn earlier_link_files_take_precedence() {
    for (system, name, yields) in [
        (NetworkBackend::Networkd, "00-x.link", true),
        (NetworkBackend::Networkd, "10-a.link", true),
        (NetworkBackend::Networkd, "10-drophammer-old.link", true),
        (NetworkBackend::Networkd, "10-e.link", false),
        (NetworkBackend::Networkd, "99-default.link", false),
        (NetworkBackend::Networkd, "00-x.network", false),
        (NetworkBackend::Netplan, "10-e.link", true),
        (NetworkBackend::Netplan, "10-o.link", false),
    ] {
        assert_eq!(system.is_overridden_by_link_file(name), yields, "{name}");
    }
    let named = read(&json!({"ethernets": {"a": {"match": {"macaddress": "52:54:00:aa:00:01"}, "set-name": "lan0"}}}));
    let unnamed = read(&json!({"ethernets": {"a": {"match": {"macaddress": "52:54:00:aa:00:01"}, "dhcp4": true}}}));
    for (system, with_name, without) in [
        (NetworkBackend::CloudInit, false, false),
        (NetworkBackend::Netplan, true, false),
        (NetworkBackend::Networkd, true, false),
        (NetworkBackend::NetworkManager, true, false),
        (NetworkBackend::Ifupdown, true, true),
    ] {
        let written = [&named, &unnamed].map(|network| network.has_link_files(system, &nics()));
        assert_eq!(written, [with_name, without], "{}", system.name());
    }
}

#[test]
fn file_that_disables_cloud_init_networking_sorts_last() {
    for (others, expected) in [
        (&[][..], "99-drophammer-network.cfg"),
        (&["05_logging.cfg", "90_dpkg.cfg", "README"], "99-drophammer-network.cfg"),
        (&["99-drophammer-network.cfg"], "99-drophammer-network.cfg"),
        (&["zz.cfg.disabled", "zz.txt"], "99-drophammer-network.cfg"),
        (&["99-installer.cfg", "90-installer-network.cfg"], "99-installer_drophammer-network.cfg"),
        (&["curtin-preserve-sources.cfg", "99-installer.cfg"], "curtin-preserve-sources_drophammer-network.cfg"),
        (&["99-x.cfg", "99-x-y.cfg"], "99-x_drophammer-network.cfg"),
        (&["99-installer.cfg", "99-installer_drophammer-network.cfg"], "99-installer_drophammer-network.cfg"),
    ] {
        let others: Vec<String> = others.iter().map(|name| (*name).to_owned()).collect();
        let network = read(&json!({"ethernets": {"lan0": {"dhcp4": true}}}));
        let has = |path: &str| path == "/usr/bin/cloud-init";
        let files = network.render_additional_files(NetworkBackend::NetworkManager, &has, &others);
        assert_eq!(files[0].path, format!("/etc/cloud/cloud.cfg.d/{expected}"));
        assert!(others.iter().all(|other| !other.ends_with(".cfg") || other.as_str() <= expected), "{others:?}");
    }
}
