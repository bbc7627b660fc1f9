//! metal-stack's `networks` as a description, for an image that has no routing daemon to make something of them.
//!
//! In metal-stack a machine announces its addresses over BGP, and the switches route to it. Without a daemon that does so there
//! is no gateway to name: `networks` has none. So each card with a link keeps what DHCP gives it, its default route above all, and
//! the first has the addresses of the machine besides.

use super::address::{cidr, ip};
use super::fields::{Field, Reader};
use super::{Cidr, Network};
use crate::inventory::Nic;
use crate::problem::Problem;
use serde_json::Value;

impl Network {
    /// The addresses of `networks`, and the servers of `dns_servers`.
    ///
    /// # Errors
    /// What is no address in them, with its place.
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
        // The first as the machine counts them, not as their names sort.
        let first = cards.iter().find(|nic| !nic.mac.is_empty()).map(|nic| nic.mac.to_lowercase().replace(':', ""));
        if let Some(first) = first.and_then(|mac| network.ethernets.get_mut(&format!("enx{mac}"))) {
            first.settings.addresses = addresses;
            first.settings.nameservers = servers;
        }
        Ok(network)
    }
}

/// The items; none where nothing is given.
fn list<'a>(reader: &mut Reader, name: &str, value: &'a Value) -> Vec<Field<'a>> {
    match value {
        Value::Null => Vec::new(),
        value => reader.items(&Field { place: name.to_owned(), value }),
    }
}

/// The machine's addresses in that network, each with the prefix that it lies in. The underlay is the switches' own.
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
