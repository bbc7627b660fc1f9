//! Partitions of the layout.

use super::LayoutBuilder;
use crate::mount_point_purposes::is_extended;
use crate::system_partition_types::name_system_type;
use model::inventory::{DiskPartition, InventoryDisk};
use model::layout::{PartitionSpec, PartitionType, RequestedSize};

const MIB: u64 = 1 << 20;

impl LayoutBuilder<'_> {
    /// Adds the partitions of the listed disks. Partitions of a preserved disk are added only if the layout uses them.
    pub fn add_partitions(&mut self) {
        for disk in &self.machine.inventory.disks {
            let Some(spec) = self.disks.get(&disk.name) else { continue };
            let (is_renewed, device) = (spec.wipeonreinstall, spec.device.clone());
            let table = disk.table.iter().flat_map(|table| &table.partitions);
            let table = table.filter(|partition| !is_extended(partition));
            let mut partitions = Vec::new();
            for partition in table {
                let is_used = self.used.contains(&device.partition_path(partition.number));
                if is_used || is_renewed {
                    partitions.extend(self.describe_partition(disk, partition, is_used, is_renewed));
                }
            }
            if let Some(spec) = self.disks.get_mut(&disk.name) {
                spec.partitions = partitions;
            }
        }
    }

    fn describe_partition(
        &mut self,
        disk: &InventoryDisk,
        partition: &DiskPartition,
        is_used: bool,
        is_renewed: bool,
    ) -> Option<PartitionSpec> {
        let device = &partition.device;
        let purpose = self.machine.purpose_of(&device.kernel_name());
        if !purpose.data && !is_used {
            let type_name = name_system_type(partition).unwrap_or("partition of the system");
            self.report(format!(
                "{device}: {type_name}; the layout does not list this partition, so a reinstall removes it"
            ));
            return None;
        }
        let mib = partition.size_bytes / MIB;
        if mib == 0 {
            self.prevent(format!(
                "{device}: this partition is smaller than 1 MiB, and a layout cannot list such \
                partitions: move its content"
            ));
            return None;
        }
        if !partition.start_bytes.is_multiple_of(u64::from(disk.sector_bytes.max(1))) {
            self.prevent(format!("{device}: the start of the partition is not a multiple of the sector size"));
        }
        let kind =
            PartitionType::ALL.into_iter().find(|kind| partition.kind.eq_ignore_ascii_case(&kind.guid().to_string()));
        if kind.is_none() && purpose.data && is_renewed {
            self.report(format!(
                "{device}: layouts do not support its partition type {}; a reinstall preserves the type",
                partition.kind
            ));
        }
        Some(PartitionSpec {
            number: partition.number,
            label: Some(partition.label.clone()).filter(|label| !label.is_empty()),
            size: RequestedSize::from(mib),
            kind,
            preserve: is_renewed && purpose.data && !is_used,
        })
    }
}
