//! Reinstalls that renew the listed volumes of a group and preserve a thin pool that the layout does not list.

use super::partly_kept_disks::{installed_with, operations_of, problems_of, renew};
use super::renewed_volumes::ONE_GROUP;
use super::*;
use crate::preservation_proof::{compare_preserved, describe_differences};
use model::inventory::{LvmHiddenVolume, VolumeHealth};
use operations::{ByteRange, DeviceOp, Operation, ProvePreserved, RemoveVolumes, SessionOp};

/// Layout of a machine with root and swap in the group of a thin pool.
pub(super) fn layout_without_data() -> String {
    let lines = ONE_GROUP.lines().filter(|line| !line.contains("data"));
    let text: String = lines.flat_map(|line| [line, "\n"]).collect();
    text.replace("{name: vg0, ", "{name: vg0, preserve: unlisted, ")
}

/// Returns the machine after the first installation and the creation of a thin pool.
pub(super) fn with_pool() -> Inventory {
    let mut installed = installed_with(&layout_without_data());
    assert!(simulator::add_thin_pool(&mut installed.groups[0]));
    installed
}

fn removal(plan: &Plan) -> &RemoveVolumes {
    let removal = |operation| match operation {
        &Operation::Device(DeviceOp::RemoveVolumes(ref remove)) => Some(remove),
        _ => None,
    };
    operations_of(plan).find_map(removal).unwrap()
}

fn names(volumes: &[operations::ExpectedVolume]) -> Vec<&str> {
    volumes.iter().map(|volume| volume.name.as_str()).collect()
}

fn pool_of(inventory: &Inventory) -> (Vec<&inventory::LvmLogicalVolume>, &[LvmHiddenVolume]) {
    let volumes = inventory.groups[0].volumes.iter().filter(|volume| volume.kind.starts_with("thin"));
    (volumes.collect(), &inventory.groups[0].hidden)
}

#[test]
fn two_reinstalls_preserve_the_pool_and_never_activate_it() {
    let (yaml, installed) = (layout_without_data(), with_pool());
    let mut machine = installed.clone();
    for _ in 0..2 {
        let plan = renew(&yaml, &machine).unwrap_or_else(|problems| panic!("{problems:#?}"));
        properties::assert_sound(&plan, &machine);
        let remove = removal(&plan);
        let (removed, preserved, hidden) = (names(&remove.removed), names(&remove.preserved), names(&remove.hidden));
        assert_eq!((removed.len(), preserved), (2, vec!["pool", "vm"]), "{remove:?}");
        assert_eq!(hidden, ["pool_tdata", "pool_tmeta", "lvol0_pmspare"]);
        let activates = |operation: &Operation| matches!(operation, Operation::Device(DeviceOp::ActivateGroup(_)));
        assert!(!operations_of(&plan).any(activates));
        let text = plan.to_string();
        assert!(text.contains("of vg0 (sda2); preserve pool, vm"), "{text}");
        machine = after(&plan, machine);
        assert_eq!(pool_of(&machine), pool_of(&installed));
    }
}

#[test]
fn no_stage_may_write_the_hidden_volumes_of_the_pool() {
    let installed = with_pool();
    let plan = renew(&layout_without_data(), &installed).unwrap();
    let start = installed.disks[0].table.as_ref().unwrap().partitions[1].start_bytes;
    let hidden = installed.groups[0].hidden.iter().flat_map(|volume| &volume.ranges);
    let hidden: Vec<_> =
        hidden.map(|found| ByteRange { start: start + found.start_bytes, length: found.size_bytes }).collect();
    let open: Vec<_> =
        plan.extents.iter().flat_map(|extents| &extents.disks).flat_map(|disk| &disk.ranges).copied().collect();
    assert!(hidden.len() == 3 && open.len() > 3, "{hidden:?} {open:?}");
    for (open, hidden) in open.iter().flat_map(|open| hidden.iter().map(move |hidden| (open, hidden))) {
        let is_apart = open.start + open.length <= hidden.start || hidden.start + hidden.length <= open.start;
        assert!(is_apart, "{open:?} {hidden:?}");
    }
    // If the free space does not match the ranges, an unknown volume may be anywhere.
    let mut unknown = installed;
    unknown.groups[0].hidden[0].ranges.clear();
    let plan = renew(&layout_without_data(), &unknown).unwrap();
    let mut open = plan.extents.iter().flat_map(|extents| &extents.disks).flat_map(|disk| &disk.ranges);
    assert!(open.any(|open| open.start <= hidden[1].start && hidden[1].start < open.start + open.length));
}

#[test]
fn a_first_installation_and_a_reinstall_without_unlisted_volumes_are_possible() {
    let yaml = layout_without_data();
    let installed = installed_with(&yaml);
    let plan = renew(&yaml, &installed).unwrap();
    assert_eq!(names(&removal(&plan).preserved), [""; 0]);
}

#[test]
fn changes_of_hidden_volumes_are_reported_at_the_end() {
    let installed = with_pool();
    let plan = renew(&layout_without_data(), &installed).unwrap();
    let preserved = operations_of(&plan).find_map(|operation| match operation {
        Operation::Run(SessionOp::ProvePreserved(ProvePreserved(preserved))) => Some(preserved.clone()),
        _ => None,
    });
    let (preserved, mut reinstalled) = (preserved.unwrap(), after(&plan, installed));
    assert_eq!(describe_differences(&compare_preserved(&preserved, &reinstalled)), [""; 0]);
    reinstalled.groups[0].hidden[1].size_bytes += MIB;
    let differences = describe_differences(&compare_preserved(&preserved, &reinstalled));
    assert!(differences.len() == 1 && differences[0].contains("hidden volume pool_tmeta"), "{differences:?}");
}

#[test]
fn a_group_with_an_unstable_volume_is_refused() {
    type Change = fn(&mut inventory::LvmLogicalVolume);
    let cases: [(Change, &str); 3] = [
        (
            |pool| pool.health = VolumeHealth::Degraded,
            "volumes of vg:vg0 cannot be renewed: the thin pool vg0/pool is full or damaged; extend or repair it",
        ),
        (|pool| pool.health = VolumeHealth::Lost, "vg:vg0 must be preserved, but data of the volumes pool is missing"),
        (
            |pool| pool.entangled = Some("is being moved, and so on".to_owned()),
            "volumes of vg:vg0 cannot be renewed: the volume vg0/pool is being moved, and so on",
        ),
    ];
    for (change, expected) in cases {
        let mut installed = with_pool();
        change(installed.groups[0].volumes.iter_mut().find(|volume| volume.name == "pool").unwrap());
        let found = problems_of(&layout_without_data(), &installed);
        assert!(found.iter().any(|why| why.contains(expected)), "{found:#?}");
    }
    let mut read_only = with_pool();
    read_only.groups[0].allocation.as_mut().unwrap().read_only = true;
    let found = problems_of(&layout_without_data(), &read_only);
    assert!(found.len() == 1 && found[0].contains("the metadata of the group is read-only"), "{found:#?}");
    let mut partial = with_pool();
    partial.groups[0].physical.push(inventory::LvmPhysicalVolume::default());
    assert!(!problems_of(&layout_without_data(), &partial).is_empty());
}
