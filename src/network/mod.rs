//! The network of the installed system: what an allocation says in netplan's version 2, judged, and written for what the image has.
//!
//! This room is pure. It reads a document ([`Network::read`]), holds it against the machine's cards ([`Network::fits`]) and makes
//! files of it ([`Network::render`]). Who writes them is the finisher.

mod address;
mod bonding;
mod fields;
mod fits;
#[cfg(test)]
#[cfg(feature = "agent")]
mod fuzz;
mod ifupdown;
mod ini;
mod known;
mod metal;
mod names;
mod netplan;
mod network_manager;
mod networkd;
mod ramdisk;
mod reading;
mod rules;
mod system;
#[cfg(test)]
mod tests;

pub use address::Cidr;
pub use system::{Aside, System};

use crate::order;
use serde::Serialize;
use std::collections::BTreeMap;
use std::net::IpAddr;

/// What the installed system is to have, by the ids of the document. No id is there twice.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Network {
    pub ethernets: BTreeMap<String, Ethernet>,
    pub bonds: BTreeMap<String, Bond>,
    pub vlans: BTreeMap<String, Vlan>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Ethernet {
    pub card: Card,
    /// The name that the card gets.
    pub set_name: Option<String>,
    pub settings: Settings,
}

/// Which card it is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Card {
    /// In lower case, with colons.
    Mac(String),
    /// As the installed system calls it.
    Name(String),
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Bond {
    /// Ids of ethernets.
    pub members: Vec<String>,
    pub mac: Option<String>,
    /// Id of the member that is used before all others.
    pub primary: Option<String>,
    /// By netplan's names. Times are in milliseconds. `mode` is always there.
    pub parameters: BTreeMap<String, String>,
    pub settings: Settings,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Vlan {
    pub id: u16,
    /// Id of the device that it is on.
    pub link: String,
    pub settings: Settings,
}

/// What every kind of device may have.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Settings {
    pub dhcp4: bool,
    pub dhcp6: bool,
    /// None: as the kernel has it.
    pub accept_ra: Option<bool>,
    pub addresses: Vec<Cidr>,
    /// With those that `gateway4` and `gateway6` are.
    pub routes: Vec<Route>,
    pub nameservers: Vec<IpAddr>,
    pub search: Vec<String>,
    pub mtu: Option<u32>,
    /// The boot does not wait for it.
    pub optional: bool,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Route {
    /// `0.0.0.0/0` or `::/0` is a default route.
    pub to: Cidr,
    pub via: IpAddr,
    pub metric: Option<u32>,
    /// The gateway is on the wire, though no address says so.
    pub on_link: bool,
}

/// A file of the installed system.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rendered {
    /// From the root of the tree: `/etc/…`.
    pub path: String,
    pub mode: u32,
    pub content: String,
}

/// What begins each file.
const WRITTEN_BY: &str = "# Written by drophammer from the allocation's network.\n";

impl Settings {
    /// No address, and nothing that would bring one.
    pub fn is_empty(&self) -> bool {
        let by_itself = self.dhcp4 || self.dhcp6 || self.accept_ra == Some(true);
        !by_itself && self.addresses.is_empty() && self.routes.is_empty() && self.has_no_dns()
    }

    fn has_no_dns(&self) -> bool {
        self.nameservers.is_empty() && self.search.is_empty()
    }

    /// May it have an address of that family?
    fn has_family(&self, is_v4: bool) -> bool {
        let dynamic = if is_v4 { self.dhcp4 } else { self.dhcp6 || self.accept_ra != Some(false) };
        dynamic || self.addresses.iter().any(|address| address.is_v4() == is_v4)
    }
}

impl Network {
    /// Devices with their ids: ethernets, bonds, VLANs; each VLAN after what it is on.
    fn devices(&self) -> Vec<(&str, &Settings)> {
        let ethernets = self.ethernets.iter().map(|(id, one)| (id.as_str(), &one.settings));
        let bonds = self.bonds.iter().map(|(id, one)| (id.as_str(), &one.settings));
        ethernets.chain(bonds).chain(self.vlans_in_order().map(|(id, one)| (id, &one.settings))).collect()
    }

    fn vlans_in_order(&self) -> impl Iterator<Item = (&str, &Vlan)> {
        let mut vlans: Vec<_> = self.vlans.iter().map(|(id, vlan)| (id.as_str(), vlan)).collect();
        order::by_key(&mut vlans, |(id, _)| self.depth(id));
        vlans.into_iter()
    }

    /// How many VLANs are beneath it.
    fn depth(&self, id: &str) -> usize {
        let mut beneath = self.vlans.get(id);
        let mut depth = 0;
        while let Some(vlan) = beneath.filter(|_| depth <= self.vlans.len()) {
            (depth, beneath) = (depth + 1, self.vlans.get(&vlan.link));
        }
        depth
    }

    /// The bond that the ethernet belongs to.
    fn bond_of(&self, ethernet: &str) -> Option<&str> {
        let found = self.bonds.iter().find(|(_, bond)| bond.members.iter().any(|member| member == ethernet));
        found.map(|(id, _)| id.as_str())
    }

    fn vlans_on<'a>(&'a self, id: &'a str) -> impl Iterator<Item = &'a str> {
        self.vlans.iter().filter(move |(_, vlan)| vlan.link == id).map(|(id, _)| id.as_str())
    }

    /// Name servers and search domains of all devices, as a file for what asks no daemon.
    fn resolv_conf(&self) -> Option<Rendered> {
        let (mut servers, mut domains) = (Vec::new(), Vec::new());
        for (_, settings) in self.devices() {
            for server in settings.nameservers.iter().filter(|server| !servers.contains(server)).collect::<Vec<_>>() {
                servers.push(server);
            }
            for domain in settings.search.iter().filter(|domain| !domains.contains(domain)).collect::<Vec<_>>() {
                domains.push(domain);
            }
        }
        if servers.is_empty() && domains.is_empty() {
            return None;
        }
        let mut content = WRITTEN_BY.to_owned();
        if !domains.is_empty() {
            let domains: Vec<&str> = domains.into_iter().map(String::as_str).collect();
            content += &format!("search {}\n", domains.join(" "));
        }
        for server in servers {
            content += &format!("nameserver {server}\n");
        }
        Some(Rendered { path: "/etc/resolv.conf".to_owned(), mode: 0o644, content })
    }
}
