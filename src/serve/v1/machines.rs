//! `/v1/machine`: machines in metal-api's format, and the requests that add an allocation to a machine's file or remove it.

use super::answer::{Answered, Refused};
use super::change::{Change, Turn};
use super::kept::{self, What, changed_text, note_gone, published};
use crate::allocation::{Allocation, Named};
use crate::control::wire::{Bios, Hardware, Register};
use crate::serve::App;
use crate::serve::api::bodies::{EVENT_BYTES, read};
use crate::serve::base::Base;
use crate::serve::freeing::end_previous_system;
use crate::serve::input::{self, Machine};
use crate::serve::openapi::Schemas;
use crate::serve::operator::Operator;
use crate::serve::peers::Peer;
use crate::serve::preview::{Preview, preview};
use crate::serve::resolve::resolve;
use crate::serve::state::{Standing, in_a_move};
use crate::yaml::edit;
use axum::Json;
use axum::body::Body;
use axum::extract::{Path, State};
use axum::http::StatusCode;
use schemars::JsonSchema;
use serde::Serialize;
use serde_json::{Map, Value, json};
use std::path::Path as File;
use std::sync::Arc;
use uuid::Uuid;

const KIND: &str = "machine";
/// Maximum size of an allocation, which may contain user data.
const ALLOCATION_BYTES: usize = 1 << 20;
/// Fields of a machine's file, in the order in which they are written.
pub const FIELDS: [&str; 11] = [
    "id",
    "name",
    "macs",
    "smbios_uuid",
    "size",
    "consoles",
    "ramdisk_network",
    "locked",
    "bmc",
    "traits",
    "allocation",
];
/// Criteria of a search.
const SEARCHED: [&str; 12] = [
    "id",
    "name",
    "sizeid",
    "allocation_name",
    "allocation_project",
    "allocation_image_id",
    "allocation_hostname",
    "allocation_role",
    "allocation_succeeded",
    "hardware_memory",
    "nics_mac_addresses",
    "state_value",
];
/// Fields of an allocation request, and their names in the machine's file.
const ASKED: [(&str, &str); 9] = [
    ("name", "name"),
    ("projectid", "project"),
    ("hostname", "hostname"),
    ("imageid", "image"),
    ("filesystemlayoutid", "filesystemlayout"),
    ("ssh_pub_keys", "ssh_pub_keys"),
    ("user_data", "user_data"),
    ("dns_servers", "dns_servers"),
    ("ntp_servers", "ntp_servers"),
];
/// Fields that select the machine. There is only one partition.
const CHOOSES: [&str; 3] = ["uuid", "sizeid", "partitionid"];

/// A machine in a response.
#[derive(Serialize, JsonSchema)]
pub struct MachineShown {
    id: String,
    name: String,
    description: String,
    tags: Vec<String>,
    size: Option<Named>,
    /// Registered hardware; likewise `bios`.
    hardware: Option<Hardware>,
    bios: Option<Bios>,
    /// Allocation without secrets.
    allocation: Option<Allocation>,
    /// Reason why the machine does not receive its allocation.
    withheld: Option<String>,
    state: LockState,
    events: Events,
}

#[derive(Serialize, JsonSchema)]
struct LockState {
    /// `LOCKED` or empty.
    value: &'static str,
    description: String,
}

#[derive(Serialize, JsonSchema)]
struct Events {
    /// The last event.
    log: Vec<Logged>,
    last_event_time: Option<String>,
}

#[derive(Serialize, JsonSchema)]
struct Logged {
    time: Option<String>,
    event: Value,
    message: Value,
}

/// Returns the schema of a search.
pub fn searched(_: &mut Schemas) -> Value {
    let kind = |name: &str| match name {
        "allocation_succeeded" => json!({"type": ["boolean", "null"]}),
        "hardware_memory" => json!({"type": ["integer", "null"]}),
        "nics_mac_addresses" => json!({"type": ["array", "null"], "items": {"type": "string"}}),
        _ => json!({"type": ["string", "null"]}),
    };
    let properties: Map<String, Value> = SEARCHED.into_iter().map(|name| (name.to_owned(), kind(name))).collect();
    json!({"type": "object", "properties": properties, "additionalProperties": {"type": "null"}})
}

/// Returns the schema of an allocation request.
pub fn asked(_: &mut Schemas) -> Value {
    let kind = |name: &str| match name {
        "ssh_pub_keys" | "dns_servers" | "ntp_servers" => json!({"type": ["array", "null"]}),
        _ => json!({"type": ["string", "null"]}),
    };
    let names = ASKED.iter().map(|(name, _)| *name).chain(CHOOSES);
    let properties: Map<String, Value> = names.map(|name| (name.to_owned(), kind(name))).collect();
    json!({"type": "object", "properties": properties, "required": ["imageid"]})
}

/// `GET /v1/machine`: machines with a file, by id.
pub async fn list(State(app): State<Arc<App>>, base: Base, _: Operator) -> Answered<Json<Vec<MachineShown>>> {
    Ok(Json(all(&app, &base).await?))
}

/// `POST /v1/machine/find`.
pub async fn find(
    State(app): State<Arc<App>>,
    base: Base,
    _: Operator,
    peer: Peer,
    body: Body,
) -> Answered<Json<Vec<MachineShown>>> {
    let mut asked: Map<String, Value> = read(&app, peer, body, EVENT_BYTES).await?;
    asked.retain(|_, value| !value.is_null());
    if let Some(other) = asked.keys().find(|name| !SEARCHED.contains(&name.as_str())) {
        return Err(Refused::bad(format!(
            "machines cannot be searched by {other:?}{}",
            input::nearest(other, SEARCHED.into_iter())
        )));
    }
    let mut all = all(&app, &base).await?;
    all.retain(|machine| {
        let machine = json!(machine);
        asked.iter().all(|(name, value)| is_so(&machine, name, value))
    });
    Ok(Json(all))
}

fn is_so(machine: &Value, name: &str, wanted: &Value) -> bool {
    let place = match name {
        "nics_mac_addresses" => {
            let nics = machine["hardware"]["nics"].as_array().into_iter().flatten();
            let macs: Vec<&Value> = nics.map(|nic| &nic["mac"]).collect();
            return wanted.as_array().into_iter().flatten().all(|mac| macs.contains(&mac));
        }
        "id" => return wanted.as_str().is_some_and(|id| machine["id"] == id.to_lowercase()),
        "name" => "/name",
        "sizeid" => "/size/id",
        "allocation_name" => "/allocation/name",
        "allocation_project" => "/allocation/project",
        "allocation_image_id" => "/allocation/image/id",
        "allocation_hostname" => "/allocation/hostname",
        "allocation_role" => "/allocation/role",
        "allocation_succeeded" => "/allocation/succeeded",
        "hardware_memory" => "/hardware/memory",
        _ => "/state/value",
    };
    machine.pointer(place).is_some_and(|found| found == wanted)
}

/// `POST /v1/machine/allocate`: adds an allocation to a machine's file.
pub async fn allocate(
    base: Base,
    Change { mut asked, turn }: Change<Map<String, Value>, ALLOCATION_BYTES>,
) -> Answered<Json<MachineShown>> {
    let Turn { app, peer, .. } = &turn;
    asked.retain(|_, value| {
        !value.is_null() && value.as_str() != Some("") && value.as_array().is_none_or(|all| !all.is_empty())
    });
    let takes = |name: &str| CHOOSES.contains(&name) || ASKED.iter().any(|(asked, _)| *asked == name);
    if let Some(other) = asked.keys().find(|name| !takes(name)) {
        return Err(Refused::bad(format!(
            "{other:?} is not supported in an allocation request: set it in the machine's file"
        )));
    }
    let id = choose(app, &asked).await?;
    not_in_a_move(app, &id).await?;
    let uuid = Uuid::new_v4().to_string();
    let mut allocation = Map::from_iter([("id".to_owned(), json!(uuid)), ("hostname".to_owned(), json!("metal"))]);
    for (name, ours) in ASKED {
        allocation.extend(asked.get(name).map(|value| (ours.to_owned(), value.clone())));
    }
    let change = |document: &mut Map<String, Value>| {
        drop(document.insert("allocation".to_owned(), Value::Object(allocation.clone())))
    };
    let is_free = |machine: &Machine| machine.allocation.is_none();
    let has_it = |machine: &Machine| machine.allocation.as_ref().is_some_and(|allocation| *allocation.id == uuid);
    rewrite(app, &id, is_free, change, has_it).await?;
    app.watch.note(format!("{}: {peer} added allocation {uuid}", app.directory().name(&id)));
    Ok(Json(one(app, &id, &base).await?))
}

/// `DELETE /v1/machine/{id}/free`: removes the allocation from the file, and powers the machine off if the controller is known. At its next
/// boot over PXE, the machine gets the ramdisk and waits; its disks are preserved.
pub async fn free(Path(id): Path<String>, base: Base, turn: Turn) -> Answered<Json<MachineShown>> {
    let (id, Turn { app, peer, directory, .. }) = (id.to_lowercase(), &turn);
    let machine = directory.machine(&id).ok_or_else(|| Refused::unknown(KIND, &id))?;
    if let Some(reason) = &machine.locked {
        return Err(Refused::unprocessable(format!("machine is locked: {reason}")));
    }
    not_in_a_move(app, &id).await?;
    let Some(allocation) = &machine.allocation else { return Ok(Json(one(app, &id, &base).await?)) };
    let standing = app.state.standing(&id, &allocation.id).await?;
    let is_begun = standing.order.as_ref().is_some_and(|order| order.begun && !order.given_up)
        || (!standing.is_installed() && standing.first.as_ref().is_some_and(|first| !first.heard));
    if is_begun {
        return Err(Refused::taken(format!(
            "an installation of machine {id} has passed its point of no return: wait until it has ended"
        )));
    }
    let own = allocation.id.to_string();
    let has_it = |machine: &Machine| machine.allocation.as_ref().is_some_and(|allocation| *allocation.id == own);
    let change = |document: &mut Map<String, Value>| drop(document.remove("allocation"));
    rewrite(app, &id, has_it, change, |machine| machine.allocation.is_none()).await?;
    app.watch.note(format!("{}: {peer} removed allocation {own}; its disks are unchanged", directory.name(&id)));
    end_previous_system(app, &id).await?;
    Ok(Json(one(app, &id, &base).await?))
}

async fn not_in_a_move(app: &App, id: &str) -> Answered<()> {
    let is = app.state.live_move(id).await?;
    is.map_or(Ok(()), |is| Err(Refused::taken(in_a_move(id, &is))))
}

/// Returns the requested machine, or a free one of the requested size that has registered.
async fn choose(app: &App, asked: &Map<String, Value>) -> Answered<String> {
    let directory = app.directory();
    let text = |name: &str| asked.get(name).and_then(Value::as_str);
    if let Some(uuid) = text("uuid") {
        let id = uuid.to_lowercase();
        let machine = directory.machine(&id).ok_or_else(|| Refused::unknown(KIND, &id))?;
        return match (&machine.locked, &machine.allocation, text("sizeid")) {
            (Some(reason), ..) => Err(Refused::unprocessable(format!("machine is locked: {reason}"))),
            (_, Some(_), _) => Err(Refused::unprocessable("machine is already allocated")),
            (_, _, Some(size)) if machine.size.as_deref() != Some(size) => {
                Err(Refused::unprocessable(format!("machine {id:?} does not have the requested size: {size}")))
            }
            _ => Ok(id),
        };
    }
    let none = || Refused::unprocessable("when no machine id is given, a size id must be specified");
    let size = text("sizeid").ok_or_else(none)?;
    let is_free = |machine: &&Machine| {
        machine.size.as_deref() == Some(size) && machine.allocation.is_none() && machine.locked.is_none()
    };
    let mut free: Vec<&str> = directory.machines().filter(is_free).map(|machine| machine.id.as_str()).collect();
    free.sort_unstable();
    for id in free {
        if app.state.registered(id).await?.is_some() && app.state.live_move(id).await?.is_none() {
            return Ok(id.to_owned());
        }
    }
    Err(Refused::unprocessable("no machine available"))
}

/// Changes the machine's file, which must meet the condition `was`, and waits until the machine meets `becomes`.
pub(super) async fn rewrite(
    app: &App,
    id: &str,
    was: impl Fn(&Machine) -> bool,
    change: impl Fn(&mut Map<String, Value>),
    becomes: impl Fn(&Machine) -> bool,
) -> Answered<()> {
    let what = What { kind: KIND, id };
    let directory = app.directory();
    let path: &File = directory.machine_files.get(id).ok_or_else(|| what.unknown())?;
    // A machine's file contains secrets, so a conflict does not show its text.
    let changed = || what.changed(path, None, &Value::Null);
    let text = kept::read(path).await?.ok_or_else(changed)?;
    let before = input::machine(&text).ok().filter(|machine| machine.id == id && was(machine));
    before.ok_or_else(changed)?;
    let old = input::written(&text).map_err(Refused::failed)?;
    let mut new = old.clone();
    new.as_object_mut().into_iter().for_each(change);
    let wanted = input::machine(&edit::written(&new, &FIELDS)).map_err(Refused::bad)?;
    resolve(&wanted, &Standing::default(), &directory.known).map_err(Refused::unprocessable)?;
    let edited = changed_text(
        path,
        &text,
        |text| edit::edit(text, &old, &new),
        edit::written(&new, &FIELDS),
        |text| input::written(text).as_ref() == Ok(&new) && input::machine(text).is_ok(),
    )?;
    if !kept::put(path, &text, &edited.text).await? {
        return Err(changed());
    }
    published(app, path, Some(&edited.text), |directory| directory.machine(id).is_some_and(&becomes)).await?;
    note_gone(app, path, &edited.gone);
    Ok(())
}

async fn all(app: &Arc<App>, base: &Base) -> Answered<Vec<MachineShown>> {
    let directory = app.directory();
    let mut ids: Vec<&str> = directory.machines().map(|machine| machine.id.as_str()).collect();
    ids.sort_unstable();
    let mut all = Vec::new();
    for id in ids {
        all.push(one(app, id, base).await?);
    }
    Ok(all)
}

/// Returns a machine that has a file or has registered.
async fn one(app: &Arc<App>, id: &str, base: &Base) -> Answered<MachineShown> {
    let base = Base { calls: base.calls.clone(), files: base.files.clone() };
    let shown = preview(State(app.clone()), Path(id.to_owned()), base, Operator).await;
    let Json(Preview { machine, withheld, .. }) = shown.map_err(|error| match error.parts() {
        (StatusCode::NOT_FOUND, _) => Refused::unknown(KIND, id),
        (status, message) => Refused::new(status, message),
    })?;
    let directory = app.directory();
    let described = directory.machine(id);
    let allocation = machine.allocation.or_else(|| {
        let mut told = described?.allocation.as_ref()?.told();
        told.user_data.clear();
        told.console_password.clear();
        told.vpn = Value::Null;
        Some(told)
    });
    let locked = described.and_then(|machine| machine.locked.clone());
    let registered = app.state.registered(id).await?;
    let registered: Option<Register> =
        registered.and_then(|registered| serde_json::from_str(&registered.document).ok());
    let (hardware, bios) = registered.map(|register| (register.hardware, register.bios)).unzip();
    let (last_seen, last_event) = app.state.last_event(id).await?.unzip();
    let event: Option<Value> = last_event.and_then(|event| serde_json::from_str(&event).ok());
    let logged = |event: Value| Logged {
        time: last_seen.clone(),
        event: event["event"].clone(),
        message: event["message"].clone(),
    };
    Ok(MachineShown {
        id: id.to_owned(),
        name: machine.name,
        description: String::new(),
        tags: Vec::new(),
        size: machine.size,
        hardware,
        bios,
        allocation,
        withheld,
        state: LockState {
            value: if locked.is_some() { "LOCKED" } else { "" },
            description: locked.unwrap_or_default(),
        },
        events: Events { log: event.into_iter().map(logged).collect(), last_event_time: last_seen },
    })
}
