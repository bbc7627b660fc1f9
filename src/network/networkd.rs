//! systemd-networkd: a `.network` file per device, a `.netdev` file per virtual device, and a `.link` file per renamed NIC.

use super::bonding::Kind;
use super::ini::Ini;
use super::{Bond, Card, Network, Rendered, Route, Settings};

/// File mode: networkd runs unprivileged and must be able to read the files.
const MODE: u32 = 0o644;

impl Network {
    pub(super) fn networkd(&self) -> Vec<Rendered> {
        let mut files = Vec::new();
        for (id, ethernet) in &self.ethernets {
            files.extend(ethernet.set_name.as_ref().and_then(|name| self.link_file(id, name)));
            let mut ini = Ini::default();
            ini.section("Match");
            match (&ethernet.card, &ethernet.set_name) {
                (Card::Mac(mac), _) => ini.set("PermanentMACAddress", mac),
                (Card::Name(name), set_name) => ini.set("Name", set_name.as_ref().unwrap_or(name)),
            };
            self.network_unit(&mut ini, id, &ethernet.settings);
            files.push(ini.file(path(id, "network"), MODE));
        }
        for (id, bond) in &self.bonds {
            files.push(netdev_of_bond(id, bond).file(path(id, "netdev"), MODE));
            files.push(self.network_of_made(id, &bond.settings));
        }
        for (id, vlan) in &self.vlans {
            let mut ini = Ini::default();
            ini.section("NetDev").set("Name", id).set("Kind", "vlan").set_each("MTUBytes", vlan.settings.mtu);
            ini.section("VLAN").set("Id", vlan.id);
            files.push(ini.file(path(id, "netdev"), MODE));
            files.push(self.network_of_made(id, &vlan.settings));
        }
        files
    }

    fn network_of_made(&self, id: &str, settings: &Settings) -> Rendered {
        let mut ini = Ini::default();
        ini.section("Match").set("Name", id);
        self.network_unit(&mut ini, id, settings);
        ini.file(path(id, "network"), MODE)
    }

    /// Writes all sections except `[Match]`.
    fn network_unit(&self, ini: &mut Ini, id: &str, settings: &Settings) {
        ini.section("Link").set_each("MTUBytes", settings.mtu);
        if settings.optional {
            ini.set("RequiredForOnline", "no");
        }
        ini.section("Network");
        if let Some(bond) = self.bond_of(id) {
            ini.set("LinkLocalAddressing", "no").set("Bond", bond);
            if self.bonds.get(bond).is_some_and(|bond| bond.primary.as_deref() == Some(id)) {
                ini.set("PrimarySlave", "true");
            }
            return;
        }
        let dhcp = match (settings.dhcp4, settings.dhcp6) {
            (true, true) => Some("yes"),
            (true, false) => Some("ipv4"),
            (false, true) => Some("ipv6"),
            (false, false) => None,
        };
        ini.set_each("DHCP", dhcp).set("LinkLocalAddressing", "ipv6");
        ini.set_each("IPv6AcceptRA", settings.accept_ra.map(yes));
        ini.set_each("Address", &settings.addresses).set_each("DNS", &settings.nameservers);
        if !settings.search.is_empty() {
            ini.set("Domains", settings.search.join(" "));
        }
        ini.set_each("VLAN", self.vlans_on(id));
        if !self.ethernets.contains_key(id) {
            ini.set("ConfigureWithoutCarrier", "yes");
        }
        if settings.dhcp4 && settings.mtu.is_none() {
            ini.section("DHCPv4").set("UseMTU", "yes");
        }
        settings.routes.iter().for_each(|one| route(ini, one));
    }
}

fn path(id: &str, ending: &str) -> String {
    format!("/etc/systemd/network/10-drophammer-{id}.{ending}")
}

fn yes(flag: bool) -> &'static str {
    if flag { "yes" } else { "no" }
}

fn netdev_of_bond(id: &str, bond: &Bond) -> Ini {
    let mut ini = Ini::default();
    ini.section("NetDev").set("Name", id).set("Kind", "bond");
    ini.set_each("MTUBytes", bond.settings.mtu).set_each("MACAddress", bond.mac.as_ref());
    ini.section("Bond");
    for (parameter, value) in bond.given() {
        match parameter.kind {
            Kind::Milliseconds => ini.set(parameter.networkd, format!("{value}ms")),
            Kind::Targets => ini.set(parameter.networkd, value.replace(',', " ")),
            Kind::OneOf(_) | Kind::Number => ini.set(parameter.networkd, value),
        };
    }
    ini
}

fn route(ini: &mut Ini, route: &Route) {
    ini.section("Route").set("Destination", route.to).set("Gateway", route.via);
    if route.on_link {
        ini.set("GatewayOnLink", "yes");
    }
    ini.set_each("Metric", route.metric);
}
