//! Server side of the agent's API, whose types are in [`control::agent_api_types`]. `netboot` issues the tokens of
//! machines, and `machine_auth` authorizes the machines' requests. `wire_allocation` converts the allocation of a
//! machine, and `secrets` sends the secrets of the allocation. `point_of_no_return` permits an installation to erase
//! data, and `install_reports` receives results.

pub(crate) mod decision_basis;
pub(crate) mod install_reports;
pub(crate) mod point_of_no_return;
pub(crate) mod secrets;
pub mod wire_allocation;

use super::base_url::BaseUrls;
use super::machine_auth::{self, EventCaller, MachineCaller};
use super::migration_requests::migration_assignment::Assignment;
use super::migration_requests::{machine_reports, machine_requests};
use super::request_body::{EVENT_BYTES, read_machine_document};
use super::source_port_check::{self, SourcePort};
use super::{AppState, machine_identification};
use axum::Json;
use axum::body::Body;
use axum::extract::rejection::QueryRejection;
use axum::extract::{Query, State};
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use common::error_code::ErrorCode;
use common::format::untrusted_text_limits::{LINE_BYTES, truncate_with_mark};
use control::agent_api_types::RegisterRequest;
use http_server::api_error::ApiError;
use http_server::client_address::ClientAddress;
use http_server::server_log::MachineOrigin;
use http_server::{anonymous_event_limit, request_context};
use model::allocation::{self, Allocation};
use model::install_report::{EventName, ProgressEvent};
use model::machine_migration::MigrationSide;
use serde::Deserialize;
use serde_json::{Value, json};
use site::allocation_resolution::ResolvedAllocation;
use site::requested_steps::MachineArrays;
use site::snapshot::SiteSnapshot;
use std::sync::Arc;
use std::time::Duration;
use store::{InstallState, InstalledAllocation, MachineBoot, ServedInstall};
use wire_allocation::to_wire_allocation;

const MAX_WAIT_SECONDS: u64 = 300;
/// Maximum size in bytes of an inventory, or of a report that contains a plan. Even the largest servers send only a few
/// tens of kilobytes.
const DOCUMENT_BYTES: usize = 4 << 20;
/// Maximum size of a registration of an unknown machine, in bytes. The limit is low, because any client can register
/// hundreds of unknown machines, and the server stores all of these registrations.
const UNKNOWN_DOCUMENT_BYTES: usize = 1 << 20;

/// `POST /v1/machine/register`: registers the machine to whose boot the token was issued.
pub(crate) async fn register_boot(
    State(app): State<Arc<AppState>>,
    peer: ClientAddress,
    source: SourcePort,
    headers: HeaderMap,
    body: Body,
) -> Result<Json<Value>, ApiError> {
    let boot = machine_auth::find_boot(&app, &headers).await?.filter(|boot| boot.over != Some(true));
    let boot = boot.ok_or_else(|| machine_auth::not_authorized_for(""))?;
    source_port_check::require_privileged(&app, source, peer, &boot.machine, "register")?;
    let is_known = app.directory().find_machine(&boot.machine).is_some();
    let most_bytes = if is_known { DOCUMENT_BYTES } else { UNKNOWN_DOCUMENT_BYTES };
    let register: RegisterRequest = read_machine_document(&app, peer, body, most_bytes).await?;
    let id = register.uuid.to_lowercase();
    if boot.machine != id {
        return Err(machine_auth::not_authorized_for(&id));
    }
    let register = check_limits(&app, peer, register).await?;
    let directory = app.directory();
    machine_identification::refuse_other_machine(&app, &directory, &id, &register, peer).await?;
    refuse_other_nic(&app, &directory, &id, peer)?;
    let macs = machine_identification::registered_macs(&register);
    let two_machines = machine_identification::warn_of_two_machines(&app, &id, &macs).await?;
    machine_auth::enroll_boot(&app, &boot, peer, two_machines.as_deref()).await?;
    store_registration(&app, &directory, &boot, &id, &register).await?;
    if directory.find_machine(&id).is_none() {
        app.watch.log_note(machine_auth::describe_unknown_machine(&id, peer, &register.hardware));
    }
    Ok(Json(json!({})))
}

/// Stores the first registration of a boot. If the boot already has an address, the request repeats an earlier
/// registration. A repetition is stored only if the machine has inspected its disks since the earlier registration.
async fn store_registration(
    app: &AppState,
    directory: &SiteSnapshot,
    boot: &MachineBoot,
    id: &str,
    register: &RegisterRequest,
) -> Result<(), ApiError> {
    let is_inspected = register.inventory.as_ref().is_some_and(|inventory| inventory.explored);
    let is_stored = match boot.address {
        None => app.state.store_registration(id, directory.display_name(id), register).await.map(|()| true)?,
        Some(_) => is_inspected && app.state.complete_registration(id, register).await?,
    };
    let arrays = directory.find_machine(id).and_then(|machine| MachineArrays::find(machine, &directory.known));
    if is_stored && arrays.is_some() {
        // Generated layouts depend on the registration. The reload reports the problems of these layouts.
        app.request_machine_reload(id, None);
    }
    Ok(())
}

/// Refuses a registration whose inventory exceeds the limits of the planner.
async fn check_limits(
    app: &AppState,
    peer: ClientAddress,
    register: RegisterRequest,
) -> Result<RegisterRequest, ApiError> {
    let check_input = move || match register.exceeded_limit() {
        None => Ok(register),
        Some(why) => Err(why),
    };
    // The job counts towards the limits of the client's address, which several machines may share.
    let judged = app.planner.run_job(&peer.to_string(), check_input).await?;
    judged.map_err(|why| ApiError::new(StatusCode::UNPROCESSABLE_ENTITY, format!("registration refused: {why}")))
}

/// Refuses the request if, according to the kernel's neighbor table, the client has a MAC that the machine file does
/// not list.
fn refuse_other_nic(app: &AppState, directory: &SiteSnapshot, id: &str, peer: ClientAddress) -> Result<(), ApiError> {
    let message = directory.find_machine(id).and_then(|machine| machine_auth::foreign_nic_message(app, machine, peer));
    let Some(message) = message else { return Ok(()) };
    app.log_rate_limited(ErrorCode::DuplicateUuid.annotate(message.clone()));
    Err(ApiError::new(StatusCode::CONFLICT, message).with_error_code(ErrorCode::DuplicateUuid))
}

#[derive(Deserialize, schemars::JsonSchema)]
pub(crate) struct WaitQuery {
    /// Time limit in seconds.
    #[serde(default)]
    seconds: u64,
}

/// `GET /v1/machine/{id}/wait`: responds as soon as the machine is allocated. Each waiting machine occupies only a
/// socket and an entry in the list of tasks that wait for a new snapshot of the operator's directory.
pub(crate) async fn wait_for_allocation(
    State(app): State<Arc<AppState>>,
    MachineCaller { boot, .. }: MachineCaller,
    query: Result<Query<WaitQuery>, QueryRejection>,
) -> Result<Response, ApiError> {
    let Query(WaitQuery { seconds }) = query.map_err(|error| ApiError::bad_request(error.to_string()))?;
    let mut closing = app.closing.clone();
    let _waits = app.counters.count_waiting();
    let patience = tokio::time::sleep(Duration::from_secs(seconds.min(MAX_WAIT_SECONDS)));
    request_context::yield_permit(async {
        tokio::select! {
            biased;
            result = until_allocated(&app, &boot) => result.map(|()| Json(json!({})).into_response()),
            _ = closing.wait_for(|closing| *closing) => Ok(StatusCode::NO_CONTENT.into_response()),
            () = patience => Ok(StatusCode::NO_CONTENT.into_response()),
        }
    })
    .await
}

/// Waits until the machine has an allocation that can be carried out. Checks again after each new snapshot; a snapshot
/// is published after each change of the operator's files or of the database.
async fn until_allocated(app: &AppState, boot: &MachineBoot) -> Result<(), ApiError> {
    let mut directory = app.directory.clone();
    let mut seen = None;
    loop {
        let now = directory.borrow_and_update().clone();
        let version = now.machine_version(&boot.machine);
        // Thousands of machines may wait. The allocation is therefore read only if the version of this machine has
        // changed.
        if seen != Some(version) && machine_requests::find_assignment(app, &now, boot).await?.is_some() {
            return Ok(());
        }
        seen = Some(version);
        if directory.changed().await.is_err() {
            // The server is shutting down. The wait never returns: the connection to the client is about to be closed.
            std::future::pending::<()>().await;
        }
    }
}

pub async fn get_machine(
    State(app): State<Arc<AppState>>,
    base: BaseUrls,
    MachineCaller { id, boot, peer }: MachineCaller,
) -> Result<Json<allocation::AssignedMachine>, ApiError> {
    let directory = app.directory();
    let described = directory.find_machine(&id);
    let given = machine_requests::find_assignment(&app, &directory, &boot).await?;
    if let Some(moving) = given
        .as_ref()
        .and_then(|given| given.moving.as_ref())
        .filter(|migration| migration.part == MigrationSide::Source)
    {
        app.certificate_checks.record_call(&id, moving.peer.as_ref().map(|peer| peer.certificate.as_str()));
    }
    // The migration is read after the allocation: if it ends between the two reads, the response reports that it has
    // ended.
    let newest_move = app.state.find_last_migration(&id).await?.map(|migration| migration.to_status());
    let allocation = match given {
        Some(given @ Assignment { moving: Some(_), .. }) => Some(given.into_wire(&base.calls, !boot.started)),
        Some(Assignment { assigned, mut install_state, moving: None }) => {
            let ResolvedAllocation { layout_id, layout, image, .. } = &assigned;
            if assigned.installs {
                let order = install_state.order.as_ref().map(|order| order.id.as_str()).unwrap_or_default();
                let fields = &InstalledAllocation::from_fields(assigned.allocation.to_fields());
                let what = ServedInstall { layout_id, layout, image: &image.id, order, fields };
                let record = app.state.record_served(&id, &assigned.allocation.id, what).await?;
                install_state = InstallState { created: record.created, fencing: record.fencing, ..install_state };
            } else {
                let text = "is installed and no reinstall is ordered: the machine boots from its disks";
                app.watch.log_note(format!("{} {text} ({peer})", directory.display_name(&id)));
            }
            // The parameters of the OS definition are sent only until the installation has started. After that, the
            // agent already has them.
            let with_parameters = assigned.installs && !boot.started;
            Some(to_wire_allocation(&assigned, install_state, &base.calls, with_parameters))
        }
        None => None,
    };
    let blank_only = machine_identification::explain_blank_only(&app, &directory, &id).await?;
    let allocation = allocation.map(|allocation| Allocation { blank_only, ..allocation });
    Ok(Json(allocation::AssignedMachine {
        name: described.map(|machine| machine.name.clone()).unwrap_or_default(),
        size: described.and_then(|machine| machine.size.clone()).map(|id| allocation::IdReference { id }),
        allocation,
        newest_move,
        id,
    }))
}

pub(crate) async fn post_event(
    State(app): State<Arc<AppState>>,
    EventCaller(MachineCaller { id, boot, peer }): EventCaller,
    body: Body,
) -> Result<Json<Value>, ApiError> {
    let event: ProgressEvent = read_machine_document(&app, peer, body, EVENT_BYTES).await?;
    let event = ProgressEvent { message: truncate_with_mark(&event.message, LINE_BYTES), ..event };
    if boot.address.is_none() && !is_event_within_quota(&app, peer) {
        return Ok(Json(json!({})));
    }
    // Progress events arrive every second and are not stored. An event of an unregistered boot must not create a record
    // of the machine.
    let is_recorded = boot.address.is_some() || app.state.is_recorded(&id).await?;
    // The agent may send events and its report at the same time, so events may arrive after the report.
    let is_late = boot.over.is_some();
    if event.progress.is_none() && is_recorded {
        app.state.store_event(&id, &event, is_late).await?;
    }
    if event.event == EventName::PhonedHome && boot.address.is_some() {
        machine_reports::record_phoned_home(&app, &id, boot.hash).await?;
    }
    let who = MachineOrigin::new(&id, app.directory().display_name(&id), peer);
    match is_late {
        true => app.watch.log_late_event(who, event),
        false => app.watch.log_event(who, event),
    }
    Ok(Json(json!({})))
}

/// Counts an event of an unregistered client, and returns whether the event is within the quota. An event above the
/// quota must not be stored or logged.
pub(crate) fn is_event_within_quota(app: &AppState, ClientAddress(address): ClientAddress) -> bool {
    let is_kept = app.anonymous_events.count_event(address);
    if !is_kept {
        app.log_rate_limited(format!(
            "{address} sends more than {limit} events a minute for unregistered machines: further events are dropped until the minute ends", limit = anonymous_event_limit::EVENTS));
    }
    is_kept
}

pub async fn no_such_endpoint() -> ApiError {
    ApiError::not_found("no such endpoint").with_error_code(ErrorCode::ServerUrl)
}

pub async fn method_not_allowed() -> ApiError {
    ApiError::new(StatusCode::METHOD_NOT_ALLOWED, "method not allowed for this endpoint")
}
