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

/// NICs whose kernel names are not in the order of the MAC addresses.
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

/// Returns the documents of the folder, by name.
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

/// Compares the output with `testdata/network/DOCUMENT.SYSTEM`; rewrites that file if UPDATE_NETWORK is set in the environment.
#[test]
fn what_is_rendered_is_what_is_on_file() {
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

/// The configuration for netplan and cloud-init parses to the same network.
#[test]
fn what_is_written_for_netplan_reads_as_the_same() {
    for (name, network) in documents() {
        let text = network.render(NetworkBackend::Netplan, &[]).remove(0).content;
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
fn no_two_files_have_one_path() {
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
fn what_is_wrong_is_told_with_its_place() {
    let mac = |last: u8| format!("52:54:00:00:00:{last:02x}");
    let card = |last: u8| json!({"match": {"macaddress": mac(last)}});
    let lan = |more: Value| json!({"ethernets": {"lan0": more}});
    let bond = |parameters: Value| json!({"ethernets": {"a": card(1), "b": card(2)}, "bonds": {"bond0": {"interfaces": ["a", "b"], "parameters": parameters}}});
    let vlans = |vlans: Value| json!({"ethernets": {"lan0": {"mtu": 1400}}, "bonds": {}, "vlans": vlans});
    let cases = [
        // Types and fields.
        (json!([]), "", "must be a mapping"),
        (json!({}), "", "no device is configured"),
        (json!({"version": 1, "ethernets": {"a": {}}}), "version", "only version 2"),
        (json!({"ethernet": {}}), "ethernet", "unknown field \"ethernet\"; did you mean \"ethernets\"?"),
        (json!({"network": {"version": 2, "wifis": {}}}), "network.wifis", "does not support netplan's field"),
        (json!({"bridges": {}}), "bridges", "does not support netplan's field"),
        (json!({"ethernets": []}), "ethernets", "but is a list"),
        (lan(json!({"dhcp": true})), "ethernets.lan0.dhcp", "unknown field \"dhcp\"; did you mean \"dhcp4\"?"),
        (lan(json!({"wakeonlan": true})), "ethernets.lan0.wakeonlan", "does not support netplan's field"),
        (lan(json!({"id": 5})), "ethernets.lan0.id", "unknown field"),
        (lan(json!({"dhcp4": "perhaps"})), "ethernets.lan0.dhcp4", "true or false"),
        // NICs and names.
        (json!({"ethernets": {"en*": {"dhcp4": true}}}), "ethernets.en*", "is a pattern"),
        (json!({"ethernets": {"a/b": {"dhcp4": true}}}), "ethernets.a/b", "is not a valid name"),
        (json!({"ethernets": {"a\nb": {"match": {"macaddress": mac(1)}}}}), "ethernets.a\nb", "is not a valid name"),
        (json!({"ethernets": {"lo": {"dhcp4": true}}}), "ethernets.lo", "cannot be the name"),
        (json!({"ethernets": {"a-name-of-sixteen": {}}}), "ethernets.a-name-of-sixteen", "too long"),
        (lan(json!({"set-name": "x"})), "ethernets.lan0.set-name", "requires a match"),
        (lan(json!({"match": {}})), "ethernets.lan0.match", "matches every NIC"),
        (lan(json!({"match": {"driver": "e1000"}})), "ethernets.lan0.match.driver", "does not support netplan's field"),
        (lan(json!({"match": {"macaddress": "52:54"}})), "ethernets.lan0.match.macaddress", "not a MAC"),
        (
            lan(json!({"match": {"macaddress": "01:00:5e:00:00:01"}})),
            "ethernets.lan0.match.macaddress",
            "group address",
        ),
        (lan(json!({"match": {"macaddress": mac(1), "name": "x"}})), "ethernets.lan0.match.name", "remove name"),
        (lan(json!({"match": {"name": "en*"}})), "ethernets.lan0.match.name", "is a pattern"),
        (
            json!({"ethernets": {"a": card(1), "b": card(1)}}),
            "ethernets.b.match.macaddress",
            "matched twice, first at ethernets.a.match.macaddress",
        ),
        (
            json!({"ethernets": {"a": card(1), "b": {"match": {"macaddress": mac(2)}, "set-name": "a"}}}),
            "ethernets.b.set-name",
            "two devices would have the name \"a\"",
        ),
        (json!({"ethernets": {"x": {}}, "vlans": {"x": {"id": 1, "link": "x"}}}), "vlans.x", "specified twice"),
        // Addresses.
        (lan(json!({"addresses": "10.0.0.7/24"})), "ethernets.lan0.addresses", "must be a list, but is text"),
        (lan(json!({"addresses": ["10.0.0.7"]})), "ethernets.lan0.addresses[0]", "a prefix length"),
        (
            lan(json!({"addresses": ["10.0.0.7/24", "10.0.0.0/24"]})),
            "ethernets.lan0.addresses[1]",
            "the network itself",
        ),
        (lan(json!({"addresses": [{"10.0.0.7/24": {"lifetime": 0}}]})), "ethernets.lan0.addresses[0]", "must be text"),
        (
            json!({"ethernets": {"a": {"addresses": ["10.0.0.7/24"]}, "b": {"addresses": ["10.0.0.7/16"]}}}),
            "ethernets.b.addresses[0]",
            "10.0.0.7 is specified twice, first at ethernets.a.addresses[0]",
        ),
        // Routes.
        (
            lan(json!({"addresses": ["10.0.0.7/24"], "gateway4": "10.0.1.1"})),
            "ethernets.lan0.gateway4",
            "not in any network of this device (10.0.0.7/24)",
        ),
        (lan(json!({"gateway4": "10.0.1.1"})), "ethernets.lan0.gateway4", "(no addresses)"),
        (lan(json!({"addresses": ["10.0.0.7/24"], "gateway4": "10.0.0.7"})), "ethernets.lan0.gateway4", "own address"),
        (lan(json!({"dhcp4": true, "gateway4": "fe80::1"})), "ethernets.lan0.gateway4", "not an IPv4 address"),
        (lan(json!({"dhcp4": true, "routes": [{"to": "default"}]})), "ethernets.lan0.routes[0]", "via is missing"),
        (
            lan(json!({"dhcp4": true, "routes": [{"to": "10.1.1.1/8", "via": "10.0.0.1"}]})),
            "ethernets.lan0.routes[0].to",
            "the network is 10.0.0.0/8",
        ),
        (
            lan(json!({"dhcp4": true, "routes": [{"to": "default", "via": "10.0.0.1", "table": 5}]})),
            "ethernets.lan0.routes[0].table",
            "does not support netplan's field",
        ),
        (
            lan(json!({"dhcp4": true, "gateway4": "10.0.0.1", "routes": [{"to": "default", "via": "10.0.0.2"}]})),
            "ethernets.lan0.routes[0]",
            "two default routes of IPv4 have the same metric",
        ),
        (
            lan(
                json!({"dhcp4": true, "routes": [{"to": "10.0.0.0/8", "via": "10.0.0.1"}, {"to": "10.0.0.0/8", "via": "10.0.0.2"}]}),
            ),
            "ethernets.lan0.routes[1]",
            "specified twice",
        ),
        // Name servers and MTU.
        (
            lan(json!({"dhcp4": true, "nameservers": {"addresses": ["dns.example.org"]}})),
            "ethernets.lan0.nameservers.addresses[0]",
            "not an IP",
        ),
        (
            lan(json!({"dhcp4": true, "nameservers": {"search": ["a b"]}})),
            "ethernets.lan0.nameservers.search[0]",
            "not a domain",
        ),
        (
            lan(json!({"nameservers": {"addresses": ["10.0.0.1"]}})),
            "ethernets.lan0.nameservers.addresses",
            "no IPv4 address",
        ),
        (lan(json!({"mtu": 67})), "ethernets.lan0.mtu", "from 68 to 65535"),
        (lan(json!({"mtu": "9k"})), "ethernets.lan0.mtu", "from 68 to 65535"),
        (lan(json!({"mtu": 1279, "dhcp6": true})), "ethernets.lan0.mtu", "at least 1280"),
        // VLANs.
        (vlans(json!({"v": {"link": "lan0"}})), "vlans.v", "id is missing"),
        (vlans(json!({"v": {"id": 4095, "link": "lan0"}})), "vlans.v.id", "from 1 to 4094"),
        (vlans(json!({"v": {"id": 0, "link": "lan0"}})), "vlans.v.id", "from 1 to 4094"),
        (
            vlans(json!({"v": {"id": 5, "link": "lan1"}})),
            "vlans.v.link",
            "device \"lan1\" does not exist; existing: lan0, v",
        ),
        (vlans(json!({"v": {"id": 5, "link": "v"}})), "vlans.v.link", "v has the link v, which is itself on v"),
        (
            vlans(json!({"v": {"id": 5, "link": "lan0"}, "w": {"id": 5, "link": "lan0"}})),
            "vlans.w.id",
            "VLAN 5 on lan0 already exists: v",
        ),
        (vlans(json!({"v": {"id": 5, "link": "lan0", "mtu": 1500}})), "vlans.v.mtu", "the MTU of lan0, which is 1400"),
        (vlans(json!({"lan0.6": {"id": 5, "link": "lan0"}})), "vlans.lan0.6.id", "the name stands for VLAN 6 on lan0"),
        // Bonds.
        (json!({"bonds": {"bond0": {}}}), "bonds.bond0.interfaces", "does not work"),
        (
            json!({"bonds": {"bond0": {"interfaces": ["a"]}}}),
            "bonds.bond0.interfaces[0]",
            "ethernet \"a\" does not exist; none exist",
        ),
        (
            json!({"ethernets": {"a": card(1)}, "bonds": {"b0": {"interfaces": ["a"]}, "b1": {"interfaces": ["a"]}}}),
            "bonds.b1.interfaces[0]",
            "is already a member of a bond",
        ),
        (
            json!({"ethernets": {"a": {"dhcp4": true}}, "bonds": {"b0": {"interfaces": ["a"]}}}),
            "ethernets.a",
            "is a member of b0",
        ),
        (
            json!({"ethernets": {"a": {"mtu": 9000}}, "bonds": {"b0": {"interfaces": ["a"]}}}),
            "ethernets.a.mtu",
            "the MTU of the bond",
        ),
        (
            json!({"ethernets": {"a": {}}, "bonds": {"b0": {"interfaces": ["a"]}}, "vlans": {"v": {"id": 1, "link": "a"}}}),
            "vlans.v.link",
            "set the link to b0",
        ),
        (bond(json!({"mode": "lacp"})), "bonds.bond0.parameters.mode", "is not a valid mode"),
        (bond(json!({"mode": 4})), "bonds.bond0.parameters.mode", "is not a valid mode"),
        (
            bond(json!({"lacp-rate": "fast"})),
            "bonds.bond0.parameters.lacp-rate",
            "lacp-rate is not supported in bond mode balance-rr",
        ),
        (
            bond(json!({"mode": "802.3ad", "primary": "a"})),
            "bonds.bond0.parameters.primary",
            "primary is not supported",
        ),
        (
            bond(json!({"mode": "active-backup", "primary": "c"})),
            "bonds.bond0.parameters.primary",
            "not an interface of the bond",
        ),
        (bond(json!({"mii-monitor-interval": "soon"})), "bonds.bond0.parameters.mii-monitor-interval", "is not a time"),
        (bond(json!({"up-delay": 150})), "bonds.bond0.parameters.up-delay", "must be a multiple"),
        (bond(json!({"arp-interval": 100})), "bonds.bond0.parameters.arp-ip-targets", "must be set together"),
        (
            bond(json!({"arp-interval": 100, "arp-ip-targets": ["10.0.0.1"], "mii-monitor-interval": 100})),
            "bonds.bond0.parameters.arp-interval",
            "cannot be combined",
        ),
        (
            bond(json!({"arp-interval": 100, "arp-ip-targets": ["fe80::1"]})),
            "bonds.bond0.parameters.arp-ip-targets[0]",
            "not an IPv4 address",
        ),
        (
            bond(json!({"gratuitous-arp": 2})),
            "bonds.bond0.parameters.gratuitous-arp",
            "does not support netplan's field",
        ),
    ];
    for (document, place, words) in cases {
        let problems = NetworkConfig::parse(&document).map(|_| ()).expect_err(&document.to_string());
        let is_it =
            |problem: &&common::diagnostic::Diagnostic| problem.place == place && problem.message.contains(words);
        assert!(problems.iter().any(|problem| is_it(&problem)), "{document}\n{place}: {words}\n{problems:#?}");
    }
}

#[test]
fn all_that_is_wrong_is_said_at_once() {
    let document = json!({
        "version": 2,
        "ethernets": {"a": {"dhpc4": true, "addresses": ["x", "10.0.0.7/24"], "mtu": 1}, "b": {"match": {"macaddress": "y"}}},
        "bonds": {"bond0": {"interfaces": ["b", "c"]}},
        "vlans": {"v": {"id": 9999, "link": "z", "addresses": ["10.0.0.7/24"]}},
    });
    let problems = NetworkConfig::parse(&document).unwrap_err();
    let mut places: Vec<&str> = problems.iter().map(|problem| problem.place.as_str()).collect();
    places.sort_unstable();
    let expected = [
        "bonds.bond0.interfaces[1]",
        "ethernets.a.addresses[0]",
        "ethernets.a.dhpc4",
        "ethernets.a.mtu",
        "ethernets.b.match.macaddress",
        "vlans.v.addresses[0]",
        "vlans.v.id",
    ];
    assert_eq!(places, expected);
}

#[test]
fn vlans_in_a_circle_are_refused() {
    let vlan = |link: &str| json!({"id": 5, "link": link});
    let document = json!({"vlans": {"a": vlan("b"), "b": vlan("c"), "c": vlan("a"), "d": vlan("a")}});
    let problems = NetworkConfig::parse(&document).unwrap_err();
    let circle = problems.iter().filter(|problem| problem.message.contains("which is itself on")).count();
    assert_eq!(circle, 3, "{problems:?}");
}

#[test]
fn what_dhcp_and_routers_say_is_not_known_and_not_refused() {
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
fn a_description_is_for_the_cards_that_there_are() {
    let lan =
        |mac: &str, name: &str| read(&json!({"ethernets": {"lan": {"match": {"macaddress": mac}, "set-name": name}}}));
    assert_eq!(lan("52:54:00:AA:00:01", "lan0").check_nics(&nics()), Vec::new());
    // A name is not taken if the NIC itself has it.
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
            .starts_with("ethernets.lan.set-name: another NIC is called eth0 by the kernel (")
    );
    // NIC names of the installed system are not known in the ramdisk.
    assert!(read(&json!({"ethernets": {"eno1": {"dhcp4": true}}})).check_nics(&nics()).is_empty());
}

#[test]
fn a_bond_sees_a_lost_link_without_being_told_to() {
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
fn the_system_of_a_tree() {
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
}

#[test]
fn what_a_tree_needs_besides() {
    let network = read(&json!({"ethernets": {"lan0": {"dhcp4": true, "nameservers": {"addresses": ["10.0.0.53"]}}}}));
    let paths = |system, paths: &[&str]| {
        let files = network.render_additional_files(system, &|path| paths.contains(&path));
        files.into_iter().map(|file| file.path).collect::<Vec<_>>()
    };
    assert_eq!(paths(NetworkBackend::Networkd, &[]), ["/etc/resolv.conf"]);
    assert_eq!(paths(NetworkBackend::Ifupdown, &["/sbin/resolvconf"]), [""; 0]);
    let off = "/etc/cloud/cloud.cfg.d/99-drophammer-network.cfg";
    assert_eq!(paths(NetworkBackend::Networkd, &["/lib/systemd/systemd-resolved", "/usr/bin/cloud-init"]), [off]);
    assert_eq!(paths(NetworkBackend::CloudInit, &["/usr/bin/cloud-init"]), [""; 0]);
}

#[test]
fn the_networks_of_metal_stack() {
    let networks = json!([
        {"networkid": "internet", "ips": ["192.0.2.7"], "prefixes": ["192.0.2.0/27"], "private": false, "asn": 4_200_000_007_u64},
        {"networkid": "rack", "ips": ["10.0.16.2", "2001:db8::2"], "prefixes": ["10.0.16.0/22"], "private": true},
        {"networkid": "under", "ips": ["10.255.0.1"], "underlay": true},
    ]);
    let dns = json!([{"ip": "10.0.0.53"}]);
    let network = NetworkConfig::from_metal_stack(&networks, &dns, &nics()).unwrap();
    let ids: Vec<&str> = network.ethernets.keys().map(String::as_str).collect();
    assert_eq!(ids, ["enx525400aa0001", "enx525400aa0003"], "those with a link");
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
