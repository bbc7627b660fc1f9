//! `/v1/machine`: machines in metal-api's format, and requests that add an allocation to a machine file or remove it.

use super::api_refusal::{ApiRefusal, ApiResult};
use super::edit_permit::{EditPermit, EditRequest};
use super::images::is_empty_value;
use super::machine_choice::{choose_machine, select_networks};
use super::machine_file_edits::{prepare_machine_edit, rewrite_machine_file};
use super::machine_response::{MachineResponse, ReinstallResponse, machine_response};
use crate::AppState;
use crate::access::set_audited_object;
use crate::agent_api;
use crate::base_url::BaseUrls;
use crate::freed_machine_shutdown::{end_previous_system, release_allocation, restore_order};
use crate::json_schemas::SchemaGenerators;
use crate::operator_api::reinstalls::{parse_request, place_order};
use crate::operator_api::{OperatorAuth, explain_file_error};
use crate::out_of_band;
use crate::page_query::PageSelection;
use crate::request_body::{EVENT_BYTES, read_operator_document};
use crate::rollouts::require_plan;
use axum::Json;
use axum::body::Body;
use axum::extract::rejection::QueryRejection;
use axum::extract::{Path, Query, Request, State};
use axum::handler::Handler;
use axum::response::Response;
use common::error_code::ErrorCode;
use http_server::api_error::ApiError;
use http_server::client_address::ClientAddress;
use serde::Deserialize;
use serde_json::{Map, Value, json};
use site::operator_files::{self, MachineSpec};
use site::snapshot::SiteSnapshot;
use std::sync::Arc;
use store::explain_migration_block;
use uuid::Uuid;

pub(super) const KIND: &str = "machine";
/// Maximum size of an allocation, which may contain user data.
const ALLOCATION_BYTES: usize = 1 << 20;
/// Maximum size of a reinstall order, which may contain the approved plan.
const ORDER_BYTES: usize = 4 << 20;
/// Fields of a machine file, in the order in which they are written.
pub(crate) const FIELDS: [&str; 12] = [
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
    "networks",
    "allocation",
];
/// Field of an allocation request that selects some of the networks in the machine file.
const NETWORKS: &str = "networks";
/// Fields that can be criteria of a machine search.
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
/// Fields of an allocation request, each with its name in the machine file.
const REQUEST_FIELDS: [(&str, &str); 9] = [
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
/// Fields that select the machine. `partitionid` is ignored, since this server has only one partition.
const CHOOSES: [&str; 3] = ["uuid", "sizeid", "partitionid"];

/// Returns the schema of a search request.
pub(crate) fn search_schema(_: &mut SchemaGenerators) -> Value {
    let kind = |name: &str| match name {
        "allocation_succeeded" => json!({"type": ["boolean", "null"]}),
        "hardware_memory" => json!({"type": ["integer", "null"]}),
        "nics_mac_addresses" => json!({"type": ["array", "null"], "items": {"type": "string"}}),
        _ => json!({"type": ["string", "null"]}),
    };
    let properties: Map<String, Value> = SEARCHED.into_iter().map(|name| (name.to_owned(), kind(name))).collect();
    // Other criteria may have an empty value, which is ignored.
    let empty_list = json!({"type": "array", "items": {}, "maxItems": 0});
    let ignored = json!({"anyOf": [{"type": "null"}, {"type": "string", "maxLength": 0}, empty_list]});
    json!({"type": "object", "properties": properties, "additionalProperties": ignored})
}

/// Returns the schema of an allocation request.
pub(crate) fn request_schema(_: &mut SchemaGenerators) -> Value {
    let objects = |field: &str| {
        let item = json!({"type": "object", "properties": {field: {"type": "string"}}});
        json!({"type": ["array", "null"], "items": item})
    };
    let kind = |name: &str| match name {
        "ssh_pub_keys" => json!({"type": ["array", "null"], "items": {"type": "string"}}),
        "dns_servers" => objects("ip"),
        "ntp_servers" => objects("address"),
        NETWORKS => objects("networkid"),
        _ => json!({"type": ["string", "null"]}),
    };
    let names = REQUEST_FIELDS.iter().map(|(name, _)| *name).chain(CHOOSES).chain([NETWORKS]);
    let properties: Map<String, Value> = names.map(|name| (name.to_owned(), kind(name))).collect();
    json!({"type": "object", "properties": properties, "required": ["imageid"]})
}

/// `GET /v1/machine`: lists the machines that have a machine file, sorted by id.
pub(crate) async fn list_machines(
    State(app): State<Arc<AppState>>,
    base: BaseUrls,
    _: OperatorAuth,
    mut page: PageSelection,
) -> ApiResult<Json<Vec<MachineResponse>>> {
    let directory = app.directory();
    let mut machines = sort_by_id(&directory);
    machines.retain(|machine| {
        let texts = [&machine.name].into_iter().chain(&machine.macs);
        page.accepts(&machine.id, texts.map(String::as_str))
    });
    page.finish()?;
    Ok(Json(machine_responses(&app, &machines, &base).await?))
}

/// `GET /v1/machine/{id}`: returns the machine in metal-api's format to the operator, and its allocation to the machine
/// itself.
pub async fn get_machine_for_caller(State(app): State<Arc<AppState>>, request: Request) -> Response {
    match OperatorAuth::is_authorized(request.extensions()) {
        true => show_machine.call(request, app).await,
        false => agent_api::get_machine.call(request, app).await,
    }
}

/// `GET /v1/machine/{id}` on a listener that serves only operators.
pub async fn show_machine(
    State(app): State<Arc<AppState>>,
    Path(id): Path<String>,
    base: BaseUrls,
    _: OperatorAuth,
) -> ApiResult<Json<MachineResponse>> {
    machine_response(&app, &id.to_lowercase(), &base).await.map(Json)
}

/// Query of a reinstall order.
#[derive(Debug, Default, Deserialize, schemars::JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct OrderQuery {
    /// True if the server must make the plan of the reinstall, and refuse the order if the plan is refused. Clients of
    /// metal-api cannot request this check: their orders are accepted, and the machine refuses the plan when it boots,
    /// as in metal-stack.
    check_plan: bool,
}

/// `POST /v1/machine/{id}/reinstall`: orders a reinstall, after the same checks as in metal-api.
pub(crate) async fn reinstall_machine(
    State(app): State<Arc<AppState>>,
    Path(id): Path<String>,
    query: Result<Query<OrderQuery>, QueryRejection>,
    base: BaseUrls,
    _: OperatorAuth,
    peer: ClientAddress,
    body: Body,
) -> Result<Json<ReinstallResponse>, ApiError> {
    let Query(query) = query.map_err(|error| ApiError::bad_request(error.to_string()))?;
    let order_request = parse_request(read_operator_document(&app, peer, body, ORDER_BYTES).await?)?;
    let id = id.to_lowercase();
    if order_request.id.to_lowercase() != id {
        return Err(ApiError::bad_request(format!(
            "the request's path contains machine {id}, but its body contains machine {other_id:?}",
            other_id = order_request.id
        )));
    }
    if query.check_plan {
        require_plan(&app, &order_request).await?;
    }
    let summary = place_order(&app, peer, &order_request).await?;
    let machine = machine_response(&app, &id, &base).await.map_err(ApiRefusal::into_error)?;
    Ok(Json(ReinstallResponse::new(&machine, &summary)))
}

/// `POST /v1/machine/find`: returns the machines that match all criteria.
pub(crate) async fn find_machines(
    State(app): State<Arc<AppState>>,
    base: BaseUrls,
    _: OperatorAuth,
    peer: ClientAddress,
    body: Body,
) -> ApiResult<Json<Vec<MachineResponse>>> {
    let mut criteria: Map<String, Value> = read_operator_document(&app, peer, body, EVENT_BYTES).await?;
    // Empty criteria are ignored, because metal-stack's Go client sends empty lists for unset criteria.
    criteria.retain(|_, value| !is_empty_value(value));
    if let Some(other) = criteria.keys().find(|name| !SEARCHED.contains(&name.as_str())) {
        return Err(ApiRefusal::bad_request(format!(
            "machines cannot be searched by the field {other:?}{suggestion}",
            suggestion = operator_files::suggest_name(other, SEARCHED.into_iter())
        )));
    }
    let directory = app.directory();
    let mut all = machine_responses(&app, &sort_by_id(&directory), &base).await?;
    all.retain(|machine| {
        let machine = json!(machine);
        criteria.iter().all(|(name, value)| matches_criterion(&machine, name, value))
    });
    Ok(Json(all))
}

fn matches_criterion(machine: &Value, name: &str, wanted: &Value) -> bool {
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

/// `POST /v1/machine/allocate`: adds an allocation to a machine file.
pub(crate) async fn allocate_machine(
    base: BaseUrls,
    EditRequest { document: mut request_fields, permit }: EditRequest<Map<String, Value>, ALLOCATION_BYTES>,
) -> ApiResult<Json<MachineResponse>> {
    let EditPermit { app, peer, .. } = &permit;
    request_fields.retain(|_, value| !is_empty_value(value));
    let takes = |name: &str| {
        name == NETWORKS || CHOOSES.contains(&name) || REQUEST_FIELDS.iter().any(|(field, _)| *field == name)
    };
    if let Some(other) = request_fields.keys().find(|name| !takes(name)) {
        return Err(ApiRefusal::bad_request(format!(
            "{other:?} is not supported in an allocation request: set this field in the machine file"
        )));
    }
    if let Some(uuid) = request_fields.get("uuid").and_then(Value::as_str) {
        set_audited_object(&uuid.to_lowercase());
    }
    app.await_image(request_fields.get("imageid").and_then(Value::as_str).unwrap_or_default()).await;
    let id = choose_machine(app, &request_fields).await?;
    set_audited_object(&id);
    check_over_redfish(app, &id).await?;
    let uuid = Uuid::new_v4().to_string();
    let mut allocation = Map::from_iter([("id".to_owned(), json!(uuid)), ("hostname".to_owned(), json!("metal"))]);
    for (name, ours) in REQUEST_FIELDS {
        allocation.extend(request_fields.get(name).map(|value| (ours.to_owned(), value.clone())));
    }
    let networks = match app.directory().find_machine(&id) {
        Some(machine) => select_networks(machine, request_fields.get(NETWORKS))?,
        None => Vec::new(),
    };
    if !networks.is_empty() {
        allocation.insert(NETWORKS.to_owned(), Value::Array(networks));
    }
    let change = |document: &mut Map<String, Value>| {
        drop(document.insert("allocation".to_owned(), Value::Object(allocation.clone())))
    };
    let is_free = |machine: &MachineSpec| machine.allocation.is_none() && machine.locked.is_none();
    let has_it = |machine: &MachineSpec| machine.allocation.as_ref().is_some_and(|allocation| *allocation.id == uuid);
    rewrite_machine_file(app, &id, is_free, change, has_it, requested_field).await?;
    app.watch
        .log_note(format!("{machine}: {peer} added allocation {uuid}", machine = app.directory().display_name(&id)));
    Ok(Json(machine_response(app, &id, &base).await?))
}

/// Checks that the machine's Redfish service supports the steps of all templates that the traits of the machine enable.
///
/// # Errors
/// Returns an error if the service does not support a step, or cannot be reached.
pub async fn check_over_redfish(app: &AppState, id: &str) -> ApiResult<()> {
    let directory = app.directory();
    let Some(machine) = directory.find_machine(id) else { return Ok(()) };
    let checked = out_of_band::check_controller(machine, &directory.known).await;
    checked.map_err(|error| ApiRefusal::unprocessable(error.parts().1))
}

/// Returns the name of the request field that corresponds to a field of the machine file; empty if there is none.
fn requested_field(path: &str) -> String {
    let field = path.strip_prefix("allocation.").unwrap_or_default();
    let (name, rest) = field.split_at(field.find(['.', '[']).unwrap_or(field.len()));
    REQUEST_FIELDS.iter().find(|(_, ours)| *ours == name).map(|(field, _)| format!("{field}{rest}")).unwrap_or_default()
}

/// `DELETE /v1/machine/{id}/free`: frees a machine. The request has no effect if the machine is free.
pub(crate) async fn free_machine(
    Path(id): Path<String>,
    base: BaseUrls,
    permit: EditPermit,
) -> ApiResult<Json<MachineResponse>> {
    let id = id.to_lowercase();
    remove_allocation(&permit, &id).await?;
    Ok(Json(machine_response(&permit.app, &id, &base).await?))
}

/// Cancels the machine's reinstall order, removes the allocation from the machine file, and powers the machine off if
/// its controller is known. At its next boot over PXE, the machine boots the ramdisk and waits. Its disks are
/// preserved.
///
/// # Errors
/// Returns an error if the machine is locked or migrating, or if an installation has passed its point of no return.
pub async fn remove_allocation(permit: &EditPermit, id: &str) -> ApiResult<()> {
    let EditPermit { app, peer, directory, .. } = permit;
    let machine = directory.find_machine(id).ok_or_else(|| unknown_machine(directory, id))?;
    if let Some(why) = machine.explain_lock() {
        return Err(ApiRefusal::unprocessable(format!("machine is {why}")).with_error_code(ErrorCode::MachineLocked));
    }
    check_no_migration(app, id).await?;
    let Some(allocation) = &machine.allocation else { return Ok(()) };
    let own = allocation.id.to_string();
    let has_it = |machine: &MachineSpec| {
        machine.locked.is_none() && machine.allocation.as_ref().is_some_and(|allocation| *allocation.id == own)
    };
    let change = |document: &mut Map<String, Value>| drop(document.remove("allocation"));
    let is_freed = |machine: &MachineSpec| machine.allocation.is_none();
    // The order and the boots end before the file changes, so that no attempt can start in between. The new content of
    // the file is already on disk, so that an order does not end although the file cannot be changed.
    let mut edit = prepare_machine_edit(app, id, has_it, change, str::to_owned).await?;
    let released = release_allocation(app, *peer, id, &own).await?;
    if let Err(refusal) = edit.write(app, id).await {
        return Err(restore_order(app, id, &own, released, refusal).await);
    }
    edit.wait_until_in_effect(app, id, is_freed).await?;
    app.watch.log_note(format!(
        "{machine}: {peer} removed allocation {own}; the machine's disks are unchanged",
        machine = directory.display_name(id)
    ));
    end_previous_system(app, id).await?;
    Ok(())
}

/// Returns the error for a machine that is not known. If the machine file has an error, the message contains this
/// error.
pub(super) fn unknown_machine(directory: &SiteSnapshot, id: &str) -> ApiRefusal {
    explain_file_error(directory, id).map_or_else(|| ApiRefusal::not_found(KIND, id), ApiRefusal::from)
}

pub(super) async fn check_no_migration(app: &AppState, id: &str) -> ApiResult<()> {
    let migration = app.state.find_live_migration(id).await?;
    migration.map_or(Ok(()), |migration| Err(ApiRefusal::conflict(explain_migration_block(id, &migration))))
}

fn sort_by_id(directory: &SiteSnapshot) -> Vec<&MachineSpec> {
    let mut machines: Vec<&MachineSpec> = directory.machines().collect();
    machines.sort_unstable_by(|one, other| one.id.cmp(&other.id));
    machines
}

async fn machine_responses(
    app: &Arc<AppState>,
    machines: &[&MachineSpec],
    base: &BaseUrls,
) -> ApiResult<Vec<MachineResponse>> {
    let mut responses = Vec::new();
    for machine in machines {
        responses.push(machine_response(app, &machine.id, base).await?);
    }
    Ok(responses)
}
