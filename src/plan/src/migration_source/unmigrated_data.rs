//! Data of the source machine that a migration would not copy, or cannot read.
//!
//! | object on the disks of the layout | result |
//! |---|---|
//! | a partition, array or group that the layout does not list | refused |
//! | data on a disk, partition, array or logical volume without a filesystem in the layout | refused, unless the device is a member of an array or group |
//! | an absent or inactive logical volume without a filesystem in the layout | refused: its content is unknown |
//! | an unreadable region of an array, volume or mapping | refused |

use super::{MigrationCheck, describe_content};
use crate::arrays;
use common::format::format_bytes;
use model::device_name::{DevicePath, LayoutPath};
use model::inventory::OpaqueKind;
use model::storage_graph::StackUnit;

/// Signature types of members of arrays and groups.
const MEMBER_SIGNATURES: [&str; 2] = ["linux_raid_member", "LVM2_member"];

impl MigrationCheck<'_> {
    /// Refuses the migration if the disks of the layout contain data that the layout does not list.
    pub(super) fn refuse_unlisted(&mut self) {
        let layout = self.meant.graph.layout;
        for (index, listed) in layout.disks.iter().enumerate().filter(|(_, listed)| !listed.image) {
            let place = format!("disks[{index}]");
            let Some(disk) = self.meant.matched_disk(index) else { continue };
            // The partition table of an array may also be visible on its members, so the table of a member is ignored.
            let is_member = self.meant.graph.is_member(&listed.device);
            if listed.partitions.is_empty() {
                self.refuse_data(&place, &listed.device, StackUnit::Disk(disk));
            }
            for part in disk.table.iter().flat_map(|table| &table.partitions).filter(|_| !is_member) {
                let name = listed.device.partition_path(part.number);
                match listed.partitions.iter().any(|listed| listed.number == part.number) {
                    true => self.refuse_data(&place, &name, StackUnit::Partition(part)),
                    false => {
                        let message = format!(
                            "partition {partition} ({size}, {content}) is not in the layout and would not be migrated. If you need its data, copy it elsewhere; then remove the partition",
                            partition = part.device,
                            size = format_bytes(part.size_bytes),
                            content = describe_content(StackUnit::Partition(part))
                        );
                        self.refuse(&place, message);
                    }
                }
            }
        }
        let inventory = self.meant.inventory;
        let is_ours =
            |device: &DevicePath| !self.stack.disks_below(&self.stack.kernel_name(device)).is_disjoint(&self.disks);
        let of_arrays = inventory.arrays.iter().filter(|array| {
            let is_carried = self.all.arrays.iter().any(|migrated| migrated.uuid == array.uuid);
            !is_carried && array.members.iter().any(|member| is_ours(&member.device))
        });
        let of_groups = inventory.groups.iter().filter(|group| {
            let is_listed = layout.volumegroups.iter().any(|listed| listed.name == group.name);
            !is_listed && group.present_devices().any(is_ours)
        });
        let arrays = of_arrays.map(|array| ("raid", format!("array {}", arrays::describe_array(array))));
        let groups = of_groups.map(|group| ("volumegroups", format!("volume group {}", group.name)));
        let unlisted: Vec<(&str, String)> = arrays.chain(groups).collect();
        for (place, what) in unlisted {
            self.refuse(place, format!("{what} is not in the layout and would not be migrated; remove it first"));
        }
    }

    /// Refuses logical volumes of the layout that have no filesystem in the layout, unless they are blank.
    pub(super) fn refuse_unmounted_volumes(&mut self) {
        let (layout, graph) = (self.meant.graph.layout, &self.meant.graph);
        for (index, volume) in layout.logicalvolumes.iter().enumerate() {
            let place = format!("logicalvolumes[{index}]");
            let name = LayoutPath::from(format!("/dev/{}/{}", volume.volumegroup, volume.name).as_str());
            if graph.find_device(&name).is_some_and(|node| graph.filesystem_on(node).is_some()) {
                continue;
            }
            match self.meant.present_path(&name) {
                Some(device) => self.refuse_data(&place, &name, self.stack.find_unit(&self.stack.kernel_name(&device))),
                None => self.refuse(
                    &place,
                    format!(
                        "{name} is absent or inactive, so its content is unknown; activate the volume, or remove it from the layout"
                    ),
                ),
            }
        }
    }

    /// Refuses data on a device of the layout that is not a member and has no filesystem in the layout.
    pub(super) fn refuse_data(&mut self, place: &str, name: &LayoutPath, unit: StackUnit) {
        let graph = &self.meant.graph;
        let has_filesystem = graph.find_device(name).is_some_and(|node| graph.filesystem_on(node).is_some());
        let is_empty = unit.signatures().is_empty() && unit.is_blank();
        if (graph.is_member(name) && self.is_actual_member(unit)) || has_filesystem || is_empty {
            return;
        }
        if let StackUnit::Disk(disk) = unit
            && disk.table.is_some()
        {
            // A disk with partitions is not reported here, because `refuse_unlisted` reports its partitions.
            return;
        }
        let message = format!(
            "the layout does not list a filesystem on {name}, but it contains {content}, which would not be migrated; set `format: none` to migrate the whole device, or erase the device",
            content = describe_content(unit)
        );
        self.refuse(place, message);
    }

    /// Returns whether the device is a member of an array or group on the machine, or was one.
    fn is_actual_member(&self, unit: StackUnit) -> bool {
        let is_used =
            |device: &DevicePath| !self.stack.arrays_on(device).is_empty() || !self.stack.groups_on(device).is_empty();
        let mut kinds = unit.signatures().iter().map(|signature| signature.kind.as_str());
        unit.device().is_some_and(is_used) || kinds.any(|kind| MEMBER_SIGNATURES.contains(&kind))
    }

    /// Refuses arrays, volumes and mappings on the disks of the layout that cannot be read completely. The disks
    /// themselves are checked together with the partitions on them.
    pub(super) fn refuse_unreadable_devices(&mut self) {
        let inventory = self.meant.inventory;
        let objects = inventory.find_opaque_objects();
        for object in objects.iter().filter(|object| object.kind == OpaqueKind::UnreadableRegion) {
            let is_migrated = |device: &&DevicePath| {
                let name = self.stack.kernel_name(device);
                let is_stacked = matches!(self.stack.find_unit(&name), StackUnit::Stacked(_));
                is_stacked && !self.stack.disks_below(&name).is_disjoint(&self.disks)
            };
            if let Some(device) = object.devices.iter().find(is_migrated) {
                let message = format!(
                    "{device} is partly unreadable: {why}; {remedy}",
                    why = object.reason,
                    remedy = object.remedy
                );
                self.refuse("disks", message);
            }
        }
    }
}
