//! Confirmation of machines after the database was restored from a backup.

use super::{Listed, Operator, all, listed, listed_machine};
use crate::serve::App;
use crate::serve::api_error::ApiError;
use crate::serve::peers::Peer;
use crate::serve::state::ConfirmOutcome;
use axum::Json;
use axum::extract::{Path, State};
use axum::http::StatusCode;
use std::sync::Arc;

/// `POST /v1/machine/{id}/confirm`: confirms that the record of a machine is up to date.
pub async fn confirm(
    State(app): State<Arc<App>>,
    Path(id): Path<String>,
    _: Operator,
    peer: Peer,
) -> Result<Json<Listed>, ApiError> {
    let id = id.to_lowercase();
    let machine = listed_machine(&app, &id)?;
    changed(app.state.confirm(&id).await?)?;
    app.watch.note(format!("{}: {peer} confirmed the server's record of it", app.directory().name(&id)));
    app.state_has_changed();
    Ok(Json(listed(&app, &machine).await?))
}

/// `POST /v1/machines/confirm`: confirms that the records of all machines are up to date.
pub async fn confirm_all(State(app): State<Arc<App>>, _: Operator, peer: Peer) -> Result<Json<Vec<Listed>>, ApiError> {
    changed(app.state.confirm_all().await?)?;
    app.watch.note(format!("{peer} confirmed the server's records of all machines"));
    app.state_has_changed();
    all(&app).await.map(Json)
}

fn changed(outcome: ConfirmOutcome) -> Result<(), ApiError> {
    match outcome {
        ConfirmOutcome::Confirmed => Ok(()),
        ConfirmOutcome::NothingToConfirm => {
            let why = "no machine needs confirmation: the database was not restored, or all machines are confirmed";
            Err(ApiError::new(StatusCode::CONFLICT, why))
        }
    }
}
