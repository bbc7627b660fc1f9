//! `/v1/volumes`: the volumes of Kubernetes of machines, how far each is, and the two calls that change the list in a machine's file.

pub mod lifecycle;

use super::answer::{Answered, Refused};
use super::change::{Change, Turn};
use super::machines::rewrite;
use crate::facts::PreparedVolume;
use crate::serve::App;
use crate::serve::api_error::ApiError;
use crate::serve::input::{Allocation, Machine, node};
use crate::serve::openapi::Schemas;
use crate::serve::operator::Operator;
use crate::serve::state::Standing;
use crate::volume::{self, Backed, Content, Volume, is_node};
use axum::Json;
use axum::extract::rejection::QueryRejection;
use axum::extract::{Path, Query, State};
use lifecycle::{Job, Phase, Seen, can_be_deleted, settle};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Of a list of resources.
const LIST_BYTES: usize = 1 << 20;

/// One volume of a machine.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct VolumeShown {
    /// The machine's id.
    pub machine: String,
    pub name: String,
    pub uid: String,
    /// `rawBlockDevice ext4`; empty when it is no longer listed.
    pub kind: String,
    pub state: lifecycle::State,
    /// Why it is so, and what leads further.
    pub message: String,
    /// What it is mounted by; empty before it is prepared.
    pub path: String,
    pub size_bytes: Option<u64>,
}

/// What Kubernetes has of a volume that is to go.
#[derive(Debug, Clone, Copy, Deserialize)]
pub struct Removing {
    /// Phase of its PersistentVolume, or `none`.
    persistent_volume: Backing,
}

#[derive(Debug, Clone, Copy, Deserialize)]
#[serde(untagged)]
enum Backing {
    Backed(Phase),
    None(Nothing),
}

#[derive(Debug, Clone, Copy, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Nothing {
    None,
}

/// `GET /v1/volumes`.
pub async fn list(State(app): State<Arc<App>>, _: Operator) -> Result<Json<Vec<VolumeShown>>, ApiError> {
    let directory = app.directory();
    let mut all = Vec::new();
    for machine in directory.machines() {
        all.extend(of_machine(&app, machine).await?);
    }
    all.sort_by(|one, other| (&one.machine, &one.name).cmp(&(&other.machine, &other.name)));
    Ok(Json(all))
}

/// `GET /v1/volumes/manifests`: for `kubectl apply -f`.
pub async fn manifests(State(app): State<Arc<App>>, _: Operator) -> Result<String, ApiError> {
    let directory = app.directory();
    let mut prepared = Vec::new();
    for machine in directory.machines() {
        let Some(allocation) = &machine.allocation else { continue };
        let standing = app.state.standing(&machine.id, &allocation.id).await?;
        let shown = shown(&machine.id, allocation, &standing);
        let available: Vec<VolumeShown> =
            shown.into_iter().filter(|is| is.state == lifecycle::State::Available).collect();
        for volume in listed(allocation) {
            let is = available.iter().find(|is| is.uid == volume.uid.to_string()).cloned();
            prepared.extend(is.map(|is| (volume, is)));
        }
    }
    let backed = prepared.iter().map(|(volume, is)| Backed {
        volume,
        path: &is.path,
        size_bytes: is.size_bytes.unwrap_or_default(),
    });
    Ok(volume::manifests(backed))
}

/// `POST /v1/machine/{id}/volumes`: resources, one or a list of them, are added to the file's.
pub async fn add(
    Path(id): Path<String>,
    Change { asked, turn }: Change<Value, LIST_BYTES>,
) -> Answered<Json<Vec<VolumeShown>>> {
    let (id, Turn { app, peer, .. }) = (id.to_lowercase(), &turn);
    let new = resources(asked);
    let own = allocation(&turn, &id)?;
    all_of_this_node(&turn, &id, &new)?;
    let wanted = Mutex::new(None);
    let change = |document: &mut Map<String, Value>| {
        let mut all = list_of(document);
        // All of them come with every list of the cluster, as they are by then.
        all.retain(|listed| !new.iter().any(|one| is_same(one, listed)));
        all.extend(new.iter().cloned());
        *lock(&wanted) = volume::read(&Value::Array(all.clone())).ok();
        put_list(document, all);
    };
    let becomes = |machine: &Machine| machine.allocation.as_ref().map(listed) == *lock(&wanted);
    rewrite(app, &id, |machine| has(machine, &own), change, becomes).await?;
    app.watch.note(format!("{}: {peer} has added to its volumes", app.directory().name(&id)));
    shown_now(&turn, &id).await
}

/// `DELETE /v1/machine/{id}/volumes/{name}`, as the deletion tree decides. Its data stay where they are.
pub async fn remove(
    Path((id, name)): Path<(String, String)>,
    _: Operator,
    query: Result<Query<Removing>, QueryRejection>,
    turn: Turn,
) -> Answered<Json<Vec<VolumeShown>>> {
    let (id, Turn { app, peer, .. }) = (id.to_lowercase(), &turn);
    let own = allocation(&turn, &id)?;
    // A volume without a path may have been prepared after the backup that the database was restored from.
    let unconfirmed = app.state.unconfirmed(vec![id.clone()]).await.map_err(ApiError::from)?;
    if let Some(why) = unconfirmed {
        return Err(Refused::taken(why));
    }
    let machine = turn.directory.machine(&id).ok_or_else(|| Refused::unknown("machine", &id))?;
    let all = of_machine(app, machine).await?;
    let volume = all.iter().find(|volume| volume.name == name && !volume.kind.is_empty());
    let volume = volume.ok_or_else(|| Refused::unknown("volume", &name))?;
    let Query(asked) = query.map_err(|error| Refused::bad(error.to_string()))?;
    let phase = match asked.persistent_volume {
        Backing::Backed(phase) => Some(phase),
        Backing::None(Nothing::None) => None,
    };
    // One that no disk has yet has nothing that could be lost.
    let is_nowhere = volume.path.is_empty() && phase.is_none();
    if !is_nowhere && !can_be_deleted(Some(volume.state), phase) {
        let backed = phase.map_or("without a PersistentVolume".to_owned(), |phase| {
            format!("with a PersistentVolume that is {}", json!(phase).as_str().unwrap_or_default())
        });
        return Err(Refused::taken(format!("volume {name} is {}, {backed}: it cannot be deleted", volume.state)));
    }
    let uid = volume.uid.clone();
    let is_it = |resource: &Value| resource["metadata"]["uid"].as_str().is_some_and(|is| is.eq_ignore_ascii_case(&uid));
    let change = |document: &mut Map<String, Value>| {
        let mut all = list_of(document);
        all.retain(|resource| !is_it(resource));
        put_list(document, all);
    };
    let becomes = |machine: &Machine| !has_volume(machine, &uid);
    rewrite(app, &id, |machine| has(machine, &own), change, becomes).await?;
    app.watch.note(format!("{}: {peer} has taken volume {name} out; its data stay", app.directory().name(&id)));
    shown_now(&turn, &id).await
}

/// Those of one machine: what its file lists, and what its disks have beside that.
pub async fn of_machine(app: &App, machine: &Machine) -> Result<Vec<VolumeShown>, ApiError> {
    let Some(allocation) = &machine.allocation else { return Ok(Vec::new()) };
    let standing = app.state.standing(&machine.id, &allocation.id).await?;
    Ok(shown(&machine.id, allocation, &standing))
}

fn shown(machine: &str, allocation: &Allocation, standing: &Standing) -> Vec<VolumeShown> {
    let listed = listed(allocation);
    let of_list = listed.iter().filter_map(|volume| {
        let uid = volume.uid.to_string();
        let is = standing.volumes.iter().find(|is| is.uid == uid);
        let seen = seen(volume, allocation, standing, is);
        let state = settle(seen)?;
        Some(VolumeShown {
            machine: machine.to_owned(),
            name: volume.name.clone(),
            uid,
            kind: volume.kind(),
            state,
            message: message(volume, seen, state, &allocation.hostname),
            path: is.map(|is| is.path.clone()).unwrap_or_default(),
            size_bytes: is.map(|is| is.size_bytes),
        })
    });
    let rest = standing.volumes.iter().filter(|is| listed.iter().all(|volume| volume.uid.to_string() != is.uid));
    let left = rest.map(|is| VolumeShown {
        machine: machine.to_owned(),
        name: is.name.clone(),
        uid: is.uid.clone(),
        kind: String::new(),
        state: lifecycle::State::Terminating,
        message: "is no longer listed: the next reinstall leaves it to itself".to_owned(),
        path: is.path.clone(),
        size_bytes: Some(is.size_bytes),
    });
    of_list.chain(left).collect()
}

/// An installation is what prepares volumes.
fn seen(volume: &Volume, allocation: &Allocation, standing: &Standing, is: Option<&PreparedVolume>) -> Seen {
    let is_prepared = is.is_some();
    let job = match (&standing.order, is_prepared) {
        (_, true) => Job::Succeeded,
        (Some(order), false) if order.given_up => Job::Failed,
        (Some(_), false) => Job::InProgress,
        (None, false) if standing.is_installed() => Job::None,
        (None, false) => Job::InProgress,
    };
    let valid = volume.is_of(&allocation.hostname) && is.is_none_or(|is| is_as_prepared(volume, is));
    let seen = Seen { valid, deleted: false, state: None, persistent: None, job };
    let state = match job {
        Job::InProgress => Some(lifecycle::State::Pending),
        _ => None,
    };
    let seen = Seen { state, ..seen };
    // What is marked for deletion has been something before, or no installation prepares it any more.
    match volume.deleted {
        true => Seen { deleted: true, state: is_prepared.then(|| settle(seen)).flatten(), job: Job::None, ..seen },
        false => seen,
    }
}

/// A filesystem is known by its UUID, and all else by something else.
fn is_as_prepared(volume: &Volume, is: &PreparedVolume) -> bool {
    (volume.content == Content::Block) != is.path.starts_with("/dev/disk/by-uuid/")
}

fn message(volume: &Volume, seen: Seen, state: lifecycle::State, hostname: &str) -> String {
    use lifecycle::State::{Available, Failed, Pending, Terminating};
    match (state, seen.job) {
        (Failed, _) if !volume.is_of(hostname) => format!("is of the node {}", volume.node),
        (Failed, _) if !seen.valid => "was prepared in the other mode: Filesystem or Block".to_owned(),
        (Failed, _) => "the reinstall that was to prepare it was given up".to_owned(),
        (Pending, Job::None) => "the next reinstall prepares it: order one".to_owned(),
        (Pending, _) => "the installation that comes prepares it".to_owned(),
        (Terminating, _) => "is marked for deletion: no installation prepares it, and what is there stays".to_owned(),
        (Available, _) => String::new(),
    }
}

/// A file with a list that is wrong is not in force.
fn listed(allocation: &Allocation) -> Vec<Volume> {
    volume::read(allocation.passed_on.get("volumes").unwrap_or(&Value::Null)).unwrap_or_default()
}

/// Its allocation's id.
fn allocation(turn: &Turn, id: &str) -> Answered<String> {
    let machine = turn.directory.machine(id).ok_or_else(|| Refused::unknown("machine", id))?;
    let allocation = machine.allocation.as_ref().map(|allocation| allocation.id.to_string());
    allocation.ok_or_else(|| Refused::unprocessable(format!("machine {id} has no allocation")))
}

/// A plan refuses the volume of another node, so an installation would come to nothing.
fn all_of_this_node(turn: &Turn, id: &str, resources: &[Value]) -> Answered<()> {
    let allocation = turn.directory.machine(id).and_then(|machine| machine.allocation.as_ref());
    let hostname = allocation.map(|allocation| allocation.hostname.as_str()).unwrap_or_default();
    let stranger = |resource: &Value| {
        let node = resource["spec"]["nodeName"].as_str().filter(|node| !is_node(node, hostname))?;
        Some(format!("{} (of {node})", resource["metadata"]["name"].as_str().unwrap_or("one without a name")))
    };
    let strangers: Vec<String> = resources.iter().filter_map(stranger).collect();
    match strangers.is_empty() {
        true => Ok(()),
        false => Err(Refused::unprocessable(format!(
            "these volumes are of other nodes than {hostname}: {}. Nothing was added: give only those of this node",
            strangers.join(", ")
        ))),
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Is it the same resource, as it was before or after a change?
fn is_same(one: &Value, other: &Value) -> bool {
    let named = match one["kind"] == "StorageClass" {
        true => "name",
        false => "uid",
    };
    let (name, other_name) = (&one["metadata"][named], &other["metadata"][named]);
    one["kind"] == other["kind"] && name.is_string() && name == other_name
}

fn has(machine: &Machine, allocation: &str) -> bool {
    machine.allocation.as_ref().is_some_and(|is| *is.id == *allocation)
}

fn has_volume(machine: &Machine, uid: &str) -> bool {
    let is_it = |volume: &Volume| volume.uid.to_string().eq_ignore_ascii_case(uid);
    machine.allocation.as_ref().is_some_and(|allocation| listed(allocation).iter().any(is_it))
}

/// A resource, or a list of them.
pub fn asked(_: &mut Schemas) -> Value {
    json!({"type": ["object", "array"]})
}

/// Resources as a person has them in a file.
///
/// # Errors
/// It is no YAML, with line and column.
pub fn written(text: &str) -> Result<Value, String> {
    node::parse(text).map(|node| node::json(&node))
}

/// `kubectl get -o json` gives a list as a resource.
fn resources(asked: Value) -> Vec<Value> {
    match asked {
        Value::Array(all) => all,
        Value::Object(mut one) => match one.remove("items") {
            Some(Value::Array(all)) => all,
            _ => vec![Value::Object(one)],
        },
        other => vec![other],
    }
}

fn list_of(document: &Map<String, Value>) -> Vec<Value> {
    let list = document.get("allocation").and_then(|allocation| allocation.get("volumes"));
    list.and_then(Value::as_array).cloned().unwrap_or_default()
}

fn put_list(document: &mut Map<String, Value>, all: Vec<Value>) {
    let allocation = document.get_mut("allocation").and_then(Value::as_object_mut);
    allocation
        .into_iter()
        .for_each(|allocation| drop(allocation.insert("volumes".to_owned(), Value::Array(all.clone()))));
}

async fn shown_now(turn: &Turn, id: &str) -> Answered<Json<Vec<VolumeShown>>> {
    let directory = turn.app.directory();
    let machine = directory.machine(id).ok_or_else(|| Refused::unknown("machine", id))?;
    Ok(Json(of_machine(&turn.app, machine).await?))
}
