//! Which disks of a machine are the members of each array.

use super::Config;
use crate::inventory::{Disk, Inventory};
use crate::layout::hints;
use crate::problem::Problem;
use std::collections::BTreeMap;

/// The members of each logical disk, in the order of the list.
pub fn members<'a>(config: &Config, inventory: &'a Inventory) -> Result<Vec<Vec<&'a Disk>>, Vec<Problem>> {
    let mut problems = Vec::new();
    let mut all = Vec::new();
    for (index, logical) in config.logical_disks.iter().enumerate() {
        let mut found: Vec<&Disk> = Vec::new();
        for (number, wanted) in logical.physical_disks.iter().enumerate() {
            let free = hints::candidates(wanted, &inventory.disks);
            let free = free.into_iter().find(|disk| found.iter().all(|other| other.device != disk.device));
            match free {
                Some(disk) => found.push(disk),
                None => problems.push(Problem::new(
                    format!("logical_disks[{index}].physical_disks[{number}]"),
                    "no disk of the machine is left that matches",
                )),
            }
        }
        if logical.physical_disks.is_empty() {
            // No hint means somebody's stick.
            found = hints::candidates(&BTreeMap::new(), &inventory.disks);
        }
        all.push(found);
    }
    if problems.is_empty() { Ok(all) } else { Err(problems) }
}

/// What tells this disk from all others when the kernel's names have moved; nothing where it has nothing of its own.
pub fn own_hints(disk: &Disk, inventory: &Inventory) -> BTreeMap<String, String> {
    let attributes = [("serial", &disk.serial), ("wwn", &disk.wwn), ("by_path", &disk.by_path)];
    let of = |(name, value): (&str, &String)| BTreeMap::from([(name.to_owned(), format!("s== {value}"))]);
    let is_its_own = |hints: &BTreeMap<String, String>| {
        let found = hints::candidates(hints, &inventory.disks);
        hints::problems(hints).is_empty() && matches!(&found[..], [only] if only.device == disk.device)
    };
    let given = attributes.into_iter().filter(|(_, value)| !value.trim().is_empty());
    given.map(of).find(is_its_own).unwrap_or_default()
}
