//! Devices that are assumed to be blank and are read completely before the first write: zero samples are not a proof.
//!
//! | assumed to be blank, by samples | |
//! |---|---|
//! | a preserved partition, array or volume on which a filesystem is created | read completely |
//! | a preserved volume that becomes a Kubernetes volume | read completely |
//! | an unlisted disk that becomes a Kubernetes volume, in a reinstall | read completely |
//! | a preserved disk that is recreated | read completely, except the ends with the table |
//! | the same, and the records prove that it is not the disk of the installation | not read: it was replaced |
//! | an earlier attempt has started to create it, and has read it before | not read: it may be unfinished |
//! | the operator discards its disks | not read |
//!
//! No report of a device counts as a proof that a range is unallocated: neither discarded ranges nor thin provisioning.

use super::InstallMode;
use super::decider::PlanDecider;
use super::devices::PlannedDevice;
use super::recorded_disk_match::{DiskLikeness, SharedIdentifiers, compare_disk};
use super::sectors::MIB;
use model::device::DevicePath;
use model::install_marker::RecordedDisk;
use model::inventory::InventoryDisk;
use model::layout;
use operations::{ByteRange, ZeroProof};

impl<'a> PlanDecider<'a> {
    /// Requires that a preserved device is zero on which a filesystem is created.
    pub(crate) fn require_zeros_on(&mut self, device: &PlannedDevice) {
        self.require_zeros(&device.now.clone(), device.size_bytes.unwrap_or_default());
    }

    /// Requires that a whole device is zero.
    pub(crate) fn require_zeros(&mut self, device: &DevicePath, size_bytes: u64) {
        self.add_zero_proof(device, vec![ByteRange { start: 0, length: size_bytes }]);
    }

    /// Requires that an unlisted disk is zero that a volume takes. A first installation accepts samples: it has no order in which an
    /// operator could discard the disk instead of waiting for hours.
    pub(crate) fn require_zeros_of_unlisted(&mut self, disk: &InventoryDisk) {
        if self.request.mode == InstallMode::Reinstall {
            self.require_zeros(&disk.device, disk.size_bytes);
        }
    }

    /// Requires that a preserved disk is zero that is recreated.
    pub fn require_zeros_of(&mut self, listed: &layout::DiskSpec, found: &InventoryDisk) {
        if self.is_replaced(listed, found) || self.was_being_made(&listed.device) {
            return;
        }
        let range = match &found.table {
            None => ByteRange { start: 0, length: found.size_bytes },
            // The table is at both ends.
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

    /// Returns whether every record of the listed disk contradicts the disk that is found.
    fn is_replaced(&self, listed: &layout::DiskSpec, found: &InventoryDisk) -> bool {
        let all = self.records.get_or_init(|| self.own_records()).iter();
        let records = all.flat_map(|(disks, shared)| {
            let records = disks.iter().filter(|record| record.device == listed.device);
            records.map(move |record| compare_disk(record, &[], found, shared))
        });
        let likenesses: Vec<DiskLikeness> = records.collect();
        !likenesses.is_empty() && likenesses.iter().all(|is| *is == DiskLikeness::Contradicting)
    }

    /// Returns the disks of each record of this installation: of its markers, of the control plane, of the started attempt.
    fn own_records(&self) -> Vec<(&'a [RecordedDisk], SharedIdentifiers)> {
        let Some(claim) = &self.request.claim else { return Vec::new() };
        let markers = self.inventory.filesystems.iter().filter_map(|filesystem| filesystem.marker.as_ref());
        let finished = markers.filter(|marker| claim.is_ours(marker)).chain(&claim.installed);
        let records = finished.map(|marker| marker.disks.as_slice()).chain([claim.begun_on.as_slice()]);
        records.map(|disks| (disks, SharedIdentifiers::new(self.inventory, disks))).collect()
    }
}
