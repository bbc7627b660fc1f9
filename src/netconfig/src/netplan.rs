//! Configuration for netplan and cloud-init, in netplan's version 2. Only notations that old versions of both programs
//! support are used.

use super::bond_parameters::{MII_MILLISECONDS, ParameterType};
use super::{
    BondConfig, EthernetConfig, InterfaceSettings, NetworkConfig, NicSelector, RenderedFile, StaticRoute, WRITTEN_BY,
};
use model::inventory::Nic;
use std::fmt::Display;

/// YAML writer. All text is quoted, because some parsers would interpret a MAC address as a number.
#[derive(Default)]
struct YamlWriter {
    text: String,
    depth: usize,
    /// Whether `dhcp-identifier` is written; cloud-init does not support this field.
    identifies_by_mac: bool,
}

impl YamlWriter {
    fn write_line(&mut self, line: impl Display) {
        self.text += &format!("{}{line}\n", "  ".repeat(self.depth));
    }

    fn write_block(&mut self, name: impl Display, write: impl FnOnce(&mut YamlWriter)) {
        self.write_line(format!("{name}:"));
        self.depth += 1;
        write(self);
        self.depth -= 1;
    }

    fn write_list(&mut self, name: &str, items: &[impl Display]) {
        if !items.is_empty() {
            let items: Vec<String> = items.iter().map(quote).collect();
            self.write_line(format!("{name}: [{}]", items.join(", ")));
        }
    }
}

/// Quotes a string. Characters are not escaped, because validation has excluded all characters that would need an
/// escape.
fn quote(text: impl Display) -> String {
    format!("\"{text}\"")
}

impl NetworkConfig {
    pub(super) fn render_netplan(&self) -> Vec<RenderedFile> {
        let mut yaml = YamlWriter { text: WRITTEN_BY.to_owned(), depth: 0, identifies_by_mac: true };
        yaml.write_block("network", |yaml| self.write_yaml(yaml, |_| None));
        // Only root may read the file, because netplan warns about files that other users can read.
        vec![RenderedFile { path: "/etc/netplan/50-drophammer.yaml".to_owned(), mode: 0o600, content: yaml.text }]
    }

    /// Renders the file `network-config` of cloud-init's NoCloud seed. Each NIC gets a name, because cloud-init refers
    /// to NICs by their ids in the files that it writes for network managers other than netplan.
    pub(super) fn render_cloud_init(&self, nics: &[Nic]) -> Vec<RenderedFile> {
        let mut yaml = YamlWriter { text: WRITTEN_BY.to_owned(), depth: 0, identifies_by_mac: false };
        let mut network = self.clone();
        network.bonds.values_mut().for_each(replace_arp_monitoring);
        network.write_yaml(&mut yaml, |id| Some(self.assigned_name(id, nics)));
        let path = "/var/lib/cloud/seed/nocloud/network-config".to_owned();
        vec![RenderedFile { path, mode: 0o600, content: yaml.text }]
    }

    /// Writes the configuration. `name` is called with the id of each NIC, and returns the name for a NIC without a
    /// configured name, or `None`.
    fn write_yaml(&self, yaml: &mut YamlWriter, name: impl Fn(&str) -> Option<String>) {
        yaml.write_line("version: 2");
        if !self.ethernets.is_empty() {
            yaml.write_block("ethernets", |yaml| {
                for (id, ethernet) in &self.ethernets {
                    yaml.write_block(quote(id), |yaml| {
                        write_nic(yaml, id, ethernet, name(id));
                        write_settings(yaml, &ethernet.settings);
                    });
                }
            });
        }
        if !self.bonds.is_empty() {
            yaml.write_block("bonds", |yaml| {
                for (id, one) in &self.bonds {
                    yaml.write_block(quote(id), |yaml| write_bond(yaml, one));
                }
            });
        }
        if !self.vlans.is_empty() {
            yaml.write_block("vlans", |yaml| {
                for (id, vlan) in self.vlans_in_order() {
                    yaml.write_block(quote(id), |yaml| {
                        yaml.write_line(format!("id: {}", vlan.id));
                        yaml.write_line(format!("link: {}", quote(&vlan.link)));
                        write_settings(yaml, &vlan.settings);
                    });
                }
            });
        }
    }
}

/// Replaces ARP monitoring by carrier monitoring. netplan and cloud-init use different field names for the ARP targets,
/// and each of these programs fails on the field name of the other program.
fn replace_arp_monitoring(bond: &mut BondConfig) {
    let had = bond.parameters.remove("arp-interval").is_some() && bond.parameters.remove("arp-ip-targets").is_some();
    if had {
        bond.parameters.insert("mii-monitor-interval".to_owned(), MII_MILLISECONDS.to_owned());
    }
}

/// Writes the criterion that selects a NIC, and the name of the NIC: the configured name, or else `given`.
fn write_nic(yaml: &mut YamlWriter, id: &str, ethernet: &EthernetConfig, given: Option<String>) {
    let mut name = ethernet.set_name.clone();
    match &ethernet.nic {
        NicSelector::Mac(mac) => {
            yaml.write_block("match", |yaml| yaml.write_line(format!("macaddress: {}", quote(mac))));
            name = name.or(given);
        }
        NicSelector::Name(name) if name != id || ethernet.set_name.is_some() => {
            yaml.write_block("match", |yaml| yaml.write_line(format!("name: {}", quote(name))));
        }
        NicSelector::Name(_) => {}
    }
    name.iter().for_each(|name| yaml.write_line(format!("set-name: {}", quote(name))));
}

fn write_bond(yaml: &mut YamlWriter, bond: &BondConfig) {
    yaml.write_list("interfaces", &bond.members);
    bond.mac.iter().for_each(|mac| yaml.write_line(format!("macaddress: {}", quote(mac))));
    yaml.write_block("parameters", |yaml| {
        for (parameter, value) in bond.set_parameters() {
            match parameter.kind {
                ParameterType::OneOf(_) => yaml.write_line(format!("{}: {}", parameter.netplan, quote(value))),
                ParameterType::Targets => yaml.write_list(parameter.netplan, &value.split(',').collect::<Vec<_>>()),
                ParameterType::Milliseconds | ParameterType::Number => {
                    yaml.write_line(format!("{}: {value}", parameter.netplan))
                }
            }
        }
        bond.primary.iter().for_each(|primary| yaml.write_line(format!("primary: {}", quote(primary))));
    });
    write_settings(yaml, &bond.settings);
}

/// Writes the settings of a device. `dhcp4` is always written, because netplan ignores a device without any settings.
fn write_settings(yaml: &mut YamlWriter, settings: &InterfaceSettings) {
    yaml.write_line(format!("dhcp4: {}", settings.dhcp4));
    if settings.dhcp4 && yaml.identifies_by_mac {
        yaml.write_line("dhcp-identifier: mac");
    }
    if settings.dhcp6 {
        yaml.write_line("dhcp6: true");
    }
    settings.accept_ra.iter().for_each(|accept| yaml.write_line(format!("accept-ra: {accept}")));
    settings.mtu.iter().for_each(|mtu| yaml.write_line(format!("mtu: {mtu}")));
    if settings.optional {
        yaml.write_line("optional: true");
    }
    yaml.write_list("addresses", &settings.addresses);
    if !settings.has_no_dns() {
        yaml.write_block("nameservers", |yaml| {
            yaml.write_list("addresses", &settings.nameservers);
            yaml.write_list("search", &settings.search);
        });
    }
    if !settings.routes.is_empty() {
        yaml.write_block("routes", |yaml| settings.routes.iter().for_each(|one| write_route(yaml, one)));
    }
}

/// Writes a route. A default route is written as `0.0.0.0/0` or `::/0`, because old versions do not support `default`.
fn write_route(yaml: &mut YamlWriter, route: &StaticRoute) {
    yaml.write_line(format!("- to: {}", quote(route.to)));
    yaml.write_line(format!("  via: {}", quote(route.via)));
    route.metric.iter().for_each(|metric| yaml.write_line(format!("  metric: {metric}")));
    if route.on_link {
        yaml.write_line("  on-link: true");
    }
}
