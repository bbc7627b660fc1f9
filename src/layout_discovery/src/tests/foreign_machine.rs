//! Machine of another installer, to which a test adds contents, and checks of its discovered layout.

use super::recorded_installations::{folder, read};
use crate::content_purposes::MachineContents;
use crate::fstab::{MountTable, parse_fstab};
use crate::layout_builder::build_layout;
use crate::planned_erasure::{DeviceFate, PlannedErasure};
use crate::reinstall_assessment::{parse_discovered, plan_reinstall};
use crate::{DiscoveredLayout, InstalledCrypttab, assess_reinstall, discover_layout_with_keys};
use model::device_name::KernelName;
use model::inventory::{
    DeviceSignature, DeviceUse, DiskPartition, DiskTable, Inventory, InventoryDisk, LvmLogicalVolume, StackedDevice,
    StackedDeviceKind,
};
use model::layout::{GroupPreservation, Layout};
use model::storage_graph::DeviceStack;
use plan::{InstallClaim, MarkerWaiver, Plan};

pub(super) const MIB: u64 = 1 << 20;
pub(super) const GIB: u64 = 1 << 30;

/// Partition of a disk that a test adds: type, size in MiB, type of the signature, and mount point.
pub(super) type PartitionContent<'a> = (&'a str, u64, &'a str, Option<&'a str>);

/// Machine of another installer, to which a test adds contents.
pub(super) struct ForeignMachine {
    pub inventory: Inventory,
    pub fstab: String,
}

impl ForeignMachine {
    pub fn read(name: &str) -> ForeignMachine {
        let folder = folder(name);
        let inventory = serde_json::from_str(&read(&folder, "inventory.json")).unwrap();
        ForeignMachine { inventory, fstab: read(&folder, "fstab") }
    }

    /// Removes the lines of fstab that contain this text.
    pub fn without_line(mut self, text: &str) -> ForeignMachine {
        self.fstab =
            self.fstab.lines().filter(|line| !line.contains(text)).fold(String::new(), |all, line| all + line + "\n");
        self
    }

    pub fn add_lines(mut self, lines: &str) -> ForeignMachine {
        self.fstab += lines;
        self
    }

    /// Adds the disk `sdb`.
    pub fn add_disk(mut self, partitions: &[PartitionContent]) -> ForeignMachine {
        let mut start_bytes = MIB;
        let mut added = Vec::new();
        for (number, (kind, mib, content, mounted)) in (1..).zip(partitions) {
            added.push(DiskPartition {
                number,
                device: format!("/dev/sdb{number}").into(),
                start_bytes,
                size_bytes: mib * MIB,
                kind: (*kind).to_owned(),
                guid: format!("00000000-0000-0000-0000-00000000000{number}").parse().ok(),
                signatures: sign(content, &format!("uuid-sdb{number}")),
                uses: mounted.iter().map(|path| DeviceUse::Mounted((*path).to_owned())).collect(),
                ..DiskPartition::default()
            });
            start_bytes += mib * MIB;
        }
        self.inventory.disks.push(InventoryDisk {
            name: "sdb".into(),
            device: "/dev/sdb".into(),
            serial: "S-sdb".to_owned(),
            table: Some(DiskTable {
                guid: "00000000-0000-0000-0000-0000000000b0".parse().ok(),
                partitions: added,
                kind: "gpt".to_owned(),
            }),
            by_path: String::new(),
            ..self.inventory.disks[0].clone()
        });
        self
    }

    pub fn partition(&mut self, device: &str) -> &mut DiskPartition {
        let partitions = self.inventory.disks.iter_mut().flat_map(|disk| &mut disk.table.as_mut().unwrap().partitions);
        partitions.into_iter().find(|partition| partition.device == *device).unwrap()
    }

    pub fn stacked(&mut self, name: &str) -> &mut StackedDevice {
        self.inventory.stacked.iter_mut().find(|stacked| stacked.name == *name).unwrap()
    }

    /// Returns the discovered layout. The crypttab of the machine is empty, and there are no key files.
    pub fn discover(&self) -> DiscoveredLayout {
        let crypttab = InstalledCrypttab { key_files: Some(Vec::new()), ..InstalledCrypttab::default() };
        discover_layout_with_keys(&self.inventory, Some(&self.fstab), Some(&crypttab), "web")
    }

    pub fn obstacles(&self) -> Vec<String> {
        assess_reinstall(&self.discover(), &self.inventory).obstacles
    }

    pub fn layout(&self) -> Layout {
        self.discover().layout
    }

    pub fn plan(&self) -> Plan {
        let claim = InstallClaim { waiver: Some(MarkerWaiver::Operator), ..InstallClaim::default() };
        plan_reinstall(&parse_discovered(&self.discover()).unwrap(), &self.inventory, claim, "").unwrap()
    }

    /// Fails unless the reinstall is possible and preserves these devices.
    pub fn assert_preserved(&self, devices: &[&str]) {
        assert_eq!(self.obstacles(), [""; 0]);
        let plan = self.plan();
        let erasure = PlannedErasure::new(&plan, &self.inventory);
        for device in devices {
            assert_eq!(erasure.find_fate(&KernelName::from(*device)), DeviceFate::Preserved, "{device}: {plan}");
        }
        assert_volumes_are_preserved(self);
    }

    pub fn assert_refused(&self, expected: &str) {
        let obstacles = self.obstacles();
        assert!(obstacles.iter().any(|why| why.contains(expected)), "{expected}: {obstacles:#?}");
    }
}

pub(super) fn sign(content: &str, uuid: &str) -> Vec<DeviceSignature> {
    let usage = match content {
        "" => return Vec::new(),
        "swap" => "other",
        "LVM2_member" | "drbd" => "raid",
        "crypto_LUKS" => "crypto",
        _ => "filesystem",
    };
    let (kind, usage, uuid) = (content.to_owned(), usage.to_owned(), uuid.to_owned());
    vec![DeviceSignature { kind, usage, uuid, label: String::new() }]
}

/// Disk of a virtual machine in a logical volume.
pub(super) fn guest_volume(
    name: &str,
    mapping: &str,
    partitions: &[(&str, u64, &str)],
) -> (LvmLogicalVolume, StackedDevice) {
    let device = format!("/dev/mapper/vms-{name}");
    let mut start_bytes = MIB;
    let mut added = Vec::new();
    for (number, (kind, mib, content)) in (1..).zip(partitions) {
        added.push(DiskPartition {
            number,
            device: format!("{device}{number}").into(),
            start_bytes,
            size_bytes: mib * MIB,
            kind: (*kind).to_owned(),
            signatures: sign(content, &format!("uuid-{name}{number}")),
            ..DiskPartition::default()
        });
        start_bytes += mib * MIB;
    }
    let volume = LvmLogicalVolume {
        name: name.to_owned(),
        uuid: format!("volume-{name}"),
        size_bytes: 50 * GIB,
        kind: "linear".to_owned(),
        stripes: 1,
        running: Some(mapping.into()),
        ..LvmLogicalVolume::default()
    };
    let stacked = StackedDevice {
        name: mapping.into(),
        device: device.into(),
        kind: StackedDeviceKind::Volume,
        below: vec!["sdb1".into()],
        size_bytes: 50 * GIB,
        assembled: true,
        table: Some(DiskTable { kind: "gpt".to_owned(), guid: None, partitions: added }),
        ..StackedDevice::default()
    };
    (volume, stacked)
}

/// Every volume with data must be listed as preserved, unless its group or all of its disks are preserved.
pub(super) fn assert_volumes_are_preserved(machine: &ForeignMachine) {
    let mut notes = Vec::new();
    let stack = DeviceStack::new(&machine.inventory);
    let mounts = MountTable::from_fstab(parse_fstab(&machine.fstab), &machine.inventory, &stack, &mut notes);
    let contents = MachineContents::new(&machine.inventory, stack, &mounts);
    let layout = build_layout(&contents, &mounts.memory, "web", &mut notes);
    for group in &machine.inventory.groups {
        let listed = layout.volumegroups.iter().find(|listed| listed.name == group.name);
        let is_group_preserved = listed.is_none_or(|listed| listed.preserve != GroupPreservation::None);
        let is_wiped = |name: &KernelName| contents.purpose_of(name).system;
        for volume in &group.volumes {
            let is_preserved = layout.logicalvolumes.iter().any(|listed| {
                let filesystem = layout.filesystems.iter().find(|found| found.device == listed.device_path());
                (&listed.volumegroup, &listed.name) == (&group.name, &volume.name)
                    && (listed.preserve || filesystem.is_some_and(|found| found.preserve))
            });
            let disks = group
                .present_devices()
                .flat_map(|device| contents.stack.disks_below(&contents.stack.kernel_name(device)));
            let is_on_wiped_disk = disks.collect::<Vec<_>>().iter().any(is_wiped);
            let is_data = contents.purpose_of_volume(group, volume).data;
            assert!(
                !is_data || is_preserved || is_group_preserved || !is_on_wiped_disk,
                "{}/{}",
                group.name,
                volume.name
            );
        }
    }
}
