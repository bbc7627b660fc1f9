//! Devices that are assumed to be blank, because samples of them are zero. Samples do not prove that a device is blank,
//! so these devices are read completely before the first write.
//!
//! | a device with samples that are all zero | the device |
//! |---|---|
//! | a preserved partition, array or volume on which a filesystem is created | is read completely |
//! | a preserved volume that becomes a Kubernetes volume | is read completely |
//! | an unlisted disk that becomes a Kubernetes volume, in a reinstall | is read completely |
//! | a preserved disk that is recreated | is read completely, except the ends with the partition table |
//! | a preserved disk that is recreated, and whose serial number or WWN differs from every record of it | is not read: the recorded disk was replaced |
//! | a disk that will be wiped in a reinstall, without records of the control plane, or on a machine that may not be the one of the machine file | is read completely, unless its identity is known (`require_zeros_of_wiped`) |
//! | a device that an earlier attempt read completely and then started to write | is not read: it may contain an unfinished object |
//! | a device whose disks the operator discards | is not read |
//!
//! Ranges that a device reports as unallocated, after a discard or because of thin provisioning, are read like all
//! other ranges.

use super::installed_disk_identity::DiskRecords;
use super::partition_placement::MIB;
use super::planned_devices::PlannedDevice;
use super::planner_state::PlannerState;
use super::recorded_disk_match::{SharedIdentifiers, has_other_hardware, has_recorded_hardware};
use super::unrecorded_disks::is_identified;
use super::{InstallClaim, InstallMode};
use model::allocation::RecordSource;
use model::device_name::DevicePath;
use model::install_marker::{InstallMarker, RecordedDisk};
use model::inventory::InventoryDisk;
use model::layout;
use operations::{ByteRange, ZeroProof};
use std::collections::BTreeSet;

/// Disks of a record, and the identifiers that are not unique among them and the present disks.
type RecordedDisks<'a> = (&'a [RecordedDisk], SharedIdentifiers);

impl<'a> PlannerState<'a> {
    /// Requires a preserved device to contain only zeros, because a filesystem is created on it.
    pub(crate) fn require_zeros_on(&mut self, device: &PlannedDevice) {
        self.require_zeros(&device.now.clone(), device.size_bytes.unwrap_or_default());
    }

    /// Requires a whole device to contain only zeros.
    pub(crate) fn require_zeros(&mut self, device: &DevicePath, size_bytes: u64) {
        self.add_zero_proof(device, vec![ByteRange { start: 0, length: size_bytes }]);
    }

    /// Requires an unlisted disk to contain only zeros if a reinstall creates a Kubernetes volume on it. In a first
    /// installation, samples are sufficient: reading the disk may take hours, and without a reinstall order, the
    /// operator cannot discard the disk.
    pub(crate) fn require_zeros_of_unlisted(&mut self, disk: &InventoryDisk) {
        if self.request.mode == InstallMode::Reinstall {
            self.require_zeros(&disk.device, disk.size_bytes);
        }
    }

    /// Requires a preserved disk to contain only zeros, because it is recreated.
    pub fn require_zeros_of(&mut self, listed: &layout::DiskSpec, found: &InventoryDisk) {
        if self.is_replaced(listed, found) || self.was_being_recreated(&listed.device) {
            return;
        }
        let range = match &found.table {
            None => ByteRange { start: 0, length: found.size_bytes },
            // The partition table is at both ends of the disk, which are therefore not read.
            Some(_) => ByteRange { start: MIB, length: found.size_bytes.saturating_sub(2 * MIB) },
        };
        self.add_zero_proof(&found.device, vec![range]);
    }

    /// Requires blank disks that will be wiped to contain only zeros, if only their samples permit the wipe. Kernel
    /// names change, so such a disk may be a disk with data under the name of a disk that may be wiped.
    ///
    /// | a blank disk that will be wiped | the disk |
    /// |---|---|
    /// | is identified by the layout, is the recorded disk or the disk of the started attempt | is not read |
    /// | has a unique serial number or WWN, which differ from those of all other recorded disks | is not read: the disk was inserted as a replacement, and reading several TB would take hours |
    /// | has a unique serial number or WWN, and no disk is recorded | is read in a reinstall, because the machine has data; is not read in a first installation |
    /// | any of these, on a machine that may not be the one of the machine file | is read, unless the layout or a record identifies it |
    /// | any other disk | is read |
    ///
    /// With the records of the control plane, a first installation is not checked: it may wipe any listed disk.
    pub(crate) fn require_zeros_of_wiped(&mut self) {
        let request = self.request;
        let Some(claim) = &request.claim else { return };
        let is_doubted = request.assigned.allocation.blank_only.is_some();
        let is_install = request.mode == InstallMode::Install;
        if is_install && claim.memory != RecordSource::DisksOnly && !is_doubted {
            return;
        }
        let records = self.collect_records(InstallClaim::is_of_this_machine);
        let started = DiskRecords::new(self.inventory, &[], &claim.begun_on, BTreeSet::new());
        let layout = self.layout;
        for (index, listed) in layout.disks.iter().enumerate() {
            let Some(found) = self.found.get(&index).copied() else { continue };
            if !found.blank || !self.verdict(&found.name).loses_data() || is_identified(listed, found) {
                continue;
            }
            let begun = started.record_of(&listed.device);
            let has_begun = begun.is_some_and(|record| match is_doubted {
                true => started.is_recorded_disk(record, found),
                false => started.is_attempt_disk(record, found),
            });
            let is_new = !is_doubted && self.is_new_disk(&records, listed, found, is_install);
            if !has_begun && !is_new && !is_recorded_as(&records, listed, found) {
                self.require_zeros(&found.device, found.size_bytes);
            }
        }
    }

    /// Returns whether the serial number or WWN distinguishes the disk from all disks that are recorded under other
    /// names. `without_records` is the result if no disk is recorded.
    fn is_new_disk(
        &self,
        records: &[RecordedDisks],
        listed: &layout::DiskSpec,
        found: &InventoryDisk,
        without_records: bool,
    ) -> bool {
        let all = || records.iter().flat_map(|(disks, shared)| disks.iter().map(move |record| (record, shared)));
        let is_unique = self.identifiers.has_serial(found) || self.identifiers.has_wwn(found);
        let mut others = all().filter(|(record, _)| record.device != listed.device);
        let differs = others.all(|(record, shared)| has_other_hardware(record, found, shared));
        is_unique && differs && (without_records || all().next().is_some())
    }

    fn add_zero_proof(&mut self, device: &DevicePath, ranges: Vec<ByteRange>) {
        let disks = self.disks_below(device);
        if !disks.is_empty() && disks.iter().all(|disk| self.is_discarded(disk)) {
            return;
        }
        let disks = self.inventory.disks.iter().filter(|disk| disks.contains(&disk.name));
        let serials: Vec<String> = disks.map(|disk| disk.serial.clone()).collect();
        // A first installation has no order that could discard the disks.
        let is_ordered = self.request.mode == InstallMode::Reinstall && !serials.iter().any(String::is_empty);
        let give_up = if is_ordered { serials } else { Vec::new() };
        self.decided.zero_proofs.push(ZeroProof { device: device.clone(), ranges, give_up });
    }

    /// Returns whether the recorded disk was replaced by `found`: the disk of the layout has records, and the serial
    /// number or WWN of `found` differs from each of these records. Another size or model alone proves nothing: a
    /// virtual disk may have been resized, and a failing disk may report other values.
    fn is_replaced(&self, listed: &layout::DiskSpec, found: &InventoryDisk) -> bool {
        let all = self.records.get_or_init(|| self.collect_records(InstallClaim::is_ours)).iter();
        let records = all.flat_map(|(disks, shared)| {
            let records = disks.iter().filter(|record| record.device == listed.device);
            records.map(move |record| has_other_hardware(record, found, shared))
        });
        let is_different: Vec<bool> = records.collect();
        !is_different.is_empty() && is_different.iter().all(|is_different| *is_different)
    }

    /// Returns the disks in each record. The records come from the markers for which `is_included` returns true, the
    /// control plane, and the started attempt.
    fn collect_records(&self, is_included: fn(&InstallClaim, &InstallMarker) -> bool) -> Vec<RecordedDisks<'a>> {
        let Some(claim) = &self.request.claim else { return Vec::new() };
        let markers = self.inventory.filesystems.iter().filter_map(|filesystem| filesystem.marker.as_ref());
        let finished = markers.filter(|marker| is_included(claim, marker)).chain(&claim.installed);
        let records = finished.map(|marker| marker.disks.as_slice()).chain([claim.begun_on.as_slice()]);
        records.map(|disks| (disks, SharedIdentifiers::new(self.inventory, disks))).collect()
    }
}

/// Returns whether a record proves by serial number or WWN that the disk is the one recorded under its name in the
/// layout.
fn is_recorded_as(records: &[RecordedDisks], listed: &layout::DiskSpec, found: &InventoryDisk) -> bool {
    records.iter().any(|(disks, shared)| {
        let mut records = disks.iter().filter(|record| record.device == listed.device);
        records.any(|record| has_recorded_hardware(record, found, shared))
    })
}
