//! Configuration for NetworkManager: one keyfile per device. NetworkManager ignores keyfiles that other users can read.

use super::bond_parameters::ParameterType;
use super::ini_writer::IniFile;
use super::{BondConfig, Cidr, InterfaceSettings, NetworkConfig, NicSelector, RenderedFile, StaticRoute};
use model::inventory::Nic;
use sha2::{Digest, Sha256};
use uuid::Uuid;

const MODE: u32 = 0o600;

impl NetworkConfig {
    pub(super) fn render_network_manager(&self, nics: &[Nic]) -> Vec<RenderedFile> {
        let mut files = Vec::new();
        for (id, ethernet) in &self.ethernets {
            let name =
                ethernet.set_name.clone().or_else(|| self.is_bond_primary(id).then(|| self.assigned_name(id, nics)));
            let mut ini = start_connection(id, "ethernet");
            match (&ethernet.nic, &name) {
                (_, Some(name)) | (NicSelector::Name(name), None) => ini.set("interface-name", name),
                (NicSelector::Mac(_), None) => &mut ini,
            };
            if let Some(bond) = self.find_bond(id) {
                ini.set("master", bond).set("slave-type", "bond");
            }
            ini.section("ethernet");
            if let NicSelector::Mac(mac) = &ethernet.nic {
                ini.set("mac-address", mac.to_uppercase());
            }
            ini.set_each("mtu", ethernet.settings.mtu);
            if self.find_bond(id).is_none() {
                write_ip(&mut ini, &ethernet.settings);
            }
            // NetworkManager does not rename NICs. If the document or a bond requires a name for a NIC, a `.link` file
            // for udev is written.
            if ethernet.set_name.is_some() || matches!(ethernet.nic, NicSelector::Mac(_)) {
                files.extend(name.and_then(|name| self.render_link_file(id, &name)));
            }
            files.push(ini.to_file(keyfile_path(id), MODE));
        }
        for (id, bond) in &self.bonds {
            files.push(self.render_bond_keyfile(id, bond, nics));
        }
        for (id, vlan) in &self.vlans {
            let mut ini = start_connection(id, "vlan");
            ini.set("interface-name", id);
            ini.section("ethernet").set_each("mtu", vlan.settings.mtu);
            // The parent is identified by its UUID, because a NIC that is selected by its MAC address may have any
            // name.
            ini.section("vlan").set("id", vlan.id).set("parent", connection_uuid(&vlan.link));
            write_ip(&mut ini, &vlan.settings);
            files.push(ini.to_file(keyfile_path(id), MODE));
        }
        files
    }

    fn is_bond_primary(&self, id: &str) -> bool {
        self.bonds.values().any(|bond| bond.primary.as_deref() == Some(id))
    }

    fn render_bond_keyfile(&self, id: &str, bond: &BondConfig, nics: &[Nic]) -> RenderedFile {
        let mut ini = start_connection(id, "bond");
        ini.set("interface-name", id);
        ini.section("ethernet");
        ini.set_each("cloned-mac-address", bond.mac.as_ref().map(|mac| mac.to_uppercase()));
        ini.set_each("mtu", bond.settings.mtu);
        ini.section("bond");
        for (parameter, value) in bond.set_parameters() {
            // If ARP monitoring is configured, an interval of 0 is omitted. It is the default, and an explicit 0 would
            // conflict with arp_interval.
            let is_off = matches!(parameter.kind, ParameterType::Milliseconds) && value == "0";
            if !is_off || !bond.parameters.contains_key("arp-interval") {
                ini.set(parameter.kernel, value);
            }
        }
        ini.set_each("primary", bond.primary.as_ref().map(|primary| self.assigned_name(primary, nics)));
        write_ip(&mut ini, &bond.settings);
        ini.to_file(keyfile_path(id), MODE)
    }
}

fn keyfile_path(id: &str) -> String {
    format!("/etc/NetworkManager/system-connections/drophammer-{id}.nmconnection")
}

fn start_connection(id: &str, kind: &str) -> IniFile {
    let mut ini = IniFile::default();
    ini.section("connection").set("id", format!("drophammer-{id}")).set("uuid", connection_uuid(id)).set("type", kind);
    ini
}

/// Returns the UUID of the connection. It is derived from the id, so that NetworkManager recognizes the connection in a
/// rewritten keyfile.
fn connection_uuid(id: &str) -> Uuid {
    let digest = Sha256::digest(format!("drophammer network {id}"));
    let mut bytes = [0; 16];
    bytes.copy_from_slice(&digest[..16]);
    uuid::Builder::from_random_bytes(bytes).into_uuid()
}

fn write_ip(ini: &mut IniFile, settings: &InterfaceSettings) {
    write_family(ini.section("ipv4"), settings, true);
    write_family(ini.section("ipv6"), settings, false);
}

fn write_family(ini: &mut IniFile, settings: &InterfaceSettings, is_v4: bool) {
    let addresses: Vec<&Cidr> = settings.addresses.iter().filter(|address| address.is_v4() == is_v4).collect();
    let routes: Vec<&StaticRoute> = settings.routes.iter().filter(|route| route.to.is_v4() == is_v4).collect();
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
        false => ipv6_method(settings, !addresses.is_empty(), !routes.is_empty() || !servers.is_empty()),
    };
    ini.set("method", method);
    if !is_v4 && method != "ignore" {
        // Privacy extensions are disabled, because servers need permanent addresses. Without this key, the setting of
        // the image would apply.
        ini.set("ip6-privacy", 0);
    }
    for (index, address) in addresses.iter().enumerate() {
        ini.set(format!("address{}", index + 1), address);
    }
    if !servers.is_empty() {
        ini.set("dns", servers.concat());
    }
    // Search domains are written for only one address family, which must be enabled on the device.
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

/// Returns NetworkManager's `method` for IPv6. Without IPv6 settings in the document, the method is `ignore`, which
/// leaves IPv6 to the kernel.
fn ipv6_method(settings: &InterfaceSettings, has_addresses: bool, has_more: bool) -> &'static str {
    match (settings.dhcp6, settings.accept_ra) {
        (true, _) | (false, Some(true)) => "auto",
        (false, _) if has_addresses => "manual",
        (false, Some(false)) => "link-local",
        (false, None) if has_more => "auto",
        (false, None) => "ignore",
    }
}
