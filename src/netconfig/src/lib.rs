//! Network configuration of the installed system, in version 2 of netplan's format.
//!
//! The crate performs no I/O. It parses and validates a document ([`NetworkConfig::parse`]), compares it with the NICs
//! of the machine ([`NetworkConfig::check_nics`]), and renders it for the image's network manager
//! ([`NetworkConfig::render`]). Other crates write the files.

mod backend;
mod bond_parameters;
mod cidr;
mod competing_services;
mod field_names;
#[cfg(test)]
mod fuzz;
mod ifupdown;
mod ini_writer;
mod interface_names_and_ids;
mod json_fields;
mod metal_stack;
mod netplan;
mod network_manager;
mod networkd;
mod nic_check;
mod parser;
mod ramdisk_script;
#[cfg(test)]
mod tests;
mod validation;

pub use backend::{CLOUD_FOLDER, DisplacedFiles, NetworkBackend, find_unsupported, is_unsupported};
pub(crate) use cidr::Cidr;
pub use competing_services::find_service_manager;
use serde::Serialize;
use std::collections::BTreeMap;
use std::net::IpAddr;

/// Parsed network configuration. The keys are the ids of the devices in the document. Each id occurs in only one of the
/// three maps.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct NetworkConfig {
    pub ethernets: BTreeMap<String, EthernetConfig>,
    pub bonds: BTreeMap<String, BondConfig>,
    pub vlans: BTreeMap<String, VlanConfig>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct EthernetConfig {
    pub nic: NicSelector,
    /// Interface name of the NIC in the installed system (netplan's `set-name`); `None` if the NIC is not renamed.
    pub set_name: Option<String>,
    pub settings: InterfaceSettings,
}

/// Criterion that selects a NIC.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum NicSelector {
    /// MAC address in lower case, with colons.
    Mac(String),
    /// Interface name in the installed system.
    Name(String),
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct BondConfig {
    /// Ids of ethernets.
    pub members: Vec<String>,
    pub mac: Option<String>,
    /// Id of the primary member, which carries the traffic as long as its link is up.
    pub primary: Option<String>,
    /// Parameters by their names in netplan, with durations in milliseconds. `mode` is always set.
    pub parameters: BTreeMap<String, String>,
    pub settings: InterfaceSettings,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct VlanConfig {
    pub id: u16,
    /// Id of the underlying device.
    pub link: String,
    pub settings: InterfaceSettings,
}

/// Settings that every type of device supports.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct InterfaceSettings {
    pub dhcp4: bool,
    pub dhcp6: bool,
    /// Whether router advertisements are accepted; `None` if the kernel decides.
    pub accept_ra: Option<bool>,
    pub addresses: Vec<Cidr>,
    /// Static routes, including the default routes from `gateway4` and `gateway6`.
    pub routes: Vec<StaticRoute>,
    pub nameservers: Vec<IpAddr>,
    pub search: Vec<String>,
    pub mtu: Option<u32>,
    /// True if the system boots without waiting for the device.
    pub optional: bool,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct StaticRoute {
    /// Destination of the route; `0.0.0.0/0` or `::/0` for a default route.
    pub to: Cidr,
    pub via: IpAddr,
    pub metric: Option<u32>,
    /// True if the gateway is reachable on the link, even if it is not in the network of any address of the device.
    pub on_link: bool,
}

/// Configuration file that will be written to the installed system.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RenderedFile {
    /// Absolute path in the installed system: `/etc/…`.
    pub path: String,
    pub mode: u32,
    pub content: String,
}

impl RenderedFile {
    /// Adapts the file to the version of systemd in the installed system; `None` if the version is unknown. systemd
    /// before 245 ignores `PermanentMACAddress=`, so a section with only this condition would match every NIC. An
    /// unknown version is treated like a version before 245, because every version supports `MACAddress=`.
    pub fn for_systemd(mut self, version: Option<u32>) -> RenderedFile {
        let is_systemd = self.path.starts_with("/etc/systemd/network/");
        if is_systemd && version.is_none_or(|version| version < 245) {
            self.content = self.content.replace("\nPermanentMACAddress=", "\nMACAddress=");
        }
        self
    }
}

/// Metric of routes from DHCP, as in netplan, and for Ethernet in NetworkManager. The defaults of networkd and dhclient
/// differ.
const DHCP_METRIC: u32 = 100;

/// Comment in the first line of each configuration file.
const WRITTEN_BY: &str = "# Written by drophammer from the allocation's network.\n";

impl InterfaceSettings {
    /// Returns whether the device has no addresses, routes or name servers, and obtains none from DHCP or router
    /// advertisements.
    pub(crate) fn is_empty(&self) -> bool {
        let by_itself = self.dhcp4 || self.dhcp6 || self.accept_ra == Some(true);
        !by_itself && self.addresses.is_empty() && self.routes.is_empty() && self.has_no_dns()
    }

    fn has_no_dns(&self) -> bool {
        self.nameservers.is_empty() && self.search.is_empty()
    }

    /// Returns whether the device may get an address of this address family.
    fn has_family(&self, is_v4: bool) -> bool {
        let dynamic = if is_v4 { self.dhcp4 } else { self.dhcp6 || self.accept_ra != Some(false) };
        dynamic || self.addresses.iter().any(|address| address.is_v4() == is_v4)
    }
}

impl NetworkConfig {
    /// Returns the ids and settings of all devices: ethernets, then bonds, then VLANs. Each VLAN follows its underlying
    /// device.
    fn devices_in_order(&self) -> Vec<(&str, &InterfaceSettings)> {
        let ethernets = self.ethernets.iter().map(|(id, one)| (id.as_str(), &one.settings));
        let bonds = self.bonds.iter().map(|(id, one)| (id.as_str(), &one.settings));
        ethernets.chain(bonds).chain(self.vlans_in_order().map(|(id, one)| (id, &one.settings))).collect()
    }

    fn vlans_in_order(&self) -> impl Iterator<Item = (&str, &VlanConfig)> {
        let mut vlans: Vec<_> = self.vlans.iter().map(|(id, vlan)| (id.as_str(), vlan)).collect();
        vlans.sort_by_key(|(id, _)| self.vlan_depth(id));
        vlans.into_iter()
    }

    /// Returns the nesting depth of a VLAN. It is 1 if the underlying device is not a VLAN.
    fn vlan_depth(&self, id: &str) -> usize {
        let mut beneath = self.vlans.get(id);
        let mut depth = 0;
        while let Some(vlan) = beneath.filter(|_| depth <= self.vlans.len()) {
            (depth, beneath) = (depth + 1, self.vlans.get(&vlan.link));
        }
        depth
    }

    /// Returns the id of the bond to which the ethernet belongs.
    fn find_bond(&self, ethernet: &str) -> Option<&str> {
        let found = self.bonds.iter().find(|(_, bond)| bond.members.iter().any(|member| member == ethernet));
        found.map(|(id, _)| id.as_str())
    }

    fn vlans_on_device<'a>(&'a self, id: &'a str) -> impl Iterator<Item = &'a str> {
        self.vlans.iter().filter(move |(_, vlan)| vlan.link == id).map(|(id, _)| id.as_str())
    }

    /// Renders `/etc/resolv.conf` with the name servers and search domains of all devices, for a system in which no
    /// daemon writes this file. Returns `None` if no device has any.
    fn render_resolv_conf(&self) -> Option<RenderedFile> {
        let (mut servers, mut domains) = (Vec::new(), Vec::new());
        for (_, settings) in self.devices_in_order() {
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
        Some(RenderedFile { path: "/etc/resolv.conf".to_owned(), mode: 0o644, content })
    }
}
