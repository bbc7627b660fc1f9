//! `/v1/size`: sizes of machines, defined by constraints on their hardware. Sizes are stored in `sizes/`. `drophammer
//! machine add` selects one of these sizes for a machine.

use super::api_refusal::{ApiRefusal, ApiResult};
use super::document_edits::{
    self, EditedObject, add_version, change_text, hex_digest, matches_version, wait_until_published,
    warn_removed_comments,
};
use super::edit_permit::{EditPermit, EditRequest};
use crate::AppState;
use crate::access::set_audited_object;
use crate::json_schemas::{SchemaGenerators, fields_schema};
use crate::operator_api::OperatorAuth;
use crate::page_query::PageSelection;
use crate::request_body::read_operator_document;
use axum::Json;
use axum::body::Body;
use axum::extract::{Path, State};
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use common::type_errors::locate_json_error;
use common::yaml::edit;
use control::agent_api_types::RegisterRequest;
use http_server::client_address::ClientAddress;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};
use site::operator_files;
use site::sizes::{ConstraintKind, FOLDER, MachineSize, SizeConstraint};
use site::snapshot::SiteSnapshot;
use std::collections::BTreeMap;
use std::path::Path as File;
use std::sync::Arc;

const KIND: &str = "size";
const SIZE_BYTES: usize = 64 << 10;
const FIELDS: [&str; 4] = ["id", "name", "description", "constraints"];
/// Additional fields of responses, which are ignored in requests.
const RESPONSE_ONLY_FIELDS: [&str; 4] = ["labels", "reservations", "created", "changed"];
const UNKNOWN: &str = "unknown";

/// A size in a response.
#[derive(Serialize, JsonSchema)]
pub(crate) struct SizeResponse {
    id: String,
    name: String,
    description: String,
    constraints: Vec<SizeConstraint>,
    /// Always empty, since this server does not support labels of sizes.
    labels: BTreeMap<String, String>,
}

/// Returns the schema of a request that creates or changes a size.
pub(crate) fn request_schema(schemas: &mut SchemaGenerators) -> Value {
    fields_schema::<SizeResponse>(schemas, &FIELDS)
}

/// `GET /v1/size`: lists the sizes, sorted by id.
pub(crate) async fn list_sizes(
    State(app): State<Arc<AppState>>,
    _: OperatorAuth,
    mut page: PageSelection,
) -> ApiResult<Json<Vec<SizeResponse>>> {
    let directory = app.directory();
    let is_selected = |size: &&MachineSize| page.accepts(&size.id, [size.name.as_str(), &size.description]);
    let sizes = directory.known.sizes.values().filter(is_selected).map(size_response).collect();
    page.finish()?;
    Ok(Json(sizes))
}

/// `GET /v1/size/{id}`: returns one size.
pub(crate) async fn get_size(State(app): State<Arc<AppState>>, Path(id): Path<String>, _: OperatorAuth) -> ApiResult {
    let directory = app.directory();
    let size = directory.known.sizes.get(&id).ok_or_else(|| ApiRefusal::not_found(KIND, &id))?;
    Ok(tagged_response(StatusCode::OK, size))
}

/// Returns the id of the size in a request; empty if there is none.
fn requested_id(request_fields: &Map<String, Value>) -> &str {
    request_fields.get("id").and_then(Value::as_str).unwrap_or_default()
}

/// `PUT /v1/size`: creates a size.
pub(crate) async fn create_size(
    EditRequest { document: request_fields, permit }: EditRequest<Map<String, Value>, SIZE_BYTES>,
) -> ApiResult {
    set_audited_object(requested_id(&request_fields));
    let (request_fields, EditPermit { app, peer, directory, .. }) = (given_fields(request_fields)?, &permit);
    let size = validate_size(Value::Object(request_fields), &directory.known.sizes)?;
    let id = &size.id;
    if directory.known.sizes.contains_key(id) {
        return Err(ApiRefusal::conflict(format!("cannot create size in database, entity already exists: {id}")));
    }
    let (path, text) =
        (document_edits::file_path(&app.dir.join(FOLDER), id), edit::format_document(&json!(size), &FIELDS));
    if MachineSize::parse_size(&text).as_ref() != Ok(&size) {
        return Err(ApiRefusal::bad_request("the document cannot be represented in YAML without loss"));
    }
    document_edits::create_file(app, &path, &text).await?;
    wait_until_published(app, &path, Some(&text), |directory| directory.known.sizes.get(id) == Some(&size)).await?;
    app.watch.log_note(format!("{peer} created size {id}: {path}", path = path.display()));
    Ok(tagged_response(StatusCode::CREATED, &size))
}

/// `POST /v1/size`: changes the specified fields of a size.
pub(crate) async fn update_size(
    EditRequest { document: request_fields, permit }: EditRequest<Map<String, Value>, SIZE_BYTES>,
) -> ApiResult {
    let id = requested_id(&request_fields).to_owned();
    set_audited_object(&id);
    let (request_fields, EditPermit { app, peer, headers, directory, .. }) = (given_fields(request_fields)?, &permit);
    let what = EditedObject { kind: KIND, id: &id };
    let old = directory.known.sizes.get(&id).ok_or_else(|| what.not_found())?;
    let mut new = json!(old);
    new.as_object_mut().into_iter().for_each(|fields| fields.extend(request_fields.clone()));
    let new = validate_size(new, &directory.known.sizes)?;
    let (path, text) = read_unchanged(app, directory, what, old, headers, &json!(new)).await?;
    if new == *old {
        return Ok(tagged_response(StatusCode::OK, old));
    }
    let edited = change_text(
        path,
        &text,
        |text| edit::edit_values(text, &json!(old), &json!(new)),
        edit::format_document(&json!(new), &FIELDS),
        |text| MachineSize::parse_size(text).as_ref() == Ok(&new),
    )?;
    if !document_edits::replace_file(app, path, &text, &edited.text).await? {
        return Err(what.conflict(path, document_edits::read_file(app, path).await?.as_deref(), &json!(new)));
    }
    wait_until_published(app, path, Some(&edited.text), |directory| directory.known.sizes.get(&id) == Some(&new))
        .await?;
    app.watch.log_note(format!("{peer} updated size {id}: {path}", path = path.display()));
    let mut response = tagged_response(StatusCode::OK, &new);
    warn_removed_comments(app, path, &edited.removed_comments, &mut response);
    Ok(response)
}

/// `DELETE /v1/size/{id}`: deletes the size. Machine files that name the size are not changed.
pub(crate) async fn delete_size(Path(id): Path<String>, permit: EditPermit) -> ApiResult {
    let EditPermit { app, peer, headers, directory, .. } = &permit;
    let what = EditedObject { kind: KIND, id: &id };
    let size = directory.known.sizes.get(&id).ok_or_else(|| what.not_found())?;
    let (path, text) = read_unchanged(app, directory, what, size, headers, &Value::Null).await?;
    if !document_edits::remove_file(app, path, &text).await? {
        return Err(what.conflict(path, document_edits::read_file(app, path).await?.as_deref(), &Value::Null));
    }
    let is_gone = |directory: &SiteSnapshot| directory.size_files.values().all(|file| file != path);
    wait_until_published(app, path, None, is_gone).await?;
    app.watch.log_note(format!("{peer} deleted size {id}: {path}", path = path.display()));
    Ok(tagged_response(StatusCode::OK, size))
}

/// Returns the file of a size. Fails if the file was edited and the edit is not in effect yet, or if the client's
/// `If-Match` differs from the version in effect.
async fn read_unchanged<'a>(
    app: &AppState,
    directory: &'a SiteSnapshot,
    what: EditedObject<'_>,
    before: &MachineSize,
    headers: &HeaderMap,
    yours: &Value,
) -> ApiResult<(&'a File, String)> {
    let path = directory.size_files.get(what.id).ok_or_else(|| what.not_found())?;
    let text = document_edits::read_file(app, path).await?;
    let now = text.as_deref().map(MachineSize::parse_size).transpose();
    let now = now.map_err(|problems| document_edits::invalid_file(path, &problems))?;
    match text {
        Some(text) if now.as_ref() == Some(before) && matches_version(headers, &version_tag(before)) => {
            Ok((path, text))
        }
        text => Err(what.conflict(path, text.as_deref(), yours)),
    }
}

#[derive(Deserialize, JsonSchema)]
pub(crate) struct SizeSuggestion {
    #[serde(default, rename = "machineID")]
    machine: String,
}

/// `POST /v1/size/suggest`: returns constraints that the registered hardware of the machine matches exactly.
pub(crate) async fn suggest_size(
    State(app): State<Arc<AppState>>,
    Path(question): Path<String>,
    _: OperatorAuth,
    peer: ClientAddress,
    body: Body,
) -> ApiResult<Json<Value>> {
    if question != "suggest" {
        return Err(ApiRefusal::new(StatusCode::METHOD_NOT_ALLOWED, "method not allowed for this endpoint"));
    }
    let request_fields: SizeSuggestion = read_operator_document(&app, peer, body, SIZE_BYTES).await?;
    if request_fields.machine.is_empty() {
        return Err(ApiRefusal::bad_request("machineID must be given"));
    }
    let machine = request_fields.machine.to_lowercase();
    let registered =
        app.state.find_registration(&machine).await?.ok_or_else(|| ApiRefusal::not_found("machine", &machine))?;
    let register: RegisterRequest =
        serde_json::from_str(&registered.document).map_err(|error| ApiRefusal::internal_error(error.to_string()))?;
    let exactly = |kind: ConstraintKind| {
        let has = kind.measure(&register.hardware);
        SizeConstraint { kind, min: has, max: has }
    };
    Ok(Json(json!(ConstraintKind::ALL.map(exactly))))
}

/// Returns the fields of a request, without empty and ignored fields.
fn given_fields(mut request_fields: Map<String, Value>) -> ApiResult<Map<String, Value>> {
    let says = |value: &Value| !value.is_null() && value.as_object().is_none_or(|fields| !fields.is_empty());
    request_fields.retain(|_, value| says(value) && value.as_array().is_none_or(|items| !items.is_empty()));
    request_fields.retain(|name, _| !["created", "changed"].contains(&name.as_str()));
    match request_fields.keys().find(|name| !FIELDS.contains(&name.as_str())) {
        Some(kept) if RESPONSE_ONLY_FIELDS.contains(&kept.as_str()) => {
            Err(ApiRefusal::bad_request(format!("the field {kept} of a size is not supported")))
        }
        Some(other) => Err(ApiRefusal::bad_request(format!(
            "there is no field {other:?}{suggestion}",
            suggestion = operator_files::suggest_name(other, FIELDS.into_iter())
        ))),
        None => Ok(request_fields),
    }
}

/// Validates a size with the rules and messages of metal-api.
fn validate_size(mut request_fields: Value, all: &BTreeMap<String, MachineSize>) -> ApiResult<MachineSize> {
    let id = request_fields["id"].as_str().unwrap_or_default().to_owned();
    if id.is_empty() {
        return Err(ApiRefusal::bad_request("id should not be empty"));
    }
    if id == UNKNOWN {
        return Err(ApiRefusal::bad_request(format!("id cannot be {UNKNOWN:?}")));
    }
    for constraint in request_fields.get_mut("constraints").and_then(Value::as_array_mut).into_iter().flatten() {
        if let Some(fields) = constraint.as_object_mut() {
            fields.retain(|name, value| name != "identifier" || value.as_str() != Some(""));
        }
    }
    let size: MachineSize =
        serde_json::from_value(request_fields).map_err(|error| ApiRefusal::bad_request(locate_json_error(&error)))?;
    let mut wrong = Vec::new();
    for (index, one) in size.constraints.iter().enumerate() {
        let earlier = size.constraints[..index].iter().any(|earlier| earlier.kind == one.kind);
        if one.max < one.min {
            wrong.push(format!("constraint at index {index} is invalid: max is smaller than min"));
        }
        if earlier && one.kind != ConstraintKind::Storage {
            let why = format!("type duplicates are not allowed for type {:?}", one.kind.name());
            wrong.push(format!("constraint at index {index} is invalid: {why}"));
        }
    }
    if size.constraints.is_empty() {
        wrong.push("a size without constraints would match every machine".to_owned());
    }
    if !wrong.is_empty() {
        return Err(ApiRefusal::unprocessable(format!("size {id:?} is invalid: {}", wrong.join("\n"))));
    }
    match all.values().find(|other| other.id != id && sizes_overlap(other, &size)) {
        Some(other) => Err(ApiRefusal::bad_request(format!("size {id:?} overlaps with {:?}", other.id))),
        None => Ok(size),
    }
}

/// Returns whether a machine could match both sizes. As in metal-api, sizes whose constraints have different types
/// never overlap.
fn sizes_overlap(one: &MachineSize, other: &MachineSize) -> bool {
    let kinds =
        |size: &MachineSize| size.constraints.iter().map(|one| one.kind).collect::<std::collections::BTreeSet<_>>();
    let apart = |one: &SizeConstraint, other: &SizeConstraint| {
        one.kind == other.kind && (one.min > other.max || one.max < other.min)
    };
    kinds(one) == kinds(other)
        && !one.constraints.iter().any(|one| other.constraints.iter().any(|other| apart(one, other)))
}

fn version_tag(size: &MachineSize) -> String {
    hex_digest(json!(size).to_string().as_bytes())
}

/// Returns the size that is specified in a machine file. If `sizes/` does not contain this size, the response contains
/// only its id.
pub(super) fn machine_size_response(directory: &SiteSnapshot, id: &str) -> SizeResponse {
    let unlisted = || MachineSize { id: id.to_owned(), ..MachineSize::default() };
    size_response(&directory.known.sizes.get(id).cloned().unwrap_or_else(unlisted))
}

fn size_response(size: &MachineSize) -> SizeResponse {
    let MachineSize { id, name, description, constraints } = size.clone();
    SizeResponse { id, name, description, constraints, labels: BTreeMap::new() }
}

fn tagged_response(status: StatusCode, size: &MachineSize) -> Response {
    add_version((status, Json(size_response(size))).into_response(), &version_tag(size))
}
