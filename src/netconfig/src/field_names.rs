//! Names of the fields that drophammer supports, and of the fields that only netplan supports.

pub(super) const TOP: &[&str] = &["version", "ethernets", "bonds", "vlans"];
pub(super) const TOP_UNREAD: &[&str] = &[
    "renderer",
    "bridges",
    "dummy-devices",
    "modems",
    "nm-devices",
    "openvswitch",
    "tunnels",
    "virtual-ethernets",
    "vrfs",
    "wifis",
];
/// Supported fields that every type of device has.
pub(super) const SETTINGS: [&str; 10] =
    ["dhcp4", "dhcp6", "accept-ra", "addresses", "gateway4", "gateway6", "nameservers", "routes", "mtu", "optional"];
/// Fields of devices that netplan supports but drophammer does not.
pub(super) const UNREAD: &[&str] = &[
    "activation-mode",
    "critical",
    "dhcp-identifier",
    "dhcp4-overrides",
    "dhcp6-overrides",
    "emit-lldp",
    "generic-receive-offload",
    "generic-segmentation-offload",
    "ignore-carrier",
    "infiniband-mode",
    "ipv6-address-generation",
    "ipv6-address-token",
    "ipv6-mtu",
    "ipv6-privacy",
    "large-receive-offload",
    "link-local",
    "macaddress",
    "openvswitch",
    "optional-addresses",
    "ra-overrides",
    "receive-checksum-offload",
    "renderer",
    "routing-policy",
    "tcp-segmentation-offload",
    "tcp6-segmentation-offload",
    "transmit-checksum-offload",
    "wakeonlan",
];
pub(super) const PARAMETERS_UNREAD: &[&str] = &[
    "all-slaves-active",
    "arp-all-targets",
    "arp-validate",
    "gratuitous-arp",
    "learn-packet-interval",
    "packets-per-slave",
    "resend-igmp",
];
pub(super) const ROUTE: &[&str] = &["to", "via", "metric", "on-link"];
pub(super) const ROUTE_UNREAD: &[&str] =
    &["advertised-mss", "advertised-receive-window", "congestion-window", "from", "mtu", "scope", "table", "type"];
