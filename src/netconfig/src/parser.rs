//! Parser of a document in version 2 of netplan's format. It reads all fields, and reports all problems together.

use super::bond_parameters::{
    BondParameter, DEFAULT_MODE, MII_MILLISECONDS, PARAMETERS, ParameterType, parse_milliseconds,
};
use super::cidr::{parse_destination, parse_ip, parse_mac, parse_own_address};
use super::field_names::{
    IGNORED_TOP_FIELDS, ROUTE, SETTINGS, SUPPORTED_TOP_FIELDS, UNSUPPORTED_DEVICE_FIELDS, UNSUPPORTED_PARAMETERS,
    UNSUPPORTED_ROUTE_FIELDS,
};
use super::interface_names_and_ids::{parse_id, parse_interface_name};
use super::json_fields::{JsonField, JsonFields, NetworkReader, suggest_nearest};
use super::{BondConfig, Cidr, EthernetConfig, InterfaceSettings, NetworkConfig, NicSelector, StaticRoute, VlanConfig};
use common::diagnostic::{Diagnostic, child_path};
use serde_json::Value;
use std::collections::BTreeMap;
use std::net::IpAddr;

/// Permitted range of MTUs. IPv6 requires at least 1280 (RFC 8200): networkd raises a smaller MTU to 1280, and with
/// other network managers a smaller MTU disables IPv6.
const MTU: (u32, u32) = (1280, 65_535);
/// Maximum metric of a route. netplan 0.106 writes larger metrics as negative numbers.
const MAXIMUM_METRIC: u32 = i32::MAX as u32;

/// Values of the document with their paths.
pub(super) type LocatedValues<T> = Vec<(T, String)>;

/// Values that are compared across the whole document. They include values of devices whose other fields are invalid.
#[derive(Default)]
pub(super) struct DocumentValues {
    pub ids: LocatedValues<String>,
    /// Pairs of an interface name and the id of the device.
    pub names: LocatedValues<(String, String)>,
    pub macs: LocatedValues<String>,
    pub addresses: LocatedValues<IpAddr>,
    /// Address family (true for IPv4, false for IPv6) and metric of each default route.
    pub defaults: LocatedValues<(bool, Option<u32>)>,
    /// Pairs of a bond id and a member id.
    pub members: LocatedValues<(String, String)>,
}

#[derive(Default)]
pub(super) struct NetworkParser {
    pub reader: NetworkReader,
    pub seen: DocumentValues,
    pub network: NetworkConfig,
    /// Path of the configuration in the document: `network` in a complete netplan file, and otherwise empty.
    pub root: String,
}

impl NetworkConfig {
    /// Parses and validates a document.
    ///
    /// # Errors
    /// Returns all problems of the document, each with its path.
    pub fn parse(document: &Value) -> Result<NetworkConfig, Vec<Diagnostic>> {
        let mut reading = NetworkParser::default();
        reading.read_document(document);
        reading.check_rules();
        if reading.reader.problems.is_empty() { Ok(reading.network) } else { Err(reading.reader.problems) }
    }
}

impl NetworkParser {
    fn read_document(&mut self, document: &Value) {
        let wrapped = document.as_object().filter(|map| map.len() == 1).and_then(|map| map.get("network"));
        self.root = if wrapped.is_some() { "network".to_owned() } else { String::new() };
        let top = JsonField { place: self.root.clone(), value: wrapped.unwrap_or(document) };
        let Some(fields) = self.reader.read_fields(&top, SUPPORTED_TOP_FIELDS, IGNORED_TOP_FIELDS) else { return };
        if let Some(version) = fields.get("version")
            && self.reader.read_text(&version).is_some_and(|version| version != "2")
        {
            self.reader.report(
                &version.place,
                "only version 2 of the network configuration format is supported: set version to 2",
            );
        }
        self.read_devices(&fields, "ethernets", Self::read_ethernet);
        self.read_devices(&fields, "bonds", Self::read_bond);
        self.read_devices(&fields, "vlans", Self::read_vlan);
        if self.seen.ids.is_empty() && self.reader.problems.is_empty() {
            self.reader
                .report(&self.root, "no device is configured: add `ethernets`, or remove the network configuration");
        }
    }

    fn read_devices(&mut self, fields: &JsonFields, kind: &str, read: fn(&mut NetworkParser, &str, &JsonField)) {
        let Some(field) = fields.get(kind) else { return };
        for (id, device) in self.reader.read_entries(&field) {
            self.seen.ids.push((id.to_owned(), device.place.clone()));
            read(self, id, &device);
        }
    }

    /// Reads the fields of a device. `own` lists the fields that exist only for this type of device, in addition to
    /// [`SETTINGS`].
    fn read_device_fields<'a>(&mut self, device: &JsonField<'a>, own: &[&str]) -> Option<JsonFields<'a>> {
        self.reader.read_fields(device, &[own, &SETTINGS].concat(), UNSUPPORTED_DEVICE_FIELDS)
    }

    fn record_name(&mut self, id: &str, name: &str, place: &str) {
        self.seen.names.push(((name.to_owned(), id.to_owned()), place.to_owned()));
    }

    /// Checks that the id of a device is a valid interface name, because it becomes the name of the interface.
    fn check_id_as_name(&mut self, id: &str, device: &JsonField) {
        match parse_interface_name(id) {
            Ok(name) => self.record_name(id, &name, &device.place),
            Err(why) => self.reader.report(&device.place, why),
        }
    }

    fn read_ethernet(&mut self, id: &str, device: &JsonField) {
        let Some(fields) = self.read_device_fields(device, &["match", "set-name"]) else { return };
        let nic = fields.get("match").map(|matched| self.read_nic_selector(&matched));
        let set_name = fields.get("set-name").and_then(|field| {
            let name = self.reader.parse_scalar(&field, parse_interface_name)?;
            self.record_name(id, &name, &field.place);
            Some((name, field.place))
        });
        match (&nic, &set_name) {
            (None, Some((_, place))) => {
                self.reader.report(place, "`set-name` requires a `match` that selects the NIC");
            }
            (None, None) => self.check_id_as_name(id, device),
            (Some(_), _) => {
                if let Err(why) = self::parse_id(id) {
                    self.reader.report(&device.place, why);
                }
                if set_name.is_none() {
                    self.record_name(id, id, &device.place);
                }
            }
        }
        let settings = self.read_settings(&fields);
        let nic = nic.unwrap_or_else(|| Some(NicSelector::Name(id.to_owned())));
        let set_name = set_name.map(|(name, _)| name);
        if let Some(nic) = nic {
            self.network.ethernets.insert(id.to_owned(), EthernetConfig { nic, set_name, settings });
        }
    }

    fn read_nic_selector(&mut self, matched: &JsonField) -> Option<NicSelector> {
        let fields = self.reader.read_fields(matched, &["macaddress", "name"], &["driver"])?;
        match (fields.get("macaddress"), fields.get("name")) {
            (Some(field), None) => {
                let mac = self.reader.parse_scalar(&field, parse_mac)?;
                self.seen.macs.push((mac.clone(), field.place));
                Some(NicSelector::Mac(mac))
            }
            (None, Some(field)) => self.reader.parse_scalar(&field, parse_interface_name).map(NicSelector::Name),
            (Some(_), Some(field)) => {
                self.reader.report(&field.place, "`macaddress` already selects the NIC: remove `name`");
                None
            }
            (None, None) => {
                self.reader.report(&matched.place, "this `match` matches every NIC: add `macaddress`");
                None
            }
        }
    }

    fn read_bond(&mut self, id: &str, device: &JsonField) {
        self.check_id_as_name(id, device);
        let Some(fields) = self.read_device_fields(device, &["interfaces", "parameters", "macaddress"]) else { return };
        let members = self.reader.parse_items(fields.get("interfaces"), |text| Ok(text.to_owned()));
        if members.is_empty() {
            let message = "a bond requires interfaces: list the ethernets that are its members";
            self.reader.report(&child_path(&device.place, "interfaces"), message);
        }
        for (member, place) in &members {
            self.seen.members.push(((id.to_owned(), member.clone()), place.clone()));
        }
        let mac = fields.get("macaddress").and_then(|field| self.reader.parse_scalar(&field, parse_mac));
        let (parameters, primary) = match fields.get("parameters") {
            Some(field) => self.read_parameters(&field),
            None => (add_default_parameters(BTreeMap::new()), None),
        };
        let members = members.into_iter().map(|(member, _)| member).collect();
        let settings = self.read_settings(&fields);
        self.network.bonds.insert(id.to_owned(), BondConfig { members, mac, primary, parameters, settings });
    }

    fn read_parameters(&mut self, field: &JsonField) -> (BTreeMap<String, String>, Option<String>) {
        let names: Vec<&str> = PARAMETERS.iter().map(|parameter| parameter.netplan).chain(["primary"]).collect();
        let Some(fields) = self.reader.read_fields(field, &names, UNSUPPORTED_PARAMETERS) else {
            return Default::default();
        };
        let given = PARAMETERS.iter().filter_map(|parameter| {
            let value = self.read_parameter(&fields.get(parameter.netplan)?, parameter)?;
            Some((parameter.netplan.to_owned(), value))
        });
        let given = given.collect();
        let primary = fields.get("primary").and_then(|field| self.reader.read_text(&field));
        (add_default_parameters(given), primary)
    }

    fn read_parameter(&mut self, field: &JsonField, parameter: &BondParameter) -> Option<String> {
        match parameter.kind {
            ParameterType::OneOf(words) => self.reader.parse_scalar(field, |text| match words.contains(&text) {
                true => Ok(text.to_owned()),
                false => Err(format!(
                    "{text:?} is not a valid {parameter}{suggestion}",
                    parameter = parameter.netplan,
                    suggestion = suggest_nearest(text, words)
                )),
            }),
            ParameterType::Milliseconds => self.reader.parse_scalar(field, parse_milliseconds),
            ParameterType::Number => {
                let number = self.reader.read_number(Some(field.clone()), 0, u32::from(u16::MAX), parameter.netplan)?;
                Some(number.to_string())
            }
            ParameterType::Targets => {
                let targets = self.reader.parse_items(Some(field.clone()), |text| match parse_ip(text)? {
                    IpAddr::V4(address) => Ok(address.to_string()),
                    IpAddr::V6(_) => Err(format!("{text:?} is not an IPv4 address, which ARP requires")),
                });
                let targets: Vec<String> = targets.into_iter().map(|(target, _)| target).collect();
                Some(targets.join(",")).filter(|targets| !targets.is_empty())
            }
        }
    }

    fn read_vlan(&mut self, id: &str, device: &JsonField) {
        self.check_id_as_name(id, device);
        let Some(fields) = self.read_device_fields(device, &["id", "link"]) else { return };
        let number = self.reader.read_number(fields.get("id"), 1, 4094, "the id of a VLAN");
        let link = fields.get("link").and_then(|field| self.reader.read_text(&field));
        for (name, what) in [("id", "a number from 1 to 4094"), ("link", "an underlying device")] {
            if fields.get(name).is_none() {
                self.reader.report(&device.place, format!("{name} is missing: a VLAN requires {what}"));
            }
        }
        let settings = self.read_settings(&fields);
        if let (Some(number), Some(link)) = (number, link) {
            let vlan = VlanConfig { id: number as u16, link, settings };
            self.network.vlans.insert(id.to_owned(), vlan);
        }
    }

    fn read_settings(&mut self, fields: &JsonFields) -> InterfaceSettings {
        let flag = |reader: &mut NetworkReader, name: &str| reader.read_flag(fields.get(name));
        let dhcp4 = flag(&mut self.reader, "dhcp4").unwrap_or_default();
        let dhcp6 = flag(&mut self.reader, "dhcp6").unwrap_or_default();
        let accept_ra = flag(&mut self.reader, "accept-ra");
        let optional = flag(&mut self.reader, "optional").unwrap_or_default();
        let before = self.reader.problems.len();
        let addresses = self.reader.parse_items(fields.get("addresses"), parse_own_address);
        let all_read = self.reader.problems.len() == before;
        let places = addresses.iter().map(|(cidr, place)| (cidr.address, place.clone()));
        self.seen.addresses.extend(places);
        let addresses = addresses.into_iter().map(|(cidr, _)| cidr).collect();
        let (nameservers, search) = self.read_name_servers(fields);
        let mut settings = InterfaceSettings {
            dhcp4,
            dhcp6,
            accept_ra,
            addresses,
            nameservers,
            search,
            optional,
            ..InterfaceSettings::default()
        };
        self.read_routes(fields, &mut settings, all_read);
        self.check_name_servers(fields, &settings, all_read);
        settings.mtu = self.reader.read_number(fields.get("mtu"), MTU.0, MTU.1, "the MTU");
        settings
    }

    fn read_name_servers(&mut self, fields: &JsonFields) -> (Vec<IpAddr>, Vec<String>) {
        let servers =
            fields.get("nameservers").and_then(|field| self.reader.read_fields(&field, &["addresses", "search"], &[]));
        let Some(servers) = servers else { return Default::default() };
        let addresses = self.reader.parse_items(servers.get("addresses"), parse_ip);
        let search = self.reader.parse_items(servers.get("search"), parse_domain);
        (strip_locations(addresses), strip_locations(search))
    }

    /// Reports a name server if the device has no address of the same address family. Network managers with separate
    /// settings for each address family do not support such a name server.
    fn check_name_servers(&mut self, fields: &JsonFields, settings: &InterfaceSettings, all_read: bool) {
        for is_v4 in [true, false] {
            let server = settings.nameservers.iter().find(|server| server.is_ipv4() == is_v4);
            if let Some(server) = server
                && all_read
                && !settings.has_family(is_v4)
                && let Some(field) = fields.get("nameservers")
            {
                let family = family_name(is_v4);
                let message = format!(
                    "the name server {server} cannot be reached from this device, which does not have an {family} address: move the name server to another device"
                );
                self.reader.report(&child_path(&field.place, "addresses"), message);
            }
        }
    }

    fn read_routes(&mut self, fields: &JsonFields, settings: &mut InterfaceSettings, all_read: bool) {
        let mut routes = Vec::new();
        for (name, is_v4) in [("gateway4", true), ("gateway6", false)] {
            let Some(field) = fields.get(name) else { continue };
            let gateway = self.reader.parse_scalar(&field, |text| match parse_ip(text)? {
                via if via.is_ipv4() == is_v4 => Ok(via),
                via => Err(format!("{via} is not an {family} address", family = family_name(is_v4))),
            });
            let route =
                gateway.map(|via| StaticRoute { to: Cidr::whole_family(is_v4), via, metric: None, on_link: false });
            routes.extend(route.map(|route| (route, field.place)));
        }
        for item in fields.get("routes").map(|field| self.reader.read_items(&field)).unwrap_or_default() {
            routes.extend(self.read_route(&item).map(|route| (route, item.place)));
        }
        for (index, (route, place)) in routes.iter().enumerate() {
            if all_read && let Err(why) = check_gateway(route, settings) {
                self.reader.report(place, why);
            }
            let same = |other: &StaticRoute| (other.to, other.metric) == (route.to, route.metric);
            if route.to.is_default() {
                self.seen.defaults.push(((route.to.is_v4(), route.metric), place.clone()));
            } else if let Some((_, first)) = routes[..index].iter().find(|(other, _)| same(other)) {
                self.reader.report(
                    place,
                    format!("the route to {route} is specified twice, first at {first}", route = route.to),
                );
            }
        }
        settings.routes = strip_locations(routes);
    }

    fn read_route(&mut self, item: &JsonField) -> Option<StaticRoute> {
        let fields = self.reader.read_fields(item, ROUTE, UNSUPPORTED_ROUTE_FIELDS)?;
        for name in ["to", "via"] {
            if fields.get(name).is_none() {
                let message = format!("{name} is missing: a route requires a destination and a gateway");
                self.reader.report(&item.place, message);
            }
        }
        let metric = self.reader.read_number(fields.get("metric"), 0, MAXIMUM_METRIC, "a metric");
        let on_link = self.reader.read_flag(fields.get("on-link")).unwrap_or_default();
        let via = fields.get("via").and_then(|field| self.reader.parse_scalar(&field, parse_ip))?;
        let to = fields
            .get("to")
            .and_then(|field| self.reader.parse_scalar(&field, |text| parse_destination(text, &via)))?;
        Some(StaticRoute { to, via, metric, on_link })
    }
}

fn strip_locations<T>(placed: LocatedValues<T>) -> Vec<T> {
    placed.into_iter().map(|(value, _)| value).collect()
}

pub(super) fn family_name(is_v4: bool) -> &'static str {
    if is_v4 { "IPv4" } else { "IPv6" }
}

/// Checks that the gateway of a route is reachable on the link. Any gateway is accepted if the device obtains networks
/// from DHCP or router advertisements, because these networks are unknown here.
fn check_gateway(route: &StaticRoute, settings: &InterfaceSettings) -> Result<(), String> {
    let via = route.via;
    if settings.addresses.iter().any(|own| own.address == via) {
        return Err(format!("the gateway {via} is this machine's own address"));
    }
    let is_link_local = matches!(via, IpAddr::V6(via) if via.is_unicast_link_local());
    let dynamic = if via.is_ipv4() { settings.dhcp4 } else { settings.dhcp6 || settings.accept_ra == Some(true) };
    if route.on_link || is_link_local || dynamic || settings.addresses.iter().any(|own| own.contains(&via)) {
        return Ok(());
    }
    let own: Vec<String> = settings.addresses.iter().map(Cidr::to_string).collect();
    let own = if own.is_empty() { "no addresses".to_owned() } else { own.join(", ") };
    Err(format!(
        "the gateway {via} is not in any network of this device ({own}); set on-link: true if the gateway is nevertheless reachable on the link"
    ))
}

/// Adds the default values of parameters that each bond must have.
fn add_default_parameters(mut parameters: BTreeMap<String, String>) -> BTreeMap<String, String> {
    parameters.entry("mode".to_owned()).or_insert_with(|| DEFAULT_MODE.to_owned());
    // The bond needs carrier monitoring if it has no ARP monitoring, or if an interval of 0 disables ARP monitoring.
    if parameters.get("arp-interval").is_none_or(|interval| interval == "0") {
        parameters.entry("mii-monitor-interval".to_owned()).or_insert_with(|| MII_MILLISECONDS.to_owned());
    }
    parameters
}

fn parse_domain(text: &str) -> Result<String, String> {
    let is_label = |label: &str| {
        !label.is_empty()
            && label.len() <= 63
            && label.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_".contains(&byte))
    };
    match text.len() <= 253 && text.strip_suffix('.').unwrap_or(text).split('.').all(is_label) {
        true => Ok(text.to_owned()),
        false => Err(format!("{text:?} is not a domain such as example.org")),
    }
}
