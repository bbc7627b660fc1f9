//! Rules for the whole configuration: names and addresses are unique, links refer to existing devices, and bonds are
//! valid.

use super::bond_parameters::{BondParameter, MODES_WITH_PRIMARY};
use super::parser::{LocatedValues, NetworkParser, family_name};
use super::{BondConfig, InterfaceSettings, VlanConfig};
use common::diagnostic::{Diagnostic, child_path};

/// Default MTU of Ethernet.
const DEFAULT_MTU: u32 = 1500;

impl NetworkParser {
    pub(super) fn check_rules(&mut self) {
        let mut found = Vec::new();
        self.check_duplicates(&mut found);
        self.check_members(&mut found);
        self.check_dhcp6(&mut found);
        for (id, bond) in &self.network.bonds {
            check_bond(bond, &self.device_path("bonds", id), &mut found);
        }
        for (id, vlan) in &self.network.vlans {
            self.check_vlan(id, vlan, &mut found);
        }
        self.reader.problems.extend(found);
    }

    fn device_path(&self, kind: &str, id: &str) -> String {
        child_path(&child_path(&self.root, kind), id)
    }

    fn check_duplicates(&self, found: &mut Vec<Diagnostic>) {
        let seen = &self.seen;
        report_duplicates(&seen.ids, |one, other| one == other, found, |id| format!("{id:?} is specified twice"));
        let is_same_name =
            |(name, id): &(String, String), (other, other_id): &(String, String)| name == other && id != other_id;
        report_duplicates(&seen.names, is_same_name, found, |(name, _)| {
            format!("two devices would have the name {name:?}")
        });
        report_duplicates(
            &seen.macs,
            |one, other| one == other,
            found,
            |mac| format!("two devices match the NIC {mac}"),
        );
        // Link-local addresses are not compared, because they must be unique only on their link.
        let is_same = |one: &std::net::IpAddr, other: &std::net::IpAddr| {
            one == other && !matches!(one, std::net::IpAddr::V6(one) if one.is_unicast_link_local())
        };
        report_duplicates(&seen.addresses, is_same, found, |address| {
            format!("the address {address} is specified twice")
        });
        report_duplicates(
            &seen.defaults,
            |one, other| one == other,
            found,
            |(is_v4, _)| {
                format!(
                    "two default routes of {family} have the same metric: increase the metric of the second route",
                    family = family_name(*is_v4)
                )
            },
        );
    }

    fn check_members(&self, found: &mut Vec<Diagnostic>) {
        let is_same = |(_, one): &(String, String), (_, other): &(String, String)| one == other;
        report_duplicates(&self.seen.members, is_same, found, |(_, member)| {
            format!("{member:?} is already a member of a bond")
        });
        for ((bond, member), place) in &self.seen.members {
            let Some(ethernet) = self.network.ethernets.get(member) else {
                if !self.has_device("ethernets", member) {
                    let ids = self.list_devices("ethernets");
                    found.push(Diagnostic::new(place, format!("ethernet {member:?} does not exist; {ids}")));
                }
                continue;
            };
            if !ethernet.settings.is_empty() {
                let message = format!(
                    "{member} is a member of {bond}: move its addresses, DHCP, routes and name servers to {bond}"
                );
                found.push(Diagnostic::new(self.device_path("ethernets", member), message));
            }
            let of_bond = self.network.bonds.get(bond).map(|bond| effective_mtu(&bond.settings));
            if ethernet.settings.mtu.is_some()
                && of_bond.is_some_and(|of_bond| of_bond != effective_mtu(&ethernet.settings))
            {
                let message = format!(
                    "a member of a bond cannot have an MTU of its own: set this MTU on {bond}, and remove it here"
                );
                found.push(Diagnostic::new(child_path(&self.device_path("ethernets", member), "mtu"), message));
            }
        }
    }

    /// Reports a device with DHCPv6 but without router advertisements. networkd, and therefore also netplan, uses
    /// DHCPv6 only after a router has announced it.
    fn check_dhcp6(&self, found: &mut Vec<Diagnostic>) {
        for (id, settings) in self.network.devices_in_order() {
            if let Some((_, place)) = self.seen.ids.iter().find(|(known, _)| known == id)
                && settings.dhcp6
                && settings.accept_ra == Some(false)
            {
                let message = "`dhcp6` has no effect together with `accept-ra: false`, because only router advertisements enable DHCPv6: remove `accept-ra: false` or `dhcp6`";
                found.push(Diagnostic::new(child_path(place, "dhcp6"), message));
            }
        }
    }

    fn has_device(&self, kind: &str, id: &str) -> bool {
        self.seen.ids.iter().any(|(_, place)| *place == self.device_path(kind, id))
    }

    /// Returns the part of a message that lists the ids of all devices of this type.
    fn list_devices(&self, kind: &str) -> String {
        let of_kind = |(id, place): &&(String, String)| *place == self.device_path(kind, id);
        let ids: Vec<&str> = self.seen.ids.iter().filter(of_kind).map(|(id, _)| id.as_str()).collect();
        if ids.is_empty() { "none exist".to_owned() } else { format!("existing: {}", ids.join(", ")) }
    }

    fn check_vlan(&self, id: &str, vlan: &VlanConfig, found: &mut Vec<Diagnostic>) {
        let place = self.device_path("vlans", id);
        let network = &self.network;
        let mut problem = |name: &str, message: String| found.push(Diagnostic::new(child_path(&place, name), message));
        self.explain_invalid_link(id, vlan).into_iter().for_each(|message| problem("link", message));
        let is_same = |other: &VlanConfig| (&other.link, other.id) == (&vlan.link, vlan.id);
        if let Some((first, _)) =
            network.vlans.iter().find(|(_, other)| is_same(other)).filter(|(first, _)| *first != id)
        {
            problem("id", format!("VLAN {vlan} on {link} already exists: {first}", link = vlan.link, vlan = vlan.id));
        }
        let beneath = network
            .devices_in_order()
            .into_iter()
            .find(|(known, _)| *known == vlan.link)
            .map(|(_, beneath)| effective_mtu(beneath));
        if let Some(beneath) = beneath.filter(|beneath| vlan.settings.mtu.is_some_and(|mtu| mtu > *beneath)) {
            problem("mtu", format!("the MTU must not exceed the MTU of {link}, which is {beneath}", link = vlan.link));
        }
        // ifupdown interprets a name such as `lan0.5` as VLAN 5 of the device lan0.
        if let Some((link, number)) = id.rsplit_once('.')
            && self.seen.ids.iter().any(|(known, _)| known == link)
            && (link, number) != (vlan.link.as_str(), vlan.id.to_string().as_str())
        {
            problem(
                "id",
                format!(
                    "the name suggests VLAN {number} on {link}, but this is VLAN {vlan} on {actual_link}: choose another name",
                    vlan = vlan.id,
                    actual_link = vlan.link
                ),
            );
        }
    }

    /// Returns the reasons why the VLAN cannot be on top of the device in its `link`.
    fn explain_invalid_link(&self, id: &str, vlan: &VlanConfig) -> Vec<String> {
        let link = &vlan.link;
        let mut problems = Vec::new();
        if !self.seen.ids.iter().any(|(known, _)| known == link) {
            let ids: Vec<&str> = self.seen.ids.iter().map(|(id, _)| id.as_str()).collect();
            problems.push(format!("device {link:?} does not exist; existing: {existing}", existing = ids.join(", ")));
        }
        if self.is_cyclic(id) {
            problems
                .push(format!("{id} has the link {link}, which is itself on top of {id}; links must not form a cycle"));
        }
        if let Some(bond) = self.network.find_bond(link) {
            problems.push(format!("{link} is a member of {bond}: set the link to {bond}"));
        }
        problems
    }

    fn is_cyclic(&self, id: &str) -> bool {
        let mut beneath = self.network.vlans.get(id);
        for _ in 0..self.network.vlans.len() {
            match beneath {
                Some(vlan) if vlan.link == id => return true,
                Some(vlan) => beneath = self.network.vlans.get(&vlan.link),
                None => return false,
            }
        }
        false
    }
}

fn effective_mtu(settings: &InterfaceSettings) -> u32 {
    settings.mtu.unwrap_or(DEFAULT_MTU)
}

/// Reports each value that also occurs at an earlier path.
fn report_duplicates<T>(
    placed: &LocatedValues<T>,
    is_same: impl Fn(&T, &T) -> bool,
    found: &mut Vec<Diagnostic>,
    message: impl Fn(&T) -> String,
) {
    for (index, (value, place)) in placed.iter().enumerate() {
        if let Some((_, first)) = placed[..index].iter().find(|(other, _)| is_same(value, other)) {
            found.push(Diagnostic::new(place, format!("{}, first at {first}", message(value))));
        }
    }
}

fn check_bond(bond: &BondConfig, place: &str, found: &mut Vec<Diagnostic>) {
    let place = child_path(place, "parameters");
    let mut problem = |name: &str, message: String| found.push(Diagnostic::new(child_path(&place, name), message));
    let Some(mode) = bond.parameters.get("mode") else { return };
    let takes = |parameter: &BondParameter| parameter.modes.is_empty() || parameter.modes.contains(&mode.as_str());
    for (parameter, _) in bond.set_parameters().filter(|(parameter, _)| !takes(parameter)) {
        let modes = parameter.modes.join(", ");
        problem(
            parameter.netplan,
            format!(
                "{parameter} is not supported in bond mode {mode}; it requires one of the modes {modes}",
                parameter = parameter.netplan
            ),
        );
    }
    if let Some(primary) = &bond.primary {
        if !MODES_WITH_PRIMARY.contains(&mode.as_str()) {
            problem(
                "primary",
                format!(
                    "`primary` is not supported in bond mode {mode}; it requires one of the modes {modes}",
                    modes = MODES_WITH_PRIMARY.join(", ")
                ),
            );
        }
        if !bond.members.contains(primary) {
            problem("primary", format!("{primary:?} is not an interface of the bond"));
        }
    }
    let time = |name: &str| bond.parameters.get(name).filter(|time| *time != "0");
    let (mii, arp) = (time("mii-monitor-interval"), time("arp-interval"));
    if mii.is_some() && arp.is_some() {
        let message = "`mii-monitor-interval` and `arp-interval` cannot be combined";
        problem("arp-interval", message.to_owned());
    }
    if arp.is_some() != bond.parameters.contains_key("arp-ip-targets") {
        problem("arp-ip-targets", "`arp-interval` and `arp-ip-targets` must be set together".to_owned());
    }
    for name in ["up-delay", "down-delay"] {
        let Some(delay) = time(name).and_then(|delay| delay.parse::<u32>().ok()) else { continue };
        match mii.and_then(|mii| mii.parse::<u32>().ok()) {
            Some(mii) if delay % mii == 0 => {}
            Some(mii) => problem(name, format!("must be a multiple of mii-monitor-interval ({mii} ms)")),
            None => problem(name, format!("{name} requires mii-monitor-interval")),
        }
    }
}
