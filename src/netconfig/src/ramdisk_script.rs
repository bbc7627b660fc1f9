//! Shell script that applies the configuration in the ramdisk, which has neither udev nor a network daemon.

use super::{InterfaceSettings, NetworkConfig, NicSelector};
use model::inventory::Nic;
use std::collections::BTreeMap;
use std::fmt::Write;

/// Script that is being generated, and the interface names of the devices in the ramdisk.
struct RamdiskScript<'a> {
    network: &'a NetworkConfig,
    names: BTreeMap<&'a str, &'a str>,
    text: String,
}

impl NetworkConfig {
    /// Returns a script for `sh -eu`, which calls the functions `carrier_of` and `lease_of` in `/usr/lib/network.sh` of
    /// the ramdisk. NICs keep their kernel names, because `set-name` applies only to the installed system.
    ///
    /// # Errors
    /// Fails if the machine lacks a NIC of the configuration. The message lists the NICs of the machine.
    pub fn ramdisk_script(&self, nics: &[Nic]) -> Result<String, String> {
        let mut names = BTreeMap::new();
        for (id, ethernet) in &self.ethernets {
            let is_it = |nic: &&Nic| match &ethernet.nic {
                NicSelector::Mac(mac) => nic.mac.eq_ignore_ascii_case(mac),
                NicSelector::Name(name) => nic.name == *name,
            };
            let Some(nic) = nics.iter().find(is_it) else { return Err(describe_missing_nic(id, &ethernet.nic, nics)) };
            names.insert(id.as_str(), nic.name.as_str());
        }
        names.extend(self.bonds.keys().chain(self.vlans.keys()).map(|id| (id.as_str(), id.as_str())));
        let mut script = RamdiskScript { network: self, names, text: String::new() };
        script.create_bonds();
        script.create_vlans();
        script.configure_addresses();
        script.write_name_servers();
        Ok(script.text)
    }
}

fn describe_missing_nic(id: &str, nic: &NicSelector, nics: &[Nic]) -> String {
    let present_nics: Vec<String> = nics.iter().map(|nic| format!("{} {}", nic.name, nic.mac)).collect();
    let there = if present_nics.is_empty() { "no NICs".to_owned() } else { present_nics.join(", ") };
    match nic {
        NicSelector::Mac(mac) => format!("ethernets.{id}: no NIC has the MAC address {mac}; this machine has {there}"),
        NicSelector::Name(name) => {
            format!(
                "ethernets.{id}: no NIC is called {name} in the ramdisk; this machine has {there}; select the NIC by match.macaddress"
            )
        }
    }
}

impl RamdiskScript<'_> {
    fn write_command(&mut self, words: &[&str]) {
        let words: Vec<String> = words.iter().map(|word| shell_quote(word)).collect();
        let _ = writeln!(self.text, "{}", words.join(" "));
    }

    fn write_file(&mut self, file: &str, value: &str) {
        let _ = writeln!(self.text, "echo {} > {}", shell_quote(value), shell_quote(file));
    }

    fn create_bonds(&mut self) {
        for (id, bond) in &self.network.bonds {
            // Without max_bonds=0, the kernel module would create an additional bond when it is loaded.
            self.write_command(&["modprobe", "bonding", "max_bonds=0"]);
            self.write_file("/sys/class/net/bonding_masters", &format!("+{id}"));
            for (parameter, value) in bond.set_parameters() {
                let file = format!("/sys/class/net/{id}/bonding/{}", parameter.kernel);
                match parameter.netplan {
                    "arp-ip-targets" => {
                        value.split(',').for_each(|one| self.write_file(&file, &format!("+{}", one.trim())))
                    }
                    _ => self.write_file(&file, value),
                }
            }
            if let Some(mac) = &bond.mac {
                self.write_command(&["ip", "link", "set", id, "address", mac]);
            }
            self.set_mtu(id, &bond.settings);
            let members = bond.members.iter().filter_map(|member| self.names.get(member.as_str()).copied());
            for member in members.collect::<Vec<_>>() {
                self.write_command(&["ip", "link", "set", member, "down"]);
                self.write_file(&format!("/sys/class/net/{id}/bonding/slaves"), &format!("+{member}"));
            }
            if let Some(primary) = bond.primary.as_deref().and_then(|primary| self.names.get(primary).copied()) {
                self.write_file(&format!("/sys/class/net/{id}/bonding/primary"), primary);
            }
        }
    }

    fn create_vlans(&mut self) {
        for (id, vlan) in self.network.vlans_in_order() {
            let below = self.names.get(vlan.link.as_str()).copied().unwrap_or(&vlan.link);
            self.write_command(&["modprobe", "8021q"]);
            self.write_command(&[
                "ip",
                "link",
                "add",
                "link",
                below,
                "name",
                id,
                "type",
                "vlan",
                "id",
                &vlan.id.to_string(),
            ]);
        }
    }

    /// Adds commands that bring up the devices, and configure addresses, routes and DHCP. An underlying device is
    /// brought up before its VLANs.
    fn configure_addresses(&mut self) {
        let network = self.network;
        let devices = || network.devices_in_order().into_iter().filter(|(id, _)| network.find_bond(id).is_none());
        for (id, settings) in devices() {
            let name = self.names[id];
            self.set_mtu(name, settings);
            if let Some(accept) = settings.accept_ra {
                self.write_file(&format!("/proc/sys/net/ipv6/conf/{name}/accept_ra"), if accept { "1" } else { "0" });
            }
            self.write_command(&["ip", "link", "set", name, "up"]);
            settings
                .addresses
                .iter()
                .for_each(|one| self.write_command(&["ip", "addr", "add", &one.to_string(), "dev", name]));
        }
        for (id, settings) in devices().filter(|(_, settings)| !settings.is_empty() && !settings.optional) {
            let name = self.names[id];
            self.write_command(&["carrier_of", name]);
            self.add_routes(name, settings);
            if settings.dhcp4 {
                self.write_command(&["lease_of", name]);
            }
        }
    }

    fn set_mtu(&mut self, name: &str, settings: &InterfaceSettings) {
        if let Some(mtu) = settings.mtu {
            self.write_command(&["ip", "link", "set", name, "mtu", &mtu.to_string()]);
        }
    }

    fn add_routes(&mut self, name: &str, settings: &InterfaceSettings) {
        for route in &settings.routes {
            let family = if route.to.is_v4() { "-4" } else { "-6" };
            let (to, via, metric) =
                (route.to.to_string(), route.via.to_string(), route.metric.map(|it| it.to_string()));
            let mut words = vec!["ip", family, "route", "add", &to, "via", &via, "dev", name];
            words.extend(metric.iter().flat_map(|metric| ["metric", metric]));
            words.extend(route.on_link.then_some("onlink"));
            self.write_command(&words);
        }
    }

    /// Adds commands that write the name servers to a file in the directory of the DHCP leases. The scripts of the
    /// ramdisk consider the network up as soon as this directory contains a file.
    fn write_name_servers(&mut self) {
        let content = self.network.render_resolv_conf().map(|file| file.content).unwrap_or_default();
        self.write_command(&["mkdir", "-p", "/run/leases"]);
        let _ = writeln!(self.text, "printf %s {} > /run/leases/described", shell_quote(&content));
        self.text += "cat /run/leases/* > /etc/resolv.conf\n";
    }
}

/// Quotes a word for the shell.
fn shell_quote(word: &str) -> String {
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
        NetworkConfig::parse(document).unwrap().ramdisk_script(&nics())
    }

    #[test]
    fn script_configures_a_nic_with_static_addresses() {
        let nic = json!({"match": {"macaddress": "52:54:00:12:34:57"}, "set-name": "lan0", "mtu": 9000,
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
        assert_eq!(script(&json!({"version": 2, "ethernets": {"a": nic}})).unwrap(), expected);
    }

    #[test]
    fn script_configures_a_vlan_on_a_bond_with_dhcp() {
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
    fn missing_nic_is_named() {
        for (nic, words) in [
            (
                json!({"match": {"macaddress": "52:54:00:00:00:01"}}),
                "no NIC has the MAC address 52:54:00:00:00:01; this machine has eth0 52:54:00:12:34:56, ",
            ),
            (json!({"match": {"name": "eno1"}}), "no NIC is called eno1 in the ramdisk; this machine has eth0"),
        ] {
            let said = script(&json!({"ethernets": {"a": nic}})).unwrap_err();
            assert!(said.contains(words), "{said}");
        }
    }

    #[test]
    fn shell_words_are_quoted() {
        for (word, expected) in [("eth0", "eth0"), ("", "''"), ("$(reboot)", "'$(reboot)'"), ("a'b", r"'a'\''b'")] {
            assert_eq!(shell_quote(word), expected);
        }
    }
}
