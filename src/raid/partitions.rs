//! Layout for arrays: on each disk a partition for each array of which it is a member, preceded by a mirrored EFI system partition on the
//! disks of the root volume.

use super::Config;
use super::members::{members, own_hints};
use crate::device::LayoutPath;
use crate::inventory::{Disk, Firmware, Inventory};
use crate::layout::{
    self, Constraints, Filesystem, Format, Layout, OnReinstall, Partition, PartitionKind, Raid, RaidLevel, Size,
};
use crate::order;
use crate::problem::Problem;

/// Size of an EFI system partition, for which the agent of Ironic reserves this space.
const ESP_MIB: u64 = 550;
const ESP: &str = "/dev/md/esp";

impl Config {
    /// Returns the layout for this machine. A reinstall recreates its disks.
    ///
    /// # Errors
    /// Returns all reasons, each with its path, if the arrays are not possible with these disks.
    pub fn layout(&self, id: &str, inventory: &Inventory) -> Result<Layout, Vec<Problem>> {
        let members = members(self, inventory)?;
        let order = self.order();
        let root = self.root();
        let has_esp = inventory.system.firmware == Firmware::Uefi;
        let place = |disk: &Disk, index: usize| members[index].iter().position(|member| member.device == disk.device);
        let is_member = |disk: &Disk, index: usize| place(disk, index).is_some();
        let mut layout = Layout { id: id.to_owned(), constraints: Constraints::default(), ..Layout::default() };
        // Partitions with the index of the member in the list of hints.
        let mut devices: Vec<Vec<(usize, LayoutPath)>> = vec![Vec::new(); members.len()];
        let mut esps = Vec::new();
        for disk in inventory.disks.iter().filter(|disk| (0..members.len()).any(|index| is_member(disk, index))) {
            let device = LayoutPath::from(disk.device.as_str());
            let mut partitions: Vec<Partition> = Vec::new();
            let mut add = |label: &str, size: Size, kind: PartitionKind| {
                let number = partitions.len() as u32 + 1;
                partitions.push(Partition { number, label: Some(label.to_owned()), size, kind: Some(kind) });
                device.partition(number)
            };
            if has_esp && is_member(disk, root) {
                esps.push(add("efi", Size::from(ESP_MIB), PartitionKind::Boot));
            }
            for (index, place) in order.iter().filter_map(|index| Some((*index, place(disk, *index)?))) {
                let label = if index == root { "root" } else { "data" };
                let path = add(label, self.logical_disks[index].size, PartitionKind::LinuxRaid);
                devices[index].push((place, path));
            }
            let hints = own_hints(disk, inventory);
            layout.disks.push(layout::Disk { device, hints, partitions, wipeonreinstall: true, image: false });
        }
        if has_esp {
            layout.raid.push(array(ESP.into(), esps, RaidLevel::Raid1));
            layout.filesystems.push(filesystem("/boot/efi", ESP.into(), Format::Vfat, "efi"));
        }
        for (number, index) in order.iter().copied().enumerate() {
            let logical = &self.logical_disks[index];
            let name = match &logical.volume_name {
                Some(name) => format!("/dev/md/{name}"),
                None => format!("/dev/md{number}"),
            };
            if index == root {
                layout.filesystems.push(filesystem("/", name.as_str().into(), Format::Ext4, "root"));
            }
            order::sort(&mut devices[index]);
            let members = devices[index].iter().map(|(_, path)| path.clone()).collect();
            layout.raid.push(array(name.into(), members, logical.level));
        }
        match &layout::validate(&layout)[..] {
            [] => Ok(layout),
            problems => Err(problems.to_vec()),
        }
    }

    /// Returns the indices of the arrays, with the one that takes the remaining space last.
    fn order(&self) -> Vec<usize> {
        let mut order: Vec<usize> = (0..self.logical_disks.len()).collect();
        order::by_key(&mut order, |index| self.logical_disks[*index].size == Size::Rest);
        order
    }
}

fn array(arrayname: LayoutPath, devices: Vec<LayoutPath>, level: RaidLevel) -> Raid {
    Raid { arrayname, devices, level, createoptions: Vec::new(), spares: 0 }
}

fn filesystem(path: &str, device: LayoutPath, format: Format, label: &str) -> Filesystem {
    Filesystem {
        path: Some(path.to_owned()),
        device,
        format,
        label: Some(label.to_owned()),
        mountoptions: Vec::new(),
        createoptions: Vec::new(),
        reinstall: OnReinstall::Keep,
        grow: false,
        encrypted: None,
    }
}
