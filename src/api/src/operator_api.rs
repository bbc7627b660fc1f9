//! The operator's API. `machine_list` lists machines with the cache of [`summary_cache`], `reinstalls` orders
//! reinstalls, and `restored_machine_confirmation` confirms machines after a restore. This module itself adopts and
//! renames machines.

pub mod machine_list;
mod machine_summary;
pub(crate) mod new_order_approval;
pub mod order_descriptions;
pub(crate) mod order_recheck;
mod reinstall_overrides;
pub mod reinstall_plan;
pub mod reinstalls;
pub(crate) mod restored_machine_confirmation;
pub mod summary_cache;

use super::AppState;
use super::access::{self, Identity};
use super::request_body::{EVENT_BYTES, read_operator_document};
use axum::Json;
use axum::body::Body;
use axum::extract::rejection::QueryRejection;
use axum::extract::{FromRequestParts, Path, Query, State};
use axum::http::request::Parts;
use axum::http::{Extensions, StatusCode};
use common::error_code::ErrorCode;
use http_server::api_error::ApiError;
use http_server::client_address::ClientAddress;
pub(crate) use machine_list::count_phases;
pub use machine_list::{list_machines, list_with_new_machines, summarize_machine, summarize_new_machine};
pub use machine_summary::{MachineFailure, MachineSummary};
use serde::{Deserialize, Serialize};
use site::boot_value_validation;
use site::operator_files::DEFAULT_ID;
use site::operator_files::MachineSpec;
use site::snapshot::SiteSnapshot;
use std::sync::Arc;
use store::{ATTEMPTS, AdoptOutcome, ConfirmedMarker, RenameOutcome};
pub use store::{ReinstallOrder, ReinstallOutcome, SHORT_DIGEST_DIGITS, WaitingMarker};
use uuid::Uuid;

/// Request body: the new id of a machine.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct RenameRequest {
    pub id: String,
}

/// Extractor that proves the authorization of a user: a handler with this extractor is called only for authorized
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

/// Query of `POST /v1/machine/{id}/adopt`.
#[derive(Debug, Default, Deserialize, schemars::JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct AdoptionQuery {
    /// Digest of the install marker that the operator has seen, or `none` if there was no marker. If absent, the marker
    /// that the machine has reported last is adopted.
    marker: Option<String>,
}

/// Value of `marker` if the operator has seen that the machine has not reported an install marker.
pub const NO_MARKER: &str = "none";

impl AdoptionQuery {
    fn into_confirmed(self) -> Result<Option<ConfirmedMarker>, ApiError> {
        let Some(marker) = self.marker else { return Ok(None) };
        match marker.strip_prefix("sha256:") {
            None if marker == NO_MARKER => Ok(Some(ConfirmedMarker::Absent)),
            Some(digits) if digits.len() == 64 && digits.bytes().all(|byte| byte.is_ascii_hexdigit()) => {
                Ok(Some(ConfirmedMarker::Digest(marker)))
            }
            _ => Err(ApiError::bad_request(format!(
                "marker: must be `sha256:` and 64 hexadecimal digits, or {NO_MARKER}"
            ))),
        }
    }
}

/// `POST /v1/machine/{id}/adopt`: records that the machine's allocation is installed. Operators send this request if
/// the server has lost the record of the installation.
pub(crate) async fn adopt_machine(
    State(app): State<Arc<AppState>>,
    Path(id): Path<String>,
    _: OperatorAuth,
    peer: ClientAddress,
    query: Result<Query<AdoptionQuery>, QueryRejection>,
) -> Result<Json<MachineSummary>, ApiError> {
    let Query(query) = query.map_err(|error| ApiError::bad_request(error.to_string()))?;
    let (id, confirmed) = (id.to_lowercase(), query.into_confirmed()?);
    let (machine, allocation) = find_allocated(&app, &id)?;
    match app.state.adopt_allocation(&id, &allocation, confirmed).await? {
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
/// Returns an error if `machines/` does not contain a file for the machine, or the file has an error and no version of
/// it is in force.
pub fn find_machine(app: &AppState, id: &str) -> Result<MachineSpec, ApiError> {
    let directory = app.directory();
    directory.find_machine(id).cloned().ok_or_else(|| unknown_machine(&directory, id))
}

/// Returns the error for a machine that is not known. If the machine file has an error, the message contains this
/// error.
pub(crate) fn unknown_machine(directory: &SiteSnapshot, id: &str) -> ApiError {
    let missing = || ApiError::not_found(format!("machines/ contains no machine {id}"));
    explain_file_error(directory, id).unwrap_or_else(missing)
}

/// Returns the error for a machine whose file has an error and no version in force; `None` for all other machines.
pub fn explain_file_error(directory: &SiteSnapshot, id: &str) -> Option<ApiError> {
    let problem = access::visible_file_error(&directory.machine_errors.find_unusable(id)?.problem);
    let why = format!("{problem}; correct the file, then repeat the command");
    Some(ApiError::new(StatusCode::UNPROCESSABLE_ENTITY, why).with_error_code(ErrorCode::SiteFile))
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
            // There may be no machine with the new id yet, because the machine file may still contain the old id.
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

/// Parses the old id of a machine. Accepts default UUIDs of vendors, although they are rejected as new ids: earlier
/// versions accepted default UUIDs as ids, and machines with such ids must be renamed.
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

/// Beginning of metal-api's error message for a reinstall that cannot be ordered.
const INVALID_REINSTALL: &str = "machine either locked, not allocated yet or invalid image ID specified";

/// Returns metal-api's error for a reinstall that cannot be ordered. The error message contains the exact reason.
pub(crate) fn invalid_reinstall(what: String) -> ApiError {
    ApiError::bad_request(format!("{INVALID_REINSTALL}: {what}")).with_error_code(ErrorCode::ReinstallRefused)
}

/// Returns metal-api's error for the reinstall of a locked machine. `why` is the description of the lock.
pub(crate) fn locked_machine(id: &str, why: &str) -> ApiError {
    ApiError::bad_request(format!("{INVALID_REINSTALL}: machine {id} is {why}"))
        .with_error_code(ErrorCode::MachineLocked)
}
