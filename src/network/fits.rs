//! Comparison of the configuration with the NICs of a machine.

use super::{Card, Ethernet, Network, Settings};
use crate::inventory::Nic;
use crate::order::Gather;
use crate::problem::Problem;

const MAC: &str = "match.macaddress";

impl Network {
    /// Returns the reasons why the configuration does not fit a machine with these NICs; empty if it fits.
    pub fn fits(&self, nics: &[Nic]) -> Vec<Problem> {
        let ethernets = self.ethernets.iter();
        let problem = |(id, ethernet): (&String, &Ethernet)| {
            let (field, why) = misfit(ethernet, nics)?;
            Some(Problem::new(format!("ethernets.{id}.{field}"), why))
        };
        ethernets.filter_map(problem).collect()
    }

    /// Returns the default configuration: DHCP on each of these NICs.
    pub fn dhcp(nics: &[Nic]) -> Network {
        let ethernets = nics.iter().filter(|nic| !nic.mac.is_empty()).map(|nic| {
            let mac = nic.mac.to_lowercase();
            let settings = Settings { dhcp4: true, optional: !nic.link, ..Settings::default() };
            (format!("enx{}", mac.replace(':', "")), Ethernet { card: Card::Mac(mac), set_name: None, settings })
        });
        Network { ethernets: ethernets.gather(), ..Network::default() }
    }
}

/// Returns the invalid field and the reason.
fn misfit(ethernet: &Ethernet, nics: &[Nic]) -> Option<(&'static str, String)> {
    // The ramdisk has no udev, so the names of NICs in the installed system are not known here.
    let Card::Mac(mac) = &ethernet.card else { return None };
    let is_it = |nic: &&Nic| nic.mac.eq_ignore_ascii_case(mac);
    let name = |nic: &Nic| nic.name.clone();
    match nics.iter().filter(is_it).map(name).collect::<Vec<_>>().as_slice() {
        [] => {
            let cards: Vec<String> = nics.iter().map(|nic| format!("{} {}", nic.name, nic.mac)).collect();
            let cards = if cards.is_empty() { "no NICs".to_owned() } else { cards.join(", ") };
            return Some((MAC, format!("no NIC has the MAC address {mac}; this machine has {cards}")));
        }
        [_] => {}
        several => return Some((MAC, format!("several NICs have the MAC address {mac}: {}", several.join(", ")))),
    }
    let name = ethernet.set_name.as_ref()?;
    let other = nics.iter().find(|nic| nic.name == *name && !is_it(nic))?;
    let why = format!(
        "another NIC is called {name} by the kernel ({}), so this one cannot be renamed to it; choose a name such as lan0",
        other.mac
    );
    Some(("set-name", why))
}
