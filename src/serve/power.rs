//! The operator switches a machine, whose file says how.

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
    let directory = app.directory();
    let machine =
        directory.machine(&id).ok_or_else(|| ApiError::not_found(format!("there is no machine {id} in machines/")))?;
    let none = || {
        let how = "write `bmc:` with url, username and password into it, or say them with --bmc";
        ApiError::new(StatusCode::CONFLICT, format!("the file of machine {id} does not say how it is switched: {how}"))
    };
    let bmc = machine.bmc.clone().ok_or_else(none)?;
    let name = directory.name(&id).to_owned();
    // The controller has the UUID of the firmware, which is not that of a file whose id was made up.
    let uuid = machine.smbios_uuid.map_or_else(|| id.clone(), |uuid| uuid.to_string());
    let done = resting(tokio::task::spawn_blocking(move || bmc.act(action, Some(&uuid)))).await;
    let done = done.map_err(|_| ApiError::new(StatusCode::INTERNAL_SERVER_ERROR, "it could not be asked"))?;
    let warning = done.map_err(|error| ApiError::new(StatusCode::BAD_GATEWAY, error.to_string()))?;
    warning.into_iter().for_each(|warning| app.alarm(format!("{name}: {warning}")));
    app.watch.note(format!("{name}: {action}, by the word of {peer}"));
    Ok(Json(Power { action }))
}
