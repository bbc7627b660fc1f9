//! Record of the objects that an attempt will create on preserved disks. The record is sent to the control plane
//! before the first write. An interrupted mkfs leaves unrecognized data, or a filesystem that cannot be mounted. With
//! the record, the next attempt recognizes such an unfinished object, and creates it again.

use super::earlier_attempt::{AttemptDevices, unique_id};
use super::plan_decisions::{ArrayFate, GroupFate, PlanDecisions};
use super::planned_devices::PlannedDevice;
use super::planner_state::PlannerState;
use super::{DiskVerdict, PlanRequest, install_marker};
use model::device_name::{KernelName, LayoutPath};
use model::install_marker::{PendingCreation, RecordedDisk};
use model::inventory::{self, Inventory, UniqueIdentifiers};
use model::storage_graph::{LayoutMatch, disk_lookup};

/// Value of [`PendingCreation::on`] if the whole disk is recreated, or a filesystem is created directly on the disk.
pub(crate) const DISK: &str = "disk";

/// Returns the disk records that are sent to the control plane immediately before the point of no return.
pub(crate) fn record_disks(
    meant: &LayoutMatch,
    request: &PlanRequest,
    decided: &PlanDecisions,
    disks: &[RecordedDisk],
) -> Vec<RecordedDisk> {
    let earlier = AttemptDevices::new(request, meant.inventory);
    let recorded = disks.iter().map(|disk| {
        let Some(index) = meant.graph.layout.disks.iter().position(|listed| listed.device == disk.device) else {
            return disk.clone();
        };
        let found = meant.matched_disk(index);
        let verdict = found.and_then(|found| decided.disks.iter().find(|disk| disk.name == found.name));
        let whole = verdict.filter(|verdict| verdict.verdict == DiskVerdict::Make).map(|_| {
            // If this attempt is interrupted before it writes the disk, the objects of the previous attempt remain on
            // the disk. Their ids are therefore recorded again.
            let left = found.and_then(|found| earlier.remade_disk(&disk.device.as_str().into(), found));
            let left = left.map(|making| making.contents.clone()).unwrap_or_default();
            let mut contents = list_new_ids(decided);
            contents.extend(left.into_iter().filter(|id| !contents.contains(id)).collect::<Vec<_>>());
            PendingCreation { on: DISK.to_owned(), uuid: None, was_empty: true, contents }
        });
        let lies_on =
            |(device, _): &&(LayoutPath, PendingCreation)| meant.graph.objects_below([device]).disks.contains(&index);
        let parts = decided.new_filesystems.iter().filter(lies_on).map(|(_, making)| making.clone());
        RecordedDisk { making: whole.into_iter().chain(parts).collect(), ..disk.clone() }
    });
    recorded.collect()
}

/// Returns the records of the disks that the layout does not list and that are written for Kubernetes volumes.
pub(crate) fn record_volume_disks(inventory: &Inventory, decided: &PlanDecisions) -> Vec<RecordedDisk> {
    let identifiers = UniqueIdentifiers::from_disks(&inventory.disks);
    let disk = |name: &KernelName| inventory.disks.iter().find(|disk| disk.name == *name);
    let marked = decided.prepared_disks.iter().filter_map(|(name, uid)| {
        let disk = disk(name)?;
        let making = vec![PendingCreation::for_filesystem(DISK.to_owned(), uid.to_string())];
        Some(RecordedDisk {
            device: disk.device.to_string(),
            making,
            ..install_marker::unique_record(disk, &identifiers)
        })
    });
    marked.collect()
}

/// Returns the ids of all objects that the plan creates: UUIDs, GUIDs or LVM names. If this attempt is interrupted, the
/// next attempt recognizes its objects by these ids.
fn list_new_ids(decided: &PlanDecisions) -> Vec<String> {
    let tables = decided.tables.iter().map(|table| table.guid.to_string());
    let parts = decided.tables.iter().flat_map(|table| &table.partitions).map(|part| part.guid.to_string());
    let arrays = decided.arrays.iter().filter_map(|array| match array {
        ArrayFate::Created(made) => Some(made.uuid.to_string()),
        ArrayFate::Preserved { .. } => None,
    });
    let groups = decided.groups.iter().filter_map(|group| match group {
        GroupFate::Created(made) => Some(made.name.clone()),
        GroupFate::Preserved { .. } => None,
    });
    let prepares = decided.persistent.prepares.iter();
    let created = decided.volumes.iter().chain(prepares.clone().filter_map(|prepare| prepare.create.as_ref()));
    let volumes = created.map(|volume| format!("{}/{}", volume.group, volume.name));
    let containers = decided.luks.iter().map(|luks| luks.container.uuid.to_string());
    let filesystems =
        decided.filesystems.iter().filter_map(|filesystem| filesystem.created_filesystem()).map(|new| new.uuid.clone());
    let persistent = prepares.map(|prepare| prepare.uid.to_string());
    let tables = tables.chain(parts);
    tables.chain(arrays).chain(groups).chain(volumes).chain(containers).chain(filesystems).chain(persistent).collect()
}

impl PlannerState<'_> {
    /// Returns whether the disk is recreated because an earlier attempt was interrupted while recreating it.
    pub(crate) fn was_recreated(&self, listed: &LayoutPath, found: &inventory::InventoryDisk) -> bool {
        self.remade.contains(listed) && self.is_in_attempt(listed, found)
    }

    /// Returns whether an earlier attempt was interrupted while it recreated one of the disks below the device.
    pub(crate) fn was_being_recreated(&self, device: &LayoutPath) -> bool {
        let disks = self.graph.objects_below([device]).disks;
        let mut found = disks.into_iter().filter_map(|index| {
            let listed = &self.layout.disks[index];
            Some((&listed.device, disk_lookup::find_disk(listed, self.inventory).ok()?))
        });
        found.any(|(listed, found)| self.is_in_attempt(listed, found))
    }

    fn is_in_attempt(&self, listed: &LayoutPath, found: &inventory::InventoryDisk) -> bool {
        AttemptDevices::new(self.request, self.inventory).remade_disk(listed, found).is_some()
    }

    /// Returns the record of a filesystem that the plan creates on a preserved device without content.
    pub(crate) fn record_filling(&self, device: &PlannedDevice, uuid: &str) -> Option<PendingCreation> {
        Some(PendingCreation::for_filesystem(unique_id(self.inventory, &device.now)?, uuid.to_owned()))
    }

    /// Returns the UUID of the filesystem that an earlier attempt was creating on the device and left unfinished.
    pub(crate) fn find_unfinished(&self, device: &PlannedDevice) -> Option<String> {
        let content = device.content.as_deref().ok()?;
        let attempt = AttemptDevices::new(self.request, self.inventory);
        attempt.unfinished_filesystem(self.stack, &device.now, content)
    }
}
