//! The test cases `witness` and `witness-shared`. From the write log of one reinstall with preserved data, it
//! reconstructs the disks as a power cut at any moment could have left them. It checks these states without a
//! machine, and also boots a few of them.
//!
//! There are two types of states: the contents of all disks at each flush of a disk, and random states, in which any
//! subset of the writes in flight has arrived. `DROPHAMMER_SEED` selects other random states, `DROPHAMMER_STATES` sets
//! their number, and `DROPHAMMER_BOOTS` the number of booted states. `DROPHAMMER_RECORD` is the folder of an earlier
//! run, whose record is checked again.

use crate::agent_plan_after_crash::remove_inspection_uses;
use crate::crash_record::{self, ReinstallPhase, ReinstallRecord};
use crate::crash_state_checks::{CrashStateChecker, StateFinding, parse_extents};
use crate::crash_state_selection::{
    CrashState, apply_state, compose_state, describe_state, find_step, list_phases, sample_states, select_states,
};
use crate::crash_states::{self, ReplayedDisk, copy_part};
use crate::host_tools::{Context, Result, run_tool};
use crate::qemu_machine::{Chassis, FAST_BOOT};
use crate::saved_machine::SavedMachine;
use crate::scenario::Scenario;
use crate::survival_checks::{CutVerdict, SurvivalGuarantees};
use crate::{powercut, scenario_run};
use std::collections::BTreeMap;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Instant;

/// Names of the test cases, and their machines. In the second case, preserved and wiped partitions share a disk.
pub const CASES: [(&str, &str); 2] =
    [("witness", include_str!("crash.yaml")), ("witness-shared", include_str!("crash-shared.yaml"))];

const RANDOM_STATES: usize = 2000;
const BOOTS: usize = 12;
/// Maximum number of states with violations that are printed.
const MAX_PRINTED: usize = 40;

/// Numbers of checked states: all states; states with intact data in which no incomplete system boots; and states with
/// a safe next plan.
#[derive(Default)]
struct StateTally {
    states: usize,
    intact: usize,
    safe: usize,
    bad: Vec<String>,
    next: BTreeMap<String, usize>,
}

/// Records a reinstall, reconstructs and checks states of its disks, boots some of them, and prints the numbers.
///
/// # Errors
/// Lists the states that violate a guarantee.
pub fn run((name, text): (&str, &str), artifacts: &Path, work: &Path) -> Result<()> {
    let scenario = crate::scenario_parser::parse(text, name.to_owned(), work.to_owned())?;
    scenario_run::require_artifacts(artifacts, &scenario.machine)?;
    let preserved = std::env::var_os("DROPHAMMER_RECORD").map(PathBuf::from);
    let folder = preserved.clone().unwrap_or_else(|| work.join(name));
    if preserved.is_none() {
        // The folder exists only after an earlier failure, so an error is ignored.
        let _ = fs::remove_dir_all(&folder);
        fs::create_dir_all(&folder).context(folder.display())?;
    }
    let result = all_states(&scenario, artifacts, &folder, preserved.is_some());
    if result.is_ok() && preserved.is_none() && std::env::var_os("DROPHAMMER_KEEP").is_none() {
        return fs::remove_dir_all(&folder).context(folder.display());
    }
    result.map_err(|failures| format!("{failures}\ndisks and logs are kept in {}", folder.display()))
}

fn all_states(scenario: &Scenario, artifacts: &Path, folder: &Path, is_recorded: bool) -> Result<()> {
    let record = if is_recorded { ReinstallRecord::read(folder)? } else { record_case(scenario, artifacts, folder)? };
    let seed = powercut::random_seed();
    let number = |variable: &str, or| std::env::var(variable).ok().and_then(|text| text.parse().ok()).unwrap_or(or);
    let count = number("DROPHAMMER_STATES", RANDOM_STATES);
    let picks = select_states(&record, &open_disks(&record, folder)?, count, &mut fastrand::Rng::with_seed(seed));
    let boots = sample_states(&picks, &record.moments, number("DROPHAMMER_BOOTS", BOOTS));
    println!("witness: seed {seed}, {} moments, {} states", record.moments.len(), picks.len());
    let scratch = folder.join("states");
    let _ = fs::remove_dir_all(&scratch);
    fs::create_dir_all(&scratch).context(scratch.display())?;
    let began = Instant::now();
    let mut counts = check_all_states(&record, folder, &picks, &boots, &scratch)?;
    println!("witness: checked in {} s", began.elapsed().as_secs());
    counts.next.iter().for_each(|(next, count)| println!("witness: in {count} states the agent would {next}"));
    let mut converged = 0;
    for (number, pick) in boots.iter().enumerate() {
        let verdict = boot_state(&record, scenario, artifacts, folder, &boot_folder(&scratch, number), number);
        println!("{}", verdict.format_line());
        converged += usize::from(verdict.is_good());
        if !verdict.is_good() {
            counts.bad.push(format!("{}: {}", describe_state(&record, pick), verdict.format_line()));
        }
    }
    println!(
        "states: {}, kept data intact: {}, next plan safe: {}, booted: {}, converged: {converged}",
        counts.states,
        counts.intact,
        counts.safe,
        boots.len()
    );
    if counts.bad.is_empty() {
        return Ok(());
    }
    let more = counts.bad.len().saturating_sub(MAX_PRINTED);
    counts.bad.truncate(MAX_PRINTED);
    Err(format!("{}\nand {more} more", counts.bad.join("\n")))
}

/// Installs the machine, writes data to the preserved disks, and logs all writes of one reinstall.
fn record_case(scenario: &Scenario, artifacts: &Path, folder: &Path) -> Result<ReinstallRecord> {
    let chassis = scenario_run::assemble_machine(scenario, artifacts, folder)?;
    let mut output = String::new();
    let start = SavedMachine::install_and_order(scenario, artifacts, &chassis, |script| {
        output = crash_record::prepare_disks(&chassis, artifacts, script)?;
        Ok(output.clone())
    })?;
    crash_record::record_reinstall(&start, output)
}

/// Returns all disks with their contents before the reinstall.
fn open_disks(record: &ReinstallRecord, folder: &Path) -> Result<Vec<ReplayedDisk>> {
    let open = |name: &String| {
        ReplayedDisk::open(name, &ReinstallRecord::base_path(folder, name), &ReinstallRecord::log_path(folder, name))
    };
    record.disks.iter().map(open).collect()
}

fn check_all_states(
    record: &ReinstallRecord,
    folder: &Path,
    picks: &[CrashState],
    boots: &[CrashState],
    scratch: &Path,
) -> Result<StateTally> {
    let base = remove_inspection_uses(record.inventory.clone());
    let mut disks = open_disks(record, folder)?;
    let mut checker = CrashStateChecker::new(record, &base, &disks, scratch)?;
    checker.record_root(&disks, false)?;
    record_final_root(&mut checker, record, folder, scratch)?;
    let (mut counts, preserved) = (StateTally::default(), parse_extents(&record.prepared)?);
    for (number, pick) in picks.iter().enumerate() {
        let made = compose_state(record, &disks, pick, checker.wiped(), &preserved);
        let phases = list_phases(record, &disks, &made, pick, checker.wiped());
        let undos = apply_state(record, &mut disks, pick, &made)?;
        let finding = checker.check_state(&disks, &phases, &find_step(record, pick))?;
        if let Some(boot) = boots.iter().position(|boot| boot == pick) {
            save_state(&disks, *phases.last().unwrap_or(&ReinstallPhase::Begun), &boot_folder(scratch, boot))?;
        }
        for (disk, undo) in disks.iter_mut().zip(undos) {
            disk.restore_contents(undo)?;
        }
        let printed = counts.bad.len();
        counts.add_finding(finding, || describe_state(record, pick));
        if printed < MAX_PRINTED {
            // Violations are printed immediately, because thousands of states may remain, which take minutes.
            counts.bad[printed..].iter().for_each(|line| println!("{line}"));
        }
        if number % 200 == 199 {
            println!("witness: {} of {} states", number + 1, picks.len());
        }
    }
    let (plans, filesystems) = checker.count_results();
    println!("witness: {plans} different plans, {filesystems} different kept filesystems");
    Ok(counts)
}

impl StateTally {
    fn add_finding(&mut self, finding: StateFinding, place: impl Fn() -> String) {
        self.states += 1;
        self.intact += usize::from(finding.data.is_empty());
        self.safe += usize::from(finding.plan.is_empty());
        finding.next.into_iter().for_each(|next| *self.next.entry(next).or_default() += 1);
        let words = finding.data.into_iter().chain(finding.plan);
        self.bad.extend(words.map(|words| format!("{}: {words}", place())));
    }
}

fn boot_folder(scratch: &Path, number: usize) -> PathBuf {
    scratch.join(format!("boot{}", number + 1))
}

/// Saves the disks as files, together with the phase of the reinstall, which selects the folder of the server for these
/// disks.
fn save_state(disks: &[ReplayedDisk], phase: ReinstallPhase, folder: &Path) -> Result<()> {
    fs::create_dir_all(folder).context(folder.display())?;
    for disk in disks {
        let path = folder.join(format!("{}.raw", disk.name));
        let file = File::create(&path).context(path.display())?;
        let length = disk.file.metadata().context(&disk.name)?.len();
        file.set_len(length).context(path.display())?;
        copy_part(&disk.file, &file, 0, length).context(path.display())?;
    }
    let phase = serde_json::to_vec(&phase).context("the phase")?;
    crate::host_tools::write(&folder.join("phase"), phase)
}

/// Boots a machine with these disks, several times if necessary, until a system is running.
fn boot_state(
    record: &ReinstallRecord,
    scenario: &Scenario,
    artifacts: &Path,
    all: &Path,
    folder: &Path,
    number: usize,
) -> CutVerdict {
    let began = Instant::now();
    let mut verdict = CutVerdict { number: number + 1, was_cut: true, ..CutVerdict::default() };
    let mut boot = || {
        let phase: ReinstallPhase =
            serde_json::from_slice(&fs::read(folder.join("phase")).context("the phase")?).context("the phase")?;
        verdict.boots.push(format!("{phase:?}"));
        let (uuid, mac) = (record.uuid.clone(), record.mac.clone());
        let chassis = Chassis { uuid, mac, ..Chassis::new(&scenario.machine, folder) };
        let [old, new] = record.images.clone();
        let guarantees = SurvivalGuarantees::read(&record.prepared, old, new)?;
        let (state, cmdline) = (phase.server_folder(all), FAST_BOOT.to_owned());
        let start = SavedMachine { artifacts, chassis: &chassis, state, cmdline, guarantees };
        start.boot_until_up(&folder.join("boots"), &mut |_| None, &mut verdict)
    };
    if let Err(words) = boot() {
        verdict.words.push(words);
    }
    verdict.seconds = began.elapsed().as_secs();
    if verdict.is_good() {
        // If this fails, the remaining files do no harm.
        let _ = fs::remove_dir_all(folder);
    }
    verdict
}

/// Records the root filesystem at the end of the reinstall as that of the new system. Also checks that the
/// reconstructed disks equal the disks that the machine has left.
fn record_final_root(
    checker: &mut CrashStateChecker,
    record: &ReinstallRecord,
    folder: &Path,
    scratch: &Path,
) -> Result<()> {
    let mut disks = open_disks(record, folder)?;
    let last = record.moments.last().ok_or("the record has no moments")?;
    for (disk, count) in disks.iter_mut().zip(&last.counts) {
        disk.advance_to(disk.count_records_before(*count))?;
    }
    checker.record_root(&disks, true)?;
    for disk in &mut disks {
        disk.advance_to(disk.records.len())?;
        let raw = scratch.join("end.raw");
        let (from, to) = (ReinstallRecord::end_path(folder, &disk.name), raw.to_string_lossy().into_owned());
        run_tool(&["qemu-img", "convert", "-U", "-O", "raw", &from.to_string_lossy(), &to], Stdio::null())?;
        let real = File::open(&raw).context(raw.display())?;
        if let Some(place) = crash_states::find_difference(&disk.file, &real).context(raw.display())? {
            return Err(format!("{}: the reconstructed disk differs from byte {place} on", disk.name));
        }
    }
    fs::remove_file(scratch.join("end.raw")).context(scratch.display())
}

/// Tests that the scenarios of these cases can be parsed, and that parse errors contain a location.
pub fn self_test() {
    for (name, text) in CASES {
        let scenario = crate::scenario_parser::parse(text, name.into(), ".".into()).expect(name);
        assert!(scenario.runs[0].reinstall.is_none() && scenario.runs[1].reinstall.is_some());
    }
    let mut counts = StateTally::default();
    counts
        .add_finding(StateFinding { next: vec!["refuse".to_owned()], ..StateFinding::default() }, || "here".to_owned());
    let data = vec!["lost".to_owned()];
    counts.add_finding(StateFinding { data, plan: vec!["wipes".to_owned()], next: vec!["refuse".to_owned()] }, || {
        "there".to_owned()
    });
    assert_eq!((counts.states, counts.intact, counts.safe), (2, 1, 1));
    assert_eq!(counts.bad, ["there: lost", "there: wipes"]);
    assert_eq!(counts.next, BTreeMap::from([("refuse".to_owned(), 2)]));
}
