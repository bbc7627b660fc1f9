//! Shell script that applies the configuration in the ramdisk, which has neither udev nor a network daemon.

use super::{Card, Network, Settings};
use crate::inventory::Nic;
use std::collections::BTreeMap;
use std::fmt::Write;

/// Script under construction, with the interface names of the devices in the ramdisk.
struct Script<'a> {
    network: &'a Network,
    names: BTreeMap<&'a str, &'a str>,
    text: String,
}

impl Network {
    /// Returns a script for `sh -eu`. It uses `carrier_of` and `lease_of` of the ramdisk's `/usr/lib/network.sh`. NICs keep their kernel
    /// names: `set-name` applies to the installed system only.
    ///
    /// # Errors
    /// The machine lacks a NIC of the configuration.
    pub fn for_the_ramdisk(&self, nics: &[Nic]) -> Result<String, String> {
        let mut names = BTreeMap::new();
        for (id, ethernet) in &self.ethernets {
            let is_it = |nic: &&Nic| match &ethernet.card {
                Card::Mac(mac) => nic.mac.eq_ignore_ascii_case(mac),
                Card::Name(name) => nic.name == *name,
            };
            let Some(nic) = nics.iter().find(is_it) else { return Err(missing(id, &ethernet.card, nics)) };
            names.insert(id.as_str(), nic.name.as_str());
        }
        names.extend(self.bonds.keys().chain(self.vlans.keys()).map(|id| (id.as_str(), id.as_str())));
        let mut script = Script { network: self, names, text: String::new() };
        script.bonds();
        script.vlans();
        script.addresses();
        script.name_servers();
        Ok(script.text)
    }
}

fn missing(id: &str, card: &Card, nics: &[Nic]) -> String {
    let cards: Vec<String> = nics.iter().map(|nic| format!("{} {}", nic.name, nic.mac)).collect();
    let there = if cards.is_empty() { "no NICs".to_owned() } else { cards.join(", ") };
    match card {
        Card::Mac(mac) => format!("ethernets.{id}: no NIC has the MAC address {mac}; this machine has {there}"),
        Card::Name(name) => {
            format!(
                "ethernets.{id}: no NIC is called {name} in the ramdisk; this machine has {there}: match it by macaddress"
            )
        }
    }
}

impl Script<'_> {
    fn line(&mut self, words: &[&str]) {
        let words: Vec<String> = words.iter().map(|word| quoted(word)).collect();
        let _ = writeln!(self.text, "{}", words.join(" "));
    }

    fn set(&mut self, file: &str, value: &str) {
        let _ = writeln!(self.text, "echo {} > {}", quoted(value), quoted(file));
    }

    fn bonds(&mut self) {
        for (id, bond) in &self.network.bonds {
            // Without max_bonds=0, the module creates a bond of its own.
            self.line(&["modprobe", "bonding", "max_bonds=0"]);
            self.set("/sys/class/net/bonding_masters", &format!("+{id}"));
            for (parameter, value) in bond.given() {
                let file = format!("/sys/class/net/{id}/bonding/{}", parameter.kernel);
                match parameter.netplan {
                    "arp-ip-targets" => value.split(',').for_each(|one| self.set(&file, &format!("+{}", one.trim()))),
                    _ => self.set(&file, value),
                }
            }
            if let Some(mac) = &bond.mac {
                self.line(&["ip", "link", "set", id, "address", mac]);
            }
            self.mtu(id, &bond.settings);
            let members = bond.members.iter().filter_map(|member| self.names.get(member.as_str()).copied());
            for member in members.collect::<Vec<_>>() {
                self.line(&["ip", "link", "set", member, "down"]);
                self.set(&format!("/sys/class/net/{id}/bonding/slaves"), &format!("+{member}"));
            }
            if let Some(primary) = bond.primary.as_deref().and_then(|primary| self.names.get(primary).copied()) {
                self.set(&format!("/sys/class/net/{id}/bonding/primary"), primary);
            }
        }
    }

    fn vlans(&mut self) {
        for (id, vlan) in self.network.vlans_in_order() {
            let below = self.names.get(vlan.link.as_str()).copied().unwrap_or(&vlan.link);
            self.line(&["modprobe", "8021q"]);
            self.line(&["ip", "link", "add", "link", below, "name", id, "type", "vlan", "id", &vlan.id.to_string()]);
        }
    }

    /// Configures addresses, routes and leases. The underlying device of a VLAN is brought up before the VLAN.
    fn addresses(&mut self) {
        let network = self.network;
        let devices = || network.devices().into_iter().filter(|(id, _)| network.bond_of(id).is_none());
        for (id, settings) in devices() {
            let name = self.names[id];
            self.mtu(name, settings);
            if let Some(accept) = settings.accept_ra {
                self.set(&format!("/proc/sys/net/ipv6/conf/{name}/accept_ra"), if accept { "1" } else { "0" });
            }
            self.line(&["ip", "link", "set", name, "up"]);
            settings.addresses.iter().for_each(|one| self.line(&["ip", "addr", "add", &one.to_string(), "dev", name]));
        }
        for (id, settings) in devices().filter(|(_, settings)| !settings.is_empty() && !settings.optional) {
            let name = self.names[id];
            self.line(&["carrier_of", name]);
            self.routes(name, settings);
            if settings.dhcp4 {
                self.line(&["lease_of", name]);
            }
        }
    }

    fn mtu(&mut self, name: &str, settings: &Settings) {
        if let Some(mtu) = settings.mtu {
            self.line(&["ip", "link", "set", name, "mtu", &mtu.to_string()]);
        }
    }

    fn routes(&mut self, name: &str, settings: &Settings) {
        for route in &settings.routes {
            let family = if route.to.is_v4() { "-4" } else { "-6" };
            let (to, via, metric) =
                (route.to.to_string(), route.via.to_string(), route.metric.map(|it| it.to_string()));
            let mut words = vec!["ip", family, "route", "add", &to, "via", &via, "dev", name];
            words.extend(metric.iter().flat_map(|metric| ["metric", metric]));
            words.extend(route.on_link.then_some("onlink"));
            self.line(&words);
        }
    }

    /// Writes the name servers to a file next to those of the DHCP leases. The ramdisk's scripts take these files as the sign that the
    /// network is up.
    fn name_servers(&mut self) {
        let content = self.network.resolv_conf().map(|file| file.content).unwrap_or_default();
        self.line(&["mkdir", "-p", "/run/leases"]);
        let _ = writeln!(self.text, "printf %s {} > /run/leases/described", quoted(&content));
        self.text += "cat /run/leases/* > /etc/resolv.conf\n";
    }
}

/// Quotes a word for the shell.
fn quoted(word: &str) -> String {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_./:+=,@".contains(&byte);
    match !word.is_empty() && word.bytes().all(is_plain) {
        true => word.to_owned(),
        false => format!("'{}'", word.replace('\'', r"'\''")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn nics() -> Vec<Nic> {
        let nic = |name: &str, mac: &str| Nic { name: name.to_owned(), mac: mac.to_owned(), ..Nic::default() };
        vec![nic("eth0", "52:54:00:12:34:56"), nic("eth1", "52:54:00:12:34:57")]
    }

    fn script(document: &serde_json::Value) -> Result<String, String> {
        Network::read(document).unwrap().for_the_ramdisk(&nics())
    }

    #[test]
    fn a_card_with_a_static_address() {
        let card = json!({"match": {"macaddress": "52:54:00:12:34:57"}, "set-name": "lan0", "mtu": 9000,
            "addresses": ["192.0.2.7/24", "2001:db8::7/64"], "routes": [{"to": "default", "via": "192.0.2.1"}],
            "nameservers": {"addresses": ["192.0.2.53"], "search": ["example.org"]}});
        let expected = "ip link set eth1 mtu 9000
ip link set eth1 up
ip addr add 192.0.2.7/24 dev eth1
ip addr add 2001:db8::7/64 dev eth1
carrier_of eth1
ip -4 route add 0.0.0.0/0 via 192.0.2.1 dev eth1
mkdir -p /run/leases
printf %s '# Written by drophammer from the allocation'\\''s network.
search example.org
nameserver 192.0.2.53
' > /run/leases/described
cat /run/leases/* > /etc/resolv.conf
";
        assert_eq!(script(&json!({"version": 2, "ethernets": {"a": card}})).unwrap(), expected);
    }

    #[test]
    fn a_vlan_on_a_bond_of_two_cards_and_a_lease() {
        let document = json!({
            "ethernets": {"left": {"match": {"macaddress": "52:54:00:12:34:56"}}, "right": {"match": {"macaddress": "52:54:00:12:34:57"}}},
            "bonds": {"bond0": {"interfaces": ["left", "right"], "parameters": {"mode": "active-backup", "primary": "right"}}},
            "vlans": {"people": {"id": 100, "link": "bond0", "dhcp4": true}},
        });
        let expected = "modprobe bonding max_bonds=0
echo +bond0 > /sys/class/net/bonding_masters
echo active-backup > /sys/class/net/bond0/bonding/mode
echo 100 > /sys/class/net/bond0/bonding/miimon
ip link set eth0 down
echo +eth0 > /sys/class/net/bond0/bonding/slaves
ip link set eth1 down
echo +eth1 > /sys/class/net/bond0/bonding/slaves
echo eth1 > /sys/class/net/bond0/bonding/primary
modprobe 8021q
ip link add link bond0 name people type vlan id 100
ip link set bond0 up
ip link set people up
carrier_of people
lease_of people
mkdir -p /run/leases
printf %s '' > /run/leases/described
cat /run/leases/* > /etc/resolv.conf
";
        assert_eq!(script(&document).unwrap(), expected);
    }

    #[test]
    fn a_card_that_is_not_there_is_named() {
        for (card, words) in [
            (
                json!({"match": {"macaddress": "52:54:00:00:00:01"}}),
                "no NIC has the MAC address 52:54:00:00:00:01; this machine has eth0 52:54:00:12:34:56, ",
            ),
            (json!({"match": {"name": "eno1"}}), "no NIC is called eno1 in the ramdisk; this machine has eth0"),
        ] {
            let said = script(&json!({"ethernets": {"a": card}})).unwrap_err();
            assert!(said.contains(words), "{said}");
        }
    }

    #[test]
    fn a_shell_takes_each_word_as_it_is() {
        for (word, expected) in [("eth0", "eth0"), ("", "''"), ("$(reboot)", "'$(reboot)'"), ("a'b", r"'a'\''b'")] {
            assert_eq!(quoted(word), expected);
        }
    }
}
