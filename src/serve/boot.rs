//! Boot scripts for PXE, and boot information for running systems that bypass their firmware. Every ramdisk that is served for an order is
//! counted first.

use super::api_error::ApiError;
use super::base::Base;
use super::boot_token::RequestedBoot;
use super::moves::MoveState;
use super::peers::Peer;
use super::proof::SourcePort;
use super::state::{ATTEMPTS, Boot, Files, Handed, NextBoot, Order, confirmed};
use super::watch::Who;
use super::{App, api, caller, identity, input, ipxe, proof};
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
use time::OffsetDateTime;

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

/// `/boot.ipxe`: the boot script of a machine, with a token that only authorizes its registration.
pub async fn script(
    State(app): State<Arc<App>>,
    base: Base,
    peer: Peer,
    method: Method,
    query: Result<Query<BootQuery>, QueryRejection>,
) -> Result<String, ApiError> {
    let asking = asking(&app, peer, &method, query).await?;
    if let Some(why) = asking.withheld {
        // The system on its disks may be running on another machine.
        if app.state.is_held(&asking.id, asking.files).await? {
            app.alarm(format!("{why}. The machine takes part in a migration, so it does not boot its disk and waits"));
            return Ok(ipxe::hold(&base.files, &asking.id));
        }
        app.alarm(why);
        return Ok(ipxe::local_disk(&asking.id));
    }
    let Handed { next, active } = app.state.next_boot(&asking.id, asking.files.clone()).await?;
    let token = asking.token(&app, active.is_some())?;
    let initrd = initrd(&app, &asking.id).await;
    report_active(&app, &asking, active, peer).await?;
    let (message, stop) = match &next {
        NextBoot::Install => ("boots the ramdisk".to_owned(), Some(false)),
        NextBoot::Attempt(order) => (attempt(order), Some(false)),
        NextBoot::Unconfirmed(order) => (unconfirmed(order), Some(false)),
        NextBoot::Moving(part, state) => (moving(*part, *state), Some(false)),
        NextBoot::Released => (RELEASED.to_owned(), Some(false)),
        NextBoot::Disk => ("is installed and boots its disk".to_owned(), None),
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

/// `/boot.json`: boot information for a running machine that carries out its reinstall. Refused if nothing is ordered, and to unprivileged
/// processes.
pub async fn without_firmware(
    State(app): State<Arc<App>>,
    base: Base,
    peer: Peer,
    source: SourcePort,
    method: Method,
    query: Result<Query<BootQuery>, QueryRejection>,
) -> Result<Json<wire::NextBoot>, ApiError> {
    let asking = asking(&app, peer, &method, query).await?;
    proof::require_privileged(&app, source, peer, &asking.id, "request its reinstall")?;
    if let Some(why) = asking.withheld {
        app.alarm(why.clone());
        return Err(ApiError::new(StatusCode::CONFLICT, why));
    }
    let Handed { next, active } = app.state.next_boot(&asking.id, asking.files.clone()).await?;
    let token = asking.token(&app, active.is_some())?;
    report_active(&app, &asking, active, peer).await?;
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
            tell(&app, id, peer, EventName::PlannedReboot, &format!("{what}, bypassing its firmware")).await?;
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
        NextBoot::Install => format!("machine {id}: this server lacks a record that its allocation is installed"),
        NextBoot::Disk => format!(
            "no reinstall of machine {id} is ordered: order one with `drophammer machine reinstall {id} --image IMAGE`"
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

/// Ramdisk with cryptsetup, which only few machines need.
const WITH_LUKS: &str = "initrd-luks";

/// Returns the file name of the machine's ramdisk, as its current layout requires. A machine whose layout changes later boots again.
pub async fn initrd(app: &App, id: &str) -> &'static str {
    let directory = app.directory();
    let is_encrypted = match api::told::assigned(app, &directory, id).await {
        Ok(Some((assigned, _))) => {
            let lists = ["filesystems", "volumegroups"].map(|list| assigned.layout[list].as_array());
            lists.into_iter().flatten().flatten().any(|item| !item["encrypted"].is_null())
        }
        // The allocation cannot be resolved yet, for example because its image is still being hashed.
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
        "{id}: its layout has encrypted filesystems, but {} is missing: its agent will refuse to install; create the file with scripts/build-ramdisk",
        file.display()
    ));
    PLAIN
}

/// Machine that sends a boot request.
struct Asking {
    id: String,
    /// MAC of the NIC that the machine boots from.
    mac: Option<String>,
    consoles: Vec<String>,
    network: Option<String>,
    files: Files,
    /// Reason to refuse the request.
    withheld: Option<String>,
    /// Reason why it may be another machine.
    unproven: Option<String>,
}

impl Asking {
    /// Returns a new token for a boot of this machine.
    fn token(&self, app: &App, while_active: bool) -> Result<String, ApiError> {
        let boot = RequestedBoot { machine: self.id.clone(), created: OffsetDateTime::now_utc(), while_active };
        Ok(app.boot_tokens.issue(&boot)?)
    }

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
        return Err(ApiError::new(
            StatusCode::METHOD_NOT_ALLOWED,
            "HEAD is not allowed: it would use up the machine's token",
        ));
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
            return Err(ApiError::bad("the uuid is not usable, and the mac is not in any file of machines/"));
        }
    };
    let machine = directory.machine(&id);
    // Applies even while the image is being hashed: an installed machine stays installed.
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
        "a machine at {peer} without a usable UUID and with the unknown MAC {:?} requests its boot script: create a file in machines/ with this MAC",
        asking.mac
    )
}

fn attempt(order: &Order) -> String {
    format!(
        "boots the ramdisk for attempt {} of {ATTEMPTS} of the reinstall with image {}",
        order.attempts, order.image
    )
}

/// Describes the boot of an unconfirmed machine: its agent boots the installed system and reports the install marker.
fn unconfirmed(order: &Order) -> String {
    format!(
        "boots the ramdisk, which boots the installed system: the reinstall with image {} needs confirmation, because the database was restored",
        order.image
    )
}

const RELEASED: &str =
    "boots the ramdisk and waits: the system on its disks was migrated to another machine, or copied from one";

fn moving(part: Part, state: MoveState) -> String {
    let what = match (part, state) {
        (Part::Send, MoveState::Booting) => "waits: another machine has received its system and may be running it",
        (Part::Send, _) => "its system will be migrated to another machine",
        (Part::Receive, _) => "it will receive another machine's system",
    };
    format!("boots the ramdisk: {what} ({state})")
}

fn dropped(order: &Order) -> String {
    format!(
        "the reinstall with image {} is abandoned: {ATTEMPTS} attempts did not reach the point of no return; the machine \
         is unchanged",
        order.image
    )
}

fn elsewhere(id: &str, other: &str) -> String {
    format!(
        "boots its disk: its allocation is installed under machine {other}. If this is the same machine with a new id, run \
         `drophammer machine rename {other} {id}`; otherwise give it an allocation with another id"
    )
}

fn no_file(id: &str) -> String {
    format!(
        "boots its disk: machine {id} is installed, but has no valid file in machines/. Restore the file; a \
         file without an allocation frees the machine"
    )
}

fn stopped(order: &Order) -> String {
    format!(
        "the reinstall with image {} is abandoned: it has started, and {ATTEMPTS} attempts did not complete it; the machine is \
         only partially installed and waits at its console",
        order.image
    )
}

/// Logs the end of an order. Returns the reason why the machine is only partially installed, if it is.
pub fn say_the_end(app: &App, id: &str, next: &NextBoot, peer: Peer) -> Option<String> {
    if let NextBoot::Dropped(order) | NextBoot::Stop(order) = next {
        let text = format!("abandoned after {} attempts: image {} is not installed", order.attempts, order.image);
        app.watch.reinstall(Who::new(id, app.directory().name(id), peer), text);
        app.state_has_changed();
    }
    if let NextBoot::Stop(order) = next { Some(stopped(order)) } else { None }
}

/// Logs that a machine which may be another one gets the ramdisk for an installation.
fn say_unproven(app: &App, asking: &Asking, next: &NextBoot, peer: Peer) {
    if let (NextBoot::Install | NextBoot::Attempt(_), Some(why)) = (next, &asking.unproven) {
        app.alarm(format!("{why}; it is at {peer}"));
    }
}

/// Logs that a boot was requested while another one is active.
async fn report_active(app: &App, asking: &Asking, active: Option<Boot>, peer: Peer) -> Result<(), ApiError> {
    let Some(active) = active else { return Ok(()) };
    let two_machines = identity::two_machines(app, &asking.id, asking.mac.as_slice()).await?;
    let (at, seconds) = (active.address.unwrap_or_default(), app.state.heard.since(&active.hash).as_secs());
    app.alarm(format!(
        "{}: boot requested from {peer}; the boot at {at} was active {seconds} s ago and continues{}",
        app.directory().name(&asking.id),
        two_machines.map(|why| format!("; {why}")).unwrap_or_default()
    ));
    Ok(())
}

fn crowded(app: &App, id: &str, peer: Peer) -> ApiError {
    let message = "too many machines without a file are registered: create a file in machines/ for this machine";
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
