//! What must hold for every layout on every machine.

use super::degraded::{replace, unplug};
use super::drawn::{NAMES, any_layout, any_machine, blank};
use super::identity::{claim, marker, reinstall};
use super::*;
use proptest::prelude::*;
use std::collections::BTreeSet;

/// Devices that an operation writes destructively.
pub(super) fn destroyed(operation: &Operation) -> Vec<&str> {
    match operation {
        Operation::WipeDisk(wipe) => vec![&wipe.device],
        Operation::WriteTable(table) => vec![&table.device],
        Operation::CreateArray(array) => {
            array.devices.iter().filter(|device| *device != "missing").map(String::as_str).collect()
        }
        Operation::CreateGroup(group) => group.devices.iter().map(String::as_str).collect(),
        Operation::CreateVolume(volume) => volume.physical.iter().map(String::as_str).collect(),
        Operation::MakeFilesystem(make) => vec![&make.device],
        _ => Vec::new(),
    }
}

/// The disks at the bottom of every device that the plan makes or names.
fn bottoms<'a>(plan: &'a Plan, device: &str) -> BTreeSet<&'a str> {
    let on = |devices: &[String]| devices.iter().flat_map(|device| bottoms(plan, device)).collect::<BTreeSet<_>>();
    for operation in plan.steps.iter().flat_map(|step| &step.operations) {
        match operation {
            Operation::CreateArray(array) if array.device == device => return on(&array.devices),
            Operation::CreateVolume(volume) if volume.device == device => return on(&volume.physical),
            _ => {}
        }
    }
    plan.disks.iter().filter(|disk| device.starts_with(&disk.device)).map(|disk| disk.name.as_str()).collect()
}

fn assert_sound(plan: &Plan, inventory: &Inventory) {
    let verdict = |name: &str| plan.disks.iter().find(|disk| disk.name == name).unwrap().verdict;
    for (index, step) in plan.steps.iter().enumerate() {
        for operation in &step.operations {
            for device in destroyed(operation) {
                let disks = bottoms(plan, device);
                assert!(!disks.is_empty(), "{operation:?}");
                let is_made = |disk: &&str| matches!(verdict(disk), Verdict::Wipe | Verdict::Make);
                let fills = matches!(operation, Operation::MakeFilesystem(_)) && is_blank(inventory, device);
                assert!(disks.iter().all(is_made) || fills, "{operation:?}");
                assert!(index >= plan.point_of_no_return);
            }
            match operation {
                Operation::WipeDisk(wipe) => assert_wipe(wipe, inventory),
                Operation::WriteTable(table) => assert_table(table, inventory.disk(&table.device).unwrap()),
                Operation::Release(holder) => assert_release(holder, inventory, verdict),
                _ => {}
            }
        }
    }
    for disk in plan.disks.iter().filter(|disk| disk.verdict == Verdict::Make) {
        let found = inventory.disk(&disk.device).unwrap();
        let partitions = found.table.iter().flat_map(|table| &table.partitions);
        assert!(found.blank || (found.table.is_some() && partitions.into_iter().all(|part| part.blank)), "{disk:?}");
    }
    assert_parents_first(plan);
    extents::assert_just_what_is_written(plan, inventory);
}

/// A reinstall, with other UUIDs than those of the installation.
fn later(layout: &Layout, inventory: &Inventory, claim: Option<Claim>) -> Result<Plan, Box<Refusal>> {
    let request = Request { mode: Mode::Reinstall, erase: Erase::Quick, subject: subject(), claim };
    super::super::make(layout, inventory, request, &mut counting_from(1000))
}

fn is_blank(inventory: &Inventory, device: &str) -> bool {
    let partitions = inventory.disks.iter().flat_map(|disk| &disk.table).flat_map(|table| &table.partitions);
    partitions.into_iter().any(|part| part.device == device && part.blank)
}

/// What runs on kept disks alone stays, and on foreign ones what was running before.
fn assert_release(holder: &Holder, inventory: &Inventory, verdict: impl Fn(&str) -> Verdict) {
    let (Holder::Array { device } | Holder::Mapping { device } | Holder::Volume { device, .. }) = holder else {
        return;
    };
    let stacked = inventory.stacked.iter().find(|stacked| stacked.device == *device).unwrap();
    let disks = stack::Stack::new(inventory).disks(&stacked.name);
    let verdicts: Vec<Verdict> = disks.iter().map(|disk| verdict(disk)).collect();
    let put_back = stacked.assembled && verdicts.iter().any(|verdict| *verdict != Verdict::Keep);
    assert!(verdicts.contains(&Verdict::Wipe) || put_back, "{holder:?} on {verdicts:?}");
}

fn assert_wipe(wipe: &WipeDisk, inventory: &Inventory) {
    let size_bytes = inventory.disk(&wipe.device).unwrap().size_bytes;
    assert!(wipe.zero.iter().all(|range| range.start + range.length <= size_bytes));
    assert!(wipe.zero.windows(2).all(|pair| pair[0].start + pair[0].length < pair[1].start));
}

fn assert_table(table: &PartitionTable, disk: &inventory::Disk) {
    let sector = u64::from(disk.sector_bytes);
    assert_eq!(table.sector_bytes, disk.sector_bytes);
    let mut next = MIB / sector;
    let mut partitions: Vec<&NewPartition> = table.partitions.iter().collect();
    partitions.sort_by_key(|partition| partition.number);
    for partition in partitions {
        assert!(partition.first_lba >= next && partition.first_lba <= partition.last_lba);
        assert_eq!(partition.first_lba * sector % MIB, 0);
        next = partition.last_lba + 1;
    }
    // Backup entries and header.
    assert!(next * sector + 16384 + sector <= disk.size_bytes);
}

fn assert_parents_first(plan: &Plan) {
    let operations = plan.steps.iter().flat_map(|step| &step.operations);
    let mounted: Vec<&str> = operations
        .filter_map(|operation| match operation {
            Operation::Mount(mount) => Some(mount.path.as_str()),
            _ => None,
        })
        .collect();
    let listed: Vec<&str> = plan.fstab.iter().map(|entry| entry.path.as_str()).collect();
    for paths in [mounted, listed] {
        for (index, path) in paths.iter().enumerate() {
            assert!(paths[..index].iter().all(|earlier| !earlier.starts_with(&format!("{path}/"))), "{paths:?}");
        }
    }
}

/// What is on the disks that were not to be wiped, and on top of them.
fn untouched(inventory: &Inventory, plan: &Plan) -> (Vec<inventory::Disk>, Vec<inventory::VolumeGroup>) {
    let stays = |name: &str| plan.disks.iter().any(|disk| disk.name == name && disk.verdict == Verdict::Keep);
    let disks = inventory.disks.iter().filter(|disk| stays(&disk.name)).cloned();
    let stack = stack::Stack::new(inventory);
    let on_kept = |group: &&inventory::VolumeGroup| {
        let devices = group.physical.iter().map(|physical| stack.name(&physical.device).to_owned());
        devices.flat_map(|device| stack.disks(&device)).all(|disk| stays(&disk))
    };
    (disks.collect(), inventory.groups.iter().filter(on_kept).cloned().collect())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    /// The simulator checks every operation: nothing is used before it is made, released before what lies on it, or
    /// left running on a wiped disk.
    #[test]
    fn no_plan_destroys_what_is_kept_or_foreign(
        layout in any_layout(),
        machine in any_machine(),
        again in any::<bool>(),
    ) {
        // Valid, except for sizes that are too small in themselves.
        let problems = crate::layout::validate(&layout);
        let too_small = |text: &str| text.contains("needs at least") || text.contains("in the group");
        prop_assert!(problems.iter().all(|problem| too_small(&problem.message)), "{:?}", problems);
        let mode = if again { Mode::Reinstall } else { Mode::Install };
        prop_assert_eq!(make(&layout, &machine, mode), make(&layout, &machine, mode));
        match make(&layout, &machine, mode) {
            Ok(plan) => {
                assert_sound(&plan, &machine);
                prop_assert_eq!(plan.to_string().matches("point of no return").count(), 1);
                let after = after(&plan, machine.clone());
                for (before, after) in machine.disks.iter().zip(&after.disks) {
                    let verdict = plan.disks.iter().find(|disk| disk.name == before.name).unwrap().verdict;
                    prop_assert!(verdict == Verdict::Wipe || before.signatures == after.signatures);
                }
            }
            Err(refusal) => prop_assert!(!refusal.problems.is_empty()),
        }
    }

    #[test]
    fn a_reinstall_over_an_install_keeps_and_a_second_one_too(layout in any_layout(), machine in any_machine()) {
        let Ok(first) = make(&layout, &machine, Mode::Install) else { return Ok(()) };
        let installed = after(&first, machine);
        match later(&layout, &installed, None) {
            Ok(second) => {
                assert_sound(&second, &installed);
                let reinstalled = after(&second, installed.clone());
                prop_assert_eq!(untouched(&installed, &second), untouched(&reinstalled, &second));
                prop_assert!(make(&layout, &reinstalled, Mode::Reinstall).is_ok());
            }
            Err(refusal) => {
                let expected = ["which a reinstall wipes, and on", "is not reinstallable", "holds /"];
                let text = refusal.to_string();
                prop_assert!(expected.iter().any(|expected| text.contains(expected)), "{}", text);
            }
        }
    }

    /// Disks are pulled, replaced by blank ones and swapped, members fail, markers are there or not. A disk that is nobody's
    /// business matches the hints of one of them.
    #[test]
    fn no_reinstall_of_a_machine_that_has_suffered_destroys_what_is_kept(
        layout in any_layout(),
        pulled in prop::collection::vec(prop::bool::weighted(0.1), NAMES.len()),
        replaced in prop::collection::vec(prop::bool::weighted(0.15), NAMES.len()),
        failed in prop::collection::vec(prop::bool::weighted(0.2), 4),
        emptied in prop::bool::weighted(0.2),
        swapped in prop::bool::weighted(0.1),
        hinted in prop::collection::vec(prop::bool::weighted(0.3), NAMES.len()),
        lookalike in 0..NAMES.len(),
        waiver in prop_oneof![3 => Just(None), 1 => Just(Some(Waiver::Operator)), 1 => Just(Some(Waiver::Begun))],
    ) {
        let Ok(first) = make(&layout, &blank(), Mode::Install) else { return Ok(()) };
        let mut machine = after(&first, blank());
        for disk in &mut machine.disks {
            disk.serial = format!("{}-0", disk.name);
        }
        let recorded = marker(&machine);
        let vendor = |name: &str| format!("maker of {name}");
        machine.disks.iter_mut().for_each(|disk| disk.vendor = vendor(&disk.name));
        let mut layout = layout;
        for disk in &mut layout.disks {
            let name = disk.device.trim_start_matches("/dev/");
            if hinted[NAMES.iter().position(|is| *is == name).unwrap()] {
                disk.hints.insert("vendor".to_owned(), vendor(name));
            }
        }
        let signatures = vec![Signature { kind: "xfs".to_owned(), usage: "filesystem".to_owned(), ..Signature::default() }];
        let serial = "archive".to_owned();
        machine.disks.push(inventory::Disk { serial, vendor: vendor(NAMES[lookalike]), signatures, ..disk("sdz", 6000) });
        let marked = |machine: &mut Inventory| {
            let roots = (machine.disks.iter().flat_map(|disk| &disk.table).flat_map(|table| &table.partitions))
                .map(|part| (&part.device, &part.signatures))
                .chain(machine.disks.iter().map(|disk| (&disk.device, &disk.signatures)))
                .chain(machine.stacked.iter().map(|stacked| (&stacked.device, &stacked.signatures)));
            let roots = roots.filter(|(_, is)| is.iter().any(|is| is.uuid == first.root_uuid));
            let marker = Some(recorded.clone());
            machine.filesystems = roots
                .map(|(device, _)| inventory::Filesystem { device: device.clone(), marker: marker.clone(), ..Default::default() })
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
            for part in partitions.filter(|part| part.signatures.iter().all(|is| is.usage != "raid")) {
                part.signatures.clear();
                part.blank = true;
            }
            machine.filesystems.clear();
        }
        let request = Claim { waiver, installed: Some(recorded.clone()), ..claim() };
        let Ok(plan) = later(&layout, &machine, Some(request.clone())) else { return Ok(()) };
        prop_assert!(waiver.is_some() || !machine.filesystems.is_empty());
        // A disk that nobody has recorded is told from the recorded one only while that is there too.
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
        // What was made is kept from now on, also by an attempt that follows one which got so far and no further.
        let begin = super::stacks::operations(&plan, StepName::ReportBegin);
        let [Operation::TellPointOfNoReturn { disks }] = begin else { panic!("{begin:?}") };
        let request = Claim { waiver: Some(Waiver::Begun), begun_on: disks.clone(), ..request };
        let again = reinstall(&layout, &reinstalled, request).unwrap_or_else(|refusal| panic!("{refusal}"));
        prop_assert!(verdicts(&again).iter().all(|verdict| *verdict != Verdict::Make));
    }
}
