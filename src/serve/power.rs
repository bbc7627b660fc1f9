//! Power control of a machine through the controller in its file.

use super::App;
use super::api::bodies::{EVENT_BYTES, read};
use super::api_error::ApiError;
use super::operator::Operator;
use super::peers::Peer;
use super::requests::resting;
use crate::bmc::Action;
use axum::Json;
use axum::body::Body;
use axum::extract::{Path, State};
use axum::http::StatusCode;
use serde::{Deserialize, Serialize};
use std::sync::Arc;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct Power {
    pub action: Action,
}

/// `POST /v1/machine/{id}/power`.
pub async fn power(
    State(app): State<Arc<App>>,
    Path(id): Path<String>,
    _: Operator,
    peer: Peer,
    body: Body,
) -> Result<Json<Power>, ApiError> {
    let Power { action } = read(&app, peer, body, EVENT_BYTES).await?;
    let id = id.to_lowercase();
    switch(&app, &id, action).await?;
    app.watch.note(format!("{}: {action}, as requested by {peer}", app.directory().name(&id)));
    Ok(Json(Power { action }))
}

/// Switches the machine through the controller in its file.
///
/// # Errors
/// The file does not name a controller, or the controller fails.
pub async fn switch(app: &App, id: &str, action: Action) -> Result<(), ApiError> {
    let directory = app.directory();
    let machine =
        directory.machine(id).ok_or_else(|| ApiError::not_found(format!("machines/ contains no machine {id}")))?;
    let none = || {
        let how = "add `bmc:` with url, username and password to it, or use --bmc";
        ApiError::new(
            StatusCode::CONFLICT,
            format!("the file of machine {id} does not name a management controller: {how}"),
        )
    };
    let bmc = machine.bmc.clone().ok_or_else(none)?;
    // The controller reports the UUID of the firmware, which differs from an invented id.
    let uuid = machine.smbios_uuid.map_or_else(|| id.to_owned(), |uuid| uuid.to_string());
    let done = resting(tokio::task::spawn_blocking(move || bmc.act(action, Some(&uuid)))).await;
    let done = done.map_err(|_| {
        ApiError::new(StatusCode::INTERNAL_SERVER_ERROR, "the request to the management controller failed")
    })?;
    let warning = done.map_err(|error| ApiError::new(StatusCode::BAD_GATEWAY, error.to_string()))?;
    warning.into_iter().for_each(|warning| app.alarm(format!("{}: {warning}", directory.name(id))));
    Ok(())
}
