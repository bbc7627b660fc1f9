//! Ids and interface names of devices.

use super::{NetworkConfig, NicSelector};
use model::inventory::Nic;

/// Maximum length of an interface name: IFNAMSIZ without the terminating NUL.
const LONGEST_NAME: usize = 15;
/// Maximum length of an id, which becomes a part of file names.
const LONGEST_ID: usize = 64;

/// Checks an interface name by the rules of the kernel and of systemd.
pub(super) fn parse_interface_name(text: &str) -> Result<String, String> {
    parse_id(text)?;
    if text.len() > LONGEST_NAME {
        return Err(format!(
            "{text:?} is too long: an interface name must not have more than {LONGEST_NAME} characters"
        ));
    }
    if ["lo", "all", "default"].contains(&text) || text.bytes().all(|byte| byte.is_ascii_digit()) {
        return Err(format!(
            "{text:?} cannot be the name of a NIC, bond or VLAN: lo, all, default and numbers are reserved; choose another name"
        ));
    }
    Ok(text.to_owned())
}

/// Checks the length and the characters of an id. An id that is also an interface name is checked by
/// [`parse_interface_name`].
pub(super) fn parse_id(text: &str) -> Result<String, String> {
    let is_good = |byte: u8| byte.is_ascii_alphanumeric() || b"._-".contains(&byte);
    let begins_well = text.bytes().next().is_some_and(|byte| byte.is_ascii_alphanumeric());
    if text.contains(['*', '?', '[']) {
        return Err(format!(
            "{text:?} is a pattern, which is not supported: select a single NIC, preferably with match.macaddress"
        ));
    }
    if !begins_well || text.len() > LONGEST_ID || !text.bytes().all(is_good) {
        return Err(format!(
            "{text:?} is not a valid name: it must consist of letters and digits, and . _ - after the first character"
        ));
    }
    Ok(text.to_owned())
}

impl NetworkConfig {
    /// Returns a configuration that selects each NIC by its current kernel name. Systems without udev require this,
    /// because they cannot rename NICs.
    pub fn with_kernel_names(&self, nics: &[Nic]) -> NetworkConfig {
        let mut network = self.clone();
        for ethernet in network.ethernets.values_mut() {
            let NicSelector::Mac(mac) = &ethernet.nic else { continue };
            if let Some(nic) = nics.iter().find(|nic| nic.mac.eq_ignore_ascii_case(mac)) {
                (ethernet.nic, ethernet.set_name) = (NicSelector::Name(nic.name.clone()), None);
            }
        }
        network
    }

    /// Returns the name of the device's interface in the installed system; `None` if the document specifies none, and
    /// the kernel or udev chooses the name.
    pub(super) fn interface_name<'a>(&'a self, id: &'a str) -> Option<&'a str> {
        let Some(ethernet) = self.ethernets.get(id) else { return Some(id) };
        match (&ethernet.set_name, &ethernet.nic) {
            (Some(name), _) | (None, NicSelector::Name(name)) => Some(name),
            (None, NicSelector::Mac(_)) => None,
        }
    }

    /// Returns an interface name for network managers that require one: the configured name, or else the id. If the
    /// kernel may assign this id as a name to another NIC, returns the name that systemd derives from the MAC address.
    pub(super) fn assigned_name(&self, id: &str, nics: &[Nic]) -> String {
        if let Some(name) = self.interface_name(id) {
            return name.to_owned();
        }
        let Some(NicSelector::Mac(mac)) = self.ethernets.get(id).map(|ethernet| &ethernet.nic) else {
            return id.to_owned();
        };
        let is_the_kernels =
            id.strip_prefix("eth").is_some_and(|number| number.bytes().all(|byte| byte.is_ascii_digit()));
        let is_anothers = nics.iter().any(|nic| nic.name == id && !nic.mac.eq_ignore_ascii_case(mac));
        match parse_interface_name(id) {
            Ok(name) if !is_the_kernels && !is_anothers => name,
            _ => format!("enx{}", mac.replace(':', "")),
        }
    }
}
