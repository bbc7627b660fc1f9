//! Parser for the document (netplan version 2). It reads every field and reports all problems at once.

use super::address::{destination, ip, mac, own};
use super::bonding::{DEFAULT_MODE, Kind, MII_MILLISECONDS, PARAMETERS, Parameter};
use super::fields::{Field, Fields, Reader, child, nearest};
use super::known::{PARAMETERS_UNREAD, ROUTE, ROUTE_UNREAD, SETTINGS, TOP, TOP_UNREAD, UNREAD};
use super::names::{id, interface};
use super::{Bond, Card, Cidr, Ethernet, Network, Route, Settings, Vlan};
use crate::order::Gather;
use crate::problem::Problem;
use serde_json::Value;
use std::collections::BTreeMap;
use std::net::IpAddr;

const MTU: (u32, u32) = (68, 65_535);
/// Minimum MTU of a link with IPv6 (RFC 8200).
const MTU_OF_IPV6: u32 = 1280;

/// Values of the document, each with its path.
pub(super) type Placed<T> = Vec<(T, String)>;

/// Values that the rules for the whole document compare. They include values of devices that could not be read completely.
#[derive(Default)]
pub(super) struct Seen {
    pub ids: Placed<String>,
    /// Interface name and id of the device.
    pub names: Placed<(String, String)>,
    pub macs: Placed<String>,
    pub addresses: Placed<IpAddr>,
    /// Address family (whether IPv4) and metric of a default route.
    pub defaults: Placed<(bool, Option<u32>)>,
    /// Bond and member.
    pub members: Placed<(String, String)>,
}

#[derive(Default)]
pub(super) struct Reading {
    pub reader: Reader,
    pub seen: Seen,
    pub network: Network,
    /// Path of the configuration in the document: a complete netplan file wraps it in `network`.
    pub root: String,
}

impl Network {
    /// Parses and validates a document.
    ///
    /// # Errors
    /// All problems of the document, each with its path.
    pub fn read(document: &Value) -> Result<Network, Vec<Problem>> {
        let mut reading = Reading::default();
        reading.document(document);
        reading.judge();
        if reading.reader.problems.is_empty() { Ok(reading.network) } else { Err(reading.reader.problems) }
    }
}

impl Reading {
    fn document(&mut self, document: &Value) {
        let wrapped = document.as_object().filter(|map| map.len() == 1).and_then(|map| map.get("network"));
        self.root = if wrapped.is_some() { "network".to_owned() } else { String::new() };
        let top = Field { place: self.root.clone(), value: wrapped.unwrap_or(document) };
        let Some(fields) = self.reader.fields(&top, TOP, TOP_UNREAD) else { return };
        if let Some(version) = fields.get("version")
            && self.reader.text(&version).is_some_and(|version| version != "2")
        {
            self.reader.problem(&version.place, "only version 2 is supported, the format of netplan and cloud-init");
        }
        self.each(&fields, "ethernets", Self::ethernet);
        self.each(&fields, "bonds", Self::bond);
        self.each(&fields, "vlans", Self::vlan);
        if self.seen.ids.is_empty() && self.reader.problems.is_empty() {
            self.reader
                .problem(&self.root, "no device is configured: add ethernets, or remove the network configuration");
        }
    }

    fn each(&mut self, fields: &Fields, kind: &str, read: fn(&mut Reading, &str, &Field)) {
        let Some(field) = fields.get(kind) else { return };
        for (id, device) in self.reader.entries(&field) {
            self.seen.ids.push((id.to_owned(), device.place.clone()));
            read(self, id, &device);
        }
    }

    /// Reads the fields of a device: those of its type, and those that all types have.
    fn fields<'a>(&mut self, device: &Field<'a>, own: &[&str]) -> Option<Fields<'a>> {
        self.reader.fields(device, &[own, &SETTINGS].concat(), UNREAD)
    }

    fn name(&mut self, id: &str, name: &str, place: &str) {
        self.seen.names.push(((name.to_owned(), id.to_owned()), place.to_owned()));
    }

    /// Checks that the id is a valid interface name, because the id names the interface.
    fn id_is_name(&mut self, id: &str, device: &Field) {
        match interface(id) {
            Ok(name) => self.name(id, &name, &device.place),
            Err(why) => self.reader.problem(&device.place, why),
        }
    }

    fn ethernet(&mut self, id: &str, device: &Field) {
        let Some(fields) = self.fields(device, &["match", "set-name"]) else { return };
        let card = fields.get("match").map(|matched| self.card(&matched));
        let set_name = fields.get("set-name").and_then(|field| {
            let name = self.reader.parsed(&field, interface)?;
            self.name(id, &name, &field.place);
            Some((name, field.place))
        });
        match (&card, &set_name) {
            (None, Some((_, place))) => {
                self.reader.problem(place, "set-name requires a match that selects the NIC");
            }
            (None, None) => self.id_is_name(id, device),
            (Some(_), _) => {
                if let Err(why) = self::id(id) {
                    self.reader.problem(&device.place, why);
                }
                if set_name.is_none() {
                    self.name(id, id, &device.place);
                }
            }
        }
        let settings = self.settings(&fields);
        let card = card.unwrap_or_else(|| Some(Card::Name(id.to_owned())));
        let set_name = set_name.map(|(name, _)| name);
        if let Some(card) = card {
            self.network.ethernets.insert(id.to_owned(), Ethernet { card, set_name, settings });
        }
    }

    fn card(&mut self, matched: &Field) -> Option<Card> {
        let fields = self.reader.fields(matched, &["macaddress", "name"], &["driver"])?;
        match (fields.get("macaddress"), fields.get("name")) {
            (Some(field), None) => {
                let mac = self.reader.parsed(&field, mac)?;
                self.seen.macs.push((mac.clone(), field.place));
                Some(Card::Mac(mac))
            }
            (None, Some(field)) => self.reader.parsed(&field, interface).map(Card::Name),
            (Some(_), Some(field)) => {
                self.reader.problem(&field.place, "macaddress already selects the NIC: remove name");
                None
            }
            (None, None) => {
                self.reader.problem(&matched.place, "this matches every NIC: add macaddress");
                None
            }
        }
    }

    fn bond(&mut self, id: &str, device: &Field) {
        self.id_is_name(id, device);
        let Some(fields) = self.fields(device, &["interfaces", "parameters", "macaddress"]) else { return };
        let members = self.reader.all_parsed(fields.get("interfaces"), |text| Ok(text.to_owned()));
        if members.is_empty() {
            let message = "a bond without interfaces does not work: list the ethernets that are its members";
            self.reader.problem(&child(&device.place, "interfaces"), message);
        }
        for (member, place) in &members {
            self.seen.members.push(((id.to_owned(), member.clone()), place.clone()));
        }
        let mac = fields.get("macaddress").and_then(|field| self.reader.parsed(&field, mac));
        let (parameters, primary) = match fields.get("parameters") {
            Some(field) => self.parameters(&field),
            None => (with_defaults(BTreeMap::new()), None),
        };
        let members = members.into_iter().map(|(member, _)| member).collect();
        let settings = self.settings(&fields);
        self.network.bonds.insert(id.to_owned(), Bond { members, mac, primary, parameters, settings });
    }

    fn parameters(&mut self, field: &Field) -> (BTreeMap<String, String>, Option<String>) {
        let names: Vec<&str> = PARAMETERS.iter().map(|parameter| parameter.netplan).chain(["primary"]).collect();
        let Some(fields) = self.reader.fields(field, &names, PARAMETERS_UNREAD) else { return Default::default() };
        let given = PARAMETERS.iter().filter_map(|parameter| {
            let value = self.parameter(&fields.get(parameter.netplan)?, parameter)?;
            Some((parameter.netplan.to_owned(), value))
        });
        let given = given.gather();
        let primary = fields.get("primary").and_then(|field| self.reader.text(&field));
        (with_defaults(given), primary)
    }

    fn parameter(&mut self, field: &Field, parameter: &Parameter) -> Option<String> {
        match parameter.kind {
            Kind::OneOf(words) => self.reader.parsed(field, |text| match words.contains(&text) {
                true => Ok(text.to_owned()),
                false => Err(format!("{text:?} is not a valid {}{}", parameter.netplan, nearest(text, words))),
            }),
            Kind::Milliseconds => self.reader.parsed(field, milliseconds),
            Kind::Number => {
                let number = self.reader.number(Some(field.clone()), 0, u32::from(u16::MAX), parameter.netplan)?;
                Some(number.to_string())
            }
            Kind::Targets => {
                let targets = self.reader.all_parsed(Some(field.clone()), |text| match ip(text)? {
                    IpAddr::V4(address) => Ok(address.to_string()),
                    IpAddr::V6(_) => Err(format!("{text:?} is not an IPv4 address, which ARP requires")),
                });
                let targets: Vec<String> = targets.into_iter().map(|(target, _)| target).collect();
                Some(targets.join(",")).filter(|targets| !targets.is_empty())
            }
        }
    }

    fn vlan(&mut self, id: &str, device: &Field) {
        self.id_is_name(id, device);
        let Some(fields) = self.fields(device, &["id", "link"]) else { return };
        let number = self.reader.number(fields.get("id"), 1, 4094, "the id of a VLAN");
        let link = fields.get("link").and_then(|field| self.reader.text(&field));
        for (name, what) in [("id", "a number from 1 to 4094"), ("link", "an underlying device")] {
            if fields.get(name).is_none() {
                self.reader.problem(&device.place, format!("{name} is missing: a VLAN requires {what}"));
            }
        }
        let settings = self.settings(&fields);
        if let (Some(number), Some(link)) = (number, link) {
            let vlan = Vlan { id: number as u16, link, settings };
            self.network.vlans.insert(id.to_owned(), vlan);
        }
    }

    fn settings(&mut self, fields: &Fields) -> Settings {
        let flag = |reader: &mut Reader, name: &str| reader.flag(fields.get(name));
        let dhcp4 = flag(&mut self.reader, "dhcp4").unwrap_or_default();
        let dhcp6 = flag(&mut self.reader, "dhcp6").unwrap_or_default();
        let accept_ra = flag(&mut self.reader, "accept-ra");
        let optional = flag(&mut self.reader, "optional").unwrap_or_default();
        let before = self.reader.problems.len();
        let addresses = self.reader.all_parsed(fields.get("addresses"), own);
        let all_read = self.reader.problems.len() == before;
        let places = addresses.iter().map(|(cidr, place)| (cidr.address, place.clone()));
        self.seen.addresses.extend(places);
        let addresses = addresses.into_iter().map(|(cidr, _)| cidr).collect();
        let (nameservers, search) = self.names_of_servers(fields);
        let mut settings =
            Settings { dhcp4, dhcp6, accept_ra, addresses, nameservers, search, optional, ..Settings::default() };
        self.routes(fields, &mut settings, all_read);
        self.family_of_servers(fields, &settings, all_read);
        self.mtu(fields, &mut settings);
        settings
    }

    fn mtu(&mut self, fields: &Fields, settings: &mut Settings) {
        let Some(field) = fields.get("mtu") else { return };
        settings.mtu = self.reader.number(Some(field.clone()), MTU.0, MTU.1, "the MTU");
        let has_v6 = settings.dhcp6
            || settings.accept_ra == Some(true)
            || settings.addresses.iter().any(|address| !address.is_v4());
        if has_v6 && settings.mtu.is_some_and(|mtu| mtu < MTU_OF_IPV6) {
            self.reader.problem(&field.place, format!("IPv6 needs an MTU of at least {MTU_OF_IPV6}"));
        }
    }

    fn names_of_servers(&mut self, fields: &Fields) -> (Vec<IpAddr>, Vec<String>) {
        let servers =
            fields.get("nameservers").and_then(|field| self.reader.fields(&field, &["addresses", "search"], &[]));
        let Some(servers) = servers else { return Default::default() };
        let addresses = self.reader.all_parsed(servers.get("addresses"), ip);
        let search = self.reader.all_parsed(servers.get("search"), domain);
        (firsts(addresses), firsts(search))
    }

    /// Reports a name server that the device itself cannot reach: network managers with settings per address family have no setting for it.
    fn family_of_servers(&mut self, fields: &Fields, settings: &Settings, all_read: bool) {
        for is_v4 in [true, false] {
            let server = settings.nameservers.iter().find(|server| server.is_ipv4() == is_v4);
            if let Some(server) = server
                && all_read
                && !settings.has_family(is_v4)
                && let Some(field) = fields.get("nameservers")
            {
                let family = family(is_v4);
                let message = format!(
                    "{server} cannot be reached from this device, which has no {family} address: add it to another device"
                );
                self.reader.problem(&child(&field.place, "addresses"), message);
            }
        }
    }

    fn routes(&mut self, fields: &Fields, settings: &mut Settings, all_read: bool) {
        let mut routes = Vec::new();
        for (name, is_v4) in [("gateway4", true), ("gateway6", false)] {
            let Some(field) = fields.get(name) else { continue };
            let gateway = self.reader.parsed(&field, |text| match ip(text)? {
                via if via.is_ipv4() == is_v4 => Ok(via),
                via => Err(format!("{via} is not an {} address", family(is_v4))),
            });
            let route = gateway.map(|via| Route { to: Cidr::all(is_v4), via, metric: None, on_link: false });
            routes.extend(route.map(|route| (route, field.place)));
        }
        for item in fields.get("routes").map(|field| self.reader.items(&field)).unwrap_or_default() {
            routes.extend(self.route(&item).map(|route| (route, item.place)));
        }
        for (index, (route, place)) in routes.iter().enumerate() {
            if all_read && let Err(why) = reachable(route, settings) {
                self.reader.problem(place, why);
            }
            let same = |other: &Route| (other.to, other.metric) == (route.to, route.metric);
            if route.to.is_default() {
                self.seen.defaults.push(((route.to.is_v4(), route.metric), place.clone()));
            } else if let Some((_, first)) = routes[..index].iter().find(|(other, _)| same(other)) {
                self.reader.problem(place, format!("the route to {} is specified twice, first at {first}", route.to));
            }
        }
        settings.routes = firsts(routes);
    }

    fn route(&mut self, item: &Field) -> Option<Route> {
        let fields = self.reader.fields(item, ROUTE, ROUTE_UNREAD)?;
        for name in ["to", "via"] {
            if fields.get(name).is_none() {
                let message = format!("{name} is missing: a route requires a destination and a gateway");
                self.reader.problem(&item.place, message);
            }
        }
        let metric = self.reader.number(fields.get("metric"), 0, u32::MAX, "a metric");
        let on_link = self.reader.flag(fields.get("on-link")).unwrap_or_default();
        let via = fields.get("via").and_then(|field| self.reader.parsed(&field, ip))?;
        let to = fields.get("to").and_then(|field| self.reader.parsed(&field, |text| destination(text, &via)))?;
        Some(Route { to, via, metric, on_link })
    }
}

fn firsts<T>(placed: Placed<T>) -> Vec<T> {
    placed.into_iter().map(|(value, _)| value).collect()
}

pub(super) fn family(is_v4: bool) -> &'static str {
    if is_v4 { "IPv4" } else { "IPv6" }
}

/// Checks that the gateway is directly reachable. Networks that DHCP or router advertisements configure are not known here.
fn reachable(route: &Route, settings: &Settings) -> Result<(), String> {
    let via = route.via;
    if settings.addresses.iter().any(|own| own.address == via) {
        return Err(format!("the gateway {via} is this machine's own address"));
    }
    let is_link_local = matches!(via, IpAddr::V6(via) if via.is_unicast_link_local());
    let dynamic = if via.is_ipv4() { settings.dhcp4 } else { settings.dhcp6 || settings.accept_ra == Some(true) };
    if route.on_link || is_link_local || dynamic || settings.addresses.iter().any(|own| own.holds(&via)) {
        return Ok(());
    }
    let own: Vec<String> = settings.addresses.iter().map(Cidr::to_string).collect();
    let own = if own.is_empty() { "no addresses".to_owned() } else { own.join(", ") };
    Err(format!(
        "the gateway {via} is not in any network of this device ({own}); set on-link: true if it is reachable on the link nevertheless"
    ))
}

/// Adds the parameters that every bond has.
fn with_defaults(mut parameters: BTreeMap<String, String>) -> BTreeMap<String, String> {
    parameters.entry("mode".to_owned()).or_insert_with(|| DEFAULT_MODE.to_owned());
    if !parameters.contains_key("arp-interval") {
        parameters.entry("mii-monitor-interval".to_owned()).or_insert_with(|| MII_MILLISECONDS.to_owned());
    }
    parameters
}

/// Parses a time such as `100`, `100ms` or `1s` and returns it in milliseconds.
fn milliseconds(text: &str) -> Result<String, String> {
    let (number, factor) = match (text.strip_suffix("ms"), text.strip_suffix('s')) {
        (Some(number), _) => (number, 1),
        (None, Some(number)) => (number, 1000),
        (None, None) => (text, 1),
    };
    let is_number = !number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit());
    let time = number.trim().parse::<u32>().ok().filter(|_| is_number).and_then(|number| number.checked_mul(factor));
    let time = time.filter(|time| *time <= i32::MAX as u32);
    time.map(|time| time.to_string())
        .ok_or_else(|| format!("{text:?} is not a time such as 100 (milliseconds), 100ms or 1s"))
}

fn domain(text: &str) -> Result<String, String> {
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
