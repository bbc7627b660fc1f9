//! Power cuts during a reinstall, each from the same saved state. After each cut, the preserved data is compared, and
//! the next boots must end in the old or in the new system.
//!
//! By default, a test run makes a sample of the cuts; `DROPHAMMER_FULL=1` makes all of them. `DROPHAMMER_SEED` selects
//! another sample.

use crate::host_tools::{Context, Result};
use crate::saved_machine::SavedMachine;
use crate::scenario::Scenario;
use crate::survival_checks::{self, CutVerdict};
use crate::{inspection_ramdisk, scenario_run};
use serde_json::Value;
use std::collections::VecDeque;
use std::fs;
use std::path::Path;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

const SEED: u64 = 4;
/// Number of cuts between two steps in a sample.
const STEPS_IN_SAMPLE: usize = 2;
/// Number of cuts within a step in a sample.
const MOMENTS_IN_SAMPLE: usize = 2;
/// Number of cuts within a step in a full run.
const MOMENTS: usize = 20;
/// Maximum number of steps, which limits the search for the last cut.
const MAXIMUM_CUT_STEPS: usize = 60;

/// Names of the test cases, and their machines. In the second case, preserved and wiped objects share disks.
pub const CASES: [(&str, &str); 2] =
    [("powercut", include_str!("powercut.yaml")), ("powercut-shared", include_str!("powercut-shared.yaml"))];

/// Extent of a test run.
#[derive(Debug, Clone, Copy)]
pub struct TestRunSize {
    pub full: bool,
    pub machines: usize,
}

/// Moment of a power cut.
#[derive(Debug, Clone, PartialEq)]
enum CutMoment {
    /// Power cut when this number of steps was reported to the server as completed.
    AfterSteps(usize),
    /// Power cut when this step has run for this time.
    Within(String, Duration),
}

/// Installs the machine, saves its state, and makes the power cuts from the saved state. Prints a line for each cut,
/// and the totals.
///
/// # Errors
/// Lists the cuts after which a guarantee was violated.
pub fn run((name, text): (&str, &str), artifacts: &Path, work: &Path, extent: TestRunSize) -> Result<()> {
    let scenario = crate::scenario_parser::parse(text, name.to_owned(), work.to_owned())?;
    scenario_run::require_artifacts(artifacts, &scenario.machine)?;
    let folder = work.join(name);
    // The folder exists only after an earlier failure, so an error is ignored.
    let _ = fs::remove_dir_all(&folder);
    fs::create_dir_all(&folder).context(folder.display())?;
    let result = all_cuts(&scenario, artifacts, &folder, extent);
    if result.is_ok() && std::env::var_os("DROPHAMMER_KEEP").is_none() {
        return fs::remove_dir_all(&folder).context(folder.display());
    }
    result.map_err(|failures| format!("{failures}\ndisks and logs are kept in {}", folder.display()))
}

fn all_cuts(scenario: &Scenario, artifacts: &Path, folder: &Path, extent: TestRunSize) -> Result<()> {
    let chassis = scenario_run::assemble_machine(scenario, artifacts, folder)?;
    let prepare = |script: &str| inspection_ramdisk::prepare_disks(&chassis, artifacts, "run2-prepare", script);
    let start = SavedMachine::install_and_order(scenario, artifacts, &chassis, prepare)?;
    let seed = random_seed();
    let mut random = fastrand::Rng::with_seed(seed);
    println!("{name}: seed {seed}", name = scenario.name);
    let timings = read_timings(&start.state.join("serve.log"))?;
    // In the first case, only the first installation creates volumes.
    let is_repeated = |step: &str| step != "storage.lvm" || scenario.name != CASES[0].0;
    let timings: Vec<_> = timings.into_iter().filter(|(step, _)| is_repeated(step)).collect();
    let mut cuts =
        if extent.full { sample_moments(&timings, MOMENTS, &mut random) } else { sample_cuts(&timings, &mut random) };
    if extent.full {
        cuts.splice(0..0, (1..=MAXIMUM_CUT_STEPS).map(CutMoment::AfterSteps));
    }
    let verdicts = CutRunner(start).run_all(cuts, extent.machines);
    let count = |good: fn(&CutVerdict) -> bool| verdicts.iter().filter(|verdict| good(verdict)).count();
    let (intact, converged) = (count(|verdict| verdict.intact), count(|verdict| verdict.converged));
    println!("cuts: {}, kept data intact: {intact}, converged: {converged}", verdicts.len());
    let bad: Vec<String> = verdicts.iter().filter(|verdict| !verdict.is_good()).map(CutVerdict::format_line).collect();
    if bad.is_empty() { Ok(()) } else { Err(bad.join("\n")) }
}

/// Runner of power cuts that start from the same saved state.
struct CutRunner<'a>(SavedMachine<'a>);

impl CutRunner<'_> {
    /// Makes all cuts, on this number of machines at the same time. A cut after a step that does not exist has no
    /// effect, and is not counted.
    fn run_all(&self, cuts: Vec<CutMoment>, machines: usize) -> Vec<CutVerdict> {
        let queue = Mutex::new(cuts.into_iter().zip(1..).collect::<VecDeque<_>>());
        let verdicts = Mutex::new(Vec::new());
        let worker = || {
            // The lock on the queue must be released before the cut.
            let next = || lock_shared(&queue).pop_front();
            while let Some((cut, number)) = next() {
                let verdict = self.run_cut(number, &cut);
                if self.is_past_the_end(&cut, &verdict) {
                    lock_shared(&queue).retain(|(cut, _)| matches!(cut, CutMoment::Within(..)));
                } else {
                    lock_shared(&verdicts).push(verdict);
                }
            }
        };
        std::thread::scope(|scope| (0..machines).for_each(|_| drop(scope.spawn(worker))));
        verdicts.into_inner().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns whether the cut was planned after the last step. The installation was then completed without a cut.
    fn is_past_the_end(&self, cut: &CutMoment, verdict: &CutVerdict) -> bool {
        let is_done = verdict.is_good() && verdict.boots.last() == Some(&self.0.guarantees.allowed_images()[1]);
        matches!(cut, CutMoment::AfterSteps(_)) && !verdict.was_cut && is_done
    }

    /// Makes one cut, and the boots and checks that follow it. Prints its line.
    fn run_cut(&self, number: usize, cut: &CutMoment) -> CutVerdict {
        let folder = self.0.chassis.folder.join(format!("cut{number}"));
        let began = Instant::now();
        let mut verdict = CutVerdict { number, planned: format!("{cut:?}"), ..CutVerdict::default() };
        let mut since = None;
        if let Err(words) =
            self.0.boot_until_up(&folder, &mut |messages| is_now(cut, messages, &mut since), &mut verdict)
        {
            verdict.words.push(words);
        }
        if !verdict.was_cut && verdict.is_good() && !self.is_past_the_end(cut, &verdict) {
            verdict.converged = false;
            let words = "the installation ended before the power cut: see its console";
            verdict.words.push(words.to_owned());
        }
        verdict.seconds = began.elapsed().as_secs();
        println!("{}", verdict.format_line());
        if verdict.is_good() {
            // If this fails, the remaining files do no harm.
            let _ = fs::remove_dir_all(&folder);
        }
        verdict
    }
}

/// Returns a description of the cut if its moment has come. `since` is the time at which the start of the step was
/// reported.
fn is_now(cut: &CutMoment, messages: &[Value], since: &mut Option<Instant>) -> Option<String> {
    let ended = |line: &&Value| line["step"].is_string() && line["seconds"].is_number();
    match cut {
        CutMoment::AfterSteps(count) => {
            let line = messages.iter().filter(ended).nth(count - 1)?;
            Some(format!("after {}", line["step"].as_str()?))
        }
        CutMoment::Within(step, time) => {
            let of_step = |line: &&Value| line["step"] == step.as_str();
            messages.iter().find(of_step)?;
            if messages.iter().filter(of_step).any(|line| ended(&line)) {
                return Some(format!("after {step}, which was too short"));
            }
            let description = || format!("{:.2} s into {step}", time.as_secs_f64());
            (since.get_or_insert_with(Instant::now).elapsed() >= *time).then(description)
        }
    }
}

/// Returns the seed of all random choices, including the choice of crash states.
pub fn random_seed() -> u64 {
    std::env::var("DROPHAMMER_SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or(SEED)
}

fn lock_shared<T>(shared: &Mutex<T>) -> MutexGuard<'_, T> {
    shared.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Returns the duration of each step in the last installation in a server's log, in seconds.
fn read_timings(log: &Path) -> Result<Vec<(String, f64)>> {
    let text = fs::read_to_string(log).context(log.display())?;
    let mut lines = text.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    let report = lines.rfind(|line| line["report"]["success"] == true).ok_or("no report of the installation")?;
    let steps = report["report"]["timings"].as_array().cloned().unwrap_or_default();
    Ok(steps.iter().filter_map(|step| Some((step["step"].as_str()?.to_owned(), step["seconds"].as_f64()?))).collect())
}

/// Selects random moments within steps. Longer steps get more moments.
fn sample_moments(timings: &[(String, f64)], count: usize, random: &mut fastrand::Rng) -> Vec<CutMoment> {
    let is_long = |name: &str| name.starts_with("storage.") || name == "image.burn" || name == "target.installer";
    let long: Vec<&(String, f64)> = timings.iter().filter(|(name, _)| is_long(name)).collect();
    // The image transfer takes most of the time. Because of the square root, other steps get moments too.
    let weight = |seconds: f64| seconds.max(0.01).sqrt();
    let whole: f64 = long.iter().map(|(_, seconds)| weight(*seconds)).sum();
    let moment = |_| {
        let mut offset = random.f64() * whole;
        let fits = |(_, seconds): &&&(String, f64)| {
            offset -= weight(*seconds);
            offset < 0.0
        };
        let (step, seconds) = long.iter().find(fits).or(long.last())?;
        Some(CutMoment::Within(step.clone(), Duration::from_secs_f64(random.f64() * seconds)))
    };
    (0..count).filter_map(moment).collect()
}

/// Selects a sample: cuts after steps, and cuts within different steps.
fn sample_cuts(timings: &[(String, f64)], random: &mut fastrand::Rng) -> Vec<CutMoment> {
    let mut steps: Vec<usize> = (1..=timings.len().max(STEPS_IN_SAMPLE)).collect();
    random.shuffle(&mut steps);
    let mut cuts: Vec<CutMoment> = steps.into_iter().take(STEPS_IN_SAMPLE).map(CutMoment::AfterSteps).collect();
    let mut others: Vec<CutMoment> = Vec::new();
    for moment in sample_moments(timings, MOMENTS, random) {
        let is_same = |other: &CutMoment| matches!((other, &moment), (CutMoment::Within(a, _), CutMoment::Within(b, _)) if a == b);
        if !others.iter().any(is_same) && others.len() < MOMENTS_IN_SAMPLE {
            others.push(moment);
        }
    }
    cuts.extend(others);
    cuts
}

/// Tests that moments are selected from existing steps, that equal seeds select equal moments, and that a cut occurs
/// exactly when it is due.
pub fn self_test() {
    survival_checks::self_test();
    for (name, text) in CASES {
        let scenario = crate::scenario_parser::parse(text, name.into(), ".".into()).expect(name);
        assert!(scenario.runs[0].reinstall.is_none() && scenario.runs[1].reinstall.is_some());
    }

    let timings = [("storage.wipe", 1.0), ("image.burn", 20.0), ("report.final", 9.0)];
    let timings: Vec<(String, f64)> = timings.iter().map(|(step, seconds)| ((*step).to_owned(), *seconds)).collect();
    let selected = sample_moments(&timings, MOMENTS, &mut fastrand::Rng::with_seed(1));
    assert_eq!(selected, sample_moments(&timings, MOMENTS, &mut fastrand::Rng::with_seed(1)));
    assert_eq!(selected.len(), MOMENTS);
    for step in ["storage.wipe", "image.burn"] {
        assert!(
            selected.iter().any(|cut| matches!(cut, CutMoment::Within(name, _) if name == step)),
            "{step}: {selected:?}"
        );
    }
    assert!(!selected.iter().any(|cut| matches!(cut, CutMoment::Within(name, _) if name == "report.final")));
    assert_eq!(sample_cuts(&timings, &mut fastrand::Rng::with_seed(1)).len(), STEPS_IN_SAMPLE + MOMENTS_IN_SAMPLE);

    let line =
        |step: &str, seconds: Value| serde_json::json!({"event": "Installing", "step": step, "seconds": seconds});
    let messages = [line("a", Value::Null), line("a", 0.5.into()), line("b", Value::Null), line("b", 0.1.into())];
    let now = |cut: CutMoment, messages: &[Value]| is_now(&cut, messages, &mut None);
    assert_eq!(now(CutMoment::AfterSteps(2), &messages[..3]), None);
    assert_eq!(now(CutMoment::AfterSteps(2), &messages).as_deref(), Some("after b"));
    let within = |step: &str, seconds| CutMoment::Within(step.to_owned(), Duration::from_secs(seconds));
    assert_eq!(now(within("b", 0), &messages[..2]), None);
    assert_eq!(now(within("b", 60), &messages[..3]), None);
    assert_eq!(now(within("b", 0), &messages[..3]).as_deref(), Some("0.00 s into b"));
    assert_eq!(now(within("b", 60), &messages).as_deref(), Some("after b, which was too short"));
}
