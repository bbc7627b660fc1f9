//! Redfish steps, which run before a machine is installed: BIOS attributes, power and boot device.
//!
//! A run starts when a machine in its ramdisk requests its installation, so a running system is never restarted.
//! `admit` withholds the installation until every step is completed and verified, and the machine has booted again
//! after the last restart. `redfish_step_task` continues the runs, `next_action` decides the next action of a run,
//! `capability_check` checks the Redfish service before the first change, and `progress` describes runs.

mod capability_check;
mod next_action;
pub mod progress;
mod redfish_step_task;

pub use redfish_step_task::{RUN_INTERVAL, continue_runs};

use super::AppState;
use super::agent_api::wire_allocation;
use super::bmc_lease::HeldLease;
use super::migration_requests::machine_requests::{MigrationResponse, find_migration_response};
use super::power::{controller_failure, to_target};
use axum::http::StatusCode;
use bmc::redfish::RedfishMachine;
use bmc::redfish::bios::SystemState;
use bmc::{TargetMachine, Unguarded, WriteGuard};
use common::error::Result;
use http_server::api_error::ApiError;
use model::bmc::Bmc;
use model::deploy_steps::{BootDevice, OutOfBandStep};
use model::install_report::{EventName, ProgressEvent};
use next_action::{PHASE_TIMEOUT, RunAction, RunObservation, decide_action};
use site::allocation_resolution::ResolvedAllocation;
use site::operator_files::MachineSpec;
use site::requested_steps::{OutOfBandTemplate, find_out_of_band_templates};
use site::site_objects::SiteObjects;
use store::{BootAdmission, InstallState, MachineBoot, OutOfBandRequest, OutOfBandRun, RunPhase};

/// Error code for steps that a Redfish service does not support.
const UNSUPPORTED: &str = "redfish-unsupported";

/// Returns whether the boot may receive this installation now. If Redfish steps must run before the installation,
/// starts the run of these steps, unless the run has started already.
///
/// # Errors
/// Returns an error if the database cannot be read or written.
pub(crate) async fn admit(
    app: &AppState,
    boot: &MachineBoot,
    assigned: &ResolvedAllocation,
    install_state: &InstallState,
) -> Result<bool, ApiError> {
    // If the installation has started, its steps are already completed. A new order that replaces a started order
    // counts as not started here.
    let is_started = boot.started
        || install_state.order.as_ref().map_or(install_state.first.is_some(), |order| order.attempt.is_some());
    if assigned.out_of_band.is_empty() || !assigned.installs || is_started {
        return Ok(true);
    }
    let admission = app.state.admit_boot(boot, to_request(assigned, install_state)).await?;
    if admission == BootAdmission::Waits(true) {
        app.watch.log_note(format!(
            "{}: the installation waits for BIOS settings: {} must first run over Redfish",
            app.directory().display_name(&boot.machine),
            common::format::format_count(assigned.out_of_band.len(), "step", "steps"),
        ));
        app.runs.notify_one();
    }
    Ok(admission == BootAdmission::Admitted)
}

fn to_request(assigned: &ResolvedAllocation, install_state: &InstallState) -> OutOfBandRequest {
    OutOfBandRequest {
        allocation: assigned.allocation.id.to_string(),
        order: install_state.order.as_ref().map(|order| order.id.clone()).unwrap_or_default(),
        steps: assigned.out_of_band.clone(),
    }
}

/// Returns whether the boot may pass its point of no return: all steps of its installation must be completed.
///
/// # Errors
/// Returns an error if the database cannot be read or written.
pub(crate) async fn is_admitted(app: &AppState, boot: &MachineBoot) -> Result<bool, ApiError> {
    match wire_allocation::find_assignment(app, &app.directory(), &boot.machine).await? {
        Some((assigned, install_state)) => admit(app, boot, &assigned, &install_state).await,
        None => Ok(true),
    }
}

/// Checks that the machine's Redfish service supports the steps of its templates. If no template has such steps, the
/// controller is not contacted.
///
/// # Errors
/// Returns an error if the service does not support a step, or cannot be reached.
pub(crate) async fn check_controller(machine: &MachineSpec, known: &SiteObjects) -> Result<(), ApiError> {
    let templates = find_out_of_band_templates(machine, known);
    let Some(bmc) = machine.bmc.clone().filter(|_| !templates.is_empty()) else { return Ok(()) };
    let uuid = firmware_uuid(machine);
    let read = tokio::task::spawn_blocking(move || read_capabilities(&bmc, &uuid));
    let failed =
        |_| ApiError::new(StatusCode::INTERNAL_SERVER_ERROR, "the request to the management controller failed");
    let state = read.await.map_err(failed)?.map_err(|error| controller_failure(&error))?;
    let problems = format_unsupported(&templates, &state);
    match problems.is_empty() {
        true => Ok(()),
        false => Err(ApiError::bad_request(problems.join("\n")).with_code(UNSUPPORTED)),
    }
}

/// Returns the reasons why the service cannot run the templates, each with its position in the template file.
fn format_unsupported(templates: &[OutOfBandTemplate], state: &SystemState) -> Vec<String> {
    let problems = |template: &OutOfBandTemplate| {
        let all = capability_check::find_unsupported(&template.steps, state);
        all.iter().map(|why| template.format_problem(why)).collect::<Vec<_>>()
    };
    templates.iter().flat_map(problems).collect()
}

fn read_capabilities(bmc: &Bmc, uuid: &str) -> Result<SystemState> {
    RedfishMachine::connect(bmc, Some(uuid))?.read_described_state()
}

/// Checks the Redfish service of a machine for `serve --check`. Returns the problems. If the service could not be
/// checked, also returns the reason.
pub fn check_controller_blocking(machine: &MachineSpec, known: &SiteObjects) -> (Vec<String>, Option<String>) {
    let templates = find_out_of_band_templates(machine, known);
    let Some(bmc) = machine.bmc.as_ref().filter(|_| !templates.is_empty()) else { return (Vec::new(), None) };
    match read_capabilities(bmc, &firmware_uuid(machine)) {
        Ok(state) => (format_unsupported(&templates, &state), None),
        Err(error) => (Vec::new(), Some(format!("cannot check the Redfish steps: {error}"))),
    }
}

/// Returns the UUID that the controller should report: `smbios_uuid` of the machine file or, if the file lacks this
/// field, the machine's id.
fn firmware_uuid(machine: &MachineSpec) -> String {
    machine.smbios_uuid.map_or_else(|| machine.id.clone(), |uuid| uuid.to_string())
}

/// Carries out one action of a run (the Redfish steps of one installation). Returns whether the next action can follow
/// immediately.
async fn advance_run(
    app: &AppState,
    run: OutOfBandRun,
    boot: Option<MachineBoot>,
    lease: Option<&HeldLease>,
) -> Result<bool, ApiError> {
    let directory = app.directory();
    match find_authority(app, &run).await? {
        RunAuthority::Withdrawn => return delete_withdrawn_run(app, &run).await,
        RunAuthority::Suspended => return Ok(false),
        RunAuthority::InForce => {}
    }
    let machine = directory.find_machine(&run.machine);
    let Some((machine, bmc)) = machine.and_then(|machine| Some((machine, machine.bmc.clone()?))) else {
        return Ok(false);
    };
    let uuid = firmware_uuid(machine);
    let is_new = run.phase == RunPhase::Ready;
    let (to, target) = (bmc.clone(), uuid.clone());
    let read = run_blocking(move || {
        let machine = RedfishMachine::connect(&to, Some(&target))?;
        if is_new { machine.read_described_state() } else { machine.read_state() }
    });
    let system = match read.await {
        Ok(system) => system,
        Err(why) if app.state.time_since(&run.since) > PHASE_TIMEOUT => return fail_run(app, &run, why).await,
        Err(why) => {
            app.log_rate_limited(format!("{}: {why}", directory.display_name(&run.machine)));
            return Ok(false);
        }
    };
    let remaining = run.steps.get(run.completed..).unwrap_or_default();
    let unsupported = if is_new { capability_check::find_unsupported(remaining, &system) } else { Vec::new() };
    if !unsupported.is_empty() {
        return fail_run(app, &run, unsupported.join("; ")).await;
    }
    let is_after = |boot: &&MachineBoot| !run.restarted.is_empty() && boot.is_newer_than(&run.restarted);
    let seen = RunObservation {
        system: &system,
        in_ramdisk: boot.as_ref().is_some_and(|boot| app.state.heard.has_called_recently(boot)),
        booted: boot.as_ref().filter(is_after).map(|boot| app.state.age_of(boot)),
        phase_age: app.state.time_since(&run.since),
        is_shared: app.state.is_shared(),
    };
    let action = decide_action(&run, &seen);
    carry_out(app, run, action, (bmc, uuid, lease), system).await
}

/// Deletes a run whose installation is no longer ordered. The returned value is false: no action follows.
async fn delete_withdrawn_run(app: &AppState, run: &OutOfBandRun) -> Result<bool, ApiError> {
    if app.state.replace_run(run, None).await? {
        app.watch.log_note(format!(
            "{name}: the Redfish steps are canceled, because the installation is no longer ordered",
            name = app.directory().display_name(&run.machine)
        ));
        app.request_reload();
    }
    Ok(false)
}

/// Result of the check whether the installation of a run is still requested.
enum RunAuthority {
    InForce,
    /// The installation is no longer requested.
    Withdrawn,
    /// The installation is still requested, but cannot be carried out now.
    Suspended,
}

async fn find_authority(app: &AppState, run: &OutOfBandRun) -> Result<RunAuthority, ApiError> {
    let directory = app.directory();
    if !matches!(find_migration_response(app, &directory, &run.machine).await?, MigrationResponse::Unrelated) {
        return Ok(RunAuthority::Suspended);
    }
    let machine = directory.find_machine(&run.machine);
    if machine.is_some_and(|machine| machine.allocation.is_none()) {
        return Ok(RunAuthority::Withdrawn);
    }
    let Some((assigned, install_state)) = wire_allocation::find_assignment(app, &directory, &run.machine).await? else {
        return Ok(RunAuthority::Suspended);
    };
    let wanted = to_request(&assigned, &install_state);
    Ok(match assigned.installs && run.is_for(&wanted.allocation, &wanted.order) && !wanted.steps.is_empty() {
        false => RunAuthority::Withdrawn,
        // The steps have changed, so this run does not continue. When the machine next requests its allocation, a run
        // with the changed steps replaces this run.
        true if wanted.steps != run.steps => RunAuthority::Suspended,
        true => RunAuthority::InForce,
    })
}

/// Carries out the action. Restarts and BIOS changes are recorded before their requests are sent.
async fn carry_out(
    app: &AppState,
    run: OutOfBandRun,
    action: RunAction,
    (bmc, uuid, lease): (Bmc, String, Option<&HeldLease>),
    system: SystemState,
) -> Result<bool, ApiError> {
    let (recorded, next) = match (&action, run.current_step()) {
        (RunAction::Wait | RunAction::Hold, _) => return Ok(false),
        (RunAction::Fail(why), _) => return fail_run(app, &run, why.clone()).await,
        (RunAction::Finish, _) => return finish_run(app, &run).await,
        (RunAction::Complete, step) => {
            return complete_step(app, &run, progress::describe_completed(&run, step, &system)).await;
        }
        (RunAction::Restart, _) => {
            let restarting = OutOfBandRun {
                restarts: run.restarts + 1,
                restarted: app.state.shared_timestamp(),
                restart_sent: true,
                ..run.with_phase(RunPhase::Restarting, app.state.shared_timestamp())
            };
            (restarting, RunPhase::Booting)
        }
        (RunAction::Change, Some(step)) if step.needs_bios() => {
            (run.with_phase(RunPhase::Changing, app.state.shared_timestamp()), RunPhase::Restarting)
        }
        // Requests of these actions can be repeated without harm, so they are not recorded before they are sent.
        (RunAction::Change | RunAction::SwitchOff, _) => (run.clone(), RunPhase::Settling),
    };
    if recorded != run && !app.state.replace_run(&run, Some(recorded.clone())).await? {
        return Ok(false);
    }
    if let Err(why) = request_action(app, &run, action, (bmc, uuid, lease), system).await? {
        if lease.is_some_and(HeldLease::is_refused) {
            // The lease was lost. Another server may own the run now, and continues it.
            app.log_rate_limited(format!("{}: {why}", app.directory().display_name(&run.machine)));
            return Ok(false);
        }
        return fail_run(app, &recorded, why).await;
    }
    let restarted =
        if next == RunPhase::Restarting { app.state.shared_timestamp() } else { recorded.restarted.clone() };
    let next =
        OutOfBandRun { restarted, restart_sent: false, ..recorded.with_phase(next, app.state.shared_timestamp()) };
    Ok(app.state.replace_run(&recorded, Some(next)).await?)
}

/// Logs the action, and sends its requests to the controller. The inner error is the failure of the requests.
async fn request_action(
    app: &AppState,
    run: &OutOfBandRun,
    action: RunAction,
    (bmc, uuid, lease): (Bmc, String, Option<&HeldLease>),
    system: SystemState,
) -> Result<Result<(), String>, ApiError> {
    let step = run.current_step().cloned();
    let name = app.directory().display_name(&run.machine).to_owned();
    app.watch.log_note(format!("{name}: {}", progress::describe_action(&action, step.as_ref())));
    let registered = app.state.find_registration(&run.machine).await?;
    let guard = lease.map(HeldLease::guard);
    let send = move || {
        let guard: &dyn WriteGuard = guard.as_ref().map_or(&Unguarded, |guard| guard);
        send_action(&action, step.as_ref(), (&bmc, &to_target(uuid, registered), guard), &system)
    };
    Ok(run_blocking(send).await)
}

/// Records that all steps are completed. The returned value is false: no action follows.
async fn finish_run(app: &AppState, run: &OutOfBandRun) -> Result<bool, ApiError> {
    if app.state.replace_run(run, Some(run.with_phase(RunPhase::Done, app.state.shared_timestamp()))).await? {
        let name = app.directory().display_name(&run.machine).to_owned();
        app.watch.log_note(format!("{name}: all Redfish steps are completed: the installation can start"));
        app.request_reload();
    }
    Ok(false)
}

/// Records that the current step is completed. Returns false if the run has changed in the meantime.
async fn complete_step(app: &AppState, run: &OutOfBandRun, message: String) -> Result<bool, ApiError> {
    let next = OutOfBandRun {
        completed: run.completed + 1,
        restarts: 0,
        restart_sent: false,
        ..run.with_phase(RunPhase::Ready, app.state.shared_timestamp())
    };
    app.watch.log_note(format!("{}: {message}", app.directory().display_name(&run.machine)));
    let is_recorded = app.state.replace_run(run, Some(next)).await?;
    if is_recorded {
        record_event(app, &run.machine, EventName::Preparing, message).await;
    }
    Ok(is_recorded)
}

/// Sends the requests of an action. Reads back the values that take effect without a restart.
fn send_action(
    action: &RunAction,
    step: Option<&OutOfBandStep>,
    (bmc, target, guard): (&Bmc, &TargetMachine, &dyn WriteGuard),
    system: &SystemState,
) -> Result<()> {
    let machine = RedfishMachine::connect(bmc, target.uuid.as_deref())?.guarded_by(guard);
    match (action, step, &system.bios) {
        (RunAction::Restart, ..) => {
            machine.set_boot_device(BootDevice::Pxe, false, target.firmware)?;
            machine.cycle_power()
        }
        (RunAction::SwitchOff, ..) => machine.switch_off(),
        (_, Some(OutOfBandStep::ApplyBios { settings }), Some(bios)) => machine.set_attributes(bios, settings),
        (_, Some(OutOfBandStep::ResetBios), Some(bios)) => machine.reset_attributes(bios),
        (_, Some(OutOfBandStep::SetBootDevice { device, persistent }), _) => {
            machine.set_boot_device(*device, *persistent, target.firmware).map(drop)
        }
        _ => Ok(()),
    }
}

/// Records the failure of the current step, which prevents the installation.
async fn fail_run(app: &AppState, run: &OutOfBandRun, why: String) -> Result<bool, ApiError> {
    let failures = run.failures + 1;
    let message = progress::describe_failure(run, &why);
    let failed = OutOfBandRun {
        failures,
        restart_sent: false,
        message: message.clone(),
        ..run.with_phase(RunPhase::Failed, app.state.shared_timestamp())
    };
    if app.state.replace_run(run, Some(failed)).await? {
        let name = app.directory().display_name(&run.machine).to_owned();
        app.watch.log_problem(format!("{name}: {message}; nothing is installed"));
        record_event(app, &run.machine, EventName::Crashed, format!("{}: {message}", progress::STEP_FAILED)).await;
        app.request_reload();
    }
    Ok(false)
}

/// Stores the end of a step in the machine's events. The run continues even if the event cannot be stored.
async fn record_event(app: &AppState, machine: &str, event: EventName, message: String) {
    let event = ProgressEvent { event, message, stage: None, seconds: None, progress: None };
    if app.state.store_event(machine, &event, false).await.is_ok() {
        app.watch.live.record_event(machine, &event);
    }
}

/// Runs requests to a controller on a thread that may block. Errors never contain credentials.
async fn run_blocking<T: Send + 'static>(work: impl FnOnce() -> Result<T> + Send + 'static) -> Result<T, String> {
    match tokio::task::spawn_blocking(work).await {
        Ok(done) => done.map_err(|error| error.to_string()),
        Err(_) => Err("the request to the management controller failed".to_owned()),
    }
}
