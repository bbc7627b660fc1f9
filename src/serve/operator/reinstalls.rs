//! Reinstall orders: validated, placed, cancelled.

use super::{Listed, Operator, invalid, listed, with_allocation};
use crate::allocation::Allocation;
use crate::device::identifiers::{is_placeholder_serial, is_placeholder_wwn};
use crate::layout;
use crate::serve::api::bodies::{EVENT_BYTES, read};
use crate::serve::api_error::ApiError;
use crate::serve::definitions::Settled;
use crate::serve::directory::Directory;
use crate::serve::input::{Machine, nearest};
use crate::serve::peers::Peer;
use crate::serve::promise::{contradiction, remedy};
use crate::serve::resolve::{Known, created, resolve};
use crate::serve::state::{Cancelled, Order, Ordered, Standing, Words, confirmed};
use crate::serve::watch::Who;
use crate::serve::{App, metrics, wanted};
use axum::Json;
use axum::body::Body;
use axum::extract::{Path, State};
use axum::http::StatusCode;
use serde::{Deserialize, Serialize};
use std::sync::Arc;
use std::time::Duration;

/// Longest time that an order waits for `verify` of an OS definition.
const VERIFY_PATIENCE: Duration = Duration::from_secs(30);

/// metal-api's `v1.MachineReinstallRequest`, with additional fields.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct Reinstall {
    pub id: String,
    /// Id of the new image.
    pub imageid: String,
    /// Proceed although the disk with the install marker was replaced.
    #[serde(default)]
    pub without_marker: bool,
    /// Use the layout of the file even if it contradicts the promises of the installed one.
    #[serde(default)]
    pub change_promise: bool,
    /// Serial numbers of disks whose data may be erased.
    #[serde(default)]
    pub give_up: Vec<String>,
    /// Replace the installation on the disks even if it is newer than the order.
    #[serde(default)]
    pub replace_newer: bool,
}

/// `POST /v1/machine/{id}/reinstall`: orders a reinstall, with the checks of metal-api.
pub async fn reinstall(
    State(app): State<Arc<App>>,
    Path(id): Path<String>,
    _: Operator,
    peer: Peer,
    body: Body,
) -> Result<Json<Listed>, ApiError> {
    let asked: Reinstall = read(&app, peer, body, EVENT_BYTES).await?;
    let id = id.to_lowercase();
    if asked.id.to_lowercase() != id {
        return Err(ApiError::bad(format!("the path contains machine {id}, but the body contains {:?}", asked.id)));
    }
    order(&app, peer, &asked).await.map(Json)
}

/// Stores the order, if it can be carried out.
pub async fn order(app: &App, peer: Peer, asked: &Reinstall) -> Result<Listed, ApiError> {
    let Orderable { machine, allocation, words, .. } = orderable(app, asked).await?;
    let id = &machine.id;
    match app.state.order(id, &allocation, &asked.imageid, words).await? {
        Ordered::Placed(order) => {
            app.state.metrics.ordered(metrics::Ordered::Placed);
            let text = format!("ordered: image {}{}", order.image, in_words(&order));
            app.watch.reinstall(Who::new(id, app.directory().name(id), peer), text);
            app.state_has_changed();
            listed(app, &machine).await
        }
        Ordered::NotInstalled => Err(invalid(not_installed(id, &allocation))),
        Ordered::Begun(order) => Err(begun(&order)),
        Ordered::Blocked(why) => Err(ApiError::new(StatusCode::CONFLICT, why)),
    }
}

/// A machine that can be reinstalled.
pub struct Orderable {
    pub machine: Machine,
    /// Id of its allocation.
    pub allocation: String,
    pub standing: Standing,
    pub words: Words,
}

/// Checks whether the reinstall can be ordered.
///
/// # Errors
/// The reason why it cannot be ordered.
pub async fn orderable(app: &App, asked: &Reinstall) -> Result<Orderable, ApiError> {
    let id = asked.id.to_lowercase();
    await_definition(app, &id).await?;
    let directory = app.directory();
    let (machine, allocation) = with_allocation(app, &id)?;
    if let Some(reason) = &machine.locked {
        return Err(invalid(format!("machine {id} is locked: {reason}")));
    }
    let mut standing = app.state.standing(&id, &allocation).await?;
    if standing.unconfirmed {
        return Err(ApiError::new(StatusCode::CONFLICT, confirmed::explain(&id)));
    }
    if let Some(allocation) = &machine.allocation {
        standing.generated = wanted::generate(app, &id, allocation, &directory.known).await?;
    }
    if !standing.succeeded {
        return Err(invalid(not_installed(&id, &allocation)));
    }
    let made = machine.allocation.as_ref().and_then(|allocation| Some((allocation, allocation.definition.creates()?)));
    match (made, directory.known.images.get(&asked.imageid)) {
        (Some((allocation, os)), _) => drop(created(allocation, &os, &asked.imageid).map_err(invalid)?),
        (None, Some(Some(_))) => {}
        (None, Some(None)) => {
            let why = "cannot be used yet: its digest is pending, or its file is unreadable; see the server's output and retry";
            return Err(invalid(format!("image {:?} {why}", asked.imageid)));
        }
        (None, None) => {
            let others = nearest(&asked.imageid, directory.known.listed_images());
            return Err(invalid(format!("there is no image {:?} in images/{others}", asked.imageid)));
        }
    }
    let runs = standing.image.as_deref() == Some(&asked.imageid);
    if !runs && directory.known.states.is_blacklisted(&asked.imageid) {
        let why = "is blacklisted: only machines that run it can be reinstalled with it";
        return Err(invalid(format!("image {} {why}", asked.imageid)));
    }
    let words = Words {
        without_marker: asked.without_marker,
        change_promise: asked.change_promise,
        give_up: asked.give_up.iter().map(|serial| serial.trim().to_owned()).collect(),
        replace_newer: asked.replace_newer,
    };
    if words.give_up.iter().any(String::is_empty) {
        return Err(ApiError::bad("a serial number in give_up must not be empty"));
    }
    if let Some(placeholder) = words.give_up.iter().find(|name| names_no_disk(name)) {
        return Err(ApiError::bad(format!(
            "{placeholder:?} does not identify a disk: it is a placeholder that many disks report; give the disk's WWN or its path in /dev/disk/by-path"
        )));
    }
    is_reinstallable(&machine, standing.clone(), &directory.known, &words)?;
    Ok(Orderable { machine, allocation, standing, words })
}

/// Waits until the `verify` of the OS definition that a machine's allocation names has ended. It runs after each start of the server
/// and each change of the definition or its parameters.
///
/// # Errors
/// `verify` takes too long, or has refused the definition.
async fn await_definition(app: &App, id: &str) -> Result<(), ApiError> {
    let definition = |directory: &Directory| {
        directory.machine(id).and_then(|machine| machine.allocation.as_ref()).map(|is| is.definition.clone())
    };
    let mut directory = app.directory.clone();
    let is_verified = |directory: &Directory| !matches!(definition(directory), Some(Settled::Waits));
    let verified = tokio::time::timeout(VERIFY_PATIENCE, directory.wait_for(|directory| is_verified(directory))).await;
    let Ok(Ok(verified)) = verified else {
        let message = format!("the OS definition of machine {id} is still being verified: try again in a minute");
        return Err(ApiError::new(StatusCode::SERVICE_UNAVAILABLE, message));
    };
    match definition(&verified) {
        Some(Settled::Bad(why)) => Err(invalid(why)),
        _ => Ok(()),
    }
}

/// Returns whether a word is a placeholder, and neither a unique serial number nor a unique WWN.
fn names_no_disk(word: &str) -> bool {
    is_placeholder_serial(word) && is_placeholder_wwn(word)
}

/// `DELETE /v1/machine/{id}/reinstall`.
pub async fn cancel(
    State(app): State<Arc<App>>,
    Path(id): Path<String>,
    _: Operator,
    peer: Peer,
) -> Result<Json<Listed>, ApiError> {
    let id = id.to_lowercase();
    let (machine, allocation) = with_allocation(&app, &id)?;
    match app.state.cancel(&id, &allocation).await? {
        Cancelled::Done(order) => {
            app.state.metrics.ordered(metrics::Ordered::TakenBack);
            let who = Who::new(&id, app.directory().name(&id), peer);
            app.watch.reinstall(who, format!("cancelled: image {}", order.image));
            app.state_has_changed();
            Ok(Json(listed(&app, &machine).await?))
        }
        Cancelled::NothingOrdered => Err(ApiError::not_found(format!("no reinstall of machine {id} is ordered"))),
        Cancelled::Begun(order) => Err(begun(&order)),
    }
}

/// Describes the options of an order.
fn in_words(order: &Order) -> String {
    let waived = if order.without_marker { ", without the marker" } else { "" };
    let changed = if order.change_promise { ", with the layout of its file" } else { "" };
    let given_up: String = order.give_up.iter().map(|serial| format!(", erasing {serial}")).collect();
    let replaced = if order.replace_newer { ", replacing a newer installation" } else { "" };
    format!("{waived}{changed}{given_up}{replaced}")
}

/// Checks that the installed layout has a disk that a reinstall may erase.
pub fn is_reinstallable(machine: &Machine, standing: Standing, known: &Known, words: &Words) -> Result<(), ApiError> {
    // The open order is ignored: it would be replaced, and its image may no longer exist.
    let mut standing = Standing { order: None, ..standing };
    if words.change_promise {
        standing.layout = None;
    }
    let marker = standing.marker.clone();
    let assigned = resolve(machine, &standing, known).map_err(invalid)?;
    let Some(assigned) = assigned else {
        return Err(invalid("it is no longer allocated".to_owned()));
    };
    let broken = marker.filter(|_| !words.change_promise).and_then(|marker| contradiction(&marker, &assigned.layout));
    if let Some(why) = broken {
        return Err(invalid(format!("{why}: {}", remedy(&machine.id))));
    }
    let allocation = Allocation { filesystemlayout: assigned.layout, ..Allocation::default() };
    let layout = allocation
        .layout()
        .map_err(|problems| invalid(format!("its layout is invalid: {}", crate::problem::lines(&problems))))?;
    match layout.layout.disks.iter().any(|disk: &layout::Disk| disk.wipeonreinstall) {
        true => Ok(()),
        false => Err(ApiError::bad(format!(
            "filesystemlayout:{} is not reinstallable, abort reinstallation",
            assigned.layout_id
        ))),
    }
}

fn not_installed(id: &str, allocation: &str) -> String {
    format!("allocation {allocation} of machine {id} is not installed yet")
}

pub fn begun(order: &Order) -> ApiError {
    let what = match order.given_up {
        true => "was abandoned after its point of no return: order another reinstall, which replaces it",
        false => "has passed its point of no return: wait until it has ended",
    };
    ApiError::new(StatusCode::CONFLICT, format!("the reinstall with image {} {what}", order.image))
}
