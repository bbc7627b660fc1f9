//! What a machine boots: over PXE a script, from a running system the same without its firmware. Every ramdisk that is
//! handed out for an order is counted first.

use super::api_error::ApiError;
use super::base::Base;
use super::moves::MoveState;
use super::peers::Peer;
use super::state::{ATTEMPTS, Asked, Boot, Files, Handed, NextBoot, Order, confirmed};
use super::watch::Who;
use super::{App, api, caller, identity, input, ipxe, token};
use crate::carried::Part;
use crate::control::wire;
use crate::facts::{Event, EventName};
use crate::machine_identity::{BootIdentity, MachineMatch, parse_usable_uuid};
use axum::Json;
use axum::extract::rejection::QueryRejection;
use axum::extract::{Query, State};
use axum::http::{Method, StatusCode};
use serde::Deserialize;
use std::sync::Arc;

pub async fn start_script(base: Base) -> String {
    ipxe::start(&base.files)
}

#[derive(Deserialize)]
pub struct BootQuery {
    #[serde(default)]
    uuid: String,
    #[serde(default)]
    mac: String,
}

/// `/boot.ipxe`: the script of one machine, with a token that is good for nothing until its boot registers.
pub async fn script(
    State(app): State<Arc<App>>,
    base: Base,
    peer: Peer,
    method: Method,
    query: Result<Query<BootQuery>, QueryRejection>,
) -> Result<String, ApiError> {
    let asking = asking(&app, peer, &method, query).await?;
    let (token, hash) = token::fresh()?;
    if let Some(why) = asking.withheld {
        // What its disks hold may run on another machine.
        if app.state.is_held(&asking.id, asking.files).await? {
            app.alarm(format!("{why}. It has part in a move: it does not boot its disk, and waits"));
            return Ok(ipxe::hold(&base.files, &asking.id));
        }
        app.alarm(why);
        return Ok(ipxe::local_disk(&asking.id));
    }
    let asked = Asked { token: hash, by: peer.to_string(), ordered_only: false };
    let Handed { next, other } = app.state.next_boot(&asking.id, asking.files.clone(), asked).await?;
    let initrd = initrd(&app, &asking.id).await;
    say_other(&app, &asking, other, peer).await?;
    let (message, stop) = match &next {
        NextBoot::Install => ("gets kernel and ramdisk".to_owned(), Some(false)),
        NextBoot::Attempt(order) => (attempt(order), Some(false)),
        NextBoot::Unconfirmed(order) => (unconfirmed(order), Some(false)),
        NextBoot::Moving(part, state) => (moving(*part, *state), Some(false)),
        NextBoot::Released => (RELEASED.to_owned(), Some(false)),
        NextBoot::Disk => ("is installed, boots its disk".to_owned(), None),
        NextBoot::Dropped(order) => (dropped(order), None),
        NextBoot::Elsewhere(other) => (elsewhere(&asking.id, other), None),
        NextBoot::NoFile => (no_file(&asking.id), None),
        NextBoot::Stop(order) => (stopped(order), Some(true)),
        NextBoot::Crowded => return Err(crowded(&app, &asking.id, peer)),
    };
    say_unproven(&app, &asking, &next, peer);
    if matches!(next, NextBoot::Elsewhere(_) | NextBoot::NoFile) {
        app.alarm(format!("{} at {peer}: it {message}", asking.id));
    }
    tell(&app, &asking.id, peer, EventName::PxeBooting, &message).await?;
    say_the_end(&app, &asking.id, &next, peer);
    Ok(match stop {
        Some(stop) => ipxe::ramdisk(&ipxe::Ramdisk { initrd, ..asking.ramdisk(&app, &base, &token, stop) }),
        None => ipxe::local_disk(&asking.id),
    })
}

/// `/boot.json`: the same for a machine that is running and wants to be reinstalled. It is told no as long as nothing is
/// ordered: it runs, and is to go on running.
pub async fn without_firmware(
    State(app): State<Arc<App>>,
    base: Base,
    peer: Peer,
    method: Method,
    query: Result<Query<BootQuery>, QueryRejection>,
) -> Result<Json<wire::NextBoot>, ApiError> {
    let asking = asking(&app, peer, &method, query).await?;
    let (token, hash) = token::fresh()?;
    if let Some(why) = asking.withheld {
        app.alarm(why.clone());
        return Err(ApiError::new(StatusCode::CONFLICT, why));
    }
    let asked = Asked { token: hash, by: peer.to_string(), ordered_only: true };
    let Handed { next, other } = app.state.next_boot(&asking.id, asking.files.clone(), asked).await?;
    say_other(&app, &asking, other, peer).await?;
    say_unproven(&app, &asking, &next, peer);
    say_the_end(&app, &asking.id, &next, peer);
    let id = &asking.id;
    let refusal = match &next {
        NextBoot::Attempt(_) | NextBoot::Moving(..) => {
            let what = match &next {
                NextBoot::Moving(part, state) => moving(*part, *state),
                NextBoot::Attempt(order) => attempt(order),
                _ => String::new(),
            };
            tell(&app, id, peer, EventName::PlannedReboot, &format!("{what}, without its firmware")).await?;
            let initrd = initrd(&app, id).await;
            let ramdisk = ipxe::Ramdisk { initrd, ..asking.ramdisk(&app, &base, &token, false) };
            return Ok(Json(wire::NextBoot {
                kernel: ramdisk.kernel(),
                initrd: ramdisk.initrd(),
                cmdline: ramdisk.arguments(),
            }));
        }
        NextBoot::Released => format!("machine {id} {RELEASED}"),
        NextBoot::Unconfirmed(_) => confirmed::explain(id),
        NextBoot::Install => format!("machine {id} has no allocation that this server knows to be installed"),
        NextBoot::Disk => format!(
            "no reinstall of machine {id} is ordered: `drophammer machine reinstall {id} --image IMAGE` orders one"
        ),
        NextBoot::Dropped(order) => dropped(order),
        NextBoot::Elsewhere(other) => format!("machine {id} {}", elsewhere(id, other)),
        NextBoot::NoFile => format!("machine {id} {}", no_file(id)),
        NextBoot::Stop(order) => stopped(order),
        NextBoot::Crowded => return Err(crowded(&app, id, peer)),
    };
    Err(ApiError::new(StatusCode::CONFLICT, refusal))
}

const PLAIN: &str = "initrd";

/// The same with cryptsetup behind it, which only few machines need.
const WITH_LUKS: &str = "initrd-luks";

/// The ramdisk's file for a machine: by what its layout is now. One that is given another layout later boots again for it.
async fn initrd(app: &App, id: &str) -> &'static str {
    let directory = app.directory();
    let is_encrypted = match api::told::assigned(app, &directory, id).await {
        Ok(Some((assigned, _))) => {
            let lists = ["filesystems", "volumegroups"].map(|list| assigned.layout[list].as_array());
            lists.into_iter().flatten().flatten().any(|item| !item["encrypted"].is_null())
        }
        // Its image is still being digested, or the like.
        _ => {
            let allocation = directory.machine(id).and_then(|machine| machine.allocation.as_ref());
            let named = allocation.and_then(|allocation| allocation.filesystemlayout.as_deref());
            let layout = named.and_then(|named| directory.known.layouts.get(named));
            layout.is_some_and(|layout| layout.encrypted().next().is_some())
        }
    };
    if !is_encrypted {
        return PLAIN;
    }
    let file = app.boot.join(WITH_LUKS);
    if file.is_file() {
        return WITH_LUKS;
    }
    app.alarm(format!(
        "{id}: its layout has encrypted filesystems, and {} is not there: its agent will refuse (scripts/build-ramdisk makes it)",
        file.display()
    ));
    PLAIN
}

/// Who asks.
struct Asking {
    id: String,
    /// MAC of the NIC that it boots over.
    mac: Option<String>,
    consoles: Vec<String>,
    network: Option<String>,
    files: Files,
    /// Why it gets nothing.
    withheld: Option<String>,
    /// Reason why it may be another machine.
    unproven: Option<String>,
}

impl Asking {
    fn ramdisk<'a>(&'a self, app: &'a App, base: &'a Base, token: &'a str, stop: bool) -> ipxe::Ramdisk<'a> {
        let Asking { id, consoles, network, .. } = self;
        let network = network.as_deref();
        let Base { calls: url, files } = base;
        ipxe::Ramdisk { url, files, token, machine: id, consoles, network, cmdline: &app.cmdline, stop, initrd: PLAIN }
    }
}

async fn asking(
    app: &App,
    peer: Peer,
    method: &Method,
    query: Result<Query<BootQuery>, QueryRejection>,
) -> Result<Asking, ApiError> {
    if *method == Method::HEAD {
        return Err(ApiError::new(StatusCode::METHOD_NOT_ALLOWED, "a HEAD would waste the machine's token"));
    }
    let Query(query) = query.map_err(|error| ApiError::bad(error.to_string()))?;
    let optional = |text: &str| Some(text.to_owned()).filter(|text| !text.is_empty());
    let uuid = optional(&query.uuid).map(|uuid| ipxe::uuid(&uuid)).transpose().map_err(ApiError::bad)?.flatten();
    let mac = optional(&query.mac).map(|mac| ipxe::mac(&mac)).transpose().map_err(ApiError::bad)?;
    let asking = BootIdentity { uuid: uuid.as_deref().and_then(parse_usable_uuid), mac };
    let directory = app.directory();
    let (id, withheld, unproven) = match identity::matched(app, &directory, &asking).await? {
        MachineMatch::Proven { id, warning } => {
            warning.into_iter().for_each(|warning| app.alarm(warning));
            (id, None, None)
        }
        MachineMatch::Unproven { id, why } => (id, None, Some(why)),
        MachineMatch::Unknown(uuid) => (uuid.to_string(), None, None),
        MachineMatch::Withheld { id, why } => (id, Some(format!("{why}; it is at {peer}")), None),
        MachineMatch::Ambiguous(why) => {
            app.alarm(format!("{why}; it is at {peer}"));
            return Err(ApiError::new(StatusCode::CONFLICT, why));
        }
        MachineMatch::Unidentified => {
            app.alarm(unidentified(peer, &asking));
            return Err(ApiError::bad("no usable uuid, and no machine is known by that mac"));
        }
    };
    let machine = directory.machine(&id);
    // Also while its image is being digested: what is installed stays installed.
    let files = match machine.map(|machine| &machine.allocation) {
        Some(Some(allocation)) => Files::Allocated(allocation.id.to_string()),
        Some(None) => Files::Free,
        None => Files::Nothing,
    };
    let withheld = withheld.or_else(|| caller::other_card(app, machine?, peer));
    let consoles = machine.map_or_else(input::default_consoles, |machine| machine.consoles.clone());
    let network = machine.and_then(|machine| machine.ramdisk_network.clone());
    Ok(Asking { id, mac: asking.mac, consoles, network, files, withheld, unproven })
}

fn unidentified(peer: Peer, asking: &BootIdentity) -> String {
    format!(
        "a machine at {peer} without a usable UUID and with the unknown MAC {:?} asks for its boot script: give it a file in machines/ with this MAC",
        asking.mac
    )
}

fn attempt(order: &Order) -> String {
    format!(
        "gets kernel and ramdisk, attempt {} of {ATTEMPTS} of the reinstall with image {}",
        order.attempts, order.image
    )
}

/// The agent of an unconfirmed machine boots what is installed, and reports its marker.
fn unconfirmed(order: &Order) -> String {
    format!(
        "gets kernel and ramdisk, which boots what is installed: the reinstall with image {} needs confirmation, because the database was restored",
        order.image
    )
}

const RELEASED: &str = "gets kernel and ramdisk, and waits: what its disks hold was moved to another machine, or copied onto them for a move";

fn moving(part: Part, state: MoveState) -> String {
    let what = match (part, state) {
        (Part::Send, MoveState::Booting) => "waits: another machine has received its system, and may run it",
        (Part::Send, _) => "its system is to be moved to another machine",
        (Part::Receive, _) => "it is to receive another machine's system",
    };
    format!("gets kernel and ramdisk: {what} ({state})")
}

fn dropped(order: &Order) -> String {
    format!(
        "the reinstall with image {} is given up: {ATTEMPTS} attempts have not reached the point of no return; the machine \
         keeps what it has",
        order.image
    )
}

fn elsewhere(id: &str, other: &str) -> String {
    format!(
        "boots its disk: its allocation is installed under machine {other}. If this is that machine with another id, \
         `drophammer machine rename {other} {id}`; else give it an allocation id of its own"
    )
}

fn no_file(id: &str) -> String {
    format!(
        "boots its disk: machine {id} is installed, and no file in machines/ that can be used is about it. Put the file back; a \
         file without an allocation frees the machine"
    )
}

fn stopped(order: &Order) -> String {
    format!(
        "the reinstall with image {} is given up: it has begun and {ATTEMPTS} attempts have not finished it; the machine is \
         not whole and waits for a person",
        order.image
    )
}

/// The line for people, when an order has come to its end here; and why the machine is not whole, when it is not.
pub fn say_the_end(app: &App, id: &str, next: &NextBoot, peer: Peer) -> Option<String> {
    if let NextBoot::Dropped(order) | NextBoot::Stop(order) = next {
        let text = format!("given up after {} attempts: image {} is not installed", order.attempts, order.image);
        app.watch.reinstall(Who::new(id, app.directory().name(id), peer), text);
        app.state_has_changed();
    }
    if let NextBoot::Stop(order) = next { Some(stopped(order)) } else { None }
}

/// Reports that a machine which may be another one gets the ramdisk for an installation.
fn say_unproven(app: &App, asking: &Asking, next: &NextBoot, peer: Peer) {
    if let (NextBoot::Install | NextBoot::Attempt(_), Some(why)) = (next, &asking.unproven) {
        app.alarm(format!("{why}; it is at {peer}"));
    }
}

/// Somebody asks for a boot of a machine that is heard elsewhere.
async fn say_other(app: &App, asking: &Asking, other: Option<Boot>, peer: Peer) -> Result<(), ApiError> {
    let Some(other) = other else { return Ok(()) };
    let two_machines = identity::two_machines(app, &asking.id, asking.mac.as_slice()).await?;
    let (at, ago) = (other.address.unwrap_or_default(), app.state.heard.since(&other.hash).as_secs());
    app.alarm(format!(
        "{}: {peer} asks for another boot, while the boot at {at} is still heard ({ago} s ago), and goes on{}",
        app.directory().name(&asking.id),
        two_machines.map(|why| format!("; {why}")).unwrap_or_default()
    ));
    Ok(())
}

fn crowded(app: &App, id: &str, peer: Peer) -> ApiError {
    let message = "there are too many machines already that no file is about: give it a file in machines/";
    app.alarm(format!("{id} at {peer}: {message}"));
    ApiError::new(StatusCode::SERVICE_UNAVAILABLE, message)
}

async fn tell(app: &App, id: &str, peer: Peer, event: EventName, message: &str) -> Result<(), ApiError> {
    let event = Event { event, message: message.to_owned(), stage: None, seconds: None, progress: None };
    if !api::is_kept_of_anonymous(app, peer) {
        return Ok(());
    }
    app.state.event(id, &event).await?;
    app.watch.event(Who::new(id, app.directory().name(id), peer), event);
    Ok(())
}
