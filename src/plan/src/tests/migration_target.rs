//! Target of a migration: a machine that receives the system of another one.

use super::arrays_and_groups::operations;
use super::installation_identity::{claim, install};
use super::migration_source::{migrated_machine, moved};
use super::property_counts::PropertyCounts;
use super::random_layouts_and_machines::{any_layout, blank};
use super::*;
use crate::simulator::cut;
use model::allocation::Allocation;
use model::device_name::DevicePath;
use model::install_marker::{InstallMarker, RecordedDisk, lineage};
use model::inventory::{FilesystemContents, FirmwareType};
use model::machine_migration::{
    MigratedFilesystem, MigratedMachine, MigrationOffer, MigrationPeer, MigrationSide, certificate_digest,
};
use model::storage_graph::LayoutMatch;
use operations::{
    AnnouncePointOfNoReturn, CheckMigrationCanceled, DeviceOp, GrowFilesystem, Operation, PlanAssignment, SessionOp,
    StageName, WriteMarker,
};
use proptest::prelude::*;

mod chosen_disks;
mod own_markers;

mod refusals;

/// Returns a target machine with larger disks of another type, one of which is foreign.
pub(super) fn other() -> Inventory {
    let names = ["nvme0n1", "nvme1n1", "nvme2n1", "nvme3n1", "nvme4n1", "nvme5n1", "sda"];
    let mut other = Inventory { disks: names.map(|name| disk(name, 30_000)).into(), ..Inventory::default() };
    for (index, disk) in other.disks.iter_mut().enumerate() {
        disk.serial = format!("B{index}");
    }
    other.system.firmware = FirmwareType::Uefi;
    other
}

/// Returns the migration as the control plane offers it to the target.
fn moving(layout: &Layout, other: &Inventory, migrated_machine: MigratedMachine) -> MigrationOffer {
    let disk = |(listed, disk): (&DiskSpec, &inventory::InventoryDisk)| RecordedDisk {
        device: listed.device.to_string(),
        serial: disk.serial.clone(),
        size_bytes: disk.size_bytes,
        ..RecordedDisk::default()
    };
    let disks = layout.disks.iter().zip(&other.disks).map(disk).collect();
    MigrationOffer {
        order: "o-7".to_owned(),
        part: MigrationSide::Target,
        started: false,
        awaits_approval: false,
        peer: None,
        carried: Some(migrated_machine),
        disks,
    }
}

fn of_other() -> InstallClaim {
    InstallClaim { machine: "m-2".to_owned(), order: None, former_machines: vec!["m-1".to_owned()], ..claim() }
}

fn receive(
    layout: &Layout,
    inventory: &Inventory,
    moving: MigrationOffer,
    claim: InstallClaim,
) -> Result<Plan, Box<PlanRefusal>> {
    receive_with(layout, inventory, Allocation { moving: Some(moving), ..Allocation::default() }, claim)
}

fn receive_with(
    layout: &Layout,
    inventory: &Inventory,
    allocation: Allocation,
    claim: InstallClaim,
) -> Result<Plan, Box<PlanRefusal>> {
    let allocation = Allocation { id: "a-1".to_owned(), hostname: "web-1".to_owned(), ..allocation };
    let assigned = PlanAssignment { allocation, ..PlanAssignment::default() };
    let (mode, subject) = (InstallMode::Install, PlanSubject { machine: "m-2".to_owned(), ..subject() });
    let request = PlanRequest { mode, steps: StepList::default(), subject, assigned, claim: Some(claim) };
    super::super::make_plan(layout, inventory, request, &mut counting_from(1 << 20))
}

fn planned() -> (Layout, Inventory, MigrationOffer, Plan) {
    let (layout, inventory) = moved();
    let other = other();
    let moving = moving(&layout, &other, migrated_machine(&layout, &inventory).0);
    let plan = receive(&layout, &other, moving.clone(), of_other()).unwrap_or_else(|refusal| panic!("{refusal}"));
    (layout, other, moving, plan)
}

fn all(plan: &Plan) -> impl Iterator<Item = &Operation> {
    plan.stages.iter().flat_map(|stage| &stage.operations)
}

#[test]
fn migration_target_plan_is_an_installation_that_receives() {
    let (_, other, _, plan) = planned();
    assert_printed("moved", &plan);
    properties::assert_sound(&plan, &other);
    let after = after(&plan, other);
    assert_eq!(after.disks[6].table, None);
}

/// Returns the devices that are received, and those on which a filesystem is created.
fn filled(plan: &Plan) -> (Vec<&str>, Vec<&str>) {
    let (mut received, mut made) = (Vec::new(), Vec::new());
    for operation in all(plan) {
        match operation {
            Operation::Run(SessionOp::Receive(receive)) => {
                received.extend(receive.devices.iter().map(|device| device.device.as_str()));
            }
            Operation::Device(DeviceOp::MakeFilesystem(make)) => made.push(make.device.as_str()),
            _ => {}
        }
    }
    (received, made)
}

/// A machine with identical hardware can always be the target, even though sizes of arrays and volumes are estimates.
#[test]
fn identical_hardware_receives_any_layout_with_its_ids() {
    let judged = PropertyCounts::new("identical_hardware_receives_any_layout_with_its_ids");
    proptest!(ProptestConfig::with_cases(300), |(layout in any_layout())| {
        judged.case();
        let with_serials = |kind: &str| {
            let mut machine = blank();
            machine.disks.iter_mut().enumerate().for_each(|(index, disk)| disk.serial = format!("{kind}{index}"));
            machine
        };
        let Ok(first) = install(&layout, &with_serials("A"), claim()) else { return Ok(()) };
        let mut there = after(&first, with_serials("A"));
        let root = layout.filesystems.iter().find(|filesystem| filesystem.path.as_deref() == Some("/")).unwrap();
        let device = LayoutMatch::new(&layout, &there).present_path(&root.device).unwrap();
        let marker = all(&first).find_map(|operation| match operation {
            Operation::Run(SessionOp::WriteMarker(WriteMarker(marker))) => Some(marker.clone()),
            _ => None,
        });
        there.filesystems = vec![FilesystemContents { device, marker, ..FilesystemContents::default() }];
        let Ok((migrated_machine, from)) = check_migration(&layout, &there, &claim()) else {
            judged.note("stays", true);
            return Ok(());
        };
        judged.note("moved", true);
        judged.note("moved with arrays", !migrated_machine.arrays.is_empty());
        let other = with_serials("B");
        let meant = LayoutMatch::new(&layout, &other);
        let disk = |(index, listed): (usize, &DiskSpec)| {
            let found = meant.matched_disk(index).unwrap();
            let (device, serial) = (listed.device.to_string(), found.serial.clone());
            RecordedDisk { device, serial, size_bytes: found.size_bytes, ..RecordedDisk::default() }
        };
        let disks = layout.disks.iter().enumerate().map(disk).collect();
        let (order, migrated_machine) = ("o-7".to_owned(), Some(migrated_machine));
        let moving = MigrationOffer { order, part: MigrationSide::Target, started: false, awaits_approval: false, peer: None, carried: migrated_machine, disks };
        let plan = receive(&layout, &other, moving.clone(), of_other());
        let plan = plan.unwrap_or_else(|refusal| panic!("{refusal}"));
        properties::assert_sound(&plan, &other);
        assert_receives(&plan, from.len());
        let here = after(&plan, other);
        let migrated_machine = moving.carried.unwrap();
        let uuids = |inventory: &Inventory| -> Vec<Uuid> { inventory.arrays.iter().map(|array| array.uuid).collect() };
        prop_assert_eq!(uuids(&here), uuids(&there));
        for filesystem in migrated_machine.filesystems.iter().filter(|filesystem| !filesystem.uuid.is_empty()) {
            let has = |signatures: &[DeviceSignature]| signatures.iter().any(|signature| signature.uuid == filesystem.uuid);
            prop_assert!(here.all_signatures().any(|(_, signatures)| has(signatures)), "{:?}", filesystem);
        }
        let parts = |inventory: &Inventory| -> Vec<Option<Uuid>> {
            let tables = inventory.disks.iter().filter_map(|disk| disk.table.as_ref());
            tables.flat_map(|table| &table.partitions).map(|part| part.guid).collect()
        };
        prop_assert_eq!(parts(&here), parts(&there));
    });
    judged.assert_shares(&[("moved", 20), ("moved with arrays", 5), ("stays", 0)]);
}

/// Asserts that no stage uses an image, and that each device is filled once, after the point of no return.
fn assert_receives(plan: &Plan, count: usize) {
    let (received, made) = filled(plan);
    assert_eq!(received.len(), count);
    assert!(received.iter().all(|device| !made.contains(device)), "{plan}");
    for stage in &plan.stages {
        assert!(!matches!(stage.name, StageName::ImageReach | StageName::ImageBurn | StageName::TargetFstab), "{plan}");
    }
    let copied = plan.stages.iter().position(|stage| stage.name == StageName::MoveCopy);
    assert!(copied.is_none_or(|copied| copied > plan.point_of_no_return), "{plan}");
}

#[test]
fn each_filesystem_is_either_received_or_created() {
    let (layout, _, moving, plan) = planned();
    let [Operation::Run(SessionOp::Receive(receive))] = operations(&plan, StageName::MoveCopy) else {
        panic!("{plan}")
    };
    assert_eq!((receive.order.as_str(), receive.machine.as_str()), ("o-7", "m-1"));
    let received: Vec<&str> = receive.devices.iter().map(|device| device.name.as_str()).collect();
    let made = all(&plan).filter_map(|operation| match operation {
        Operation::Device(DeviceOp::MakeFilesystem(make)) => Some(make),
        _ => None,
    });
    let made: Vec<(&str, &str)> = made.map(|make| (make.device.as_str(), make.uuid.as_str())).collect();
    let swap = &moving.carried.as_ref().unwrap().filesystems[5];
    assert_eq!(made, [("/dev/nvme5n1p2", swap.uuid.as_str())]);
    for filesystem in layout.filesystems.iter().filter(|filesystem| filesystem.format != FilesystemFormat::Tmpfs) {
        let is_made = filesystem.format == FilesystemFormat::Swap;
        assert_ne!(received.contains(&filesystem.device.as_str()), is_made, "{}", filesystem.device);
    }
    assert_eq!(received.len() + made.len() + 1, layout.filesystems.len());
}

#[test]
fn migration_plan_excludes_the_image_and_early_writes() {
    let (_, _, _, plan) = planned();
    for operation in all(&plan) {
        let of_image = matches!(
            operation,
            Operation::Run(
                SessionOp::ResolveImage(_)
                    | SessionOp::BurnImage(_)
                    | SessionOp::BurnDisk(_)
                    | SessionOp::CreateSystem(_)
                    | SessionOp::VerifyDefinition(_)
                    | SessionOp::Finish(_)
                    | SessionOp::AdaptImage(_)
                    | SessionOp::WriteFstab(_)
                    | SessionOp::ExtendFstab(_)
            )
        );
        assert!(!of_image, "{operation:?}");
    }
    let place = |name| plan.stages.iter().position(|stage| stage.name == name).unwrap();
    assert_eq!(plan.point_of_no_return, place(StageName::ReportBegin) + 1);
    assert!(place(StageName::MoveCopy) > place(StageName::StorageFormat));
    assert!(place(StageName::MoveCopy) < place(StageName::StorageMount));
    for extents in &plan.extents {
        let is_before = extents.stages.iter().all(|stage| place(*stage) < plan.point_of_no_return);
        let is_over = extents.stages.iter().all(|stage| stage.failure_state().is_complete());
        assert_eq!(extents.disks.is_empty(), is_before || is_over, "{extents:?}");
        assert!(extents.disks.iter().all(|disk| disk.device != "/dev/sda"), "{extents:?}");
    }
}

#[test]
fn target_uses_source_ids_except_for_partition_tables() {
    let (_, _, moving, plan) = planned();
    let migrated_machine = moving.carried.unwrap();
    let guids: Vec<Uuid> = migrated_machine.partitions.iter().map(|partition| partition.guid).collect();
    let arrays: Vec<Uuid> = migrated_machine.arrays.iter().map(|array| array.uuid).collect();
    let (mut tables, mut parts, mut made) = (Vec::new(), Vec::new(), Vec::new());
    for operation in all(&plan) {
        match operation {
            Operation::Device(DeviceOp::WriteTable(table)) => {
                tables.push(table.guid.to_string());
                parts.extend(table.partitions.iter().map(|part| part.guid));
            }
            Operation::Device(DeviceOp::CreateArray(array)) => made.push(array.uuid),
            _ => {}
        }
    }
    assert_eq!((parts, made), (guids, arrays));
    let known: Vec<&String> = migrated_machine.marker.disks.iter().filter_map(|disk| disk.guid.as_ref()).collect();
    assert!(tables.len() == 3 && tables.iter().all(|guid| !known.contains(&guid)));
    let root = migrated_machine.filesystems.iter().find(|filesystem| filesystem.device == "/dev/md/root").unwrap();
    assert_eq!(plan.root_uuid, root.uuid);
    let sources: Vec<&str> = plan.fstab.iter().map(|entry| entry.source.as_str()).collect();
    let filesystems = migrated_machine.filesystems.iter();
    for filesystem in filesystems.filter(|filesystem| filesystem.format != FilesystemFormat::None) {
        assert!(sources.contains(&format!("UUID={}", filesystem.uuid).as_str()), "{sources:?}");
    }
}

/// Devices of equal size are accepted. Filesystems are grown only on larger devices.
#[test]
fn grows_only_filesystems_on_larger_devices() {
    let grown = |plan: &Plan| -> Vec<String> {
        let grown = operations(plan, StageName::StorageMount).iter().filter_map(|operation| match operation {
            Operation::Run(SessionOp::GrowFilesystem(GrowFilesystem(mount))) => Some(mount.path.clone()),
            _ => None,
        });
        grown.collect()
    };
    let (layout, mut same, moving, plan) = planned();
    assert_eq!(grown(&plan), ["/", "/srv"]);
    // The disks have as many bytes as those of the source machine.
    same.disks.iter_mut().for_each(|disk| disk.size_bytes = 20_000 * MIB);
    let mut moving = moving;
    moving.disks.iter_mut().for_each(|disk| disk.size_bytes = 20_000 * MIB);
    let sizes = receive(&layout, &same, moving.clone(), of_other()).unwrap().sizes;
    // md uses more of its members than the lower bound in the plan.
    for device in ["/dev/md/root", "/dev/vg00/srv"] {
        filesystem(&mut moving, device).size_bytes = sizes[&model::device_name::DevicePath::from(device)] + 4 * MIB;
    }
    let plan = receive(&layout, &same, moving, of_other()).unwrap_or_else(|refusal| panic!("{refusal}"));
    assert_eq!(grown(&plan), Vec::<String>::new());
}

/// Power fails after each operation. The source machine's marker must be neither booted nor refused.
#[test]
fn migration_restarts_after_a_power_failure_at_any_operation() {
    let (layout, other, moving, plan) = planned();
    let [Operation::Run(SessionOp::AnnouncePointOfNoReturn(AnnouncePointOfNoReturn { disks, .. }))] =
        operations(&plan, StageName::ReportBegin)
    else {
        panic!("{plan}")
    };
    let claim = InstallClaim { begun_on: disks.clone(), attempt: record_of(&written(&plan)), ..of_other() };
    let moving = MigrationOffer { started: true, ..moving };
    let received = all(&plan).position(|operation| matches!(operation, Operation::Run(SessionOp::Receive(_)))).unwrap();
    for done in 0..=all(&plan).count() {
        let mut after = cut(&plan, other.clone(), done);
        if done > received {
            let root = after.stacked.iter().find(|is| {
                is.device == "/dev/md/root" || is.signatures.iter().any(|signature| signature.uuid == plan.root_uuid)
            });
            let device = root.unwrap().device.clone();
            let marker = Some(moving.carried.as_ref().unwrap().marker.clone());
            after.filesystems = vec![FilesystemContents { device, marker, ..FilesystemContents::default() }];
        }
        let again = receive(&layout, &after, moving.clone(), claim.clone());
        let again = again.unwrap_or_else(|refusal| panic!("{done} operations: {refusal}"));
        assert_eq!(again.already, None, "{done}");
        assert_eq!(verdicts(&again)[..6], [DiskVerdict::Wipe; 6], "{done}");
        assert_eq!(
            again.warnings.iter().any(|line| line.contains("copied by an earlier attempt to migrate that")),
            done > received
        );
        properties::assert_sound(&again, &after);
    }
}

/// Returns the marker that the plan writes.
fn written(plan: &Plan) -> InstallMarker {
    let found = all(plan).find_map(|operation| match operation {
        Operation::Run(SessionOp::WriteMarker(WriteMarker(marker))) => Some(marker.clone()),
        _ => None,
    });
    found.unwrap_or_else(|| panic!("{plan}"))
}

/// The list of replaced installations proves which installation is newer, even if a machine is migrated back.
#[test]
fn marker_of_migrated_machine_lists_superseded_installations() {
    let (layout, other, moving, plan) = planned();
    let migrated_machine = &moving.carried.as_ref().unwrap().marker;
    assert!(written(&plan).has_superseded(migrated_machine) && !migrated_machine.has_superseded(&written(&plan)));
    // The marker also lists the previous installation of this machine as replaced.
    let before = InstallMarker { machine: "m-2".to_owned(), allocation: "a-0".to_owned(), ..InstallMarker::default() };
    let filesystem = FilesystemContents {
        device: "/dev/sda1".into(),
        marker: Some(before.clone()),
        ..FilesystemContents::default()
    };
    let now = Inventory { filesystems: vec![filesystem], ..other };
    let again = receive(&layout, &now, moving.clone(), of_other()).unwrap_or_else(|refusal| panic!("{refusal}"));
    assert!(written(&again).has_superseded(&before) && written(&again).has_superseded(migrated_machine));
}

/// If the migration is cancelled while the copy is being adapted, the source machine owns the system again.
#[test]
fn cancelled_migration_leaves_nothing_bootable() {
    let (_, _, _, plan) = planned();
    let [Operation::Run(check), Operation::Run(SessionOp::WriteMarker(_))] = operations(&plan, StageName::TargetMarker)
    else {
        panic!("{plan}")
    };
    assert_eq!(*check, SessionOp::CheckMigrationCanceled(CheckMigrationCanceled { order: "o-7".to_owned() }));
    let closing = |plan: &Plan| match operations(plan, StageName::ReportFinal) {
        [Operation::Run(SessionOp::Report(closing))] => closing.clone(),
        operations => panic!("{operations:?}"),
    };
    let wiped: Vec<DevicePath> = all(&plan)
        .filter_map(|operation| match operation {
            Operation::Device(DeviceOp::WipeDisk(wipe)) => Some(wipe.device.clone()),
            _ => None,
        })
        .collect();
    assert_eq!((wiped.len(), closing(&plan).taken_back), (6, wiped));
    // Disks with an installed image are not wiped if the report is rejected, because no other machine has that system.
    let (layout, blank) = (super::arrays_and_groups::layout(), super::arrays_and_groups::five());
    let installed = install(&layout, &blank, claim()).unwrap_or_else(|refusal| panic!("{refusal}"));
    assert_eq!(closing(&installed).taken_back, Vec::<DevicePath>::new());
    assert!(matches!(operations(&installed, StageName::TargetMarker), [Operation::Run(SessionOp::WriteMarker(_))]));
}

#[test]
fn migration_target_plan_is_approved_as_an_installation() {
    let (layout, other, moving, plan) = planned();
    let verdicts = plan.verdicts.unwrap();
    assert_eq!((verdicts.mode, verdicts.disks.len()), (InstallMode::Install, 6));
    assert!(verdicts.things.iter().all(|thing| thing.fate == approval_summary::ObjectFate::Made));
    let again = receive(&layout, &other, moving, of_other()).unwrap().verdicts.unwrap();
    assert_eq!(again.digest(), verdicts.digest());
}

fn filesystem<'a>(moving: &'a mut MigrationOffer, device: &str) -> &'a mut MigratedFilesystem {
    let migrated_machine = moving.carried.as_mut().unwrap();
    migrated_machine.filesystems.iter_mut().find(|filesystem| filesystem.device == device).unwrap()
}
