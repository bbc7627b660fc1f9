//! netplan and cloud-init: the configuration in netplan's version 2, in a form that their old versions also support.

use super::bonding::{Kind, MII_MILLISECONDS};
use super::{Bond, Card, Ethernet, Network, Rendered, Route, Settings, WRITTEN_BY};
use crate::inventory::Nic;
use std::fmt::Display;

/// YAML writer. All text is quoted, so that no parser takes a MAC address for a number.
#[derive(Default)]
struct Yaml {
    text: String,
    depth: usize,
}

impl Yaml {
    fn line(&mut self, line: impl Display) {
        self.text += &format!("{}{line}\n", "  ".repeat(self.depth));
    }

    fn within(&mut self, name: impl Display, write: impl FnOnce(&mut Yaml)) {
        self.line(format!("{name}:"));
        self.depth += 1;
        write(self);
        self.depth -= 1;
    }

    fn list(&mut self, name: &str, items: &[impl Display]) {
        if !items.is_empty() {
            let items: Vec<String> = items.iter().map(quoted).collect();
            self.line(format!("{name}: [{}]", items.join(", ")));
        }
    }
}

/// Quotes a text. Validated text contains no characters that need escaping.
fn quoted(text: impl Display) -> String {
    format!("\"{text}\"")
}

impl Network {
    pub(super) fn netplan(&self) -> Vec<Rendered> {
        let mut yaml = Yaml { text: WRITTEN_BY.to_owned(), depth: 0 };
        yaml.within("network", |yaml| self.yaml(yaml, |_| None));
        // netplan warns about files that other users can read.
        vec![Rendered { path: "/etc/netplan/50-drophammer.yaml".to_owned(), mode: 0o600, content: yaml.text }]
    }

    /// Renders the `network-config` of cloud-init's NoCloud seed. Except for netplan, cloud-init refers to a NIC by its id in the files
    /// that it writes, so each NIC gets a name.
    pub(super) fn cloud_init(&self, nics: &[Nic]) -> Vec<Rendered> {
        let mut yaml = Yaml { text: WRITTEN_BY.to_owned(), depth: 0 };
        let mut network = self.clone();
        network.bonds.values_mut().for_each(without_arp);
        network.yaml(&mut yaml, |id| Some(self.given_name(id, nics)));
        let path = "/var/lib/cloud/seed/nocloud/network-config".to_owned();
        vec![Rendered { path, mode: 0o600, content: yaml.text }]
    }

    /// Writes the configuration. `name` returns a name for a NIC that has none.
    fn yaml(&self, yaml: &mut Yaml, name: impl Fn(&str) -> Option<String>) {
        yaml.line("version: 2");
        if !self.ethernets.is_empty() {
            yaml.within("ethernets", |yaml| {
                for (id, ethernet) in &self.ethernets {
                    yaml.within(quoted(id), |yaml| {
                        card(yaml, id, ethernet, name(id));
                        settings(yaml, &ethernet.settings);
                    });
                }
            });
        }
        if !self.bonds.is_empty() {
            yaml.within("bonds", |yaml| {
                for (id, one) in &self.bonds {
                    yaml.within(quoted(id), |yaml| bond(yaml, one));
                }
            });
        }
        if !self.vlans.is_empty() {
            yaml.within("vlans", |yaml| {
                for (id, vlan) in self.vlans_in_order() {
                    yaml.within(quoted(id), |yaml| {
                        yaml.line(format!("id: {}", vlan.id));
                        yaml.line(format!("link: {}", quoted(&vlan.link)));
                        settings(yaml, &vlan.settings);
                    });
                }
            });
        }
    }
}

/// Replaces ARP monitoring by carrier monitoring: cloud-init fails on netplan's name of the ARP targets, and netplan on cloud-init's.
fn without_arp(bond: &mut Bond) {
    let had = bond.parameters.remove("arp-interval").is_some() && bond.parameters.remove("arp-ip-targets").is_some();
    if had {
        bond.parameters.insert("mii-monitor-interval".to_owned(), MII_MILLISECONDS.to_owned());
    }
}

/// Writes the match of a NIC and its name: its own, or else `given`.
fn card(yaml: &mut Yaml, id: &str, ethernet: &Ethernet, given: Option<String>) {
    let mut name = ethernet.set_name.clone();
    match &ethernet.card {
        Card::Mac(mac) => {
            yaml.within("match", |yaml| yaml.line(format!("macaddress: {}", quoted(mac))));
            name = name.or(given);
        }
        Card::Name(name) if name != id || ethernet.set_name.is_some() => {
            yaml.within("match", |yaml| yaml.line(format!("name: {}", quoted(name))));
        }
        Card::Name(_) => {}
    }
    name.iter().for_each(|name| yaml.line(format!("set-name: {}", quoted(name))));
}

fn bond(yaml: &mut Yaml, bond: &Bond) {
    yaml.list("interfaces", &bond.members);
    bond.mac.iter().for_each(|mac| yaml.line(format!("macaddress: {}", quoted(mac))));
    yaml.within("parameters", |yaml| {
        for (parameter, value) in bond.given() {
            match parameter.kind {
                Kind::OneOf(_) => yaml.line(format!("{}: {}", parameter.netplan, quoted(value))),
                Kind::Targets => yaml.list(parameter.netplan, &value.split(',').collect::<Vec<_>>()),
                Kind::Milliseconds | Kind::Number => yaml.line(format!("{}: {value}", parameter.netplan)),
            }
        }
        bond.primary.iter().for_each(|primary| yaml.line(format!("primary: {}", quoted(primary))));
    });
    settings(yaml, &bond.settings);
}

/// Writes the settings. `dhcp4` is always written: netplan ignores a device without any settings.
fn settings(yaml: &mut Yaml, settings: &Settings) {
    yaml.line(format!("dhcp4: {}", settings.dhcp4));
    if settings.dhcp6 {
        yaml.line("dhcp6: true");
    }
    settings.accept_ra.iter().for_each(|accept| yaml.line(format!("accept-ra: {accept}")));
    settings.mtu.iter().for_each(|mtu| yaml.line(format!("mtu: {mtu}")));
    if settings.optional {
        yaml.line("optional: true");
    }
    yaml.list("addresses", &settings.addresses);
    if !settings.has_no_dns() {
        yaml.within("nameservers", |yaml| {
            yaml.list("addresses", &settings.nameservers);
            yaml.list("search", &settings.search);
        });
    }
    if !settings.routes.is_empty() {
        yaml.within("routes", |yaml| settings.routes.iter().for_each(|one| route(yaml, one)));
    }
}

/// Writes a route. Old versions do not support `default`, but all support the prefix of the whole family.
fn route(yaml: &mut Yaml, route: &Route) {
    yaml.line(format!("- to: {}", quoted(route.to)));
    yaml.line(format!("  via: {}", quoted(route.via)));
    route.metric.iter().for_each(|metric| yaml.line(format!("  metric: {metric}")));
    if route.on_link {
        yaml.line("  on-link: true");
    }
}
