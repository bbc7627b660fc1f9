//! The description held against the cards of the machine.

use super::{Card, Ethernet, Network, Settings};
use crate::inventory::Nic;
use crate::order::Gather;
use crate::problem::Problem;

const MAC: &str = "match.macaddress";

impl Network {
    /// Why the description is not for a machine with these cards; nothing, if it is.
    pub fn fits(&self, nics: &[Nic]) -> Vec<Problem> {
        let ethernets = self.ethernets.iter();
        let problem = |(id, ethernet): (&String, &Ethernet)| {
            let (field, why) = misfit(ethernet, nics)?;
            Some(Problem::new(format!("ethernets.{id}.{field}"), why))
        };
        ethernets.filter_map(problem).collect()
    }

    /// DHCP on each of these cards: what a machine has of which nothing is said.
    pub fn dhcp(nics: &[Nic]) -> Network {
        let ethernets = nics.iter().filter(|nic| !nic.mac.is_empty()).map(|nic| {
            let mac = nic.mac.to_lowercase();
            let settings = Settings { dhcp4: true, optional: !nic.link, ..Settings::default() };
            (format!("enx{}", mac.replace(':', "")), Ethernet { card: Card::Mac(mac), set_name: None, settings })
        });
        Network { ethernets: ethernets.gather(), ..Network::default() }
    }
}

/// The field that is wrong, and why.
fn misfit(ethernet: &Ethernet, nics: &[Nic]) -> Option<(&'static str, String)> {
    // The ramdisk has no udev: what the installed system calls its cards is not known here.
    let Card::Mac(mac) = &ethernet.card else { return None };
    let is_it = |nic: &&Nic| nic.mac.eq_ignore_ascii_case(mac);
    let name = |nic: &Nic| nic.name.clone();
    match nics.iter().filter(is_it).map(name).collect::<Vec<_>>().as_slice() {
        [] => {
            let cards: Vec<String> = nics.iter().map(|nic| format!("{} {}", nic.name, nic.mac)).collect();
            let cards = if cards.is_empty() { "no card".to_owned() } else { cards.join(", ") };
            return Some((MAC, format!("no card has the MAC {mac}; there is {cards}")));
        }
        [_] => {}
        several => return Some((MAC, format!("several cards have the MAC {mac}: {}", several.join(", ")))),
    }
    let name = ethernet.set_name.as_ref()?;
    let other = nics.iter().find(|nic| nic.name == *name && !is_it(nic))?;
    let why = format!(
        "the kernel calls another card {name}, {}, and a name is free only when no card has it; choose one such as lan0",
        other.mac
    );
    Some(("set-name", why))
}
