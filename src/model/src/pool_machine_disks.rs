//! Disks of a pool machine: disks that earlier boots have recorded, and disks that were connected after an erasure.
//!
//! A disk that is absent cannot be erased, and may contain an install marker. The absence of a recorded disk is
//! therefore reported.

use crate::device_name::KernelName;
use crate::inventory::{Inventory, InventoryDisk};
use crate::layout::root_device_hints::is_portable;
use common::format;
use serde::{Deserialize, Serialize};

/// Maximum number of recorded disks that are [written off](KnownDisk::written_off). If there are more such disks, the
/// remaining ones are not recorded.
const MAXIMUM_WRITTEN_OFF: usize = 16;

/// Maximum length of a recorded serial number or WWN, in bytes.
const MAXIMUM_NAME_BYTES: usize = 128;

/// Disk that an earlier boot has recorded. Serial number and WWN are empty if only the size is known.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct KnownDisk {
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub serial: String,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub wwn: String,
    pub size_bytes: u64,
    /// True if the machine was erased while this disk was absent. The absence of the disk is then still reported, but
    /// no longer prevents the use of the machine.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub written_off: bool,
}

impl KnownDisk {
    fn from_disk(disk: &InventoryDisk) -> KnownDisk {
        let short = |name: &str| if name.len() > MAXIMUM_NAME_BYTES { String::new() } else { name.to_owned() };
        let (serial, wwn) = (short(&disk.serial), short(&disk.wwn));
        KnownDisk { serial, wwn, size_bytes: disk.size_bytes, written_off: false }
    }

    fn is_same(&self, disk: &InventoryDisk) -> bool {
        let other = KnownDisk::from_disk(disk);
        (&self.serial, &self.wwn, self.size_bytes) == (&other.serial, &other.wwn, other.size_bytes)
    }
}

impl std::fmt::Display for KnownDisk {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let name = match (self.serial.as_str(), self.wwn.as_str()) {
            ("", "") => "without a recorded serial number".to_owned(),
            ("", wwn) => format!("with WWN {}", format::replace_hidden(wwn)),
            (serial, _) => format!("with serial number {}", format::replace_hidden(serial)),
        };
        write!(f, "disk {name} ({})", format::format_bytes(self.size_bytes))
    }
}

/// Returns the known disks that are absent and were not replaced. A known disk is present if a disk with its
/// identifiers and size is found. A disk that matches no known disk is treated as the replacement of one absent disk of
/// the same size.
pub fn find_missing(known: &[KnownDisk], disks: &[InventoryDisk]) -> Vec<KnownDisk> {
    let mut unmatched: Vec<&InventoryDisk> = disks.iter().collect();
    let mut take = |is_match: &dyn Fn(&InventoryDisk) -> bool| {
        let found = unmatched.iter().position(|disk| is_match(disk));
        found.map(|index| unmatched.swap_remove(index)).is_some()
    };
    let renamed: Vec<&KnownDisk> = known.iter().filter(|known| !take(&|disk| known.is_same(disk))).collect();
    let missing = renamed.into_iter().filter(|known| !take(&|disk| known.size_bytes == disk.size_bytes));
    missing.cloned().collect()
}

/// Returns the disks to record for later boots: all connected disks except those that are removable or attached by USB,
/// and the known disks that are absent (at most `MAXIMUM_WRITTEN_OFF` written-off ones).
pub fn disks_to_record(disks: &[InventoryDisk], missing: &[KnownDisk]) -> Vec<KnownDisk> {
    let present = disks.iter().filter(|disk| !is_portable(disk)).map(KnownDisk::from_disk);
    let (written_off, missed): (Vec<&KnownDisk>, Vec<_>) = missing.iter().partition(|disk| disk.written_off);
    // Disks that are not written off come first, because `find_missing` matches a replacement with the first absent
    // disk of the same size.
    let written_off = written_off.into_iter().take(MAXIMUM_WRITTEN_OFF);
    present.chain(missed.into_iter().chain(written_off).cloned()).collect()
}

/// Identity of a connected disk. A disk that was disconnected and reconnected counts as a different disk, because it
/// has a new sequence number.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConnectedDisk {
    name: KernelName,
    sequence_number: u64,
    size_bytes: u64,
    serial: String,
    wwn: String,
}

impl From<&InventoryDisk> for ConnectedDisk {
    fn from(disk: &InventoryDisk) -> ConnectedDisk {
        ConnectedDisk {
            name: disk.name.clone(),
            sequence_number: disk.diskseq,
            size_bytes: disk.size_bytes,
            serial: disk.serial.clone(),
            wwn: disk.wwn.clone(),
        }
    }
}

/// Returns the inventory reduced to the disks that were connected after the disks in `erased` were erased; `None` if no
/// disk was connected after that. Removable disks are ignored.
pub fn find_newcomers(erased: &[ConnectedDisk], inventory: &Inventory) -> Option<Inventory> {
    let is_new = |disk: &&InventoryDisk| !disk.removable && !erased.contains(&ConnectedDisk::from(*disk));
    let disks: Vec<InventoryDisk> = inventory.disks.iter().filter(is_new).cloned().collect();
    (!disks.is_empty()).then(|| Inventory { disks, ..inventory.clone() })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn disk(name: &str, serial: &str, gib: u64) -> InventoryDisk {
        InventoryDisk {
            name: name.into(),
            serial: serial.into(),
            size_bytes: gib << 30,
            diskseq: 7,
            ..InventoryDisk::default()
        }
    }

    fn known(serial: &str, gib: u64) -> KnownDisk {
        KnownDisk { serial: serial.into(), size_bytes: gib << 30, ..KnownDisk::default() }
    }

    #[test]
    fn equally_large_replacement_makes_a_disk_not_missing() {
        let two = [disk("sda", "A", 10), disk("sdb", "B", 20)];
        let same = [disk("sda", "0000", 10), disk("sdb", "0000", 10)];
        for (before, now, missing) in [
            (vec![], &two[..], vec![]),
            (vec![known("A", 10), known("B", 20)], &two[..], vec![]),
            (vec![known("B", 20), known("A", 10)], &two[..], vec![]),
            (vec![known("A", 10), known("C", 30)], &two[..], vec![known("C", 30)]),
            (vec![known("A", 10), known("B", 20)], &two[..1], vec![known("B", 20)]),
            // A disk was replaced by one of the same size, and by one of another size.
            (vec![known("A", 10), known("C", 20)], &two[..], vec![]),
            (vec![known("A", 10), known("B", 21)], &two[..], vec![known("B", 21)]),
            // Two disks with the same placeholder are different disks.
            (vec![known("0000", 10), known("0000", 10)], &same[..], vec![]),
            (vec![known("0000", 10), known("0000", 10)], &same[..1], vec![known("0000", 10)]),
            // The control plane may have recorded only the sizes.
            (vec![known("", 20), known("", 10)], &two[..], vec![]),
            (vec![known("", 20), known("", 20)], &two[..], vec![known("", 20)]),
        ] {
            assert_eq!(find_missing(&before, now), missing, "{before:?} {now:?}");
        }
    }

    #[test]
    fn missing_disk_remains_recorded_until_it_returns() {
        let (one, both) = ([disk("sda", "A", 10)], [disk("sda", "A", 10), disk("sdb", "B", 20)]);
        let memory = disks_to_record(&both, &[]);
        assert_eq!(memory, [known("A", 10), known("B", 20)]);
        for _ in 0..3 {
            let missing = find_missing(&memory, &one);
            assert_eq!((missing.len(), disks_to_record(&one, &missing)), (1, memory.clone()));
        }
        let lost = KnownDisk { written_off: true, ..known("B", 20) };
        let memory = disks_to_record(&one, std::slice::from_ref(&lost));
        assert_eq!(find_missing(&memory, &one), [lost]);
        assert_eq!(disks_to_record(&both, &find_missing(&memory, &both)), [known("A", 10), known("B", 20)]);
    }

    #[test]
    fn replacement_first_substitutes_a_missed_disk() {
        let (lost, missed) = (KnownDisk { written_off: true, ..known("L", 10) }, known("M", 10));
        let memory = disks_to_record(&[], &[lost.clone(), missed]);
        assert_eq!(find_missing(&memory, &[disk("sda", "new", 10)]), [lost]);
    }

    /// The records are stored in a firmware variable, which must remain small even if a disk reports a long serial
    /// number.
    #[test]
    fn disk_records_are_limited_in_number_and_length() {
        let lost: Vec<KnownDisk> =
            (0..100).map(|number| KnownDisk { written_off: true, ..known("L", number) }).collect();
        assert_eq!(disks_to_record(&[], &lost).len(), MAXIMUM_WRITTEN_OFF);
        assert_eq!(disks_to_record(&[disk("sda", &"x".repeat(4096), 1)], &[])[0].serial, "");
        let stick = InventoryDisk { removable: true, ..disk("sdz", "Z", 1) };
        let usb = InventoryDisk { transport: "usb".into(), ..disk("sdy", "Y", 1) };
        assert_eq!(disks_to_record(&[stick, usb], &[]), []);
    }

    #[test]
    fn disk_that_was_not_erased_is_a_newcomer() {
        let erased = [ConnectedDisk::from(&disk("sda", "A", 10))];
        let again = InventoryDisk { diskseq: 8, ..disk("sda", "A", 10) };
        let stick = InventoryDisk { removable: true, ..disk("sdb", "B", 20) };
        for (disks, newcomers) in [
            (vec![disk("sda", "A", 10)], None),
            (vec![], None),
            (vec![disk("sda", "A", 10), disk("sdb", "B", 20)], Some(vec![disk("sdb", "B", 20)])),
            // The disk was disconnected and reconnected, or replaced by another one.
            (vec![again.clone()], Some(vec![again])),
            (vec![disk("sda", "C", 10)], Some(vec![disk("sda", "C", 10)])),
            (vec![disk("sda", "A", 10), stick], None),
        ] {
            let inventory = Inventory { disks, ..Inventory::default() };
            let found = find_newcomers(&erased, &inventory).map(|inventory| inventory.disks);
            assert_eq!(found, newcomers, "{inventory:?}");
        }
    }
}
