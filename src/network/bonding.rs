//! Parameters of bonds: valid values, and names in each network manager.

/// Bond parameter, with its name in each network manager.
pub(super) struct Parameter {
    pub netplan: &'static str,
    /// Name in sysfs, `ip link` and NetworkManager.
    pub kernel: &'static str,
    pub networkd: &'static str,
    pub kind: Kind,
    /// Bond modes that support the parameter; empty if all do.
    pub modes: &'static [&'static str],
}

pub(super) enum Kind {
    OneOf(&'static [&'static str]),
    Milliseconds,
    Number,
    /// IPv4 addresses.
    Targets,
}

/// Interval of carrier monitoring. NetworkManager defaults to it; without it, the other managers create a bond that does not detect link
/// failures.
pub(super) const MII_MILLISECONDS: &str = "100";
pub(super) const DEFAULT_MODE: &str = "balance-rr";

pub(super) const WITH_PRIMARY: &[&str] = &["active-backup", "balance-tlb", "balance-alb"];
const LACP: &[&str] = &["802.3ad"];

pub(super) const PARAMETERS: &[Parameter] = &[
    Parameter {
        netplan: "mode",
        kernel: "mode",
        networkd: "Mode",
        kind: Kind::OneOf(&[
            "balance-rr",
            "active-backup",
            "balance-xor",
            "broadcast",
            "802.3ad",
            "balance-tlb",
            "balance-alb",
        ]),
        modes: &[],
    },
    Parameter {
        netplan: "mii-monitor-interval",
        kernel: "miimon",
        networkd: "MIIMonitorSec",
        kind: Kind::Milliseconds,
        modes: &[],
    },
    Parameter { netplan: "up-delay", kernel: "updelay", networkd: "UpDelaySec", kind: Kind::Milliseconds, modes: &[] },
    Parameter {
        netplan: "down-delay",
        kernel: "downdelay",
        networkd: "DownDelaySec",
        kind: Kind::Milliseconds,
        modes: &[],
    },
    Parameter {
        netplan: "arp-interval",
        kernel: "arp_interval",
        networkd: "ARPIntervalSec",
        kind: Kind::Milliseconds,
        modes: &["balance-rr", "active-backup", "balance-xor", "broadcast"],
    },
    Parameter {
        netplan: "arp-ip-targets",
        kernel: "arp_ip_target",
        networkd: "ARPIPTargets",
        kind: Kind::Targets,
        modes: &[],
    },
    Parameter {
        netplan: "lacp-rate",
        kernel: "lacp_rate",
        networkd: "LACPTransmitRate",
        kind: Kind::OneOf(&["slow", "fast"]),
        modes: LACP,
    },
    Parameter { netplan: "min-links", kernel: "min_links", networkd: "MinLinks", kind: Kind::Number, modes: &[] },
    Parameter {
        netplan: "ad-select",
        kernel: "ad_select",
        networkd: "AdSelect",
        kind: Kind::OneOf(&["stable", "bandwidth", "count"]),
        modes: LACP,
    },
    Parameter {
        netplan: "transmit-hash-policy",
        kernel: "xmit_hash_policy",
        networkd: "TransmitHashPolicy",
        kind: Kind::OneOf(&["layer2", "layer2+3", "layer3+4", "encap2+3", "encap3+4"]),
        modes: &["balance-xor", "802.3ad", "balance-tlb", "balance-alb"],
    },
    Parameter {
        netplan: "primary-reselect-policy",
        kernel: "primary_reselect",
        networkd: "PrimaryReselectPolicy",
        kind: Kind::OneOf(&["always", "better", "failure"]),
        modes: WITH_PRIMARY,
    },
    Parameter {
        netplan: "fail-over-mac-policy",
        kernel: "fail_over_mac",
        networkd: "FailOverMACPolicy",
        kind: Kind::OneOf(&["none", "active", "follow"]),
        modes: &["active-backup"],
    },
];

impl super::Bond {
    /// Returns the parameters that are set, in the order of the table.
    pub(super) fn given(&self) -> impl Iterator<Item = (&'static Parameter, &str)> {
        PARAMETERS.iter().filter_map(|parameter| Some((parameter, self.parameters.get(parameter.netplan)?.as_str())))
    }
}
