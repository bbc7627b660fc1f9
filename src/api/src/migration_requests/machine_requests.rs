//! Requests that the two machines of a migration send, and the responses to them.

use super::certificate_approval::CertificateTrust;
use super::migration_assignment::{self, Assignment, MigrationForecast};
use super::{Migration, MigrationEndpoint, MigrationEvent, MigrationRole, MigrationState};
use crate::AppState;
use crate::agent_api::decision_basis::request_repetition;
use crate::agent_api::wire_allocation;
use crate::install_state_enrichment;
use crate::machine_auth::MachineCaller;
use crate::out_of_band;
use crate::plan_approval_check;
use crate::request_body::read_machine_document;
use axum::Json;
use axum::body::Body;
use axum::extract::State;
use axum::http::StatusCode;
use common::format::untrusted_text_limits::truncate_with_mark;
use http_server::api_error::ApiError;
use http_server::client_address::ClientAddress;
use model::allocation::ApprovedPlan;
use model::machine_migration::{MigrationReport as Stands, MigrationSide};
use serde_json::{Value, json};
use site::allocation_resolution::ResolvedAllocation;
use site::snapshot::SiteSnapshot;
use std::net::IpAddr;
use std::sync::Arc;
use store::token_hash::TokenHash;
use store::{AttemptStart, CopyStart, InstallState, MachineBoot, MigrationUpdate};

const CERTIFICATE_BYTES: usize = 64 << 10;
const MAXIMUM_CARRIED_BYTES: usize = 1 << 20;
const MAXIMUM_MESSAGE_BYTES: usize = 4 << 10;
/// Maximum size of a request, in bytes: twice the maximum length of all its strings, because JSON escapes can double
/// the length of a string.
const MAXIMUM_REQUEST_BYTES: usize = 2 * (CERTIFICATE_BYTES + MAXIMUM_CARRIED_BYTES + MAXIMUM_MESSAGE_BYTES);

/// Effect of a migration on the response to a machine.
pub(crate) enum MigrationResponse {
    /// No migration affects the response.
    Unrelated,
    NoAllocation,
    Assigned(Box<Assignment>),
}

impl MigrationResponse {
    pub(crate) fn into_assignment(self) -> Option<Assignment> {
        match self {
            MigrationResponse::Unrelated | MigrationResponse::NoAllocation => None,
            MigrationResponse::Assigned(given) => Some(*given),
        }
    }
}

/// Handles `POST /v1/machine/{id}/moving`: a machine reports that it waits in its ramdisk for the migration.
pub(crate) async fn register_endpoint(
    State(app): State<Arc<AppState>>,
    MachineCaller { id, boot, peer }: MachineCaller,
    body: Body,
) -> Result<Json<Value>, ApiError> {
    let Stands { order, certificate, port, carried, words, has_secret } =
        read_machine_document(&app, peer, body, MAXIMUM_REQUEST_BYTES).await?;
    let carried_bytes = carried.as_ref().map(|carried| json!(carried).to_string().len()).unwrap_or_default();
    if certificate.len() > CERTIFICATE_BYTES || carried_bytes > MAXIMUM_CARRIED_BYTES {
        let message = format!(
            "the certificate is {bytes} bytes (limit: {CERTIFICATE_BYTES}), and the field `carried` is {carried_bytes} bytes (limit: {MAXIMUM_CARRIED_BYTES})",
            bytes = certificate.len()
        );
        return Err(ApiError::new(StatusCode::PAYLOAD_TOO_LARGE, message));
    }
    if order.is_empty() || certificate.trim().is_empty() {
        return Err(ApiError::bad_request("a machine in a migration must send the id of its order and a certificate"));
    }
    if linux::pem_encoding::certificate_fingerprint(&certificate).is_none() {
        return Err(ApiError::bad_request("the certificate of a machine in a migration is not in PEM"));
    }
    let none = || conflict_error(format!("machine {id} is not part of an open migration with id {order:?}"));
    let migration =
        app.state.find_live_migration(&id).await?.filter(|migration| migration.id == order).ok_or_else(none)?;
    let part = migration.role_of(&id);
    let address = match (part, port) {
        (MigrationSide::Source, _) => String::new(),
        (MigrationSide::Target, Some(port)) => format_address(peer, port),
        (MigrationSide::Target, None) => return Err(ApiError::bad_request("the target machine must send its port")),
    };
    let endpoint = MigrationEndpoint { certificate, address, boot: boot.hash, has_secret };
    let word = MigrationEvent::Waiting(part, endpoint, carried.map(Box::new));
    let heard = app.state.apply_migration_event(&id, &order, word).await?.ok_or_else(none)?;
    let MigrationUpdate { migration, news } = heard.map_err(conflict_error)?;
    if let Some(words) = words {
        store_problem(&app, &migration, part, (boot.hash, &truncate_with_mark(&words, MAXIMUM_MESSAGE_BYTES))).await?;
    }
    if news {
        let directory = app.directory();
        app.watch.log_note(format!(
            "machine {machine} at {peer} waits in its ramdisk for the migration {migration}",
            machine = directory.display_name(&id),
            migration = describe_migration(&directory, &migration)
        ));
        log_awaited_fingerprint(&app, &migration, part);
        app.request_reload();
    }
    Ok(Json(json!({})))
}

/// Logs the fingerprint of a machine's certificate if the certificate still needs the operator's approval.
fn log_awaited_fingerprint(app: &AppState, migration: &Migration, part: MigrationSide) {
    let Some(shown) = migration.certificate_view(part).filter(|shown| shown.trust == CertificateTrust::Unapproved)
    else {
        return;
    };
    let directory = app.directory();
    let machine = if part == MigrationSide::Source { &migration.source } else { &migration.target };
    app.watch.log_note(format!(
        "the certificate of machine {machine} is not approved: compare its fingerprint {fingerprint} with the console of that machine, then run `drophammer machine move {source} --approve FINGERPRINT`", machine = directory.display_name(machine), fingerprint = shown.fingerprint, source = directory.display_name(&migration.source)));
}

/// Stores the problem that a machine reports, so that the problem is shown together with the migration. An empty string
/// means that the machine's problem is solved.
async fn store_problem(
    app: &AppState,
    migration: &Migration,
    part: MigrationSide,
    (boot, words): (TokenHash, &str),
) -> Result<(), ApiError> {
    let machine = if part == MigrationSide::Source { &migration.source } else { &migration.target };
    let word = MigrationEvent::ProblemReported(part, boot, words.to_owned());
    if let Some(Ok(MigrationUpdate { migration, news: true })) =
        app.state.apply_migration_event(machine, &migration.id, word).await?
    {
        let directory = app.directory();
        let words = if words.is_empty() { "the machine's problem is solved" } else { words };
        app.watch.log_note(format!(
            "{}: {words}; the migration {}",
            directory.display_name(machine),
            describe_migration(&directory, &migration)
        ));
        app.request_reload();
    }
    Ok(())
}

fn format_address(ClientAddress(address): ClientAddress, port: u16) -> String {
    match address {
        IpAddr::V4(address) => format!("{address}:{port}"),
        IpAddr::V6(address) => format!("[{address}]:{port}"),
    }
}

pub(super) fn conflict_error(why: String) -> ApiError {
    ApiError::new(StatusCode::CONFLICT, why)
}

/// Describes a migration, such as `of one to two (copying)`.
pub(crate) fn describe_migration(directory: &SiteSnapshot, migration: &Migration) -> String {
    let [source, target] = [&migration.source, &migration.target].map(|id| directory.display_name(id));
    format!("of {source} to {target} ({})", migration.state)
}

/// Returns the allocation that the machine currently receives in this boot. If the machine is part of a migration,
/// the migration determines the allocation. If the allocation is an installation, it is withheld until the preceding
/// Redfish steps are completed.
///
/// # Errors
/// Returns an error if the database cannot be read or written.
pub(crate) async fn find_assignment(
    app: &AppState,
    directory: &SiteSnapshot,
    boot: &MachineBoot,
) -> Result<Option<Assignment>, ApiError> {
    let id = &boot.machine;
    let moved = find_migration_response(app, directory, id).await?;
    let MigrationResponse::Unrelated = moved else { return Ok(moved.into_assignment()) };
    let Some((assigned, install_state)) = wire_allocation::find_assignment(app, directory, id).await? else {
        return Ok(None);
    };
    let is_admitted = out_of_band::admit(app, boot, &assigned, &install_state).await?;
    Ok(is_admitted.then_some(Assignment { assigned, install_state, moving: None }))
}

/// Returns the effect of a migration on the allocation that the machine receives.
///
/// # Errors
/// Returns an error if the database cannot be read or written.
pub(crate) async fn find_migration_response(
    app: &AppState,
    directory: &SiteSnapshot,
    id: &str,
) -> Result<MigrationResponse, ApiError> {
    let Some(migration) = app.state.find_live_migration(id).await? else { return Ok(MigrationResponse::Unrelated) };
    if app.state.explain_unconfirmed(vec![migration.source.clone(), migration.target.clone()]).await?.is_some() {
        return Ok(MigrationResponse::NoAllocation);
    }
    let now = app.state.read_current_boots(&migration).await?;
    let part = match migration.role_in(id, now) {
        MigrationRole::Unaffected => return Ok(MigrationResponse::Unrelated),
        MigrationRole::Waiting => return Ok(MigrationResponse::NoAllocation),
        MigrationRole::Source => MigrationSide::Source,
        MigrationRole::Target => MigrationSide::Target,
    };
    let Some((assigned, install_state)) = read_source_allocation(app, directory, &migration).await? else {
        return Ok(MigrationResponse::NoAllocation);
    };
    let given = match part {
        MigrationSide::Source => migration_assignment::assign_source(migration, now, assigned, install_state),
        MigrationSide::Target => {
            let Ok(approved) = find_target_approval(app, directory, &migration).await? else {
                return Ok(MigrationResponse::NoAllocation);
            };
            migration_assignment::assign_target(migration, now, assigned, install_state, approved, directory)
        }
    };
    Ok(MigrationResponse::Assigned(Box::new(given)))
}

async fn read_source_allocation(
    app: &AppState,
    directory: &SiteSnapshot,
    migration: &Migration,
) -> Result<Option<(ResolvedAllocation, InstallState)>, ApiError> {
    let Some(install_state) = read_source_state(app, directory, migration).await? else { return Ok(None) };
    Ok(migration_assignment::resolve_installed(directory, migration, &install_state)
        .map(|assigned| (assigned, install_state)))
}

/// Returns the state of the allocation on the source machine, or `None` if the file of that machine cannot be read, or
/// does not contain the allocation.
async fn read_source_state(
    app: &AppState,
    directory: &SiteSnapshot,
    migration: &Migration,
) -> Result<Option<InstallState>, ApiError> {
    let machine =
        migration_assignment::find_source(directory, migration).filter(|machine| machine.allocation.is_some());
    let Some(machine) = machine else { return Ok(None) };
    install_state_enrichment::read_full_state(app, machine, &directory.known).await.map(Some)
}

/// Returns the approval that is in force for the target's plan, or `None` if the plan needs no approval. The inner
/// error is the reason why the target must wait.
async fn find_target_approval(
    app: &AppState,
    directory: &SiteSnapshot,
    migration: &Migration,
) -> Result<Result<Option<ApprovedPlan>, String>, ApiError> {
    let (id, none) = (&migration.target, InstallState::default());
    let own = install_state_enrichment::add_approval(app, id, &migration.allocation, none, &directory.known).await?;
    Ok(directory.known.approvals.approval_for_agent(id, &own))
}

/// Predicts how a migration will affect a machine whose ramdisk has not contacted the server yet.
///
/// # Errors
/// Returns an error if the database cannot be read or written.
pub(crate) async fn forecast_migration(
    app: &AppState,
    directory: &SiteSnapshot,
    id: &str,
) -> Result<MigrationForecast, ApiError> {
    let Some(migration) = app.state.find_live_migration(id).await? else { return Ok(MigrationForecast::Unaffected) };
    let install_state = read_source_state(app, directory, &migration).await?.unwrap_or_default();
    Ok(match find_target_approval(app, directory, &migration).await? {
        Ok(approved) => migration_assignment::forecast_for_machine(migration, id, install_state, approved, directory),
        Err(why) if migration.target == id => MigrationForecast::Unknown(why),
        Err(_) => migration_assignment::forecast_for_machine(migration, id, install_state, None, directory),
    })
}

/// Handles the target's request to pass its point of no return. Returns `None` if the machine is not the target of an
/// open migration. The inner error is the reason why the request is refused.
///
/// # Errors
/// Returns an error if the database cannot be read or written.
pub(crate) async fn start_copy(
    app: &AppState,
    directory: &SiteSnapshot,
    boot: &MachineBoot,
    peer: ClientAddress,
    (allocation, start, said): (&str, &AttemptStart, Option<&str>),
) -> Result<Option<Result<(), String>>, ApiError> {
    let id = &boot.machine;
    let live = app.state.find_live_migration(id).await?;
    let of = live.filter(|migration| migration.target == *id && migration.allocation == allocation);
    let Some(of) = of.filter(|migration| {
        matches!(migration.state, MigrationState::Ordered | MigrationState::Planned | MigrationState::Copying)
    }) else {
        return Ok(None);
    };
    if let Some(why) = app.state.explain_unconfirmed(vec![of.source.clone(), of.target.clone()]).await? {
        return Ok(Some(Err(why)));
    }
    if of.approval_is_missing() {
        return Err(ApiError::new(StatusCode::SERVICE_UNAVAILABLE, of.explain_missing_approval()));
    }
    check_source_has_looked(app, &of, boot).await?;
    if let Err(why) = plan_approval_check::check_compared(app, directory, id, allocation, said).await? {
        return Ok(Some(Err(why)));
    }
    let heard = match app.state.start_migration_copy(id, start.clone()).await? {
        CopyStart::Decided(heard) => heard,
        CopyStart::Outdated => return Err(request_repetition(app, id).await),
        CopyStart::NotTarget => return Ok(Some(Err("the migration has ended".to_owned()))),
    };
    let MigrationUpdate { migration, news } = match heard {
        Ok(heard) => heard,
        Err(why) => return Ok(Some(Err(why))),
    };
    app.state.record_boot_start(id, boot.hash).await?;
    if news {
        app.watch.log_note(format!(
            "machine {machine} at {peer} erases its disks and starts to receive the system of the migration {migration}", machine = directory.display_name(id), migration = describe_migration(directory, &migration)));
        app.request_reload();
    }
    Ok(Some(Ok(())))
}

/// Checks that the source machine has contacted the server recently, and has checked the target's certificate. The
/// target erases data only after this check.
///
/// # Errors
/// Returns an error if one of these conditions is not met yet. The target then repeats its request.
async fn check_source_has_looked(app: &AppState, migration: &Migration, boot: &MachineBoot) -> Result<(), ApiError> {
    let is_own = |end: &&MigrationEndpoint| migration.state == MigrationState::Planned && end.boot == boot.hash;
    let Some(receiver) = migration.target_endpoint.as_ref().filter(is_own) else { return Ok(()) };
    let now = app.state.read_current_boots(migration).await?;
    match migration.present_endpoint(MigrationSide::Source, now).is_some()
        && app.certificate_checks.has_checked(&migration.source, &receiver.certificate)
    {
        true => Ok(()),
        false => Err(ApiError::new(
            StatusCode::SERVICE_UNAVAILABLE,
            format!(
                "source machine {source} has not fetched this machine's certificate yet, or has not contacted the server for half a minute: make sure that the source waits in its ramdisk",
                source = migration.source
            ),
        )),
    }
}
