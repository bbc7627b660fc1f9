//! Rules for the configuration as a whole: unique names and addresses, existing links, and valid bonds.

use super::bonding::{Parameter, WITH_PRIMARY};
use super::fields::child;
use super::reading::{Placed, Reading, family};
use super::{Bond, Settings, Vlan};
use crate::problem::Problem;

/// Default MTU of Ethernet.
const USUAL_MTU: u32 = 1500;

impl Reading {
    pub(super) fn judge(&mut self) {
        let mut found = Vec::new();
        self.doubles(&mut found);
        self.members(&mut found);
        for (id, bond) in &self.network.bonds {
            judge_bond(bond, &self.place("bonds", id), &mut found);
        }
        for (id, vlan) in &self.network.vlans {
            self.judge_vlan(id, vlan, &mut found);
        }
        self.reader.problems.extend(found);
    }

    fn place(&self, kind: &str, id: &str) -> String {
        child(&child(&self.root, kind), id)
    }

    fn doubles(&self, found: &mut Vec<Problem>) {
        let seen = &self.seen;
        twice(&seen.ids, |one, other| one == other, found, |id| format!("{id:?} is specified twice"));
        let is_same_name =
            |(name, id): &(String, String), (other, other_id): &(String, String)| name == other && id != other_id;
        twice(&seen.names, is_same_name, found, |(name, _)| format!("two devices would have the name {name:?}"));
        twice(&seen.macs, |one, other| one == other, found, |mac| format!("the NIC {mac} is matched twice"));
        // Every link has the same link-local network.
        let is_same = |one: &std::net::IpAddr, other: &std::net::IpAddr| {
            one == other && !matches!(one, std::net::IpAddr::V6(one) if one.is_unicast_link_local())
        };
        twice(&seen.addresses, is_same, found, |address| format!("the address {address} is specified twice"));
        twice(
            &seen.defaults,
            |one, other| one == other,
            found,
            |(is_v4, _)| {
                format!(
                    "two default routes of {} have the same metric: increase the metric of the second",
                    family(*is_v4)
                )
            },
        );
    }

    fn members(&self, found: &mut Vec<Problem>) {
        let is_same = |(_, one): &(String, String), (_, other): &(String, String)| one == other;
        twice(&self.seen.members, is_same, found, |(_, member)| format!("{member:?} is already a member of a bond"));
        for ((bond, member), place) in &self.seen.members {
            let Some(ethernet) = self.network.ethernets.get(member) else {
                if !self.is_known("ethernets", member) {
                    let ids = self.known("ethernets");
                    found.push(Problem::new(place, format!("ethernet {member:?} does not exist; {ids}")));
                }
                continue;
            };
            if !ethernet.settings.is_empty() {
                let message =
                    format!("{member} is a member of {bond}: move its addresses, DHCP, routes and name servers there");
                found.push(Problem::new(self.place("ethernets", member), message));
            }
            let of_bond = self.network.bonds.get(bond).map(|bond| mtu(&bond.settings));
            if ethernet.settings.mtu.is_some() && of_bond.is_some_and(|of_bond| of_bond != mtu(&ethernet.settings)) {
                let message =
                    format!("a member of a bond has the MTU of the bond: set this MTU on {bond} and remove it here");
                found.push(Problem::new(child(&self.place("ethernets", member), "mtu"), message));
            }
        }
    }

    fn is_known(&self, kind: &str, id: &str) -> bool {
        self.seen.ids.iter().any(|(_, place)| *place == self.place(kind, id))
    }

    /// Returns a list of the ids of that type, for messages.
    fn known(&self, kind: &str) -> String {
        let of_kind = |(id, place): &&(String, String)| *place == self.place(kind, id);
        let ids: Vec<&str> = self.seen.ids.iter().filter(of_kind).map(|(id, _)| id.as_str()).collect();
        if ids.is_empty() { "none exist".to_owned() } else { format!("existing: {}", ids.join(", ")) }
    }

    fn judge_vlan(&self, id: &str, vlan: &Vlan, found: &mut Vec<Problem>) {
        let place = self.place("vlans", id);
        let network = &self.network;
        let mut problem = |name: &str, message: String| found.push(Problem::new(child(&place, name), message));
        if !self.seen.ids.iter().any(|(known, _)| *known == vlan.link) {
            let ids: Vec<&str> = self.seen.ids.iter().map(|(id, _)| id.as_str()).collect();
            problem("link", format!("device {:?} does not exist; existing: {}", vlan.link, ids.join(", ")));
        }
        if self.is_on_itself(id) {
            problem("link", format!("{id} has the link {}, which is itself on {id}", vlan.link));
        }
        if let Some(bond) = network.bond_of(&vlan.link) {
            problem("link", format!("{} is a member of {bond}: set the link to {bond}", vlan.link));
        }
        let is_same = |other: &Vlan| (&other.link, other.id) == (&vlan.link, vlan.id);
        if let Some((first, _)) =
            network.vlans.iter().find(|(_, other)| is_same(other)).filter(|(first, _)| *first != id)
        {
            problem("id", format!("VLAN {1} on {0} already exists: {first}", vlan.link, vlan.id));
        }
        let beneath =
            network.devices().into_iter().find(|(known, _)| *known == vlan.link).map(|(_, beneath)| mtu(beneath));
        if let Some(beneath) = beneath.filter(|beneath| vlan.settings.mtu.is_some_and(|mtu| mtu > *beneath)) {
            problem("mtu", format!("the MTU must not exceed the MTU of {}, which is {beneath}", vlan.link));
        }
        // ifupdown interprets names this way.
        if let Some((link, number)) = id.rsplit_once('.')
            && self.seen.ids.iter().any(|(known, _)| known == link)
            && (link, number) != (vlan.link.as_str(), vlan.id.to_string().as_str())
        {
            problem(
                "id",
                format!("the name stands for VLAN {number} on {link}, but this is VLAN {} on {}", vlan.id, vlan.link),
            );
        }
    }

    fn is_on_itself(&self, id: &str) -> bool {
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

fn mtu(settings: &Settings) -> u32 {
    settings.mtu.unwrap_or(USUAL_MTU)
}

/// Adds a problem for each value that has occurred before.
fn twice<T>(
    placed: &Placed<T>,
    is_same: impl Fn(&T, &T) -> bool,
    found: &mut Vec<Problem>,
    message: impl Fn(&T) -> String,
) {
    for (index, (value, place)) in placed.iter().enumerate() {
        if let Some((_, first)) = placed[..index].iter().find(|(other, _)| is_same(value, other)) {
            found.push(Problem::new(place, format!("{}, first at {first}", message(value))));
        }
    }
}

fn judge_bond(bond: &Bond, place: &str, found: &mut Vec<Problem>) {
    let place = child(place, "parameters");
    let mut problem = |name: &str, message: String| found.push(Problem::new(child(&place, name), message));
    let Some(mode) = bond.parameters.get("mode") else { return };
    let takes = |parameter: &Parameter| parameter.modes.is_empty() || parameter.modes.contains(&mode.as_str());
    for (parameter, _) in bond.given().filter(|(parameter, _)| !takes(parameter)) {
        let modes = parameter.modes.join(", ");
        problem(
            parameter.netplan,
            format!("{} is not supported in bond mode {mode}; it requires one of {modes}", parameter.netplan),
        );
    }
    if let Some(primary) = &bond.primary {
        if !WITH_PRIMARY.contains(&mode.as_str()) {
            problem(
                "primary",
                format!("primary is not supported in bond mode {mode}; it requires one of {}", WITH_PRIMARY.join(", ")),
            );
        }
        if !bond.members.contains(primary) {
            problem("primary", format!("{primary:?} is not an interface of the bond"));
        }
    }
    let time = |name: &str| bond.parameters.get(name).filter(|time| *time != "0");
    let (mii, arp) = (time("mii-monitor-interval"), time("arp-interval"));
    if mii.is_some() && arp.is_some() {
        let message = "mii-monitor-interval and arp-interval cannot be combined";
        problem("arp-interval", message.to_owned());
    }
    if arp.is_some() != bond.parameters.contains_key("arp-ip-targets") {
        problem("arp-ip-targets", "arp-interval and arp-ip-targets must be set together".to_owned());
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
