"""Documents of the comparison: netplan documents for a machine with three NICs. Each has a name; `ACCEPTED` must be accepted by this program
and netplan, `REFUSED` by this program, and by netplan unless the table gives a reason."""

# Kernel name and MAC of each NIC. The kernel names are not in the order of the MACs.
NICS = {"eth0": "52:54:00:aa:00:02", "eth1": "52:54:00:aa:00:01", "eth2": "52:54:00:aa:00:03"}


def nic(number, **settings):
    """A NIC that is matched by its MAC."""
    return {"match": {"macaddress": f"52:54:00:aa:00:0{number}"}, **fields(settings)}


def fields(settings):
    return {name.replace("_", "-"): value for name, value in settings.items()}


def lan(**settings):
    return {"version": 2, "ethernets": {"lan0": nic(1, set_name="lan0", **settings)}}


def route(to, via, **more):
    return {"to": to, "via": via, **fields(more)}


def bond(parameters=None, **settings):
    """Two NICs in a bond with an address."""
    settings = settings or {"addresses": ["192.0.2.7/24"]}
    bond0 = {"interfaces": ["left", "right"], **({"parameters": fields(parameters)} if parameters is not None else {}), **fields(settings)}
    return {"version": 2, "ethernets": {"left": nic(1), "right": nic(2)}, "bonds": {"bond0": bond0}}


def vlans(vlans, **below):
    return {**lan(**below), "vlans": vlans}


ADDRESS = {"addresses": ["192.0.2.7/24"]}
BOTH = ["192.0.2.7/24", "2001:db8::7/64"]

ACCEPTED = {
    # Addresses.
    "dhcp4": lan(dhcp4=True),
    "dhcp6": lan(dhcp6=True),
    "dhcp4-dhcp6": lan(dhcp4=True, dhcp6=True),
    "dhcp4-optional": lan(dhcp4=True, optional=True),
    "dhcp4-static": lan(dhcp4=True, addresses=["192.0.2.7/24"]),
    "dhcp4-mtu": lan(dhcp4=True, mtu=1400),
    "dhcp4-routes": lan(dhcp4=True, routes=[route("10.9.0.0/16", "198.18.0.2")]),
    "dhcp4-default-route": lan(dhcp4=True, routes=[route("default", "198.18.0.2", metric=500)]),
    "dhcp4-gateway": lan(dhcp4=True, gateway4="198.18.0.2"),
    "dhcp4-nameservers": lan(dhcp4=True, nameservers={"addresses": ["192.0.2.53"], "search": ["example.org"]}),
    "dhcp6-static": lan(dhcp6=True, addresses=["2001:db8::7/64"]),
    "ra": lan(accept_ra=True),
    "no-ra": lan(accept_ra=False),
    "no-ra-static6": lan(accept_ra=False, addresses=["2001:db8::7/64"]),
    "ra-static6": lan(accept_ra=True, addresses=["2001:db8::7/64"]),
    "no-ra-static4": lan(accept_ra=False, addresses=["192.0.2.7/24"]),
    "static4": lan(addresses=["192.0.2.7/24"]),
    "static6": lan(addresses=["2001:db8::7/64"]),
    "static": lan(addresses=BOTH),
    "several4": lan(addresses=["192.0.2.7/24", "192.0.2.8/24", "10.0.0.7/8"]),
    "several6": lan(addresses=["2001:db8::7/64", "2001:db8::8/64", "2001:db8:1::7/48"]),
    "single-addresses": lan(addresses=["192.0.2.7/32", "2001:db8::7/128"]),
    "point-to-point": lan(addresses=["192.0.2.6/31", "2001:db8::6/127"]),
    "link-local-address": lan(addresses=["fe80::7/64", "169.254.7.7/16"]),
    "nothing": lan(),
    # Routes.
    "default4": lan(addresses=BOTH, routes=[route("default", "192.0.2.1")]),
    "default6": lan(addresses=BOTH, routes=[route("default", "2001:db8::1")]),
    "defaults-as-networks": lan(addresses=BOTH, routes=[route("0.0.0.0/0", "192.0.2.1"), route("::/0", "2001:db8::1")]),
    "gateways": lan(addresses=BOTH, gateway4="192.0.2.1", gateway6="2001:db8::1"),
    "link-local-gateway": lan(addresses=BOTH, routes=[route("default", "fe80::1")]),
    "metrics": lan(addresses=BOTH, routes=[
        route("default", "192.0.2.1", metric=100), route("default", "192.0.2.2", metric=200),
        route("10.0.0.0/8", "192.0.2.3", metric=7), route("::/0", "2001:db8::1", metric=70)]),
    "metric-zero": lan(addresses=BOTH, routes=[route("default", "192.0.2.1", metric=0), route("2001:db8:5::/48", "2001:db8::1", metric=0)]),
    "large-metric": lan(addresses=BOTH, routes=[route("10.0.0.0/8", "192.0.2.1", metric=2147483647)]),
    "on-link4": lan(addresses=["192.0.2.7/32"], routes=[route("default", "10.9.0.1", on_link=True)]),
    "on-link6": lan(addresses=["2001:db8::7/128"], routes=[route("default", "2001:db8:9::1", on_link=True)]),
    "on-link-metric": lan(addresses=["192.0.2.7/32"], routes=[route("10.1.0.0/16", "10.9.0.1", on_link=True, metric=30)]),
    "routes": lan(addresses=BOTH, routes=[
        route("10.0.0.0/8", "192.0.2.1"), route("172.16.0.0/12", "192.0.2.2"), route("2001:db8:1::/48", "2001:db8::1")]),
    "route-to-host": lan(addresses=BOTH, routes=[route("10.0.0.1", "192.0.2.1"), route("2001:db8:1::1", "2001:db8::1")]),
    # Name servers.
    "nameservers4": lan(addresses=BOTH, nameservers={"addresses": ["192.0.2.53", "192.0.2.54"]}),
    "nameservers6": lan(addresses=["2001:db8::7/64"], nameservers={"addresses": ["2001:db8::53"]}),
    "nameservers-search": lan(addresses=BOTH, nameservers={"addresses": ["192.0.2.53", "2001:db8::53"], "search": ["example.org", "example.com"]}),
    "search-only": lan(addresses=["2001:db8::7/64"], nameservers={"search": ["example.org"]}),
    # NICs.
    "mtu-9000": lan(addresses=BOTH, mtu=9000),
    "mtu-1280": lan(addresses=BOTH, mtu=1280),
    "match-mac": {"ethernets": {"lan": nic(1, **ADDRESS)}},
    "match-mac-mtu": {"ethernets": {"lan": nic(1, mtu=1400, **ADDRESS)}},
    "match-name": {"ethernets": {"lan": {"match": {"name": "eth1"}, **ADDRESS}}},
    "match-name-rename": {"ethernets": {"lan": {"match": {"name": "eth1"}, "set-name": "lan0", "mtu": 1400, **ADDRESS}}},
    "name-only": {"ethernets": {"eth1": ADDRESS}},
    "complete-file": {"network": {"version": 2, "ethernets": {"eth1": ADDRESS, "eth0": {"dhcp4": True}}}},
    "three": {"ethernets": {
        "first": nic(1, set_name="lan0", addresses=["192.0.2.7/24"], routes=[route("default", "192.0.2.1")]),
        "second": nic(2, set_name="lan1", addresses=["10.0.0.7/8"]),
        "third": nic(3, dhcp4=True, optional=True)}},
    "optional": {"ethernets": {"first": nic(1, **ADDRESS), "second": nic(2, optional=True, addresses=["10.0.0.7/8"])}},
    "absent-nic": {"ethernets": {"first": nic(1, set_name="lan0", **ADDRESS), "eth7": {"addresses": ["10.0.0.7/8"], "optional": True}}},
    "two-defaults": {"ethernets": {
        "first": nic(1, set_name="lan0", addresses=["192.0.2.7/24"], routes=[route("default", "192.0.2.1", metric=10)]),
        "second": nic(2, set_name="lan1", addresses=["10.0.0.7/8"], routes=[route("default", "10.0.0.1", metric=20)])}},
    # Bonds.
    **{f"bond-{mode}": bond({"mode": mode}) for mode in (
        "balance-rr", "active-backup", "balance-xor", "broadcast", "802.3ad", "balance-tlb", "balance-alb")},
    "bond-default": bond(None),
    "bond-lacp": bond({"mode": "802.3ad", "lacp_rate": "fast", "min_links": 1, "ad_select": "bandwidth", "mii_monitor_interval": 100,
                       "up_delay": 200, "down_delay": 300, "transmit_hash_policy": "layer3+4"}, dhcp4=True, mtu=9000),
    "bond-lacp-slow": bond({"mode": "802.3ad", "lacp_rate": "slow", "ad_select": "count", "transmit_hash_policy": "layer2+3"}),
    "bond-lacp-stable": bond({"mode": "802.3ad", "ad_select": "stable", "transmit_hash_policy": "encap2+3"}),
    "bond-xor": bond({"mode": "balance-xor", "transmit_hash_policy": "encap3+4", "mii_monitor_interval": "1s"}),
    "bond-tlb-hash": bond({"mode": "balance-tlb", "transmit_hash_policy": "layer2", "primary": "left"}),
    "bond-no-monitor": bond({"mode": "balance-xor", "mii_monitor_interval": 0}),
    "bond-primary": bond({"mode": "active-backup", "primary": "right", "primary_reselect_policy": "better"}),
    "bond-primary-always": bond({"mode": "active-backup", "primary": "left", "primary_reselect_policy": "always", "fail_over_mac_policy": "none"}),
    "bond-failure": bond({"mode": "active-backup", "primary_reselect_policy": "failure", "fail_over_mac_policy": "active"}),
    "bond-follow": bond({"mode": "active-backup", "fail_over_mac_policy": "follow"}),
    "bond-arp": bond({"mode": "active-backup", "arp_interval": 250, "arp_ip_targets": ["192.0.2.1", "192.0.2.2"]}),
    "bond-mac": bond({"mode": "802.3ad"}, macaddress="52:54:00:aa:00:01", **ADDRESS),
    "bond-mtu": bond({"mode": "802.3ad"}, mtu=9000, addresses=BOTH),
    "bond-dhcp": bond({"mode": "active-backup"}, dhcp4=True, dhcp6=True),
    "bond-optional": bond({"mode": "active-backup"}, dhcp4=True, optional=True),
    "bond-no-ra": bond({"mode": "active-backup"}, accept_ra=False, addresses=["2001:db8::7/64"]),
    "bond-routes": bond({"mode": "802.3ad"}, addresses=BOTH, routes=[route("default", "192.0.2.1"), route("default", "fe80::1", metric=9)],
                        nameservers={"addresses": ["192.0.2.53"], "search": ["example.org"]}),
    "bond-one-nic": {"ethernets": {"left": nic(1)}, "bonds": {"bond0": {"interfaces": ["left"], **ADDRESS}}},
    "bond-renamed": {"ethernets": {"left": nic(1, set_name="lan0"), "right": nic(2, set_name="lan1")},
                     "bonds": {"up": {"interfaces": ["left", "right"], "parameters": {"mode": "active-backup", "primary": "right"}, **ADDRESS}}},
    "bond-names": {"ethernets": {"eth0": {}, "eth1": {}}, "bonds": {"up": {"interfaces": ["eth0", "eth1"], **ADDRESS}}},
    "bond-optional-nics": {"ethernets": {"left": nic(1, optional=True), "right": nic(2, optional=True)},
                           "bonds": {"up": {"interfaces": ["left", "right"], "parameters": {"mode": "802.3ad"}, **ADDRESS}}},
    # VLANs.
    "vlan": vlans({"people": {"id": 100, "link": "lan0", **ADDRESS}}),
    "vlan-and-address": vlans({"people": {"id": 100, "link": "lan0", "addresses": ["10.0.0.7/8"]}}, **ADDRESS),
    "vlan-dotted": vlans({"lan0.5": {"id": 5, "link": "lan0", "addresses": BOTH}}),
    "vlan-dhcp": vlans({"people": {"id": 1, "link": "lan0", "dhcp4": True, "dhcp6": True}}),
    "vlan-mtu": vlans({"people": {"id": 4094, "link": "lan0", "mtu": 1400, **ADDRESS}}, mtu=9000),
    "vlan-optional": vlans({"people": {"id": 9, "link": "lan0", "optional": True, "dhcp4": True}}),
    "vlan-no-address": vlans({"people": {"id": 9, "link": "lan0"}}),
    "vlan-routes": vlans({"people": {"id": 9, "link": "lan0", "addresses": BOTH, "accept-ra": False,
                                     "routes": [route("default", "192.0.2.1", metric=5), route("::/0", "2001:db8::1")],
                                     "nameservers": {"addresses": ["192.0.2.53"]}}}),
    "vlans": vlans({"people": {"id": 100, "link": "lan0", **ADDRESS}, "storage": {"id": 200, "link": "lan0", "addresses": ["10.0.0.7/8"]}}),
    "vlan-nested": vlans({"outer": {"id": 100, "link": "lan0"}, "a-inner": {"id": 7, "link": "outer", **ADDRESS}}),
    "vlan-unnamed-nic": {"ethernets": {"lan": nic(1)}, "vlans": {"people": {"id": 9, "link": "lan", **ADDRESS}}},
    "bond-vlan": {**bond({"mode": "802.3ad"}, mtu=9000), "vlans": {
        "people": {"id": 100, "link": "bond0", **ADDRESS, "routes": [route("default", "192.0.2.1")]},
        "storage": {"id": 200, "link": "bond0", "mtu": 9000, "addresses": ["10.0.0.7/8"]}}},
}

# Bonds of `eth1` and `eth0` that must also work with only one of these NICs.
DEGRADED = ("bond-active-backup", "bond-802.3ad", "bond-primary", "bond-renamed", "bond-names", "bond-optional-nics")

# Bonds of machines with one NIC, which `machines.py` boots: the kernel name of the NIC that exists, and patterns of the lines in the report.
GATEWAY = [route("default", "192.0.2.2")]
MACHINES = {
    "primary-absent": {
        "nic": "eth1",
        "document": {
            **bond({"mode": "active-backup", "primary": "right"}, addresses=["192.0.2.7/24"], routes=GATEWAY),
            "vlans": {"people": {"id": 100, "link": "bond0", "addresses": ["198.51.100.7/24"]}},
        },
        "expected": [r"mode: active-backup 1", r"active: \S+", r"address: people 198\.51\.100\.7/24 .*", r"address: bond0 192\.0\.2\.7/24 .*"],
    },
    "first-absent": {
        "nic": "eth0",
        "document": bond({"mode": "balance-xor"}, dhcp4=True),
        "expected": [r"mode: balance-xor 2", r"address: bond0 192\.0\.2\.15/24 .*"],
    },
}
# Lines of each report: one member, and a working network without failed units.
EXPECTED = [r"members: \S+", r"online: active", r"failed: ", r"route: default via 192\.0\.2\.2 dev bond0 .*", r"gateway: answers"]

STRICT = "netplan accepts it: "
UNSUPPORTED = STRICT + "a field that not all network stacks can express"

# Document, and the reason why only drophammer refuses it; None if netplan must also refuse it.
REFUSED = {
    "bridge": ({"bridges": {"br0": {"interfaces": ["eth1"]}}, "ethernets": {"eth1": {}}}, UNSUPPORTED),
    "dhcp-identifier": (lan(dhcp4=True, dhcp_identifier="mac"), UNSUPPORTED),
    "dhcp4-overrides": (lan(dhcp4=True, dhcp4_overrides={"use-dns": False}), UNSUPPORTED),
    "link-local": (lan(link_local=["ipv4"]), UNSUPPORTED),
    "wakeonlan": (lan(wakeonlan=True), UNSUPPORTED),
    "macaddress": (lan(macaddress="52:54:00:aa:00:07"), UNSUPPORTED),
    "match-driver": ({"ethernets": {"lan": {"match": {"driver": "e1000"}, "dhcp4": True}}}, UNSUPPORTED),
    "match-mac-and-name": ({"ethernets": {"lan": {"match": {"macaddress": "52:54:00:aa:00:01", "name": "eth1"}, "dhcp4": True}}}, UNSUPPORTED),
    "route-table": (lan(addresses=BOTH, routes=[route("10.0.0.0/8", "192.0.2.1", table=7)]), UNSUPPORTED),
    "route-type": (lan(addresses=BOTH, routes=[{"to": "10.0.0.0/8", "type": "blackhole"}]), UNSUPPORTED),
    "route-scope": (lan(addresses=BOTH, routes=[{"to": "10.0.0.0/8", "scope": "link"}]), UNSUPPORTED),
    "routing-policy": (lan(addresses=BOTH, routing_policy=[{"from": "192.0.2.0/24", "table": 7}]), UNSUPPORTED),
    "renderer": ({"renderer": "networkd", **lan(dhcp4=True)}, UNSUPPORTED),
    "pattern": ({"ethernets": {"lan": {"match": {"name": "en*"}, "dhcp4": True}}}, UNSUPPORTED),
    "arp-validate": (bond({"mode": "active-backup", "arp_validate": "all"}), UNSUPPORTED),
    "unknown-nic": ({"ethernets": {"lan": nic(9, dhcp4=True)}}, STRICT + "it does not know the NICs of the machine"),
    "matched-twice": ({"ethernets": {"a": nic(1, dhcp4=True), "b": nic(1, dhcp6=True)}}, STRICT + "it does not compare devices"),
    "address-twice": ({"ethernets": {"a": nic(1, **ADDRESS), "b": nic(2, **ADDRESS)}}, STRICT + "it does not compare devices"),
    "network-address": (lan(addresses=["192.0.2.0/24"]), STRICT + "it does not compare address and network"),
    "gateway-elsewhere": (lan(addresses=["192.0.2.7/24"], gateway4="10.0.0.1"), STRICT + "it does not compare gateway and networks"),
    "dhcp6-no-ra": (lan(dhcp6=True, accept_ra=False), STRICT + "networkd then never starts DHCPv6"),
    "largest-metric": (lan(addresses=BOTH, routes=[route("10.0.0.0/8", "192.0.2.1", metric=2147483648)]), STRICT + "version 0.106 writes it as a negative number"),
    "route-without-gateway": (lan(addresses=BOTH, routes=[{"to": "10.0.0.0/8"}]), STRICT + "a route through no gateway"),
    "mtu-small": (lan(addresses=["192.0.2.7/24"], mtu=576), STRICT + "networkd raises it to 1280"),
    "two-gateways": (lan(addresses=BOTH, routes=[route("default", "192.0.2.1"), route("default", "192.0.2.2")]), STRICT + "it only warns"),
    "nameserver-elsewhere": (lan(accept_ra=False, addresses=["192.0.2.7/24"], nameservers={"addresses": ["2001:db8::53"]}),
                             STRICT + "networkd has no name servers per address family"),
    "bond-empty": ({"bonds": {"bond0": {"dhcp4": True}}}, STRICT + "a bond without NICs, which never comes up"),
    "bond-member-address": ({"ethernets": {"left": nic(1, **ADDRESS)}, "bonds": {"bond0": {"interfaces": ["left"]}}},
                            STRICT + "it drops the addresses of the member"),
    "bond-lacp-rate": (bond({"mode": "active-backup", "lacp_rate": "fast"}), STRICT + "the kernel refuses the parameter in this mode"),
    "bond-primary-elsewhere": ({"ethernets": {"left": nic(1), "right": nic(2)}, "bonds": {"a": {
        "interfaces": ["left"], "parameters": {"mode": "active-backup", "primary": "right"}}}}, STRICT + "the kernel refuses the primary"),
    "vlan-on-itself": ({"vlans": {"people": {"id": 9, "link": "people"}}}, STRICT + "a VLAN that never exists"),
    "vlan-mtu": (vlans({"people": {"id": 9, "link": "lan0", "mtu": 9000}}), STRICT + "the kernel refuses the MTU"),
    "vlan-twice": (vlans({"a": {"id": 9, "link": "lan0"}, "b": {"id": 9, "link": "lan0"}}), STRICT + "the kernel refuses the second VLAN"),
    "version-1": ({"version": 1, "ethernets": {"eth1": {"dhcp4": True}}}, None),
    "unknown-field": (lan(dhcp=True), None),
    "unknown-type": ({"ethernet": {"eth1": {"dhcp4": True}}}, None),
    "no-mapping": ({"ethernets": ["eth1"]}, None),
    "flag": (lan(dhcp4="perhaps"), None),
    "address-without-prefix": (lan(addresses=["192.0.2.7"]), None),
    "address-prefix": (lan(addresses=["192.0.2.7/33"]), None),
    "address-text": (lan(addresses="192.0.2.7/24"), None),
    "mac": ({"ethernets": {"lan": {"match": {"macaddress": "52:54"}, "dhcp4": True}}}, None),
    "gateway-family": (lan(addresses=BOTH, gateway4="2001:db8::1"), None),
    "route-families": (lan(addresses=BOTH, routes=[route("10.0.0.0/8", "2001:db8::1")]), None),
    "set-name-alone": ({"ethernets": {"eth1": {"set-name": "lan0", "dhcp4": True}}}, None),
    "nameserver": (lan(addresses=BOTH, nameservers={"addresses": ["ns.example.org"]}), None),
    "bond-mode": (bond({"mode": "balance"}), None),
    "bond-unknown-nic": ({"bonds": {"bond0": {"interfaces": ["left"]}}}, None),
    "bond-two": ({"ethernets": {"left": nic(1)}, "bonds": {"a": {"interfaces": ["left"]}, "b": {"interfaces": ["left"]}}}, None),
    "vlan-without-link": (vlans({"people": {"id": 9}}), None),
    "vlan-without-id": (vlans({"people": {"link": "lan0"}}), None),
    "vlan-unknown-link": (vlans({"people": {"id": 9, "link": "lan7"}}), None),
    "vlan-number": (vlans({"people": {"id": 5000, "link": "lan0"}}), None),
    "one-name": ({"ethernets": {"x": {"dhcp4": True}}, "vlans": {"x": {"id": 9, "link": "x"}}}, None),
}
