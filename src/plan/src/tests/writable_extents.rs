//! Byte ranges that each stage may write.

use super::arrays_and_groups::{installed as stacked, layout as stacked_layout};
use super::operation_effects::{Brought, Effect, brought, effect};
use super::*;
use model::device_name::DevicePath;
use operations::{ByteRange, DeviceOp, DiskExtents, LockDisk, Operation, SessionOp, StageExtents, StageName};
use std::collections::BTreeMap;

/// Asserts that the extents of a stage contain every range that its operations write, no other range of a preserved
/// disk, and no range of a foreign disk.
pub(super) fn assert_just_what_is_written(plan: &Plan, inventory: &Inventory) {
    let names: Vec<StageName> = plan.extents.iter().flat_map(|extents| extents.stages.clone()).collect();
    assert_eq!(names, plan.stages.iter().map(|stage| stage.name).collect::<Vec<_>>());
    let brought = brought(plan);
    let mut places: BTreeMap<DevicePath, Vec<ByteRange>> = BTreeMap::new();
    for (index, stage) in plan.stages.iter().enumerate() {
        let extents = plan.extents.iter().find(|extents| extents.stages.contains(&stage.name)).unwrap();
        if index < plan.point_of_no_return || !stage.name.may_write() {
            assert_eq!(extents.disks, [], "{}", stage.name);
            continue;
        }
        let devices = stage.operations.iter().filter(|operation| edited(operation).is_empty()).flat_map(|operation| {
            let is_checked = |device: &&DevicePath| !super::properties::is_in_renewed_group(plan, operation, device);
            written(operation).into_iter().filter(is_checked).collect::<Vec<_>>()
        });
        let places_of_devices = devices.flat_map(|device| lies(plan, &brought, inventory, device));
        for (disk, range) in places_of_devices.chain(stage.operations.iter().flat_map(edited)) {
            let found = extents.disks.iter().find(|extents| extents.device == disk);
            let found = found.unwrap_or_else(|| panic!("{disk} is not in {extents:?}"));
            assert!(found.ranges.iter().any(|open| contains(*open, range)), "{range:?} is not in {found:?}");
            places.entry(disk).or_default().push(range);
        }
        for extents in &extents.disks {
            assert_apart(extents);
            let disk = plan.disks.iter().find(|disk| disk.device == extents.device).unwrap();
            match disk.verdict {
                DiskVerdict::Wipe | DiskVerdict::Make => {
                    assert_eq!(extents.ranges, [ByteRange { start: 0, length: disk.size_bytes }]);
                }
                // The tests of partly kept disks check these extents.
                DiskVerdict::PartlyKept => {}
                DiskVerdict::Keep | DiskVerdict::Volumes => assert_kept(plan, extents, &places[&extents.device]),
                DiskVerdict::NotOurs => panic!("{extents:?} is on a foreign disk"),
            }
        }
        let made = plan.disks.iter().filter(|disk| matches!(disk.verdict, DiskVerdict::Wipe | DiskVerdict::Make));
        assert!(made.into_iter().all(|disk| extents.disks.iter().any(|extents| extents.device == disk.device)));
    }
}

fn contains(outer: ByteRange, inner: ByteRange) -> bool {
    outer.start <= inner.start && inner.start + inner.length <= outer.start + outer.length
}

fn assert_apart(extents: &DiskExtents) {
    assert!(!extents.ranges.is_empty() && extents.ranges.iter().all(|range| range.length > 0), "{extents:?}");
    let apart = |pair: &[ByteRange]| pair[0].start + pair[0].length < pair[1].start;
    assert!(extents.ranges.windows(2).all(apart), "{extents:?}");
}

/// Asserts that the extents contain only ranges that operations have used so far, and no guarded ranges.
fn assert_kept(plan: &Plan, extents: &DiskExtents, places: &[ByteRange]) {
    let mut places = places.to_vec();
    places.sort_by_key(|place| place.start);
    for range in &extents.ranges {
        let inside = places.iter().filter(|place| contains(*range, **place));
        let reached = inside.fold(range.start, |reached, place| {
            if place.start <= reached { reached.max(place.start + place.length) } else { reached }
        });
        assert_eq!(reached, range.start + range.length, "{range:?} of {extents:?} exceeds {places:?}");
    }
    let locks = plan.stages.iter().flat_map(|stage| &stage.operations).filter_map(|operation| match operation {
        Operation::Run(SessionOp::LockDisk(LockDisk { device, untouched })) if *device == extents.device => {
            Some(untouched)
        }
        _ => None,
    });
    for untouched in locks.flatten() {
        let meets = |open: &ByteRange| {
            open.start < untouched.start + untouched.length && untouched.start < open.start + open.length
        };
        assert!(!extents.ranges.iter().any(meets), "{untouched:?} is in {extents:?}");
    }
}

/// Returns the devices that an operation writes.
fn written(operation: &Operation) -> Vec<&DevicePath> {
    let Effect { destroyed, written, .. } = effect(operation);
    [destroyed, written].concat()
}

/// Returns the ranges that an operation on a partly kept disk writes; empty for other operations.
fn edited(operation: &Operation) -> Vec<(DevicePath, ByteRange)> {
    match operation {
        Operation::Device(DeviceOp::ClearRanges(clear)) => {
            clear.first.iter().chain(&clear.zero).map(|range| (clear.device.clone(), *range)).collect()
        }
        // The first 34 sectors contain the protective MBR, the GPT header and 128 entries.
        Operation::Device(DeviceOp::EditTable(edit)) => {
            vec![(edit.device.clone(), ByteRange { start: 0, length: 34 * u64::from(edit.sector_bytes) })]
        }
        _ => Vec::new(),
    }
}

/// Returns the location of a device of the plan, created or preserved, on the disks.
fn lies(plan: &Plan, brought: &Brought, inventory: &Inventory, device: &DevicePath) -> Vec<(DevicePath, ByteRange)> {
    if let Some(place) = place(plan, device) {
        return vec![place];
    }
    if let Some(below) = brought.get(device) {
        return below.iter().flat_map(|device| lies(plan, brought, inventory, device)).collect();
    }
    let parts = inventory.disks.iter().flat_map(|disk| {
        disk.table.iter().flat_map(move |table| table.partitions.iter().map(move |part| (disk, part)))
    });
    let part = parts.into_iter().find(|(_, part)| part.device == *device);
    match part {
        Some((disk, part)) => {
            vec![(disk.device.clone(), ByteRange { start: part.start_bytes, length: part.size_bytes })]
        }
        None => {
            let disk = inventory.find_disk(device.as_str()).unwrap_or_else(|| panic!("{device} is nowhere"));
            vec![(disk.device.clone(), ByteRange { start: 0, length: disk.size_bytes })]
        }
    }
}

/// Returns the location of a new partition.
fn place(plan: &Plan, device: &DevicePath) -> Option<(DevicePath, ByteRange)> {
    plan.stages.iter().flat_map(|stage| &stage.operations).find_map(|operation| {
        let (disk, partitions, sector) = match operation {
            Operation::Device(DeviceOp::WriteTable(table)) => (&table.device, &table.partitions, table.sector_bytes),
            Operation::Device(DeviceOp::EditTable(edit)) => (&edit.device, &edit.added, edit.sector_bytes),
            _ => return None,
        };
        let (part, sector) = (partitions.iter().find(|part| part.device == *device)?, u64::from(sector));
        let length = (part.last_lba + 1 - part.first_lba) * sector;
        Some((disk.clone(), ByteRange { start: part.first_lba * sector, length }))
    })
}

/// Returns one line for each group of consecutive stages with the same extents: the first and the last stage, and the
/// extents as `DISK START+LENGTH` in MiB.
fn format_extents(plan: &Plan) -> Vec<String> {
    let range = |range: &ByteRange| format!("{}+{}", range.start / MIB, range.length / MIB);
    let disk = |disk: &DiskExtents| {
        let ranges: Vec<String> = disk.ranges.iter().map(range).collect();
        format!("{} {}", disk.device, ranges.join(" "))
    };
    let group = |extents: &StageExtents| {
        let (first, last) = (extents.stages.first().unwrap(), extents.stages.last().unwrap());
        let disks: Vec<String> = extents.disks.iter().map(disk).collect();
        format!("{first} … {last}: {}", disks.join(", ")).trim_end().to_owned()
    };
    plan.extents.iter().map(group).collect()
}

fn with_options(options: &[&str]) -> Layout {
    let mut layout = layout();
    layout.filesystems[0].mountoptions = options.iter().map(|option| (*option).to_owned()).collect();
    layout
}

const NOTHING_BEFORE: &str = "image.reach … report.begin:";
const NOTHING_AFTER: &str = "report.final … boot.kexec:";

#[test]
fn install_writes_disks_only_between_wipe_and_unmount() {
    let plan = make(&layout(), &machine(), InstallMode::Install).unwrap();
    let between = "storage.wipe … storage.unmount: /dev/sda 0+20000, /dev/sdb 0+8000";
    assert_eq!(format_extents(&plan), [NOTHING_BEFORE, between, NOTHING_AFTER]);
}

#[test]
fn preserved_filesystem_is_writable_from_its_mount_on() {
    let plan = make(&layout(), &installed(), InstallMode::Reinstall).unwrap();
    let system = "storage.wipe … image.burn: /dev/sda 0+20000";
    let data = "storage.mount_kept … storage.unmount: /dev/sda 0+20000, /dev/sdb 1+7998";
    assert_eq!(format_extents(&plan), [NOTHING_BEFORE, system, data, NOTHING_AFTER]);
    let json = serde_json::to_value(&plan).unwrap();
    let expected =
        serde_json::json!({"device": "/dev/sdb", "serial": "", "ranges": [{"start": MIB, "length": 7998 * MIB}]});
    assert_eq!(
        (&json["extents"][2]["steps"][0], &json["extents"][2]["disks"][1]),
        (&"storage.mount_kept".into(), &expected)
    );
}

#[test]
fn read_only_preserved_filesystem_is_not_writable() {
    for options in [&["ro"][..], &["noatime,ro"]] {
        let plan = make(&with_options(options), &installed(), InstallMode::Reinstall).unwrap();
        let system = "storage.wipe … storage.unmount: /dev/sda 0+20000";
        assert_eq!(format_extents(&plan), [NOTHING_BEFORE, system, NOTHING_AFTER], "{options:?}");
    }
}

#[test]
fn merged_filesystem_is_writable_before_the_image_is_written() {
    let mut merged = layout();
    merged.filesystems[0].reinstall = model::layout::OnReinstall::Merge;
    let plan = make(&merged, &installed(), InstallMode::Reinstall).unwrap();
    assert_eq!(
        format_extents(&plan)[1..3],
        [
            "storage.wipe … storage.format: /dev/sda 0+20000",
            "storage.mount … storage.unmount: /dev/sda 0+20000, /dev/sdb 1+7998",
        ]
    );
    // The filesystem has `ro`, but its creation writes to the device.
    let mut blank = installed();
    let srv = &mut blank.disks[1].table.as_mut().unwrap().partitions[0];
    (srv.signatures, srv.blank) = (Vec::new(), true);
    let plan = make(&with_options(&["ro"]), &blank, InstallMode::Reinstall).unwrap();
    assert_eq!(format_extents(&plan)[2], "storage.mount_kept … storage.unmount: /dev/sda 0+20000, /dev/sdb 1+7998");
}

#[test]
fn preserved_group_on_array_is_writable_on_member_disks() {
    let plan = make(&stacked_layout(), &stacked(), InstallMode::Reinstall).unwrap();
    assert_eq!(
        format_extents(&plan)[2],
        "storage.mount_kept … storage.deactivate: /dev/sda 0+20000, /dev/sdb 0+20000, /dev/sdc 0+20000, /dev/sdd 0+20000, /dev/sde 0+20000"
    );
    assert_eq!(format_extents(&plan)[1], "storage.wipe … image.burn: /dev/sda 0+20000, /dev/sdb 0+20000");
}

#[test]
fn preserved_btrfs_devices_and_devices_in_options_are_writable() {
    let (mut layout, mut before) = (with_options(&["logdev=/dev/sdb3"]), installed());
    layout.filesystems[0].format = FilesystemFormat::Btrfs;
    let parts = &mut before.disks[1].table.as_mut().unwrap().partitions;
    parts[0].signatures[0].kind = "btrfs".to_owned();
    parts[0].size_bytes = 1000 * MIB;
    for (number, start_mib, size_mib) in [(2, 2000, 10), (3, 3000, 1), (4, 4000, 1)] {
        let device = format!("/dev/sdb{number}").into();
        let mut part = inventory::DiskPartition { number, device, size_bytes: size_mib * MIB, ..parts[0].clone() };
        part.start_bytes = start_mib * MIB;
        if number != 2 {
            part.signatures.clear();
        }
        parts.push(part);
    }
    let plan = make(&layout, &before, InstallMode::Reinstall).unwrap();
    assert_eq!(
        format_extents(&plan)[2],
        "storage.mount_kept … storage.unmount: /dev/sda 0+20000, /dev/sdb 1+1000 2000+10 3000+1"
    );
}

#[test]
fn booted_existing_system_is_not_writable() {
    let inventory = super::installation_identity::marked();
    let plan = super::installation_identity::install(
        &layout(),
        &inventory,
        InstallClaim { succeeded: true, ..super::installation_identity::claim() },
    )
    .unwrap();
    assert!(plan.already.is_some());
    assert_eq!(format_extents(&plan), ["storage.mount … boot.kexec:"]);
    assert_just_what_is_written(&plan, &inventory);
}
