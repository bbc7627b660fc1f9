//! Check that the agent has compared its plan with the plan that the operator approved.

use super::{AppState, install_state_enrichment};
use http_server::api_error::ApiError;
use site::snapshot::SiteSnapshot;

/// Checks that the agent has compared its plan with the approval in force. After this comparison, an agent sends the
/// digest of the approval in its request. Agents of earlier versions do not compare their plans with approvals.
///
/// # Errors
/// Returns an error if the database cannot be read. The inner error is the reason why the agent must wait.
pub(crate) async fn check_compared(
    app: &AppState,
    directory: &SiteSnapshot,
    id: &str,
    allocation: &str,
    said: Option<&str>,
) -> Result<Result<(), String>, ApiError> {
    let install_state = app.state.read_install_state(id, allocation).await?;
    let install_state =
        install_state_enrichment::add_approval(app, id, allocation, install_state, &directory.known).await?;
    Ok(match (directory.known.approvals.approval_for_agent(id, &install_state), said) {
        (Err(why), _) => Err(why),
        (Ok(None), _) => Ok(()),
        (Ok(Some(approved)), Some(said)) if approved.sha256 == said => Ok(()),
        (Ok(Some(approved)), Some(said)) => Err(format!(
            "the agent compared its plan with approval {said}, but approval {current} is now in effect",
            current = approved.sha256
        )),
        (Ok(Some(approved)), None) => Err(format!(
            "the agent has not compared its plan with the current approval {current}: either the plan was approved \
            after the agent had made its plan, or the agent is too old to compare plans with approvals",
            current = approved.sha256
        )),
    })
}
