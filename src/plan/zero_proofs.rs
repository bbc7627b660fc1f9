//! What is taken for blank is read completely before the first write: that samples of it are zero proves nothing.
//!
//! | taken for blank, by samples | |
//! |---|---|
//! | a kept partition, array or volume on which a filesystem is made | read completely |
//! | a kept volume that becomes a volume of Kubernetes | read completely |
//! | an unlisted disk that becomes a volume of Kubernetes, in a reinstall | read completely |
//! | a kept disk that is made anew | read completely, but for the ends with the table |
//! | the same, and the records prove that it is another disk than the installation had | not read: it was replaced |
//! | an earlier attempt has begun to make it, and has read it before | not read: it may be half made |
//! | the operator gives up its disks | not read |
//!
//! No report of a device counts as a proof that a range is unallocated: neither discarded ranges nor thin provisioning.

use super::devices::Device;
use super::same::{Likeness, Shared, compare};
use super::sectors::MIB;
use super::verdict::Deciding;
use super::{ByteRange, Mode, ZeroProof};
use crate::device::DevicePath;
use crate::inventory::Disk;
use crate::layout;
use crate::marker::MarkedDisk;

impl<'a> Deciding<'a> {
    /// Requires that all of a kept device is zero, on which a filesystem is made.
    pub fn require_zeros_on(&mut self, device: &Device) {
        self.require_zeros(&device.now.clone(), device.size_bytes.unwrap_or_default());
    }

    /// Requires that all of a device is zero.
    pub fn require_zeros(&mut self, device: &DevicePath, size_bytes: u64) {
        self.require(device, vec![ByteRange { start: 0, length: size_bytes }]);
    }

    /// Requires that an unlisted disk is zero, which a volume takes. A first installation takes the samples for a proof: it has
    /// no order with which an operator could give up the disk instead of waiting for hours.
    pub fn require_zeros_of_unlisted(&mut self, disk: &Disk) {
        if self.request.mode == Mode::Reinstall {
            self.require_zeros(&disk.device, disk.size_bytes);
        }
    }

    /// Requires that a kept disk is zero, which is made anew.
    pub fn require_zeros_of(&mut self, listed: &layout::Disk, found: &Disk) {
        if self.is_replaced(listed, found) || self.was_being_made(&listed.device) {
            return;
        }
        let range = match &found.table {
            None => ByteRange { start: 0, length: found.size_bytes },
            // Its table is at both ends.
            Some(_) => ByteRange { start: MIB, length: found.size_bytes.saturating_sub(2 * MIB) },
        };
        self.require(&found.device, vec![range]);
    }

    fn require(&mut self, device: &DevicePath, ranges: Vec<ByteRange>) {
        let disks = self.disks_below(device);
        if !disks.is_empty() && disks.iter().all(|disk| self.is_given_up(disk)) {
            return;
        }
        let disks = self.inventory.disks.iter().filter(|disk| disks.contains(&disk.name));
        let serials: Vec<String> = disks.map(|disk| disk.serial.clone()).collect();
        let give_up = if serials.iter().any(String::is_empty) { Vec::new() } else { serials };
        self.decided.zero_proofs.push(ZeroProof { device: device.clone(), ranges, give_up });
    }

    /// Returns whether every record of the listed disk contradicts the disk that is found.
    fn is_replaced(&self, listed: &layout::Disk, found: &Disk) -> bool {
        let all = self.records.get_or_init(|| self.own_records()).iter();
        let records = all.flat_map(|(disks, shared)| {
            let records = disks.iter().filter(|record| record.device == listed.device);
            records.map(move |record| compare(record, &[], found, shared))
        });
        let likenesses: Vec<Likeness> = records.collect();
        !likenesses.is_empty() && likenesses.iter().all(|is| *is == Likeness::Contradicting)
    }

    /// Returns the disks of each record of this installation: of its markers, of the control plane, of the attempt that has begun.
    fn own_records(&self) -> Vec<(&'a [MarkedDisk], Shared)> {
        let Some(claim) = &self.request.claim else { return Vec::new() };
        let markers = self.inventory.filesystems.iter().filter_map(|filesystem| filesystem.marker.as_ref());
        let finished = markers.filter(|marker| claim.is_ours(marker)).chain(&claim.installed);
        let records = finished.map(|marker| marker.disks.as_slice()).chain([claim.begun_on.as_slice()]);
        records.map(|disks| (disks, Shared::new(self.inventory, disks))).collect()
    }
}
