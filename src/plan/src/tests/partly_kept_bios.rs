//! Partly kept and preserved disks of machines that boot with BIOS, whose boot loader is outside of partitions.

use super::image_finishing::finishing;
use super::partly_kept_disks::{MIRRORED, installed_with, operations_of};
use super::*;
use model::allocation::{Allocation, FinisherChoice};
use model::inventory::FirmwareType;
use operations::{ByteRange, ClearRanges, DeviceOp, Operation, PlanAssignment, TableEdit};

/// Makes the plan of a reinstall on a BIOS machine.
fn renew(inventory: &Inventory, finish: Option<FinisherChoice>) -> Result<Plan, Vec<String>> {
    let assigned =
        PlanAssignment { allocation: Allocation { finish, ..Allocation::default() }, ..PlanAssignment::default() };
    let (mode, steps) = (InstallMode::Reinstall, StepList::default());
    let request = PlanRequest { mode, steps, subject: subject(), assigned, claim: None };
    crate::make_plan(&layout_of(MIRRORED), inventory, request, &mut counting_from(1000))
        .map_err(|refusal| refusal.problems.iter().map(ToString::to_string).collect())
}

fn bios_machine() -> Inventory {
    let mut inventory = installed_with(MIRRORED);
    inventory.system.firmware = FirmwareType::Bios;
    inventory
}

fn edits(plan: &Plan) -> Vec<&TableEdit> {
    operations_of(plan)
        .filter_map(|operation| match operation {
            Operation::Device(DeviceOp::EditTable(edit)) => Some(edit),
            _ => None,
        })
        .collect()
}

fn clears(plan: &Plan) -> Vec<&ClearRanges> {
    operations_of(plan)
        .filter_map(|operation| match operation {
            Operation::Device(DeviceOp::ClearRanges(clear)) => Some(clear),
            _ => None,
        })
        .collect()
}

#[test]
fn boot_loader_is_written_before_the_first_partition() {
    let plan = renew(&bios_machine(), None).unwrap();
    let gap = Some(ByteRange { start: 34 * 512, length: (2048 - 34) * 512 });
    assert_eq!(edits(&plan).iter().map(|edit| edit.boot_gap).collect::<Vec<_>>(), [gap, gap]);
    let disks = finishing(&plan).boot_disks.iter().map(|disk| (disk.device.as_str(), disk.gap, disk.partly_kept));
    assert_eq!(disks.collect::<Vec<_>>(), [("/dev/sda", gap, true), ("/dev/sdb", gap, true)]);
    assert!(clears(&plan).iter().all(|clear| clear.boot_code), "a partial installation must not be bootable");
    // The gap does not overlap a preserved partition.
    let end = 2048 * 512;
    assert!(clears(&plan).iter().flat_map(|clear| &clear.preserved).all(|preserved| preserved.start >= end));
    // The installer of the image has no access to the disks.
    assert_eq!(finishing(&plan).way, FinisherChoice::Builtin);
    assert!(!finishing(&plan).devices.iter().any(|device| ["/dev/sda", "/dev/sdb"].contains(&device.as_str())));
}

#[test]
fn uefi_machines_keep_their_boot_code() {
    let uefi = installed_with(MIRRORED);
    let plan = renew(&uefi, None).unwrap();
    assert!(edits(&plan).iter().all(|edit| edit.boot_gap.is_none()));
    assert!(clears(&plan).iter().all(|clear| !clear.boot_code));
    assert_eq!(finishing(&plan).way, FinisherChoice::Auto);
}

#[test]
fn refuses_bios_machine_without_space_or_with_another_finisher() {
    // The preserved partition starts directly after the partition table.
    let moved = |start_bytes: u64| {
        let mut inventory = bios_machine();
        for disk in &mut inventory.disks {
            let table = disk.table.as_mut().unwrap();
            let preserved = table.partitions.iter_mut().find(|part| part.number == 3).unwrap();
            preserved.start_bytes = start_bytes;
        }
        inventory
    };
    let mut large_sectors = bios_machine();
    large_sectors.disks.iter_mut().for_each(|disk| disk.sector_bytes = 4096);
    for (inventory, finish, expected) in [
        (moved(100 * 512), None, "only 33.8 kB between the partition table and the first partition"),
        (large_sectors, None, "sectors of 4096 bytes"),
        (bios_machine(), Some(FinisherChoice::Image), "set `finish: builtin`"),
        (bios_machine(), Some(FinisherChoice::None), "set `finish: builtin`"),
    ] {
        let problems = renew(&inventory, finish).unwrap_err();
        assert!(problems.iter().any(|problem| problem.contains(expected)), "{expected}: {problems:#?}");
    }
    for finish in [FinisherChoice::Auto, FinisherChoice::Builtin] {
        assert!(renew(&bios_machine(), Some(finish)).is_ok());
    }
}

/// Returns the result of a reinstall of a machine whose `/boot` is on the disk that the layout preserves.
fn with_preserved_boot(firmware: FirmwareType, finish: FinisherChoice) -> Result<Plan, Box<PlanRefusal>> {
    let mut kept = layout();
    kept.filesystems[0].path = Some("/boot".to_owned());
    let first = make(&kept, &machine(), InstallMode::Install).unwrap();
    let mut installed = after(&first, machine());
    installed.system.firmware = firmware;
    let assigned = PlanAssignment {
        allocation: Allocation { finish: Some(finish), ..Allocation::default() },
        ..PlanAssignment::default()
    };
    let (mode, steps) = (InstallMode::Reinstall, StepList::default());
    let request = PlanRequest { mode, steps, subject: subject(), assigned, claim: None };
    crate::make_plan(&kept, &installed, request, &mut counting_from(1000))
}

#[test]
fn boot_loader_is_never_written_to_a_preserved_disk() {
    let expected = "disks: the boot loader of a BIOS machine must be written to the disk of /boot, but the whole disk must be \
                    preserved: /dev/sdb";
    for finish in [FinisherChoice::Builtin, FinisherChoice::Auto, FinisherChoice::Image] {
        let reasons = reasons(with_preserved_boot(FirmwareType::Bios, finish));
        assert!(reasons.iter().any(|reason| reason.starts_with(expected)), "{finish:?}: {reasons:?}");
    }
    with_preserved_boot(FirmwareType::Bios, FinisherChoice::None).unwrap();
    let plan = with_preserved_boot(FirmwareType::Uefi, FinisherChoice::Builtin).unwrap();
    assert_eq!(finishing(&plan).boot_disks, []);
}
