//! Network configuration derived from metal-stack's `networks`, for an image without a routing daemon.
//!
//! In metal-stack, a machine announces its addresses over BGP, and the switches route packets for these addresses to
//! the machine. `networks` contains no gateway. Without a routing daemon, each NIC with a link therefore uses DHCP,
//! mainly to obtain a default route. The first NIC also gets the addresses of the machine.

use super::cidr::{parse_cidr, parse_ip};
use super::json_fields::{JsonField, NetworkReader};
use super::{Cidr, NetworkConfig};
use common::diagnostic::Diagnostic;
use model::inventory::Nic;
use serde_json::Value;

impl NetworkConfig {
    /// Builds the configuration from the addresses in `networks` and the servers in `dns_servers`.
    ///
    /// # Errors
    /// Returns all invalid addresses, each with its path in the document.
    pub fn from_metal_stack(
        networks: &Value,
        dns_servers: &Value,
        nics: &[Nic],
    ) -> Result<NetworkConfig, Vec<Diagnostic>> {
        let mut reader = NetworkReader::default();
        let mut addresses: Vec<Cidr> = Vec::new();
        for network in read_list(&mut reader, "networks", networks) {
            for address in read_addresses(&mut reader, &network) {
                if !addresses.iter().any(|known| known.address == address.address) {
                    addresses.push(address);
                }
            }
        }
        let servers = read_list(&mut reader, "dns_servers", dns_servers).into_iter().filter_map(|server| {
            if server.value.is_string() {
                return reader.parse_scalar(&server, parse_ip);
            }
            let value = server.value.get("ip")?;
            reader.parse_scalar(&JsonField { place: format!("{}.ip", server.place), value }, parse_ip)
        });
        let servers: Vec<_> = servers.collect();
        if !reader.problems.is_empty() {
            return Err(reader.problems);
        }
        let mut connected: Vec<&Nic> = nics.iter().filter(|nic| nic.link).collect();
        if connected.is_empty() {
            connected = nics.iter().collect();
        }
        let connected: Vec<Nic> = connected.into_iter().cloned().collect();
        let mut network = NetworkConfig::dhcp_on_all(&connected);
        // The first NIC is the first one in the inventory, not the first key of the map.
        let first = connected.iter().find(|nic| !nic.mac.is_empty()).map(|nic| nic.mac.to_lowercase().replace(':', ""));
        if let Some(first) = first.and_then(|mac| network.ethernets.get_mut(&format!("enx{mac}"))) {
            first.settings.addresses = addresses;
            first.settings.nameservers = servers;
        }
        Ok(network)
    }
}

/// Returns the items of a list, or no items if the list is missing.
fn read_list<'a>(reader: &mut NetworkReader, name: &str, value: &'a Value) -> Vec<JsonField<'a>> {
    match value {
        Value::Null => Vec::new(),
        value => reader.read_items(&JsonField { place: name.to_owned(), value }),
    }
}

/// Returns the machine's addresses in a network, each with the length of the prefix that contains it. The addresses of
/// an underlay network are skipped, because only the switches use them.
fn read_addresses(reader: &mut NetworkReader, network: &JsonField) -> Vec<Cidr> {
    let field = |name: &str| {
        let value = network.value.get(name).filter(|value| !value.is_null())?;
        Some(JsonField { place: format!("{}.{name}", network.place), value })
    };
    if network.value.get("underlay") == Some(&Value::Bool(true)) {
        return Vec::new();
    }
    let prefixes = reader.parse_items(field("prefixes"), parse_cidr);
    let ips = reader.parse_items(field("ips"), parse_ip);
    let within = |address| {
        let prefix = prefixes.iter().find(|(prefix, _)| prefix.contains(&address));
        prefix.map_or(Cidr::single_address(address), |(prefix, _)| Cidr { address, prefix: prefix.prefix })
    };
    ips.into_iter().map(|(address, _)| within(address)).collect()
}
