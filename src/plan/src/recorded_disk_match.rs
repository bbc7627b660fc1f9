//! Comparison of a disk with the record of a disk, by all properties that are known for both of them.

use super::recorded_disk::table_guid;
use model::disk_identifiers::{is_same_serial, is_same_wwn};
use model::install_marker::RecordedDisk;
use model::inventory::{Inventory, InventoryDisk};
use std::collections::{BTreeMap, BTreeSet};

/// Result of the comparison of a record with a disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum DiskLikeness {
    /// Record and disk have a unique identifier in common, and no property differs.
    Equal,
    /// A property differs: either the disk is not the recorded disk, or the disk has changed since it was recorded.
    Contradicting,
    /// Record and disk have no unique identifier in common, and no property differs.
    Inconclusive,
}

/// Identifiers that are not unique, because two present disks or two recorded disks share them.
#[derive(Debug, Default)]
pub(crate) struct SharedIdentifiers {
    serials: BTreeSet<String>,
    wwns: BTreeSet<String>,
    guids: BTreeSet<String>,
}

impl SharedIdentifiers {
    pub(crate) fn new(inventory: &Inventory, recorded: &[RecordedDisk]) -> SharedIdentifiers {
        let disks = &inventory.disks;
        let mut serials = repeated_values(disks.iter().filter_map(InventoryDisk::comparable_serial));
        serials.extend(repeated_values(recorded.iter().filter_map(RecordedDisk::comparable_serial)));
        let mut wwns = repeated_values(disks.iter().filter_map(InventoryDisk::comparable_wwn));
        wwns.extend(repeated_values(recorded.iter().filter_map(RecordedDisk::comparable_wwn)));
        let mut guids = repeated_values(disks.iter().filter_map(table_guid));
        guids.extend(repeated_values(recorded.iter().filter_map(|record| record.guid.clone())));
        SharedIdentifiers { serials, wwns, guids }
    }

    fn has_serial(&self, disk: &InventoryDisk) -> bool {
        disk.comparable_serial().is_some_and(|serial| self.serials.contains(&serial))
    }

    fn has_wwn(&self, disk: &InventoryDisk) -> bool {
        disk.comparable_wwn().is_some_and(|wwn| self.wwns.contains(&wwn))
    }
}

/// Index of disks or records by identifier. It finds the candidates for [`may_be_recorded_disk`], so that not every
/// disk is compared with every record.
#[derive(Debug, Default)]
pub(crate) struct MatchCandidates {
    by_serial: BTreeMap<String, Vec<usize>>,
    by_wwn: BTreeMap<String, Vec<usize>>,
    by_guid: BTreeMap<String, Vec<usize>>,
}

impl MatchCandidates {
    pub(crate) fn of_disks(disks: &[InventoryDisk]) -> MatchCandidates {
        let mut all = MatchCandidates::default();
        for (index, disk) in disks.iter().enumerate() {
            all.add_candidate(index, [disk.comparable_serial(), disk.comparable_wwn(), table_guid(disk)]);
        }
        all
    }

    pub(crate) fn of_records(records: &[RecordedDisk]) -> MatchCandidates {
        let mut all = MatchCandidates::default();
        for (index, record) in records.iter().enumerate() {
            all.add_candidate(index, [record.comparable_serial(), record.comparable_wwn(), record.guid.clone()]);
        }
        all
    }

    fn add_candidate(&mut self, index: usize, [serial, wwn, guid]: [Option<String>; 3]) {
        for (all, key) in [(&mut self.by_serial, serial), (&mut self.by_wwn, wwn), (&mut self.by_guid, guid)] {
            if let Some(key) = key {
                all.entry(key).or_default().push(index);
            }
        }
    }

    /// Returns the indices, in order, of all entries that share an identifier with the disk.
    pub(crate) fn find_like_disk(&self, disk: &InventoryDisk) -> BTreeSet<usize> {
        self.find_like([disk.comparable_serial(), disk.comparable_wwn(), table_guid(disk)])
    }

    /// Returns the indices, in order, of all entries that share an identifier with the record.
    pub(crate) fn find_like_record(&self, record: &RecordedDisk) -> BTreeSet<usize> {
        self.find_like([record.comparable_serial(), record.comparable_wwn(), record.guid.clone()])
    }

    fn find_like(&self, [serial, wwn, guid]: [Option<String>; 3]) -> BTreeSet<usize> {
        let all = [(&self.by_serial, serial), (&self.by_wwn, wwn), (&self.by_guid, guid)];
        all.into_iter().filter_map(|(all, key)| all.get(&key?)).flatten().copied().collect()
    }
}

/// Returns the values that occur more than once.
fn repeated_values<T: Ord + Clone>(all: impl Iterator<Item = T>) -> BTreeSet<T> {
    let mut seen = BTreeSet::new();
    all.filter(|one| !seen.insert(one.clone())).collect()
}

/// Compares a record with a disk. `guids` contains all GUIDs that the partition table of the recorded disk may have:
/// the GUID from the completed installation, and the GUIDs from an interrupted attempt.
///
/// A missing partition table is not a contradiction, because the disk may have been wiped. A different slot is also
/// not a contradiction, because operators move disks. Only the common prefix of the models is compared, because
/// kernels truncate models to different lengths.
pub(crate) fn compare_disk(
    record: &RecordedDisk,
    guids: &[&str],
    disk: &InventoryDisk,
    shared: &SharedIdentifiers,
) -> DiskLikeness {
    let guid = table_guid(disk).filter(|_| !guids.is_empty());
    let same_guid = guid.as_deref().map(|guid| guids.contains(&guid));
    let identifiers = [
        (is_same_serial(&record.serial, &disk.serial), shared.has_serial(disk)),
        (is_same_wwn(&record.wwn, &disk.wwn), shared.has_wwn(disk)),
        (same_guid, guid.is_some_and(|guid| shared.guids.contains(&guid))),
    ];
    if identifiers.iter().any(|(same, _)| *same == Some(false)) || !has_same_shape(record, disk) {
        return DiskLikeness::Contradicting;
    }
    match identifiers.iter().any(|(same, is_shared)| *same == Some(true) && !is_shared) {
        true => DiskLikeness::Equal,
        false => DiskLikeness::Inconclusive,
    }
}

/// Returns whether the disk may be the recorded one. Serial number and WWN must not differ, and one of them or the GUID
/// of the partition table must be the same. Other differences are ignored, because this function searches for a disk
/// that was moved.
pub(crate) fn may_be_recorded_disk(record: &RecordedDisk, disk: &InventoryDisk, shared: &SharedIdentifiers) -> bool {
    let has_its_table = |guid: String| !shared.guids.contains(&guid) && record.guid == Some(guid);
    match compare_hardware(record, disk, shared) {
        Some(is_same) => is_same,
        None => table_guid(disk).is_some_and(has_its_table),
    }
}

/// Returns whether the serial number or WWN proves that the disk is the recorded one. Size, sector size and model are
/// ignored: a virtual disk may have been resized, and a failing disk or a new firmware may report other values.
pub(crate) fn has_recorded_hardware(record: &RecordedDisk, disk: &InventoryDisk, shared: &SharedIdentifiers) -> bool {
    compare_hardware(record, disk, shared) == Some(true)
}

/// Returns whether the serial number or WWN proves that the disk is not the recorded one. A different size, sector size
/// or model proves nothing, as for [`has_recorded_hardware`].
pub(crate) fn has_other_hardware(record: &RecordedDisk, disk: &InventoryDisk, shared: &SharedIdentifiers) -> bool {
    compare_hardware(record, disk, shared) == Some(false)
}

/// Compares serial number and WWN. Returns false if one of them differs, true if one of them is the same and unique,
/// and `None` if neither is the case.
fn compare_hardware(record: &RecordedDisk, disk: &InventoryDisk, shared: &SharedIdentifiers) -> Option<bool> {
    let pairs = [
        (is_same_serial(&record.serial, &disk.serial), shared.has_serial(disk)),
        (is_same_wwn(&record.wwn, &disk.wwn), shared.has_wwn(disk)),
    ];
    if pairs.iter().any(|(same, _)| *same == Some(false)) {
        return Some(false);
    }
    pairs.iter().any(|(same, is_shared)| *same == Some(true) && !is_shared).then_some(true)
}

/// Returns whether the disk looks like the recorded one and is in the same slot. This evidence is weak, but there is no
/// better evidence for a disk without identifiers.
pub(crate) fn looks_like(record: &RecordedDisk, disk: &InventoryDisk) -> bool {
    let in_its_place = !record.by_path.is_empty() && record.by_path == disk.by_path;
    let of_its_size = record.size_bytes == disk.size_bytes && record.sector_bytes == disk.sector_bytes;
    in_its_place && of_its_size && record.model == disk.model
}

/// Returns whether the serial number or WWN proves that the disk is the recorded one, and only the size of the disk
/// differs.
pub(crate) fn has_other_size_only(record: &RecordedDisk, disk: &InventoryDisk) -> bool {
    let same = [is_same_serial(&record.serial, &disk.serial), is_same_wwn(&record.wwn, &disk.wwn)];
    let resized = InventoryDisk { size_bytes: record.size_bytes, ..InventoryDisk::default() };
    let resized = InventoryDisk { model: disk.model.clone(), sector_bytes: disk.sector_bytes, ..resized };
    record.size_bytes != disk.size_bytes
        && same.contains(&Some(true))
        && !same.contains(&Some(false))
        && has_same_shape(record, &resized)
}

/// Compares the size, sector size and model of a disk with the recorded values, as far as they are known.
fn has_same_shape(record: &RecordedDisk, disk: &InventoryDisk) -> bool {
    let model = record.model.starts_with(&disk.model) || disk.model.starts_with(&record.model);
    let same = |recorded: u64, found: u64| recorded == 0 || found == 0 || recorded == found;
    model && same(record.size_bytes, disk.size_bytes) && same(record.sector_bytes.into(), disk.sector_bytes.into())
}

/// Describes all recorded properties: `serial A0, wwn 0x5, GPT …, 480 GB, SAMSUNG …`.
pub(crate) fn describe_record_fully(record: &RecordedDisk) -> String {
    describe_fully(
        &record.serial,
        &record.wwn,
        record.guid.as_deref(),
        record.size_bytes,
        record.sector_bytes,
        &record.model,
        &record.by_path,
    )
}

pub(crate) fn describe_disk_fully(disk: &InventoryDisk) -> String {
    let guid = table_guid(disk);
    describe_fully(
        &disk.serial,
        &disk.wwn,
        guid.as_deref(),
        disk.size_bytes,
        disk.sector_bytes,
        &disk.model,
        &disk.by_path,
    )
}

fn describe_fully(
    serial: &str,
    wwn: &str,
    guid: Option<&str>,
    size: u64,
    sector_bytes: u32,
    model: &str,
    by_path: &str,
) -> String {
    let or_none = |text: &str| if text.is_empty() { "none".to_owned() } else { text.to_owned() };
    let sectors = if sector_bytes == 0 { String::new() } else { format!(" with sectors of {sector_bytes}") };
    let mut all = format!(
        "serial {serial}, wwn {wwn}, GPT {guid}, {size} bytes{sectors}",
        serial = or_none(serial),
        wwn = or_none(wwn),
        guid = guid.unwrap_or("none")
    );
    for (what, text) in [("model", model), ("at", by_path)] {
        if !text.is_empty() {
            all += &format!(", {what} {text}");
        }
    }
    all
}
