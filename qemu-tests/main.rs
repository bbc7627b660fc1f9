//! Integration tests that install complete machines in QEMU. Each file in `qemu-tests/scenarios` is a test case;
//! `powercut`, `powercut-shared`, `witness` and `witness-shared` are further cases.
//!
//! `cargo test --test qemu -- [FILTER] [--scenarios DIR] [--list]`. The cases need packages that root installs, a
//! ramdisk, and the tiny OS. They are therefore ignored, unless `scripts/test` (`DROPHAMMER_QEMU=1`; with
//! `DROPHAMMER_FULL=1` also the long ones), `--ignored` or `--scenarios` enables them. The tests of the harness itself
//! run in each `cargo test`.

mod agent_plan_after_crash;
mod console_input;
mod crash_consistency_test;
mod crash_record;
mod crash_state_checks;
mod crash_state_selection;
mod crash_states;
mod discovered_layout;
mod disk_files;
mod disks_unused_by_system;
mod expectation_check;
mod expectations;
mod faulty_responses;
mod file_control_plane;
mod guest_facts;
mod host_tools;
mod image_creation;
mod inspection_ramdisk;
mod network_boot;
mod phase_times;
mod powercut;
mod proxy;
mod qemu_disks;
mod qemu_machine;
mod qemu_monitor;
mod ramdisk_archives;
mod reconstructed_filesystem;
mod registry;
mod reinstall;
mod reinstall_order_options;
mod run_boots;
mod run_end_state;
mod run_setup;
mod saved_machine;
mod scenario;
mod scenario_image;
mod scenario_parser;
mod scenario_rules;
mod scenario_run;
mod server;
mod storage_comparison;
mod survival_checks;
mod tar_members;
mod time_budget;
mod tls_endpoints;
mod tpm;
mod vlan_switch_port;
mod volume_command;
mod write_attribution;
mod write_log;
mod write_witness;

use libtest_mimic::{Arguments, Completion, Failed, Trial};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use time_budget::TimeBudget;

/// Number of VMs that run at the same time. The host has two cores, so a third VM would only wait.
const VMS_AT_ONCE: usize = 2;
/// Assumed duration of the sample of power cuts, as a number of runs of a scenario.
const RUNS_OF_A_SAMPLE: usize = 9;

/// Tests of the harness itself, with the names of their modules.
const SELF_TESTS: [(&str, fn()); 37] = [
    ("guest_facts", guest_facts::self_test),
    ("expectation_check", expectation_check::self_test),
    ("storage_comparison", storage_comparison::self_test),
    ("qemu_machine", qemu_machine::self_test),
    ("disk_files", disk_files::self_test),
    ("proxy", proxy::self_test),
    ("registry", registry::self_test),
    ("reinstall", reinstall::self_test),
    ("powercut", powercut::self_test),
    ("server", server::self_test),
    ("volume_command", volume_command::self_test),
    ("phase_times", phase_times::self_test),
    ("tls_endpoints", tls_endpoints::self_test),
    ("vlan_switch_port", vlan_switch_port::self_test),
    ("console_input", console_input::self_test),
    ("scenario_parser", scenario_parser::self_test),
    ("scenario_rules", scenario_rules::self_test),
    ("file_control_plane", file_control_plane::self_test),
    ("qemu_disks", qemu_disks::self_test),
    ("qemu_monitor", qemu_monitor::self_test),
    ("ramdisk_archives", ramdisk_archives::self_test),
    ("inspection_ramdisk", inspection_ramdisk::self_test),
    ("network_boot", network_boot::self_test),
    ("faulty_responses", faulty_responses::self_test),
    ("tar_members", tar_members::self_test),
    ("run_end_state", run_end_state::self_test),
    ("time_budget", time_budget::self_test),
    ("disks_unused_by_system", disks_unused_by_system::self_test),
    ("write_witness", write_witness::self_test),
    ("write_attribution", write_attribution::self_test),
    ("write_log", write_log::self_test),
    ("crash_states", crash_states::self_test),
    ("reconstructed_filesystem", reconstructed_filesystem::self_test),
    ("crash_state_selection", crash_state_selection::self_test),
    ("agent_plan_after_crash", agent_plan_after_crash::self_test),
    ("crash_state_checks", crash_state_checks::self_test),
    ("crash_consistency_test", crash_consistency_test::self_test),
];

fn main() -> ExitCode {
    let (own, rest) = split_arguments(std::env::args());
    let mut arguments = Arguments::from_iter(rest);
    arguments.test_threads = Some(arguments.test_threads.unwrap_or(VMS_AT_ONCE).min(VMS_AT_ONCE));
    let folder = own.or_else(|| std::env::var_os("DROPHAMMER_SCENARIOS").map(PathBuf::from));
    let wanted = folder.is_some() || is_set("DROPHAMMER_QEMU");
    let own_only = folder.is_none();
    let folder = folder.unwrap_or_else(own_scenarios);
    let mut trials = harness_tests();
    let budget = Arc::new(TimeBudget::from_env());
    // These cases are first, because they take longest.
    if own_only {
        trials.extend(crash_trials(wanted, arguments.filter.as_deref(), &budget));
    }
    match scenario_files(&folder) {
        Ok(files) => {
            let filter = arguments.filter.as_deref();
            trials.extend(longest_first(files).iter().map(|file| create_trial(file, wanted, filter, &budget)));
        }
        Err(error) => trials.push(Trial::test("scenarios", || Err(Failed::from(error)))),
    }
    let conclusion = libtest_mimic::run(&arguments, trials);
    phase_times::print_phases();
    conclusion.exit_code()
}

/// Creates the test cases of power cuts and crash states. By default, only `powercut` runs.
fn crash_trials(wanted: bool, filter: Option<&str>, budget: &Arc<TimeBudget>) -> Vec<Trial> {
    let full = is_set("DROPHAMMER_FULL");
    let mut trials = Vec::new();
    for (number, case) in powercut::CASES.into_iter().enumerate() {
        // A case that runs alone may use both cores.
        let machines = if filter == Some(case.0) { VMS_AT_ONCE } else { 1 };
        let extent = powercut::TestRunSize { full, machines };
        let cuts = move || powercut::run(case, &artifacts_folder(), &work_folder(), extent).map_err(Failed::from);
        let runs = wanted && (number == 0 || full || filter == Some(case.0));
        trials.push(time_trial(case.0, RUNS_OF_A_SAMPLE, budget.clone(), cuts).with_ignored_flag(!runs));
    }
    for case in crash_consistency_test::CASES {
        let states =
            move || crash_consistency_test::run(case, &artifacts_folder(), &work_folder()).map_err(Failed::from);
        let runs = wanted && (full || filter == Some(case.0));
        trials.push(time_trial(case.0, RUNS_OF_A_SAMPLE, budget.clone(), states).with_ignored_flag(!runs));
    }
    trials
}

fn harness_tests() -> Vec<Trial> {
    let tests = SELF_TESTS.into_iter();
    let mut trials: Vec<Trial> =
        tests.map(|(name, test)| Trial::test(format!("harness::{name}"), move || run_self_test(test))).collect();
    trials.push(Trial::test("harness::scenarios", || parse_all_scenarios(&own_scenarios())));
    trials
}

/// Separates `--scenarios DIR` from the arguments of the test harness.
fn split_arguments(arguments: impl Iterator<Item = String>) -> (Option<PathBuf>, Vec<String>) {
    let (mut folder, mut rest) = (None, Vec::new());
    let mut arguments = arguments;
    while let Some(argument) = arguments.next() {
        match argument.strip_prefix("--scenarios") {
            Some("") => folder = arguments.next().map(PathBuf::from),
            Some(value) if value.starts_with('=') => folder = Some(PathBuf::from(&value[1..])),
            _ => rest.push(argument),
        }
    }
    (folder, rest)
}

fn is_set(variable: &str) -> bool {
    std::env::var_os(variable).is_some_and(|value| value != "0" && !value.is_empty())
}

fn own_scenarios() -> PathBuf {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../..")).join("qemu-tests/scenarios")
}

fn parse_all_scenarios(folder: &Path) -> Result<(), Failed> {
    let files = scenario_files(folder)?;
    let errors: Vec<String> = files.iter().filter_map(|file| scenario_parser::read(file).err()).collect();
    if errors.is_empty() { Ok(()) } else { Err(Failed::from(errors.join("\n"))) }
}

fn scenario_files(folder: &Path) -> Result<Vec<PathBuf>, String> {
    let entries = std::fs::read_dir(folder).map_err(|error| format!("{}: {error}", folder.display()))?;
    let mut files: Vec<PathBuf> = entries
        .filter_map(|entry| entry.ok().map(|entry| entry.path()))
        .filter(|path| path.extension().is_some_and(|extension| extension == "yaml"))
        .collect();
    files.sort();
    if files.is_empty() {
        return Err(format!("{}: no scenarios (*.yaml) found", folder.display()));
    }
    Ok(files)
}

/// Sorts the longest scenarios first. Otherwise, one VM would be idle at the end while the other one finishes. The
/// number of runs is the best available estimate of the duration.
fn longest_first(mut files: Vec<PathBuf>) -> Vec<PathBuf> {
    let runs = |file: &PathBuf| scenario_parser::read(file).map_or(0, |scenario| scenario.runs.len());
    files.sort_by_cached_key(|file| std::cmp::Reverse(runs(file)));
    files
}

/// Creates the test case for a file. A file that cannot be parsed fails each `cargo test`, even without VMs. A long
/// scenario runs if the filter equals its name.
fn create_trial(file: &Path, wanted: bool, filter: Option<&str>, budget: &Arc<TimeBudget>) -> Trial {
    let name = file.file_stem().unwrap_or_default().to_string_lossy().into_owned();
    match scenario_parser::read(file) {
        Ok(scenario) => {
            let runs = wanted && (!scenario.machine.full || is_set("DROPHAMMER_FULL") || filter == Some(name.as_str()));
            let count = scenario.runs.len();
            let test = move || scenario_run::run(&scenario, &artifacts_folder(), &work_folder()).map_err(Failed::from);
            time_trial(&name, count, budget.clone(), test).with_ignored_flag(!runs)
        }
        Err(error) => Trial::test(name, || Err(Failed::from(error))),
    }
}

/// Creates a test case with this number of runs, which starts only if enough time remains.
fn time_trial(
    name: &str,
    runs: usize,
    budget: Arc<TimeBudget>,
    test: impl FnOnce() -> Result<(), Failed> + Send + 'static,
) -> Trial {
    let label = name.to_owned();
    Trial::ignorable_test(name, move || {
        if let Some(why) = budget.explain_refusal(runs) {
            return Ok(Completion::ignored_with(why));
        }
        let began = std::time::Instant::now();
        let result = test();
        eprintln!("{label}: {} s", began.elapsed().as_secs());
        budget.record_runs(runs, began.elapsed());
        result.map(|()| Completion::Completed)
    })
}

/// Returns the folder in which the scripts store ramdisks and images.
fn artifacts_folder() -> PathBuf {
    let folder = std::env::var_os("DROPHAMMER_ARTIFACTS").map(PathBuf::from);
    folder.unwrap_or_else(|| Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../..")).join("target"))
}

/// Returns the folder in which each case creates its own folder, with disks and logs.
fn work_folder() -> PathBuf {
    let folder = std::env::var_os("DROPHAMMER_WORK").map(PathBuf::from);
    folder.unwrap_or_else(|| Path::new(env!("CARGO_TARGET_TMPDIR")).join("qemu"))
}

fn run_self_test(test: fn()) -> Result<(), Failed> {
    test();
    Ok(())
}
