//! State at the end of a run, with which later runs are compared: UUIDs that blkid finds, and digests of ranges on the
//! disks.

use crate::disk_files;
use crate::expectations::{ComparedRegion, RunExpectations, UnchangedObjects};
use crate::guest_facts::Facts;
use crate::host_tools::Result;
use crate::qemu_machine::Chassis;
use crate::scenario::ScenarioRun;
use std::collections::{BTreeMap, BTreeSet};

/// Names that blkid uses for the UUIDs of a filesystem or array member, of a member within its array, of a partition
/// table, and of a partition.
const UUIDS: [&str; 4] = ["UUID", "UUID_SUB", "PTUUID", "PART_ENTRY_UUID"];

/// Recorded state at the end of a run.
#[derive(Debug, Default)]
pub struct BaselineState {
    uuids: BTreeMap<String, BTreeMap<String, String>>,
    digests: BTreeMap<ComparedRegion, String>,
}

/// Returns whether the inspection ramdisk must inspect the disks after this run, because this run or a later run
/// compares UUIDs.
pub fn needs_inspection(runs: &[ScenarioRun], number: usize) -> bool {
    let asks = |unchanged: &UnchangedObjects, own: usize| own == number || unchanged.since_run == number;
    let mut wanted = collect_unchanged(runs).filter(|(_, unchanged)| !unchanged.uuids.is_empty());
    wanted.any(|(own, unchanged)| asks(unchanged, own))
}

fn collect_unchanged(runs: &[ScenarioRun]) -> impl Iterator<Item = (usize, &UnchangedObjects)> {
    runs.iter().zip(1..).filter_map(|(run, number)| Some((number, run.expect.unchanged.as_ref()?)))
}

impl BaselineState {
    /// Records everything that any of the runs will compare.
    ///
    /// # Errors
    /// Fails if a disk cannot be read.
    pub fn record_run(chassis: &Chassis, runs: &[ScenarioRun], facts: Option<&Facts>) -> Result<BaselineState> {
        let mut memory = BaselineState::default();
        let regions: BTreeSet<&ComparedRegion> =
            collect_unchanged(runs).flat_map(|(_, unchanged)| &unchanged.regions).collect();
        for region in regions {
            let disk = chassis.disks.iter().find(|disk| disk.name == region.disk);
            let disk = disk.ok_or(format!("unchanged: the machine has no disk {}", region.disk))?;
            let digest = disk_files::part_digest(&chassis.disk_file(disk), region.at_mib, region.mib)?;
            memory.digests.insert(region.clone(), digest);
        }
        for device in collect_unchanged(runs).flat_map(|(_, unchanged)| &unchanged.uuids) {
            let values = facts.and_then(|facts| facts.blkid(device)).unwrap_or_default();
            let uuids = UUIDS.iter().filter_map(|key| Some(((*key).to_owned(), (*values.get(key)?).to_owned())));
            memory.uuids.insert(device.clone(), uuids.collect());
        }
        Ok(memory)
    }
}

/// Returns the differences from the state at the end of the earlier run.
pub fn compare_with_baseline(expect: &RunExpectations, now: &BaselineState, earlier: &[BaselineState]) -> Vec<String> {
    let Some(unchanged) = &expect.unchanged else { return vec![] };
    let since = unchanged.since_run;
    let Some(then) = earlier.get(since.wrapping_sub(1)) else {
        return vec![format!("there was no run {since} before")];
    };
    let mut failures = Vec::new();
    for device in &unchanged.uuids {
        let of = |memory: &BaselineState| memory.uuids.get(device).cloned().unwrap_or_default();
        let (then, now) = (of(then), of(now));
        if then.is_empty() {
            failures.push(format!("blkid found no UUID on {device} after run {since}"));
        } else if then != now {
            failures.push(format!("UUIDs of {device}: {now:?}, after run {since} they were {then:?}"));
        }
    }
    for region in &unchanged.regions {
        if then.digests.get(region) != now.digests.get(region) {
            let ComparedRegion { disk, at_mib, mib } = region;
            failures.push(format!("{mib} MiB at {at_mib} MiB of disk {disk} have changed since run {since}"));
        }
    }
    failures
}

/// Tests equal states, changed and missing UUIDs, changed bytes, and the selection of the runs after which the disks
/// are inspected.
pub fn self_test() {
    let text = "about: x\nfirmware: bios\nlayout: x\ndisks: []\nruns:\n- expect: {}\n- expect: {}\n- expect:\n    unchanged:\n      \
                since_run: 1\n      uuids: [vda1, vdb]\n      regions: [{disk: vdb, at_mib: 1, mib: 2}]\n";
    let scenario = crate::scenario_parser::parse(
        &text.replace("[]", "[{name: vdb, bus: virtio, size_mib: 4}]"),
        "x".into(),
        ".".into(),
    );
    let scenario = scenario.expect("a scenario");
    assert_eq!([1, 2, 3].map(|number| needs_inspection(&scenario.runs, number)), [true, false, true]);

    let folder = std::env::temp_dir().join(format!("drophammer-earlier-{}", std::process::id()));
    std::fs::create_dir_all(&folder).expect("a folder");
    let chassis = Chassis::new(&scenario.machine, &folder);
    disk_files::create_disk(&folder, chassis.disks[0]).expect("a disk");
    let memory = |uuid: &str| {
        let text = format!(
            "=== facts begin inspect\n--- blkid\nDEVNAME=/dev/vda1\nUUID={uuid}\nLABEL={uuid}\nPART_ENTRY_UUID=p\n\nDEVNAME=/dev/vdb\n\
             PTUUID=t\n=== facts end inspect\n"
        );
        let facts = Facts::read(&text, "inspect").expect("facts");
        BaselineState::record_run(&chassis, &scenario.runs, Some(&facts)).expect("a memory")
    };
    let expect = &scenario.runs[2].expect;
    let then = [memory("a"), memory("b")];
    assert_eq!(compare_with_baseline(expect, &memory("a"), &then), Vec::<String>::new());
    let found = compare_with_baseline(expect, &memory("c"), &then).join("\n");
    assert!(found.contains("UUIDs of vda1") && found.contains("after run 1") && !found.contains("vdb"), "{found}");
    let nothing = BaselineState::record_run(&chassis, &scenario.runs, None).expect("a memory");
    let found = compare_with_baseline(expect, &memory("a"), &[nothing]).join("\n");
    assert!(found.contains("no UUID on vda1") && found.contains("no UUID on vdb"), "{found}");
    let path = disk_files::disk_path(&folder, chassis.disks[0]);
    let change = |at: u64| {
        use std::os::unix::fs::FileExt;
        let file = std::fs::OpenOptions::new().write(true).open(&path).expect("a disk");
        file.write_all_at(b"x", at).expect("written");
    };
    change(0);
    assert_eq!(compare_with_baseline(expect, &memory("a"), &then), Vec::<String>::new());
    change(3 * 1024 * 1024 - 1);
    let found = compare_with_baseline(expect, &memory("a"), &then);
    assert_eq!(found, ["2 MiB at 1 MiB of disk vdb have changed since run 1"]);
    std::fs::remove_dir_all(&folder).expect("removed");
}
