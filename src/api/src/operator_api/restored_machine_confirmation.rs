//! Requests with which an operator confirms that the server's records of machines are up to date, after the database
//! was restored from a backup.

use super::{MachineSummary, OperatorAuth, find_machine, list_machines, summarize_machine};
use crate::AppState;
use crate::access::set_audited_object;
use axum::Json;
use axum::extract::{Path, State};
use axum::http::StatusCode;
use http_server::api_error::ApiError;
use http_server::client_address::ClientAddress;
use std::sync::Arc;
use store::ConfirmOutcome;

/// `POST /v1/machine/{id}/confirm`: confirms that the server's record of a machine is up to date.
pub(crate) async fn confirm_machine(
    State(app): State<Arc<AppState>>,
    Path(id): Path<String>,
    _: OperatorAuth,
    peer: ClientAddress,
) -> Result<Json<MachineSummary>, ApiError> {
    let id = id.to_lowercase();
    let machine = find_machine(&app, &id)?;
    check_outcome(app.state.confirm_machine(&id).await?)?;
    app.watch.log_note(format!(
        "{machine}: {peer} confirmed the server's record of the machine",
        machine = app.directory().display_name(&id)
    ));
    app.request_reload();
    Ok(Json(summarize_machine(&app, &machine).await?))
}

/// `POST /v1/machines/confirm`: confirms that the server's records of all machines are up to date.
pub(crate) async fn confirm_all_machines(
    State(app): State<Arc<AppState>>,
    _: OperatorAuth,
    peer: ClientAddress,
) -> Result<Json<Vec<MachineSummary>>, ApiError> {
    set_audited_object("all machines");
    check_outcome(app.state.confirm_all_machines().await?)?;
    app.watch.log_note(format!("{peer} confirmed the server's records of all machines"));
    app.request_reload();
    list_machines(&app).await.map(Json)
}

fn check_outcome(outcome: ConfirmOutcome) -> Result<(), ApiError> {
    match outcome {
        ConfirmOutcome::Confirmed => Ok(()),
        ConfirmOutcome::NothingToConfirm => {
            let why = "no machine needs confirmation: the database was not restored, or all machines are confirmed";
            Err(ApiError::new(StatusCode::CONFLICT, why))
        }
    }
}
