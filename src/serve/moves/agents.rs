//! What the two machines of a move say and are told, each by its own agent.

use super::handing::{self, Foreseen, Given};
use super::{End, Hands, Move, MoveState, Word};
use crate::allocation::Approved;
use crate::carried::{Part, Standing as Stands};
use crate::control::Acknowledged;
use crate::control::wire::Report;
use crate::marker::MarkedDisk;
use crate::serve::api::bodies::read_of_machine;
use crate::serve::api::told;
use crate::serve::api_error::ApiError;
use crate::serve::caller::Caller;
use crate::serve::directory::Directory;
use crate::serve::peers::Peer;
use crate::serve::resolve::Assigned;
use crate::serve::state::{Boot, MoveHeard, Standing};
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
/// Both as strings of JSON.
const STANDING_BYTES: usize = 2 * (CERTIFICATE_BYTES + CARRIED_BYTES + WORDS_BYTES);

/// What a move makes of that.
pub enum Told {
    /// It has no say in it.
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

/// `POST /v1/machine/{id}/moving`.
pub async fn stands(
    State(app): State<Arc<App>>,
    Caller { id, boot, peer }: Caller,
    body: Body,
) -> Result<Json<Value>, ApiError> {
    let Stands { order, certificate, port, carried, words } = read_of_machine(&app, peer, body, STANDING_BYTES).await?;
    let carried_bytes = carried.as_ref().map(|carried| json!(carried).to_string().len()).unwrap_or_default();
    if certificate.len() > CERTIFICATE_BYTES || carried_bytes > CARRIED_BYTES {
        let message = format!(
            "the certificate has {} bytes of at most {CERTIFICATE_BYTES}, and what is carried {carried_bytes} of {CARRIED_BYTES}",
            certificate.len()
        );
        return Err(ApiError::new(StatusCode::PAYLOAD_TOO_LARGE, message));
    }
    if order.is_empty() || certificate.trim().is_empty() {
        return Err(ApiError::bad("a machine of a move stands with the id of its order and with a certificate"));
    }
    let none = || conflict(format!("machine {id} is part of no open move with the id {order:?}"));
    let is = app.state.live_move(&id).await?.filter(|is| is.id == order).ok_or_else(none)?;
    let part = is.part(&id);
    let address = match (part, port) {
        (Part::Send, _) => String::new(),
        (Part::Receive, Some(port)) => address(peer, port),
        (Part::Receive, None) => return Err(ApiError::bad("the machine that receives says on which port")),
    };
    let word = Word::Stands(part, End { certificate, address, boot: boot.hash }, carried.map(Box::new));
    let heard = app.state.move_hears(&id, &order, word).await?.ok_or_else(none)?;
    let MoveHeard { is, news } = heard.map_err(conflict)?;
    if let Some(words) = words {
        says(&app, &is, part, (boot.hash, &shortened(&words, WORDS_BYTES))).await?;
    }
    if news {
        let directory = app.directory();
        app.watch.note(format!(
            "{} stands in its ramdisk for the move {} ({peer})",
            directory.name(&id),
            in_words(&directory, &is)
        ));
        app.state_has_changed();
    }
    Ok(Json(json!({})))
}

/// What goes wrong there is shown with the move.
async fn says(app: &App, is: &Move, part: Part, (boot, words): (Hash, &str)) -> Result<(), ApiError> {
    let machine = if part == Part::Send { &is.a } else { &is.b };
    let word = Word::Says(part, boot, words.to_owned());
    if let Some(Ok(MoveHeard { is, news: true })) = app.state.move_hears(machine, &is.id, word).await? {
        let directory = app.directory();
        let words = if words.is_empty() { "what went wrong is over" } else { words };
        app.watch.note(format!("{}: {words}; the move {}", directory.name(machine), in_words(&directory, &is)));
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

/// `of one to two (copying)`.
pub fn in_words(directory: &Directory, is: &Move) -> String {
    format!("of {} to {} ({})", directory.name(&is.a), directory.name(&is.b), is.state)
}

/// What the machine is told of an allocation. A move goes before all else.
///
/// # Errors
/// The database's.
pub async fn given(app: &App, directory: &Directory, id: &str) -> Result<Option<Given>, ApiError> {
    let moved = told(app, directory, id).await?;
    let Told::AsEver = moved else { return Ok(moved.given()) };
    let assigned = told::assigned(app, directory, id).await?;
    Ok(assigned.map(|(assigned, standing)| Given { assigned, standing, moving: None }))
}

/// What the machine is told because of a move.
///
/// # Errors
/// The database's.
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

/// How the allocation stands at the machine that is moved, where its file can be read.
async fn of_sender(app: &App, directory: &Directory, is: &Move) -> Result<Option<Standing>, ApiError> {
    let machine = handing::sender(directory, is);
    let Some(allocation) = machine.and_then(|machine| machine.allocation.as_ref()) else { return Ok(None) };
    wanted::standing(app, &is.a, allocation, &directory.known).await.map(Some)
}

/// The approval that is in force for the plan of the machine that receives. The inner error is why it may be given nothing.
async fn approved(app: &App, directory: &Directory, is: &Move) -> Result<Result<Option<Approved>, String>, ApiError> {
    let own = wanted::approved(app, &is.b, &is.allocation, Standing::default(), &directory.known).await?;
    Ok(directory.known.approvals.told(&is.b, &own))
}

/// What a move makes of the machine that has not asked yet.
///
/// # Errors
/// The database's.
pub async fn foreseen(app: &App, directory: &Directory, id: &str) -> Result<Foreseen, ApiError> {
    let Some(is) = app.state.live_move(id).await? else { return Ok(Foreseen::AsEver) };
    let standing = of_sender(app, directory, &is).await?.unwrap_or_default();
    Ok(match approved(app, directory, &is).await? {
        Ok(approved) => handing::foreseen(is, id, standing, approved, directory),
        Err(why) if is.b == id => Foreseen::Unknown(why),
        Err(_) => handing::foreseen(is, id, standing, None, directory),
    })
}

/// The receiving machine asks to pass its point of no return. None: the machine receives nothing. The inner error is why it may not.
///
/// # Errors
/// The database's.
pub async fn begins(
    app: &App,
    directory: &Directory,
    boot: &Boot,
    peer: Peer,
    (allocation, disks, said): (&str, &[MarkedDisk], Option<&str>),
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
    look_is_awaited(app, &of, boot).await?;
    if let Err(why) = crate::serve::approved::compared(app, directory, id, allocation, said).await? {
        return Ok(Some(Err(why)));
    }
    let Some(heard) = app.state.move_begins(id, boot.hash, disks.to_vec()).await? else {
        return Ok(Some(Err("the move has ended".to_owned())));
    };
    let MoveHeard { is, news } = match heard {
        Ok(heard) => heard,
        Err(why) => return Ok(Some(Err(why))),
    };
    app.state.boot_begins(boot.hash).await?;
    if news {
        app.watch.note(format!(
            "{} begins to receive: its disks are erased; the move {} ({peer})",
            directory.name(id),
            in_words(directory, &is)
        ));
        app.state_has_changed();
    }
    Ok(Some(Ok(())))
}

/// Before anything is erased the machine that is moved has looked at the certificate of the one that receives, and lives.
///
/// # Errors
/// It is to be asked again: it may come to that soon.
async fn look_is_awaited(app: &App, is: &Move, boot: &Boot) -> Result<(), ApiError> {
    let is_own = |end: &&End| is.state == MoveState::Planned && end.boot == boot.hash;
    let Some(receiver) = is.receiver.as_ref().filter(is_own) else { return Ok(()) };
    let now = app.state.present(is).await?;
    match is.peer(Part::Send, now).is_some() && app.looks.has_looked(&is.a, &receiver.certificate) {
        true => Ok(()),
        false => Err(ApiError::new(
            StatusCode::SERVICE_UNAVAILABLE,
            format!(
                "machine {}, which is moved, has not looked at this machine's certificate yet, or has not asked for half a minute: see to it that it stands in its ramdisk",
                is.a
            ),
        )),
    }
}

/// A report of a machine in a move. None: it is about something else.
///
/// # Errors
/// The database's; its success does not count, so that it must not boot what it has.
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
        app.watch.note(format!("the move {}", in_words(&app.directory(), &is)));
        note_silence(app, &is);
        app.state_has_changed();
    }
    Ok(Some(Acknowledged { retry }))
}

/// A machine that is moved, and that nobody hears of when all was received, is off, or its own system runs.
fn note_silence(app: &App, is: &Move) {
    let receiver = is.receiver.as_ref().filter(|_| is.state == MoveState::Booting);
    if receiver.is_some_and(|receiver| !app.looks.has_looked(&is.a, &receiver.certificate)) {
        app.watch.note(format!(
            "{} has not asked for half a minute: see to it that it is off, or stands in its ramdisk. What its own system writes now is not moved",
            app.directory().name(&is.a)
        ));
    }
}

/// The system runs, by the word of the boot that has received it.
///
/// # Errors
/// The database's.
pub async fn phoned_home(app: &App, id: &str, boot: Hash) -> Result<(), ApiError> {
    if let Some(Ok(MoveHeard { is, news: true })) = app.state.move_hears(id, "", Word::PhonedHome(boot)).await? {
        app.watch.note(format!("the move {}: {} is released", in_words(&app.directory(), &is), is.a));
        app.state_has_changed();
    }
    Ok(())
}
