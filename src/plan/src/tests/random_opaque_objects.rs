//! Random machines with objects that cannot be inspected: inactive volumes, closed groups, locked containers, and
//! arrays that cannot be assembled. Only the test knows their content. No plan may wipe an installation or a
//! component of a preserved object, unless the operator discards the disk.
//!
//! `scripts/fuzz SECONDS SEED concealed` runs the test for longer.

use super::installation_identity::{claim, install, marked, reinstall};
use super::random_inventories::{Random, judge_seeds};
use super::uninspected_objects::{group, put};
use super::*;
use model::allocation::RecordSource;
use model::inventory::{ComponentRole, InspectionFailure, InspectionTarget, SpanningComponent};
use std::collections::BTreeMap;

/// Number of machines in a run without DROPHAMMER_FUZZ_SECONDS.
const FEW: u64 = 6_000;

/// Types of inactive logical volumes, and groups that cannot be activated.
const VOLUMES: [&str; 10] =
    ["snapshot", "thin", "cache", "writecache", "raid5", "raid10", "vdo", "linear", "raid1", "striped"];

const PLACEHOLDERS: [&str; 5] = ["000000000000", "None", "N/A", "0123456789ABCDEF", "...."];

/// Content of the opaque object on a wiped partition.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum OpaqueContent {
    /// The root filesystem with the only install marker.
    Marker,
    /// The second device of a filesystem on a preserved disk.
    OfPreserved,
    /// The second device of a pool on a disk that the layout does not list.
    OfUnlisted,
    /// The second half of an object whose first half is in a locked container on a preserved disk.
    OfLockedPreserved,
    /// Nothing that any other object needs.
    Nothing,
}

/// Puts an object that cannot be inspected onto a partition of sda. Returns the type of the object.
fn conceal(inventory: &mut Inventory, part: usize, random: &mut Random) -> &'static str {
    let device = format!("/dev/sda{}", part + 1);
    match random.below(6) {
        0 => put(inventory, 0, part, "crypto_LUKS", "crypto"),
        1 => put(inventory, 0, part, "drbd", "raid"),
        2 => {
            put(inventory, 0, part, "linux_raid_member", "raid");
            let uuid = Uuid::from_u128(77);
            let member = inventory::ArrayMember { device: device.into(), role: inventory::MemberRole::Active(0) };
            let (level, members) = ("raid1".to_owned(), vec![member]);
            inventory.arrays.push(inventory::MdArray { uuid, level, raid_devices: 2, members, ..Default::default() });
            inventory.failed.push(InspectionFailure {
                tried: InspectionTarget::Array(uuid),
                why: "it has a write-behind log".to_owned(),
            });
            return "array";
        }
        3 => {
            put(inventory, 0, part, "LVM2_member", "raid");
            group(inventory, &[&device], "linear", Some("it is exported"));
            return "closed group";
        }
        _ => {
            put(inventory, 0, part, "LVM2_member", "raid");
            group(inventory, &[&device], VOLUMES[random.below(VOLUMES.len())], None);
            return "volume";
        }
    }
    "component"
}

fn component(device: &str, kind: &str, role: ComponentRole) -> SpanningComponent {
    SpanningComponent { device: device.into(), kind: kind.into(), whole: kind.into(), id: "7d2f1c1e".into(), role }
}

/// Returns an installed machine with an opaque object of this content, and the type of the object.
fn concealing(contained: OpaqueContent, random: &mut Random) -> (Inventory, &'static str) {
    let mut inventory = marked();
    inventory.explored = true;
    if random.one_in(4) {
        let shared = PLACEHOLDERS[random.below(PLACEHOLDERS.len())];
        inventory.disks[1].serial = shared.to_owned();
    }
    let part = if contained == OpaqueContent::Marker { 1 } else { 2 };
    let object = conceal(&mut inventory, part, random);
    match contained {
        OpaqueContent::Marker => inventory.filesystems.clear(),
        OpaqueContent::OfPreserved => inventory.parts.push(component("/dev/sdb1", "btrfs", ComponentRole::OneOf(2))),
        OpaqueContent::OfUnlisted => inventory.parts.push(component("/dev/sdc", "zfs_member", ComponentRole::Peer)),
        OpaqueContent::OfLockedPreserved => {
            let partition = inventory::DiskPartition { number: 2, device: "/dev/sdb2".into(), ..Default::default() };
            inventory.disks[1].table.as_mut().unwrap().partitions.push(partition);
            put(&mut inventory, 1, 1, "crypto_LUKS", "crypto");
        }
        OpaqueContent::Nothing => {}
    }
    (inventory, object)
}

/// Makes a random plan for a machine with an opaque object. Returns the content of the object, and whether the plan
/// was accepted.
fn check_seed(seed: u64) -> (OpaqueContent, bool) {
    use OpaqueContent::{Marker, Nothing, OfLockedPreserved, OfPreserved, OfUnlisted};
    let mut random = Random(seed);
    let contained = [Marker, OfPreserved, OfUnlisted, OfLockedPreserved, Nothing][random.below(5)];
    let (inventory, object) = concealing(contained, &mut random);
    let given = random.one_in(3);
    let give_up = if given { vec!["A0".to_owned(), "B0".to_owned()] } else { vec!["Z9".to_owned(), String::new()] };
    let is_first = contained == Marker;
    let memory = if random.one_in(2) { RecordSource::DisksOnly } else { RecordSource::ControlPlane };
    let claim = InstallClaim { give_up, memory, ..claim() };
    let plan = match is_first {
        true => install(&layout(), &inventory, InstallClaim { allocation: "a-2".to_owned(), ..claim }),
        false => reinstall(&layout(), &inventory, claim),
    };
    let is_planned = plan.is_ok();
    match plan {
        Ok(plan) => {
            let is_told = plan.warnings.iter().any(|said| said.contains("will be discarded"));
            assert!(contained == Nothing || (given && is_told), "seed {seed}: {contained:?} in {object}\n{plan}");
        }
        Err(refusal) => assert!(
            !refusal.opaque.is_empty() && !refusal.problems.is_empty(),
            "seed {seed}: {contained:?} in {object} is not listed\n{refusal}"
        ),
    }
    (contained, is_planned)
}

#[test]
fn fuzz_machines_with_concealed_contents() {
    let mut tallies: BTreeMap<OpaqueContent, (u64, u64)> = BTreeMap::new();
    let judged = judge_seeds(FEW, |seed| {
        let (contained, is_planned) = check_seed(seed);
        let (planned, refused) = tallies.entry(contained).or_default();
        *if is_planned { planned } else { refused } += 1;
    });
    for (contained, (planned, refused)) in &tallies {
        println!("{contained:?}: {planned} planned, {refused} refused");
    }
    // Both accepted and refused plans must occur.
    let needed = tallies.iter().filter(|(contained, _)| **contained != OpaqueContent::Nothing);
    assert!(judged < 1000 || needed.clone().all(|(_, (planned, refused))| *planned > 0 && *refused > 0), "{tallies:?}");
    assert!(judged < 1000 || tallies[&OpaqueContent::Nothing].0 > 0, "{tallies:?}");
}
