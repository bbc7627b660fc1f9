//! Inventories with very many devices, links or signatures, for tests and for measurements of time and memory.

use super::{
    ArrayMember, ComponentRole, DeviceSignature, DeviceUse, DiskPartition, DiskTable, FilesystemContents,
    InspectionFailure, InspectionTarget, Inventory, InventoryDisk, LvmLogicalVolume, LvmPhysicalVolume, LvmVolumeGroup,
    MdArray, MemberRole, Nic, SpanningComponent, StackedDevice, StackedDeviceKind, UnassignedDevices,
};
use crate::device_name::KernelName;
use crate::install_marker::InstallMarker;
use uuid::Uuid;

const MIB: u64 = 1 << 20;

/// Returns a disk that is neither blank nor partitioned.
pub fn disk(name: &str) -> InventoryDisk {
    InventoryDisk {
        name: name.into(),
        device: format!("/dev/{name}").into(),
        size_bytes: 40_000 * MIB,
        sector_bytes: 512,
        serial: format!("S-{name}"),
        ..InventoryDisk::default()
    }
}

fn disks(names: &[&str]) -> Inventory {
    Inventory { disks: names.iter().map(|name| disk(name)).collect(), explored: true, ..Inventory::default() }
}

pub fn signature(kind: &str, usage: &str, uuid: &str) -> DeviceSignature {
    DeviceSignature {
        kind: kind.to_owned(),
        usage: usage.to_owned(),
        uuid: uuid.to_owned(),
        ..DeviceSignature::default()
    }
}

fn partition(disk: &str, number: u32) -> DiskPartition {
    DiskPartition {
        number,
        device: format!("/dev/{disk}p{number}").into(),
        start_bytes: u64::from(number) * MIB,
        size_bytes: MIB,
        guid: Some(Uuid::from_u128(u128::from(number) + 77)),
        ..DiskPartition::default()
    }
}

pub fn mapping(number: usize, below: Vec<KernelName>) -> StackedDevice {
    StackedDevice {
        name: format!("dm-{number}").as_str().into(),
        device: format!("/dev/mapper/m{number}").into(),
        below,
        size_bytes: MIB,
        ..StackedDevice::default()
    }
}

/// Returns an inventory with `count` mappings. Each mapping is on top of all previous mappings and a disk.
pub fn towers(count: usize) -> Inventory {
    let mut inventory = disks(&["sda", "sdb"]);
    for number in 0..count {
        let below = (0..number).map(|lower| format!("dm-{lower}").into());
        inventory.stacked.push(mapping(number, below.chain(["sdb".into()]).collect()));
    }
    inventory
}

/// Returns an inventory with `count` mappings. Each mapping is on top of the previous mapping, and all mappings have a
/// signature with the same filesystem UUID.
pub fn chain(count: usize) -> Inventory {
    let mut inventory = disks(&["sda", "sdb"]);
    for number in 0..count {
        let below = number.checked_sub(1).map_or_else(|| "sdb".to_owned(), |lower| format!("dm-{lower}"));
        let signatures = vec![signature("ext4", "filesystem", "one")];
        inventory.stacked.push(StackedDevice { signatures, ..mapping(number, vec![below.into()]) });
    }
    inventory
}

/// Returns an inventory with an array. Its members are one partition on each of `count` disks, and `sdb` as a spare.
pub fn array(count: usize) -> Inventory {
    let mut inventory = disks(&["sda", "sdb"]);
    let mut members = vec![ArrayMember { device: "/dev/sdb".into(), role: MemberRole::Spare }];
    let uuid = Uuid::from_u128(5);
    for number in 0..count {
        let name = format!("nvme{number}n1");
        let raid = signature("linux_raid_member", "raid", "5");
        let part = DiskPartition {
            signatures: vec![raid],
            uses: vec![DeviceUse::Holder("md0".into())],
            ..partition(&name, 1)
        };
        members.push(ArrayMember { device: part.device.clone(), role: MemberRole::Active(number as u32) });
        let table = Some(DiskTable { kind: "gpt".into(), guid: Some(uuid), partitions: vec![part] });
        inventory.disks.push(InventoryDisk { table, ..disk(&name) });
    }
    let names = members.iter().map(|member| member.device.kernel_name());
    let md = StackedDevice { kind: StackedDeviceKind::Array, device: "/dev/md0".into(), ..mapping(0, names.collect()) };
    inventory.stacked.push(StackedDevice { name: "md0".into(), ..md });
    inventory.arrays.push(MdArray {
        uuid,
        name: "0".into(),
        level: "raid6".into(),
        metadata: "1.2".into(),
        raid_devices: count as u32,
        members,
        running: Some("md0".into()),
        ..MdArray::default()
    });
    inventory
}

/// Returns an inventory with a disk that has `count` holders, none of which is listed as a device.
pub fn holders(count: usize) -> Inventory {
    let mut inventory = disks(&["sda", "sdb"]);
    inventory.disks[1].uses = (0..count).map(|number| DeviceUse::Holder(format!("x{number}").into())).collect();
    inventory
}

/// Returns an inventory with two layers of `count` mappings. Each upper mapping is on top of all lower mappings.
pub fn layers(count: usize) -> Inventory {
    let mut inventory = disks(&["sda", "sdb"]);
    inventory.stacked = (0..count).map(|number| mapping(number, vec!["sdb".into()])).collect();
    for number in 0..count {
        let below = (0..count).map(|lower| format!("dm-{lower}").into()).collect();
        inventory.stacked.push(mapping(count + number, below));
    }
    inventory
}

/// Returns an inventory with `count` partitions on each of two disks. All partitions have a signature with the same
/// filesystem UUID.
pub fn partitions(count: u32) -> Inventory {
    let mut inventory = disks(&["sda", "sdb", "nvme0n1", "nvme1n1"]);
    for disk in &mut inventory.disks[2..] {
        let partitions = (1..=count).map(|number| DiskPartition {
            signatures: vec![signature("ext4", "filesystem", "one")],
            ..partition(&disk.name, number)
        });
        disk.table = Some(DiskTable { kind: "gpt".into(), guid: None, partitions: partitions.collect() });
    }
    inventory
}

/// Returns an inventory with `groups` volume groups. Each group is on a separate disk and on `sdb`, and has `volumes`
/// active volumes.
pub fn volumes(groups: usize, volumes: usize) -> Inventory {
    let mut inventory = disks(&["sda", "sdb"]);
    for group in 0..groups {
        let name = format!("nvme{group}n1");
        inventory
            .disks
            .push(InventoryDisk { signatures: vec![signature("LVM2_member", "raid", &name)], ..disk(&name) });
        let physical =
            |device: &str| LvmPhysicalVolume { device: Some(device.into()), uuid: name.clone(), size_bytes: 9 };
        let mut found = LvmVolumeGroup {
            name: format!("vg{group}"),
            uuid: format!("uuid-{group}"),
            physical: vec![physical(&format!("/dev/{name}")), physical("/dev/sdb")],
            ..LvmVolumeGroup::default()
        };
        for volume in 0..volumes {
            let number = group * volumes + volume;
            let uuid = format!("fs-{number}");
            let signatures = vec![signature("ext4", "filesystem", &uuid)];
            let active = mapping(number, vec![name.as_str().into()]);
            let running = Some(active.name.clone());
            let (kind, name) = ("linear".to_owned(), format!("lv{number}"));
            found.volumes.push(LvmLogicalVolume { name, uuid, kind, running, ..LvmLogicalVolume::default() });
            inventory.stacked.push(StackedDevice { kind: StackedDeviceKind::Volume, signatures, ..active });
        }
        inventory.groups.push(found);
    }
    inventory
}

/// Returns an inventory with `count` disks. Each disk has a filesystem, an install marker, a read error, failed
/// attempts, and a component of one filesystem that spans all disks.
pub fn markers(count: usize) -> Inventory {
    let mut inventory = disks(&["sda", "sdb"]);
    for number in 0..count {
        let name = format!("nvme{number}n1");
        let uuid = format!("fs-{number}");
        let signatures = vec![signature("btrfs", "filesystem", "same"), signature("ext4", "filesystem", &uuid)];
        let device = disk(&name).device;
        inventory.disks.push(InventoryDisk { signatures, unreadable: Some("I/O error".to_owned()), ..disk(&name) });
        let text = |text: &str| text.to_owned();
        let order = Some(number.to_string());
        let marker = InstallMarker { machine: text("m-1"), allocation: text("a-1"), order, ..InstallMarker::default() };
        let filesystem =
            FilesystemContents { device: device.clone(), marker: Some(marker), ..FilesystemContents::default() };
        inventory.filesystems.push(filesystem);
        for tried in [InspectionTarget::Filesystem(device.clone()), InspectionTarget::Container(device.clone())] {
            inventory.failed.push(InspectionFailure { tried, why: "it failed".to_owned() });
        }
        inventory.parts.push(SpanningComponent {
            device: device.clone(),
            kind: text("xfs"),
            whole: text("a whole"),
            id: text("one"),
            role: ComponentRole::OneOf(1 << 20),
        });
        inventory.unknown.push(UnassignedDevices { devices: vec![device], reason: text("unknown") });
        inventory.nics.push(Nic { name: format!("eth{number}"), mac: format!("02:00:{number:08x}"), ..Nic::default() });
    }
    inventory
}

/// Returns one inventory of each shape in this module. Each inventory has a description, and is as large as a
/// registration may be.
pub fn all() -> Vec<(&'static str, Inventory)> {
    vec![
        ("300 stacked devices", towers(300)),
        ("700 stacked devices", towers(700)),
        ("1,000 nested devices", chain(1000)),
        ("800 array members", array(800)),
        ("250,000 holders", holders(250_000)),
        ("500 devices on each of 500", layers(500)),
        ("8,000 partitions", partitions(4000)),
        ("8,000 logical volumes", volumes(8, 1000)),
        ("2,000 volume groups", volumes(2000, 2)),
        ("2,000 markers", markers(2000)),
    ]
}
