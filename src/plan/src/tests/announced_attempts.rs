//! Distinguishes attempts that were only announced from those that have started to write.

use super::arrays_and_groups;
use super::installation_identity::{claim, marker, reinstall};
use super::interrupted_mkfs::next;
use super::partly_kept_disks::{MIRRORED, blank_machine};
use super::renewed_volumes::ONE_GROUP;
use super::*;
use crate::simulator::cut;
use model::inventory::FilesystemContents;
use model::layout::RaidLevel;
use operations::PlanStage;

/// Returns a machine with an installation of the given layout, and with its marker on the given device.
fn installed_with_marker(layout: &Layout, machine: Inventory, device: &str) -> Inventory {
    let mut inventory = after(&make(layout, &machine, InstallMode::Install).unwrap(), machine);
    // All plans generate the same ids. The existing tables therefore get GUIDs that no plan generates.
    for (number, table) in (1..).zip(inventory.disks.iter_mut().filter_map(|disk| disk.table.as_mut())) {
        table.guid = Some(uuid::Uuid::from_u128(u128::MAX - number));
    }
    let (device, marker) = (device.into(), Some(marker(&inventory)));
    inventory.filesystems = vec![FilesystemContents { device, marker, ..FilesystemContents::default() }];
    inventory
}

/// Power fails after each destructive operation. The result does not depend on the order of the disks in the layout.
/// The old filesystem and its marker remain visible after each power failure, as on a new mirror at the same offsets.
#[test]
fn installation_counts_as_intact_until_the_first_wipe() {
    let mut two_disks = layout();
    two_disks.disks[1].wipeonreinstall = true;
    let mut root_last = two_disks.clone();
    root_last.disks.reverse();
    for (layout, machine, marked) in [
        (layout(), machine(), "/dev/sda2"),
        (two_disks, machine(), "/dev/sda2"),
        (root_last, machine(), "/dev/sda2"),
        (arrays_and_groups::layout(), arrays_and_groups::five(), "/dev/sda2"),
        (arrays_and_groups::layout(), arrays_and_groups::five(), "/dev/sdb2"),
    ] {
        let before = installed_with_marker(&layout, machine, marked);
        let plan = reinstall(&layout, &before, claim()).unwrap();
        let count = |stages: &[PlanStage]| stages.iter().map(|stage| stage.operations.len()).sum::<usize>();
        let harmless = count(&plan.stages[..plan.point_of_no_return]);
        let all = count(&plan.stages.iter().filter(|stage| stage.name.is_destructive()).cloned().collect::<Vec<_>>());
        for done in 0..=all {
            let mut after = cut(&plan, before.clone(), harmless + done);
            after.filesystems = before.filesystems.clone();
            assert_eq!(is_intact(&layout, &after, &claim()), done == 0, "{done} of {all} operations: {plan}");
        }
    }
}

/// The table of a partly kept disk retains its GUID, and is not even written if no entry changes.
#[test]
fn installation_on_partly_kept_disks_does_not_count_as_intact() {
    for yaml in [MIRRORED, ONE_GROUP] {
        let layout = layout_of(yaml);
        let before = installed_with_marker(&layout, blank_machine(), "/dev/sda2");
        let plan = reinstall(&layout, &before, claim()).unwrap();
        assert!(verdicts(&plan).contains(&DiskVerdict::PartlyKept), "{plan}");
        let all: usize = plan.stages.iter().map(|stage| stage.operations.len()).sum();
        for done in 0..all {
            let mut after = cut(&plan, before.clone(), done);
            after.filesystems = before.filesystems.clone();
            assert!(!is_intact(&layout, &after, &claim()), "{done} of {all} operations: {plan}");
        }
    }
}

fn wiped(device: &str) -> DiskSpec {
    DiskSpec { wipeonreinstall: true, ..arrays_and_groups::whole(device) }
}

type Case = (&'static str, fn(&mut Layout, &mut Inventory, &mut InstallClaim));

#[test]
fn unproven_installation_does_not_count_as_intact() {
    let layout = layout();
    let whole = installed_with_marker(&layout, machine(), "/dev/sda2");
    assert!(is_intact(&layout, &whole, &claim()));
    let cases: [Case; 11] = [
        ("no marker", |_, inventory, _| inventory.filesystems.clear()),
        ("marker of the filesystem was not read", |_, inventory, _| inventory.filesystems[0].marker = None),
        ("another allocation", |_, _, claim| claim.allocation = "a-2".to_owned()),
        ("another machine", |_, _, claim| claim.machine = "m-2".to_owned()),
        ("the new installation", |_, inventory, claim| {
            inventory.filesystems[0].marker.as_mut().unwrap().order = claim.order.clone();
        }),
        ("a copy elsewhere", |_, inventory, _| inventory.filesystems[0].device = "/dev/sdb1".into()),
        ("another partition table", |_, inventory, _| {
            inventory.disks[0].table.as_mut().unwrap().guid = Some(uuid::Uuid::from_u128(7));
        }),
        ("marker without recorded GPT GUIDs", |_, inventory, _| {
            inventory.filesystems[0].marker.as_mut().unwrap().disks.iter_mut().for_each(|disk| disk.guid = None);
        }),
        ("a partition is missing", |_, inventory, _| {
            inventory.disks[0].table.as_mut().unwrap().partitions.retain(|part| part.number != 3);
        }),
        ("another wiped disk is absent", |layout, _, _| {
            layout.disks.push(wiped("/dev/sdx"));
        }),
        ("another wiped disk is empty", |layout, _, _| layout.disks.push(wiped("/dev/sdc"))),
    ];
    for (name, change) in cases {
        let (mut layout, mut inventory, mut claim) = (layout.clone(), whole.clone(), claim());
        change(&mut layout, &mut inventory, &mut claim);
        assert!(!is_intact(&layout, &inventory, &claim), "{name}");
    }
}

#[test]
fn announced_attempt_counts_as_started_if_its_table_exists() {
    let layout = layout();
    let mut inventory = installed_with_marker(&layout, machine(), "/dev/sda2");
    let plan = reinstall(&layout, &inventory, claim()).unwrap();
    let waiver = |inventory: &Inventory| {
        let (mode, steps, assigned) = (InstallMode::Reinstall, StepList::default(), Default::default());
        let mut request = PlanRequest { mode, steps, subject: subject(), assigned, claim: Some(next(&plan)) };
        crate::intact_installation::drop_announced_attempt(&layout, inventory, &mut request);
        request.claim.unwrap().waiver
    };
    assert_eq!(waiver(&inventory), None);
    let guid = next(&plan).begun_on[0].guid.clone().unwrap();
    inventory.disks[0].table.as_mut().unwrap().guid = Some(guid.parse().unwrap());
    assert_eq!(waiver(&inventory), Some(MarkerWaiver::Begun));
}

/// The superblock of an array does not prove that the array is intact. It may be at the end of the disk, which is
/// wiped after the start.
#[test]
fn whole_disk_is_intact_with_signature_at_start() {
    let mut layout = layout();
    layout.disks.push(wiped("/dev/sdc"));
    layout.disks.push(wiped("/dev/sdd"));
    layout.raid = vec![arrays_and_groups::raid("/dev/md/scratch", &["/dev/sdc", "/dev/sdd"], RaidLevel::Raid1, 0)];
    let mut machine = machine();
    machine.disks.push(disk("sdd", 9_000));
    let mut inventory = installed_with_marker(&layout, machine, "/dev/sda2");
    assert!(!is_intact(&layout, &inventory, &claim()));
    for disk in &mut inventory.disks[2..] {
        disk.signatures[0].kind = "xfs".to_owned();
    }
    assert!(is_intact(&layout, &inventory, &claim()));
}
