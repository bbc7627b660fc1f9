"""Differences that are intended, with their reasons. docs/network-comparison.md lists them."""

import re


class Known:
    """Differences of a stack that match a pattern, in documents whose names match another one."""

    def __init__(self, stack, pattern, reason, documents=""):
        self.stack, self.pattern, self.reason, self.documents = stack, pattern, reason, documents

    def explains(self, judgement, difference):
        return self.stack == judgement.stack and re.search(self.documents, judgement.document) and re.search(self.pattern, difference)


NETWORKD, MANAGER, IFUPDOWN, NETPLAN = "systemd-networkd", "NetworkManager", "ifupdown", "netplan"

MONITOR = "bonds monitor the carrier every 100 ms by default; netplan's do not notice a lost link"
WAKE_ON_LAN = "netplan switches wake-on-LAN off in each .link file and keyfile; this program leaves it to firmware and driver"
LINK_LOCAL = "netplan requests an IPv4 link-local address for devices without IPv4, with NetworkManager only"
ACCEPT_RA = "netplan ignores accept-ra with NetworkManager"
GATEWAY = "NetworkManager refuses what netplan writes for gateway4 in addition to DHCP"
SECONDS = "netplan passes times with a unit to NetworkManager, which ignores them"
HOST_ROUTE = "NetworkManager adds a prefix length of 24 to what netplan writes for a destination without one"
PRIMARY = "netplan writes the id of the NIC, which NetworkManager reads as its name"
ON_LINK = "networkd treats gateways as directly reachable if the device has DHCP; ifup adds routes after DHCP"
MANAGED = "networkd and NetworkManager use DHCPv6 if routers announce it; the kernel, which ifup leaves router advertisements to, does not"
WAIT = "the boot does not wait for members of bonds; netplan 1.1 has a list of devices to wait for instead"
IDENTIFIER = "the client identifier is the MAC, as in firmware and ramdisk, so that a NIC has one lease"

KNOWN = [
    Known(NETWORKD, r"\[DHCP\] ClientIdentifier: mac, not None", IDENTIFIER),
    Known(NETPLAN, r"\[DHCP\] ClientIdentifier: mac, not None", IDENTIFIER),
    Known(NETWORKD, r"\[Bond\] MIIMonitorSec: 100ms, not None", MONITOR),
    Known(MANAGER, r"\[bond\] miimon: 100, not None", MONITOR),
    Known(IFUPDOWN, r"\[bond\] miimon: 100, not None", MONITOR),
    Known(NETPLAN, r"\[Bond\] MIIMonitorSec: 100ms, not None", MONITOR),
    Known(NETPLAN, r"\[bond\] miimon: 100, not None", MONITOR),
    Known(NETWORKD, r"\[Link\] WakeOnLan: None, not off", WAKE_ON_LAN),
    Known(MANAGER, r"\[ethernet\] wake-on-lan: None, not 0", WAKE_ON_LAN),
    Known(NETWORKD, r"network \[Link\] RequiredForOnline: no, not None", WAIT, "bond|optional|three|absent-nic"),
    Known(NETWORKD, r"\[DHCP\] UseMTU: None, not yes", "networkd ignores it if the MTU is configured", "dhcp4-mtu|bond-lacp"),
    Known(NETWORKD, r"network \[Link\] MACAddress: None", "the .netdev file has it", "bond-mac"),
    Known(MANAGER, r"\[ipv4\] method: disabled, not link-local", LINK_LOCAL),
    Known(MANAGER, r"missing: .*(169\.254\.|224\.0\.0\.0)", LINK_LOCAL),
    Known(MANAGER, r"\[ipv6\] (method: (auto|link-local), not|ip6-privacy: 0, not None)", ACCEPT_RA, "(^|-)ra(-|$)|vlan-routes"),
    Known(MANAGER, r"(missing|only ours): .*(fd00:18|via router)", ACCEPT_RA, "(^|-)ra(-|$)|vlan-routes"),
    Known(IFUPDOWN, r"route \S+ via 198\.18\.0\.2 ", ON_LINK, "^dhcp4-"),
    Known(IFUPDOWN, r"\[bond\] miimon: None, not 0", "0 is the kernel's default", "bond-no-monitor"),
    Known(IFUPDOWN, r"missing: lan0: fd00:18::x/128 dhcp", MANAGED, "vlan-dhcp"),
    Known(MANAGER, r"route 10\.0\.0\.(1|0/24) via", HOST_ROUTE, "route-to-host"),
    Known(MANAGER, "NetworkManager refuses netplan's file: .*ipv4.gateway", GATEWAY, "dhcp4-gateway"),
    Known(NETPLAN, "NetworkManager refuses netplan's file: .*ipv4.gateway", GATEWAY, "dhcp4-gateway"),
    Known(MANAGER, "only ours: |missing: lan0: up True, MTU 1500", GATEWAY, "dhcp4-gateway"),
    Known(MANAGER, r"\[bond\] miimon: 1000, not None", SECONDS, "bond-xor"),
    Known(NETPLAN, r"\[bond\] miimon: 1000, not None", SECONDS, "bond-xor"),
    Known(IFUPDOWN, r"\[bond\] miimon: 1000, not None", SECONDS, "bond-xor"),
    Known(MANAGER, r"\[ip\] routes: 10.0.0.1/32,", HOST_ROUTE, "route-to-host"),
    Known(NETPLAN, r"\[ip\] routes: 10.0.0.1/32,", HOST_ROUTE, "route-to-host"),
    Known(MANAGER, r"\[bond\] primary: lan1, not right", PRIMARY, "bond-renamed"),
    Known(IFUPDOWN, r"\[bond\] primary: lan1, not right", PRIMARY, "bond-renamed"),
]
