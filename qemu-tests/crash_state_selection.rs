//! Selection of the states that are reconstructed from a record, and their composition.

use crate::crash_record::{RecordedMoment, ReinstallPhase, ReinstallRecord};
use crate::crash_state_checks::PreservedExtent;
use crate::crash_states::{self, ArrivedPart, PreviousContents, RandomStateParameters, ReplayedDisk};
use crate::host_tools::Result;

/// Assumed sector size of the wiped disks, outside of preserved filesystems, in bytes.
const SECTOR_BYTES: u64 = 512;
/// Assumed sector size of preserved filesystems and of the other disks, in bytes. Every filesystem expects that a block
/// of this size is written atomically.
const BLOCK_BYTES: u64 = 4096;
/// Probabilities with which a write in flight arrives.
const ARRIVAL_PROBABILITIES: [f64; 3] = [0.1, 0.5, 0.9];

/// Crash state: the index of the last recorded moment before it, and its origin.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct CrashState {
    pub moment: usize,
    pub kind: CrashStateOrigin,
}

/// Origin of a crash state.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum CrashStateOrigin {
    /// State after the entry with the index `record` in the log of this disk. The entry is a flush.
    Flush { disk: usize, record: usize },
    /// Random state that is derived from this seed.
    Random(u64),
}

/// Composition of a state. All writes before the last flush have arrived. `parts` lists, for each disk, which parts of
/// later writes have arrived as well.
pub struct StateComposition {
    parts: Vec<Vec<ArrivedPart>>,
    /// Number of records in the log before the state, by disk.
    targets: Vec<usize>,
}

/// Returns a state for each flush and a number of random states, in the order of their moments.
pub fn select_states(
    record: &ReinstallRecord,
    disks: &[ReplayedDisk],
    count: usize,
    random: &mut fastrand::Rng,
) -> Vec<CrashState> {
    let moments = &record.moments;
    let last = moments.last().map(|moment| moment.counts.clone()).unwrap_or_default();
    let mut picks = Vec::new();
    for (number, disk) in disks.iter().enumerate() {
        let flushes = disk.records.iter().enumerate().filter(|(_, it)| it.is_flush && it.number < last[number]);
        for (index, flush) in flushes {
            // A flush without writes since the previous flush does not create a new state.
            if index > 0 && !disk.records[index - 1].is_flush {
                let moment = moments.partition_point(|moment| moment.counts[number] <= flush.number);
                let kind = CrashStateOrigin::Flush { disk: number, record: index };
                picks.push(CrashState { moment: moment.saturating_sub(1), kind });
            }
        }
    }
    // Moments with many writes are selected more often, because they have many possible states.
    let total = |moment: &RecordedMoment| moment.counts.iter().sum::<u64>();
    let end = moments.last().map(total).unwrap_or_default();
    for _ in 0..count {
        let write = random.u64(0..end.max(1));
        let moment = moments.partition_point(|moment| total(moment) <= write).saturating_sub(1);
        picks.push(CrashState { moment, kind: CrashStateOrigin::Random(random.u64(..)) });
    }
    // A wipe makes few writes, but the order of all of them matters, so additional states are selected.
    for (moment, _) in moments.iter().enumerate().filter(|(_, moment)| moment.step == "storage.wipe") {
        picks.extend((0..count / 100).map(|_| CrashState { moment, kind: CrashStateOrigin::Random(random.u64(..)) }));
    }
    picks.sort_unstable();
    picks
}

/// Selects random states that belong to as many different steps as possible.
pub fn sample_states(picks: &[CrashState], moments: &[RecordedMoment], count: usize) -> Vec<CrashState> {
    let mut steps: Vec<(&str, Vec<CrashState>)> = Vec::new();
    for pick in picks.iter().filter(|pick| matches!(pick.kind, CrashStateOrigin::Random(_))) {
        let step = moments[pick.moment].step.as_str();
        match steps.iter_mut().find(|(name, _)| *name == step) {
            Some((_, own)) => own.push(*pick),
            None => steps.push((step, vec![*pick])),
        }
    }
    let mut selected = Vec::new();
    let rounds = steps.iter().map(|(_, own)| own.len()).max().unwrap_or_default();
    for round in 0..rounds {
        for (_, own) in &steps {
            // States from the middle of a step are preferred, because nothing may have been written at its start.
            if round < own.len() && selected.len() < count {
                selected.push(own[(own.len() / 2 + round) % own.len()]);
            }
        }
    }
    selected.sort_unstable();
    selected
}

/// Returns the step of a state. It is the step that the console showed at the next moment, because the console output
/// is delayed.
pub fn find_step(record: &ReinstallRecord, pick: &CrashState) -> String {
    let next = record.moments.get(pick.moment + 1).unwrap_or(&record.moments[pick.moment]);
    next.step.clone()
}

/// Describes the moment of a state, for messages.
pub fn describe_state(record: &ReinstallRecord, pick: &CrashState) -> String {
    let RecordedMoment { step, counts, .. } = &record.moments[pick.moment];
    let what = match pick.kind {
        CrashStateOrigin::Flush { disk, record: index } => format!("flush {index} of {}", record.disks[disk]),
        CrashStateOrigin::Random(seed) => format!("random state {seed:x}"),
    };
    let step = if step.is_empty() { "before the first step" } else { step };
    format!("{step}, moment {}, {what}, logs {counts:?}", pick.moment)
}

/// Determines which writes have arrived in a state.
pub fn compose_state(
    record: &ReinstallRecord,
    disks: &[ReplayedDisk],
    pick: &CrashState,
    wiped: &[String],
    preserved: &[PreservedExtent],
) -> StateComposition {
    let now = &record.moments[pick.moment].counts;
    let next = record.moments.get(pick.moment + 1).map_or(now, |next| &next.counts);
    let mut random = fastrand::Rng::with_seed(if let CrashStateOrigin::Random(seed) = pick.kind { seed } else { 0 });
    let chance = ARRIVAL_PROBABILITIES[random.usize(0..ARRIVAL_PROBABILITIES.len())];
    let (mut parts, mut targets) = (Vec::new(), Vec::new());
    for (number, disk) in disks.iter().enumerate() {
        let from = disk.find_last_flush(disk.count_records_before(now[number]));
        let target = match pick.kind {
            CrashStateOrigin::Flush { disk: own, record } if own == number => record + 1,
            CrashStateOrigin::Flush { .. } => disk.count_records_before(now[number]),
            CrashStateOrigin::Random(_) => {
                random.usize(disk.count_records_before(now[number])..=disk.count_records_before(next[number]))
            }
        };
        let tear_bytes = |start| find_tear_bytes(wiped, preserved, &disk.name, start);
        let lot = RandomStateParameters { chance, tear_bytes: &tear_bytes };
        let flushed = disk.find_last_flush(target).max(from);
        let mut own = crash_states::take_all_parts(disk, from, flushed);
        own.extend(match pick.kind {
            CrashStateOrigin::Flush { .. } => crash_states::take_all_parts(disk, flushed, target),
            CrashStateOrigin::Random(_) => crash_states::take_random_parts(disk, flushed, target, lot, &mut random),
        });
        parts.push(own);
        targets.push(target);
    }
    StateComposition { parts, targets }
}

/// Returns the size at whose multiples a write at this offset of the disk may be torn, in bytes.
fn find_tear_bytes(wiped: &[String], preserved: &[PreservedExtent], disk: &str, start: u64) -> u64 {
    let contains = |extent: &PreservedExtent| (extent.start..extent.start + extent.length).contains(&start);
    let is_preserved = preserved.iter().any(|extent| extent.disk == disk && contains(extent));
    if !is_preserved && wiped.iter().any(|wiped| wiped == disk) { SECTOR_BYTES } else { BLOCK_BYTES }
}

/// Returns the phases in which the server may have been. The agent writes to wiped disks only after the point of no
/// return was acknowledged, and reports success only after everything was written.
pub fn list_phases(
    record: &ReinstallRecord,
    disks: &[ReplayedDisk],
    made: &StateComposition,
    pick: &CrashState,
    wiped: &[String],
) -> Vec<ReinstallPhase> {
    let now = &record.moments[pick.moment];
    let next = record.moments.get(pick.moment + 1).unwrap_or(now);
    let end = &record.moments[record.moments.len() - 1].counts;
    let writes =
        |disk: &ReplayedDisk, from: usize, to: usize| disk.records[from..to.max(from)].iter().any(|it| it.length > 0);
    let all = || disks.iter().zip(&made.targets);
    let has_begun = all().any(|(disk, target)| wiped.contains(&disk.name) && writes(disk, 0, *target));
    let has_more = all().zip(end).any(|((disk, target), end)| writes(disk, *target, disk.count_records_before(*end)));
    let mut phases: Vec<ReinstallPhase> = now.phases.iter().chain(&next.phases).copied().collect();
    phases.sort_unstable();
    phases.dedup();
    let cannot_be = |phase| has_begun && phase == ReinstallPhase::Ordered || has_more && phase == ReinstallPhase::Done;
    phases.retain(|phase| !cannot_be(*phase));
    if phases.is_empty() { vec![ReinstallPhase::Begun] } else { phases }
}

/// Brings the disks into this state. Returns the contents that the parts of writes have replaced.
///
/// # Errors
/// Fails if a file cannot be read or written.
pub fn apply_state(
    record: &ReinstallRecord,
    disks: &mut [ReplayedDisk],
    pick: &CrashState,
    made: &StateComposition,
) -> Result<Vec<PreviousContents>> {
    let counts = &record.moments[pick.moment].counts;
    let mut previous = Vec::new();
    for ((disk, count), parts) in disks.iter_mut().zip(counts).zip(&made.parts) {
        disk.advance_to(disk.find_last_flush(disk.count_records_before(*count)))?;
        previous.push(disk.apply_parts(parts)?);
    }
    Ok(previous)
}

/// Tests that states are selected and composed as the logs and moments permit, and that the phases of the server match
/// the disks.
pub fn self_test() {
    let folder = crate::write_log::test_folder("crash-picks");
    let output = "extent: vdb 512 1024 ext4 /srv\nproof: /srv/a 1\n";
    let (mut record, mut disks) = crate::crash_state_checks::test_record(&folder, output);
    let moment =
        |step: &str, phases, counts: [u64; 2]| RecordedMoment { step: step.to_owned(), phases, counts: counts.into() };
    record.moments = vec![
        moment("", [ReinstallPhase::Ordered, ReinstallPhase::Ordered], [0, 0]),
        moment("report.begin", [ReinstallPhase::Ordered, ReinstallPhase::Begun], [0, 0]),
        moment("storage.wipe", [ReinstallPhase::Begun, ReinstallPhase::Begun], [4, 1]),
        moment("image.burn", [ReinstallPhase::Begun, ReinstallPhase::Begun], [6, 3]),
        moment("boot.kexec", [ReinstallPhase::Begun, ReinstallPhase::Done], [7, 7]),
    ];
    let picks = self::select_states(&record, &disks, 2000, &mut fastrand::Rng::with_seed(1));
    assert_eq!(
        picks,
        self::select_states(&record, &disks, 2000, &mut fastrand::Rng::with_seed(1)),
        "the same for the same seed"
    );
    let flushes: Vec<CrashState> =
        picks.iter().filter(|pick| matches!(pick.kind, CrashStateOrigin::Flush { .. })).copied().collect();
    let flush = |moment, disk, record| CrashState { moment, kind: CrashStateOrigin::Flush { disk, record } };
    assert_eq!(flushes, [flush(1, 0, 2), flush(2, 1, 2), flush(3, 0, 6), flush(3, 1, 6)]);
    // One of the moments is during a wipe.
    assert_eq!(picks.len(), 2000 + 20 + flushes.len());
    let steps: Vec<String> =
        sample_states(&picks, &record.moments, 3).iter().map(|pick| find_step(&record, pick)).collect();
    assert_eq!(steps, ["storage.wipe", "image.burn", "boot.kexec"]);
    test_state_composition(&record, &mut disks, &picks);
    phases_fit(&record, &disks);
    let preserved = crate::crash_state_checks::parse_extents("extent: vda 8192 4096 ext4 /srv\n").expect("an extent");
    for (disk, start, expected) in [("vda", 0, 512), ("vda", 8192, 4096), ("vda", 12288, 512), ("vdb", 0, 4096)] {
        assert_eq!(find_tear_bytes(&["vda".to_owned()], &preserved, disk, start), expected, "{disk} {start}");
    }
    std::fs::remove_dir_all(&folder).expect("removed");
}

/// Tests that each state contains everything that was flushed and nothing that was written later, and that the disks
/// can be restored.
fn test_state_composition(record: &ReinstallRecord, disks: &mut [ReplayedDisk], picks: &[CrashState]) {
    let mut different = std::collections::BTreeSet::new();
    for pick in picks {
        let made = compose_state(record, disks, pick, &["vda".to_owned()], &[]);
        let next = &record.moments[(pick.moment + 1).min(4)].counts;
        for ((disk, target), next) in disks.iter().zip(&made.targets).zip(next) {
            assert!(*target <= disk.count_records_before(*next), "{pick:?}");
        }
        if let CrashStateOrigin::Flush { disk, record } = pick.kind {
            assert_eq!(made.targets[disk], record + 1);
        }
        let previous = apply_state(record, disks, pick, &made).expect("applied");
        let first: Vec<u8> = disks.iter().map(|disk| disk.now_and_before(0, 1).expect("read").0[0]).collect();
        for ((disk, target), first) in disks.iter().zip(&made.targets).zip(first) {
            // The third record flushes the first write. A later discard may or may not have arrived; only the last
            // flush guarantees it.
            let allowed: &[u8] = match disk.find_last_flush(*target) {
                0 => b"oa",
                3 => b"a\0",
                _ => b"\0",
            };
            assert!(allowed.contains(&first), "{pick:?}: {first}");
        }
        different.insert(format!("{:?}", disks.iter().map(ReplayedDisk::state_key).collect::<Vec<_>>()));
        for (disk, undo) in disks.iter_mut().zip(previous) {
            disk.restore_contents(undo).expect("undo the writes");
        }
    }
    assert!(different.len() > 20, "{}", different.len());
}

fn phases_fit(record: &ReinstallRecord, disks: &[ReplayedDisk]) {
    let wiped = ["vda".to_owned()];
    let at = |moment, targets: [usize; 2]| {
        let made = StateComposition { parts: Vec::new(), targets: targets.into() };
        list_phases(record, disks, &made, &CrashState { moment, kind: CrashStateOrigin::Random(0) }, &wiped)
    };
    assert_eq!(at(0, [0, 0]), [ReinstallPhase::Ordered, ReinstallPhase::Begun]);
    assert_eq!(at(1, [0, 0]), [ReinstallPhase::Ordered, ReinstallPhase::Begun]);
    assert_eq!(at(1, [1, 0]), [ReinstallPhase::Begun], "a wiped disk was written");
    assert_eq!(at(1, [0, 1]), [ReinstallPhase::Ordered, ReinstallPhase::Begun]);
    assert_eq!(at(3, [8, 7]), [ReinstallPhase::Begun], "not all is written");
    assert_eq!(at(3, [8, 8]), [ReinstallPhase::Begun, ReinstallPhase::Done]);
}
