//! Details of rendered files in which `scripts/compare-network` has found differences from netplan, or between network
//! managers.

use super::*;

fn rendered(document: Value, system: NetworkBackend) -> String {
    let files = read(&document).render(system, &nics());
    files.into_iter().map(|file| format!("=== {}\n{}", file.path, file.content)).collect()
}

fn lan(settings: Value) -> Value {
    json!({"ethernets": {"lan0": settings}})
}

/// With each network manager, DHCP routes have the metric that netplan sets for networkd and that NetworkManager uses
/// by default. Otherwise, it would depend on the network manager whether DHCP's default route precedes a static default
/// route with a larger metric.
#[test]
fn dhcp_routes_have_the_same_metric_with_each_network_manager() {
    for dhcp in ["dhcp4", "dhcp6"] {
        let units = rendered(lan(json!({dhcp: true, "mtu": 1400})), NetworkBackend::Networkd);
        assert!(units.contains("[DHCP]\nRouteMetric=100\n"), "{units}");
    }
    let interfaces = rendered(lan(json!({"dhcp4": true})), NetworkBackend::Ifupdown);
    assert!(interfaces.contains("iface lan0 inet dhcp\n    metric 100\n"), "{interfaces}");
    let static_address = rendered(lan(json!({"addresses": ["10.0.0.7/24"]})), NetworkBackend::Ifupdown);
    assert!(!static_address.contains("metric"), "{static_address}");
}

/// dhclient sets the MTU of the lease, so a configured MTU must be set after the lease was obtained.
#[test]
fn a_configured_mtu_precedes_that_of_dhcp() {
    let units = rendered(lan(json!({"dhcp4": true, "mtu": 1400})), NetworkBackend::Networkd);
    assert!(!units.contains("UseMTU=yes"), "{units}");
    let interfaces = rendered(lan(json!({"dhcp4": true, "mtu": 1400})), NetworkBackend::Ifupdown);
    for command in ["pre-up", "up"] {
        assert!(interfaces.contains(&format!("    {command} ip link set dev lan0 mtu 1400\n")), "{interfaces}");
    }
    let static_address = rendered(lan(json!({"addresses": ["10.0.0.7/24"], "mtu": 1400})), NetworkBackend::Ifupdown);
    assert!(!static_address.contains("    up "), "{static_address}");
}

/// ifup stops configuring an interface as soon as one of the interface's commands fails.
#[test]
fn a_bond_does_not_need_all_its_nics() {
    let parameters = json!({"mode": "active-backup", "primary": "eth1"});
    let document = json!({"ethernets": {"eth0": {}, "eth1": {}}, "bonds": {"bond0": {"interfaces": ["eth0", "eth1"], "parameters": parameters}}});
    let interfaces = rendered(document.clone(), NetworkBackend::Ifupdown);
    for command in ["eth0 down", "eth0 master bond0", "eth1 down", "eth1 master bond0", "bond0 type bond primary eth1"]
    {
        let line = format!("    pre-up ip link set dev {command} || true\n");
        assert!(interfaces.contains(&line), "{line}{interfaces}");
    }
    // The boot waits for the bond, but not for each of its members.
    let units = rendered(document, NetworkBackend::Networkd);
    let required: Vec<&str> = units.split("===").filter(|unit| !unit.contains("RequiredForOnline=no")).collect();
    assert!(required.iter().all(|unit| !unit.contains("Bond=bond0")), "{units}");
    assert!(required.iter().any(|unit| unit.contains("Name=bond0")), "{units}");
}

/// networkd and netplan disable privacy extensions; NetworkManager uses the setting of the image.
#[test]
fn ipv6_addresses_are_not_temporary() {
    for (settings, is_off) in [
        (json!({"dhcp6": true}), true),
        (json!({"accept-ra": true}), true),
        (json!({"addresses": ["2001:db8::7/64"]}), true),
        (json!({"dhcp4": true}), false),
    ] {
        let keyfile = rendered(lan(settings), NetworkBackend::NetworkManager);
        assert_eq!(keyfile.contains("ip6-privacy=0\n"), is_off, "{keyfile}");
    }
}

/// Unlike the other network managers, ifup disables autoconfiguration by default for an interface with a static IPv6
/// address.
#[test]
fn static_addresses_do_not_prevent_autoconfiguration() {
    for (settings, is_on) in [
        (json!({"addresses": ["2001:db8::7/64"]}), true),
        (json!({"addresses": ["2001:db8::7/64"], "accept-ra": true}), true),
        (json!({"addresses": ["2001:db8::7/64"], "accept-ra": false}), false),
        (json!({"addresses": ["10.0.0.7/24"]}), false),
    ] {
        let interfaces = rendered(lan(settings), NetworkBackend::Ifupdown);
        assert_eq!(interfaces.contains("    autoconf 1\n"), is_on, "{interfaces}");
    }
}

/// A bond or VLAN has the MAC of a NIC, and systemd before 245 matches NICs by their current MACs. networkd applies the
/// first file that matches.
#[test]
fn units_of_virtual_devices_precede_those_of_nics() {
    let nic = |mac: &str| json!({"match": {"macaddress": mac}});
    let network = read(&json!({
        "ethernets": {"a": nic("52:54:00:aa:00:01"), "b": nic("52:54:00:aa:00:02")},
        "bonds": {"up": {"interfaces": ["a"]}},
        "vlans": {"vlan5": {"id": 5, "link": "b"}},
    }));
    let units = network.render(NetworkBackend::Networkd, &nics()).into_iter().map(|file| file.for_systemd(Some(241)));
    let mut units: Vec<RenderedFile> = units.filter(|file| file.path.ends_with(".network")).collect();
    units.sort_by(|one, other| one.path.cmp(&other.path));
    let by_mac: Vec<bool> = units.iter().map(|unit| unit.content.contains("\nMACAddress=")).collect();
    assert_eq!(by_mac, [false, false, true, true], "{units:#?}");
}
