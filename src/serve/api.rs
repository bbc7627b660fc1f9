//! The agent's API of [`crate::control::wire`]. `boot` issues its tokens and `caller` authorizes requests; `told` converts the allocation
//! of a machine, `secrets` releases its secrets, `bodies` reads requests.

pub mod bodies;
pub mod secrets;
pub mod told;

use super::api_error::ApiError;
use super::base::Base;
use super::caller::{self, Caller, Teller};
use super::directory::Directory;
use super::metrics::Ordered;
use super::moves::agents;
use super::moves::handing::Given;
use super::peers::Peer;
use super::proof::{self, SourcePort};
use super::resolve::Assigned;
use super::state::{ATTEMPTS, AttemptStart, Begun, BegunFirst, HandedOut, Reported, Standing, Unproven};
use super::watch::Who;
use super::{App, anonymous_events, approved, identity, requests, wanted};
use crate::allocation::{self, Allocation};
use crate::carried::Part;
use crate::control::Acknowledged;
use crate::control::wire::{PointOfNoReturn, Register, Report};
use crate::facts::{Event, EventName};
use crate::marker::attempt::is_secret_digest;
use crate::text::limits::{LINE_BYTES, NAME_BYTES, first_line, shortened};
use axum::Json;
use axum::body::Body;
use axum::extract::rejection::QueryRejection;
use axum::extract::{Query, State};
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use bodies::{EVENT_BYTES, read_of_machine};
use serde::Deserialize;
use serde_json::{Value, json};
use std::sync::Arc;
use std::time::Duration;
use told::on_the_wire;

const MAX_WAIT_SECONDS: u64 = 300;
/// Maximum length of an id in an error message, in bytes.
const ID_BYTES: usize = 128;
/// Maximum size of inventories and reports with plans. They are text; that of the largest server has some ten thousand bytes.
const DOCUMENT_BYTES: usize = 4 << 20;
/// Maximum size of the registration of a machine without a file. Any client can send hundreds of them, and each is stored.
const UNKNOWN_DOCUMENT_BYTES: usize = 1 << 20;

/// `POST /v1/machine/register`: registers the machine that a boot was requested for.
pub async fn register(
    State(app): State<Arc<App>>,
    peer: Peer,
    source: SourcePort,
    headers: HeaderMap,
    body: Body,
) -> Result<Json<Value>, ApiError> {
    let boot = caller::boot(&app, &headers).await?.filter(|boot| boot.over != Some(true));
    let boot = boot.ok_or_else(|| caller::not_of(""))?;
    proof::require_privileged(&app, source, peer, &boot.machine, "register")?;
    let is_known = app.directory().machine(&boot.machine).is_some();
    let most_bytes = if is_known { DOCUMENT_BYTES } else { UNKNOWN_DOCUMENT_BYTES };
    let register: Register = read_of_machine(&app, peer, body, most_bytes).await?;
    let id = register.uuid.to_lowercase();
    if boot.machine != id {
        return Err(caller::not_of(&id));
    }
    let register = within_limits(&app, peer, register).await?;
    let directory = app.directory();
    identity::refuse_other_machine(&app, &directory, &id, &register, peer).await?;
    refuse_other_nic(&app, &directory, &id, peer)?;
    let macs = identity::registered_macs(&register);
    let two_machines = identity::two_machines(&app, &id, &macs).await?;
    caller::enroll(&app, &boot, peer, two_machines.as_deref()).await?;
    // A repeated registration, caused by a new address, has the same content as the first one.
    if boot.address.is_none() {
        app.state.register(&id, directory.name(&id), &register).await?;
        let allocation = directory.machine(&id).and_then(|machine| machine.allocation.as_ref());
        if allocation.is_some_and(|allocation| wanted::needs_inventory(allocation, &directory.known)) {
            // The layout depends on the registration, so its problems are found now.
            app.state_has_changed();
        }
    }
    if directory.machine(&id).is_none() {
        app.watch.note(caller::stranger(&id, peer, &register.hardware));
    }
    Ok(Json(json!({})))
}

/// Refuses a registration that exceeds the limits of the planner.
async fn within_limits(app: &App, peer: Peer, register: Register) -> Result<Register, ApiError> {
    let judge = move || match register.exceeded() {
        None => Ok(register),
        Some(why) => Err(why),
    };
    // Accounted to the address, from which several machines may register.
    let judged = app.planner.compute(&peer.to_string(), judge).await?;
    judged.map_err(|why| ApiError::new(StatusCode::UNPROCESSABLE_ENTITY, format!("registration refused: {why}")))
}

/// Refuses a machine if the NIC in the kernel's neighbour table is not listed in its file.
fn refuse_other_nic(app: &App, directory: &Directory, id: &str, peer: Peer) -> Result<(), ApiError> {
    let message = directory.machine(id).and_then(|machine| caller::other_card(app, machine, peer));
    let Some(message) = message else { return Ok(()) };
    app.alarm(message.clone());
    Err(ApiError::new(StatusCode::CONFLICT, message))
}

#[derive(Deserialize)]
pub struct WaitQuery {
    #[serde(default)]
    seconds: u64,
}

/// `GET /v1/machine/{id}/wait`: responds as soon as the machine is allocated. A waiting machine costs only a socket and an entry in the
/// watchers of the directory.
pub async fn wait(
    State(app): State<Arc<App>>,
    Caller { id, .. }: Caller,
    query: Result<Query<WaitQuery>, QueryRejection>,
) -> Result<Response, ApiError> {
    let Query(WaitQuery { seconds }) = query.map_err(|error| ApiError::bad(error.to_string()))?;
    let mut closing = app.closing.clone();
    let _waits = app.state.metrics.waits();
    let patience = tokio::time::sleep(Duration::from_secs(seconds.min(MAX_WAIT_SECONDS)));
    requests::resting(async {
        tokio::select! {
            biased;
            result = allocated(&app, &id) => result.map(|()| Json(json!({})).into_response()),
            _ = closing.wait_for(|closing| *closing) => Ok(StatusCode::NO_CONTENT.into_response()),
            () = patience => Ok(StatusCode::NO_CONTENT.into_response()),
        }
    })
    .await
}

/// Returns as soon as the machine has an allocation that can be carried out. Any change publishes a new directory.
async fn allocated(app: &App, id: &str) -> Result<(), ApiError> {
    let mut directory = app.directory.clone();
    loop {
        let now = directory.borrow_and_update().clone();
        if agents::given(app, &now, id).await?.is_some() {
            return Ok(());
        }
        if directory.changed().await.is_err() {
            // The server shuts down, which the client notices as well.
            std::future::pending::<()>().await;
        }
    }
}

pub async fn machine(
    State(app): State<Arc<App>>,
    base: Base,
    Caller { id, boot, peer }: Caller,
) -> Result<Json<allocation::Machine>, ApiError> {
    let directory = app.directory();
    let described = directory.machine(&id);
    let given = agents::given(&app, &directory, &id).await?;
    if let Some(moving) = given.as_ref().and_then(|given| given.moving.as_ref()).filter(|is| is.part == Part::Send) {
        app.looks.told(&id, moving.peer.as_ref().map(|peer| peer.certificate.as_str()));
    }
    // Read after the allocation: if the migration ends in between, its end is reported.
    let newest_move = app.state.last_move(&id).await?.map(|is| is.newest());
    let allocation = match given {
        Some(given @ Given { moving: Some(_), .. }) => Some(given.on_the_wire(&base.calls, !boot.begun)),
        Some(Given { assigned, mut standing, moving: None }) => {
            let Assigned { layout_id, layout, image, .. } = &assigned;
            if assigned.installs {
                let order = standing.order.as_ref().map(|order| order.id.as_str()).unwrap_or_default();
                let what = HandedOut { layout_id, layout, image: &image.id, order };
                let record = app.state.handed_out(&id, &assigned.allocation.id, what).await?;
                standing = Standing { created: record.created, fencing: record.fencing, ..standing };
            } else {
                let text = "is installed and no reinstall is ordered: it boots its disks";
                app.watch.note(format!("{} {text} ({peer})", directory.name(&id)));
            }
            // Only until the installation has started. After that, the agent has them.
            let with_parameters = assigned.installs && !boot.begun;
            Some(on_the_wire(&assigned, standing, &base.calls, with_parameters))
        }
        None => None,
    };
    let blank_only = identity::blank_only(&app, &directory, &id).await?;
    let allocation = allocation.map(|allocation| Allocation { blank_only, ..allocation });
    Ok(Json(allocation::Machine {
        name: described.map(|machine| machine.name.clone()).unwrap_or_default(),
        size: described.and_then(|machine| machine.size.clone()).map(|id| allocation::Named { id }),
        allocation,
        newest_move,
        id,
    }))
}

pub async fn event(
    State(app): State<Arc<App>>,
    Teller(Caller { id, boot, peer }): Teller,
    body: Body,
) -> Result<Json<Value>, ApiError> {
    let event: Event = read_of_machine(&app, peer, body, EVENT_BYTES).await?;
    let event = Event { message: shortened(&event.message, LINE_BYTES), ..event };
    if boot.address.is_none() && !is_kept_of_anonymous(&app, peer) {
        return Ok(Json(json!({})));
    }
    // Progress events arrive every second and are only of momentary interest. A boot that has not registered does not create a record of a
    // machine.
    let is_recorded = boot.address.is_some() || app.state.is_recorded(&id).await?;
    if event.progress.is_none() && is_recorded {
        app.state.event(&id, &event).await?;
    }
    if event.event == EventName::PhonedHome && boot.address.is_some() {
        agents::phoned_home(&app, &id, boot.hash).await?;
    }
    app.watch.event(Who::new(&id, app.directory().name(&id), peer), event);
    Ok(Json(json!({})))
}

/// Returns whether another event of an unregistered client is kept and printed.
pub fn is_kept_of_anonymous(app: &App, Peer(address): Peer) -> bool {
    let is_kept = app.anonymous_events.is_kept(address);
    if !is_kept {
        app.alarm(format!(
            "{address} sends more than {} events a minute for machines that have not registered: further ones of this minute are dropped",
            anonymous_events::EVENTS
        ));
    }
    is_kept
}

/// `POST /v1/machine/{id}/point-of-no-return`: permits an installation to erase data, if the operator still wants it.
pub async fn point_of_no_return(
    State(app): State<Arc<App>>,
    Caller { id, boot, peer }: Caller,
    body: Body,
) -> Result<Json<Value>, ApiError> {
    let PointOfNoReturn { allocationuuid, order, disks, approved: said, secret_digest, .. } =
        read_of_machine(&app, peer, body, DOCUMENT_BYTES).await?;
    if secret_digest.as_deref().is_some_and(|digest| !is_secret_digest(digest)) {
        return Err(ApiError::bad("secret_digest: must be `sha256:` followed by 64 lowercase hexadecimal digits"));
    }
    let start = AttemptStart { by: boot.hash, disks, secret_digest };
    let changed = |why: String| Err(ApiError::new(StatusCode::CONFLICT, why));
    let directory = app.directory();
    if let Some(answer) =
        agents::begins(&app, &directory, &boot, peer, (&allocationuuid, &start, said.as_deref())).await?
    {
        return answer.map_or_else(changed, |()| Ok(Json(json!({}))));
    }
    // A different allocation in the file replaces this one, so the rest of this one must not be installed.
    let current = directory.machine(&id).and_then(|machine| machine.allocation.as_ref());
    match current {
        Some(current) if *current.id != allocationuuid => {
            return changed(format!("the machine's allocation is now {}, not {allocationuuid}", *current.id));
        }
        None if order.is_none() => {
            return changed(format!("the machine's file no longer contains allocation {allocationuuid}"));
        }
        _ => {}
    }
    if let Some(current) = current {
        let standing = app.state.standing(&id, &allocationuuid).await?;
        if directory.known.states.bars(current, &standing).is_some() {
            return changed("its image was blacklisted after the allocation was sent".to_owned());
        }
    }
    if let Err(why) = approved::compared(&app, &directory, &id, &allocationuuid, said.as_deref()).await? {
        return changed(why);
    }
    let Some(order) = order else {
        return match app.state.begin_first(&id, &allocationuuid, start).await? {
            BegunFirst::Yes(news) => {
                app.state.boot_begins(boot.hash).await?;
                if news {
                    let text = "starts its installation: the disks of its layout are erased";
                    app.watch.note(format!("{} {text} ({peer})", directory.name(&id)));
                }
                Ok(Json(json!({})))
            }
            BegunFirst::No(why) => changed(why),
        };
    };
    match app.state.begin(&id, &allocationuuid, &order, start).await? {
        Begun::Yes(order, news) => {
            app.state.boot_begins(boot.hash).await?;
            if news {
                app.state.metrics.ordered(Ordered::Begun);
                let text = format!("started: image {}, attempt {} of {ATTEMPTS}", order.image, order.attempts);
                app.watch.reinstall(Who::new(&id, directory.name(&id), peer), text);
            }
            Ok(Json(json!({})))
        }
        Begun::NotInForce => {
            changed(format!("order {order:?} is no longer open: it was cancelled, replaced, or completed"))
        }
    }
}

pub async fn report(
    State(app): State<Arc<App>>,
    Teller(Caller { id, boot, peer }): Teller,
    body: Body,
) -> Result<Json<Acknowledged>, ApiError> {
    let mut report: Report = read_of_machine(&app, peer, body, DOCUMENT_BYTES).await?;
    let directory = app.directory();
    let current = directory.machine(&id).and_then(|machine| machine.allocation.as_ref());
    if let Some(current) = current
        && report.allocationuuid.is_empty()
    {
        report.allocationuuid = current.id.to_string();
    }
    let who = Who::new(&id, directory.name(&id), peer);
    if let Some(acknowledged) = agents::reports(&app, &who, &boot, &report).await? {
        return Ok(Json(acknowledged));
    }
    let is_current = current.is_some_and(|current| *current.id == report.allocationuuid);
    if boot.address.is_none() || !(is_current || app.state.has_allocation(&id, &report.allocationuuid).await?) {
        return foreign(&app, &who, &report, boot.address.is_some());
    }
    let reported = app.state.report(&id, &report.allocationuuid, boot.hash, &report).await?;
    if let Some(why) = reported.unproven {
        return Err(refused_success(&app, &id, &report, &why));
    }
    if let Some(success) = reported.over {
        app.state.boot_ends(boot.hash, success).await?;
    }
    if reported.news {
        app.state.metrics.reported(&report);
        app.watch.report(who.clone(), &report);
        if let Some(text) = ending(&reported, &report) {
            app.watch.reinstall(who, text);
        }
        app.state_has_changed();
    }
    Ok(Json(Acknowledged { retry: reported.retry }))
}

/// Refuses a success that is not proven. The machine must not boot its disks, and the operator is warned.
fn refused_success(app: &App, machine: &str, report: &Report, why: &Unproven) -> ApiError {
    let message = why.explain(machine, &crate::text::cut(&report.allocationuuid, ID_BYTES).escape_debug().to_string());
    app.alarm(format!("{}: {message}", app.directory().name(machine)));
    ApiError::new(StatusCode::CONFLICT, message).with_code(why.code())
}

/// Responds to a report about an allocation that the machine never had, or of a boot that never registered. One line of it is logged, and
/// nothing is stored.
fn foreign(app: &App, who: &Who, report: &Report, has_registered: bool) -> Result<Json<Acknowledged>, ApiError> {
    let allocation = &report.allocationuuid;
    let end = if report.success { "success" } else { "failure" };
    let why = match has_registered {
        true => format!("this machine never had allocation {allocation:?}"),
        false => "its boot has not registered".to_owned(),
    };
    app.alarms
        .note(format!("{who}  reports {end}; ignored: {why}: {}", shortened(&first_line(&report.message), NAME_BYTES)));
    match report.success {
        true => {
            let message = format!("this machine never had allocation {allocation:?}: its success is rejected");
            Err(ApiError::new(StatusCode::CONFLICT, message))
        }
        false => Ok(Json(Acknowledged::default())),
    }
}

/// Describes the effect of a report on the order.
fn ending(reported: &Reported, report: &Report) -> Option<String> {
    let order = reported.order.as_ref()?;
    let (image, attempt) = (&order.image, order.attempts);
    Some(if report.success {
        format!("done: image {image}, attempt {attempt} of {ATTEMPTS}")
    } else if reported.retry {
        format!("attempt {attempt} of {ATTEMPTS} failed: the machine retries")
    } else if order.given_up {
        format!("abandoned after {attempt} attempts: the machine is only partially installed and waits at its console")
    } else {
        format!("abandoned: no disk was changed, the machine boots its old system; image {image} was not installed")
    })
}

pub async fn no_such_call() -> ApiError {
    ApiError::not_found("no such endpoint")
}

pub async fn wrong_method() -> ApiError {
    ApiError::new(StatusCode::METHOD_NOT_ALLOWED, "method not allowed for this endpoint")
}
