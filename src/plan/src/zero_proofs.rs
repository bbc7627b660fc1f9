//! Devices that are assumed to be blank, because samples of them are zero. Samples do not prove that a device is blank,
//! so these devices are read completely before the first write.
//!
//! | a device with samples that are all zero | the device |
//! |---|---|
//! | a preserved partition, array or volume on which a filesystem is created | is read completely |
//! | a preserved volume that becomes a Kubernetes volume | is read completely |
//! | an unlisted disk that becomes a Kubernetes volume, in a reinstall | is read completely |
//! | a preserved disk that is recreated | is read completely, except the ends with the partition table |
//! | a preserved disk that is recreated, that differs from the recorded disk, and that has neither its serial number nor its WWN | is not read: the recorded disk was replaced |
//! | a device that an earlier attempt read completely and then started to write | is not read: it may contain an unfinished object |
//! | a device whose disks the operator discards | is not read |
//!
//! Ranges that a device reports as unallocated, after a discard or because of thin provisioning, are read like all
//! other ranges.

use super::InstallMode;
use super::partition_placement::MIB;
use super::planned_devices::PlannedDevice;
use super::planner_state::PlannerState;
use super::recorded_disk_match::{DiskLikeness, SharedIdentifiers, compare_disk, has_recorded_hardware};
use model::device_name::DevicePath;
use model::install_marker::RecordedDisk;
use model::inventory::InventoryDisk;
use model::layout;
use operations::{ByteRange, ZeroProof};

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

    fn add_zero_proof(&mut self, device: &DevicePath, ranges: Vec<ByteRange>) {
        let disks = self.disks_below(device);
        if !disks.is_empty() && disks.iter().all(|disk| self.is_discarded(disk)) {
            return;
        }
        let disks = self.inventory.disks.iter().filter(|disk| disks.contains(&disk.name));
        let serials: Vec<String> = disks.map(|disk| disk.serial.clone()).collect();
        let give_up = if serials.iter().any(String::is_empty) { Vec::new() } else { serials };
        self.decided.zero_proofs.push(ZeroProof { device: device.clone(), ranges, give_up });
    }

    /// Returns whether the recorded disk was replaced by `found`: the disk of the layout has records, each of these
    /// records contradicts `found`, and no serial number or WWN identifies `found` as the recorded disk.
    fn is_replaced(&self, listed: &layout::DiskSpec, found: &InventoryDisk) -> bool {
        let all = self.records.get_or_init(|| self.own_records()).iter();
        let records = all.flat_map(|(disks, shared)| {
            let records = disks.iter().filter(|record| record.device == listed.device);
            records.map(move |record| {
                compare_disk(record, &[], found, shared) == DiskLikeness::Contradicting
                    && !has_recorded_hardware(record, found, shared)
            })
        });
        let is_different: Vec<bool> = records.collect();
        !is_different.is_empty() && is_different.iter().all(|is_different| *is_different)
    }

    /// Returns the disks in each record of this installation. The records come from the markers, the control plane, and
    /// the started attempt.
    fn own_records(&self) -> Vec<(&'a [RecordedDisk], SharedIdentifiers)> {
        let Some(claim) = &self.request.claim else { return Vec::new() };
        let markers = self.inventory.filesystems.iter().filter_map(|filesystem| filesystem.marker.as_ref());
        let finished = markers.filter(|marker| claim.is_ours(marker)).chain(&claim.installed);
        let records = finished.map(|marker| marker.disks.as_slice()).chain([claim.begun_on.as_slice()]);
        records.map(|disks| (disks, SharedIdentifiers::new(self.inventory, disks))).collect()
    }
}
