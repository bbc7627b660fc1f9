//! `/v1/volumes`: Kubernetes volumes of machines with their states, and the requests that change the list in a machine's file.

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

/// Maximum size of a list of resources.
const LIST_BYTES: usize = 1 << 20;

/// A volume of a machine.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct VolumeShown {
    /// Id of the machine.
    pub machine: String,
    pub name: String,
    pub uid: String,
    /// Mode and filesystem, such as `rawBlockDevice ext4`; empty if the volume is no longer listed.
    pub kind: String,
    pub state: lifecycle::State,
    /// Reason for the state, and the next step.
    pub message: String,
    /// Path that the volume is mounted by; empty until it is prepared.
    pub path: String,
    pub size_bytes: Option<u64>,
}

/// State in Kubernetes of a volume that will be removed.
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

/// `GET /v1/volumes/manifests`: PersistentVolumes for `kubectl apply -f`.
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

/// `POST /v1/machine/{id}/volumes`: adds one or several resources to the list in the file.
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
        // Every list from the cluster contains all resources in their current versions.
        all.retain(|listed| !new.iter().any(|one| is_same(one, listed)));
        all.extend(new.iter().cloned());
        *lock(&wanted) = volume::read(&Value::Array(all.clone())).ok();
        put_list(document, all);
    };
    let becomes = |machine: &Machine| machine.allocation.as_ref().map(listed) == *lock(&wanted);
    rewrite(app, &id, |machine| has(machine, &own), change, becomes).await?;
    app.watch.note(format!("{}: {peer} added volumes", app.directory().name(&id)));
    shown_now(&turn, &id).await
}

/// `DELETE /v1/machine/{id}/volumes/{name}`, if the deletion decision tree permits. The volume's data is preserved.
pub async fn remove(
    Path((id, name)): Path<(String, String)>,
    _: Operator,
    query: Result<Query<Removing>, QueryRejection>,
    turn: Turn,
) -> Answered<Json<Vec<VolumeShown>>> {
    let (id, Turn { app, peer, .. }) = (id.to_lowercase(), &turn);
    let own = allocation(&turn, &id)?;
    // A volume without a path may have been prepared after the backup from which the database was restored.
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
    // A volume that is not on a disk yet does not contain data.
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
    app.watch.note(format!("{}: {peer} removed volume {name}; its data is preserved", app.directory().name(&id)));
    shown_now(&turn, &id).await
}

/// Returns the volumes of a machine: those that its file lists, and others on its disks.
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
        message: "is no longer listed: the next reinstall ignores it".to_owned(),
        path: is.path.clone(),
        size_bytes: Some(is.size_bytes),
    });
    of_list.chain(left).collect()
}

/// Returns the observed state of a volume. Volumes are prepared by installations.
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
    // A volume that is marked for deletion keeps its previous state, as no installation will prepare it.
    match volume.deleted {
        true => Seen { deleted: true, state: is_prepared.then(|| settle(seen)).flatten(), job: Job::None, ..seen },
        false => seen,
    }
}

/// Returns whether the mode matches: a filesystem is identified by its UUID, a block volume otherwise.
fn is_as_prepared(volume: &Volume, is: &PreparedVolume) -> bool {
    (volume.content == Content::Block) != is.path.starts_with("/dev/disk/by-uuid/")
}

fn message(volume: &Volume, seen: Seen, state: lifecycle::State, hostname: &str) -> String {
    use lifecycle::State::{Available, Failed, Pending, Terminating};
    match (state, seen.job) {
        (Failed, _) if !volume.is_of(hostname) => format!("belongs to node {}", volume.node),
        (Failed, _) if !seen.valid => "was prepared in the other mode (Filesystem or Block)".to_owned(),
        (Failed, _) => "the reinstall that should have prepared it was abandoned".to_owned(),
        (Pending, Job::None) => "will be prepared by the next reinstall: order one".to_owned(),
        (Pending, _) => "will be prepared by the pending installation".to_owned(),
        (Terminating, _) => "is marked for deletion: installations ignore it, and its data is preserved".to_owned(),
        (Available, _) => String::new(),
    }
}

/// Returns the listed volumes. A file with an invalid list never takes effect.
fn listed(allocation: &Allocation) -> Vec<Volume> {
    volume::read(allocation.passed_on.get("volumes").unwrap_or(&Value::Null)).unwrap_or_default()
}

/// Returns the id of the machine's allocation.
fn allocation(turn: &Turn, id: &str) -> Answered<String> {
    let machine = turn.directory.machine(id).ok_or_else(|| Refused::unknown("machine", id))?;
    let allocation = machine.allocation.as_ref().map(|allocation| allocation.id.to_string());
    allocation.ok_or_else(|| Refused::unprocessable(format!("machine {id} is not allocated")))
}

/// Refuses volumes of other nodes, as the planner would refuse the installation.
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
            "these volumes belong to other nodes than {hostname}: {}. Nothing was added; give only volumes of this node",
            strangers.join(", ")
        ))),
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Returns whether both are versions of the same resource.
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

/// Returns the schema of a request: a resource, or a list of them.
pub fn asked(_: &mut Schemas) -> Value {
    json!({"type": ["object", "array"]})
}

/// Parses the operator's file of resources.
///
/// # Errors
/// The text is not valid YAML, with line and column.
pub fn written(text: &str) -> Result<Value, String> {
    node::parse(text).map(|node| node::json(&node))
}

/// Returns the resources of a request. `kubectl get -o json` prints a list as a resource.
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
