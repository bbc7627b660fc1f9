//! What devices are called: in the document, and in the installed system.

use super::{Card, Network};
use crate::inventory::Nic;

/// The kernel has room for so many bytes, and one that ends them.
const LONGEST_NAME: usize = 15;
/// Ids become parts of file names.
const LONGEST_ID: usize = 64;

/// The name of an interface, as the kernel and systemd take it.
pub(super) fn interface(text: &str) -> Result<String, String> {
    id(text)?;
    if text.len() > LONGEST_NAME {
        return Err(format!("{text:?} is too long: the name of an interface has at most {LONGEST_NAME} characters"));
    }
    if ["lo", "all", "default"].contains(&text) || text.bytes().all(|byte| byte.is_ascii_digit()) {
        return Err(format!("{text:?} cannot be the name of a card, bond or VLAN"));
    }
    Ok(text.to_owned())
}

/// What a device is called in the document only.
pub(super) fn id(text: &str) -> Result<String, String> {
    let is_good = |byte: u8| byte.is_ascii_alphanumeric() || b"._-".contains(&byte);
    let begins_well = text.bytes().next().is_some_and(|byte| byte.is_ascii_alphanumeric());
    if text.contains(['*', '?', '[']) {
        return Err(format!("{text:?} is a pattern: name one card, best by match.macaddress"));
    }
    if !begins_well || text.len() > LONGEST_ID || !text.bytes().all(is_good) {
        return Err(format!("{text:?} is no name: it takes letters, digits, and . _ - after the first"));
    }
    Ok(text.to_owned())
}

impl Network {
    /// For a system without udev, in which nobody gives a card the name that a document wants: each is called as the kernel calls it
    /// now, and there.
    pub fn by_kernel_names(&self, nics: &[Nic]) -> Network {
        let mut network = self.clone();
        for ethernet in network.ethernets.values_mut() {
            let Card::Mac(mac) = &ethernet.card else { continue };
            if let Some(nic) = nics.iter().find(|nic| nic.mac.eq_ignore_ascii_case(mac)) {
                (ethernet.card, ethernet.set_name) = (Card::Name(nic.name.clone()), None);
            }
        }
        network
    }

    /// What the device is called in the installed system, where the document says it. The kernel or udev names the others.
    pub(super) fn name_of<'a>(&'a self, id: &'a str) -> Option<&'a str> {
        let Some(ethernet) = self.ethernets.get(id) else { return Some(id) };
        match (&ethernet.set_name, &ethernet.card) {
            (Some(name), _) | (None, Card::Name(name)) => Some(name),
            (None, Card::Mac(_)) => None,
        }
    }

    /// The name that it gets where it must have one: its own, else its id, unless the kernel may call another card so. Then it is
    /// the one that systemd would make of its MAC.
    pub(super) fn given_name(&self, id: &str, nics: &[Nic]) -> String {
        if let Some(name) = self.name_of(id) {
            return name.to_owned();
        }
        let Some(Card::Mac(mac)) = self.ethernets.get(id).map(|ethernet| &ethernet.card) else { return id.to_owned() };
        let is_the_kernels =
            id.strip_prefix("eth").is_some_and(|number| number.bytes().all(|byte| byte.is_ascii_digit()));
        let is_anothers = nics.iter().any(|nic| nic.name == id && !nic.mac.eq_ignore_ascii_case(mac));
        match interface(id) {
            Ok(name) if !is_the_kernels && !is_anothers => name,
            _ => format!("enx{}", mac.replace(':', "")),
        }
    }
}
