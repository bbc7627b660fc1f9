//! Network managers of installed systems: detection, units, and files.

use super::{Network, Rendered, WRITTEN_BY};
use crate::inventory::Nic;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum System {
    Netplan,
    NetworkManager,
    Ifupdown,
    Networkd,
    CloudInit,
}

/// Files of the image that would configure NICs in addition to ours: those in `folder` with one of these endings.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Aside {
    pub folder: &'static str,
    pub endings: &'static [&'static str],
}

/// Supported network managers in the order of detection: netplan controls the next two, and networkd is part of nearly every systemd
/// installation. cloud-init is last. It would write the same files, but loses some settings: for networkd it writes neither bonds nor
/// VLANs, for ifupdown only VLANs whose name contains the VLAN id, and `on-link` only for netplan (22.4, Debian 12).
const ALL: [System; 5] =
    [System::Netplan, System::NetworkManager, System::Ifupdown, System::Networkd, System::CloudInit];

const CLOUD_INIT: &str = "/usr/bin/cloud-init";

impl System {
    /// Detects the network manager of a tree by the paths that exist in it.
    pub fn found(has: &dyn Fn(&str) -> bool) -> Option<System> {
        let is_there = |system: &System| {
            let is_off = *system == System::CloudInit && has("/etc/cloud/cloud-init.disabled");
            !is_off && system.programs().iter().any(|path| has(path))
        };
        ALL.into_iter().find(is_there)
    }

    fn programs(self) -> &'static [&'static str] {
        match self {
            System::CloudInit => &[CLOUD_INIT],
            System::Netplan => &["/usr/sbin/netplan", "/usr/bin/netplan"],
            System::NetworkManager => &["/usr/sbin/NetworkManager", "/usr/bin/NetworkManager"],
            System::Ifupdown => &["/sbin/ifup", "/usr/sbin/ifup"],
            System::Networkd => &["/usr/lib/systemd/systemd-networkd", "/lib/systemd/systemd-networkd"],
        }
    }

    pub fn name(self) -> &'static str {
        match self {
            System::CloudInit => "cloud-init",
            System::Netplan => "netplan",
            System::NetworkManager => "NetworkManager",
            System::Ifupdown => "ifupdown",
            System::Networkd => "systemd-networkd",
        }
    }

    /// Unit that must be enabled; `None` if another program's unit starts it.
    pub fn unit(self) -> Option<&'static str> {
        match self {
            System::CloudInit | System::Netplan => None,
            System::NetworkManager => Some("NetworkManager.service"),
            System::Ifupdown => Some("networking.service"),
            System::Networkd => Some("systemd-networkd.service"),
        }
    }

    /// Configuration files of the image that must be moved aside.
    pub fn aside(self) -> &'static [Aside] {
        match self {
            System::CloudInit => &[],
            System::Netplan => &[Aside { folder: "/etc/netplan", endings: &[".yaml"] }],
            System::NetworkManager => {
                &[Aside { folder: "/etc/NetworkManager/system-connections", endings: &[".nmconnection"] }]
            }
            System::Ifupdown => &[Aside { folder: "/etc/network/interfaces.d", endings: &[""] }],
            System::Networkd => &[Aside { folder: "/etc/systemd/network", endings: &[".network", ".netdev"] }],
        }
    }

    /// Returns whether no program in the tree writes `/etc/resolv.conf`.
    fn needs_resolv_conf(self, has: &dyn Fn(&str) -> bool) -> bool {
        let resolved = ["/usr/lib/systemd/systemd-resolved", "/lib/systemd/systemd-resolved"];
        match self {
            System::CloudInit | System::NetworkManager => false,
            System::Netplan | System::Networkd => !resolved.iter().any(|path| has(path)),
            System::Ifupdown => !["/sbin/resolvconf", "/usr/sbin/resolvconf"].iter().any(|path| has(path)),
        }
    }
}

impl Network {
    /// Renders the configuration files for the network manager, on a machine with these NICs.
    pub fn render(&self, system: System, nics: &[Nic]) -> Vec<Rendered> {
        match system {
            System::CloudInit => self.cloud_init(nics),
            System::Netplan => self.netplan(),
            System::Networkd => self.networkd(),
            System::NetworkManager => self.network_manager(nics),
            System::Ifupdown => self.ifupdown(nics),
        }
    }

    /// Renders additional files: `/etc/resolv.conf` if no daemon writes it, and a file that disables the network configuration of an unused
    /// cloud-init.
    pub fn besides(&self, system: System, has: &dyn Fn(&str) -> bool) -> Vec<Rendered> {
        let resolv_conf = self.resolv_conf().filter(|_| system.needs_resolv_conf(has));
        let is_not_asked = system != System::CloudInit && has(CLOUD_INIT);
        let cloud_init = is_not_asked.then(|| Rendered {
            path: "/etc/cloud/cloud.cfg.d/99-drophammer-network.cfg".to_owned(),
            mode: 0o644,
            content: format!("{WRITTEN_BY}network: {{config: disabled}}\n"),
        });
        resolv_conf.into_iter().chain(cloud_init).collect()
    }
}
