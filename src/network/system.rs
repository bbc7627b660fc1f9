//! What sets up the network in an installed system, how it is found, and what else the finisher must know of it.

use super::{Network, Rendered};
use crate::inventory::Nic;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum System {
    CloudInit,
    Netplan,
    NetworkManager,
    Ifupdown,
    Networkd,
}

/// Files of the image that would configure cards besides ours: in that folder, with one of these endings.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Aside {
    pub folder: &'static str,
    pub endings: &'static [&'static str],
}

/// In the order in which they are asked: cloud-init and netplan steer the others, and systemd brings networkd everywhere.
const ALL: [System; 5] =
    [System::CloudInit, System::Netplan, System::NetworkManager, System::Ifupdown, System::Networkd];

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
            System::CloudInit => &["/usr/bin/cloud-init"],
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

    /// Must `/etc/resolv.conf` be a file of ours ([`Network::resolv_conf`]), because nothing in the tree would write one?
    pub fn needs_resolv_conf(self, has: &dyn Fn(&str) -> bool) -> bool {
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
}
