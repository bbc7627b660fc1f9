//! Configuration for systemd-networkd: a `.network` file for each device, a `.netdev` file for each virtual device, and
//! a `.link` file for each renamed NIC.

use super::bond_parameters::ParameterType;
use super::ini_writer::IniFile;
use super::{BondConfig, DHCP_METRIC, InterfaceSettings, NetworkConfig, NicSelector, RenderedFile, StaticRoute};

/// Mode of the files, which the unprivileged networkd must be able to read.
const MODE: u32 = 0o644;

impl NetworkConfig {
    pub(super) fn render_networkd(&self) -> Vec<RenderedFile> {
        let mut files = Vec::new();
        for (id, ethernet) in &self.ethernets {
            files.extend(ethernet.set_name.as_ref().and_then(|name| self.render_link_file(id, name)));
            let mut ini = IniFile::default();
            ini.section("Match");
            match (&ethernet.nic, &ethernet.set_name) {
                (NicSelector::Mac(mac), _) => ini.set("PermanentMACAddress", mac),
                (NicSelector::Name(name), set_name) => ini.set("Name", set_name.as_ref().unwrap_or(name)),
            };
            self.write_network_unit(&mut ini, id, &ethernet.settings);
            files.push(ini.to_file(unit_path(id, "network"), MODE));
        }
        for (id, bond) in &self.bonds {
            files.push(bond_netdev(id, bond).to_file(unit_path(id, "netdev"), MODE));
            files.push(self.render_virtual_network(id, &bond.settings));
        }
        for (id, vlan) in &self.vlans {
            let mut ini = IniFile::default();
            ini.section("NetDev").set("Name", id).set("Kind", "vlan").set_each("MTUBytes", vlan.settings.mtu);
            ini.section("VLAN").set("Id", vlan.id);
            files.push(ini.to_file(unit_path(id, "netdev"), MODE));
            files.push(self.render_virtual_network(id, &vlan.settings));
        }
        files
    }

    fn render_virtual_network(&self, id: &str, settings: &InterfaceSettings) -> RenderedFile {
        let mut ini = IniFile::default();
        ini.section("Match").set("Name", id);
        self.write_network_unit(&mut ini, id, settings);
        // The name of this unit sorts before the names of NIC units, and networkd applies the first unit that
        // matches. Otherwise, systemd before 245 would apply the unit of a NIC to a virtual device with the same MAC.
        ini.to_file(format!("/etc/systemd/network/05-drophammer-{id}.network"), MODE)
    }

    /// Writes all sections of a `.network` file except `[Match]`.
    fn write_network_unit(&self, ini: &mut IniFile, id: &str, settings: &InterfaceSettings) {
        ini.section("Link").set_each("MTUBytes", settings.mtu);
        let bond = self.find_bond(id);
        // The boot does not wait for the members of a bond, because it waits for the bond itself.
        if settings.optional || bond.is_some() {
            ini.set("RequiredForOnline", "no");
        }
        ini.section("Network");
        if let Some(bond) = bond {
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
        ini.set_each("IPv6AcceptRA", settings.accept_ra.map(yes_or_no));
        ini.set_each("Address", &settings.addresses).set_each("DNS", &settings.nameservers);
        if !settings.search.is_empty() {
            ini.set("Domains", settings.search.join(" "));
        }
        ini.set_each("VLAN", self.vlans_on_device(id));
        if !self.ethernets.contains_key(id) {
            ini.set("ConfigureWithoutCarrier", "yes");
        }
        if dhcp.is_some() {
            // netplan writes the same metric to the same section. Every version of systemd reads this section, and
            // applies the metric also to routes from router advertisements.
            ini.section("DHCP").set("RouteMetric", DHCP_METRIC);
            if settings.dhcp4 {
                // The ramdisk sends the same client identifier, so a DHCP server that identifies clients by option 61
                // assigns the same address to the ramdisk and to the installed system.
                ini.set("ClientIdentifier", "mac");
            }
            if settings.mtu.is_none() {
                ini.set("UseMTU", "yes");
            }
        }
        settings.routes.iter().for_each(|one| write_route(ini, one));
    }
}

fn unit_path(id: &str, ending: &str) -> String {
    format!("/etc/systemd/network/10-drophammer-{id}.{ending}")
}

fn yes_or_no(flag: bool) -> &'static str {
    if flag { "yes" } else { "no" }
}

fn bond_netdev(id: &str, bond: &BondConfig) -> IniFile {
    let mut ini = IniFile::default();
    ini.section("NetDev").set("Name", id).set("Kind", "bond");
    ini.set_each("MTUBytes", bond.settings.mtu).set_each("MACAddress", bond.mac.as_ref());
    ini.section("Bond");
    for (parameter, value) in bond.set_parameters() {
        match parameter.kind {
            ParameterType::Milliseconds => ini.set(parameter.networkd, format!("{value}ms")),
            ParameterType::Targets => ini.set(parameter.networkd, value.replace(',', " ")),
            ParameterType::OneOf(_) | ParameterType::Number => ini.set(parameter.networkd, value),
        };
    }
    ini
}

fn write_route(ini: &mut IniFile, route: &StaticRoute) {
    ini.section("Route").set("Destination", route.to).set("Gateway", route.via);
    if route.on_link {
        ini.set("GatewayOnLink", "yes");
    }
    ini.set_each("Metric", route.metric);
}
