//! Network configuration of trees that contain the network managers of various distributions.

use super::super::testing::{capture_log, tree};
use super::*;
use serde_json::json;

fn nics() -> Vec<Nic> {
    vec![Nic { name: "eth0".into(), mac: "52:54:00:00:00:01".into(), link: true, ..Nic::default() }]
}

fn described() -> RequestedNetwork {
    let document = json!({"version": 2, "ethernets": {"lan": {
        "match": {"macaddress": "52:54:00:00:00:01"}, "addresses": ["192.0.2.7/24"]}}});
    RequestedNetwork::Described(NetworkConfig::parse(&document).unwrap())
}

/// Configures the described network, and returns the logged lines.
fn configured(root: &NewRoot) -> Vec<String> {
    let (done, lines) = capture_log(|say| write_network_config(root, &described(), &nics(), say));
    done.unwrap();
    lines
}

const NETWORKD: (&str, &str) = ("usr/lib/systemd/systemd-networkd", "");
const OWN: (&str, &str) = ("etc/systemd/network/80-own.network", "[Match]\nName=*\n");

#[test]
fn described_network_replaces_that_of_the_image() {
    let (_dir, root) = tree(&[NETWORKD, OWN, ("usr/bin/systemctl", "")]);
    let (unit, lines) = capture_log(|say| write_network_config(&root, &described(), &nics(), say));
    assert_eq!(unit.unwrap(), Some(("systemctl", vec!["enable", "systemd-networkd.service"])));
    assert_eq!(lines, ["the network is configured by systemd-networkd"]);
    assert!(!root.path_exists("/etc/systemd/network/80-own.network"));
    let names = root.list_names("/etc/systemd/network").unwrap();
    let texts: Vec<String> =
        names.iter().map(|name| root.read_text(&format!("/etc/systemd/network/{name}")).unwrap()).collect();
    assert!(texts.iter().any(|text| text.contains("192.0.2.7/24")), "{texts:?}");
}

#[test]
fn undescribed_network_is_kept_or_uses_dhcp() {
    let (_dir, root) = tree(&[NETWORKD, OWN]);
    let (unit, lines) = capture_log(|say| write_network_config(&root, &RequestedNetwork::Unsaid, &nics(), say));
    assert_eq!((unit.unwrap(), lines.len()), (None, 1));
    assert_eq!(root.list_names("/etc/systemd/network").unwrap(), ["80-own.network"]);

    let (_dir, root) = tree(&[NETWORKD]);
    capture_log(|say| write_network_config(&root, &RequestedNetwork::Unsaid, &nics(), say)).0.unwrap();
    let names = root.list_names("/etc/systemd/network").unwrap();
    assert!(root.read_text(&format!("/etc/systemd/network/{}", names[0])).unwrap().contains("DHCP="), "{names:?}");
}

#[test]
fn routing_daemon_configures_announced_networks_itself() {
    let RequestedNetwork::Described(network) = described() else { panic!("described") };
    let announced = RequestedNetwork::Announced(network);
    let (_dir, root) = tree(&[NETWORKD, ("usr/lib/frr/bgpd", "")]);
    capture_log(|say| write_network_config(&root, &announced, &nics(), say)).0.unwrap();
    assert!(!root.path_exists("/etc/systemd/network"));
    let (_dir, root) = tree(&[NETWORKD]);
    capture_log(|say| write_network_config(&root, &announced, &nics(), say)).0.unwrap();
    assert!(!root.list_names("/etc/systemd/network").unwrap().is_empty());
}

#[test]
fn system_without_udev_uses_kernel_names() {
    let files = [("sbin/ifup", ""), ("sbin/rc-update", "")];
    let (_dir, root) = tree(&files);
    let (enabling, _) = capture_log(|say| write_network_config(&root, &described(), &nics(), say));
    assert_eq!(enabling.unwrap(), Some(("rc-update", vec!["add", "networking", "boot"])));
    assert!(root.read_text("/etc/network/interfaces").unwrap().contains("iface eth0 inet static"));
    assert!(!root.path_exists("/etc/systemd"));
    let (_dir, root) = tree(&[files[0], ("sbin/udevd", "")]);
    let (enabling, _) = capture_log(|say| write_network_config(&root, &described(), &nics(), say));
    assert_eq!(enabling.unwrap(), None);
    assert!(root.read_text("/etc/network/interfaces").unwrap().contains("iface lan inet static"));
    assert!(root.path_exists("/etc/systemd/network/10-drophammer-lan.link"));
}

#[test]
fn image_without_network_manager_causes_a_warning() {
    let (_dir, root) = tree(&[]);
    let (unit, lines) = capture_log(|say| write_network_config(&root, &described(), &nics(), say));
    assert_eq!(unit.unwrap(), None);
    assert!(lines[0].starts_with("WARNING: the image does not contain a supported network manager"), "{lines:?}");
}

#[test]
fn link_files_use_conditions_that_systemd_supports() {
    let ifupdown = [("sbin/ifup", ""), ("lib/systemd/systemd-udevd", "")];
    for (library, key) in [
        // CentOS 8, Ubuntu 18.04, Debian 10 and 11, 12 and 13, Debian 13 for ARM, Ubuntu 24.04, Arch.
        ("usr/lib/systemd/libsystemd-shared-239.so", "\nMACAddress=52:54:00:00:00:01\n"),
        ("lib/systemd/libsystemd-shared-237.so", "\nMACAddress="),
        ("lib/systemd/libsystemd-shared-241.so", "\nMACAddress="),
        ("lib/systemd/libsystemd-shared-247.so", "\nPermanentMACAddress="),
        ("usr/lib/x86_64-linux-gnu/systemd/libsystemd-shared-252.so", "\nPermanentMACAddress="),
        ("usr/lib/aarch64-linux-gnu/systemd/libsystemd-shared-257.so", "\nPermanentMACAddress="),
        ("usr/lib/x86_64-linux-gnu/systemd/libsystemd-shared-255.so", "\nPermanentMACAddress="),
        ("usr/lib/systemd/libsystemd-shared-257.5-1.so", "\nPermanentMACAddress="),
        // CentOS 7 (219), SLES 12 (228) and Ubuntu 16.04 (229) do not have the library.
        ("usr/lib/systemd/systemd-networkd-wait-online", "\nMACAddress="),
        ("lib/systemd/systemd-shutdown", "\nMACAddress="),
    ] {
        let (_dir, root) = tree(&[ifupdown[0], ifupdown[1], (library, "")]);
        configured(&root);
        let text = root.read_text("/etc/systemd/network/10-drophammer-lan.link").unwrap();
        assert!(text.contains(key), "{library}: {text}");
    }
    // The `.network` files of networkd select a NIC by the same condition.
    for (library, key) in [
        ("usr/lib/systemd/libsystemd-shared-245.so", "\nPermanentMACAddress="),
        ("usr/lib/systemd/libsystemd-shared-244.so", "\nMACAddress="),
        ("usr/lib/systemd/other", "\nMACAddress="),
    ] {
        let (_dir, root) = tree(&[NETWORKD, (library, "")]);
        configured(&root);
        let text = root.read_text("/etc/systemd/network/10-drophammer-lan.network").unwrap();
        assert!(text.contains(key), "{library}: {text}");
    }
}

#[test]
fn leftovers_of_the_image_do_not_configure_the_network() {
    let scripts = "etc/sysconfig/network-scripts";
    let ifcfg = (format!("{scripts}/ifcfg-eth0"), format!("{scripts}/ifcfg-lo"));
    let keyfiles = "etc/NetworkManager/system-connections";
    let keyfile = (format!("{keyfiles}/eth0"), format!("{keyfiles}/default.nmconnection"));
    let (_dir, root) = tree(&[
        ("usr/sbin/NetworkManager", ""),
        (&ifcfg.0, "DEVICE=eth0\n"),
        (&ifcfg.1, "DEVICE=lo\n"),
        (&keyfile.0, "[connection]\n"),
        (&keyfile.1, "[connection]\n"),
        ("etc/network/interfaces", "auto lo\niface lo inet loopback\niface eth0 inet dhcp\n"),
        NETWORKD,
        OWN,
    ]);
    let (done, lines) = capture_log(|say| write_network_config(&root, &described(), &nics(), say));
    done.unwrap();
    for removed in [&ifcfg.0, &keyfile.0, &keyfile.1, "etc/systemd/network/80-own.network"] {
        assert!(!root.path_exists(&format!("/{removed}")), "{removed}");
    }
    assert!(root.path_exists(&format!("/{}", ifcfg.1)));
    assert!(lines.iter().any(|line| line.contains("80-own.network")), "{lines:?}");
    assert!(lines.iter().any(|line| line.contains("/etc/network/interfaces")), "{lines:?}");
    let interfaces = root.read_text("/etc/network/interfaces").unwrap();
    assert!(interfaces.contains("iface lo inet loopback") && !interfaces.contains("eth0"), "{interfaces}");
}

/// Programs of openSUSE Leap 15 and SLES 15 with wicked, and of SLES 12.
const WICKED: [(&str, &str); 2] = [("usr/sbin/wicked", ""), ("sbin/ifup", "")];
/// Scripts of CentOS 7 without NetworkManager.
const INITSCRIPTS: [(&str, &str); 3] = [
    ("usr/sbin/ifup", ""),
    ("etc/sysconfig/network-scripts/ifup-eth", ""),
    ("etc/sysconfig/network-scripts/ifcfg-eth0", "DEVICE=eth0\n"),
];

#[test]
fn refuses_described_network_that_the_image_does_not_support() {
    for (files, name) in [
        (&WICKED[..], "wicked"),
        (&[("usr/sbin/wicked", "")], "wicked"),
        (&[WICKED[0], ("usr/sbin/ifup", "")], "wicked"),
        (&INITSCRIPTS, "initscripts"),
        (&[("usr/sbin/dhcpcd", "")], "dhcpcd"),
        (&[("usr/bin/netctl", "")], "netctl"),
    ] {
        let (_dir, root) = tree(files);
        let error =
            capture_log(|say| write_network_config(&root, &described(), &nics(), say)).0.unwrap_err().to_string();
        assert!(error.contains(&format!("configures its network with {name}, ")), "{error}");
        assert!(error.contains("use an image with netplan, "), "{error}");
        let (done, lines) = capture_log(|say| write_network_config(&root, &RequestedNetwork::Unsaid, &nics(), say));
        assert!(done.unwrap().is_none() && lines[0].starts_with("WARNING: "), "{lines:?}");
        assert!(lines[0].contains(name), "{lines:?}");
        assert!(!root.path_exists("/etc/network/interfaces"), "{name}");
    }
    // cloud-init writes the files of these network managers.
    for files in [&WICKED[..], &INITSCRIPTS] {
        let (_dir, root) = tree(&[files, &[("usr/bin/cloud-init", "")]].concat());
        configured(&root);
        assert!(root.path_exists("/var/lib/cloud/seed/nocloud/network-config"));
    }
}

/// Symlinks that `systemctl enable` creates, by their paths below `/etc`, with their targets.
const LINKS: [(&str, &str); 15] = [
    ("systemd/system/multi-user.target.wants/systemd-networkd.service", "systemd-networkd.service"),
    (
        "systemd/system/network-online.target.wants/systemd-networkd-wait-online.service",
        "systemd-networkd-wait-online.service",
    ),
    ("systemd/system/sockets.target.wants/systemd-networkd.socket", "systemd-networkd.socket"),
    ("systemd/system/dbus-org.freedesktop.network1.service", "systemd-networkd.service"),
    ("systemd/system/multi-user.target.wants/NetworkManager.service", "NetworkManager.service"),
    ("systemd/system/dbus-org.freedesktop.nm-dispatcher.service", "NetworkManager-dispatcher.service"),
    ("systemd/system/multi-user.target.wants/networking.service", "networking.service"),
    ("systemd/system/multi-user.target.wants/wicked.service", "wicked.service"),
    ("systemd/system/network.service", "wicked.service"),
    ("systemd/system/dbus-org.opensuse.Network.Nanny.service", "wickedd-nanny.service"),
    ("systemd/system/multi-user.target.wants/dhcpcd@eth0.service", "dhcpcd@.service"),
    ("runlevels/default/dhcpcd", "dhcpcd"),
    // Services that do not configure NICs, and a masked one.
    ("systemd/system/dbus-org.freedesktop.resolve1.service", "systemd-resolved.service"),
    ("systemd/system/multi-user.target.wants/networkd-dispatcher.service", "networkd-dispatcher.service"),
    ("systemd/system/NetworkManager-wait-online.service", "/dev/null"),
];

#[test]
fn only_the_selected_network_manager_remains_enabled() {
    let vendor = "network:\n  version: 2\n  renderer: NetworkManager\n";
    let (netplan, manager) = (("usr/sbin/netplan", ""), ("usr/sbin/NetworkManager", ""));
    for (programs, preserved) in [
        (&[manager, NETWORKD][..], 4..6),
        (&[netplan, manager, NETWORKD], 0..4),
        (&[netplan, NETWORKD, ("usr/lib/netplan/00-network-manager-all.yaml", vendor)], 4..6),
        (&[("sbin/ifup", ""), NETWORKD], 6..7),
        (&[WICKED[0], WICKED[1], NETWORKD], 0..4),
        (&[WICKED[0], WICKED[1], ("usr/bin/cloud-init", "")], 0..12),
    ] {
        let (_dir, root) = tree(programs);
        for (path, target) in LINKS {
            let target =
                if target.starts_with('/') { target.to_owned() } else { format!("/lib/systemd/system/{target}") };
            root.create_symlink(&format!("/etc/{path}"), &target).unwrap();
        }
        root.write_file("/etc/systemd/system/networking.service", 0o644, b"[Service]\n").unwrap();
        let lines = configured(&root);
        for (index, (path, _)) in LINKS.iter().enumerate() {
            let is_there = std::fs::symlink_metadata(root.path().join("etc").join(path)).is_ok();
            assert_eq!(is_there, preserved.contains(&index) || index >= 12, "{programs:?}: {path}: {lines:?}");
        }
        assert!(root.path_exists("/etc/systemd/system/networking.service"), "a unit of the owner");
        let is_said = lines.iter().any(|line| line.starts_with("removed the image's links that enable other network"));
        assert_eq!(is_said, preserved.len() < 12, "{lines:?}");
    }
}

#[test]
fn the_selected_network_manager_is_not_masked() {
    let manager = ("usr/sbin/NetworkManager", "");
    let unit = "/etc/systemd/system/NetworkManager.service";
    for (programs, target, is_removed) in [
        (&[manager, NETWORKD][..], "/dev/null", true),
        (&[NETWORKD], "/dev/null", false),
        (&[manager], "/etc/own.service", false),
        (&[("usr/sbin/netplan", ""), NETWORKD], "/dev/null", false),
    ] {
        let (_dir, root) = tree(programs);
        root.create_symlink(unit, target).unwrap();
        let lines = configured(&root);
        let is_there = std::fs::symlink_metadata(root.path().join(&unit[1..])).is_ok();
        assert_eq!(is_there, !is_removed, "{programs:?} {target}: {lines:?}");
        assert_eq!(lines.iter().any(|line| line.contains("link that masks the selected")), is_removed, "{lines:?}");
    }
}

#[test]
fn enabled_network_manager_is_kept_without_a_described_network() {
    for (link, target, preserved) in [(LINKS[7].0, LINKS[7].1, "wicked"), (LINKS[0].0, LINKS[0].1, "NetworkManager")] {
        let manager = ("usr/sbin/NetworkManager", "");
        let (_dir, root) = tree(&[manager, ("etc/NetworkManager/system-connections/own", "[connection]\n")]);
        root.create_symlink(&format!("/etc/{link}"), &format!("/usr/lib/systemd/system/{target}")).unwrap();
        let (done, lines) = capture_log(|say| write_network_config(&root, &RequestedNetwork::Unsaid, &nics(), say));
        assert_eq!(done.unwrap(), None);
        assert_eq!(lines, [format!("the image's network configuration for {preserved} is preserved")]);
        assert!(std::fs::symlink_metadata(root.path().join("etc").join(link)).is_ok());
    }
}

#[test]
fn link_files_of_the_image_do_not_take_precedence() {
    let names = [("00-mtu.link", false), ("10-cloud-init-eth0.link", false), ("10-drophammer-old.link", false)];
    let names = names.into_iter().chain([("10-netplan-lan.link", true), ("73-usb-net-by-mac.link", true)]);
    let names: Vec<(&str, bool)> = names.chain([("99-default.link", true), ("00-own.rules", true)]).collect();
    let ifup = ("sbin/ifup", "");
    for (programs, are_names_written) in
        [(&[ifup, ("sbin/udevd", "")][..], true), (&[("usr/sbin/NetworkManager", "")], false), (&[ifup], false)]
    {
        let (_dir, root) = tree(programs);
        for folder in ["/etc/systemd/network", "/usr/lib/systemd/network"] {
            names
                .iter()
                .for_each(|(name, _)| root.write_file(&format!("{folder}/{name}"), 0o644, b"[Match]\n").unwrap());
            root.create_symlink("/lib", "usr/lib").unwrap();
        }
        let lines = configured(&root);
        for (folder, (name, stays)) in ["/etc/systemd/network", "/usr/lib/systemd/network"]
            .into_iter()
            .flat_map(|folder| names.iter().map(move |name| (folder, name)))
        {
            assert_eq!(root.path_exists(&format!("{folder}/{name}")), *stays || !are_names_written, "{folder}/{name}");
        }
        let said = lines.iter().filter(|line| line.contains(".link files")).collect::<Vec<_>>();
        assert_eq!(said.len(), usize::from(are_names_written), "{lines:?}");
        assert!(said.iter().all(|line| line.matches("00-mtu.link").count() == 2), "{lines:?}");
    }
}

#[test]
fn vendor_keyfiles_and_later_settings_of_cloud_init_do_not_configure_the_network() {
    let keyfile = "usr/lib/NetworkManager/system-connections/default.nmconnection";
    let installer = "etc/cloud/cloud.cfg.d/99-installer.cfg";
    let text = "network: {version: 2, ethernets: {eth0: {dhcp4: true}}}\nusers: [default]\n";
    let (_dir, root) = tree(&[
        ("usr/sbin/NetworkManager", ""),
        ("usr/bin/cloud-init", ""),
        (keyfile, "[connection]\n"),
        (installer, text),
    ]);
    configured(&root);
    assert!(!root.path_exists(&format!("/{keyfile}")));
    assert_eq!(root.read_text(&format!("/{installer}")).unwrap(), text, "it contains more than the network");
    let mut names = root.list_names("/etc/cloud/cloud.cfg.d").unwrap();
    let last = names.pop().unwrap();
    assert!(root.read_text(&format!("/etc/cloud/cloud.cfg.d/{last}")).unwrap().contains("network: {config: disabled}"));
}
