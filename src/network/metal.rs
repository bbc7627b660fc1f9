//! Network configuration derived from metal-stack's `networks`, for an image without a routing daemon.
//!
//! In metal-stack a machine announces its addresses over BGP, and the switches route to it; `networks` contains no gateway. Without a
//! routing daemon, each NIC with a link therefore uses DHCP, in particular for its default route, and the first NIC also has the addresses
//! of the machine.

use super::address::{cidr, ip};
use super::fields::{Field, Reader};
use super::{Cidr, Network};
use crate::inventory::Nic;
use crate::problem::Problem;
use serde_json::Value;

impl Network {
    /// Builds the configuration from the addresses of `networks` and the servers of `dns_servers`.
    ///
    /// # Errors
    /// Invalid addresses, each with its path in the document.
    pub fn from_metal_stack(networks: &Value, dns_servers: &Value, nics: &[Nic]) -> Result<Network, Vec<Problem>> {
        let mut reader = Reader::default();
        let mut addresses: Vec<Cidr> = Vec::new();
        for network in list(&mut reader, "networks", networks) {
            for address in addresses_of(&mut reader, &network) {
                if !addresses.iter().any(|known| known.address == address.address) {
                    addresses.push(address);
                }
            }
        }
        let servers = list(&mut reader, "dns_servers", dns_servers).into_iter().filter_map(|server| {
            let value = server.value.get("ip")?;
            reader.parsed(&Field { place: format!("{}.ip", server.place), value }, ip)
        });
        let servers: Vec<_> = servers.collect();
        if !reader.problems.is_empty() {
            return Err(reader.problems);
        }
        let mut cards: Vec<&Nic> = nics.iter().filter(|nic| nic.link).collect();
        if cards.is_empty() {
            cards = nics.iter().collect();
        }
        let cards: Vec<Nic> = cards.into_iter().cloned().collect();
        let mut network = Network::dhcp(&cards);
        // The first NIC in the order of the inventory, not of the map's keys.
        let first = cards.iter().find(|nic| !nic.mac.is_empty()).map(|nic| nic.mac.to_lowercase().replace(':', ""));
        if let Some(first) = first.and_then(|mac| network.ethernets.get_mut(&format!("enx{mac}"))) {
            first.settings.addresses = addresses;
            first.settings.nameservers = servers;
        }
        Ok(network)
    }
}

/// Returns the items of a list; empty if the list is missing.
fn list<'a>(reader: &mut Reader, name: &str, value: &'a Value) -> Vec<Field<'a>> {
    match value {
        Value::Null => Vec::new(),
        value => reader.items(&Field { place: name.to_owned(), value }),
    }
}

/// Returns the machine's addresses in the network, each with the prefix that contains it. Addresses of the underlay are skipped: the
/// switches use them.
fn addresses_of(reader: &mut Reader, network: &Field) -> Vec<Cidr> {
    let field = |name: &str| {
        let value = network.value.get(name).filter(|value| !value.is_null())?;
        Some(Field { place: format!("{}.{name}", network.place), value })
    };
    if network.value.get("underlay") == Some(&Value::Bool(true)) {
        return Vec::new();
    }
    let prefixes = reader.all_parsed(field("prefixes"), cidr);
    let ips = reader.all_parsed(field("ips"), ip);
    let within = |address| {
        let prefix = prefixes.iter().find(|(prefix, _)| prefix.holds(&address));
        prefix.map_or(Cidr::of(address), |(prefix, _)| Cidr { address, prefix: prefix.prefix })
    };
    ips.into_iter().map(|(address, _)| within(address)).collect()
}
