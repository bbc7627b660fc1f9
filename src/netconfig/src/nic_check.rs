//! Comparison of a configuration with the NICs of a machine.

use super::{EthernetConfig, InterfaceSettings, NetworkConfig, NicSelector};
use common::diagnostic::Diagnostic;
use model::inventory::Nic;

const MAC: &str = "match.macaddress";

impl NetworkConfig {
    /// Returns the reasons why the configuration does not fit a machine with these NICs; empty if it fits.
    pub fn check_nics(&self, nics: &[Nic]) -> Vec<Diagnostic> {
        let ethernets = self.ethernets.iter();
        let problem = |(id, ethernet): (&String, &EthernetConfig)| {
            let (field, why) = find_misfit(ethernet, nics)?;
            Some(Diagnostic::new(format!("ethernets.{id}.{field}"), why))
        };
        ethernets.filter_map(problem).collect()
    }

    /// Returns the default configuration, which uses DHCP on each of these NICs.
    pub fn dhcp_on_all(nics: &[Nic]) -> NetworkConfig {
        let ethernets = nics.iter().filter(|nic| !nic.mac.is_empty()).map(|nic| {
            let mac = nic.mac.to_lowercase();
            let settings = InterfaceSettings { dhcp4: true, optional: !nic.link, ..InterfaceSettings::default() };
            (
                format!("enx{}", mac.replace(':', "")),
                EthernetConfig { nic: NicSelector::Mac(mac), set_name: None, settings },
            )
        });
        NetworkConfig { ethernets: ethernets.collect(), ..NetworkConfig::default() }
    }
}

/// Returns the field that does not fit the NICs, with the reason.
fn find_misfit(ethernet: &EthernetConfig, nics: &[Nic]) -> Option<(&'static str, String)> {
    // NICs that are selected by name are not checked. Their names in the installed system are unknown here, because the
    // ramdisk has no udev.
    let NicSelector::Mac(mac) = &ethernet.nic else { return None };
    let is_it = |nic: &&Nic| nic.mac.eq_ignore_ascii_case(mac);
    let name = |nic: &Nic| nic.name.clone();
    match nics.iter().filter(is_it).map(name).collect::<Vec<_>>().as_slice() {
        [] => {
            let present_nics: Vec<String> = nics.iter().map(|nic| format!("{} {}", nic.name, nic.mac)).collect();
            let present_nics = if present_nics.is_empty() { "no NICs".to_owned() } else { present_nics.join(", ") };
            return Some((MAC, format!("no NIC has the MAC address {mac}; this machine has {present_nics}")));
        }
        [_] => {}
        several => {
            return Some((MAC, format!("several NICs have the MAC address {mac}: {nics}", nics = several.join(", "))));
        }
    }
    let name = ethernet.set_name.as_ref()?;
    let other = nics.iter().find(|nic| nic.name == *name && !is_it(nic))?;
    let why = format!(
        "the kernel uses the name {name} for another NIC ({mac}), so this NIC cannot have this name; choose a name such as lan0",
        mac = other.mac
    );
    Some(("set-name", why))
}
