//! Approval that a new reinstall order requires.

use super::reinstalls::{OrderableReinstall, ReinstallRequest};
use crate::AppState;
use crate::install_state_enrichment::add_approval;
use axum::http::StatusCode;
use common::error_code::ErrorCode;
use http_server::api_error::ApiError;

/// Returns the digest of the approved plan that the order will require: the plan in the request, or the approval that
/// is in force. Returns `None` if no approval is in force; the order then requires none.
///
/// # Errors
/// Returns an error if the database cannot be read. Also returns an error (409) if the machine's approval cannot be
/// used: an order without it would be carried out with any plan as soon as the unusable file is removed.
pub(crate) async fn find_required_approval(
    app: &AppState,
    reinstall_request: &ReinstallRequest,
    orderable: &OrderableReinstall,
) -> Result<Option<String>, ApiError> {
    if let Some(approved) = &reinstall_request.approved {
        return Ok(Some(approved.sha256.clone()));
    }
    let OrderableReinstall { machine, allocation, install_state, .. } = orderable;
    let known = &app.directory().known;
    let install_state = add_approval(app, &machine.id, allocation, install_state.clone(), known).await?;
    match install_state.approved {
        Some(Ok(approval)) => Ok(Some(approval.digest().to_owned())),
        Some(Err(why)) => Err(refuse_unusable_approval(&machine.id, &why)),
        None => Ok(None),
    }
}

fn refuse_unusable_approval(machine: &str, why: &str) -> ApiError {
    let why = ErrorCode::ApprovalMismatch.annotate(format!(
        "the machine's approval cannot be used, so the order cannot require the approved plan: {why}; approve the plan \
         again with `drophammer site plan DIR --machine {machine} --approve`, or remove the file to order the reinstall \
         without an approval"
    ));
    ApiError::new(StatusCode::CONFLICT, why)
}
