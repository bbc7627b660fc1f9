//! netplan's version 2 again, as netplan and cloud-init read it: in one spelling that their old versions know too.

use super::bonding::{Kind, MII_MILLISECONDS};
use super::{Bond, Card, Ethernet, Network, Rendered, Route, Settings, WRITTEN_BY};
use crate::inventory::Nic;
use std::fmt::Display;

/// Lines of YAML. Every text is in quotes, so that no reader takes a MAC for a number.
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

/// What is read has no characters that would need an escape.
fn quoted(text: impl Display) -> String {
    format!("\"{text}\"")
}

impl Network {
    pub(super) fn netplan(&self) -> Vec<Rendered> {
        let mut yaml = Yaml { text: WRITTEN_BY.to_owned(), depth: 0 };
        yaml.within("network", |yaml| self.yaml(yaml, |_| None));
        // netplan warns of a file that others can read.
        vec![Rendered { path: "/etc/netplan/50-drophammer.yaml".to_owned(), mode: 0o600, content: yaml.text }]
    }

    /// The `network-config` of cloud-init's NoCloud seed. What cloud-init writes for others than netplan calls a card by its id, so
    /// each card gets a name.
    pub(super) fn cloud_init(&self, nics: &[Nic]) -> Vec<Rendered> {
        let mut yaml = Yaml { text: WRITTEN_BY.to_owned(), depth: 0 };
        let mut network = self.clone();
        network.bonds.values_mut().for_each(without_arp);
        network.yaml(&mut yaml, |id| Some(self.given_name(id, nics)));
        let path = "/var/lib/cloud/seed/nocloud/network-config".to_owned();
        vec![Rendered { path, mode: 0o600, content: yaml.text }]
    }

    /// `name` gives names to cards that have none.
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

/// cloud-init fails over netplan's name of the ARP targets, and netplan over its. So such a bond watches the carrier.
fn without_arp(bond: &mut Bond) {
    let had = bond.parameters.remove("arp-interval").is_some() && bond.parameters.remove("arp-ip-targets").is_some();
    if had {
        bond.parameters.insert("mii-monitor-interval".to_owned(), MII_MILLISECONDS.to_owned());
    }
}

/// Which card it is, and its name: its own, else the one that is given here.
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

/// `dhcp4` is always said: a device with nothing in it is none to netplan.
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

/// `default` came late; the whole family is known to every version.
fn route(yaml: &mut Yaml, route: &Route) {
    yaml.line(format!("- to: {}", quoted(route.to)));
    yaml.line(format!("  via: {}", quoted(route.via)));
    route.metric.iter().for_each(|metric| yaml.line(format!("  metric: {metric}")));
    if route.on_link {
        yaml.line("  on-link: true");
    }
}
