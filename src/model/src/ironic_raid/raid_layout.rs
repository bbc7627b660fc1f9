//! Layout for a list of arrays. Each disk has one partition for each array of which it is a member. On a UEFI machine,
//! the first partition of each root volume disk belongs to a mirrored EFI system partition.

use super::RaidConfig;
use super::member_selection::{select_members, unique_hint};
use crate::device_name::LayoutPath;
use crate::inventory::{FirmwareType, Inventory, InventoryDisk};
use crate::layout::{
    self, ArraySpec, DiskSpec, FilesystemFormat, FilesystemSpec, Layout, LayoutConstraints, OnReinstall, PartitionSpec,
    PartitionType, RaidLevel, RequestedSize,
};
use common::diagnostic::Diagnostic;

/// Size of an EFI system partition in MiB. Ironic's agent reserves the same size.
const ESP_MIB: u64 = 550;
const ESP: &str = "/dev/md/esp";

impl RaidConfig {
    /// Builds the layout for this machine. A reinstall with this layout repartitions the disks that the layout lists.
    ///
    /// # Errors
    /// Returns every reason why the arrays cannot be created on these disks, each with the path of its field.
    pub fn build_layout(&self, id: &str, inventory: &Inventory) -> Result<Layout, Vec<Diagnostic>> {
        let members = select_members(self, inventory)?;
        let order = self.creation_order();
        let root = self.root_index();
        let mut partitioned = self.partition_disks(&order, &members, inventory);
        let mut layout = Layout {
            id: id.to_owned(),
            constraints: LayoutConstraints::default(),
            disks: partitioned.disks,
            ..Layout::default()
        };
        if inventory.system.firmware == FirmwareType::Uefi {
            layout.raid.push(build_array(ESP.into(), partitioned.esps, RaidLevel::Raid1));
            layout.filesystems.push(build_filesystem("/boot/efi", ESP.into(), FilesystemFormat::Vfat, "efi"));
        }
        for (number, index) in order.iter().copied().enumerate() {
            let logical = &self.logical_disks[index];
            let name = array_path(logical.volume_name.as_deref(), number);
            if index == root {
                layout.filesystems.push(build_filesystem("/", name.as_str().into(), FilesystemFormat::Ext4, "root"));
            }
            let devices = &mut partitioned.array_members[index];
            devices.sort();
            let devices = devices.iter().map(|(_, path)| path.clone()).collect();
            layout.raid.push(build_array(name.into(), devices, logical.level));
        }
        match &layout::validate_layout(&layout)[..] {
            [] => Ok(layout),
            problems => Err(problems.to_vec()),
        }
    }

    /// Partitions each disk that is a member of an array. `order` lists the indices of the arrays in the order in which
    /// their partitions are created, and `members` contains the members of each array in the order of its hints.
    fn partition_disks(
        &self,
        order: &[usize],
        members: &[Vec<&InventoryDisk>],
        inventory: &Inventory,
    ) -> PartitionedDisks {
        let root = self.root_index();
        let has_esp = inventory.system.firmware == FirmwareType::Uefi;
        let hint_index =
            |disk: &InventoryDisk, index: usize| members[index].iter().position(|member| member.device == disk.device);
        let is_member = |disk: &InventoryDisk, index: usize| hint_index(disk, index).is_some();
        let mut partitioned =
            PartitionedDisks { disks: Vec::new(), array_members: vec![Vec::new(); members.len()], esps: Vec::new() };
        for disk in inventory.disks.iter().filter(|disk| (0..members.len()).any(|index| is_member(disk, index))) {
            let device = LayoutPath::from(disk.device.as_str());
            let mut partitions = Vec::new();
            if has_esp && is_member(disk, root) {
                let number = add_partition(&mut partitions, "efi", ESP_MIB.into(), PartitionType::Boot);
                partitioned.esps.push(device.partition_path(number));
            }
            for (index, hint) in order.iter().filter_map(|index| Some((*index, hint_index(disk, *index)?))) {
                let label = if index == root { "root" } else { "data" };
                let size = self.logical_disks[index].size;
                let number = add_partition(&mut partitions, label, size, PartitionType::LinuxRaid);
                partitioned.array_members[index].push((hint, device.partition_path(number)));
            }
            let hints = unique_hint(disk, inventory);
            partitioned.disks.push(DiskSpec { device, hints, partitions, wipeonreinstall: true, image: false });
        }
        partitioned
    }

    /// Returns the indices of the arrays in the order in which their partitions are created. The array that takes the
    /// remaining space is last.
    fn creation_order(&self) -> Vec<usize> {
        let mut order: Vec<usize> = (0..self.logical_disks.len()).collect();
        order.sort_by_key(|index| self.logical_disks[*index].size == RequestedSize::Rest);
        order
    }
}

/// Disks with their new partitions.
struct PartitionedDisks {
    disks: Vec<DiskSpec>,
    /// For each array: its member partitions, each with the index of its disk in the list of the array's members.
    array_members: Vec<Vec<(usize, LayoutPath)>>,
    /// EFI system partitions.
    esps: Vec<LayoutPath>,
}

/// Adds a partition after the existing partitions, and returns its number.
fn add_partition(partitions: &mut Vec<PartitionSpec>, label: &str, size: RequestedSize, kind: PartitionType) -> u32 {
    let number = partitions.len() as u32 + 1;
    let label = Some(label.to_owned());
    partitions.push(PartitionSpec { number, label, size, kind: Some(kind), preserve: false });
    number
}

fn build_array(arrayname: LayoutPath, devices: Vec<LayoutPath>, level: RaidLevel) -> ArraySpec {
    ArraySpec { arrayname, devices, level, createoptions: Vec::new(), spares: 0, preserve: false }
}

fn array_path(volume_name: Option<&str>, number: usize) -> String {
    match volume_name {
        Some(name) => format!("/dev/md/{name}"),
        None => format!("/dev/md{number}"),
    }
}

fn build_filesystem(path: &str, device: LayoutPath, format: FilesystemFormat, label: &str) -> FilesystemSpec {
    FilesystemSpec {
        path: Some(path.to_owned()),
        device,
        format,
        label: Some(label.to_owned()),
        mountoptions: Vec::new(),
        createoptions: Vec::new(),
        reinstall: OnReinstall::Keep,
        grow: false,
        encrypted: None,
        preserve: false,
    }
}
