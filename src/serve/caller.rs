//! Who may call: a machine by the token of its boot, from the address that has registered with it. All of it is known from a
//! request's head, before anything of its body is read.

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

/// The machine in the path, proven by its token. A handler that has one is authorised.
pub struct Caller {
    pub id: String,
    pub boot: Boot,
    pub peer: Peer,
}

/// The same for what a boot may say that has not registered yet, or is at its end: events and reports.
pub struct Teller(pub Caller);

impl FromRequestParts<Arc<App>> for Caller {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, app: &Arc<App>) -> Result<Caller, ApiError> {
        let caller = of_path(parts, app).await?;
        let Caller { boot, .. } = &caller;
        if boot.over == Some(true) {
            return Err(unauthorized("the token has ended with the installation"));
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
                "{}: a call from {peer} has the token of the boot that registered from {address}: refused",
                app.directory().name(&id)
            ));
            return Err(unauthorized(&format!(
                "the boot with this token has registered from {address}, not from {peer}"
            )));
        }
        Some(_) => app.state.heard.note(&boot.hash),
        None => {}
    }
    Ok(Caller { id, boot, peer })
}

/// Returns the boot whose token the request has: one that has registered, or one that was requested lately.
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
        "the bearer token is missing, not that of machine {id:?}, older than its last boot or than the time when it was freed, or expired"
    ))
}

fn unauthorized(message: &str) -> ApiError {
    ApiError::new(StatusCode::UNAUTHORIZED, message)
}

/// Makes the boot the machine's own. The caller has verified that a privileged process registers. `two_machines` is the reason why
/// there may be two machines.
///
/// # Errors
/// Another boot of the machine is active: the client registers again when that one is silent.
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
            app.alarm(format!("{name}: its boot is at {peer} now, and was at {before}"));
            Ok(())
        }
        Enrolled::Waits(active) => {
            let two_machines = two_machines.map(|why| format!("; {why}")).unwrap_or_default();
            app.alarm(format!(
                "{name}: a boot at {peer} cannot register yet: the boot at {active} is still active{two_machines}"
            ));
            let message = format!(
                "machine {id}: cannot register from {peer}: its boot at {active} is still active; register again when that boot is silent{two_machines}"
            );
            Err(ApiError::new(StatusCode::SERVICE_UNAVAILABLE, message))
        }
        Enrolled::Gone => Err(not_of(id)),
    }
}

/// Why whoever is at that address is not this machine: by the word of the segment, its card is none of the machine's.
pub fn other_card(app: &App, machine: &Machine, Peer(address): Peer) -> Option<String> {
    if machine.macs.is_empty() {
        return None;
    }
    let mac = (app.neighbours)(address).into_iter().find(|mac| !machine.macs.contains(mac))?;
    let Machine { id, name, macs, .. } = machine;
    Some(format!("{}; it is at {address}", other_macs_of(id, name, macs, &mac)))
}

/// A machine that no file names, for the operator who may write one.
pub fn stranger(id: &str, peer: Peer, hardware: &Hardware) -> String {
    let macs: Vec<&str> = hardware.nics.iter().map(|nic| nic.mac.as_str()).collect();
    format!(
        "unknown machine {id} at {peer}: {}, {} MiB, {}, MACs {}; a file in machines/ with this id allocates it",
        counted(hardware.cpu_cores as usize, "core", "cores"),
        hardware.memory >> 20,
        counted(hardware.disks.len(), "disk", "disks"),
        macs.join(" ")
    )
}
