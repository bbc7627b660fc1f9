//! Arrays with metadata 0.90: if they exceed the limits of the superblock, they are refused before anything is wiped.

use super::*;
use model::layout::{ArraySpec, RaidLevel, validate_layout};
use operations::{DeviceOp, Operation};

const TIB: u64 = 1 << 40;

fn layout_of(members: usize, level: RaidLevel, options: &[&str]) -> Layout {
    let mut layout = layout();
    layout.disks.truncate(1);
    layout.filesystems.retain(|filesystem| !filesystem.device.as_str().starts_with("/dev/sdb"));
    let names: Vec<String> = (0..members).map(|number| format!("/dev/sdx{number}")).collect();
    let member = |name: &String| DiskSpec { wipeonreinstall: true, ..arrays_and_groups::whole(name) };
    layout.disks.extend(names.iter().map(member));
    layout.raid.push(ArraySpec {
        arrayname: "/dev/md1".into(),
        devices: names.iter().map(|name| name.as_str().into()).collect(),
        level,
        createoptions: options.iter().map(|option| (*option).to_owned()).collect(),
        spares: 0,
        preserve: false,
    });
    layout.filesystems.push(filesystem("/srv", "/dev/md1", FilesystemFormat::Xfs, "srv"));
    layout
}

fn planned(layout: &Layout, member_bytes: u64) -> Result<Plan, Box<PlanRefusal>> {
    let members = layout.disks[1..].iter().map(|listed| {
        let name = listed.device.as_str().trim_start_matches("/dev/");
        inventory::InventoryDisk { size_bytes: member_bytes, blank: true, ..disk(name, 1) }
    });
    let disks = std::iter::once(disk("sda", 20_000)).chain(members).collect();
    make(layout, &Inventory { disks, ..Inventory::default() }, InstallMode::Install)
}

#[test]
fn refuses_layout_that_exceeds_superblock_limits() {
    let old = "--metadata=0.90";
    let problems = |members, level, option| {
        let problems = validate_layout(&layout_of(members, level, &[option]));
        problems.iter().map(ToString::to_string).collect::<Vec<_>>()
    };
    for (members, level, words) in [
        (2, RaidLevel::Raid0, "raid:/dev/md1 has level 0 with metadata 0.90"),
        (28, RaidLevel::Raid1, "raid:/dev/md1 has more than 27 devices"),
        (28, RaidLevel::Raid6, "raid:/dev/md1 has more than 27 devices"),
    ] {
        let said = problems(members, level, old);
        assert!(said.len() == 1 && said[0].contains(words), "{said:?}");
    }
    for (members, level, option) in [
        (27, RaidLevel::Raid1, old),
        (3, RaidLevel::Raid5, old),
        (2, RaidLevel::Raid0, "--metadata=1.0"),
        (28, RaidLevel::Raid1, "--metadata=1.2"),
    ] {
        assert_eq!(problems(members, level, option), [""; 0], "{members} {level} {option}");
    }
}

#[test]
fn refuses_member_larger_than_the_superblock_supports() {
    let large = 6_001_175_126_016;
    for (members, level, options, bytes) in [
        (2, RaidLevel::Raid1, &["--metadata=0.90"][..], large),
        (3, RaidLevel::Raid5, &["--metadata=0.90"], large),
        (2, RaidLevel::Raid1, &["-e", "0.90", "--bitmap=internal"], 4 * TIB + MIB),
    ] {
        let said = reasons(planned(&layout_of(members, level, options), bytes));
        assert_eq!(said.len(), 1, "{said:?}");
        let words = "raid[0].devices: /dev/md1 cannot be created on /dev/sdx0: the device has ";
        assert!(said[0].starts_with(words) && said[0].contains("4398046511104 bytes"), "{said:?}");
    }
    for (members, options, bytes) in [
        (2, &["--metadata=0.90"][..], 4 * TIB),
        (2, &["--metadata=1.0"], large),
        (2, &[], large),
        // The planner does not check this array, because it is tried with mdadm.
        (2, &["--metadata=0.90", "--size=1T"], large),
    ] {
        let plan = planned(&layout_of(members, RaidLevel::Raid1, options), bytes);
        plan.unwrap_or_else(|refusal| panic!("{options:?}: {refusal}"));
    }
}

#[test]
fn array_with_old_metadata_is_tried_in_memory() {
    let is_tried = |options: &[&str]| {
        let plan = planned(&layout_of(2, RaidLevel::Raid1, options), TIB).unwrap();
        let mut operations = plan.stages[..plan.point_of_no_return].iter().flat_map(|stage| &stage.operations);
        operations.any(|operation| matches!(operation, Operation::Device(DeviceOp::TryArray(_))))
    };
    assert!(is_tried(&["--metadata=0.90"]) && is_tried(&["--metadata=1.1"]));
    assert!(!is_tried(&["--metadata=1.0"]) && !is_tried(&[]));
}
