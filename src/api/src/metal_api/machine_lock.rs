//! Locks of machines. The machine file contains the reason of the lock.

use super::api_refusal::{ApiRefusal, ApiResult};
use super::machine_file_edits::rewrite_machine_file;
use super::{EditPermit, EditRequest};
use crate::operator_api::{MachineSummary, find_machine, summarize_machine};
use crate::request_body::EVENT_BYTES;
use axum::Json;
use axum::extract::Path;
use common::error_code::ErrorCode;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use site::operator_files::MachineSpec;

/// Request body: the reason for a lock.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct LockRequest {
    pub reason: String,
}

/// `POST /v1/machine/{id}/lock`: locks a machine. The request is refused if the machine is locked for a different
/// reason.
pub(crate) async fn lock_machine(
    Path(id): Path<String>,
    EditRequest { document: lock_request, permit }: EditRequest<LockRequest, EVENT_BYTES>,
) -> ApiResult<Json<MachineSummary>> {
    let machine = find_machine(&permit.app, &id.to_lowercase())?;
    let reason = lock_request.reason.trim();
    match machine.explain_lock() {
        Some(_) if machine.locked.as_deref() == Some(reason) => {}
        Some(why) => {
            let why = format!(
                "machine {machine} is {why}; then lock the machine again with the new reason",
                machine = machine.id
            );
            return Err(ApiRefusal::conflict(why).with_error_code(ErrorCode::MachineLocked));
        }
        None if reason.is_empty() => return Err(ApiRefusal::bad_request("a lock requires a reason")),
        None => set_lock(&permit, &machine.id, Some(reason)).await?,
    }
    summarize_current(&permit, &machine.id).await
}

/// `DELETE /v1/machine/{id}/lock`: unlocks a machine. The request has no effect if the machine is not locked.
pub(crate) async fn unlock_machine(Path(id): Path<String>, permit: EditPermit) -> ApiResult<Json<MachineSummary>> {
    let machine = find_machine(&permit.app, &id.to_lowercase())?;
    if machine.locked.is_some() {
        set_lock(&permit, &machine.id, None).await?;
    }
    summarize_current(&permit, &machine.id).await
}

async fn summarize_current(permit: &EditPermit, id: &str) -> ApiResult<Json<MachineSummary>> {
    let machine = find_machine(&permit.app, id)?;
    Ok(Json(summarize_machine(&permit.app, &machine).await?))
}

/// Locks the machine with a reason, or unlocks it if no reason is given.
///
/// # Errors
/// Returns an error if the file was changed concurrently, or if the reason is invalid.
pub async fn set_lock(permit: &EditPermit, id: &str, reason: Option<&str>) -> ApiResult<()> {
    if reason.is_some_and(|reason| ["true", "false"].contains(&reason)) {
        return Err(ApiRefusal::bad_request("the reason of a lock must be text, not true or false"));
    }
    let EditPermit { app, peer, directory, .. } = permit;
    let before = directory.find_machine(id).and_then(|machine| machine.locked.clone());
    let change = |document: &mut Map<String, Value>| {
        drop(match reason {
            Some(reason) => document.insert("locked".to_owned(), Value::from(reason)),
            None => document.remove("locked"),
        });
    };
    let is_unchanged = |machine: &MachineSpec| machine.locked == before;
    let becomes = |machine: &MachineSpec| machine.locked.is_some() == reason.is_some();
    rewrite_machine_file(app, id, is_unchanged, change, becomes, str::to_owned).await?;
    let name = directory.display_name(id);
    match reason {
        Some(reason) => app.watch.log_note(format!("{name}: {peer} locked the machine: {reason}")),
        None => app.watch.log_note(format!("{name}: {peer} unlocked the machine")),
    }
    Ok(())
}
