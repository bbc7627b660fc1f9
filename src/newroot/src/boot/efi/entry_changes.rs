//! Decides which boot entries to write and in which order the firmware tries them. No I/O.

use super::network_boot_next;
use linux::efi::variables::BootVariables;
use linux::efi::{DevicePathNode, LoadOption};
use model::allocation::BootOrder;
use std::collections::{BTreeMap, BTreeSet};
use uuid::Uuid;

pub(crate) use operations::OWN_PREFIX as OWN;

/// Changes to boot variables. All other variables remain unchanged.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct BootEntryChanges {
    /// Numbers of entries of former installations, which will be removed.
    pub remove: Vec<u16>,
    /// Entries to write, by number.
    pub write: Vec<(u16, Vec<u8>)>,
    /// New value of `BootOrder`; `None` if the boot order does not change.
    pub order: Option<Vec<u16>>,
    /// Numbers of the entries of this installation, in the requested order.
    pub ours: Vec<u16>,
    /// Number of the network boot entry that will be first in the boot order; `None` if no network boot is requested.
    pub network: Option<u16>,
}

impl BootEntryChanges {
    /// Returns whether no variable needs to be changed.
    pub(crate) fn is_empty(&self) -> bool {
        self.remove.is_empty() && self.write.is_empty() && self.order.is_none()
    }
}

/// Returns the label with drophammer's prefix, such as `drophammer: web-1`.
pub(crate) fn add_label_prefix(label: &str) -> String {
    if label.starts_with(OWN) { label.to_owned() } else { format!("{OWN}{label}") }
}

/// Plans one entry for each distinct load option. An existing entry of drophammer with the same load option keeps its
/// number. New entries first overwrite entries of former installations, then use free numbers. Entries of drophammer
/// that start from one of the `preserved` partitions belong to other systems, and are treated like foreign entries.
pub(crate) fn decide_changes(
    variables: &BootVariables,
    wanted: &[LoadOption],
    order: BootOrder,
    preserved: &[Uuid],
) -> BootEntryChanges {
    let former = variables.entries.iter().filter(|(_, value)| is_former(value, preserved));
    let mut former: BTreeMap<u16, &[u8]> = former.map(|(number, value)| (*number, &value[..])).collect();
    let own: BTreeSet<u16> = former.keys().copied().collect();
    let mut values: Vec<Vec<u8>> = Vec::new();
    for value in wanted.iter().map(LoadOption::to_bytes) {
        if !values.contains(&value) {
            values.push(value);
        }
    }
    let right: Vec<Option<u16>> = values
        .iter()
        .map(|value| {
            let number = former.iter().find(|(_, is)| *is == value).map(|(number, _)| *number)?;
            former.remove(&number).map(|_| number)
        })
        .collect();
    let mut numbers = former.keys().copied().collect::<Vec<_>>().into_iter().chain(find_free_numbers(variables));
    let (mut ours, mut write) = (Vec::new(), Vec::new());
    for (value, right) in values.into_iter().zip(right) {
        let Some(number) = right.or_else(|| numbers.next()) else { break };
        former.remove(&number);
        ours.push(number);
        if right.is_none() {
            write.push((number, value));
        }
    }
    let remove: Vec<u16> = former.into_keys().collect();
    let network = if order == BootOrder::Pxe { find_network_entry(variables, &own) } else { None };
    let should = match order {
        BootOrder::Pxe | BootOrder::Disk => order_in_front(variables, network, &ours, &own),
        BootOrder::Keep => order_in_place(variables, &ours, &remove),
    };
    let order = (should != variables.order).then_some(should);
    BootEntryChanges { remove, write, order, ours, network }
}

/// Returns whether drophammer created the entry for an installation that is replaced.
fn is_former(value: &[u8], preserved: &[Uuid]) -> bool {
    let Some(option) = LoadOption::parse(value).filter(|option| option.description.starts_with(OWN)) else {
        return false;
    };
    let nodes = option.nodes().unwrap_or_default();
    !nodes.iter().filter_map(DevicePathNode::partition_guid).any(|guid| preserved.contains(&guid))
}

/// Returns the numbers of unused entries, ascending. Numbers in `BootOrder` or `BootNext` are treated as used even if
/// their entries do not exist.
fn find_free_numbers(variables: &BootVariables) -> impl Iterator<Item = u16> {
    let taken = |number: &u16| {
        variables.entries.contains_key(number) || variables.order.contains(number) || variables.next == Some(*number)
    };
    (0..=u16::MAX).filter(move |number| !taken(number))
}

/// Returns a boot order with the network entry first, then the entries of this installation, then all other entries in
/// their current order.
fn order_in_front(variables: &BootVariables, network: Option<u16>, ours: &[u16], own: &BTreeSet<u16>) -> Vec<u16> {
    let others = variables.order.iter().filter(|number| Some(**number) != network);
    let others = others.filter(|number| !own.contains(number) && !ours.contains(number));
    network.iter().chain(ours).chain(others).copied().collect()
}

/// Returns the current order without removed entries. New entries are inserted after the last existing entry of this
/// installation, or at the end if there is none.
fn order_in_place(variables: &BootVariables, ours: &[u16], remove: &[u16]) -> Vec<u16> {
    let mut order: Vec<u16> = variables.order.iter().copied().filter(|number| !remove.contains(number)).collect();
    let at = order.iter().rposition(|number| ours.contains(number)).map_or(order.len(), |place| place + 1);
    let new: Vec<u16> = ours.iter().copied().filter(|number| !order.contains(number)).collect();
    order.splice(at..at, new);
    order
}

/// Returns the network entry for the boot order. Candidates, in order of preference: the network entry from which the
/// machine was booted; the first entry of the boot order, if it is a network entry; the best network entry of the boot
/// order. PXE is preferred to HTTP, and IPv4 to IPv6.
fn find_network_entry(variables: &BootVariables, own: &BTreeSet<u16>) -> Option<u16> {
    let boots = |number: &u16| !own.contains(number) && variables.entries.get(number).is_some_and(|is| is_network(is));
    let rank = |number: &u16| {
        let entry =
            variables.entries.get(number).and_then(|value| network_boot_next::parse_network_entry(*number, value));
        entry.map_or((true, true), |entry| (entry.http, entry.ipv6))
    };
    let current = variables.current.filter(boots);
    let first = || variables.order.first().copied().filter(boots);
    let best = || variables.order.iter().copied().filter(boots).min_by_key(rank);
    current.or_else(first).or_else(best)
}

/// Returns whether the entry is active and boots over the network. With some firmware, the description of an entry is
/// the only indication of a network boot.
fn is_network(value: &[u8]) -> bool {
    let Some(option) = LoadOption::parse(value).filter(LoadOption::is_active) else { return false };
    let Some(nodes) = option.nodes() else { return false };
    let is = |kinds: &[(u8, u8)]| nodes.iter().any(|node| kinds.contains(&(node.kind, node.subtype)));
    // The node types checked first identify network entries (MAC, IPv4, IPv6, URI). The node types checked below
    // identify other entries (disk, CD, file).
    is(&[(3, 11), (3, 12), (3, 13), (3, 24)])
        || nodes.iter().any(is_network_of_bios)
        || (!is(&[(4, 1), (4, 2), (4, 4)]) && mentions_network(&option.description))
}

/// Returns whether the node is a network device as defined by the BIOS Boot Specification: an embedded network device,
/// or a device with a boot entry vector.
fn is_network_of_bios(node: &DevicePathNode) -> bool {
    (node.kind, node.subtype) == (5, 1) && matches!(node.data, [0x06 | 0x80, 0, ..])
}

fn mentions_network(description: &str) -> bool {
    let words = description.split(|letter: char| !letter.is_ascii_alphanumeric()).map(str::to_ascii_lowercase);
    words
        .into_iter()
        .any(|word| word.starts_with("pxe") || ["network", "lan", "nic", "ethernet"].contains(&word.as_str()))
}

#[cfg(test)]
mod tests;
