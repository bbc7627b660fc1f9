//! Authentication of machines by the token of their boot and the address that registered with it. It only needs the head of a request, so
//! that no body of an unauthenticated client is read.

use super::api_error::ApiError;
use super::input::Machine;
use super::peers::Peer;
use super::state::{Boot, Enrolled, Enrollment};
use super::{App, token};
use crate::control::wire::Hardware;
use crate::machine_identity::other_macs_of;
use crate::text::counted;
use axum::extract::{FromRequestParts, Path};
use axum::http::request::Parts;
use axum::http::{HeaderMap, StatusCode, header};
use std::sync::Arc;

/// Authenticated machine of the path. A handler with this extractor requires a registered boot.
pub struct Caller {
    pub id: String,
    pub boot: Boot,
    pub peer: Peer,
}

/// Authenticated machine whose boot may not have registered yet or may have ended, for events and reports.
pub struct Teller(pub Caller);

impl FromRequestParts<Arc<App>> for Caller {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, app: &Arc<App>) -> Result<Caller, ApiError> {
        let caller = of_path(parts, app).await?;
        let Caller { boot, .. } = &caller;
        if boot.over == Some(true) {
            return Err(unauthorized("the token expired when the installation ended"));
        }
        if boot.address.is_none() {
            return Err(unauthorized("the boot with this token has not registered"));
        }
        Ok(caller)
    }
}

impl FromRequestParts<Arc<App>> for Teller {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, app: &Arc<App>) -> Result<Teller, ApiError> {
        of_path(parts, app).await.map(Teller)
    }
}

async fn of_path(parts: &mut Parts, app: &Arc<App>) -> Result<Caller, ApiError> {
    let path = Path::<String>::from_request_parts(parts, app).await;
    let Path(id) = path.map_err(|error| ApiError::bad(error.to_string()))?;
    let id = id.to_lowercase();
    let peer = Peer::from_request_parts(parts, app).await?;
    let boot = boot(app, &parts.headers).await?.filter(|boot| boot.machine == id);
    let boot = boot.ok_or_else(|| not_of(&id))?;
    match &boot.address {
        Some(address) if *address != peer.to_string() => {
            app.alarm(format!(
                "{}: request from {peer} refused: its token belongs to the boot that registered from {address}",
                app.directory().name(&id)
            ));
            return Err(unauthorized(&format!("the boot with this token registered from {address}, not from {peer}")));
        }
        Some(_) => app.state.heard.note(&boot.hash),
        None => {}
    }
    Ok(Caller { id, boot, peer })
}

/// Returns the registered or recently requested boot with the request's token.
pub async fn boot(app: &App, headers: &HeaderMap) -> Result<Option<Boot>, ApiError> {
    let Some(token) = bearer_token(headers) else { return Ok(None) };
    let hash = token::hash(token);
    let requested = app.boot_tokens.verify(token).map(|boot| Boot::requested(hash, boot));
    let boot = app.state.boot(hash, requested).await?;
    Ok(boot.filter(|boot| !boot.is_expired()))
}

/// Returns the hash of the request's bearer token.
pub fn bearer(headers: &HeaderMap) -> Option<token::Hash> {
    bearer_token(headers).map(token::hash)
}

fn bearer_token(headers: &HeaderMap) -> Option<&str> {
    let (scheme, token) = headers.get(header::AUTHORIZATION)?.to_str().ok()?.split_once(' ')?;
    scheme.eq_ignore_ascii_case("bearer").then(|| token.trim())
}

pub fn not_of(id: &str) -> ApiError {
    unauthorized(&format!(
        "the bearer token is missing, expired, not that of machine {id:?}, or older than its last boot or its release"
    ))
}

fn unauthorized(message: &str) -> ApiError {
    ApiError::new(StatusCode::UNAUTHORIZED, message)
}

/// Registers the boot of a machine. The caller has verified that a privileged process registers. `two_machines` is the reason why two
/// machines may share the id.
///
/// # Errors
/// Another boot of the machine is active. The client retries until that boot is silent.
pub async fn enroll(app: &App, boot: &Boot, peer: Peer, two_machines: Option<&str>) -> Result<(), ApiError> {
    let (directory, id) = (app.directory(), &boot.machine);
    let name = directory.name(id);
    let allocation = directory.machine(id).and_then(|machine| machine.allocation.as_ref());
    let allocation = allocation.map(|allocation| allocation.id.to_string());
    let has_file = directory.machine(id).is_some();
    let enrollment = Enrollment { address: peer.to_string(), allocation, has_file };
    match app.state.enroll(boot.clone(), enrollment).await? {
        Enrolled::Yes(next) => {
            let stopped = next.as_ref().map(|next| super::boot::say_the_end(app, id, next, peer)).unwrap_or_default();
            app.state.heard.note(&boot.hash);
            two_machines.into_iter().for_each(|why| app.alarm(format!("{name} at {peer}: {why}")));
            stopped.map_or(Ok(()), |why| Err(ApiError::new(StatusCode::CONFLICT, why)))
        }
        Enrolled::Moved(before) => {
            app.state.heard.note(&boot.hash);
            app.alarm(format!("{name}: the address of its boot changed from {before} to {peer}"));
            Ok(())
        }
        Enrolled::Waits(active) => {
            let two_machines = two_machines.map(|why| format!("; {why}")).unwrap_or_default();
            app.alarm(format!(
                "{name}: a boot at {peer} cannot register yet: the boot at {active} is still active{two_machines}"
            ));
            let message = format!(
                "machine {id}: cannot register from {peer}: its boot at {active} is still active; retry when that boot is silent{two_machines}"
            );
            Err(ApiError::new(StatusCode::SERVICE_UNAVAILABLE, message))
        }
        Enrolled::Gone => Err(not_of(id)),
    }
}

/// Returns the reason why the client at that address is not this machine: the neighbour table has a MAC that is not one of the machine's.
pub fn other_card(app: &App, machine: &Machine, Peer(address): Peer) -> Option<String> {
    if machine.macs.is_empty() {
        return None;
    }
    let mac = (app.neighbours)(address).into_iter().find(|mac| !machine.macs.contains(mac))?;
    let Machine { id, name, macs, .. } = machine;
    Some(format!("{}; it is at {address}", other_macs_of(id, name, macs, &mac)))
}

/// Describes an unknown machine, so that the operator can write its file.
pub fn stranger(id: &str, peer: Peer, hardware: &Hardware) -> String {
    let macs: Vec<&str> = hardware.nics.iter().map(|nic| nic.mac.as_str()).collect();
    format!(
        "unknown machine {id} at {peer}: {}, {} MiB, {}, MACs {}; create a file in machines/ with this id to use it",
        counted(hardware.cpu_cores as usize, "core", "cores"),
        hardware.memory >> 20,
        counted(hardware.disks.len(), "disk", "disks"),
        macs.join(" ")
    )
}
