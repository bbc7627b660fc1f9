//! Configurations that are refused, each with the path of the invalid field.

use super::*;

#[test]
fn each_problem_is_reported_with_its_path() {
    let mac = |last: u8| format!("52:54:00:00:00:{last:02x}");
    let nic = |last: u8| json!({"match": {"macaddress": mac(last)}});
    let lan = |more: Value| json!({"ethernets": {"lan0": more}});
    let bond = |parameters: Value| json!({"ethernets": {"a": nic(1), "b": nic(2)}, "bonds": {"bond0": {"interfaces": ["a", "b"], "parameters": parameters}}});
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
        (lan(json!({"set-name": "x"})), "ethernets.lan0.set-name", "requires a `match`"),
        (lan(json!({"match": {}})), "ethernets.lan0.match", "matches every NIC"),
        (lan(json!({"match": {"driver": "e1000"}})), "ethernets.lan0.match.driver", "does not support netplan's field"),
        (lan(json!({"match": {"macaddress": "52:54"}})), "ethernets.lan0.match.macaddress", "not a MAC"),
        (
            lan(json!({"match": {"macaddress": "01:00:5e:00:00:01"}})),
            "ethernets.lan0.match.macaddress",
            "multicast address",
        ),
        (lan(json!({"match": {"macaddress": mac(1), "name": "x"}})), "ethernets.lan0.match.name", "remove `name`"),
        (lan(json!({"match": {"name": "en*"}})), "ethernets.lan0.match.name", "is a pattern"),
        (
            json!({"ethernets": {"a": nic(1), "b": nic(1)}}),
            "ethernets.b.match.macaddress",
            "two devices match the NIC 52:54:00:00:00:01, first at ethernets.a.match.macaddress",
        ),
        (
            json!({"ethernets": {"a": nic(1), "b": {"match": {"macaddress": mac(2)}, "set-name": "a"}}}),
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
        // netplan writes this metric as a negative number.
        (
            lan(json!({"dhcp4": true, "routes": [{"to": "default", "via": "10.0.0.1", "metric": 2_147_483_648_u32}]})),
            "ethernets.lan0.routes[0].metric",
            "from 0 to 2147483647",
        ),
        // networkd starts DHCPv6 if a router announces it.
        (
            lan(json!({"dhcp6": true, "accept-ra": false})),
            "ethernets.lan0.dhcp6",
            "because only router advertisements enable DHCPv6",
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
            "does not have an IPv4 address",
        ),
        (lan(json!({"mtu": 1279})), "ethernets.lan0.mtu", "from 1280 to 65535"),
        (lan(json!({"mtu": "9k"})), "ethernets.lan0.mtu", "from 1280 to 65535"),
        // VLANs.
        (vlans(json!({"v": {"link": "lan0"}})), "vlans.v", "id is missing"),
        (vlans(json!({"v": {"id": 4095, "link": "lan0"}})), "vlans.v.id", "from 1 to 4094"),
        (vlans(json!({"v": {"id": 0, "link": "lan0"}})), "vlans.v.id", "from 1 to 4094"),
        (
            vlans(json!({"v": {"id": 5, "link": "lan1"}})),
            "vlans.v.link",
            "device \"lan1\" does not exist; existing: lan0, v",
        ),
        (vlans(json!({"v": {"id": 5, "link": "v"}})), "vlans.v.link", "v has the link v, which is itself on top of v"),
        (
            vlans(json!({"v": {"id": 5, "link": "lan0"}, "w": {"id": 5, "link": "lan0"}})),
            "vlans.w.id",
            "VLAN 5 on lan0 already exists: v",
        ),
        (vlans(json!({"v": {"id": 5, "link": "lan0", "mtu": 1500}})), "vlans.v.mtu", "the MTU of lan0, which is 1400"),
        (vlans(json!({"lan0.6": {"id": 5, "link": "lan0"}})), "vlans.lan0.6.id", "the name suggests VLAN 6 on lan0"),
        // Bonds.
        (json!({"bonds": {"bond0": {}}}), "bonds.bond0.interfaces", "a bond requires interfaces"),
        (
            json!({"bonds": {"bond0": {"interfaces": ["a"]}}}),
            "bonds.bond0.interfaces[0]",
            "ethernet \"a\" does not exist; none exist",
        ),
        (
            json!({"ethernets": {"a": nic(1)}, "bonds": {"b0": {"interfaces": ["a"]}, "b1": {"interfaces": ["a"]}}}),
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
            "cannot have an MTU of its own",
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
            "`primary` is not supported",
        ),
        (
            bond(json!({"mode": "active-backup", "primary": "c"})),
            "bonds.bond0.parameters.primary",
            "not an interface of the bond",
        ),
        (
            bond(json!({"mii-monitor-interval": "soon"})),
            "bonds.bond0.parameters.mii-monitor-interval",
            "is not a duration",
        ),
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
fn reports_every_problem_of_a_description() {
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
fn refuses_cyclic_vlans() {
    let vlan = |link: &str| json!({"id": 5, "link": link});
    let document = json!({"vlans": {"a": vlan("b"), "b": vlan("c"), "c": vlan("a"), "d": vlan("a")}});
    let problems = NetworkConfig::parse(&document).unwrap_err();
    let circle = problems.iter().filter(|problem| problem.message.contains("which is itself on")).count();
    assert_eq!(circle, 3, "{problems:?}");
}
