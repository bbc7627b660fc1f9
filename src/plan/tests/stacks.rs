//! Arrays, groups and volumes: made, kept, released.

use super::*;
use crate::inventory::{LogicalVolume as FoundVolume, MemberRole, PhysicalVolume, Stacked, StackedKind};
use crate::layout::{LogicalVolume, LvmType, Raid, RaidLevel, VolumeGroup};

pub(super) fn raid(name: &str, devices: &[&str], level: RaidLevel, spares: u32) -> Raid {
    let devices = devices.iter().map(|device| (*device).to_owned()).collect();
    Raid { arrayname: name.to_owned(), devices, level, createoptions: Vec::new(), spares }
}

pub(super) fn group(name: &str, devices: &[&str]) -> VolumeGroup {
    let devices = devices.iter().map(|device| (*device).to_owned()).collect();
    VolumeGroup { name: name.to_owned(), devices, tags: Vec::new() }
}

pub(super) fn volume(name: &str, group: &str, size_mib: u64, lvmtype: LvmType) -> LogicalVolume {
    LogicalVolume { name: name.to_owned(), volumegroup: group.to_owned(), size_mib, lvmtype }
}

fn system(device: &str) -> Disk {
    Disk {
        device: device.to_owned(),
        hints: Default::default(),
        wipeonreinstall: true,
        partitions: vec![
            partition(1, "efi", 500, PartitionKind::LinuxRaid),
            partition(2, "root", 0, PartitionKind::LinuxRaid),
        ],
    }
}

fn whole(device: &str) -> Disk {
    Disk { device: device.to_owned(), hints: Default::default(), wipeonreinstall: false, partitions: Vec::new() }
}

/// ESP and root mirrored on sda and sdb; data on an array of sdc, sdd with the spare sde, which a reinstall keeps.
fn mirrored() -> Layout {
    Layout {
        id: "mirrored".to_owned(),
        disks: vec![system("/dev/sda"), system("/dev/sdb"), whole("/dev/sdc"), whole("/dev/sdd"), whole("/dev/sde")],
        raid: vec![
            raid("/dev/md/efi", &["/dev/sda1", "/dev/sdb1"], RaidLevel::Raid1, 0),
            raid("/dev/md/root", &["/dev/sda2", "/dev/sdb2"], RaidLevel::Raid1, 0),
            raid("/dev/md/data", &["/dev/sdc", "/dev/sdd", "/dev/sde"], RaidLevel::Raid1, 1),
        ],
        volumegroups: vec![group("vg00", &["/dev/md/data"])],
        logicalvolumes: vec![volume("varlib", "vg00", 200, LvmType::Linear), volume("srv", "vg00", 0, LvmType::Linear)],
        filesystems: vec![
            filesystem("/var/lib", "/dev/vg00/varlib", Format::Xfs, "varlib"),
            filesystem("/boot/efi", "/dev/md/efi", Format::Vfat, "efi"),
            filesystem("/", "/dev/md/root", Format::Ext4, "root"),
            filesystem("/srv", "/dev/vg00/srv", Format::Btrfs, "srv"),
        ],
        ..Layout::default()
    }
}

fn five() -> Inventory {
    let names = ["sda", "sdb", "sdc", "sdd", "sde", "sdf"];
    Inventory { disks: names.map(|name| disk(name, 20_000)).into(), ..Inventory::default() }
}

/// The layout with xfs large enough.
fn layout() -> Layout {
    let mut layout = mirrored();
    layout.logicalvolumes[0].size_mib = 400;
    layout
}

fn installed() -> Inventory {
    after(&make(&layout(), &five(), Mode::Install).unwrap(), five())
}

fn operations(plan: &Plan, name: StepName) -> &[Operation] {
    plan.steps.iter().find(|step| step.name == name).map(|step| step.operations.as_slice()).unwrap_or_default()
}

#[test]
fn a_fresh_install_with_everything() {
    let plan = make(&layout(), &five(), Mode::Install).unwrap();
    assert_printed("install-stacked", &plan);
    let Operation::CreateArray(efi) = &operations(&plan, StepName::StorageRaid)[0] else { panic!("{plan}") };
    assert_eq!((efi.metadata.as_str(), efi.device.as_str()), ("1.0", "/dev/md/efi"));
    let Operation::CreateArray(data) = &operations(&plan, StepName::StorageRaid)[2] else { panic!("{plan}") };
    assert_eq!(data.devices, ["/dev/sdc", "/dev/sdd", "/dev/sde"]);
    assert_eq!(data.spares, 1);
    let passes: Vec<(&str, u8)> = plan.fstab.iter().map(|entry| (entry.path.as_str(), entry.pass)).collect();
    assert_eq!(passes, [("/", 1), ("/srv", 0), ("/boot/efi", 2), ("/var/lib", 0)]);
}

#[test]
fn the_same_again_over_everything_running() {
    let plan = make(&layout(), &installed(), Mode::Install).unwrap();
    assert_printed("install-over-running", &plan);
    after(&plan, installed());
}

#[test]
fn a_reinstall_keeps_array_group_and_volumes() {
    let before = installed();
    let plan = make(&layout(), &before, Mode::Reinstall).unwrap();
    assert_printed("reinstall-stacked", &plan);
    let uuid = before.arrays[2].uuid;
    let members = ["/dev/sdc", "/dev/sdd", "/dev/sde"].map(str::to_owned).to_vec();
    let kept = operations(&plan, StepName::StorageMountKept);
    assert_eq!(kept[3], Operation::AssembleArray { device: "/dev/md/data".to_owned(), uuid, members });
    let after = after(&plan, before.clone());
    assert_eq!(after.groups, before.groups);
    assert_eq!(after.arrays.iter().find(|array| array.name == "data"), Some(&before.arrays[2]));
}

#[test]
fn what_is_made_below_a_kept_filesystem_is_mounted_after_it() {
    let mut layout = layout();
    layout.disks.push(Disk { wipeonreinstall: true, ..whole("/dev/sdf") });
    layout.filesystems.push(filesystem("/srv/cache", "/dev/sdf", Format::Ext4, ""));
    let first = make(&layout, &five(), Mode::Install).unwrap();
    let plan = make(&layout, &after(&first, five()), Mode::Reinstall).unwrap();
    let paths = |name| -> Vec<&str> {
        let mounts = operations(&plan, name).iter().filter_map(|operation| match operation {
            Operation::Mount(mount) => Some(mount.path.as_str()),
            _ => None,
        });
        mounts.collect()
    };
    assert_eq!(paths(StepName::StorageMount), ["/", "/boot/efi"]);
    assert_eq!(paths(StepName::StorageMountKept), ["/srv", "/srv/cache", "/var/lib"]);
}

/// A change of the machine and the reason that it must lead to on a reinstall.
type Case = (&'static str, fn(&mut Inventory), &'static str);

#[test]
fn a_kept_stack_that_differs_is_refused_with_both_sides() {
    let cases: [Case; 12] = [
        (
            "other level",
            |inventory| inventory.arrays[2].level = "raid0".to_owned(),
            "raid[2]: /dev/md/data is to be kept as raid1 of /dev/sdc, /dev/sdd, /dev/sde, 1 of them spare, but there is raid0 \"data\" of /dev/sdc, /dev/sdd, /dev/sde (spare)",
        ),
        (
            "a member has failed",
            |inventory| inventory.arrays[2].members[1].role = MemberRole::Faulty,
            "raid[2]: /dev/md/data is to be kept as raid1 of /dev/sdc, /dev/sdd, /dev/sde, 1 of them spare, but there is raid1 \"data\" of /dev/sdc, /dev/sdd (faulty), /dev/sde (spare) with 1 of 2 missing",
        ),
        (
            "a member less",
            |inventory| drop(inventory.arrays[2].members.pop()),
            "raid[2]: /dev/md/data is to be kept as raid1 of /dev/sdc, /dev/sdd, /dev/sde, 1 of them spare, but there is raid1 \"data\" of /dev/sdc, /dev/sdd",
        ),
        (
            "no array",
            |inventory| drop(inventory.arrays.pop()),
            "raid[2]: /dev/md/data is to be kept as raid1 of /dev/sdc, /dev/sdd, /dev/sde, 1 of them spare, but none of them is a member of an array",
        ),
        (
            "another physical volume",
            |inventory| {
                let more = PhysicalVolume { device: "/dev/sdf".to_owned(), ..PhysicalVolume::default() };
                inventory.groups[0].physical.push(more);
            },
            "volumegroups[0]: vg:vg00 is to be kept on /dev/md125, but there is vg:vg00 on /dev/md125, /dev/sdf (volumes: varlib, srv)",
        ),
        (
            "a physical volume is missing",
            |inventory| inventory.groups[0].physical.push(PhysicalVolume::default()),
            "volumegroups[0]: vg:vg00 is to be kept on /dev/md125, but there is vg:vg00 on /dev/md125, a missing device (volumes: varlib, srv)",
        ),
        (
            "another name",
            |inventory| inventory.groups[0].name = "data".to_owned(),
            "volumegroups[0]: vg:vg00 is to be kept on /dev/md125, but there is vg:data on /dev/md125 (volumes: varlib, srv)",
        ),
        (
            "no group",
            |inventory| inventory.groups.clear(),
            "volumegroups[0]: vg:vg00 is to be kept on /dev/md125, but none of them is a physical volume of a group that is known",
        ),
        (
            "no volume",
            |inventory| drop(inventory.groups[0].volumes.remove(0)),
            "logicalvolumes[0]: /dev/vg00/varlib is to be kept as linear 400 MiB, but is missing: vg:vg00 on /dev/md125 (volumes: srv)",
        ),
        (
            "another size",
            |inventory| inventory.groups[0].volumes[0].size_bytes = 404 * MIB,
            "logicalvolumes[0]: /dev/vg00/varlib is to be kept as linear 400 MiB, but is linear 404 MiB",
        ),
        (
            "another type",
            |inventory| inventory.groups[0].volumes[1].kind = "striped".to_owned(),
            "logicalvolumes[1]: /dev/vg00/srv is to be kept as linear, but is striped 4 MiB",
        ),
        (
            "not active",
            |inventory| inventory.groups[0].volumes[0].running = None,
            "filesystems[0]: /dev/vg00/varlib is to be kept with xfs \"varlib\", but the volume is not active, so that nothing is known of what is on it",
        ),
    ];
    for (name, change, expected) in cases {
        let mut inventory = installed();
        change(&mut inventory);
        let reasons = reasons(make(&layout(), &inventory, Mode::Reinstall));
        assert!(reasons.iter().any(|reason| reason == expected), "{name}: {reasons:#?}");
    }
}

#[test]
fn somebody_elses_volume_in_a_kept_group_is_left_alone() {
    let mut inventory = installed();
    let other = FoundVolume { name: "pvc-1".to_owned(), kind: "linear".to_owned(), ..FoundVolume::default() };
    inventory.groups[0].volumes.push(other);
    assert!(make(&layout(), &inventory, Mode::Reinstall).is_ok());
}

#[test]
fn a_mixture_of_kept_and_wiped_is_refused() {
    let mut layout = layout();
    layout.disks[2].wipeonreinstall = true;
    let reasons = reasons(make(&layout, &installed(), Mode::Reinstall));
    assert_eq!(
        reasons,
        [
            "disks: md125 lies on sdc, which a reinstall wipes, and on sdd, sde, which it does not touch: raid1 \"data\" of /dev/sdc, /dev/sdd, /dev/sde (spare); take it apart first, or keep or wipe all of it",
            "raid[2].devices: /dev/md/data lies on /dev/sdc, which a reinstall wipes, and on /dev/sdd, /dev/sde, which it keeps: give all of its disks the same wipeonreinstall",
        ]
    );
}

#[test]
fn a_kept_root_is_refused() {
    let mut layout = layout();
    layout.disks[0].wipeonreinstall = false;
    layout.disks[1].wipeonreinstall = false;
    layout.disks.push(Disk { wipeonreinstall: true, ..whole("/dev/sdf") });
    let reasons = reasons(make(&layout, &installed(), Mode::Reinstall));
    assert_eq!(
        reasons,
        [
            "filesystems[2]: /dev/md/root holds /, where the new image goes, and cannot be kept: say wipeonreinstall: true for its disks"
        ]
    );
}

/// What runs on sda1 and the foreign sdf.
fn foreign_array(inventory: &mut Inventory, assembled: bool) {
    for index in [0, 5] {
        let disk = &mut inventory.disks[index];
        let part = inventory::Partition {
            number: 1,
            device: format!("{}1", disk.device),
            start_bytes: MIB,
            size_bytes: 100 * MIB,
            uses: vec![Use::Holder("md9".to_owned())],
            ..inventory::Partition::default()
        };
        disk.table = Some(Table { kind: "gpt".to_owned(), guid: None, partitions: vec![part] });
    }
    inventory.stacked.push(Stacked {
        name: "md9".to_owned(),
        device: "/dev/md9".to_owned(),
        kind: StackedKind::Array,
        below: vec!["sda1".to_owned(), "sdf1".to_owned()],
        size_bytes: 99 * MIB,
        assembled,
        ..Stacked::default()
    });
    let member =
        |device: &str, place| inventory::ArrayMember { device: device.to_owned(), role: MemberRole::Active(place) };
    inventory.arrays.push(inventory::Array {
        name: "old".to_owned(),
        level: "raid1".to_owned(),
        metadata: "1.2".to_owned(),
        raid_devices: 2,
        members: vec![member("/dev/sda1", 0), member("/dev/sdf1", 1)],
        running: Some("md9".to_owned()),
        ..inventory::Array::default()
    });
}

#[test]
fn an_install_takes_our_disk_out_of_a_foreign_array_and_says_so() {
    let mut inventory = five();
    foreign_array(&mut inventory, false);
    let plan = make(&layout(), &inventory, Mode::Install).unwrap();
    let said = "TAKES sda1 OUT OF md9, whose other members on sdf are not ours and stay as they are";
    assert!(plan.disks[0].now.contains(said), "{plan}");
    let holder = Holder::Array { device: "/dev/md9".to_owned() };
    assert_eq!(operations(&plan, StepName::StorageRelease)[0], Operation::Release(holder));

    let reasons = reasons(make(&layout(), &inventory, Mode::Reinstall));
    assert!(reasons[0].starts_with("disks: md9 lies on sda1, which a reinstall wipes, and on sdf1"), "{reasons:#?}");
}

#[test]
fn only_what_was_assembled_is_put_back_on_foreign_disks() {
    for (assembled, expected) in [(true, 1), (false, 0)] {
        let mut inventory = five();
        foreign_array(&mut inventory, assembled);
        inventory.disks[0].table = None;
        inventory.stacked[0].below.remove(0);
        inventory.arrays[0].members.remove(0);
        let plan = make(&layout(), &inventory, Mode::Install).unwrap();
        let release = operations(&plan, StepName::StorageRelease);
        assert_eq!(release.len(), expected + 1, "{plan}");
    }
}

#[test]
fn what_cannot_be_taken_down_is_named() {
    let cases: [(fn(&mut Inventory), &str); 4] = [
        (
            |inventory| inventory.stacked[0].uses.push(Use::Mounted("/mnt".to_owned())),
            "disks[0].device: /dev/md9, which lies on /dev/sda, is in use (mounted at /mnt): unmount or stop it first; nothing here does that for you",
        ),
        (
            |inventory| inventory.stacked[0].uses.push(Use::Holder("dm-7".to_owned())),
            "disks[0].device: /dev/md9, which lies on /dev/sda, is in use (held by dm-7): unmount or stop it first; nothing here does that for you",
        ),
        (
            |inventory| inventory.disks[1].uses.push(Use::Holder("dm-7".to_owned())),
            "disks[1].device: /dev/sdb is in use (held by dm-7): unmount or stop it first; nothing here does that for you",
        ),
        (
            |inventory| {
                let part = inventory::Partition {
                    device: "/dev/md9p1".to_owned(),
                    uses: vec![Use::Mounted("/part".to_owned())],
                    ..inventory::Partition::default()
                };
                inventory.stacked[0].table = Some(Table { partitions: vec![part], ..Table::default() });
            },
            "disks[0].device: /dev/md9p1, which lies on /dev/sda, is in use (mounted at /part): unmount or stop it first; nothing here does that for you",
        ),
    ];
    for (change, expected) in cases {
        let mut inventory = five();
        foreign_array(&mut inventory, false);
        change(&mut inventory);
        assert_eq!(reasons(make(&layout(), &inventory, Mode::Install)), [expected]);
    }
}

#[test]
fn what_is_kept_must_not_be_in_use() {
    let cases = [
        (
            Use::Mounted("/mnt".to_owned()),
            "disks[2].device: /dev/mapper/vg00-varlib, which lies on /dev/sdc, is in use (mounted at /mnt): unmount or stop it first; nothing here does that for you",
        ),
        (Use::Swap, "disks: /dev/mapper/vg00-varlib is to be kept and is in use (active swap): swapoff it first"),
    ];
    for (usage, expected) in cases {
        let mut inventory = installed();
        let varlib = inventory.stacked.iter_mut().find(|stacked| stacked.device.ends_with("varlib")).unwrap();
        varlib.uses.push(usage);
        assert_eq!(reasons(make(&layout(), &inventory, Mode::Reinstall)), [expected]);
    }
}

#[test]
fn swap_and_unknown_mappings_are_taken_down_topmost_first() {
    let mut inventory = five();
    foreign_array(&mut inventory, false);
    inventory.stacked[0].uses.push(Use::Holder("dm-3".to_owned()));
    inventory.stacked.push(Stacked {
        name: "dm-3".to_owned(),
        device: "/dev/mapper/mpatha".to_owned(),
        below: vec!["md9".to_owned(), "sdb".to_owned()],
        uses: vec![Use::Swap],
        ..Stacked::default()
    });
    let plan = make(&layout(), &inventory, Mode::Install).unwrap();
    let mapping = "/dev/mapper/mpatha".to_owned();
    let expected = [
        Operation::Release(Holder::Swap { device: mapping.clone() }),
        Operation::Release(Holder::Mapping { device: mapping }),
        Operation::Release(Holder::Array { device: "/dev/md9".to_owned() }),
    ];
    assert_eq!(operations(&plan, StepName::StorageRelease)[..3], expected);
}

#[test]
fn a_name_that_another_keeps_is_refused() {
    let mut inventory = five();
    foreign_array(&mut inventory, false);
    inventory.disks[0].table = None;
    inventory.stacked[0].below.remove(0);
    inventory.arrays[0].members.remove(0);
    let mut layout = layout();
    layout.raid[1].arrayname = "/dev/md9".to_owned();
    layout.filesystems[2].device = "/dev/md9".to_owned();
    assert_eq!(
        reasons(make(&layout, &inventory, Mode::Install)),
        [
            "raid[1].arrayname: array:/dev/md9 is the name of another array, which runs on sdf1 and stays: choose another name"
        ]
    );

    let mut inventory = five();
    let physical = vec![PhysicalVolume { device: "/dev/sdf".to_owned(), ..PhysicalVolume::default() }];
    let twin = inventory::VolumeGroup { name: "vg00".to_owned(), physical, ..inventory::VolumeGroup::default() };
    inventory.groups.push(twin);
    assert_eq!(
        reasons(make(&super::stacks::layout(), &inventory, Mode::Install)),
        [
            "volumegroups[0].name: vg:vg00 is also the name of another group on /dev/sdf, which stays: choose another name"
        ]
    );
}

#[test]
fn what_does_not_fit_is_refused_with_numbers() {
    let cases: [(fn(&mut Layout, &mut Inventory), &str); 7] = [
        (
            |layout, _| layout.logicalvolumes[0].size_mib = 30_000,
            "logicalvolumes[0].size: vg:vg00 is not big enough for lv:varlib required:30000MiB, existing:19976MiB (linear: in extents of 4 MiB)",
        ),
        (
            |layout, _| layout.logicalvolumes[0].size_mib = 19_976,
            "logicalvolumes[1].size: vg:vg00 is not big enough for lv:srv required:4MiB, existing:0MiB (linear: in extents of 4 MiB)",
        ),
        (
            |layout, _| layout.logicalvolumes[0].size_mib = 200,
            "filesystems[0]: device:/dev/vg00/varlib is not big enough required:300MiB, existing:200MiB (xfs: mkfs.xfs refuses less)",
        ),
        (
            |_, inventory| inventory.disks[4].size_bytes = MIB,
            "raid[2].devices: device:/dev/sde is not big enough required:4MiB, existing:1MiB (for /dev/md/data with metadata 1.2)",
        ),
        (
            |_, inventory| inventory.disks[4].size_bytes = 6 * MIB,
            "volumegroups[0].devices[0]: device:/dev/md/data is not big enough required:5MiB, existing:3MiB (for an extent of vg:vg00 and its metadata)",
        ),
        (
            |layout, inventory| {
                layout.volumegroups[0].devices = vec!["/dev/sdc".to_owned(), "/dev/sdd".to_owned()];
                layout.raid.pop();
                inventory.disks[3].sector_bytes = 4096;
            },
            "volumegroups[0].devices: vg:vg00 cannot mix devices with different sectors, which LVM refuses: /dev/sdc 512, /dev/sdd 4096 bytes",
        ),
        (
            |layout, inventory| {
                inventory.disks[0].sector_bytes = 4096;
                layout.disks[0].partitions[0].size_mib = 200;
                layout.filesystems[1].createoptions = vec!["-F".to_owned(), "32".to_owned()];
            },
            "filesystems[1]: device:/dev/md/efi is not big enough required:260MiB, existing:199MiB (vfat: with sectors of 4096 bytes, firmware does not boot from a smaller FAT32)",
        ),
    ];
    for (change, expected) in cases {
        let (mut layout, mut inventory) = (layout(), five());
        change(&mut layout, &mut inventory);
        assert_eq!(reasons(make(&layout, &inventory, Mode::Install)), [expected]);
    }
}

#[test]
fn erase_decides_the_methods() {
    use crate::inventory::EraseMethod::*;
    let mut inventory = five();
    inventory.disks[0].erase = vec![NvmeSanitizeCrypto, NvmeFormatCrypto, AtaErase, Discard];
    let cases = [
        (Erase::Quick, vec![NvmeFormatCrypto, Discard], false, 60, vec![]),
        (
            Erase::Secure,
            vec![NvmeSanitizeCrypto, NvmeFormatCrypto, AtaErase, Discard, WriteZeroes],
            true,
            14400,
            vec![WriteZeroes],
        ),
        (Erase::None, vec![Ends], false, 60, vec![Ends]),
    ];
    for (erase, methods, strict, budget_seconds, of_plain) in cases {
        let request = Request { mode: Mode::Install, erase, subject: subject() };
        let plan = super::super::make(&layout(), &inventory, request, &mut counting()).unwrap();
        let wipes: Vec<&WipeDisk> = operations(&plan, StepName::StorageWipe)
            .iter()
            .map(|operation| match operation {
                Operation::WipeDisk(wipe) => wipe,
                other => panic!("{other:?}"),
            })
            .collect();
        assert_eq!((&wipes[0].methods, wipes[0].strict, wipes[0].budget_seconds), (&methods, strict, budget_seconds));
        assert_eq!(wipes[1].methods, of_plain);
        assert!(wipes.iter().all(|wipe| wipe.zero[0].start == 0));
    }
}

#[test]
fn disks_are_found_by_hints() {
    let mut inventory = five();
    inventory.disks[2].serial = "S45N".to_owned();
    inventory.disks[2].transport = "sata".to_owned();
    let found = |hint: &str, value: &str| {
        let wanted = Disk { hints: [(hint.to_owned(), value.to_owned())].into(), ..whole("/dev/os") };
        find::disk(&wanted, &inventory).map(|disk| disk.name.clone())
    };
    assert_eq!(found("serial", "s45n"), Ok("sdc".to_owned()));
    let none = found("serial", "other").unwrap_err();
    assert!(none.starts_with("device:/dev/os does not exist on given hardware: no disk matches its hints: /dev/sda (serial other: it has none); "), "{none}");
    let several = found("size", ">= 1").unwrap_err();
    assert!(several.contains("its hints match 6 disks: /dev/sda (21.0 GB); "), "{several}");
    assert!(several.contains("/dev/sdc (21.0 GB) serial S45N, tran sata; "), "{several}");
}
