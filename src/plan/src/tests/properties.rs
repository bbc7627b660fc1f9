//! Properties that hold for every layout on every machine.

use super::blank_and_failed_disks::{replace, unplug};
use super::installation_identity::{claim, marker, reinstall};
use super::operation_effects::{Brought, brought, effect};
use super::property_counts::PropertyCounts;
use super::random_layouts_and_machines::{NAMES, any_layout, any_machine, blank};
use super::*;
use model::device_name::DevicePath;
use model::storage_graph::DeviceStack;
use operations::{
    AnnouncePointOfNoReturn, AssertFree, BurnDisk, ByteRange, CreateK8sVolume, DeviceOp, DiskHolder, LockDisk,
    NewPartition, Operation, PartitionTable, SessionOp, StageName, UnlockDisk, WipeDisk,
};
use proptest::prelude::*;
use std::collections::BTreeSet;

mod preserved_objects;
mod soundness;
pub(crate) use soundness::{assert_sound, is_in_renewed_group};

/// Returns the disks below a device that the plan creates or names.
fn bottoms<'a>(plan: &'a Plan, brought: &Brought, device: &DevicePath) -> BTreeSet<&'a str> {
    if let Some(below) = brought.get(device) {
        return below.iter().flat_map(|device| bottoms(plan, brought, device)).collect();
    }
    plan.disks
        .iter()
        .filter(|disk| device.as_str().starts_with(disk.device.as_str()))
        .map(|disk| disk.name.as_str())
        .collect()
}

fn is_made(verdict: DiskVerdict) -> bool {
    match verdict {
        DiskVerdict::Wipe | DiskVerdict::Make => true,
        DiskVerdict::Keep | DiskVerdict::PartlyKept | DiskVerdict::NotOurs | DiskVerdict::Volumes => false,
    }
}

/// Makes the plan of a reinstall, with other UUIDs than those of the installation.
fn later(layout: &Layout, inventory: &Inventory, claim: Option<InstallClaim>) -> Result<Plan, Box<PlanRefusal>> {
    let request = PlanRequest {
        mode: InstallMode::Reinstall,
        steps: StepList::default(),
        subject: subject(),
        assigned: Default::default(),
        claim,
    };
    super::super::make_plan(layout, inventory, request, &mut counting_from(1000))
}

fn is_blank(inventory: &Inventory, device: &DevicePath) -> bool {
    let partitions = inventory.disks.iter().flat_map(|disk| &disk.table).flat_map(|table| &table.partitions);
    partitions.into_iter().any(|part| part.device == *device && part.blank)
}

/// Returns the preserved disks, and the groups on them.
fn untouched(inventory: &Inventory, plan: &Plan) -> (Vec<inventory::InventoryDisk>, Vec<inventory::LvmVolumeGroup>) {
    let stays = |name: &str| plan.disks.iter().any(|disk| disk.name == name && disk.verdict == DiskVerdict::Keep);
    let disks = inventory.disks.iter().filter(|disk| stays(&disk.name)).cloned();
    let stack = DeviceStack::new(inventory);
    let on_kept = |group: &&inventory::LvmVolumeGroup| {
        let disks = |device: &DevicePath| stack.disks_below(&stack.kernel_name(device));
        let stays = |device: &DevicePath| disks(device).iter().all(|disk| stays(disk));
        group.physical.iter().all(|physical| physical.device.as_ref().is_some_and(stays))
    };
    (disks.collect(), inventory.groups.iter().filter(on_kept).cloned().collect())
}

const CASES: u32 = 400;

fn writes_raw_image(plan: &Plan) -> bool {
    let mut operations = plan.stages.iter().flat_map(|stage| &stage.operations);
    operations.any(|operation| matches!(operation, Operation::Run(SessionOp::BurnDisk(_))))
}

fn note_reinstall(judged: &PropertyCounts, plan: &Plan) {
    let (keeps, is_raw) = (verdicts(plan).contains(&DiskVerdict::Keep), writes_raw_image(plan));
    judged.note("reinstalls", true);
    judged.note("reinstalls that keep a disk", keeps);
    judged.note("reinstalls with a raw image", is_raw);
    judged.note("reinstalls that keep a disk, with a raw image", keeps && is_raw);
    let mut operations = plan.stages.iter().flat_map(|stage| &stage.operations);
    let opens = operations.any(|operation| matches!(operation, Operation::Device(DeviceOp::OpenContainer(_))));
    judged.note("reinstalls that keep an encrypted group", opens);
}

/// The simulator checks every operation: a device must not be used before it is created, released before the devices on
/// top of it, or left active on a wiped disk.
#[test]
fn no_plan_destroys_preserved_or_foreign_disks() {
    let judged = PropertyCounts::new("no_plan_destroys_preserved_or_foreign_disks");
    proptest!(ProptestConfig::with_cases(CASES), |(
        layout in any_layout(),
        machine in any_machine(),
        again in any::<bool>(),
    )| {
        judged.case();
        // The layout is valid, except for sizes that are too small in themselves.
        let problems = model::layout::validate_layout(&layout);
        let too_small = |text: &str| text.contains("needs at least") || text.contains("of the group are usable");
        prop_assert!(problems.iter().all(|problem| too_small(&problem.message)), "{:?}", problems);
        let mode = if again { InstallMode::Reinstall } else { InstallMode::Install };
        prop_assert_eq!(make(&layout, &machine, mode), make(&layout, &machine, mode));
        match make(&layout, &machine, mode) {
            Ok(plan) => {
                let is_full = |disk: &DiskPlan| disk.found.table.is_some() || !disk.found.signatures.is_empty();
                let of_others = |disk: &DiskPlan| disk.verdict == DiskVerdict::NotOurs && is_full(disk);
                judged.note("installations", mode == InstallMode::Install);
                judged.note("reinstalls", mode == InstallMode::Reinstall);
                judged.note("with a raw image", writes_raw_image(&plan));
                judged.note("over another layout's", plan.disks.iter().any(is_full));
                judged.note("with a foreign disk that is not empty", plan.disks.iter().any(of_others));
                assert_sound(&plan, &machine);
                prop_assert_eq!(plan.to_string().matches("point of no return").count(), 1);
                let after = after(&plan, machine.clone());
                for (before, after) in machine.disks.iter().zip(&after.disks) {
                    let verdict = plan.disks.iter().find(|disk| disk.name == before.name).unwrap().verdict;
                    prop_assert!(verdict == DiskVerdict::Wipe || before.signatures == after.signatures);
                }
            }
            Err(refusal) => prop_assert!(!refusal.problems.is_empty()),
        }
    });
    judged.assert_shares(&[
        ("installations", 12),
        // The percentage is low, because the remains of another layout rarely match what this layout preserves.
        ("reinstalls", 0),
        ("with a raw image", 3),
        ("over another layout's", 10),
        ("with a foreign disk that is not empty", 7),
    ]);
}

#[test]
fn repeated_reinstalls_preserve_their_data() {
    let judged = PropertyCounts::new("repeated_reinstalls_preserve_their_data");
    proptest!(ProptestConfig::with_cases(CASES), |(layout in any_layout(), machine in any_machine())| {
        judged.case();
        let Ok(first) = make(&layout, &machine, InstallMode::Install) else { return Ok(()) };
        judged.note("installations", true);
        let installed = after(&first, machine);
        match later(&layout, &installed, None) {
            Ok(second) => {
                note_reinstall(&judged, &second);
                assert_sound(&second, &installed);
                let reinstalled = after(&second, installed.clone());
                prop_assert_eq!(untouched(&installed, &second), untouched(&reinstalled, &second));
                prop_assert!(make(&layout, &reinstalled, InstallMode::Reinstall).is_ok());
            }
            Err(refusal) => {
                let expected = ["which a reinstall wipes, and ", "is not reinstallable", "contains /"];
                let text = refusal.to_string();
                prop_assert!(expected.iter().any(|expected| text.contains(expected)), "{}", text);
            }
        }
    });
    judged.assert_shares(&[
        ("installations", 25),
        ("reinstalls", 20),
        ("reinstalls that keep a disk", 15),
        ("reinstalls that keep an encrypted group", 1),
        ("reinstalls with a raw image", 5),
        ("reinstalls that keep a disk, with a raw image", 4),
    ]);
}

/// Disks are removed, replaced by blank ones or swapped, members fail, and markers may be missing. A foreign disk
/// matches the hints of one of the listed disks.
#[test]
fn no_reinstall_of_a_damaged_machine_destroys_preserved_data() {
    let judged = PropertyCounts::new("no_reinstall_of_a_damaged_machine_destroys_preserved_data");
    proptest!(ProptestConfig::with_cases(CASES), |(
        layout in any_layout(),
        pulled in prop::collection::vec(prop::bool::weighted(0.1), NAMES.len()),
        replaced in prop::collection::vec(prop::bool::weighted(0.15), NAMES.len()),
        failed in prop::collection::vec(prop::bool::weighted(0.2), 4),
        emptied in prop::bool::weighted(0.2),
        swapped in prop::bool::weighted(0.1),
        hinted in prop::collection::vec(prop::bool::weighted(0.3), NAMES.len()),
        lookalike in 0..NAMES.len(),
        waiver in prop_oneof![3 => Just(None), 1 => Just(Some(MarkerWaiver::Operator)), 1 => Just(Some(MarkerWaiver::Begun))],
    )| {
        judged.case();
        let Ok(first) = make(&layout, &blank(), InstallMode::Install) else { return Ok(()) };
        judged.note("installations", true);
        let mut machine = after(&first, blank());
        for disk in &mut machine.disks {
            disk.serial = format!("{}-0", disk.name);
        }
        let recorded = marker(&machine);
        let vendor = |name: &str| format!("maker of {name}");
        machine.disks.iter_mut().for_each(|disk| disk.vendor = vendor(&disk.name));
        let mut layout = layout;
        for disk in &mut layout.disks {
            let name = disk.device.as_str().trim_start_matches("/dev/");
            if hinted[NAMES.iter().position(|is| *is == name).unwrap()] {
                disk.hints.insert("vendor".to_owned(), vendor(name));
            }
        }
        let signatures = vec![DeviceSignature { kind: "xfs".to_owned(), usage: "filesystem".to_owned(), ..DeviceSignature::default() }];
        let serial = "archive".to_owned();
        machine.disks.push(inventory::InventoryDisk { serial, vendor: vendor(NAMES[lookalike]), signatures, ..disk("sdz", 6000) });
        let root_uuid = simulator::root_uuid(&first);
        let marked = |machine: &mut Inventory| {
            let roots = (machine.disks.iter().flat_map(|disk| &disk.table).flat_map(|table| &table.partitions))
                .map(|part| (&part.device, &part.signatures))
                .chain(machine.disks.iter().map(|disk| (&disk.device, &disk.signatures)))
                .chain(machine.stacked.iter().map(|stacked| (&stacked.device, &stacked.signatures)));
            let roots = roots.filter(|(_, is)| is.iter().any(|is| is.uuid == root_uuid));
            let marker = Some(recorded.clone());
            machine.filesystems = roots
                .map(|(device, _)| inventory::FilesystemContents { device: device.clone(), marker: marker.clone(), ..Default::default() })
                .collect();
        };
        marked(&mut machine);
        let failing = machine.arrays.iter_mut().zip(&failed).filter(|(_, failed)| **failed);
        failing.for_each(|(array, _)| array.members[0].role = inventory::MemberRole::Faulty);
        for (index, name) in NAMES.iter().enumerate() {
            if replaced[index] {
                replace(&mut machine, name);
                (machine.disks[index].serial, machine.disks[index].vendor) = (format!("{name}-1"), vendor(name));
            }
        }
        if swapped {
            let serial = std::mem::replace(&mut machine.disks[1].serial, "sda-0".to_owned());
            machine.disks[0].serial = serial;
        }
        for (name, _) in NAMES.iter().zip(&pulled).filter(|(_, pulled)| **pulled) {
            unplug(&mut machine, name);
        }
        if emptied {
            let partitions = machine.disks.iter_mut().flat_map(|disk| &mut disk.table).flat_map(|table| &mut table.partitions);
            for part in partitions.filter(|part| part.signatures.iter().all(|signature| signature.usage != "raid")) {
                part.signatures.clear();
                part.blank = true;
            }
            machine.filesystems.clear();
        }
        let request = InstallClaim { waiver, installed: Some(recorded.clone()), ..claim() };
        let Ok(plan) = later(&layout, &machine, Some(request.clone())) else { return Ok(()) };
        note_reinstall(&judged, &plan);
        let suffered = |kind: &[bool]| kind.iter().any(|is| *is);
        judged.note("reinstalls after a disk was pulled", suffered(&pulled));
        judged.note("reinstalls after a disk was replaced", suffered(&replaced));
        judged.note("reinstalls of emptied disks", emptied);
        judged.note("reinstalls that recreate a preserved disk", verdicts(&plan).contains(&DiskVerdict::Make));
        prop_assert!(waiver.is_some() || !machine.filesystems.is_empty());
        // An unrecorded disk can be distinguished from the recorded disk only if both are present.
        let told = !replaced[1] || !pulled[1];
        let listed = layout.disks.iter().any(|disk| disk.device == "/dev/sda");
        prop_assert!(!swapped || !told || !listed || machine.disks[0].name != "sda");
        assert_sound(&plan, &machine);
        let reinstalled = after(&plan, machine.clone());
        let archive = |inventory: &Inventory| inventory.disks.iter().find(|disk| disk.name == "sdz").unwrap().signatures.clone();
        prop_assert_eq!(archive(&machine), archive(&reinstalled));
        if !emptied {
            prop_assert_eq!(untouched(&machine, &plan), untouched(&reinstalled, &plan));
        }
        // The next attempt preserves the created objects, even if this attempt was interrupted at its end.
        let begin = super::arrays_and_groups::operations(&plan, StageName::ReportBegin);
        let [Operation::Run(SessionOp::AnnouncePointOfNoReturn(AnnouncePointOfNoReturn { disks, .. }))] = begin else { panic!("{begin:?}") };
        let request = InstallClaim { waiver: Some(MarkerWaiver::Begun), begun_on: disks.clone(), ..request };
        let ended = Inventory { filesystems: Vec::new(), ..reinstalled };
        let again = reinstall(&layout, &ended, request).unwrap_or_else(|refusal| panic!("{refusal}"));
        prop_assert!(verdicts(&again).iter().all(|verdict| *verdict != DiskVerdict::Make));
    });
    judged.assert_shares(&[
        ("installations", 50),
        ("reinstalls", 8),
        ("reinstalls that keep a disk", 7),
        ("reinstalls with a raw image", 1),
        ("reinstalls after a disk was pulled", 1),
        ("reinstalls after a disk was replaced", 4),
        // The percentage is low: most disks that were removed, replaced or emptied contained data without a copy, so
        // the plans are refused.
        ("reinstalls that keep an encrypted group", 0),
        ("reinstalls that keep a disk, with a raw image", 0),
        ("reinstalls of emptied disks", 0),
        ("reinstalls that recreate a preserved disk", 0),
    ]);
}
