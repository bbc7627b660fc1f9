//! Record of the objects that an attempt will create on preserved disks. It is sent to the control plane before the first write, so that
//! the next attempt can complete them after an interruption: an interrupted mkfs leaves unrecognized data, or a filesystem that cannot be
//! mounted.

use super::begun_attempt::{BegunAttempt, unique_id};
use super::devices::Device;
use super::verdict::{ArrayFate, Decided, Deciding, GroupFate};
use super::{Request, Verdict, marking};
use crate::device::{KernelName, LayoutPath};
use crate::inventory::{self, Inventory, OwnIdentifiers};
use crate::marker::{Making, MarkedDisk};
use crate::topology::{Match, find};

/// [`Making::on`] of a disk that is recreated, and of a filesystem on a whole disk.
pub const DISK: &str = "disk";

/// Returns the records of the disks that are sent to the control plane immediately before the point of no return.
pub fn recorded(meant: &Match, request: &Request, decided: &Decided, disks: &[MarkedDisk]) -> Vec<MarkedDisk> {
    let earlier = BegunAttempt::new(request, meant.inventory);
    let recorded = disks.iter().map(|disk| {
        let Some(index) = meant.graph.layout.disks.iter().position(|listed| listed.device == disk.device) else {
            return disk.clone();
        };
        let found = meant.disk(index);
        let verdict = found.and_then(|found| decided.disks.iter().find(|is| is.name == found.name));
        let whole = verdict.filter(|is| is.verdict == Verdict::Make).map(|_| {
            // If this attempt is interrupted before it writes the disk, objects of the previous attempt are still there.
            let left = found.and_then(|found| earlier.remade_disk(&disk.device.as_str().into(), found));
            let left = left.map(|making| making.contents.clone()).unwrap_or_default();
            let mut contents = contents(decided);
            contents.extend(left.into_iter().filter(|id| !contents.contains(id)).collect::<Vec<_>>());
            Making { on: DISK.to_owned(), uuid: None, was_empty: true, contents }
        });
        let lies_on = |(device, _): &&(LayoutPath, Making)| meant.graph.below([device]).disks.contains(&index);
        let parts = decided.filling.iter().filter(lies_on).map(|(_, making)| making.clone());
        MarkedDisk { making: whole.into_iter().chain(parts).collect(), ..disk.clone() }
    });
    recorded.collect()
}

/// Returns the records of disks that are written only for Kubernetes volumes.
pub fn of_volumes(inventory: &Inventory, decided: &Decided) -> Vec<MarkedDisk> {
    let identifiers = OwnIdentifiers::of(&inventory.disks);
    let disk = |name: &KernelName| inventory.disks.iter().find(|disk| disk.name == *name);
    let marked = decided.beginning.iter().filter_map(|(name, uid)| {
        let disk = disk(name)?;
        let making = vec![Making::filesystem(DISK.to_owned(), uid.to_string())];
        Some(MarkedDisk { device: disk.device.to_string(), making, ..marking::of_disk(disk, &identifiers) })
    });
    marked.collect()
}

/// Returns everything that the plan creates, by UUID, GUID or LVM name: objects that may be found on a disk that it recreates.
fn contents(decided: &Decided) -> Vec<String> {
    let tables = decided.tables.iter().map(|table| table.guid.to_string());
    let parts = decided.tables.iter().flat_map(|table| &table.partitions).map(|part| part.guid.to_string());
    let arrays = decided.arrays.iter().filter_map(|array| match array {
        ArrayFate::Made(made) => Some(made.uuid.to_string()),
        ArrayFate::Kept { .. } => None,
    });
    let groups = decided.groups.iter().filter_map(|group| match group {
        GroupFate::Made(made) => Some(made.name.clone()),
        GroupFate::Kept { .. } => None,
    });
    let prepares = decided.persistent.prepares.iter();
    let created = decided.volumes.iter().chain(prepares.clone().filter_map(|prepare| prepare.create.as_ref()));
    let volumes = created.map(|volume| format!("{}/{}", volume.group, volume.name));
    let containers = decided.luks.iter().map(|luks| luks.container.uuid.to_string());
    let filesystems = decided.filesystems.iter().filter_map(|is| is.made()).map(|new| new.uuid.clone());
    let persistent = prepares.map(|prepare| prepare.uid.to_string());
    let tables = tables.chain(parts);
    tables.chain(arrays).chain(groups).chain(volumes).chain(containers).chain(filesystems).chain(persistent).collect()
}

impl Deciding<'_> {
    /// Returns whether the disk is recreated because an earlier attempt was interrupted while it recreated the disk.
    pub fn was_made_anew(&self, listed: &LayoutPath, found: &inventory::Disk) -> bool {
        self.remade.contains(listed) && self.was_to_be_made(listed, found)
    }

    /// Returns whether an earlier attempt was recreating one of the disks below a device.
    pub fn was_being_made(&self, device: &LayoutPath) -> bool {
        let disks = self.graph.below([device]).disks;
        let mut found = disks.into_iter().filter_map(|index| {
            let listed = &self.layout.disks[index];
            Some((&listed.device, find::disk(listed, self.inventory).ok()?))
        });
        found.any(|(listed, found)| self.was_to_be_made(listed, found))
    }

    fn was_to_be_made(&self, listed: &LayoutPath, found: &inventory::Disk) -> bool {
        BegunAttempt::new(self.request, self.inventory).remade_disk(listed, found).is_some()
    }

    /// Returns the record of a filesystem that is created on a preserved device without content.
    pub fn making(&self, device: &Device, uuid: &str) -> Option<Making> {
        Some(Making::filesystem(unique_id(self.inventory, &device.now)?, uuid.to_owned()))
    }

    /// Returns the UUID of the filesystem that an earlier attempt was creating on the device and left unfinished.
    pub fn was_cut_off(&self, device: &Device) -> Option<String> {
        let content = device.content.as_deref().ok()?;
        let attempt = BegunAttempt::new(self.request, self.inventory);
        attempt.unfinished_filesystem(self.stack, &device.now, content)
    }
}
