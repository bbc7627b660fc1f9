//! Power control of a machine through the management controller that its machine file specifies.

use super::AppState;
use super::agent_api::request_body::{EVENT_BYTES, read_operator_document};
use super::operator::OperatorAuth;
use axum::Json;
use axum::body::Body;
use axum::extract::{Path, State};
use axum::http::StatusCode;
use bmc::{PowerAction, PowerState, TargetMachine, read_power_state, switch_power};
use common::error::Error;
use http_server::api_error::ApiError;
use http_server::quotas::ClientAddress;
use http_server::request_context::yield_turn;
use model::bmc::Bmc;
use serde::{Deserialize, Serialize};
use std::sync::Arc;
use store::StoredRegistration;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct PowerRequest {
    pub action: PowerAction,
}

/// Power state of a machine, as its management controller reports it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct PowerStateResponse {
    pub state: PowerState,
}

/// `GET /v1/machine/{id}/power`: reads the power state of the machine.
pub(crate) async fn get_power(
    State(app): State<Arc<AppState>>,
    Path(id): Path<String>,
    _: OperatorAuth,
) -> Result<Json<PowerStateResponse>, ApiError> {
    let state = ask_controller(&app, &id.to_lowercase(), read_power_state).await?;
    Ok(Json(PowerStateResponse { state }))
}

/// `POST /v1/machine/{id}/power`: switches the machine on or off, restarts it, or sets its next boot device.
pub(crate) async fn post_power(
    State(app): State<Arc<AppState>>,
    Path(id): Path<String>,
    _: OperatorAuth,
    peer: ClientAddress,
    body: Body,
) -> Result<Json<PowerRequest>, ApiError> {
    let PowerRequest { action } = read_operator_document(&app, peer, body, EVENT_BYTES).await?;
    let id = id.to_lowercase();
    switch_as_requested(&app, &id, action, peer).await?;
    Ok(Json(PowerRequest { action }))
}

/// Performs the action that an operator has requested, and logs it.
///
/// # Errors
/// The file does not name a controller, or the controller fails.
pub async fn switch_as_requested(
    app: &AppState,
    id: &str,
    action: PowerAction,
    peer: ClientAddress,
) -> Result<(), ApiError> {
    switch_machine(app, id, action).await?;
    app.watch
        .log_note(format!("{machine}: {action}, as requested by {peer}", machine = app.directory().display_name(id)));
    Ok(())
}

/// Performs the action through the management controller in the machine file.
///
/// # Errors
/// The file does not name a controller, or the controller fails.
pub(crate) async fn switch_machine(app: &AppState, id: &str, action: PowerAction) -> Result<(), ApiError> {
    ask_controller(app, id, move |bmc, target| Ok(((), switch_power(bmc, action, target)?))).await
}

/// Sends a request to the management controller in the machine file, and logs the warning in the response.
async fn ask_controller<T: Send + 'static>(
    app: &AppState,
    id: &str,
    request: impl FnOnce(&Bmc, &TargetMachine) -> common::error::Result<(T, Option<String>)> + Send + 'static,
) -> Result<T, ApiError> {
    let directory = app.directory();
    let machine =
        directory.find_machine(id).ok_or_else(|| ApiError::not_found(format!("machines/ contains no machine {id}")))?;
    let none = || {
        let how = "add `bmc:` with url, username and password to the file, or use --bmc";
        ApiError::new(
            StatusCode::CONFLICT,
            format!("the file of machine {id} does not name a management controller: {how}"),
        )
        .with_code("controller-missing")
    };
    let bmc = machine.bmc.clone().ok_or_else(none)?;
    // The controller reports the UUID of the firmware. An id that the operator has chosen differs from it.
    let uuid = machine.smbios_uuid.map_or_else(|| id.to_owned(), |uuid| uuid.to_string());
    let registered = app.state.find_registration(id).await?;
    let ask = move || request(&bmc, &to_target(uuid, registered));
    let done = yield_turn(tokio::task::spawn_blocking(ask)).await;
    let done = done.map_err(|_| {
        ApiError::new(StatusCode::INTERNAL_SERVER_ERROR, "the request to the management controller failed")
    })?;
    let (response, warning) = done.map_err(|error| controller_failure(&error))?;
    warning.into_iter().for_each(|warning| app.log_rate_limited(format!("{}: {warning}", directory.display_name(id))));
    Ok(response)
}

/// Returns the error response for a management controller that fails, or does not carry out a request.
pub(crate) fn controller_failure(error: &Error) -> ApiError {
    ApiError::new(StatusCode::BAD_GATEWAY, error.to_string()).with_code("controller-failed")
}

/// Returns the machine with the firmware type of its registration. Parses the inventory, and must not run on a thread that serves requests.
pub(crate) fn to_target(uuid: String, registered: Option<StoredRegistration>) -> TargetMachine {
    let inventory = registered.and_then(|registered| registered.parse_inventory());
    TargetMachine { uuid: Some(uuid), firmware: inventory.map(|inventory| inventory.system.firmware) }
}
