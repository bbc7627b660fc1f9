//! Parameters of bonds: their valid values, and their names in each network manager.

/// Bond parameter, with its name in each network manager.
pub(super) struct BondParameter {
    pub netplan: &'static str,
    /// Name of the parameter in sysfs, `ip link` and NetworkManager.
    pub kernel: &'static str,
    pub networkd: &'static str,
    pub kind: ParameterType,
    /// Bond modes that support the parameter; empty if all modes support it.
    pub modes: &'static [&'static str],
}

pub(super) enum ParameterType {
    OneOf(&'static [&'static str]),
    Milliseconds,
    Number,
    /// List of IPv4 addresses.
    Targets,
}

/// Default interval of carrier monitoring (`mii-monitor-interval`) in milliseconds, as in NetworkManager. It is always
/// set, because the other network managers do not monitor the carrier by default, and the bond would not detect a lost
/// link.
pub(super) const MII_MILLISECONDS: &str = "100";
pub(super) const DEFAULT_MODE: &str = "balance-rr";

pub(super) const MODES_WITH_PRIMARY: &[&str] = &["active-backup", "balance-tlb", "balance-alb"];
const LACP: &[&str] = &["802.3ad"];

pub(super) const PARAMETERS: &[BondParameter] = &[
    BondParameter {
        netplan: "mode",
        kernel: "mode",
        networkd: "Mode",
        kind: ParameterType::OneOf(&[
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
    BondParameter {
        netplan: "mii-monitor-interval",
        kernel: "miimon",
        networkd: "MIIMonitorSec",
        kind: ParameterType::Milliseconds,
        modes: &[],
    },
    BondParameter {
        netplan: "up-delay",
        kernel: "updelay",
        networkd: "UpDelaySec",
        kind: ParameterType::Milliseconds,
        modes: &[],
    },
    BondParameter {
        netplan: "down-delay",
        kernel: "downdelay",
        networkd: "DownDelaySec",
        kind: ParameterType::Milliseconds,
        modes: &[],
    },
    BondParameter {
        netplan: "arp-interval",
        kernel: "arp_interval",
        networkd: "ARPIntervalSec",
        kind: ParameterType::Milliseconds,
        modes: &["balance-rr", "active-backup", "balance-xor", "broadcast"],
    },
    BondParameter {
        netplan: "arp-ip-targets",
        kernel: "arp_ip_target",
        networkd: "ARPIPTargets",
        kind: ParameterType::Targets,
        modes: &[],
    },
    BondParameter {
        netplan: "lacp-rate",
        kernel: "lacp_rate",
        networkd: "LACPTransmitRate",
        kind: ParameterType::OneOf(&["slow", "fast"]),
        modes: LACP,
    },
    BondParameter {
        netplan: "min-links",
        kernel: "min_links",
        networkd: "MinLinks",
        kind: ParameterType::Number,
        modes: &[],
    },
    BondParameter {
        netplan: "ad-select",
        kernel: "ad_select",
        networkd: "AdSelect",
        kind: ParameterType::OneOf(&["stable", "bandwidth", "count"]),
        modes: LACP,
    },
    BondParameter {
        netplan: "transmit-hash-policy",
        kernel: "xmit_hash_policy",
        networkd: "TransmitHashPolicy",
        kind: ParameterType::OneOf(&["layer2", "layer2+3", "layer3+4", "encap2+3", "encap3+4"]),
        modes: &["balance-xor", "802.3ad", "balance-tlb", "balance-alb"],
    },
    BondParameter {
        netplan: "primary-reselect-policy",
        kernel: "primary_reselect",
        networkd: "PrimaryReselectPolicy",
        kind: ParameterType::OneOf(&["always", "better", "failure"]),
        modes: MODES_WITH_PRIMARY,
    },
    BondParameter {
        netplan: "fail-over-mac-policy",
        kernel: "fail_over_mac",
        networkd: "FailOverMACPolicy",
        kind: ParameterType::OneOf(&["none", "active", "follow"]),
        modes: &["active-backup"],
    },
];

impl super::BondConfig {
    /// Returns the parameters that the document sets for the bond, in the order of [`PARAMETERS`].
    pub(super) fn set_parameters(&self) -> impl Iterator<Item = (&'static BondParameter, &str)> {
        PARAMETERS.iter().filter_map(|parameter| Some((parameter, self.parameters.get(parameter.netplan)?.as_str())))
    }
}

/// Parses a duration such as `100`, `100ms` or `1s`. Returns the number of milliseconds.
pub(super) fn parse_milliseconds(text: &str) -> Result<String, String> {
    let (number, factor) = match (text.strip_suffix("ms"), text.strip_suffix('s')) {
        (Some(number), _) => (number, 1),
        (None, Some(number)) => (number, 1000),
        (None, None) => (text, 1),
    };
    let is_number = !number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit());
    let time = number.trim().parse::<u32>().ok().filter(|_| is_number).and_then(|number| number.checked_mul(factor));
    let time = time.filter(|time| *time <= i32::MAX as u32);
    time.map(|time| time.to_string())
        .ok_or_else(|| format!("{text:?} is not a duration such as 100 (milliseconds), 100ms or 1s"))
}
