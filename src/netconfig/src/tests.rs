mod competing_services;
mod netplan_comparison;
mod refusals;
mod rendering;

use super::*;
use model::inventory::Nic;
use serde_json::{Value, json};
use std::fs;
use std::path::{Path, PathBuf};

const SYSTEMS: [NetworkBackend; 5] = [
    NetworkBackend::CloudInit,
    NetworkBackend::Netplan,
    NetworkBackend::Networkd,
    NetworkBackend::NetworkManager,
    NetworkBackend::Ifupdown,
];

fn folder() -> PathBuf {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../..")).join("testdata/network")
}

/// NICs whose kernel names have another order than their MAC addresses.
fn nics() -> Vec<Nic> {
    let nic = |name: &str, mac: &str, link| Nic { name: name.into(), mac: mac.into(), link, ..Nic::default() };
    vec![
        nic("eth0", "52:54:00:aa:00:02", false),
        nic("eth1", "52:54:00:AA:00:01", true),
        nic("eth2", "52:54:00:aa:00:03", true),
    ]
}

fn read(document: &Value) -> NetworkConfig {
    NetworkConfig::parse(document).unwrap_or_else(|problems| panic!("{}", common::diagnostic::join_problems(&problems)))
}

/// Returns the documents of the test directory by name.
fn documents() -> Vec<(String, NetworkConfig)> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder()).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_some_and(|extension| extension == "json") {
            let document = serde_json::from_str(&fs::read_to_string(&path).unwrap()).unwrap();
            found.push((path.file_stem().unwrap().to_str().unwrap().to_owned(), read(&document)));
        }
    }
    assert!(found.len() >= 4);
    found
}

/// Compares the output with `testdata/network/DOCUMENT.SYSTEM`. If UPDATE_NETWORK is set in the environment, rewrites
/// that file.
#[test]
fn rendered_files_match_the_recorded_files() {
    for (name, network) in documents() {
        assert_eq!(network.check_nics(&nics()), Vec::new(), "{name}");
        for system in SYSTEMS {
            let files = network.render(system, &nics()).into_iter().chain(network.render_resolv_conf());
            let text: Vec<String> =
                files.map(|file| format!("=== {} {:o}\n{}", file.path, file.mode, file.content)).collect();
            let path = folder().join(format!("{name}.{}", system.name()));
            if std::env::var_os("UPDATE_NETWORK").is_some() {
                fs::write(&path, text.concat()).unwrap();
            }
            let expected = fs::read_to_string(&path).unwrap_or_default();
            assert_eq!(text.concat(), expected, "{}", path.display());
        }
    }
}

/// The file that is rendered for netplan can be parsed, and contains the same configuration.
#[test]
fn rendered_netplan_parses_to_the_same_network() {
    for (name, network) in documents() {
        // `dhcp-identifier` is removed, because it is constant in netplan's file, and is not a field of the document.
        let text = network.render(NetworkBackend::Netplan, &[]).remove(0).content.replace("dhcp-identifier: mac", "");
        let again =
            common::yaml::read_document(&text, marked_yaml::LoaderOptions::default().prevent_coercion(true)).unwrap();
        let again = NetworkConfig::parse(&json_of(&again)).unwrap_or_else(|problems| panic!("{name}: {problems:?}"));
        assert_eq!(again, network, "{name}");
    }
}

fn json_of(node: &marked_yaml::Node) -> Value {
    match node {
        marked_yaml::Node::Mapping(map) => {
            map.iter().map(|(key, value)| (key.as_str().to_owned(), json_of(value))).collect()
        }
        marked_yaml::Node::Sequence(items) => items.iter().map(json_of).collect(),
        marked_yaml::Node::Scalar(scalar) => scalar.as_str().into(),
    }
}

#[test]
fn no_two_files_have_the_same_path() {
    for (name, network) in documents() {
        for system in SYSTEMS {
            let mut paths: Vec<String> = network.render(system, &nics()).into_iter().map(|file| file.path).collect();
            let count = paths.len();
            paths.sort();
            paths.dedup();
            assert_eq!(paths.len(), count, "{name} {system:?}");
        }
    }
}

#[test]
fn gateways_outside_of_known_networks_are_accepted_with_dhcp() {
    for good in [
        json!({"dhcp4": true, "gateway4": "10.0.0.1"}),
        json!({"accept-ra": true, "gateway6": "2001:db8::1"}),
        json!({"addresses": ["2001:db8::7/64"], "gateway6": "fe80::1"}),
        json!({"addresses": ["10.0.0.7/32"], "routes": [{"to": "default", "via": "10.9.0.1", "on-link": true}]}),
        json!({"dhcp4": true, "gateway4": "10.0.0.1", "routes": [{"to": "default", "via": "10.0.0.2", "metric": 5}]}),
        json!({"addresses": ["fe80::7/64"]}),
        json!({"nameservers": {"addresses": ["2001:db8::53"]}}),
    ] {
        read(&json!({"ethernets": {"lan0": good, "lan1": {"addresses": ["fe80::7/64"]}}}));
    }
}

#[test]
fn description_must_match_the_nics_of_the_machine() {
    let lan =
        |mac: &str, name: &str| read(&json!({"ethernets": {"lan": {"match": {"macaddress": mac}, "set-name": name}}}));
    assert_eq!(lan("52:54:00:AA:00:01", "lan0").check_nics(&nics()), Vec::new());
    // A NIC can be renamed to its own current name.
    assert_eq!(lan("52:54:00:aa:00:01", "eth1").check_nics(&nics()), Vec::new());
    let said = |network: NetworkConfig, nics: &[Nic]| common::diagnostic::join_problems(&network.check_nics(nics));
    assert_eq!(
        said(lan("52:54:00:aa:00:09", "lan0"), &nics()),
        "ethernets.lan.match.macaddress: no NIC has the MAC address 52:54:00:aa:00:09; this machine has eth0 52:54:00:aa:00:02, \
         eth1 52:54:00:AA:00:01, eth2 52:54:00:aa:00:03"
    );
    assert!(said(lan("52:54:00:aa:00:09", "lan0"), &[]).ends_with("this machine has no NICs"));
    let doubled: Vec<Nic> = nics().into_iter().chain(nics()).collect();
    assert!(said(lan("52:54:00:aa:00:01", "lan0"), &doubled).contains("several NICs have the MAC address"));
    assert!(
        said(lan("52:54:00:aa:00:01", "eth0"), &nics())
            .starts_with("ethernets.lan.set-name: the kernel uses the name eth0 for another NIC (")
    );
    // In the ramdisk, the NIC names of the installed system are unknown.
    assert!(read(&json!({"ethernets": {"eno1": {"dhcp4": true}}})).check_nics(&nics()).is_empty());
}

#[test]
fn bond_monitors_links_by_default() {
    let document = json!({"ethernets": {"a": {}}, "bonds": {"b": {"interfaces": ["a"]}}});
    let without_arp =
        json!({"ethernets": {"a": {}}, "bonds": {"b": {"interfaces": ["a"], "parameters": {"arp-interval": 0}}}});
    for document in [document, without_arp] {
        let bond = &read(&document).bonds["b"];
        assert_eq!(
            (bond.parameters["mode"].as_str(), bond.parameters["mii-monitor-interval"].as_str()),
            ("balance-rr", "100")
        );
    }
}

#[test]
fn network_backend_is_detected_from_the_tree() {
    let found = |paths: &[&str]| NetworkBackend::detect(&|path| paths.contains(&path));
    let everything = [
        "/usr/sbin/netplan",
        "/usr/sbin/NetworkManager",
        "/sbin/ifup",
        "/lib/systemd/systemd-networkd",
        "/usr/bin/cloud-init",
    ];
    let expected = [
        NetworkBackend::Netplan,
        NetworkBackend::NetworkManager,
        NetworkBackend::Ifupdown,
        NetworkBackend::Networkd,
        NetworkBackend::CloudInit,
    ];
    for (index, expected) in expected.into_iter().enumerate() {
        assert_eq!(found(&everything[index..]), Some(expected));
    }
    assert_eq!(found(&[]), None);
    assert_eq!(found(&["/etc/cloud/cloud-init.disabled", "/usr/bin/cloud-init"]), None);
    let (wicked, centos) = ("/usr/sbin/wicked", "/etc/sysconfig/network-scripts/ifup-eth");
    for (paths, supported, unsupported) in [
        (&["/sbin/ifup", "/etc/network"][..], Some(NetworkBackend::Ifupdown), None),
        (&["/sbin/ifup", "/usr/sbin/dhcpcd"], Some(NetworkBackend::Ifupdown), None),
        (&["/sbin/ifup", wicked], None, Some("wicked")),
        (&["/usr/sbin/ifup", centos], None, Some("initscripts")),
        (&["/usr/sbin/ifup", centos, "/usr/sbin/NetworkManager"], Some(NetworkBackend::NetworkManager), None),
        (&["/sbin/ifup", wicked, "/usr/lib/systemd/systemd-networkd"], Some(NetworkBackend::Networkd), None),
        (&["/sbin/ifup", wicked, "/usr/bin/cloud-init"], Some(NetworkBackend::CloudInit), None),
        (&["/usr/sbin/connmand"], None, Some("connman")),
        (&["/usr/bin/ip"], None, None),
    ] {
        let has = |path: &str| paths.contains(&path);
        assert_eq!((found(paths), find_unsupported(&has)), (supported, unsupported), "{paths:?}");
    }
}

#[test]
fn additional_files_depend_on_the_tree() {
    let network = read(&json!({"ethernets": {"lan0": {"dhcp4": true, "nameservers": {"addresses": ["10.0.0.53"]}}}}));
    let paths = |system, paths: &[&str]| {
        let files = network.render_additional_files(system, &|path| paths.contains(&path), &[]);
        files.into_iter().map(|file| file.path).collect::<Vec<_>>()
    };
    assert_eq!(paths(NetworkBackend::Networkd, &[]), ["/etc/resolv.conf"]);
    assert_eq!(paths(NetworkBackend::Ifupdown, &["/sbin/resolvconf"]), [""; 0]);
    let off = "/etc/cloud/cloud.cfg.d/99-drophammer-network.cfg";
    assert_eq!(paths(NetworkBackend::Networkd, &["/lib/systemd/systemd-resolved", "/usr/bin/cloud-init"]), [off]);
    assert_eq!(paths(NetworkBackend::CloudInit, &["/usr/bin/cloud-init"]), [""; 0]);
}

#[test]
fn networks_of_metal_stack_are_converted() {
    let networks = json!([
        {"networkid": "internet", "ips": ["192.0.2.7"], "prefixes": ["192.0.2.0/27"], "private": false, "asn": 4_200_000_007_u64},
        {"networkid": "rack", "ips": ["10.0.16.2", "2001:db8::2"], "prefixes": ["10.0.16.0/22"], "private": true},
        {"networkid": "under", "ips": ["10.255.0.1"], "underlay": true},
    ]);
    let dns = json!([{"ip": "10.0.0.53"}]);
    let network = NetworkConfig::from_metal_stack(&networks, &dns, &nics()).unwrap();
    let ids: Vec<&str> = network.ethernets.keys().map(String::as_str).collect();
    assert_eq!(ids, ["enx525400aa0001", "enx525400aa0003"], "the NICs with a link");
    let settings = &network.ethernets["enx525400aa0001"].settings;
    let addresses: Vec<String> = settings.addresses.iter().map(Cidr::to_string).collect();
    assert_eq!(addresses, ["192.0.2.7/27", "10.0.16.2/22", "2001:db8::2/128"]);
    assert!(settings.dhcp4 && settings.nameservers.len() == 1);
    assert!(network.ethernets["enx525400aa0003"].settings.addresses.is_empty());
    assert_eq!(network.check_nics(&nics()), Vec::new());

    assert_eq!(NetworkConfig::from_metal_stack(&Value::Null, &Value::Null, &[]).unwrap(), NetworkConfig::default());
    let problems =
        NetworkConfig::from_metal_stack(&json!([{"ips": ["x"]}]), &json!([{"ip": "y"}]), &nics()).unwrap_err();
    let places: Vec<&str> = problems.iter().map(|problem| problem.place.as_str()).collect();
    assert_eq!(places, ["networks[0].ips[0]", "dns_servers[0].ip"]);
}
