//! Random unusual inventories: missing or duplicate serial numbers, changed kernel names, and disks that were replaced,
//! removed or copied. No plan wipes a recorded preserved disk or a foreign disk without a warning.
//!
//! `scripts/fuzz SECONDS SEED inventories` runs the test for longer (DROPHAMMER_FUZZ_SECONDS, DROPHAMMER_FUZZ_SEED).

use super::arrays_and_groups::operations;
use super::installation_identity::{claim, install, reinstall};
use super::*;
use crate::simulator::after;
use model::install_marker::{InstallMarker, RecordedDisk};
use model::inventory::FilesystemContents;
use operations::{Operation, SessionOp, StageName, WriteMarker};
use std::time::{Duration, Instant};

/// Number of inventories in a run without DROPHAMMER_FUZZ_SECONDS. They are the same in each run.
const FEW: u64 = 10_500;

/// Serial numbers that many disks report and that do not identify any of them.
const PLACEHOLDERS: [&str; 4] = ["000000000000", "None", "0123456789ABCDEF", "N/A"];
const ZERO_WWN: &str = "0x0000000000000000";

/// True role of a disk, independent of its kernel name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum DiskRole {
    Root,
    Kept,
    Scratch,
    Foreign,
    /// The disk contains no data.
    Blank,
}

#[derive(Debug, Clone)]
struct Physical {
    role: DiskRole,
    disk: inventory::InventoryDisk,
}

/// Random number generator (splitmix64).
pub(super) struct Random(pub u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    pub(crate) fn below(&mut self, end: usize) -> usize {
        (self.next() % end as u64) as usize
    }

    /// Returns true once in `many` calls on average.
    pub(crate) fn one_in(&mut self, many: usize) -> bool {
        self.below(many) == 0
    }
}

/// Returns a layout with root on sda, data on sdb and sdc, and scratch space on sdd (with a table) and sde (without).
fn drawn_layout(random: &mut Random) -> Layout {
    let mut layout = layout();
    let data = layout.disks[1].clone();
    layout.disks.push(DiskSpec { device: "/dev/sdc".into(), ..data.clone() });
    layout.filesystems.push(filesystem("/opt", "/dev/sdc1", FilesystemFormat::Ext4, "srv"));
    layout.disks.push(DiskSpec { device: "/dev/sdd".into(), wipeonreinstall: true, ..data.clone() });
    layout.filesystems.push(filesystem("/scratch", "/dev/sdd1", FilesystemFormat::Ext4, "srv"));
    layout.disks.push(DiskSpec { device: "/dev/sde".into(), wipeonreinstall: true, partitions: vec![], ..data });
    layout.filesystems.push(filesystem("/tmp2", "/dev/sde", FilesystemFormat::Xfs, "tmp"));
    if random.one_in(4) {
        // One disk is used as a whole, so no partition table identifies it.
        layout.disks[2].partitions.clear();
        layout.filesystems[5].device = "/dev/sdc".into();
    }
    layout
}

/// Returns the machine before the installation. All disks have the same size, as in a disk shelf, and one is foreign.
fn drawn_machine(random: &mut Random) -> Inventory {
    let sizes = if random.one_in(3) { [8000, 8000, 9000, 9000, 8000, 9000] } else { [8000; 6] };
    let (serials, wwns) = (random.below(5), random.below(4));
    let mut machine = Inventory::default();
    for (index, name) in ["sda", "sdb", "sdc", "sdd", "sde", "sdf"].iter().enumerate() {
        let mut disk = disk(name, sizes[index]);
        // All, none, or some of the disks have serial numbers, or some disks share one.
        disk.serial = match serials {
            0 => format!("S{index}"),
            1 => String::new(),
            2 if random.one_in(2) => String::new(),
            2 => format!("S{index}"),
            3 => format!("S{}", random.below(4)),
            // Bridges and enclosures report placeholders.
            _ => PLACEHOLDERS[random.below(PLACEHOLDERS.len())].to_owned(),
        };
        disk.wwn = match wwns {
            0 => format!("0x{index}"),
            1 if random.one_in(2) => format!("0x{index}"),
            3 => ZERO_WWN.to_owned(),
            _ => String::new(),
        };
        disk.by_path = format!("/dev/disk/by-path/slot-{index}");
        machine.disks.push(disk);
    }
    machine
}

/// Gives the objects on the disks random UUIDs, because each plan numbers its UUIDs from one.
fn with_own_uuids(machine: &mut Inventory, random: &mut Random) {
    for table in machine.disks.iter_mut().filter_map(|disk| disk.table.as_mut()) {
        table.guid = Some(Uuid::from_u128(u128::from(random.next()) << 64 | u128::from(random.next())));
        for signature in table.partitions.iter_mut().flat_map(|part| &mut part.signatures) {
            signature.uuid = Uuid::from_u128(random.next().into()).to_string();
        }
    }
}

fn role(index: usize) -> DiskRole {
    [DiskRole::Root, DiskRole::Kept, DiskRole::Kept, DiskRole::Scratch, DiskRole::Scratch, DiskRole::Foreign][index]
}

/// Returns the disks of the installed machine, with foreign data on the unlisted disk, and the marker.
fn installed_with_marker(layout: &Layout, random: &mut Random) -> (Vec<Physical>, InstallMarker) {
    let machine = drawn_machine(random);
    let plan = install(layout, &machine, claim()).unwrap_or_else(|refusal| panic!("{refusal}"));
    let mut inventory = after(&plan, machine);
    with_own_uuids(&mut inventory, random);
    let [Operation::Run(SessionOp::WriteMarker(WriteMarker(marker)))] = operations(&plan, StageName::TargetMarker)
    else {
        panic!("{plan}")
    };
    let mut marker = marker.clone();
    for (record, disk) in marker.disks.iter_mut().zip(&inventory.disks) {
        record.guid = disk.table.as_ref().and_then(|table| table.guid).map(|guid| guid.to_string());
        if random.one_in(4) {
            // The record has only the fields that older versions recorded.
            let RecordedDisk { device, serial, wwn, size_bytes, guid, .. } = record.clone();
            *record = RecordedDisk { device, serial, wwn, size_bytes, guid, ..RecordedDisk::default() };
        }
    }
    let physical = inventory.disks.into_iter().enumerate();
    let mut physical: Vec<Physical> = physical.map(|(index, disk)| Physical { role: role(index), disk }).collect();
    foreign_content(&mut physical[5].disk, random);
    (physical, marker)
}

/// Puts foreign content on the disk. The content may look like that of the layout.
fn foreign_content(disk: &mut inventory::InventoryDisk, random: &mut Random) {
    let mut uuid = || Uuid::from_u128(random.next().into()).to_string();
    let (content, guid) = (uuid(), uuid());
    let signature = |kind: &str, label: &str| DeviceSignature {
        kind: kind.to_owned(),
        usage: "filesystem".to_owned(),
        label: label.to_owned(),
        uuid: content.clone(),
    };
    (disk.table, disk.signatures, disk.blank) = (None, Vec::new(), false);
    if random.one_in(3) {
        disk.signatures.push(signature("xfs", "tmp"));
        return;
    }
    let partition = inventory::DiskPartition {
        number: 1,
        device: Default::default(),
        start_bytes: MIB,
        size_bytes: disk.size_bytes - 2 * MIB,
        kind: PartitionType::Linux.guid().to_string(),
        signatures: vec![signature("ext4", "srv")],
        ..inventory::DiskPartition::default()
    };
    disk.table = Some(DiskTable { kind: "gpt".to_owned(), guid: guid.parse().ok(), partitions: vec![partition] });
}

/// Applies several random changes to the machine since its installation.
fn suffers(physical: &mut Vec<Physical>, random: &mut Random) {
    for _ in 0..random.below(4) {
        let (one, other) = (random.below(physical.len()), random.below(physical.len()));
        match random.below(9) {
            // The kernel names the disks in another order.
            0 | 1 => physical.swap(one, other),
            // An operator has swapped the slots of two disks.
            2 => {
                let path = physical[one].disk.by_path.clone();
                physical[one].disk.by_path = std::mem::replace(&mut physical[other].disk.by_path, path);
                physical.swap(one, other);
            }
            3 if physical.len() > 3 => drop(physical.remove(one)),
            4 => {
                let mut new = physical[one].disk.clone();
                if !PLACEHOLDERS.contains(&new.serial.as_str()) {
                    new.serial = if random.one_in(2) { String::new() } else { format!("N{one}") };
                }
                if new.wwn != ZERO_WWN {
                    new.wwn.clear();
                }
                foreign_content(&mut new, random);
                physical[one] = Physical { role: DiskRole::Foreign, disk: new };
            }
            5 => {
                let disk = &mut physical[one].disk;
                (disk.table, disk.signatures, disk.blank) = (None, Vec::new(), true);
                disk.serial = format!("B{one}");
                physical[one].role = DiskRole::Blank;
            }
            6 | 7 => physical[one].disk.serial.clear(),
            _ => {
                // A disk was copied with `dd` onto a foreign disk.
                let (table, signatures) = (physical[one].disk.table.clone(), physical[one].disk.signatures.clone());
                if physical[other].role == DiskRole::Foreign {
                    (physical[other].disk.table, physical[other].disk.signatures) = (table, signatures);
                    physical[other].role = physical[one].role;
                }
            }
        }
    }
    if random.one_in(4) {
        // Two disks behind bridges report the same serial number.
        let (one, other) = (random.below(physical.len()), random.below(physical.len()));
        physical[one].disk.serial = physical[other].disk.serial.clone();
    }
}

/// Returns the inventory that the agent reads: kernel names in the order of the disks, and the marker on the root disk.
fn seen(physical: &[Physical], marker: &InstallMarker, random: &mut Random) -> Inventory {
    let mut inventory = Inventory::default();
    // A name is skipped occasionally, as after the failure of a disk.
    let mut letters = "abcdefghij".chars().filter(|_| !random.one_in(20));
    for Physical { role, disk } in physical {
        let Some(letter) = letters.next() else { break };
        let (name, device) = (format!("sd{letter}"), format!("/dev/sd{letter}"));
        let mut disk = inventory::InventoryDisk { name: name.into(), device: device.as_str().into(), ..disk.clone() };
        for partition in disk.table.iter_mut().flat_map(|table| &mut table.partitions) {
            partition.device = disk.device.partition_path(partition.number);
        }
        if *role == DiskRole::Root && disk.table.as_ref().is_some_and(|table| table.partitions.len() == 3) {
            let marker = Some(marker.clone());
            inventory.filesystems.push(FilesystemContents {
                device: format!("{device}2").into(),
                marker,
                ..FilesystemContents::default()
            });
        }
        inventory.disks.push(disk);
    }
    inventory
}

/// Asserts that each wiped disk either may be wiped, or is the subject of a warning.
fn assert_nothing_lost(plan: &Plan, inventory: &Inventory, physical: &[Physical], seed: u64) {
    assert_eq!(plan.disks.len(), inventory.disks.len(), "seed {seed}");
    for ((disk, found), is) in plan.disks.iter().zip(&inventory.disks).zip(physical) {
        let is_wiped = match disk.verdict {
            DiskVerdict::Wipe | DiskVerdict::Make => true,
            DiskVerdict::Keep | DiskVerdict::PartlyKept | DiskVerdict::NotOurs | DiskVerdict::Volumes => false,
        };
        if !is_wiped || found.blank || matches!(is.role, DiskRole::Root | DiskRole::Scratch) {
            continue;
        }
        let said = plan.warnings.iter().any(|warning| warning.starts_with(&format!("{} ", disk.device)));
        assert!(said, "seed {seed}: {} is {:?} and silently wiped\n{plan}\n{inventory:#?}", disk.device, is.role);
    }
}

/// Makes and checks the plan for a random inventory. Returns whether the plan was accepted.
fn check_seed(seed: u64) -> bool {
    let mut random = Random(seed);
    let layout = drawn_layout(&mut random);
    let (mut physical, marker) = installed_with_marker(&layout, &mut random);
    suffers(&mut physical, &mut random);
    let mut inventory = seen(&physical, &marker, &mut random);
    let mut claim = claim();
    if random.one_in(4) {
        inventory.filesystems.clear();
        claim.waiver = Some(if random.one_in(2) { MarkerWaiver::Operator } else { MarkerWaiver::Begun });
    }
    claim.installed = Some(marker.clone());
    if claim.waiver == Some(MarkerWaiver::Begun) && random.one_in(2) {
        claim.begun_on = marker.disks.clone();
    }
    let Ok(plan) = reinstall(&layout, &inventory, claim) else { return false };
    assert_nothing_lost(&plan, &inventory, &physical, seed);
    true
}

/// Calls `check_seed` with consecutive seeds, `few` times by default. With `DROPHAMMER_FUZZ_SECONDS`, calls it for that
/// time, starting at `DROPHAMMER_FUZZ_SEED` (scripts/fuzz). Returns the number of calls.
pub(super) fn judge_seeds(few: u64, mut check_seed: impl FnMut(u64)) -> u64 {
    let number = |name: &str| std::env::var(name).ok().map(|text| text.parse::<u64>().unwrap());
    let seconds = number("DROPHAMMER_FUZZ_SECONDS").map(Duration::from_secs);
    let now = || std::time::UNIX_EPOCH.elapsed().unwrap().as_nanos() as u64;
    let seed = number("DROPHAMMER_FUZZ_SEED").unwrap_or_else(|| if seconds.is_some() { now() } else { 1 });
    println!("DROPHAMMER_FUZZ_SEED={seed}");
    let began = Instant::now();
    let mut judged = 0;
    while seconds.map_or(judged < few, |seconds| began.elapsed() < seconds) {
        check_seed(seed.wrapping_add(judged));
        judged += 1;
    }
    let a_minute = judged as f64 * 60.0 / began.elapsed().as_secs_f64();
    println!("{judged} inputs judged, {a_minute:.0} a minute");
    judged
}

#[test]
fn fuzz_inventories_whose_disks_have_moved() {
    let mut planned = 0;
    let judged = judge_seeds(FEW, |seed| planned += u64::from(check_seed(seed)));
    println!("{planned} plans, none wipes silently");
    // Both accepted and refused plans must occur.
    assert!(judged < 1000 || (planned > judged / 20 && planned < judged * 19 / 20), "{planned} of {judged}");
}
