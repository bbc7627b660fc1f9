//! The operator's API: lists, adopts and renames machines. `reinstalls` orders reinstalls, and `restored_machine_confirmation` confirms
//! machines.

mod machine_summary;
pub mod reinstall_plan;
pub mod reinstalls;
pub(crate) mod restored_machine_confirmation;

use super::AppState;
use super::access::{self, Identity};
use super::agent_api::request_body::{EVENT_BYTES, read_operator_document};
use super::display_phase::DisplayPhase;
use super::migration_requests::migration_role::MachineMigration;
use super::out_of_band::progress::OutOfBandProgress;
use axum::Json;
use axum::body::Body;
use axum::extract::{FromRequestParts, Path, State};
use axum::http::request::Parts;
use axum::http::{Extensions, StatusCode};
use common::error_code::ErrorCode;
use http_server::api_error::ApiError;
use http_server::quotas::ClientAddress;
pub use machine_summary::{MachineFailure, MachineSummary, WaitingMarker};
use serde::{Deserialize, Serialize};
use site::boot_value_validation;
use site::effective_allocation::{find_allocation_differences, is_unrecorded};
use site::operator_files::DEFAULT_ID;
use site::operator_files::MachineSpec;
use std::sync::Arc;
use store::{ATTEMPTS, AdoptOutcome, RenameOutcome};
pub use store::{ReinstallOrder, ReinstallOutcome};
use uuid::Uuid;

/// Request body: the new id of a machine.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct RenameRequest {
    pub id: String,
}

/// Proof that a user was authorized for the request. A handler with this extractor is called only for authorized
/// requests.
pub struct OperatorAuth;

impl OperatorAuth {
    /// Returns whether the request is authorized.
    pub(crate) fn is_authorized(extensions: &Extensions) -> bool {
        extensions.get::<Identity>().is_some()
    }
}

impl FromRequestParts<Arc<AppState>> for OperatorAuth {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, _: &Arc<AppState>) -> Result<OperatorAuth, ApiError> {
        match OperatorAuth::is_authorized(&parts.extensions) {
            true => Ok(OperatorAuth),
            false => Err(access::unauthenticated_error()),
        }
    }
}

/// `GET /v1/machines`: lists the machines, sorted by name. Machines without a machine file follow.
pub(crate) async fn get_machines(
    State(app): State<Arc<AppState>>,
    _: OperatorAuth,
) -> Result<Json<Vec<MachineSummary>>, ApiError> {
    list_with_new_machines(&app).await.map(Json)
}

/// Returns the machines that have a machine file, sorted by name, followed by the machines that have registered without
/// a machine file, sorted by id.
pub async fn list_with_new_machines(app: &AppState) -> Result<Vec<MachineSummary>, ApiError> {
    let mut all = list_machines(app).await?;
    if access::current_projects().is_some() {
        // Machines without a machine file do not belong to a project.
        return Ok(all);
    }
    let directory = app.directory();
    for id in app.state.list_unknown_machines().await? {
        if directory.find_machine(&id).is_none() {
            all.extend(summarize_new_machine(app, &id).await?);
        }
    }
    Ok(all)
}

/// Returns the summary of a machine that has registered, but has no machine file. Returns `None` if the machine has not
/// registered.
pub async fn summarize_new_machine(app: &AppState, id: &str) -> Result<Option<MachineSummary>, ApiError> {
    if !app.state.is_recorded(id).await? {
        return Ok(None);
    }
    let contact = app.state.read_contact(id).await?;
    let summary = MachineSummary { new: true, ..MachineSummary::from_contact(id, contact) };
    Ok(Some(add_phase(app, summary)))
}

/// Sets the phase of a machine.
fn add_phase(app: &AppState, summary: MachineSummary) -> MachineSummary {
    let phase = DisplayPhase::current(app, &summary).word.to_owned();
    MachineSummary { phase, ..summary }
}

/// Returns the machines that have a machine file, sorted by name.
pub async fn list_machines(app: &AppState) -> Result<Vec<MachineSummary>, ApiError> {
    let directory = app.directory();
    let mut all = Vec::new();
    for machine in directory.machines() {
        all.push(summarize_machine(app, machine).await?);
    }
    all.sort_by(|one, other| (&one.name, &one.id).cmp(&(&other.name, &other.id)));
    Ok(all)
}

pub async fn summarize_machine(app: &AppState, machine: &MachineSpec) -> Result<MachineSummary, ApiError> {
    let allocation = machine.allocation.as_ref().map(|allocation| allocation.id.to_string());
    // Machines without an allocation may need confirmation too, so their state is read as well.
    let standing = app.state.read_install_state(&machine.id, allocation.as_deref().unwrap_or_default()).await?;
    let allocation_id = machine.allocation.as_ref().map(|allocation| &**allocation.id);
    let contact = app.state.read_contact(&machine.id).await?;
    let moving = app.state.find_live_migration(&machine.id).await?.map(|is| {
        let is_visible = app.may_see_migration(&is);
        let moving = MachineMigration::from_migration(&machine.id, is);
        if is_visible { moving } else { moving.hide_peer() }
    });
    let reported =
        standing.waits.as_ref().map(|marker| WaitingMarker { image: marker.image.clone(), time: marker.time.clone() });
    let waits = reported.clone().filter(|_| !standing.is_installed() && standing.elsewhere.is_none());
    let stored = standing.layout.as_ref().and_then(|layout| layout.get("id")?.as_str().map(str::to_owned));
    let in_file = machine.allocation.as_ref().map(|allocation| allocation.image.to_string());
    let order = standing.order.as_ref().map(|order| order.id.as_str()).unwrap_or_default();
    let run = app.state.find_out_of_band_run(&machine.id).await?;
    let run = run.filter(|run| run.is_for(allocation.as_deref().unwrap_or_default(), order));
    let out_of_band = run.as_ref().and_then(OutOfBandProgress::from_run);
    let differences = machine.allocation.as_ref().map(|file| find_allocation_differences(file, &standing));
    let failure = standing.failure.clone();
    let summary = MachineSummary {
        differences: differences.unwrap_or_default(),
        allocation_unrecorded: is_unrecorded(&standing),
        name: machine.name.clone(),
        project: machine.project.clone(),
        size: machine.size.clone(),
        allocation,
        wanted: standing.order.as_ref().map(|order| order.image.clone()).or(in_file),
        image: standing.image,
        layout: stored.or(standing.layout_id).filter(|_| standing.succeeded),
        installed: standing.succeeded,
        adopted: standing.adopted,
        claimed: standing.is_claimed,
        waits,
        needs_confirmation: standing.unconfirmed,
        not_clean: app.state.may_run_previous_system(&machine.id, allocation_id).await?,
        on_disk: reported.filter(|_| standing.unconfirmed && standing.succeeded),
        locked: machine.locked.clone(),
        out_of_band,
        order: standing.order,
        moving,
        outcome: standing.outcome,
        ..MachineSummary::from_contact(&machine.id, contact)
    };
    let failure = failure.map(|attempt| MachineFailure::new(attempt, &summary));
    Ok(add_phase(app, MachineSummary { failure, ..summary }))
}

/// `POST /v1/machine/{id}/adopt`: records that the machine's allocation is installed, if the server has lost its record
/// of the installation.
pub(crate) async fn adopt_machine(
    State(app): State<Arc<AppState>>,
    Path(id): Path<String>,
    _: OperatorAuth,
    peer: ClientAddress,
) -> Result<Json<MachineSummary>, ApiError> {
    let id = id.to_lowercase();
    let (machine, allocation) = find_allocated(&app, &id)?;
    match app.state.adopt_allocation(&id, &allocation).await? {
        AdoptOutcome::Adopted => {
            let name = app.directory().display_name(&id).to_owned();
            app.watch.log_note(format!(
                "{name}: {peer} recorded allocation {allocation} as installed: the server trusts the install marker on the machine's disks, and does not install the machine again"
            ));
            app.request_reload();
            Ok(Json(summarize_machine(&app, &machine).await?))
        }
        AdoptOutcome::Rejected(why) => Err(ApiError::new(StatusCode::CONFLICT, why)),
    }
}

/// Returns the machine and the id of its allocation.
///
/// # Errors
/// Returns an error if the machine does not exist or is not allocated.
pub fn find_allocated(app: &AppState, id: &str) -> Result<(MachineSpec, String), ApiError> {
    let machine = find_machine(app, id)?;
    let none = || invalid_reinstall(format!("the file of machine {id} does not contain an allocation"));
    let allocation = machine.allocation.as_ref().ok_or_else(none)?.id.to_string();
    Ok((machine, allocation))
}

/// Returns the machine with this id.
///
/// # Errors
/// Returns an error if `machines/` does not contain a file for the machine.
pub fn find_machine(app: &AppState, id: &str) -> Result<MachineSpec, ApiError> {
    let unknown = || ApiError::not_found(format!("machines/ contains no machine {id}"));
    app.directory().find_machine(id).cloned().ok_or_else(unknown)
}

/// `POST /v1/machine/{id}/rename`: moves the records of a machine to its new id.
pub(crate) async fn rename_machine(
    State(app): State<Arc<AppState>>,
    Path(old): Path<String>,
    _: OperatorAuth,
    peer: ClientAddress,
    body: Body,
) -> Result<Json<MachineSummary>, ApiError> {
    let RenameRequest { id: new } = read_operator_document(&app, peer, body, EVENT_BYTES).await?;
    let (old, new) = (parse_old_id(&old)?, parse_new_id(&new)?);
    if old == new {
        return Err(ApiError::bad_request(format!("the machine already has the id {new}")));
    }
    match app.state.rename_machine(&old, &new).await? {
        RenameOutcome::Done => {
            let directory = app.directory();
            app.watch.log_note(format!("machine {old} was renamed to {new} by {peer}"));
            app.request_reload();
            // The machine file may still contain the old id.
            let machine = directory.find_machine(&new);
            let named = MachineSummary { id: new.clone(), attempts: ATTEMPTS, ..MachineSummary::default() };
            Ok(Json(match machine {
                Some(machine) => summarize_machine(&app, machine).await?,
                None => named,
            }))
        }
        RenameOutcome::Refused(why) => Err(ApiError::new(StatusCode::CONFLICT, why)),
    }
}

/// Parses the old id of a machine. Default UUIDs of vendors are accepted as old ids, although they are rejected as new
/// ids. Earlier versions accepted such ids, and a machine with such an id must be renamed.
fn parse_old_id(text: &str) -> Result<String, ApiError> {
    match Uuid::try_parse(text) {
        Ok(uuid) if text.len() == 36 => Ok(uuid.to_string()),
        _ => parse_new_id(text),
    }
}

fn parse_new_id(text: &str) -> Result<String, ApiError> {
    let default = || ApiError::bad_request(format!("{text} {DEFAULT_ID}"));
    boot_value_validation::parse_uuid(text).map_err(ApiError::bad_request)?.ok_or_else(default)
}

/// Returns metal-api's error for a reinstall that cannot be ordered. The error message contains the exact reason.
pub(crate) fn invalid_reinstall(what: String) -> ApiError {
    ApiError::bad_request(format!("machine either locked, not allocated yet or invalid image ID specified: {what}"))
        .with_error_code(ErrorCode::ReinstallRefused)
}
