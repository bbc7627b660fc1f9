//! `/v1/volumes`: states of the machines' Kubernetes volumes, and requests that change the volumes in machine files.

mod all_volumes;
pub(crate) mod volume_state;

pub(crate) use all_volumes::list_volumes;
pub use volume_state::VolumeState;

use super::api_refusal::{ApiRefusal, ApiResult};
use super::edit_permit::{EditPermit, EditRequest};
use super::machine_file_edits::rewrite_machine_file;
use crate::AppState;
use crate::json_schemas::SchemaGenerators;
use crate::operator_api::OperatorAuth;
use axum::Json;
use axum::extract::rejection::QueryRejection;
use axum::extract::{Path, Query, State};
use common::sync::lock_mutex;
use http_server::api_error::ApiError;
use model::install_report::PreparedVolume;
use model::k8s_volume::{self, BackedVolume, K8sVolume, VolumeContent, is_node};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};
use site::effective_allocation::effective_allocation;
use site::operator_files::{AllocationSpec, MachineSpec};
use std::sync::{Arc, Mutex};
use store::InstallState;
use volume_state::{ObservedVolume, PersistentVolumePhase, StorageJob, can_be_deleted, reconcile_state};

/// Maximum size of a request with a list of resources, in bytes.
const LIST_BYTES: usize = 1 << 20;

/// A volume of a machine.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct VolumeResponse {
    /// Id of the machine.
    pub machine: String,
    pub name: String,
    pub uid: String,
    /// Mode and filesystem, such as `rawBlockDevice ext4`; empty if the machine file no longer lists the volume.
    pub kind: String,
    pub state: volume_state::VolumeState,
    /// Reason for the state, and the next step.
    pub message: String,
    /// Device path from which Kubernetes mounts the volume; empty until the volume is prepared.
    pub path: String,
    pub size_bytes: Option<u64>,
}

/// Query parameters of a request to remove a volume: the state of the volume in Kubernetes, as reported by the client.
#[derive(Debug, Clone, Copy, Deserialize, JsonSchema)]
pub(crate) struct RemovalQuery {
    /// Phase of the volume's PersistentVolume, or `none` if it has no PersistentVolume.
    persistent_volume: BackingVolume,
}

#[derive(Debug, Clone, Copy, Deserialize, JsonSchema)]
#[serde(untagged)]
enum BackingVolume {
    Backed(PersistentVolumePhase),
    None(NoBacking),
}

#[derive(Debug, Clone, Copy, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
enum NoBacking {
    None,
}

/// `GET /v1/volumes/manifests`: returns PersistentVolumes for `kubectl apply -f`.
pub(crate) async fn get_manifests(State(app): State<Arc<AppState>>, _: OperatorAuth) -> Result<String, ApiError> {
    let directory = app.directory();
    let mut prepared = Vec::new();
    for machine in directory.machines() {
        let Some(allocation) = &machine.allocation else { continue };
        let install_state = app.state.read_install_state(&machine.id, &allocation.id).await?;
        let shown = volume_responses(&machine.id, allocation, &install_state);
        let available: Vec<VolumeResponse> =
            shown.into_iter().filter(|is| is.state == volume_state::VolumeState::Available).collect();
        for volume in listed_volumes(allocation) {
            let is = available.iter().find(|is| is.uid == volume.uid.to_string()).cloned();
            prepared.extend(is.map(|is| (volume, is)));
        }
    }
    let backed = prepared.iter().map(|(volume, is)| BackedVolume {
        volume,
        path: &is.path,
        size_bytes: is.size_bytes.unwrap_or_default(),
    });
    Ok(k8s_volume::format_manifests(backed))
}

/// `POST /v1/machine/{id}/volumes`: adds resources to the list of volumes in the machine file.
pub(crate) async fn add_volumes(
    Path(id): Path<String>,
    EditRequest { document: resources, permit }: EditRequest<Value, LIST_BYTES>,
) -> ApiResult<Json<Vec<VolumeResponse>>> {
    let (id, EditPermit { app, peer, .. }) = (id.to_lowercase(), &permit);
    let new = list_resources(resources);
    let own = allocation_id(&permit, &id)?;
    check_node(&permit, &id, &new)?;
    check_merged_list(&permit, &id, &new)?;
    let wanted = Mutex::new(None);
    let change = |document: &mut Map<String, Value>| {
        let all = merge_resources(volume_list(document), &new);
        *lock_mutex(&wanted) = k8s_volume::parse_volumes(&Value::Array(all.clone())).ok();
        set_volume_list(document, all);
    };
    let becomes = |machine: &MachineSpec| machine.allocation.as_ref().map(listed_volumes) == *lock_mutex(&wanted);
    let has_it = |machine: &MachineSpec| has_allocation(machine, &own);
    rewrite_machine_file(app, &id, has_it, change, becomes, str::to_owned).await?;
    app.watch.log_note(format!("{}: {peer} added volumes", app.directory().display_name(&id)));
    current_volumes(&permit, &id).await
}

/// `DELETE /v1/machine/{id}/volumes/{name}`: removes a volume from the machine file if [`can_be_deleted`] permits it.
/// The data of the volume is preserved.
pub(crate) async fn remove_volume(
    Path((id, name)): Path<(String, String)>,
    _: OperatorAuth,
    query: Result<Query<RemovalQuery>, QueryRejection>,
    permit: EditPermit,
) -> ApiResult<Json<Vec<VolumeResponse>>> {
    let (id, EditPermit { app, peer, .. }) = (id.to_lowercase(), &permit);
    let own = allocation_id(&permit, &id)?;
    // Nothing is deleted while the record of the machine needs confirmation: in a restored database, a volume without a
    // path may have been prepared after the backup.
    let unconfirmed = app.state.explain_unconfirmed(vec![id.clone()]).await.map_err(ApiError::from)?;
    if let Some(why) = unconfirmed {
        return Err(ApiRefusal::conflict(why));
    }
    let machine = permit.directory.find_machine(&id).ok_or_else(|| ApiRefusal::not_found("machine", &id))?;
    let all = volumes_of(app, machine).await?;
    let volume = all.iter().find(|volume| volume.name == name && !volume.kind.is_empty());
    let volume = volume.ok_or_else(|| ApiRefusal::not_found("volume", &name))?;
    let Query(volume_query) = query.map_err(|error| ApiRefusal::bad_request(error.to_string()))?;
    let phase = match volume_query.persistent_volume {
        BackingVolume::Backed(phase) => Some(phase),
        BackingVolume::None(NoBacking::None) => None,
    };
    // A volume that is not on a disk yet can always be removed, because it does not contain data.
    let is_nowhere = volume.path.is_empty() && phase.is_none();
    if !is_nowhere && !can_be_deleted(Some(volume.state), phase) {
        let backed = phase.map_or("without a PersistentVolume".to_owned(), |phase| {
            format!("with a PersistentVolume that is {phase}", phase = json!(phase).as_str().unwrap_or_default())
        });
        return Err(ApiRefusal::conflict(format!(
            "volume {name} cannot be deleted: it is {state}, {backed}",
            state = volume.state
        )));
    }
    let uid = volume.uid.clone();
    let is_it =
        |resource: &Value| resource["metadata"]["uid"].as_str().is_some_and(|as_str| as_str.eq_ignore_ascii_case(&uid));
    let change = |document: &mut Map<String, Value>| {
        let mut all = volume_list(document);
        all.retain(|resource| !is_it(resource));
        set_volume_list(document, all);
    };
    let becomes = |machine: &MachineSpec| !has_volume(machine, &uid);
    let has_it = |machine: &MachineSpec| has_allocation(machine, &own);
    rewrite_machine_file(app, &id, has_it, change, becomes, str::to_owned).await?;
    app.watch.log_note(format!(
        "{machine}: {peer} removed volume {name}; its data is preserved",
        machine = app.directory().display_name(&id)
    ));
    current_volumes(&permit, &id).await
}

/// Returns the volumes that the machine file lists, and volumes on the machine's disks that the file no longer lists.
pub async fn volumes_of(app: &AppState, machine: &MachineSpec) -> Result<Vec<VolumeResponse>, ApiError> {
    let Some(allocation) = &machine.allocation else { return Ok(Vec::new()) };
    let install_state = app.state.read_install_state(&machine.id, &allocation.id).await?;
    Ok(volume_responses(&machine.id, allocation, &install_state))
}

fn volume_responses(machine: &str, allocation: &AllocationSpec, install_state: &InstallState) -> Vec<VolumeResponse> {
    // The effective allocation is used, because the node keeps its installed hostname until a reinstall applies the
    // hostname of the machine file.
    let allocation = &effective_allocation(allocation, install_state).allocation;
    let listed = listed_volumes(allocation);
    let of_list = listed.iter().filter_map(|volume| {
        let uid = volume.uid.to_string();
        let is = install_state.volumes.iter().find(|volume| volume.uid == uid);
        let seen = observe_volume(volume, allocation, install_state, is);
        let state = reconcile_state(seen)?;
        Some(VolumeResponse {
            machine: machine.to_owned(),
            name: volume.name.clone(),
            uid,
            kind: volume.describe_kind(),
            state,
            message: state_message(volume, seen, state, &allocation.hostname),
            path: is.map(|is| is.path.clone()).unwrap_or_default(),
            size_bytes: is.map(|is| is.size_bytes),
        })
    });
    let rest = install_state.volumes.iter().filter(|is| listed.iter().all(|volume| volume.uid.to_string() != is.uid));
    let left = rest.map(|rest| VolumeResponse {
        machine: machine.to_owned(),
        name: rest.name.clone(),
        uid: rest.uid.clone(),
        kind: String::new(),
        state: volume_state::VolumeState::Terminating,
        message: "the volume is no longer listed in the machine file: the next reinstall ignores the volume".to_owned(),
        path: rest.path.clone(),
        size_bytes: Some(rest.size_bytes),
    });
    of_list.chain(left).collect()
}

/// Returns the observed state of a volume, as input for its lifecycle. Volumes are prepared by the installation of the
/// machine, so the installation is the job of the lifecycle.
fn observe_volume(
    volume: &K8sVolume,
    allocation: &AllocationSpec,
    install_state: &InstallState,
    is: Option<&PreparedVolume>,
) -> ObservedVolume {
    let is_prepared = is.is_some();
    let job = match (&install_state.order, is_prepared) {
        (_, true) => StorageJob::Succeeded,
        (Some(order), false) if order.given_up => StorageJob::Failed,
        (Some(_), false) => StorageJob::InProgress,
        (None, false) if install_state.is_installed() => StorageJob::None,
        (None, false) => StorageJob::InProgress,
    };
    let valid = volume.belongs_to_host(&allocation.hostname) && is.is_none_or(|is| matches_prepared_mode(volume, is));
    let seen = ObservedVolume { valid, deleted: false, state: None, persistent: None, job };
    let state = match job {
        StorageJob::InProgress => Some(volume_state::VolumeState::Pending),
        _ => None,
    };
    let seen = ObservedVolume { state, ..seen };
    // No installation will prepare a volume that is marked for deletion, so only an earlier preparation determines
    // its state.
    match volume.deleted {
        true => ObservedVolume {
            deleted: true,
            state: is_prepared.then(|| reconcile_state(seen)).flatten(),
            job: StorageJob::None,
            ..seen
        },
        false => seen,
    }
}

/// Returns whether the volume was prepared in its current mode. The device path of a volume with a filesystem contains
/// the UUID of the filesystem; the device path of a block volume does not.
fn matches_prepared_mode(volume: &K8sVolume, is: &PreparedVolume) -> bool {
    (volume.content == VolumeContent::Block) != is.path.starts_with("/dev/disk/by-uuid/")
}

fn state_message(volume: &K8sVolume, seen: ObservedVolume, state: volume_state::VolumeState, hostname: &str) -> String {
    use volume_state::VolumeState::{Available, Failed, Pending, Terminating};
    match (state, seen.job) {
        (Failed, _) if !volume.belongs_to_host(hostname) => format!("the volume belongs to node {}", volume.node),
        (Failed, _) if !seen.valid => {
            "the volume was prepared in another mode (Filesystem or Block) than its current mode".to_owned()
        }
        (Failed, _) => "the reinstall that would have prepared the volume was abandoned".to_owned(),
        (Pending, StorageJob::None) => "the next reinstall prepares the volume: order a reinstall".to_owned(),
        (Pending, _) => "the pending installation prepares the volume".to_owned(),
        (Terminating, _) => {
            "the volume is marked for deletion: installations ignore the volume, and its data is preserved".to_owned()
        }
        (Available, _) => String::new(),
    }
}

/// Returns the volumes that the machine file lists. The list is valid, since a machine file with an invalid list
/// never takes effect.
fn listed_volumes(allocation: &AllocationSpec) -> Vec<K8sVolume> {
    k8s_volume::parse_volumes(allocation.passed_on.get("volumes").unwrap_or(&Value::Null)).unwrap_or_default()
}

/// Returns the id of the machine's allocation. Fails if the machine is unknown or not allocated.
fn allocation_id(permit: &EditPermit, id: &str) -> ApiResult<String> {
    let machine = permit.directory.find_machine(id).ok_or_else(|| ApiRefusal::not_found("machine", id))?;
    let allocation = machine.allocation.as_ref().map(|allocation| allocation.id.to_string());
    allocation.ok_or_else(|| ApiRefusal::unprocessable(format!("machine {id} is not allocated")))
}

/// Refuses volumes of other nodes, because the planner would refuse an installation with them.
fn check_node(permit: &EditPermit, id: &str, resources: &[Value]) -> ApiResult<()> {
    let allocation = permit.directory.find_machine(id).and_then(|machine| machine.allocation.as_ref());
    let hostname = allocation.map(|allocation| allocation.hostname.as_str()).unwrap_or_default();
    let stranger = |resource: &Value| {
        let node = resource["spec"]["nodeName"].as_str().filter(|node| !is_node(node, hostname))?;
        Some(format!("{} (of {node})", resource["metadata"]["name"].as_str().unwrap_or("one without a name")))
    };
    let strangers: Vec<String> = resources.iter().filter_map(stranger).collect();
    match strangers.is_empty() {
        true => Ok(()),
        false => Err(ApiRefusal::unprocessable(format!(
            "these volumes belong to nodes other than {hostname}: {volumes}. Nothing was added; list only volumes of this node",
            volumes = strangers.join(", ")
        ))),
    }
}

/// Merges the resources of a request into the list in the machine file: a resource that is already in the list is
/// replaced, every other resource is added. A request may repeat resources of the list, because the client sends all
/// resources of the cluster.
fn merge_resources(mut all: Vec<Value>, new: &[Value]) -> Vec<Value> {
    all.retain(|listed| !new.iter().any(|one| is_same_resource(one, listed)));
    all.extend(new.iter().cloned());
    all
}

/// Refuses resources that would make the machine's list invalid. The messages refer to resources by name, because the
/// client does not know their positions in the machine file.
fn check_merged_list(permit: &EditPermit, id: &str, new: &[Value]) -> ApiResult<()> {
    let allocation = permit.directory.find_machine(id).and_then(|machine| machine.allocation.as_ref());
    let listed = allocation.and_then(|allocation| allocation.passed_on.get("volumes")?.as_array().cloned());
    let all = merge_resources(listed.unwrap_or_default(), new);
    let problems = k8s_volume::parse_volumes(&Value::Array(all.clone())).err().unwrap_or_default();
    let lines: Vec<String> =
        problems.iter().map(|problem| k8s_volume::format_resource_problem(&all, problem)).collect();
    match lines.is_empty() {
        true => Ok(()),
        false => Err(ApiRefusal::bad_request(format!("{}\nNothing was added", lines.join("\n")))),
    }
}

/// Returns whether both values are versions of the same resource.
fn is_same_resource(one: &Value, other: &Value) -> bool {
    let named = match one["kind"] == "StorageClass" {
        true => "name",
        false => "uid",
    };
    let (name, other_name) = (&one["metadata"][named], &other["metadata"][named]);
    one["kind"] == other["kind"] && name.is_string() && name == other_name
}

fn has_allocation(machine: &MachineSpec, allocation: &str) -> bool {
    machine.allocation.as_ref().is_some_and(|is| *is.id == *allocation)
}

fn has_volume(machine: &MachineSpec, uid: &str) -> bool {
    let is_it = |volume: &K8sVolume| volume.uid.to_string().eq_ignore_ascii_case(uid);
    machine.allocation.as_ref().is_some_and(|allocation| listed_volumes(allocation).iter().any(is_it))
}

/// Returns the schema of a request: one resource, or a list of resources.
pub(crate) fn request_schema(_: &mut SchemaGenerators) -> Value {
    json!({"anyOf": [{"type": "object"}, {"type": "array", "items": {"type": "object"}}]})
}

/// Returns the resources of a request. For several resources, `kubectl get -o json` prints one object with the field
/// `items`.
fn list_resources(resources: Value) -> Vec<Value> {
    match resources {
        Value::Array(all) => all,
        Value::Object(mut one) => match one.remove("items") {
            Some(Value::Array(all)) => all,
            _ => vec![Value::Object(one)],
        },
        other => vec![other],
    }
}

fn volume_list(document: &Map<String, Value>) -> Vec<Value> {
    let list = document.get("allocation").and_then(|allocation| allocation.get("volumes"));
    list.and_then(Value::as_array).cloned().unwrap_or_default()
}

fn set_volume_list(document: &mut Map<String, Value>, all: Vec<Value>) {
    let allocation = document.get_mut("allocation").and_then(Value::as_object_mut);
    allocation
        .into_iter()
        .for_each(|allocation| drop(allocation.insert("volumes".to_owned(), Value::Array(all.clone()))));
}

async fn current_volumes(permit: &EditPermit, id: &str) -> ApiResult<Json<Vec<VolumeResponse>>> {
    let directory = permit.app.directory();
    let machine = directory.find_machine(id).ok_or_else(|| ApiRefusal::not_found("machine", id))?;
    Ok(Json(volumes_of(&permit.app, machine).await?))
}
