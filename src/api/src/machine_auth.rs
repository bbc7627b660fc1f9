//! Authentication of machines by the token of their boot, and by the address from which that boot registered. Only
//! the headers of a request are checked, so the body of an unauthenticated request is never read.

use super::bearer_token::bearer_token;
use super::{AppState, abandoned_reinstall_messages};
use axum::extract::{FromRequestParts, Path};
use axum::http::request::Parts;
use axum::http::{HeaderMap, StatusCode};
use common::error_code::ErrorCode;
use common::format::format_count;
use control::agent_api_types::RegisteredHardware;
use http_server::api_error::ApiError;
use http_server::client_address::ClientAddress;
use model::machine_identity::{BootIdentity, describe_other_macs_of};
use site::operator_files::MachineSpec;
use std::sync::Arc;
use store::{EnrollOutcome, MachineBoot, RegisteringClient, token_hash};

/// Authenticated machine whose id is in the path. A handler with this extractor accepts only boots that have registered
/// and have not reported success yet.
pub struct MachineCaller {
    pub id: String,
    pub boot: MachineBoot,
    pub peer: ClientAddress,
}

/// Authenticated machine that sends an event or a report. The boot of the machine might not have registered yet, or may
/// have ended.
pub(crate) struct EventCaller(pub MachineCaller);

impl FromRequestParts<Arc<AppState>> for MachineCaller {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, app: &Arc<AppState>) -> Result<MachineCaller, ApiError> {
        let caller = authenticate_path(parts, app).await?;
        let MachineCaller { boot, .. } = &caller;
        if boot.over == Some(true) {
            return Err(unauthorized("the token expired when the installation ended"));
        }
        if boot.address.is_none() {
            return Err(unauthorized("the boot with this token has not registered"));
        }
        Ok(caller)
    }
}

impl FromRequestParts<Arc<AppState>> for EventCaller {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, app: &Arc<AppState>) -> Result<EventCaller, ApiError> {
        authenticate_path(parts, app).await.map(EventCaller)
    }
}

async fn authenticate_path(parts: &mut Parts, app: &Arc<AppState>) -> Result<MachineCaller, ApiError> {
    let path = Path::<String>::from_request_parts(parts, app).await;
    let Path(id) = path.map_err(|error| ApiError::bad_request(error.to_string()))?;
    let id = id.to_lowercase();
    let peer = ClientAddress::from_request_parts(parts, app).await?;
    let boot = find_boot(app, &parts.headers).await?.filter(|boot| boot.machine == id);
    let boot = boot.ok_or_else(|| not_authorized_for(&id))?;
    match &boot.address {
        Some(address) if *address != peer.to_string() => {
            app.log_rate_limited(format!(
                "machine {machine}: request from {peer} refused: the token of the request belongs to the boot that registered from {address}", machine = app.directory().display_name(&id)));
            let why = format!(
                "this token belongs to a boot that registered from {address}, but the request comes from {peer}"
            );
            return Err(unauthorized(&why));
        }
        Some(_) => app.state.heard.record_call(&boot.hash),
        None => {}
    }
    Ok(MachineCaller { id, boot, peer })
}

/// Returns the boot to which the request's token belongs: a registered boot, or a boot that was requested recently.
pub(crate) async fn find_boot(app: &AppState, headers: &HeaderMap) -> Result<Option<MachineBoot>, ApiError> {
    let Some(token) = bearer_token(headers) else { return Ok(None) };
    let hash = token_hash::hash_token(token);
    let requested =
        app.boot_tokens.verify_token(token, app.state.shared_time()).map(|boot| MachineBoot::from_request(hash, boot));
    let boot = app.state.find_boot(hash, requested).await?;
    let now = app.state.shared_time();
    Ok(boot.filter(|boot| !boot.is_expired(now)))
}

/// Returns the error for a machine that cannot register because too many registered machines have no machine file.
pub(crate) fn too_many_machines(app: &AppState, id: &str, peer: ClientAddress) -> ApiError {
    let message = "this machine cannot register: too many registered machines do not have a machine file; create a file in machines/ for this machine";
    app.log_rate_limited(format!("{id} at {peer}: {message}"));
    ApiError::new(StatusCode::SERVICE_UNAVAILABLE, message)
}

pub(crate) fn not_authorized_for(id: &str) -> ApiError {
    unauthorized(&format!(
        "the bearer token is missing or expired, does not belong to machine {id:?}, or was issued before the machine last booted or was freed"
    ))
}

fn unauthorized(message: &str) -> ApiError {
    ApiError::new(StatusCode::UNAUTHORIZED, message).with_error_code(ErrorCode::BootToken)
}

/// Registers the boot of a machine. The caller must have verified that the request comes from a privileged process.
/// `two_machines` is the reason why two machines may share the id, or `None` if nothing indicates a shared id.
///
/// # Errors
/// Returns an error if another boot of the machine is active. The client then repeats the request until the other boot
/// has stopped sending requests.
pub(crate) async fn enroll_boot(
    app: &AppState,
    boot: &MachineBoot,
    peer: ClientAddress,
    two_machines: Option<&str>,
) -> Result<(), ApiError> {
    let (directory, id) = (app.directory(), &boot.machine);
    let name = directory.display_name(id);
    let allocation = directory.find_machine(id).and_then(|machine| machine.allocation.as_ref());
    let allocation = allocation.map(|allocation| allocation.id.to_string());
    let has_file = directory.find_machine(id).is_some();
    let enrollment = RegisteringClient { address: peer.to_string(), allocation, has_file };
    match app.state.enroll_boot(boot.clone(), enrollment).await? {
        EnrollOutcome::Registered(next) => {
            let stopped = next
                .as_ref()
                .map(|next| abandoned_reinstall_messages::log_order_end(app, id, next, peer))
                .unwrap_or_default();
            app.state.heard.record_call(&boot.hash);
            two_machines.into_iter().for_each(|why| app.log_rate_limited(format!("{name} at {peer}: {why}")));
            stopped.map_or(Ok(()), |why| Err(ApiError::new(StatusCode::CONFLICT, why)))
        }
        EnrollOutcome::AddressChanged(before) => {
            app.state.heard.record_call(&boot.hash);
            app.log_rate_limited(format!(
                "{name}: the machine changed its address from {before} to {peer} during this boot"
            ));
            Ok(())
        }
        EnrollOutcome::Waits(active) => {
            let two_machines = two_machines.map(|why| format!("; {why}")).unwrap_or_default();
            app.log_rate_limited(format!(
                "{name}: the client at {peer} cannot register this machine yet: another boot of the machine, at {active}, is still active{two_machines}"
            ));
            let message = format!(
                "machine {id}: cannot register from {peer}: its boot at {active} is still active; retry when that boot is silent{two_machines}"
            );
            Err(ApiError::new(StatusCode::SERVICE_UNAVAILABLE, message))
        }
        EnrollOutcome::TooManyUnknown => Err(too_many_machines(app, id, peer)),
        EnrollOutcome::Rejected => Err(not_authorized_for(id)),
    }
}

/// Returns a refusal if the client at this address is another machine, that is, if the neighbor table contains, for
/// this address, a MAC that the machine file does not list.
pub(crate) fn foreign_nic_message(
    app: &AppState,
    machine: &MachineSpec,
    ClientAddress(address): ClientAddress,
) -> Option<String> {
    if machine.macs.is_empty() {
        return None;
    }
    let mac = (app.neighbors)(address).into_iter().find(|mac| !machine.macs.contains(mac))?;
    let MachineSpec { id, name, macs, .. } = machine;
    Some(format!("{problem}; the request came from {address}", problem = describe_other_macs_of(id, name, macs, &mac)))
}

/// Describes a machine that cannot be identified, so that the operator can write its machine file.
pub(crate) fn describe_unidentified_machine(peer: ClientAddress, asking: &BootIdentity) -> String {
    let message = format!(
        "the machine at {peer} has no usable UUID, and no file in machines/ lists its MAC {mac:?}: create a file in machines/ with this MAC",
        mac = asking.mac
    );
    ErrorCode::NoUuid.annotate(message)
}

/// Describes an unknown machine, so that the operator can write its machine file.
pub(crate) fn describe_unknown_machine(id: &str, peer: ClientAddress, hardware: &RegisteredHardware) -> String {
    let macs: Vec<&str> = hardware.nics.iter().map(|nic| nic.mac.as_str()).collect();
    let message = format!(
        "unknown machine {id} at {peer}: {cores}, {memory} MiB, {disks}, MACs {macs}; to use the machine, run `drophammer machine add {id} --name NAME`, or create a file with this id in machines/",
        cores = format_count(hardware.cpu_cores as usize, "core", "cores"),
        memory = hardware.memory >> 20,
        disks = format_count(hardware.disks.len(), "disk", "disks"),
        macs = macs.join(" ")
    );
    ErrorCode::UnknownMachine.annotate(message)
}
