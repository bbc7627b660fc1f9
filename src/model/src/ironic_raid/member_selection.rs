//! Selection of the member disks of each array.

use super::RaidConfig;
use crate::inventory::{Inventory, InventoryDisk};
use crate::layout::root_device_hints;
use common::diagnostic::Diagnostic;
use std::collections::BTreeMap;

/// Selects the members of each logical disk, in the order of the list. Fails with all hints that match no unused disk.
pub(crate) fn select_members<'a>(
    config: &RaidConfig,
    inventory: &'a Inventory,
) -> Result<Vec<Vec<&'a InventoryDisk>>, Vec<Diagnostic>> {
    let mut problems = Vec::new();
    let mut all = Vec::new();
    for (index, logical) in config.logical_disks.iter().enumerate() {
        let mut found: Vec<&InventoryDisk> = Vec::new();
        for (number, wanted) in logical.physical_disks.iter().enumerate() {
            let free = root_device_hints::find_candidates(wanted, &inventory.disks);
            let free = free.into_iter().find(|disk| found.iter().all(|other| other.device != disk.device));
            match free {
                Some(disk) => found.push(disk),
                None => problems.push(Diagnostic::new(
                    format!("logical_disks[{index}].physical_disks[{number}]"),
                    "the hints match no unused disk of the machine",
                )),
            }
        }
        if logical.physical_disks.is_empty() {
            // The search with empty hints returns all disks except removable media.
            found = root_device_hints::find_candidates(&BTreeMap::new(), &inventory.disks);
        }
        all.push(found);
    }
    if problems.is_empty() { Ok(all) } else { Err(problems) }
}

/// Returns a hint that matches only this disk, even after kernel names have changed. The result is empty if the disk
/// has no unique attribute.
pub(crate) fn unique_hint(disk: &InventoryDisk, inventory: &Inventory) -> BTreeMap<String, String> {
    let attributes = [("serial", &disk.serial), ("wwn", &disk.wwn), ("by_path", &disk.by_path)];
    let of = |(name, value): (&str, &String)| BTreeMap::from([(name.to_owned(), format!("s== {value}"))]);
    let is_its_own = |hints: &BTreeMap<String, String>| {
        let found = root_device_hints::find_candidates(hints, &inventory.disks);
        root_device_hints::check_hints(hints).is_empty() && matches!(&found[..], [only] if only.device == disk.device)
    };
    let given = attributes.into_iter().filter(|(_, value)| !value.trim().is_empty());
    given.map(of).find(is_its_own).unwrap_or_default()
}
