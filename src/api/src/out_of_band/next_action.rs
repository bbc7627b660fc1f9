//! Decision about the next action of a run. A run executes the Redfish steps of one installation. The decision depends
//! on the record of the run and the state of the machine. The module performs no I/O.

use bmc::redfish::bios::{BiosState, SystemState};
use common::format::untrusted_text_limits::sanitize_line;
use model::deploy_steps::{BiosSetting, OutOfBandStep, is_same_value};
use std::time::Duration;
use store::{OutOfBandRun, RunPhase};

/// Maximum time from a restart until the machine has booted the ramdisk.
pub(crate) const BOOT_TIMEOUT: Duration = Duration::from_secs(45 * 60);
/// Maximum duration of every other phase of a step.
pub(crate) const PHASE_TIMEOUT: Duration = Duration::from_secs(15 * 60);
/// Maximum time from the boot until the service reports the new values. Some controllers update the values only after
/// the firmware has finished its initialization.
pub(crate) const SETTLE_TIMEOUT: Duration = Duration::from_secs(5 * 60);
/// Maximum number of restarts per step.
const RESTARTS: u32 = 3;

/// Observed state of the machine, from which the next action is decided.
#[derive(Debug, Clone)]
pub(crate) struct RunObservation<'a> {
    pub system: &'a SystemState,
    /// True if the machine runs its ramdisk, and has contacted the server recently.
    pub in_ramdisk: bool,
    /// Time since the machine requested its current boot, if this boot was requested after the last restart and has
    /// registered; `None` otherwise.
    pub booted: Option<Duration>,
    /// Time since the step entered its present phase.
    pub phase_age: Duration,
    /// True if another server may have sent a request whose response is not recorded.
    pub is_shared: bool,
}

/// Next action of a run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum RunAction {
    Wait,
    /// Wait for the effect of a request that another server may have sent.
    Hold,
    /// Request the change of the step: BIOS attributes, a BIOS reset, or the boot device.
    Change,
    /// Switch the machine off.
    SwitchOff,
    /// Make the machine boot the ramdisk: restart it, or switch it on.
    Restart,
    /// The step is completed and verified.
    Complete,
    /// All steps are completed.
    Finish,
    Fail(String),
}

/// Decides the next action. Nothing is changed while the machine may run a system other than the ramdisk.
pub(crate) fn decide_action(run: &OutOfBandRun, seen: &RunObservation) -> RunAction {
    let Some(step) = run.current_step() else { return RunAction::Finish };
    let unconfirmed = if seen.is_shared { decide_unconfirmed(run, step, seen) } else { None };
    let wanted = match run.phase {
        _ if unconfirmed.is_some() => unconfirmed.unwrap_or(RunAction::Wait),
        RunPhase::Done | RunPhase::Failed => return RunAction::Wait,
        RunPhase::Ready => start_step(step, seen.system),
        RunPhase::Changing => RunAction::Change,
        // If the machine has booted, an earlier server process has already requested the restart.
        RunPhase::Restarting if seen.booted.is_some() => verify_step(step, seen),
        RunPhase::Restarting => RunAction::Restart,
        RunPhase::Settling => await_change(step, seen),
        RunPhase::Booting => verify_step(step, seen),
    };
    let is_safe = seen.in_ramdisk || seen.system.power.as_deref() == Some("Off");
    match wanted {
        RunAction::Restart if run.restarts >= RESTARTS => RunAction::Fail(format!(
            "the machine was restarted {RESTARTS} times without a new boot of the ramdisk; see the machine's console"
        )),
        RunAction::Change | RunAction::SwitchOff | RunAction::Restart if is_safe => wanted,
        RunAction::Change | RunAction::SwitchOff | RunAction::Restart | RunAction::Wait => {
            let timeout = if run.phase == RunPhase::Booting { BOOT_TIMEOUT } else { PHASE_TIMEOUT };
            let reason = if run.phase == RunPhase::Booting {
                "the machine has not booted the ramdisk after its restart; see the machine's console and boot order"
            } else {
                "the machine has not booted the ramdisk, and Redfish steps do not start while another system may be running; power-cycle the machine"
            };
            let minutes = timeout.as_secs() / 60;
            match seen.phase_age > timeout {
                true => RunAction::Fail(format!("after {minutes} minutes: {reason}")),
                false => RunAction::Wait,
            }
        }
        decided => decided,
    }
}

/// Decides the next action if a request may have been sent whose response was not recorded. Never repeats a restart
/// or a reset of the BIOS. Returns `None` if the usual decision is safe.
fn decide_unconfirmed(run: &OutOfBandRun, step: &OutOfBandStep, seen: &RunObservation) -> Option<RunAction> {
    let is_off = seen.system.power.as_deref() == Some("Off");
    match (run.phase, step) {
        (RunPhase::Changing, OutOfBandStep::ResetBios) => Some(RunAction::Fail(
            "a server has ended while it requested the reset of the BIOS, and the outcome is unknown".to_owned(),
        )),
        (RunPhase::Changing, OutOfBandStep::ApplyBios { settings }) => {
            let is_pending = |bios: &BiosState| {
                settings
                    .iter()
                    .all(|it| bios.pending.get(&it.name).is_some_and(|value| is_same_value(value, &it.value)))
            };
            seen.system.bios.as_ref().is_some_and(is_pending).then_some(RunAction::Restart)
        }
        (RunPhase::Restarting, _) if run.restart_sent && seen.booted.is_none() && !is_off => {
            Some(match seen.phase_age > BOOT_TIMEOUT {
                true => RunAction::Fail(
                    "a server has ended while it restarted the machine, and the machine has not booted the ramdisk \
                     since then; power-cycle the machine"
                        .to_owned(),
                ),
                false => RunAction::Hold,
            })
        }
        _ => None,
    }
}

/// Returns the next action for a step that has not requested any change yet.
fn start_step(step: &OutOfBandStep, system: &SystemState) -> RunAction {
    let is_off = system.power.as_deref() == Some("Off");
    match (step, &system.bios) {
        (OutOfBandStep::ApplyBios { settings }, Some(bios)) if is_in_force(settings, bios) => RunAction::Complete,
        (OutOfBandStep::ApplyBios { .. } | OutOfBandStep::ResetBios, None) => {
            RunAction::Fail("the Redfish service no longer offers a Bios resource".to_owned())
        }
        (OutOfBandStep::PowerOff, _) if is_off => RunAction::Complete,
        (OutOfBandStep::PowerOff, _) => RunAction::SwitchOff,
        (OutOfBandStep::PowerOn, _) if !is_off => RunAction::Complete,
        (OutOfBandStep::PowerOn | OutOfBandStep::Reboot, _) => RunAction::Restart,
        _ => RunAction::Change,
    }
}

/// Returns whether all settings are in force, and would remain in force after the next restart.
fn is_in_force(settings: &[BiosSetting], bios: &BiosState) -> bool {
    settings.iter().all(|setting| {
        let has = |value: &serde_json::Value| is_same_value(value, &setting.value);
        bios.current.get(&setting.name).is_some_and(has) && bios.pending.get(&setting.name).is_none_or(has)
    })
}

/// Returns the next action for a step whose change does not need a restart.
fn await_change(step: &OutOfBandStep, seen: &RunObservation) -> RunAction {
    let system = seen.system;
    match step {
        OutOfBandStep::PowerOff if system.power.as_deref() == Some("Off") => RunAction::Complete,
        // When the boot device was set, its value was already read back and verified.
        OutOfBandStep::SetBootDevice { .. } => RunAction::Complete,
        _ if seen.phase_age > SETTLE_TIMEOUT => {
            let power = system.power.as_deref().unwrap_or("unknown");
            RunAction::Fail(sanitize_line(&format!(
                "the service accepted the request, but reports power state {power}, not Off"
            )))
        }
        _ => RunAction::Wait,
    }
}

/// Returns the next action for a step after the restart that applies its change.
fn verify_step(step: &OutOfBandStep, seen: &RunObservation) -> RunAction {
    let Some(booted) = seen.booted else { return RunAction::Wait };
    let differences = match (step, &seen.system.bios) {
        (OutOfBandStep::ApplyBios { settings }, Some(bios)) => find_differences(settings, bios),
        (OutOfBandStep::ApplyBios { .. } | OutOfBandStep::ResetBios, None) => {
            "the Redfish service no longer offers a Bios resource".to_owned()
        }
        _ => String::new(),
    };
    match booted > SETTLE_TIMEOUT {
        _ if differences.is_empty() => RunAction::Complete,
        true => RunAction::Fail(format!(
            "after the restart, the machine does not have the requested values: {differences}; correct the template, or the \
             settings on which these attributes depend"
        )),
        false => RunAction::Wait,
    }
}

/// Describes the settings whose values are not in force.
fn find_differences(settings: &[BiosSetting], bios: &BiosState) -> String {
    let differing = settings.iter().filter_map(|BiosSetting { name, value }| match bios.current.get(name) {
        Some(current) if is_same_value(current, value) => None,
        Some(current) => Some(format!("BIOS attribute {name} is {current}, not {value}")),
        None => Some(format!("BIOS attribute {name} is missing (requested value: {value})")),
    });
    sanitize_line(&differing.collect::<Vec<_>>().join(", "))
}

#[cfg(test)]
mod tests;
