//! Requests of the two machines of a migration, and the responses to them.

use super::approval::CertificateTrust;
use super::handing::{self, Foreseen, Given};
use super::{End, Hands, Move, MoveState, Word};
use crate::allocation::Approved;
use crate::carried::{self, Part, Standing as Stands};
use crate::control::Acknowledged;
use crate::control::wire::Report;
use crate::serve::api::bodies::read_of_machine;
use crate::serve::api::told;
use crate::serve::api_error::ApiError;
use crate::serve::caller::Caller;
use crate::serve::directory::Directory;
use crate::serve::peers::Peer;
use crate::serve::resolve::Assigned;
use crate::serve::state::{AttemptStart, Boot, MoveHeard, Standing};
use crate::serve::token::Hash;
use crate::serve::watch::Who;
use crate::serve::{App, wanted};
use crate::text::limits::shortened;
use axum::Json;
use axum::body::Body;
use axum::extract::State;
use axum::http::StatusCode;
use serde_json::{Value, json};
use std::net::IpAddr;
use std::sync::Arc;

const CERTIFICATE_BYTES: usize = 64 << 10;
const CARRIED_BYTES: usize = 1 << 20;
const WORDS_BYTES: usize = 4 << 10;
/// Limit of a request. Escaping in JSON strings can double the length.
const STANDING_BYTES: usize = 2 * (CERTIFICATE_BYTES + CARRIED_BYTES + WORDS_BYTES);

/// Effect of a migration on the response to a machine.
pub enum Told {
    /// The migration does not affect this.
    AsEver,
    Nothing,
    Something(Box<Given>),
}

impl Told {
    pub fn given(self) -> Option<Given> {
        match self {
            Told::AsEver | Told::Nothing => None,
            Told::Something(given) => Some(*given),
        }
    }
}

/// Handles `POST /v1/machine/{id}/moving`: the machine waits in its ramdisk.
pub async fn stands(
    State(app): State<Arc<App>>,
    Caller { id, boot, peer }: Caller,
    body: Body,
) -> Result<Json<Value>, ApiError> {
    let Stands { order, certificate, port, carried, words, has_secret } =
        read_of_machine(&app, peer, body, STANDING_BYTES).await?;
    let carried_bytes = carried.as_ref().map(|carried| json!(carried).to_string().len()).unwrap_or_default();
    if certificate.len() > CERTIFICATE_BYTES || carried_bytes > CARRIED_BYTES {
        let message = format!(
            "the certificate has {} bytes and carried has {carried_bytes}; the limits are {CERTIFICATE_BYTES} and {CARRIED_BYTES}",
            certificate.len()
        );
        return Err(ApiError::new(StatusCode::PAYLOAD_TOO_LARGE, message));
    }
    if order.is_empty() || certificate.trim().is_empty() {
        return Err(ApiError::bad("a machine in a migration must send the id of its order and a certificate"));
    }
    if carried::fingerprint(&certificate).is_none() {
        return Err(ApiError::bad("the certificate of a machine in a migration is not in PEM"));
    }
    let none = || conflict(format!("machine {id} is not part of an open migration with id {order:?}"));
    let is = app.state.live_move(&id).await?.filter(|is| is.id == order).ok_or_else(none)?;
    let part = is.part(&id);
    let address = match (part, port) {
        (Part::Send, _) => String::new(),
        (Part::Receive, Some(port)) => address(peer, port),
        (Part::Receive, None) => return Err(ApiError::bad("the target machine must send its port")),
    };
    let word = Word::Stands(part, End { certificate, address, boot: boot.hash, has_secret }, carried.map(Box::new));
    let heard = app.state.move_hears(&id, &order, word).await?.ok_or_else(none)?;
    let MoveHeard { is, news } = heard.map_err(conflict)?;
    if let Some(words) = words {
        says(&app, &is, part, (boot.hash, &shortened(&words, WORDS_BYTES))).await?;
    }
    if news {
        let directory = app.directory();
        app.watch.note(format!(
            "{} waits in its ramdisk for the migration {} ({peer})",
            directory.name(&id),
            in_words(&directory, &is)
        ));
        note_approval(&app, &is, part);
        app.state_has_changed();
    }
    Ok(Json(json!({})))
}

/// Logs the fingerprint of a machine whose certificate the operator must approve.
fn note_approval(app: &App, is: &Move, part: Part) {
    let Some(shown) = is.certificate(part).filter(|shown| shown.trust == CertificateTrust::Unapproved) else { return };
    let directory = app.directory();
    let machine = if part == Part::Send { &is.a } else { &is.b };
    app.watch.note(format!(
        "the certificate of {} is not approved: compare {} with its console, then `drophammer machine move {} --approve FINGERPRINT`",
        directory.name(machine),
        shown.fingerprint,
        directory.name(&is.a)
    ));
}

/// Stores the current problem of a machine, which is shown with the migration.
async fn says(app: &App, is: &Move, part: Part, (boot, words): (Hash, &str)) -> Result<(), ApiError> {
    let machine = if part == Part::Send { &is.a } else { &is.b };
    let word = Word::Says(part, boot, words.to_owned());
    if let Some(Ok(MoveHeard { is, news: true })) = app.state.move_hears(machine, &is.id, word).await? {
        let directory = app.directory();
        let words = if words.is_empty() { "the problem is solved" } else { words };
        app.watch.note(format!("{}: {words}; the migration {}", directory.name(machine), in_words(&directory, &is)));
        app.state_has_changed();
    }
    Ok(())
}

fn address(Peer(address): Peer, port: u16) -> String {
    match address {
        IpAddr::V4(address) => format!("{address}:{port}"),
        IpAddr::V6(address) => format!("[{address}]:{port}"),
    }
}

fn conflict(why: String) -> ApiError {
    ApiError::new(StatusCode::CONFLICT, why)
}

/// Describes a migration: `of one to two (copying)`.
pub fn in_words(directory: &Directory, is: &Move) -> String {
    format!("of {} to {} ({})", directory.name(&is.a), directory.name(&is.b), is.state)
}

/// Returns what the machine receives of an allocation. A migration takes precedence over everything else.
///
/// # Errors
/// The database cannot be read or written.
pub async fn given(app: &App, directory: &Directory, id: &str) -> Result<Option<Given>, ApiError> {
    let moved = told(app, directory, id).await?;
    let Told::AsEver = moved else { return Ok(moved.given()) };
    let assigned = told::assigned(app, directory, id).await?;
    Ok(assigned.map(|(assigned, standing)| Given { assigned, standing, moving: None }))
}

/// Returns what the machine receives because of a migration.
///
/// # Errors
/// The database cannot be read or written.
pub async fn told(app: &App, directory: &Directory, id: &str) -> Result<Told, ApiError> {
    let Some(is) = app.state.live_move(id).await? else { return Ok(Told::AsEver) };
    if is.state.is_open() && app.state.unconfirmed(vec![is.a.clone(), is.b.clone()]).await?.is_some() {
        return Ok(Told::Nothing);
    }
    let now = app.state.present(&is).await?;
    let part = match is.hands(id, now) {
        Hands::AsEver => return Ok(Told::AsEver),
        Hands::Nothing => return Ok(Told::Nothing),
        Hands::Sends => Part::Send,
        Hands::Receives => Part::Receive,
    };
    let Some((assigned, standing)) = moved(app, directory, &is).await? else { return Ok(Told::Nothing) };
    let given = match part {
        Part::Send => handing::to_sender(is, now, assigned, standing),
        Part::Receive => {
            let Ok(approved) = approved(app, directory, &is).await? else { return Ok(Told::Nothing) };
            handing::to_receiver(is, now, assigned, standing, approved, directory)
        }
    };
    Ok(Told::Something(Box::new(given)))
}

async fn moved(app: &App, directory: &Directory, is: &Move) -> Result<Option<(Assigned, Standing)>, ApiError> {
    let Some(standing) = of_sender(app, directory, is).await? else { return Ok(None) };
    Ok(handing::installed(directory, is, &standing).map(|assigned| (assigned, standing)))
}

/// Returns the state of the allocation on the source machine, if that machine's file can be read.
async fn of_sender(app: &App, directory: &Directory, is: &Move) -> Result<Option<Standing>, ApiError> {
    let machine = handing::sender(directory, is);
    let Some(allocation) = machine.and_then(|machine| machine.allocation.as_ref()) else { return Ok(None) };
    wanted::standing(app, &is.a, allocation, &directory.known).await.map(Some)
}

/// Returns the approval in force for the target's plan. The inner error is the reason why the target gets nothing.
async fn approved(app: &App, directory: &Directory, is: &Move) -> Result<Result<Option<Approved>, String>, ApiError> {
    let own = wanted::approved(app, &is.b, &is.allocation, Standing::default(), &directory.known).await?;
    Ok(directory.known.approvals.told(&is.b, &own))
}

/// Predicts the effect of a migration on a machine that has not called yet.
///
/// # Errors
/// The database cannot be read or written.
pub async fn foreseen(app: &App, directory: &Directory, id: &str) -> Result<Foreseen, ApiError> {
    let Some(is) = app.state.live_move(id).await? else { return Ok(Foreseen::AsEver) };
    let standing = of_sender(app, directory, &is).await?.unwrap_or_default();
    Ok(match approved(app, directory, &is).await? {
        Ok(approved) => handing::foreseen(is, id, standing, approved, directory),
        Err(why) if is.b == id => Foreseen::Unknown(why),
        Err(_) => handing::foreseen(is, id, standing, None, directory),
    })
}

/// Handles the target's request to pass its point of no return. `None` if the machine is not a target. The inner error is the reason of a
/// refusal.
///
/// # Errors
/// The database cannot be read or written.
pub async fn begins(
    app: &App,
    directory: &Directory,
    boot: &Boot,
    peer: Peer,
    (allocation, start, said): (&str, &AttemptStart, Option<&str>),
) -> Result<Option<Result<(), String>>, ApiError> {
    let id = &boot.machine;
    let of = app.state.live_move(id).await?.filter(|is| is.b == *id && is.allocation == allocation);
    let Some(of) = of.filter(|is| matches!(is.state, MoveState::Ordered | MoveState::Planned | MoveState::Copying))
    else {
        return Ok(None);
    };
    if let Some(why) = app.state.unconfirmed(vec![of.a.clone(), of.b.clone()]).await? {
        return Ok(Some(Err(why)));
    }
    if of.approval_is_missing() {
        return Err(ApiError::new(StatusCode::SERVICE_UNAVAILABLE, of.missing_approval()));
    }
    look_is_awaited(app, &of, boot).await?;
    if let Err(why) = crate::serve::approved::compared(app, directory, id, allocation, said).await? {
        return Ok(Some(Err(why)));
    }
    let Some(heard) = app.state.move_begins(id, start.clone()).await? else {
        return Ok(Some(Err("the migration has ended".to_owned())));
    };
    let MoveHeard { is, news } = match heard {
        Ok(heard) => heard,
        Err(why) => return Ok(Some(Err(why))),
    };
    app.state.boot_begins(boot.hash).await?;
    if news {
        app.watch.note(format!(
            "{} starts to receive: its disks are erased; the migration {} ({peer})",
            directory.name(id),
            in_words(directory, &is)
        ));
        app.state_has_changed();
    }
    Ok(Some(Ok(())))
}

/// Checks, before anything is erased, that the source machine has fetched the target's certificate and is alive.
///
/// # Errors
/// The target must ask again: this may change soon.
async fn look_is_awaited(app: &App, is: &Move, boot: &Boot) -> Result<(), ApiError> {
    let is_own = |end: &&End| is.state == MoveState::Planned && end.boot == boot.hash;
    let Some(receiver) = is.receiver.as_ref().filter(is_own) else { return Ok(()) };
    let now = app.state.present(is).await?;
    match is.peer(Part::Send, now).is_some() && app.looks.has_looked(&is.a, &receiver.certificate) {
        true => Ok(()),
        false => Err(ApiError::new(
            StatusCode::SERVICE_UNAVAILABLE,
            format!(
                "source machine {} has not fetched this machine's certificate yet, or has not called for half a minute: make sure that it waits in its ramdisk",
                is.a
            ),
        )),
    }
}

/// Handles a report of a machine in a migration; `None` if the report is about something else.
///
/// # Errors
/// The database cannot be read or written, or the success is not valid: the machine must not boot what it received.
pub async fn reports(app: &App, who: &Who, boot: &Boot, report: &Report) -> Result<Option<Acknowledged>, ApiError> {
    if boot.address.is_none() {
        return Ok(None);
    }
    let id = &boot.machine;
    let Some(heard) = app.state.move_report(id, boot.hash, report).await? else { return Ok(None) };
    let MoveHeard { is, news } = heard.map_err(conflict)?;
    let retry = !report.success && is.b == *id && is.retries();
    if report.success || !retry {
        app.state.boot_ends(boot.hash, report.success).await?;
    }
    if news {
        app.state.metrics.reported(report);
        app.watch.report(who.clone(), report);
        app.watch.note(format!("the migration {}", in_words(&app.directory(), &is)));
        note_silence(app, &is);
        app.state_has_changed();
    }
    Ok(Some(Acknowledged { retry }))
}

/// Logs if the source machine is silent when everything was received: it is off, or its own system runs.
fn note_silence(app: &App, is: &Move) {
    let receiver = is.receiver.as_ref().filter(|_| is.state == MoveState::Booting);
    if receiver.is_some_and(|receiver| !app.looks.has_looked(&is.a, &receiver.certificate)) {
        app.watch.note(format!(
            "{} has not called for half a minute: make sure that it is off, or waits in its ramdisk. Data that its own system writes now is not migrated",
            app.directory().name(&is.a)
        ));
    }
}

/// Records that the system runs on the target, as reported by the boot that received it.
///
/// # Errors
/// The database cannot be read or written.
pub async fn phoned_home(app: &App, id: &str, boot: Hash) -> Result<(), ApiError> {
    if let Some(Ok(MoveHeard { is, news: true })) = app.state.move_hears(id, "", Word::PhonedHome(boot)).await? {
        app.watch.note(format!("the migration {}: {} is released", in_words(&app.directory(), &is), is.a));
        app.state_has_changed();
    }
    Ok(())
}
