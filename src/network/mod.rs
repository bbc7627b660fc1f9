//! Network configuration of the installed system, in version 2 of netplan's format.
//!
//! This module does no I/O. It parses and validates a document ([`Network::read`]), compares it with the machine's NICs ([`Network::fits`])
//! and renders it for the network manager of the image ([`Network::render`]). The finisher writes the files.

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

/// Parsed network configuration. Devices are keyed by their ids in the document; ids are unique across all three maps.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Network {
    pub ethernets: BTreeMap<String, Ethernet>,
    pub bonds: BTreeMap<String, Bond>,
    pub vlans: BTreeMap<String, Vlan>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Ethernet {
    pub card: Card,
    /// Name that the NIC gets.
    pub set_name: Option<String>,
    pub settings: Settings,
}

/// Criterion by which a NIC is selected.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Card {
    /// MAC address in lower case, with colons.
    Mac(String),
    /// Interface name in the installed system.
    Name(String),
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Bond {
    /// Ids of ethernets.
    pub members: Vec<String>,
    pub mac: Option<String>,
    /// Id of the member that is preferred over all others.
    pub primary: Option<String>,
    /// Parameters by their netplan names. Times are in milliseconds. `mode` is always set.
    pub parameters: BTreeMap<String, String>,
    pub settings: Settings,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Vlan {
    pub id: u16,
    /// Id of the underlying device.
    pub link: String,
    pub settings: Settings,
}

/// Settings that every type of device supports.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Settings {
    pub dhcp4: bool,
    pub dhcp6: bool,
    /// `None`: the default of the kernel.
    pub accept_ra: Option<bool>,
    pub addresses: Vec<Cidr>,
    /// Includes the default routes of `gateway4` and `gateway6`.
    pub routes: Vec<Route>,
    pub nameservers: Vec<IpAddr>,
    pub search: Vec<String>,
    pub mtu: Option<u32>,
    /// True if the boot does not wait for the device.
    pub optional: bool,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Route {
    /// `0.0.0.0/0` or `::/0` is a default route.
    pub to: Cidr,
    pub via: IpAddr,
    pub metric: Option<u32>,
    /// True if the gateway is reachable on the link although no address of the device covers it.
    pub on_link: bool,
}

/// File of the installed system.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rendered {
    /// Path from the root of the tree: `/etc/…`.
    pub path: String,
    pub mode: u32,
    pub content: String,
}

/// First line of each file.
const WRITTEN_BY: &str = "# Written by drophammer from the allocation's network.\n";

impl Settings {
    /// Returns whether the device has no addresses, routes or name servers, and no source of them.
    pub fn is_empty(&self) -> bool {
        let by_itself = self.dhcp4 || self.dhcp6 || self.accept_ra == Some(true);
        !by_itself && self.addresses.is_empty() && self.routes.is_empty() && self.has_no_dns()
    }

    fn has_no_dns(&self) -> bool {
        self.nameservers.is_empty() && self.search.is_empty()
    }

    /// Returns whether the device may have an address of the family.
    fn has_family(&self, is_v4: bool) -> bool {
        let dynamic = if is_v4 { self.dhcp4 } else { self.dhcp6 || self.accept_ra != Some(false) };
        dynamic || self.addresses.iter().any(|address| address.is_v4() == is_v4)
    }
}

impl Network {
    /// Returns the devices with their ids: ethernets, bonds, VLANs; each VLAN after its underlying device.
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

    /// Returns the number of VLANs below a VLAN.
    fn depth(&self, id: &str) -> usize {
        let mut beneath = self.vlans.get(id);
        let mut depth = 0;
        while let Some(vlan) = beneath.filter(|_| depth <= self.vlans.len()) {
            (depth, beneath) = (depth + 1, self.vlans.get(&vlan.link));
        }
        depth
    }

    /// Returns the id of the bond that the ethernet belongs to.
    fn bond_of(&self, ethernet: &str) -> Option<&str> {
        let found = self.bonds.iter().find(|(_, bond)| bond.members.iter().any(|member| member == ethernet));
        found.map(|(id, _)| id.as_str())
    }

    fn vlans_on<'a>(&'a self, id: &'a str) -> impl Iterator<Item = &'a str> {
        self.vlans.iter().filter(move |(_, vlan)| vlan.link == id).map(|(id, _)| id.as_str())
    }

    /// Renders the name servers and search domains of all devices as `/etc/resolv.conf`, for a system without a DNS daemon.
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
