//! Power control of a machine through the management controller that its machine file specifies.

use super::AppState;
use super::access;
use super::bmc_lease::{HeldLease, claim_controller};
use super::controller_identity::{find_target, refuse_shared_controller, with_firmware};
use super::operator_api::{OperatorAuth, unknown_machine};
use super::request_body::{EVENT_BYTES, read_operator_document};
use axum::Json;
use axum::body::Body;
use axum::extract::{Path, State};
use axum::http::StatusCode;
use bmc::{PowerAction, PowerState, TargetMachine, Unguarded, WriteGuard, read_power_state, switch_power};
use common::error::Error;
use common::error_code::ErrorCode;
use http_server::api_error::ApiError;
use http_server::client_address::ClientAddress;
use http_server::request_context::yield_permit;
use model::bmc::Bmc;
use serde::{Deserialize, Serialize};
use std::sync::Arc;
use store::StoredRegistration;
use store::server_leases::{ActionOrigin, LeasedAction};

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
    let id = id.to_lowercase();
    let controller = MachineController::find(&app, &id).await?;
    let (state, warning) = yield_permit(controller.run(read_power_state)).await?;
    log_warning(&app, &id, warning);
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
/// Returns an error if the file does not name a controller, or the controller fails.
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

/// Performs the action through the management controller in the machine file. If several servers use the database, the
/// action is refused while another action on the machine is in progress.
///
/// # Errors
/// Returns an error if the file does not name a controller, the controller fails, or another action is in progress.
pub(crate) async fn switch_machine(app: &AppState, id: &str, action: PowerAction) -> Result<(), ApiError> {
    let controller = MachineController::find(app, id).await?;
    let leased = LeasedAction::new(ActionOrigin::Operator, action_name(action), access::current_user());
    let lease = claim_controller(app, id, leased).await?;
    // The task also runs to its end if the client disconnects, so that neither the action nor its lease is
    // interrupted.
    let run = tokio::spawn(async move {
        let done = controller.switch(action, lease.as_ref()).await;
        if let Some(lease) = lease {
            lease.release().await;
        }
        done
    });
    let done = yield_permit(run).await.map_err(|_| request_panicked())?;
    log_warning(app, id, done?);
    Ok(())
}

/// Returns the name of the action on the command line.
pub(crate) fn action_name(action: PowerAction) -> &'static str {
    match action {
        PowerAction::On => "on",
        PowerAction::Off => "off",
        PowerAction::Cycle => "cycle",
        PowerAction::Pxe => "pxe",
    }
}

pub(crate) fn log_warning(app: &AppState, id: &str, warning: Option<String>) {
    let name = app.directory().display_name(id).to_owned();
    warning.into_iter().for_each(|warning| app.log_rate_limited(format!("{name}: {warning}")));
}

/// Management controller in a machine file, and the machine that it controls.
pub(crate) struct MachineController {
    bmc: Bmc,
    target: TargetMachine,
    /// Reason why no action is carried out; `None` if actions are permitted.
    refusal: Option<ApiError>,
    registered: Option<StoredRegistration>,
}

impl MachineController {
    /// Finds the controller of the machine.
    ///
    /// # Errors
    /// Returns an error if no machine has this id, or its file does not name a controller.
    pub(crate) async fn find(app: &AppState, id: &str) -> Result<MachineController, ApiError> {
        let directory = app.directory();
        let machine = directory.find_machine(id).ok_or_else(|| unknown_machine(&directory, id))?;
        let none = || {
            let how = "add `bmc:` with url, username and password to the file, or use --bmc";
            ApiError::new(
                StatusCode::CONFLICT,
                format!("the file of machine {id} does not name a management controller: {how}"),
            )
            .with_code("controller-missing")
            .with_error_code(ErrorCode::ManagementController)
        };
        let bmc = machine.bmc.clone().ok_or_else(none)?;
        let target = find_target(app, machine, &bmc.at);
        let refusal = refuse_shared_controller(app, &machine.id, &bmc.at).err();
        Ok(MachineController { bmc, target, refusal, registered: app.state.find_registration(id).await? })
    }

    /// Runs requests on a thread that may block.
    pub(crate) async fn run<T: Send + 'static>(
        self,
        request: impl FnOnce(&Bmc, &TargetMachine) -> common::error::Result<T> + Send + 'static,
    ) -> Result<T, ApiError> {
        let MachineController { bmc, target, registered, .. } = self;
        let done = tokio::task::spawn_blocking(move || request(&bmc, &with_firmware(target, registered))).await;
        done.map_err(|_| request_panicked())?.map_err(|error| controller_failure(&error))
    }

    /// Performs an action. If a lease is given, it must permit each request to the controller. Returns the warning of
    /// the controller.
    ///
    /// # Errors
    /// Returns an error if the file of another machine names the same controller, or the controller fails.
    pub(crate) async fn switch(
        mut self,
        action: PowerAction,
        lease: Option<&HeldLease>,
    ) -> Result<Option<String>, ApiError> {
        if let Some(refusal) = self.refusal.take() {
            return Err(refusal);
        }
        let guard = lease.map(HeldLease::guard);
        let guarded = move |bmc: &Bmc, target: &TargetMachine| {
            let guard: &dyn WriteGuard = guard.as_ref().map_or(&Unguarded, |guard| guard);
            switch_power(bmc, action, target, guard)
        };
        self.run(guarded).await
    }
}

fn request_panicked() -> ApiError {
    ApiError::new(StatusCode::INTERNAL_SERVER_ERROR, "the request to the management controller failed")
}

/// Returns the error response for a management controller that fails, or does not carry out a request.
pub(crate) fn controller_failure(error: &Error) -> ApiError {
    ApiError::new(StatusCode::BAD_GATEWAY, error.to_string())
        .with_code("controller-failed")
        .with_error_code(ErrorCode::ManagementController)
}
