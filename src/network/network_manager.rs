//! NetworkManager: one keyfile per device. NetworkManager only reads keyfiles that no other user can read.

use super::bonding::Kind;
use super::ini::Ini;
use super::{Bond, Card, Cidr, Network, Rendered, Route, Settings};
use crate::inventory::Nic;
use sha2::{Digest, Sha256};
use uuid::Uuid;

const MODE: u32 = 0o600;

impl Network {
    pub(super) fn network_manager(&self, nics: &[Nic]) -> Vec<Rendered> {
        let mut files = Vec::new();
        for (id, ethernet) in &self.ethernets {
            let name = ethernet.set_name.clone().or_else(|| self.is_primary(id).then(|| self.given_name(id, nics)));
            let mut ini = connection(id, "ethernet");
            match (&ethernet.card, &name) {
                (_, Some(name)) | (Card::Name(name), None) => ini.set("interface-name", name),
                (Card::Mac(_), None) => &mut ini,
            };
            if let Some(bond) = self.bond_of(id) {
                ini.set("master", bond).set("slave-type", "bond");
            }
            ini.section("ethernet");
            if let Card::Mac(mac) = &ethernet.card {
                ini.set("mac-address", mac.to_uppercase());
            }
            ini.set_each("mtu", ethernet.settings.mtu);
            if self.bond_of(id).is_none() {
                ip(&mut ini, &ethernet.settings);
            }
            // NetworkManager does not rename NICs; udev does, if the document or the bond requires a name.
            if ethernet.set_name.is_some() || matches!(ethernet.card, Card::Mac(_)) {
                files.extend(name.and_then(|name| self.link_file(id, &name)));
            }
            files.push(ini.file(path(id), MODE));
        }
        for (id, bond) in &self.bonds {
            files.push(self.keyfile_of_bond(id, bond, nics));
        }
        for (id, vlan) in &self.vlans {
            let mut ini = connection(id, "vlan");
            ini.set("interface-name", id);
            ini.section("ethernet").set_each("mtu", vlan.settings.mtu);
            // By UUID: a NIC that is matched by its MAC address may have any name.
            ini.section("vlan").set("id", vlan.id).set("parent", uuid(&vlan.link));
            ip(&mut ini, &vlan.settings);
            files.push(ini.file(path(id), MODE));
        }
        files
    }

    fn is_primary(&self, id: &str) -> bool {
        self.bonds.values().any(|bond| bond.primary.as_deref() == Some(id))
    }

    fn keyfile_of_bond(&self, id: &str, bond: &Bond, nics: &[Nic]) -> Rendered {
        let mut ini = connection(id, "bond");
        ini.set("interface-name", id);
        ini.section("ethernet");
        ini.set_each("cloned-mac-address", bond.mac.as_ref().map(|mac| mac.to_uppercase()));
        ini.set_each("mtu", bond.settings.mtu);
        ini.section("bond");
        for (parameter, value) in bond.given() {
            // 0 would conflict with arp_interval, and is the default.
            let is_off = matches!(parameter.kind, Kind::Milliseconds) && value == "0";
            if !is_off || !bond.parameters.contains_key("arp-interval") {
                ini.set(parameter.kernel, value);
            }
        }
        ini.set_each("primary", bond.primary.as_ref().map(|primary| self.given_name(primary, nics)));
        ip(&mut ini, &bond.settings);
        ini.file(path(id), MODE)
    }
}

fn path(id: &str) -> String {
    format!("/etc/NetworkManager/system-connections/drophammer-{id}.nmconnection")
}

fn connection(id: &str, kind: &str) -> Ini {
    let mut ini = Ini::default();
    ini.section("connection").set("id", format!("drophammer-{id}")).set("uuid", uuid(id)).set("type", kind);
    ini
}

/// Returns the UUID of the connection. It is derived from the id, so that a rewritten file is still the same connection.
fn uuid(id: &str) -> Uuid {
    let digest = Sha256::digest(format!("drophammer network {id}"));
    let mut bytes = [0; 16];
    bytes.copy_from_slice(&digest[..16]);
    uuid::Builder::from_random_bytes(bytes).into_uuid()
}

fn ip(ini: &mut Ini, settings: &Settings) {
    family(ini.section("ipv4"), settings, true);
    family(ini.section("ipv6"), settings, false);
}

fn family(ini: &mut Ini, settings: &Settings, is_v4: bool) {
    let addresses: Vec<&Cidr> = settings.addresses.iter().filter(|address| address.is_v4() == is_v4).collect();
    let routes: Vec<&Route> = settings.routes.iter().filter(|route| route.to.is_v4() == is_v4).collect();
    let servers: Vec<String> = settings
        .nameservers
        .iter()
        .filter(|server| server.is_ipv4() == is_v4)
        .map(|server| format!("{server};"))
        .collect();
    let method = match is_v4 {
        true if settings.dhcp4 => "auto",
        true if addresses.is_empty() => "disabled",
        true => "manual",
        false => method_of_ipv6(settings, !addresses.is_empty(), !routes.is_empty() || !servers.is_empty()),
    };
    ini.set("method", method);
    for (index, address) in addresses.iter().enumerate() {
        ini.set(format!("address{}", index + 1), address);
    }
    if !servers.is_empty() {
        ini.set("dns", servers.concat());
    }
    // Search domains go into one family, which must be enabled.
    let carries_search = if is_v4 { method != "disabled" } else { !settings.has_family(true) && method != "ignore" };
    if carries_search && !settings.search.is_empty() {
        ini.set("dns-search", format!("{};", settings.search.join(";")));
    }
    for (index, route) in routes.iter().enumerate() {
        let metric = route.metric.map(|metric| format!(",{metric}")).unwrap_or_default();
        ini.set(format!("route{}", index + 1), format!("{},{}{metric}", route.to, route.via));
        if route.on_link {
            ini.set(format!("route{}_options", index + 1), "onlink=true");
        }
    }
}

/// Returns the IPv6 method. `ignore` leaves IPv6 to the kernel, as does a document without IPv6 settings.
fn method_of_ipv6(settings: &Settings, has_addresses: bool, has_more: bool) -> &'static str {
    match (settings.dhcp6, settings.accept_ra) {
        (true, Some(false)) => "dhcp",
        (true, _) | (false, Some(true)) => "auto",
        (false, _) if has_addresses => "manual",
        (false, Some(false)) => "link-local",
        (false, None) if has_more => "auto",
        (false, None) => "ignore",
    }
}
