//! Names of the fields that drophammer supports, and of those that only netplan supports.

pub(super) const SUPPORTED_TOP_FIELDS: &[&str] = &["version", "ethernets", "bonds", "vlans"];
pub(super) const IGNORED_TOP_FIELDS: &[&str] = &[
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
/// Fields that all types of devices support.
pub(super) const SETTINGS: [&str; 10] =
    ["dhcp4", "dhcp6", "accept-ra", "addresses", "gateway4", "gateway6", "nameservers", "routes", "mtu", "optional"];
/// Fields of devices that are supported by netplan, but not by drophammer.
pub(super) const UNSUPPORTED_DEVICE_FIELDS: &[&str] = &[
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
pub(super) const UNSUPPORTED_PARAMETERS: &[&str] = &[
    "all-slaves-active",
    "arp-all-targets",
    "arp-validate",
    "gratuitous-arp",
    "learn-packet-interval",
    "packets-per-slave",
    "resend-igmp",
];
pub(super) const ROUTE: &[&str] = &["to", "via", "metric", "on-link"];
pub(super) const UNSUPPORTED_ROUTE_FIELDS: &[&str] =
    &["advertised-mss", "advertised-receive-window", "congestion-window", "from", "mtu", "scope", "table", "type"];
