//! Descriptions of runs, for the log and for operators.

use super::next_action::RunAction;
use bmc::redfish::bios::{BiosState, SystemState};
use common::format::untrusted_text_limits::sanitize_line;
use model::deploy_steps::{OutOfBandStep, is_same_value};
use serde::{Deserialize, Serialize};
use store::{OutOfBandRun, RunPhase};

/// Error code of a failed step.
pub(super) const STEP_FAILED: &str = "redfish-step-failed";

/// Progress of the steps that run over Redfish before the installation of a machine.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct OutOfBandProgress {
    /// True if a step has failed. In this case, nothing is installed.
    pub failed: bool,
    /// Stable error code of the failure; absent if no step has failed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub code: Option<String>,
    /// Step that runs now or has failed, such as `bios.apply_configuration`; empty if all steps are completed.
    pub step: String,
    /// Number of completed steps.
    pub completed: usize,
    /// Number of all steps.
    pub steps: usize,
    /// Reason for the failure, or the event for which the step waits.
    pub message: String,
}

impl OutOfBandProgress {
    /// Returns the progress of an unfinished run.
    pub(crate) fn from_run(run: &OutOfBandRun) -> Option<OutOfBandProgress> {
        let waits_for = match run.phase {
            RunPhase::Done => return None,
            RunPhase::Failed => run.message.as_str(),
            RunPhase::Restarting if run.restart_sent => {
                "the server requested a restart of the machine, but did not record the result; it waits for the \
                machine to boot"
            }
            RunPhase::Ready | RunPhase::Changing | RunPhase::Restarting | RunPhase::Settling => {
                "waits for a response of the machine's management controller"
            }
            RunPhase::Booting => "waits for the machine to boot",
        };
        Some(OutOfBandProgress {
            failed: run.phase == RunPhase::Failed,
            code: (run.phase == RunPhase::Failed).then(|| STEP_FAILED.to_owned()),
            step: run.current_step().map(|step| step.name().to_owned()).unwrap_or_default(),
            completed: run.completed,
            steps: run.steps.len(),
            message: waits_for.to_owned(),
        })
    }

    /// Formats the progress as one line for operators.
    pub fn describe(&self) -> String {
        match self.failed {
            true => format!("BIOS settings failed: {}", self.message),
            false => {
                format!("waits for BIOS settings: {} ({} of {})", self.step, self.completed + 1, self.steps)
            }
        }
    }
}

/// Describes an action before its request is sent.
pub(super) fn describe_action(action: &RunAction, step: Option<&OutOfBandStep>) -> String {
    let name = step.map(OutOfBandStep::name).unwrap_or_default();
    match (action, step) {
        (RunAction::Restart, _) => format!("{name}: restarts the machine, which boots over PXE"),
        (RunAction::SwitchOff, _) => format!("{name}: switches the machine off"),
        (_, Some(OutOfBandStep::ApplyBios { settings })) => {
            let settings: Vec<String> = settings.iter().map(|one| format!("{}={}", one.name, one.value)).collect();
            format!("{name}: requests {}", settings.join(", "))
        }
        _ => format!("{name}: sends the Redfish request of this step"),
    }
}

/// Describes a completed step, with the values that were read back.
pub(super) fn describe_completed(run: &OutOfBandRun, step: Option<&OutOfBandStep>, system: &SystemState) -> String {
    let name = step.map(OutOfBandStep::name).unwrap_or_default();
    let was_unchanged = run.phase == RunPhase::Ready;
    let what = match (step, &system.bios) {
        (Some(OutOfBandStep::ApplyBios { .. }), _) if was_unchanged => {
            "all BIOS attributes already had the requested values".to_owned()
        }
        (Some(OutOfBandStep::ApplyBios { settings }), Some(bios)) => {
            let read = settings.iter().filter_map(|one| Some(format!("{}={}", one.name, bios.current.get(&one.name)?)));
            format!("BIOS attributes verified after the restart: {}", read.collect::<Vec<_>>().join(", "))
        }
        (Some(OutOfBandStep::ResetBios), Some(bios)) => {
            let (known, differing) = count_differing(bios);
            format!(
                "BIOS reset and machine restarted; of {known} BIOS attributes with a known default, {differing} do \
                not have their default value"
            )
        }
        _ if was_unchanged => "already done".to_owned(),
        _ => "done".to_owned(),
    };
    sanitize_line(&format!("{name}: {what} (step {} of {})", run.completed + 1, run.steps.len()))
}

/// Returns the number of attributes with a known default, and how many of them differ from their default.
fn count_differing(bios: &BiosState) -> (usize, usize) {
    let known = bios.registry.iter().filter_map(|(name, attribute)| {
        let default = attribute.default_value.as_ref().filter(|value| !value.is_null())?;
        Some(is_same_value(bios.current.get(name)?, default))
    });
    known.fold((0, 0), |(known, differing), is_default| (known + 1, differing + usize::from(!is_default)))
}

/// Describes the failure of the current step, and the remedy.
pub(super) fn describe_failure(run: &OutOfBandRun, why: &str) -> String {
    let name = run.current_step().map(OutOfBandStep::name).unwrap_or_default();
    // The name of the step is removed from the reason, because the reasons of failed checks begin with it.
    let why = why.strip_prefix(name).map_or(why, |rest| rest.trim_start_matches(": "));
    let remedy = match run.failures + 1 < store::ATTEMPTS {
        true => "the step is retried when the machine boots again, or when the template changes",
        false => "correct the template, or order the installation again",
    };
    format!("{name} failed: {why}; {remedy}")
}
