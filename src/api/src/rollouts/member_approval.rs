//! Approval of a member's reinstall. It records the inputs of the reinstall, and the data that the reinstall would
//! discard, at the time of the request. Both are compared again before the reinstall is ordered.

use crate::AppState;
use crate::agent_api::wire_allocation::to_wire_allocation;
use crate::controller_identity::refuse_shared_controller;
use crate::operator_api::reinstall_plan::{HypotheticalOrder, simulate_order};
use crate::operator_api::reinstalls::ReinstallRequest;
use crate::plan_input::{INPUT_NOT_READY, parse_registration};
use axum::http::StatusCode;
use common::error_code::ErrorCode;
use common::format::format_bytes;
use common::format::metal_api_phrase_replacement::reword_metal_phrases;
use common::type_errors::locate_json_error;
use http_server::api_error::ApiError;
use model::allocation;
use plan::DiskVerdict;
use plan::request_from_allocation::preview::preview_plan;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use site::allocation_resolution::{ResolvedAllocation, resolve_before_approval};
use site::approved_input_digests::{InputDigests, describe_changed_input, digest_inputs, list_changed_inputs};
use site::operator_files::MachineSpec;
use std::collections::BTreeSet;
use store::{InstallState, StoredRegistration};

/// Beginning of the message about a plan that is refused.
pub const PLAN_REFUSED: &str = "the plan is refused: ";

/// Prefix of a message about a plan that cannot be determined from the registered inventory.
const PLAN_UNKNOWN: &str = "the plan is unknown: ";
/// Base URL in the planned allocation; never contacted.
const URL: &str = "http://server";

/// Requested reinstall of a member with its approval, as stored in the database.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) struct MemberRequest {
    pub(super) request: ReinstallRequest,
    /// Digests of the inputs at the time of the request.
    #[serde(default)]
    inputs: InputDigests,
    /// Data that would be lost; `None` if the machine's hardware was not registered.
    #[serde(default)]
    pub(super) forecast: Option<LossForecast>,
    /// Project of the machine.
    #[serde(default)]
    project: Option<String>,
    /// Id of the suspended or abandoned order that existed at the time of the request, and that the member's order
    /// replaces.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) replaces: Option<String>,
}

/// Data that a reinstall would lose.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct LossForecast {
    pub(super) lost_bytes: u64,
    /// Disks that would be wiped, by serial number.
    wiped: BTreeSet<String>,
}

impl MemberRequest {
    /// Parses the stored document.
    ///
    /// # Errors
    /// Returns an error if a later version has written the document.
    pub(super) fn parse(document: &Value) -> Result<MemberRequest, String> {
        MemberRequest::deserialize(document)
            .map_err(|error| format!("cannot parse the stored request: {}", locate_json_error(&error)))
    }

    /// Checks that the inputs are unchanged since the request, and that the reinstall would not lose more data.
    ///
    /// # Errors
    /// Returns a description of the changes.
    pub(super) async fn check_unchanged(&self, app: &AppState) -> Result<(), ApiError> {
        let present = evaluate_member(app, &self.request).await?;
        if self.project != present.project {
            // The message does not name the current project, because the user who has requested the rollout might have
            // no access to this project.
            let why = "the machine belongs to another project since the rollout was ordered";
            return Err(ApiError::new(StatusCode::CONFLICT, why).with_error_code(ErrorCode::ApprovalMismatch));
        }
        let changed = list_changed_inputs(&self.inputs, &present.inputs);
        let image = &self.request.imageid;
        let changed: Vec<String> = changed.iter().map(|name| describe_changed_input(name, image)).collect();
        let changed =
            if changed.is_empty() { self.explain_loss(present.forecast.as_ref()) } else { Some(changed.join("; ")) };
        changed.map_or(Ok(()), |why| {
            let why = format!("changed since the rollout was ordered: {why}");
            Err(ApiError::new(StatusCode::CONFLICT, why).with_error_code(ErrorCode::ApprovalMismatch))
        })
    }

    /// Returns a reason if the reinstall would now lose data that it would not have lost at the time of the request.
    fn explain_loss(&self, present: Option<&LossForecast>) -> Option<String> {
        let (approved, Some(present)) = (self.forecast.as_ref()?, present) else {
            return Some("the hardware of the machine is no longer registered".to_owned());
        };
        let added: Vec<&str> = present.wiped.difference(&approved.wiped).map(String::as_str).collect();
        if !added.is_empty() {
            return Some(format!("the reinstall would now also wipe these disks: {disks}", disks = added.join(", ")));
        }
        let [now, before] = [present, approved].map(|forecast| format_bytes(forecast.lost_bytes));
        (present.lost_bytes > approved.lost_bytes).then(|| {
            format!("the reinstall would now discard {now} of data, but {before} when the rollout was ordered")
        })
    }
}

/// Checks that the reinstall of a member can be ordered, and returns the request together with its approval.
///
/// # Errors
/// Returns the reason why the reinstall cannot be ordered.
pub(super) async fn approve_member(
    app: &AppState,
    request: &ReinstallRequest,
    power_cycle: bool,
) -> Result<MemberRequest, ApiError> {
    let approved = evaluate_member(app, request).await?;
    let directory = app.directory();
    let controller = directory.find_machine(&request.id).and_then(|machine| machine.bmc.as_ref());
    match controller {
        Some(bmc) if power_cycle => refuse_shared_controller(app, &request.id, &bmc.at)
            .map_err(|refusal| refusal.with_error_code(ErrorCode::RolloutRefused))?,
        None if power_cycle => {
            let why = "the machine file does not name a management controller (`bmc:`), so the machine cannot be \
                 power-cycled";
            return Err(ApiError::new(StatusCode::CONFLICT, why).with_error_code(ErrorCode::RolloutRefused));
        }
        _ => {}
    }
    if let Some(plan) = &request.approved {
        let changed = list_changed_inputs(&plan.inputs, &approved.inputs);
        if let Some(name) = changed.first() {
            let why =
                format!("the plan is outdated: {changes}", changes = describe_changed_input(name, &request.imageid));
            return Err(ApiError::new(StatusCode::CONFLICT, why).with_error_code(ErrorCode::ApprovalMismatch));
        }
    }
    Ok(approved)
}

/// Plans the reinstall with the registered hardware, and checks that the plan is not refused. The check passes if no
/// plan can be made yet, because the hardware is not registered, the allocation is not complete, or the disks must
/// be read again.
///
/// # Errors
/// Returns the reasons why the plan is refused, or why the reinstall cannot be ordered.
pub(crate) async fn require_plan(app: &AppState, request: &ReinstallRequest) -> Result<(), ApiError> {
    let HypotheticalOrder { machine, install_state, .. } = simulate_order(app, request).await?;
    let Ok(Some(resolved)) = resolve_before_approval(&machine, &install_state, &app.directory().known) else {
        return Ok(());
    };
    let Err(error) = forecast_loss(app, &machine, &resolved, install_state).await else { return Ok(()) };
    let (status, message) = error.parts();
    match message.starts_with(PLAN_REFUSED) {
        true => Err(ApiError::new(status, message)),
        false => Ok(()),
    }
}

async fn evaluate_member(app: &AppState, request: &ReinstallRequest) -> Result<MemberRequest, ApiError> {
    let HypotheticalOrder { machine, install_state, replaces } = simulate_order(app, request).await?;
    let conflict = |why: String| ApiError::new(StatusCode::CONFLICT, why);
    let resolved = resolve_before_approval(&machine, &install_state, &app.directory().known).map_err(conflict)?;
    let resolved = resolved.ok_or_else(|| conflict(INPUT_NOT_READY.to_owned()))?;
    let inputs = digest_inputs(&resolved);
    let forecast = forecast_loss(app, &machine, &resolved, install_state).await?;
    Ok(MemberRequest { request: request.clone(), inputs, forecast, project: machine.project, replaces })
}

/// Plans the reinstall from the registered hardware. Returns `None` if the machine has never registered its hardware.
async fn forecast_loss(
    app: &AppState,
    machine: &MachineSpec,
    resolved: &ResolvedAllocation,
    install_state: InstallState,
) -> Result<Option<LossForecast>, ApiError> {
    let Some(row) = app.state.find_registration(&machine.id).await? else { return Ok(None) };
    let is_installed = install_state.is_installed();
    let assigned = allocation::AssignedMachine {
        id: machine.id.clone(),
        name: machine.name.clone(),
        size: machine.size.clone().map(|id| allocation::IdReference { id }),
        allocation: Some(to_wire_allocation(resolved, install_state, URL, false)),
        newest_move: None,
    };
    let plan = app.planner.run_job(&machine.id, move || plan_loss(&assigned, row, is_installed)).await?;
    plan.map_err(|why| ApiError::new(StatusCode::CONFLICT, why))
}

fn plan_loss(
    assigned: &allocation::AssignedMachine,
    row: StoredRegistration,
    is_installed: bool,
) -> Result<Option<LossForecast>, String> {
    let Some(registered) = parse_registration(row, &assigned.id, is_installed)? else { return Ok(None) };
    if registered.inventory.find_impossible_property().is_some() {
        return Ok(None);
    }
    let allocation = assigned.allocation.clone().unwrap_or_default();
    let planned = preview_plan(assigned, allocation, registered.inventory, registered.outdated).map_err(|refused| {
        let prefix = if refused.is_unknown() { PLAN_UNKNOWN } else { PLAN_REFUSED };
        format!("{prefix}{reasons}", reasons = reword_metal_phrases(&refused.reasons()))
    })?;
    let wiped = planned
        .disks
        .iter()
        .filter(|disk| matches!(disk.verdict, DiskVerdict::Wipe | DiskVerdict::Make | DiskVerdict::PartlyKept));
    Ok(Some(LossForecast {
        lost_bytes: planned.disks.iter().fold(0, |sum: u64, disk| sum.saturating_add(disk.lost_bytes)),
        wiped: wiped
            .map(|disk| if disk.serial.is_empty() { disk.device.clone() } else { disk.serial.clone() })
            .collect(),
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn forecast(lost_bytes: u64, wiped: &[&str]) -> LossForecast {
        LossForecast { lost_bytes, wiped: wiped.iter().map(|serial| (*serial).to_owned()).collect() }
    }

    #[test]
    fn only_a_greater_data_loss_is_refused() {
        let member = |forecast| MemberRequest {
            request: ReinstallRequest::default(),
            inputs: InputDigests::new(),
            project: None,
            forecast,
            replaces: None,
        };
        let approved = member(Some(forecast(10, &["S1", "S2"])));
        for unchanged in [forecast(10, &["S1", "S2"]), forecast(9, &["S1"]), forecast(0, &[])] {
            assert_eq!(approved.explain_loss(Some(&unchanged)), None);
        }
        assert_eq!(member(None).explain_loss(Some(&forecast(99, &["S1"]))), None, "nothing was approved");
        let why = approved.explain_loss(Some(&forecast(5, &["S1", "S3"])));
        assert_eq!(why.as_deref(), Some("the reinstall would now also wipe these disks: S3"));
        let why = approved.explain_loss(Some(&forecast(11, &["S1"]))).unwrap();
        assert!(why.contains("would now discard 11 B") && why.contains("but 10 B when"), "{why}");
        assert!(approved.explain_loss(None).unwrap().contains("no longer registered"));
    }
}
