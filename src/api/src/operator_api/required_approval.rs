//! Approval that a new reinstall order requires.

use super::reinstalls::{OrderableReinstall, ReinstallRequest};
use crate::AppState;
use crate::full_install_state::add_approval;
use http_server::api_error::ApiError;

/// Returns the digest of the approved plan that the order will require: the plan in the request, or the approval that is
/// in force. Returns `None` if no usable approval is in force; the order then requires none.
///
/// # Errors
/// Returns an error if the database cannot be read.
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
    Ok(install_state.approved.and_then(Result::ok).map(|approval| approval.digest().to_owned()))
}
