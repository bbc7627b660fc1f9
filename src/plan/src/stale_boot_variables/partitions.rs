//! Partitions to which boot entries may refer, and the effect of the plan on each of them: it is destroyed or
//! preserved.

use crate::DiskVerdict;
use crate::plan_decisions::PlanDecisions;
use model::device_name::{DevicePath, KernelName};
use model::inventory::{DiskPartition, DiskTable, Inventory, InventoryDisk};
use model::storage_graph::DeviceStack;
use std::collections::{BTreeMap, BTreeSet};
use uuid::Uuid;

/// Effect of the plan on the partition to which a boot entry refers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum PartitionFate {
    Destroyed(DevicePath),
    Preserved(DevicePath),
    /// The partition was not found, and may be on this disk, whose content could not be read.
    Unread(DevicePath),
    Absent,
}

/// Partitions by GUID: those that the plan destroys, and those that it preserves or creates.
pub(crate) struct BootPartitions {
    destroyed: BTreeMap<Uuid, DevicePath>,
    preserved: BTreeMap<Uuid, DevicePath>,
    /// A preserved disk whose content is unknown; `None` if there is no such disk.
    unread: Option<DevicePath>,
    /// A preserved disk with an MBR; `None` if there is no such disk.
    mbr: Option<DevicePath>,
}

impl BootPartitions {
    /// Collects the partitions of all disks. If no decisions on the disks were made (`decided` is `None`), all
    /// partitions are treated as preserved.
    pub(crate) fn new(inventory: &Inventory, decided: Option<&PlanDecisions>) -> BootPartitions {
        let is_made = |verdict: DiskVerdict| matches!(verdict, DiskVerdict::Wipe | DiskVerdict::Make);
        let plans = decided.iter().flat_map(|decided| &decided.disks);
        let made: BTreeSet<KernelName> =
            plans.filter(|disk| is_made(disk.verdict)).map(|disk| disk.name.clone()).collect();
        let stack = DeviceStack::new(inventory);
        let is_destroyed = |name: &KernelName| {
            let disks = stack.disks_below(name);
            !disks.is_empty() && disks.iter().all(|disk| made.contains(disk))
        };
        // A partition that the plan removes loses its contents even if a new partition has the same GUID.
        let is_removed = |disk: &InventoryDisk, part: &DiskPartition| {
            let mut edits = decided.iter().flat_map(|decided| &decided.edits);
            edits.any(|edit| edit.device == disk.device && edit.removed.contains(&part.number))
        };
        let disks = inventory.disks.iter().flat_map(|disk| {
            let is_lost = |part| made.contains(&disk.name) || is_removed(disk, part);
            disk.table.iter().flat_map(|table| &table.partitions).map(move |part| (part, is_lost(part)))
        });
        let stacked = inventory.stacked.iter().flat_map(|device| {
            let is_lost = is_destroyed(&device.name);
            device.table.iter().flat_map(|table| &table.partitions).map(move |part| (part, is_lost))
        });
        let parts: Vec<(&DiskPartition, bool)> = disks.chain(stacked).collect();
        let of = |is_wanted: bool| {
            let parts = parts.iter().filter(move |(_, is_lost)| *is_lost == is_wanted);
            parts.filter_map(|(part, _)| guid_and_device(part)).collect()
        };
        let mut preserved: BTreeMap<Uuid, DevicePath> = of(false);
        // A repeated attempt recreates partitions with the same GUIDs, so boot entries for them remain valid.
        let new = decided.iter().flat_map(|decided| &decided.tables).flat_map(|table| &table.partitions);
        preserved.extend(new.map(|partition| (partition.guid, partition.device.clone())));
        let preserved_disks = || inventory.disks.iter().filter(|disk| !made.contains(&disk.name));
        let is_mbr = |table: &DiskTable| table.kind == "dos";
        BootPartitions {
            destroyed: of(true),
            preserved,
            unread: preserved_disks().find(|disk| disk.unreadable.is_some()).map(|disk| disk.device.clone()),
            mbr: preserved_disks().find(|disk| disk.table.as_ref().is_some_and(is_mbr)).map(|disk| disk.device.clone()),
        }
    }

    /// Returns the fate of the partition with this GUID. If several partitions have the GUID, for example because a
    /// disk was copied, and one of them is preserved, returns the fate of the preserved partition.
    pub(crate) fn find_fate(&self, guid: Uuid) -> PartitionFate {
        if let Some(device) = self.preserved.get(&guid) {
            return PartitionFate::Preserved(device.clone());
        }
        if let Some(device) = self.destroyed.get(&guid) {
            return PartitionFate::Destroyed(device.clone());
        }
        self.unread.clone().map_or(PartitionFate::Absent, PartitionFate::Unread)
    }

    /// Returns the fate of an MBR partition. Boot entries identify a disk with an MBR by a disk signature, which
    /// inventories do not contain. Therefore the entry may refer to any preserved disk with an MBR.
    pub(crate) fn mbr_fate(&self) -> PartitionFate {
        let unread = || self.unread.clone().map(PartitionFate::Unread);
        self.mbr.clone().map(PartitionFate::Preserved).or_else(unread).unwrap_or(PartitionFate::Absent)
    }

    /// Returns whether a disk with partitions, or with unknown content, is preserved.
    pub(crate) fn has_preserved(&self) -> bool {
        !self.preserved.is_empty() || self.unread.is_some() || self.mbr.is_some()
    }
}

fn guid_and_device(partition: &DiskPartition) -> Option<(Uuid, DevicePath)> {
    Some((partition.guid?, partition.device.clone()))
}
