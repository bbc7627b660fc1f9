//! Identifiers of disks. Placeholders are treated as missing.

use super::InventoryDisk;
use crate::device_name::KernelName;
use crate::device_name::by_path_spellings::is_same_by_path;
use crate::disk_identifiers::{comparable_serial, comparable_wwn, is_same_serial, is_same_wwn};
use std::collections::{BTreeMap, BTreeSet};

impl InventoryDisk {
    /// Returns the serial number in its comparable form; `None` if it is missing or a placeholder.
    pub fn comparable_serial(&self) -> Option<String> {
        comparable_serial(&self.serial)
    }

    /// Returns the world wide name in its comparable form; `None` if it is missing or a placeholder.
    pub fn comparable_wwn(&self) -> Option<String> {
        comparable_wwn(&self.wwn)
    }
}

/// Disks with a serial number that no other disk of the machine has, disks with a WWN that no other disk has, and
/// `by-path` links that only one disk has.
#[derive(Debug, Default)]
pub struct UniqueIdentifiers {
    serials: BTreeSet<KernelName>,
    wwns: BTreeSet<KernelName>,
    paths: BTreeSet<String>,
}

impl UniqueIdentifiers {
    /// Finds the identifiers that only one of these disks has.
    pub fn from_disks(disks: &[InventoryDisk]) -> UniqueIdentifiers {
        let mut paths: BTreeMap<&str, usize> = BTreeMap::new();
        disks.iter().for_each(|disk| *paths.entry(&disk.by_path).or_default() += 1);
        UniqueIdentifiers {
            serials: find_unique_disks(disks, InventoryDisk::comparable_serial),
            wwns: find_unique_disks(disks, InventoryDisk::comparable_wwn),
            paths: paths.into_iter().filter(|(_, count)| *count == 1).map(|(path, _)| path.to_owned()).collect(),
        }
    }

    /// Returns whether the disk has a unique serial number.
    pub fn has_serial(&self, disk: &InventoryDisk) -> bool {
        self.serials.contains(&disk.name)
    }

    /// Returns whether the disk has a unique world wide name.
    pub fn has_wwn(&self, disk: &InventoryDisk) -> bool {
        self.wwns.contains(&disk.name)
    }

    /// Returns whether the text is the serial number, WWN or `by-path` link of this disk, and of no other disk of the
    /// machine. Returns false for a placeholder.
    pub fn is_named_by(&self, disk: &InventoryDisk, text: &str) -> bool {
        let is_serial = self.has_serial(disk) && is_same_serial(text, &disk.serial) == Some(true);
        let is_wwn = self.has_wwn(disk) && is_same_wwn(text, &disk.wwn) == Some(true);
        is_serial
            || is_wwn
            || (!text.is_empty() && is_same_by_path(&disk.by_path, text) && self.paths.contains(&disk.by_path))
    }
}

/// Disks of a machine, indexed by the comparable forms of their identifiers.
pub struct ComparableDiskIndex<'a> {
    disks: &'a [InventoryDisk],
    serials: BTreeMap<String, Vec<usize>>,
    wwns: BTreeMap<String, Vec<usize>>,
}

impl<'a> ComparableDiskIndex<'a> {
    pub fn new(disks: &'a [InventoryDisk]) -> ComparableDiskIndex<'a> {
        let (mut serials, mut wwns) = (BTreeMap::<String, Vec<usize>>::new(), BTreeMap::<String, Vec<usize>>::new());
        for (index, disk) in disks.iter().enumerate() {
            disk.comparable_serial().into_iter().for_each(|serial| serials.entry(serial).or_default().push(index));
            disk.comparable_wwn().into_iter().for_each(|wwn| wwns.entry(wwn).or_default().push(index));
        }
        ComparableDiskIndex { disks, serials, wwns }
    }

    /// Returns the first disk that has all specified identifiers. Returns `None` if there is no such disk, or if no
    /// identifier is specified.
    pub fn find_disk(&self, serial: Option<&String>, wwn: Option<&String>) -> Option<&'a InventoryDisk> {
        let with = |all: &'_ BTreeMap<String, Vec<usize>>, key: Option<&String>| {
            key.map(|key| all.get(key).cloned().unwrap_or_default())
        };
        let index = match (with(&self.serials, serial), with(&self.wwns, wwn)) {
            (Some(serials), Some(wwns)) => serials.into_iter().find(|index| wwns.binary_search(index).is_ok())?,
            (Some(all), None) | (None, Some(all)) => *all.first()?,
            (None, None) => return None,
        };
        self.disks.get(index)
    }
}

fn find_unique_disks(
    disks: &[InventoryDisk],
    identifier: fn(&InventoryDisk) -> Option<String>,
) -> BTreeSet<KernelName> {
    let mut names: BTreeMap<String, BTreeSet<&KernelName>> = BTreeMap::new();
    for disk in disks {
        if let Some(own) = identifier(disk) {
            names.entry(own).or_default().insert(&disk.name);
        }
    }
    names.into_values().filter(|names| names.len() == 1).flatten().cloned().collect()
}
