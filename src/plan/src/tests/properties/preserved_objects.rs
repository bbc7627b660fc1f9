//! Random layouts that preserve partitions, arrays, groups, volumes and filesystems on disks that a reinstall renews.

use super::*;
use model::inventory::FirmwareType;
use model::layout::GroupPreservation;
use model::layout::graph::LayoutGraph;
use model::layout::preserved_objects::PreservedObjects;
use operations::StageExtents;

/// Number of interrupted states after which the test of interruptions ends.
const STATES: usize = 2000;

prop_compose! {
    /// Returns a layout in which some objects have `preserve: true`. It may be invalid.
    fn marked_layout()(
        layout in any_layout(),
        marks in prop::collection::vec(prop::bool::weighted(0.2), 40),
        of_filesystems in prop::collection::vec(prop::bool::weighted(0.35), 30),
        wiped in prop::bool::weighted(0.7),
    ) -> Layout {
        let (mut layout, mut marks) = (layout, marks.into_iter().cycle());
        for disk in &mut layout.disks {
            disk.wipeonreinstall |= wiped;
            disk.partitions.iter_mut().for_each(|part| part.preserve = marks.next().unwrap());
        }
        layout.raid.iter_mut().for_each(|array| array.preserve = marks.next().unwrap());
        layout.volumegroups.iter_mut().for_each(|group| {
            let (all, unlisted) = (marks.next().unwrap(), marks.next().unwrap());
            group.preserve = match (all, unlisted) {
                (true, _) => GroupPreservation::All,
                (false, true) => GroupPreservation::Unlisted,
                (false, false) => GroupPreservation::None,
            };
        });
        layout.logicalvolumes.iter_mut().for_each(|volume| volume.preserve = marks.next().unwrap());
        let filesystems = layout.filesystems.iter_mut().filter(|filesystem| filesystem.path.as_deref() != Some("/"));
        filesystems.zip(of_filesystems).for_each(|(is, mark)| is.preserve = mark);
        layout
    }
}

fn preserves_parts(layout: &Layout) -> bool {
    let graph = LayoutGraph::from_layout(layout);
    let objects = PreservedObjects::from_graph(&graph);
    model::layout::validate_layout(layout).is_empty() && layout.disks.iter().any(|disk| objects.includes_part_of(disk))
}

/// Makes the plan of a reinstall, with new UUIDs from this number on. Returns `None` if the plan is refused.
fn renew_layout(layout: &Layout, inventory: &Inventory, ids: u128) -> Option<Plan> {
    let (mode, steps) = (InstallMode::Reinstall, StepList::default());
    let request = PlanRequest { mode, steps, subject: subject(), assigned: Default::default(), claim: None };
    let decided =
        crate::planner::decide_plan(layout, inventory, &request, &Default::default(), &mut counting_from(ids));
    let is_made = decided.problems.is_empty();
    is_made.then(|| crate::stages::arrange_stages(layout, inventory, request, decided))
}

/// Adds a thin pool to each group whose other volumes a reinstall renews. Returns whether a group received a pool.
fn add_pools(layout: &Layout, inventory: &mut Inventory) -> bool {
    let graph = LayoutGraph::from_layout(layout);
    let objects = PreservedObjects::from_graph(&graph);
    let renewed = layout.volumegroups.iter().filter(|group| !objects.renewed_volumes(group).is_empty());
    let mut added = false;
    for group in renewed {
        let found = inventory.groups.iter_mut().find(|found| found.name == group.name);
        added |= found.is_some_and(crate::simulator::add_thin_pool);
    }
    added
}

fn installed_machine(layout: &Layout) -> Option<Inventory> {
    let mut machine = blank();
    machine.system.firmware = FirmwareType::Uefi;
    let plan = make(layout, &machine, InstallMode::Install).ok()?;
    Some(after(&plan, machine))
}

/// Describes everything that the layout preserves on disks that a reinstall renews, with its content.
fn preserved_contents(layout: &Layout, inventory: &Inventory) -> Vec<String> {
    let graph = LayoutGraph::from_layout(layout);
    let objects = PreservedObjects::from_graph(&graph);
    let content = |name: &Option<model::device_name::KernelName>| {
        let running = inventory.stacked.iter().find(|stacked| Some(&stacked.name) == name.as_ref());
        running.map(|stacked| (stacked.size_bytes, stacked.signatures.clone()))
    };
    let mut contents = Vec::new();
    for disk in &layout.disks {
        for number in objects.numbers_on(disk) {
            let found = inventory.find_disk(disk.device.as_str()).and_then(|disk| disk.table.as_ref());
            let part = found.and_then(|table| table.partitions.iter().find(|part| part.number == number));
            let part = part
                .map(|part| (part.start_bytes, part.size_bytes, part.guid, &part.kind, &part.label, &part.signatures));
            contents.push(format!("{}: {part:?}", disk.device.partition_path(number)));
        }
    }
    for array in layout.raid.iter().filter(|array| objects.includes_device(&array.arrayname)) {
        let name = array.arrayname.as_str().rsplit('/').next().unwrap();
        let found = inventory.arrays.iter().find(|array| array.name == name);
        let found = found.map(|array| (array.uuid, &array.members, content(&array.running)));
        contents.push(format!("{}: {found:?}", array.arrayname));
    }
    for volume in layout.logicalvolumes.iter().filter(|volume| objects.includes_device(&volume.device_path())) {
        let group = inventory.groups.iter().find(|group| group.name == volume.volumegroup);
        let found = group.and_then(|group| group.volumes.iter().find(|found| found.name == volume.name));
        let found = found.map(|found| (found.size_bytes, &found.kind, &found.ranges, content(&found.running)));
        contents.push(format!("{}: {found:?}", volume.device_path()));
    }
    for group in inventory.groups.iter().filter(|group| !group.hidden.is_empty()) {
        let unlisted = group.volumes.iter().filter(|volume| volume.kind.starts_with("thin"));
        contents.push(format!("{}: {:?} {:?}", group.name, unlisted.collect::<Vec<_>>(), group.hidden));
    }
    // The order of the groups changes when their devices are stopped and assembled again.
    contents.sort();
    contents
}

fn overlap(one: &ByteRange, other: &ByteRange) -> bool {
    one.start < other.start + other.length && other.start < one.start + one.length
}

/// Asserts that no stage may write a preserved partition before it is unlocked, and that no stage may write a preserved
/// volume on it before the volume is activated. Returns the number of preserved ranges that were compared.
fn assert_preserved_ranges_closed(plan: &Plan, inventory: &Inventory) -> usize {
    let (mut unlocked, mut activated) = (BTreeSet::new(), BTreeSet::new());
    let mut compared = 0;
    for stage in &plan.stages {
        for operation in &stage.operations {
            match operation {
                Operation::Run(SessionOp::UnlockDisk(UnlockDisk { device, .. })) => unlocked.extend([device.clone()]),
                Operation::Device(DeviceOp::ActivateGroup(group)) => activated.extend([group.name.clone()]),
                _ => {}
            }
        }
        let extents: &StageExtents = plan.extents.iter().find(|extents| extents.stages.contains(&stage.name)).unwrap();
        for (disk, closed) in closed_ranges(plan, inventory, &unlocked, &activated) {
            let open =
                extents.disks.iter().filter(|extents| extents.device == disk).flat_map(|extents| &extents.ranges);
            open.into_iter().for_each(|open| assert!(!overlap(open, &closed), "{}: {open:?} {closed:?}", stage.name));
            compared += 1;
        }
    }
    compared
}

/// Returns the ranges that must not be written while only these partitions are unlocked and these groups are active.
fn closed_ranges(
    plan: &Plan,
    inventory: &Inventory,
    unlocked: &BTreeSet<DevicePath>,
    activated: &BTreeSet<String>,
) -> Vec<(DevicePath, ByteRange)> {
    let removals = plan.stages.iter().flat_map(|stage| &stage.operations).filter_map(|operation| match operation {
        Operation::Device(DeviceOp::RemoveVolumes(remove)) => Some(remove),
        _ => None,
    });
    let removals: Vec<_> = removals.filter(|remove| !activated.contains(&remove.group)).collect();
    let mut closed = Vec::new();
    for disk in plan.disks.iter().filter(|disk| !disk.preserved.is_empty()) {
        let found = inventory.find_disk(disk.device.as_str()).unwrap();
        for part in found.table.iter().flat_map(|table| &table.partitions) {
            let whole = ByteRange { start: part.start_bytes, length: part.size_bytes };
            if !disk.preserved.contains(&whole) {
                continue;
            }
            if !unlocked.contains(&part.device) {
                closed.push((disk.device.clone(), whole));
                continue;
            }
            let volumes = removals.iter().flat_map(|remove| remove.preserved.iter().chain(&remove.hidden));
            let ranges = volumes.flat_map(|volume| &volume.ranges);
            for found in ranges.filter(|range| range.physical == part.device) {
                let start = part.start_bytes + found.range.start;
                closed.push((disk.device.clone(), ByteRange { start, ..found.range }));
            }
        }
    }
    closed
}

fn renews_volumes(plan: &Plan) -> bool {
    let mut operations = plan.stages.iter().flat_map(|stage| &stage.operations);
    operations.any(|operation| matches!(operation, Operation::Device(DeviceOp::RemoveVolumes(_))))
}

#[test]
fn two_reinstalls_preserve_every_marked_object_and_write_outside_of_it_only() {
    let judged = PropertyCounts::new("two_reinstalls_preserve_every_marked_object_and_write_outside_of_it_only");
    let ranges = std::cell::Cell::new(0);
    proptest!(ProptestConfig::with_cases(2 * CASES), |(layout in marked_layout())| {
        judged.case();
        let installed = Some(&layout).filter(|layout| preserves_parts(layout)).and_then(installed_machine);
        let Some(mut installed) = installed else { return Ok(()) };
        judged.note("installations", true);
        let has_pool = add_pools(&layout, &mut installed);
        let Some(plan) = renew_layout(&layout, &installed, 1000) else { return Ok(()) };
        judged.note("reinstalls", true);
        judged.note("reinstalls that renew volumes of a preserved group", renews_volumes(&plan));
        judged.note("reinstalls that renew volumes next to a thin pool", has_pool);
        assert_sound(&plan, &installed);
        ranges.set(ranges.get() + assert_preserved_ranges_closed(&plan, &installed));
        let before = preserved_contents(&layout, &installed);
        prop_assert!(!before.is_empty());
        let reinstalled = after(&plan, installed);
        prop_assert_eq!(&before, &preserved_contents(&layout, &reinstalled));
        let Some(again) = renew_layout(&layout, &reinstalled, 2000) else {
            return Err(TestCaseError::fail("the second reinstall is refused"));
        };
        assert_sound(&again, &reinstalled);
        let operations = |plan: &Plan| plan.stages.iter().map(|stage| (stage.name, stage.operations.len())).collect::<Vec<_>>();
        prop_assert_eq!(operations(&plan), operations(&again));
        prop_assert_eq!(&before, &preserved_contents(&layout, &after(&again, reinstalled)));
    });
    println!("{} ranges of preserved objects were compared with the extents of the stages", ranges.get());
    judged.assert_shares(&[
        ("installations", 20),
        ("reinstalls", 18),
        ("reinstalls that renew volumes of a preserved group", 1),
        ("reinstalls that renew volumes next to a thin pool", 1),
    ]);
}

/// The run is interrupted after each operation. The preserved objects must be intact in every state, and the next
/// plan must preserve them too or be refused.
#[test]
fn an_interruption_after_any_operation_loses_nothing() {
    let (states, refused, renewed) = (std::cell::Cell::new(0), std::cell::Cell::new(0), std::cell::Cell::new(0));
    proptest!(ProptestConfig::with_cases(4 * CASES), |(layout in marked_layout())| {
        if states.get() >= STATES {
            return Ok(());
        }
        let installed = Some(&layout).filter(|layout| preserves_parts(layout)).and_then(installed_machine);
        let Some(mut installed) = installed else { return Ok(()) };
        add_pools(&layout, &mut installed);
        let Some(plan) = renew_layout(&layout, &installed, 1000) else { return Ok(()) };
        let before = preserved_contents(&layout, &installed);
        let operations: usize = plan.stages.iter().map(|stage| stage.operations.len()).sum();
        for count in 0..operations {
            let interrupted = simulator::cut(&plan, installed.clone(), count);
            prop_assert_eq!(&before, &preserved_contents(&layout, &interrupted), "after {} operations", count);
            states.set(states.get() + 1);
            renewed.set(renewed.get() + usize::from(renews_volumes(&plan)));
            match renew_layout(&layout, &interrupted, 2000) {
                None => refused.set(refused.get() + 1),
                Some(next) => {
                    let repeated = after(&next, interrupted);
                    prop_assert_eq!(&before, &preserved_contents(&layout, &repeated), "repeated after {}", count);
                }
            }
        }
    });
    let (states, refused, renewed) = (states.get(), refused.get(), renewed.get());
    println!(
        "{states} interrupted states, {renewed} of plans that renew volumes, 0 with lost data; the next plan was refused in {refused}"
    );
    assert!(states >= 2000 && renewed > 0 && refused < states / 4, "{states} {renewed} {refused}");
}
