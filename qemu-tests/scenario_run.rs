//! Sequence of a scenario: disks, server, PXE boot, power cycle, inspection of the disks by the inspection ramdisk, and
//! result. `run_setup.rs` contains what a run offers to the machine, and `run_boots.rs` switches the machine on.

use crate::expectation_check::{self, RunObservations};
use crate::expectations::{Outcome, RunExpectations};
use crate::host_tools::{Context, Result};
use crate::qemu_machine::{BootMethod, Chassis, in_order};
use crate::run_end_state::{self, BaselineState};
use crate::scenario::{EventAction, Machine, Scenario, ScenarioRun};
use crate::{disk_files, inspection_ramdisk, phase_times, tpm};
use serde_json::Value;
use std::fs;
use std::path::Path;
use uuid::Uuid;

/// Runs a scenario below `work` with the files of `artifacts`.
///
/// # Errors
/// Returns all failures, and the location of the logs.
pub fn run(scenario: &Scenario, artifacts: &Path, work: &Path) -> Result<()> {
    require_artifacts(artifacts, &scenario.machine)?;
    let folder = work.join(&scenario.name);
    // The folder exists only after an earlier failure, so an error is ignored.
    let _ = fs::remove_dir_all(&folder);
    fs::create_dir_all(&folder).context(folder.display())?;
    let result = all_runs(scenario, artifacts, &folder);
    let keep = std::env::var_os("DROPHAMMER_KEEP").is_some();
    if result.is_ok() && !keep {
        return fs::remove_dir_all(&folder).context(folder.display());
    }
    let about = &scenario.machine.about;
    result.map_err(|failures| format!("{about}\n{failures}\ndisks and logs are kept in {}", folder.display()))
}

/// Checks that the artifacts exist.
///
/// # Errors
/// Returns the name of the script that creates the missing artifact.
pub fn require_artifacts(artifacts: &Path, machine: &Machine) -> Result<()> {
    let ramdisk = machine.artifact("ramdisk");
    let needed = [
        ("vmlinuz", "build-ramdisk"),
        ("initrd", "build-ramdisk"),
        ("vmlinux", "build-ramdisk"),
        ("quick", "build-ramdisk"),
        ("luks", "build-ramdisk"),
        ("inspect", "build-ramdisk"),
    ];
    let ramdisk = needed.map(|(name, script)| (format!("{ramdisk}/{name}"), script));
    let tiny = (format!("{}/tiny.tar.zst", machine.artifact("tiny")), "build-tiny");
    for (file, script) in ramdisk.into_iter().chain([tiny]) {
        let path = artifacts.join(file);
        if !path.exists() {
            let architecture = machine.architecture;
            return Err(format!("{} is missing: run scripts/{script} --arch {architecture}", path.display()));
        }
    }
    Ok(())
}

/// Creates a new machine for the scenario, with the initial contents of its disks.
///
/// # Errors
/// Fails if a disk cannot be created.
pub fn assemble_machine<'a>(scenario: &'a Scenario, artifacts: &Path, folder: &'a Path) -> Result<Chassis<'a>> {
    for disk in &scenario.machine.disks {
        disk_files::create_disk(folder, disk).context(format!("disk {}", disk.name))?;
    }
    let uuid = Uuid::new_v4();
    let [a, b, c, ..] = *uuid.as_bytes();
    let mac = format!("52:54:00:{a:02x}:{b:02x}:{c:02x}");
    // The server's machine file describes the machine as it is in the first run.
    let first = scenario.runs.first();
    let chassis = Chassis {
        uuid: first.and_then(|run| run.uuid.clone()).unwrap_or(uuid.to_string()),
        mac: first.and_then(|run| run.macs.first().cloned()).unwrap_or(mac),
        ..Chassis::new(&scenario.machine, folder)
    };
    if let Some(script) = &scenario.machine.prepare {
        inspection_ramdisk::prepare_disks(&chassis, artifacts, "prepare", script)?;
    }
    Ok(chassis)
}

fn all_runs(scenario: &Scenario, artifacts: &Path, folder: &Path) -> Result<()> {
    let mut chassis = assemble_machine(scenario, artifacts, folder)?;
    let mut allocation = String::new();
    let mut installed = None;
    let mut earlier = Vec::new();
    for (index, run) in scenario.runs.iter().enumerate() {
        let is_continued = run.same_allocation || run.reinstall.is_some();
        if !is_continued || allocation.is_empty() {
            allocation = Uuid::new_v4().to_string();
        }
        let label = format!("run{}", index + 1);
        plug_disks(&mut chassis, run)?;
        if let Some(script) = &run.prepare {
            let output = inspection_ramdisk::prepare_disks(&chassis, artifacts, &format!("{label}-prepare"), script)?;
            output.lines().filter_map(extract_log_text).for_each(|line| eprintln!("{} {label}: {line}", scenario.name));
        }
        let stage = RunContext {
            scenario,
            run,
            artifacts,
            chassis: &chassis,
            allocation: &allocation,
            label,
            installed: &installed,
            earlier: &earlier,
        };
        let RunResult { outcome, failures, state } = stage.run_once().unwrap_or_else(RunResult::from_failure);
        let system = stage.system_id();
        if !failures.is_empty() {
            let list: Vec<String> = failures.iter().map(|failure| format!("  - {failure}")).collect();
            return Err(format!("run {} of {}:\n{}", index + 1, scenario.runs.len(), list.join("\n")));
        }
        if outcome == Outcome::Installed {
            installed = Some(system);
        }
        earlier.push(state);
    }
    Ok(())
}

/// Returns the text in a line that a script prints for the log; `None` for any other line.
fn extract_log_text(line: &str) -> Option<&str> {
    line.trim_end().strip_prefix("say: ")
}

/// Plugs in the disks of this run, some of which may be absent, reordered or replaced.
fn plug_disks(chassis: &mut Chassis, run: &ScenarioRun) -> Result<()> {
    chassis.disks = in_order(&chassis.machine.disks, &run.disks_order);
    chassis.absent.clone_from(&run.absent);
    chassis.types.clone_from(&run.types);
    chassis.hotplug = run.events.iter().any(|event| event.act == EventAction::Replug);
    if run.uuid.is_some() {
        chassis.shown_uuid.clone_from(&run.uuid);
    }
    if !run.macs.is_empty() {
        chassis.shown_macs.clone_from(&run.macs);
    }
    if run.new_tpm {
        tpm::renew_state(chassis.folder)?;
    }
    for disk in chassis.machine.disks.iter().filter(|disk| run.replaced.contains(&disk.name)) {
        disk_files::make_empty(chassis.folder, disk)?;
        *chassis.replaced.entry(disk.name.clone()).or_default() += 1;
    }
    Ok(())
}

/// Run with its scenario, its machine, its folders, and the results of earlier runs.
pub struct RunContext<'a> {
    pub scenario: &'a Scenario,
    pub run: &'a ScenarioRun,
    pub artifacts: &'a Path,
    pub chassis: &'a Chassis<'a>,
    pub allocation: &'a str,
    pub label: String,
    /// Image of the last run that installed one.
    pub installed: &'a Option<String>,
    /// States at the ends of the earlier runs, in their order.
    pub earlier: &'a [BaselineState],
}

/// Result of a run.
pub struct RunResult {
    /// Actual outcome, if the scenario permits two.
    pub outcome: Outcome,
    /// Violated expectations.
    pub failures: Vec<String>,
    pub state: BaselineState,
}

impl RunResult {
    fn from_failure(failure: String) -> RunResult {
        RunResult { outcome: Outcome::Failed, failures: vec![failure], state: BaselineState::default() }
    }
}

impl RunContext<'_> {
    /// Carries out the run.
    ///
    /// # Errors
    /// Fails if the run cannot be continued.
    pub fn run_once(&self) -> Result<RunResult> {
        let before = self.digest_disks()?;
        let mut observed = self.network_boot()?;
        let after = self.digest_disks()?;
        let names = self.scenario.machine.disks.iter().map(|disk| disk.name.clone());
        let changed = names.zip(before.iter().zip(&after)).filter(|(_, (before, after))| before != after);
        observed.changed_disks = changed.map(|(name, _)| name).collect();
        let expect = self.run.expect.select_outcome(observed.over_network.is_some());
        observed.named_as_listed = self.run.disks_order.is_empty() && self.run.absent.is_empty();
        for (name, text) in &expect.no_trace_of {
            if disk_files::contains_text(&self.chassis.folder.join(format!("{name}.raw")), text)? {
                observed.traces.push(name.clone());
            }
        }
        if expect.outcome.ends_with_running_system() && expect.outcome != Outcome::Local {
            let (facts, console) = self.boot_from_disk("disk", &BootMethod::Disk)?;
            (observed.from_disk, observed.disk_console) = (Some(facts), console);
        }
        for name in &expect.boots_without {
            let facts = self.boot_from_disk(&format!("without-{name}"), &BootMethod::DiskWithout(name));
            observed.without.push((name.clone(), facts.context(format!("without {name}"))?.0));
        }
        if expect.nothing_bootable {
            self.check_nothing_boots()?;
        }
        if !expect.inspect.has_no_expectations()
            || run_end_state::needs_inspection(&self.scenario.runs, self.earlier.len() + 1)
        {
            let label = format!("{}-inspect", self.label);
            observed.inspect =
                Some(inspection_ramdisk::inspect_disks(self.chassis, self.artifacts, &label, &expect.inspect)?);
        }
        self.check_run(&expect, &observed)
    }

    fn check_run(&self, expect: &RunExpectations, observed: &RunObservations) -> Result<RunResult> {
        let state = BaselineState::record_run(self.chassis, &self.scenario.runs, observed.inspect.as_ref())?;
        let mut failures = expectation_check::find_failures(&self.scenario.machine, expect, observed);
        failures.extend(run_end_state::compare_with_baseline(expect, &state, self.earlier));
        Ok(RunResult { outcome: expect.outcome, failures, state })
    }

    fn digest_disks(&self) -> Result<Vec<String>> {
        let disks = self.scenario.machine.disks.iter();
        phase_times::measure_phase("harness: digests of the disks", || {
            disks.map(|disk| disk_files::digest_disk(&self.chassis.disk_file(disk))).collect()
        })
    }

    /// Returns the id of the image that this run offers.
    pub fn image_id(&self) -> String {
        format!("tiny-1.0.{}", self.label)
    }

    /// Returns the id of the installed system: the id of the image, or that of the OS definition whose `create` program
    /// has created the system.
    pub fn system_id(&self) -> String {
        let os = self.run.allocation.get("os").and_then(Value::as_str);
        let files = |os: &str| self.run.os.get(os.split('+').next().unwrap_or_default());
        let creates_system = |os: &&str| files(os).is_some_and(|files| files.contains_key("create"));
        os.filter(creates_system).map_or_else(|| self.image_id(), str::to_owned)
    }

    /// Returns the id of the machine at the server.
    pub fn machine_id(&self) -> &str {
        self.run.machine_file.get("id").and_then(Value::as_str).unwrap_or(&self.chassis.uuid)
    }
}
