//! What sets up the network in an installed system, how it is found, and what else the finisher must know of it.

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

/// Files of the image that would configure cards besides ours: in that folder, with one of these endings.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Aside {
    pub folder: &'static str,
    pub endings: &'static [&'static str],
}

/// In the order in which they are asked: netplan steers the next two, and systemd brings networkd nearly everywhere. cloud-init is
/// the last. It would write the same files, and loses some: for networkd it makes no bond and no VLAN, for ifupdown no VLAN whose
/// name does not say it, and `on-link` for none but netplan (22.4, Debian 12).
const ALL: [System; 5] =
    [System::Netplan, System::NetworkManager, System::Ifupdown, System::Networkd, System::CloudInit];

const CLOUD_INIT: &str = "/usr/bin/cloud-init";

impl System {
    /// What the tree has, by paths in it.
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

    /// The unit that must be enabled for it; none where another program's is.
    pub fn unit(self) -> Option<&'static str> {
        match self {
            System::CloudInit | System::Netplan => None,
            System::NetworkManager => Some("NetworkManager.service"),
            System::Ifupdown => Some("networking.service"),
            System::Networkd => Some("systemd-networkd.service"),
        }
    }

    /// What the image has of its own, and must not count.
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

    /// Would nothing in the tree write `/etc/resolv.conf`?
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
    /// The files that say it to that system, on a machine with these cards.
    pub fn render(&self, system: System, nics: &[Nic]) -> Vec<Rendered> {
        match system {
            System::CloudInit => self.cloud_init(nics),
            System::Netplan => self.netplan(),
            System::Networkd => self.networkd(),
            System::NetworkManager => self.network_manager(nics),
            System::Ifupdown => self.ifupdown(nics),
        }
    }

    /// The files that a tree needs besides: name servers where no daemon takes them, and a word to a cloud-init that is not asked.
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
