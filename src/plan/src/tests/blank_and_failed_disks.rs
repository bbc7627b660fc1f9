//! Disks that are blank, failed or absent.

use super::arrays_and_groups::{five, group, installed, layout, operations, volume, whole};
use super::*;
use crate::missing_disks::has_all_data;
use model::device_name::{KernelName, LayoutPath};
use model::inventory::{MemberRole, VolumeHealth};
use model::layout::{LvmType, RaidLevel};
use operations::{ActivateGroup, AssembleArray, DeviceOp, Operation, SessionOp, StageName, UnlockDisk};

/// Removes a disk from the machine, with everything that cannot exist without it.
pub(super) fn unplug(inventory: &mut Inventory, name: &str) {
    let name = KernelName::from(name);
    let mut gone = vec![(name.clone(), name.device_path())];
    let disk = inventory.disks.iter().position(|disk| disk.name == name).unwrap();
    for part in inventory.disks.remove(disk).table.into_iter().flat_map(|table| table.partitions) {
        gone.push((part.device.kernel_name(), part.device));
    }
    while let Some((name, device)) = gone.pop() {
        inventory.filesystems.retain(|filesystem| filesystem.device != device);
        let mut stopped = Vec::new();
        for array in &mut inventory.arrays {
            array.members.retain(|member| member.device != device);
            let places: Vec<usize> = array
                .members
                .iter()
                .filter_map(|member| match member.role {
                    MemberRole::Active(place) => Some(place as usize),
                    _ => None,
                })
                .collect();
            let active = array.raid_devices as usize;
            let missing: Vec<usize> = (0..active).filter(|place| !places.contains(place)).collect();
            let level = RaidLevel::ALL.into_iter().find(|level| level.to_string() == array.level).unwrap();
            if !has_all_data(level, active, &missing) {
                stopped.extend(array.running.take());
            }
        }
        inventory.arrays.retain(|array| !array.members.is_empty());
        for group in &mut inventory.groups {
            let lost = group.physical.iter_mut().filter(|physical| physical.device.as_ref() == Some(&device));
            if lost.map(|physical| physical.device = None).count() > 0 {
                for volume in &mut group.volumes {
                    volume.health = if volume.kind == "raid1" { VolumeHealth::Degraded } else { VolumeHealth::Lost };
                    stopped.extend(volume.running.take_if(|_| volume.health == VolumeHealth::Lost));
                }
            }
        }
        inventory.groups.retain(|group| group.present_devices().next().is_some());
        for stacked in &mut inventory.stacked {
            stacked.below.retain(|below| *below != name);
        }
        let empty = inventory.stacked.iter().filter(|stacked| stacked.below.is_empty());
        stopped.extend(empty.map(|stacked| stacked.name.clone()).collect::<Vec<_>>());
        for name in stopped {
            let Some(index) = inventory.stacked.iter().position(|stacked| stacked.name == name) else { continue };
            gone.push((name.clone(), inventory.stacked.remove(index).device));
            let forget = |uses: &mut Vec<DeviceUse>| uses.retain(|usage| *usage != DeviceUse::Holder(name.clone()));
            for disk in &mut inventory.disks {
                forget(&mut disk.uses);
                disk.table.iter_mut().flat_map(|table| &mut table.partitions).for_each(|part| forget(&mut part.uses));
            }
            inventory.stacked.iter_mut().for_each(|stacked| forget(&mut stacked.uses));
        }
    }
}

/// Replaces a disk with a blank one of the same size.
pub(super) fn replace(inventory: &mut Inventory, name: &str) {
    let index = inventory.disks.iter().position(|disk| disk.name == name).unwrap();
    let new = inventory::InventoryDisk { blank: true, ..disk(name, inventory.disks[index].size_bytes / MIB) };
    unplug(inventory, name);
    inventory.disks.insert(index, new);
}

#[test]
fn array_has_all_data_while_redundancy_suffices() {
    let cases: [(RaidLevel, usize, &[usize], bool); 14] = [
        (RaidLevel::Raid0, 2, &[], true),
        (RaidLevel::Raid0, 2, &[1], false),
        (RaidLevel::Raid1, 2, &[0], true),
        (RaidLevel::Raid1, 2, &[0, 1], false),
        (RaidLevel::Raid1, 3, &[0, 2], true),
        (RaidLevel::Raid5, 3, &[2], true),
        (RaidLevel::Raid5, 3, &[0, 1], false),
        (RaidLevel::Raid6, 4, &[0, 3], true),
        (RaidLevel::Raid6, 4, &[0, 1, 2], false),
        (RaidLevel::Raid10, 4, &[0], true),
        (RaidLevel::Raid10, 4, &[0, 2], true),
        (RaidLevel::Raid10, 4, &[0, 1], false),
        (RaidLevel::Raid10, 4, &[3, 0], false),
        (RaidLevel::Raid10, 2, &[1], true),
    ];
    for (level, active, missing, expected) in cases {
        assert_eq!(has_all_data(level, active, missing), expected, "{level} of {active} without {missing:?}");
    }
}

#[test]
fn blank_preserved_disk_is_recreated_with_a_warning() {
    let mut inventory = super::installed();
    replace(&mut inventory, "sdb");
    let plan = make(&super::layout(), &inventory, InstallMode::Reinstall).unwrap();
    assert_eq!(plan.disks[1].verdict, DiskVerdict::Make);
    let said = "/dev/sdb must be preserved, but the disk is blank, possibly because the old disk was replaced; its contents will be recreated";
    assert_eq!(plan.warnings[0], said);
    let wipes = operations(&plan, StageName::StorageWipe);
    let Operation::Device(DeviceOp::WipeDisk(wipe)) = &wipes[1] else { panic!("{wipes:?}") };
    assert_eq!((wipe.device.as_str(), wipe.methods.as_slice()), ("/dev/sdb", &[inventory::EraseMethod::Ends][..]));
    assert_printed("reinstall-replaced", &plan);
    let again = make(&super::layout(), &after(&plan, inventory), InstallMode::Reinstall).unwrap();
    assert_eq!(again.disks[1].verdict, DiskVerdict::Keep);
}

#[test]
fn blank_disk_without_layout_content_is_preserved() {
    let mut layout = super::layout();
    layout.disks[1].partitions.clear();
    layout.filesystems.remove(0);
    let mut inventory = super::installed();
    replace(&mut inventory, "sdb");
    let plan = make(&layout, &inventory, InstallMode::Reinstall).unwrap();
    assert_eq!(plan.disks[1].verdict, DiskVerdict::Keep);
}

/// A run that is interrupted between partition table and mkfs leaves blank partitions.
#[test]
fn blank_preserved_partition_gets_its_filesystem() {
    let mut inventory = super::installed();
    let srv = &mut inventory.disks[1].table.as_mut().unwrap().partitions[0];
    srv.signatures.clear();
    srv.blank = true;
    let plan = make(&super::layout(), &inventory, InstallMode::Reinstall).unwrap();
    assert_eq!(plan.disks[1].verdict, DiskVerdict::Keep);
    let said = "/dev/sdb1 must be preserved, and must contain ext4 \"srv\", but all samples read from the device are zero: the filesystem will be created if the whole device contains only zeros";
    assert_eq!(plan.warnings[0], said);
    let preserved = operations(&plan, StageName::StorageMountPreserved);
    assert!(
        matches!(&preserved[0], Operation::Run(SessionOp::UnlockDisk(UnlockDisk { device, .. })) if device == "/dev/sdb"),
        "{preserved:?}"
    );
    assert!(
        matches!(&preserved[1], Operation::Device(DeviceOp::MakeFilesystem(make)) if make.device == "/dev/sdb1"),
        "{preserved:?}"
    );
    assert!(make(&super::layout(), &after(&plan, inventory), InstallMode::Reinstall).unwrap().warnings.len() == 1);
}

#[test]
fn new_partition_table_below_a_preserved_array_is_recreated() {
    let mut layout = layout();
    for disk in &mut layout.disks[2..] {
        disk.partitions = vec![partition(1, "data", 0, PartitionType::LinuxRaid)];
    }
    layout.raid[2].devices = ["/dev/sdc1", "/dev/sdd1", "/dev/sde1"].map(LayoutPath::from).to_vec();
    let mut inventory = after(&make(&layout, &five(), InstallMode::Install).unwrap(), five());
    for name in ["sdc", "sdd", "sde"] {
        let table = inventory.disks.iter().find(|disk| disk.name == name).unwrap().table.clone();
        replace(&mut inventory, name);
        let disk = inventory.disks.iter_mut().find(|disk| disk.name == name).unwrap();
        disk.blank = false;
        disk.table = table;
        let part = &mut disk.table.as_mut().unwrap().partitions[0];
        (part.blank, part.signatures, part.uses) = (true, Vec::new(), Vec::new());
    }
    let plan = make(&layout, &inventory, InstallMode::Reinstall).unwrap();
    assert_eq!(verdicts(&plan)[2..5], [DiskVerdict::Make; 3]);
    // A partition that is not in the layout was not created by an attempt.
    inventory.disks[2].table.as_mut().unwrap().partitions[0].number = 2;
    assert!(make(&layout, &inventory, InstallMode::Reinstall).is_err());
}

#[test]
fn refuses_one_blank_disk_among_preserved_members() {
    let mut inventory = installed();
    replace(&mut inventory, "sdd");
    assert_eq!(
        reasons(make(&layout(), &inventory, InstallMode::Reinstall)),
        [
            "raid[2].devices: /dev/md/data must be preserved and spans /dev/sdc, /dev/sde and /dev/sdd, but /dev/sdd is blank. Attach the old disk; or boot the installed system and add the new disk to /dev/md/data; or, if /dev/md/data works without the new disk, remove the new disk"
        ]
    );
}

#[test]
fn all_blank_members_become_a_new_array() {
    let mut inventory = installed();
    ["sdc", "sdd", "sde"].iter().for_each(|name| replace(&mut inventory, name));
    let plan = make(&layout(), &inventory, InstallMode::Reinstall).unwrap();
    assert_eq!(verdicts(&plan)[2..5], [DiskVerdict::Make; 3]);
    let again = make(&layout(), &after(&plan, inventory), InstallMode::Reinstall).unwrap();
    assert_eq!(verdicts(&again)[2..5], [DiskVerdict::Keep; 3]);
}

#[test]
fn preserved_array_with_failed_member_causes_a_warning() {
    let mut inventory = installed();
    inventory.arrays[2].members[1].role = MemberRole::Faulty;
    let plan = make(&layout(), &inventory, InstallMode::Reinstall).unwrap();
    let said = "/dev/md/data is kept DEGRADED: found raid1 \"data\" of /dev/sdc, /dev/sdd (faulty), /dev/sde (spare) with 1 of 2 missing";
    assert_eq!(plan.warnings[0], said);
    let preserved = operations(&plan, StageName::StorageMountPreserved);
    let members = preserved.iter().find_map(|operation| match operation {
        Operation::Device(DeviceOp::AssembleArray(AssembleArray { members, .. })) => Some(members.join(" ")),
        _ => None,
    });
    assert_eq!(members.as_deref(), Some("/dev/sdc /dev/sde"));
}

#[test]
fn redundant_disks_may_be_absent() {
    let mut inventory = installed();
    unplug(&mut inventory, "sdb");
    unplug(&mut inventory, "sdd");
    let plan = make(&layout(), &inventory, InstallMode::Reinstall).unwrap();
    let raid = operations(&plan, StageName::StorageRaid);
    let devices = raid.iter().map(|operation| match operation {
        Operation::Device(DeviceOp::CreateArray(array)) => array.mdadm_arguments(),
        other => panic!("{other:?}"),
    });
    assert_eq!(devices.collect::<Vec<_>>(), ["/dev/sda1 missing", "/dev/sda2 missing"]);
    let starts = [
        "array /dev/md/efi is created DEGRADED, without /dev/sdb1",
        "array /dev/md/root is created DEGRADED, without /dev/sdb2",
        "/dev/md/data is kept DEGRADED: found raid1 \"data\" of /dev/sdc, /dev/sde (spare) with 1 of 2 missing",
        "device:/dev/sdb does not exist on given hardware: its disks are ",
        "device:/dev/sdd does not exist on given hardware: its disks are ",
    ];
    let starts_with = |(said, start): (&String, &str)| assert!(said.starts_with(start), "{said}");
    plan.warnings.iter().zip(starts).for_each(starts_with);
    assert_printed("reinstall-absent", &plan);
    after(&plan, inventory.clone());
    // A first installation requires all of its disks.
    assert!(make(&layout(), &inventory, InstallMode::Install).is_err());
}

#[test]
fn refuses_array_that_lost_too_many_members() {
    let mut inventory = installed();
    unplug(&mut inventory, "sdc");
    unplug(&mut inventory, "sdd");
    let reasons = reasons(make(&layout(), &inventory, InstallMode::Reinstall));
    let expected = "raid[2]: /dev/md/data must be preserved, and must be a raid1 of /dev/sde, 1 of them spare, but the array has lost too many members: found raid1 \"data\" of /dev/sde (spare) with 2 of 2 missing";
    assert!(reasons.iter().any(|reason| reason == expected), "{reasons:#?}");
    let expected = "; /dev/md/data (raid1) requires /dev/sdc";
    assert!(reasons.iter().any(|reason| reason.ends_with(expected)), "{reasons:#?}");
}

#[test]
fn array_without_redundancy_requires_all_disks() {
    let mut layout = layout();
    layout.raid[1].level = RaidLevel::Raid0;
    let mut inventory = after(&make(&layout, &five(), InstallMode::Install).unwrap(), five());
    unplug(&mut inventory, "sdb");
    let reasons = reasons(make(&layout, &inventory, InstallMode::Reinstall));
    assert!(reasons[0].starts_with("disks[1].device: device:/dev/sdb does not exist"), "{reasons:?}");
    assert!(reasons[0].ends_with("; /dev/md/root (raid0) requires /dev/sdb2"), "{reasons:?}");
}

/// Returns a layout with vg01 on sdc and sdd, and the installed machine.
fn two_legs(kind: LvmType) -> (Layout, Inventory) {
    let mut layout = layout();
    layout.raid.pop();
    layout.disks = vec![layout.disks[0].clone(), layout.disks[1].clone(), whole("/dev/sdc"), whole("/dev/sdd")];
    layout.volumegroups = vec![group("vg00", &["/dev/sdc", "/dev/sdd"])];
    layout.logicalvolumes = vec![volume("varlib", "vg00", 400, kind), volume("srv", "vg00", 400, kind)];
    let mut inventory = after(&make(&layout, &five(), InstallMode::Install).unwrap(), five());
    unplug(&mut inventory, "sdd");
    (layout, inventory)
}

#[test]
fn preserves_group_without_a_disk_while_all_data_exist() {
    let (layout, mut inventory) = two_legs(LvmType::Raid1);
    let plan = make(&layout, &inventory, InstallMode::Reinstall).unwrap();
    let said = "vg:vg00 is kept DEGRADED: without redundancy for varlib, srv (vg:vg00 on /dev/sdc, a missing device (volumes: varlib, srv))";
    assert!(plan.warnings.iter().any(|warning| warning == said), "{:#?}", plan.warnings);
    let activate = Operation::Device(DeviceOp::ActivateGroup(ActivateGroup {
        name: "vg00".to_owned(),
        devices: vec!["/dev/sdc".into()],
        volumes: vec!["varlib".to_owned(), "srv".to_owned()],
    }));
    assert!(operations(&plan, StageName::StorageMountPreserved).contains(&activate));
    // A reinstall is also refused if a volume that the layout does not list has lost data.
    let other =
        inventory::LvmLogicalVolume { name: "pvc-1".to_owned(), health: VolumeHealth::Lost, ..Default::default() };
    inventory.groups[0].volumes.push(other);
    let reasons = reasons(make(&layout, &inventory, InstallMode::Reinstall));
    let said = "volumegroups[0]: vg:vg00 must be preserved, but data of the volumes pvc-1 is missing: vg:vg00 on /dev/sdc, a missing device (volumes: varlib, srv, pvc-1)";
    assert!(reasons.iter().any(|reason| reason == said), "{reasons:#?}");
}

#[test]
fn refuses_group_that_has_lost_data() {
    let (layout, inventory) = two_legs(LvmType::Linear);
    let reasons = reasons(make(&layout, &inventory, InstallMode::Reinstall));
    assert!(reasons.iter().any(|reason| reason.ends_with("; vg:vg00 requires /dev/sdd")), "{reasons:#?}");
}

#[test]
fn refuses_physical_volume_with_two_signatures() {
    let mut inventory = installed();
    let data = inventory.stacked.iter_mut().find(|stacked| stacked.name == "md125").unwrap();
    data.signatures.push(DeviceSignature { kind: "ext4".to_owned(), ..DeviceSignature::default() });
    let reasons = reasons(make(&layout(), &inventory, InstallMode::Reinstall));
    assert_eq!(
        reasons[0],
        "volumegroups[0]: vg:vg00 must be preserved on /dev/md125, but there are several signatures: LVM physical volume and ext4"
    );
}

#[test]
fn refuses_preserved_disk_with_table_and_signature() {
    let mut inventory = super::installed();
    inventory.disks[1].signatures.push(DeviceSignature { kind: "zfs_member".to_owned(), ..DeviceSignature::default() });
    let reasons = reasons(make(&super::layout(), &inventory, InstallMode::Reinstall));
    assert_eq!(
        reasons,
        [
            "disks[1].device: /dev/sdb must be preserved, but has both a partition table and signatures: GPT 1 partition · ext4 \"srv\" · zfs_member"
        ]
    );
}
