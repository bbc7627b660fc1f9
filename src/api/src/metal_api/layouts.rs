//! `/v1/filesystemlayout`: layouts, compatible with metal-api.

use super::api_refusal::{ApiRefusal, ApiResult};
use super::document_edits::{
    self, EditedObject, add_version, change_text, matches_version, wait_until_published, warn_removed_comments,
};
use super::edit_permit::{EditPermit, EditRequest};
use super::referencing_machines;
use crate::AppState;
use crate::access::set_audited_object;
use crate::json_schemas::SchemaGenerators;
use crate::operator_api::OperatorAuth;
use crate::page_query::PageSelection;
use crate::request_body::read_operator_document;
use axum::Json;
use axum::body::Body;
use axum::extract::{Path, State};
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use common::diagnostic::{Diagnostic, join_problems};
use common::yaml::edit::{self, EditedYaml};
use http_server::client_address::ClientAddress;
use model::layout::layout_set::LayoutSet;
use model::layout::{self, Layout, ParsedLayout, PartitionType};
use plan::disk_capacity::find_capacity_problems;
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Value, json};
use site::snapshot::SiteSnapshot;
use std::path::Path as File;
use std::sync::Arc;

const KIND: &str = "filesystemlayout";
/// Maximum size of a layout in bytes, the same as for a layout file.
const LAYOUT_BYTES: usize = 128 << 10;
const MAXIMUM_REQUEST_BYTES: usize = 4 << 10;

/// Returns the schema of a request that creates or changes a layout. The request may use any supported spelling.
pub(crate) fn request_schema(_: &mut SchemaGenerators) -> Value {
    let what = "A layout in any supported spelling; `drophammer schema layout` prints its schema.";
    json!({"type": "object", "required": ["id"], "properties": {"id": {"type": "string"}}, "description": what})
}

/// `GET /v1/filesystemlayout`: lists the layouts, sorted by id.
pub(crate) async fn list_layouts(
    State(app): State<Arc<AppState>>,
    _: OperatorAuth,
    mut page: PageSelection,
) -> ApiResult<Json<Vec<Value>>> {
    let directory = app.directory();
    let is_selected = |layout: &&Layout| {
        let texts = [&layout.name, &layout.description].into_iter().flatten();
        page.accepts(&layout.id, texts.map(String::as_str))
    };
    let layouts = directory.known.layouts.values().filter(is_selected).map(layout_response).collect();
    page.finish()?;
    Ok(Json(layouts))
}

/// `GET /v1/filesystemlayout/{id}`: returns one layout.
pub(crate) async fn get_layout(State(app): State<Arc<AppState>>, Path(id): Path<String>, _: OperatorAuth) -> ApiResult {
    let directory = app.directory();
    let layout = directory.known.layouts.get(&id).ok_or_else(|| ApiRefusal::not_found(KIND, &id))?;
    Ok(tagged_response(StatusCode::OK, layout))
}

/// `PUT /v1/filesystemlayout`: creates a layout.
pub(crate) async fn create_layout(change: EditRequest<Value, LAYOUT_BYTES>) -> ApiResult {
    let EditRequest { document, permit: EditPermit { app, peer, directory, .. } } = &change;
    let id = required_id(document)?;
    set_audited_object(id);
    if directory.known.layouts.contains_key(id) {
        return Err(ApiRefusal::conflict(format!("{KIND}:{id} already exists")));
    }
    let new = validate_layout(app, document)?;
    let (path, text) = (document_edits::file_path(&app.layouts, id), layout::canonical_yaml(&new));
    if !text_equals(&text, &new) {
        return Err(ApiRefusal::bad_request("the document cannot be represented in YAML without loss"));
    }
    document_edits::create_file(app, &path, &text).await?;
    wait_until_published(app, &path, Some(&text), |directory| directory.known.layouts.get(id) == Some(&new)).await?;
    app.watch.log_note(format!("{peer} created layout {id}: {path}", path = path.display()));
    Ok(tagged_response(StatusCode::CREATED, &new))
}

/// `POST /v1/filesystemlayout`: replaces a layout.
pub(crate) async fn update_layout(change: EditRequest<Value, LAYOUT_BYTES>) -> ApiResult {
    let EditRequest { document, permit: EditPermit { app, peer, headers, directory, .. } } = &change;
    let id = required_id(document)?;
    set_audited_object(id);
    let what = EditedObject { kind: KIND, id };
    let before = directory.known.layouts.get(id).ok_or_else(|| what.not_found())?;
    let mut new = validate_layout(app, document)?;
    keep_implicit_types(&mut new, before);
    let (path, text, parsed) = read_unchanged(app, directory, what, before, headers, &layout_response(&new)).await?;
    if new == *before {
        return Ok(tagged_response(StatusCode::OK, &new));
    }
    let edited = change_text(
        path,
        &text,
        |text| edit_layout(text, &parsed, &new),
        layout::canonical_yaml(&new),
        |text| text_equals(text, &new),
    )?;
    if !document_edits::replace_file(app, path, &text, &edited.text).await? {
        return Err(what.conflict(
            path,
            document_edits::read_file(app, path).await?.as_deref(),
            &layout_response(&new),
        ));
    }
    wait_until_published(app, path, Some(&edited.text), |directory| directory.known.layouts.get(id) == Some(&new))
        .await?;
    app.watch.log_note(format!("{peer} updated layout {id}: {path}", path = path.display()));
    let mut response = tagged_response(StatusCode::OK, &new);
    warn_removed_comments(app, path, &edited.removed_comments, &mut response);
    Ok(response)
}

/// `DELETE /v1/filesystemlayout/{id}`: deletes a layout that is not in use.
pub(crate) async fn delete_layout(Path(id): Path<String>, permit: EditPermit) -> ApiResult {
    let EditPermit { app, peer, headers, directory, .. } = &permit;
    let what = EditedObject { kind: KIND, id: &id };
    let before = directory.known.layouts.get(&id).ok_or_else(|| what.not_found())?;
    let users = referencing_machines::machines_with_layout(app, directory, &id).await?;
    if !users.is_empty() {
        return Err(ApiRefusal::unprocessable(format!("{KIND} {id} is in use by machines:[{}]", users.join(" "))));
    }
    let (path, text, _) = read_unchanged(app, directory, what, before, headers, &Value::Null).await?;
    if !document_edits::remove_file(app, path, &text).await? {
        return Err(what.conflict(path, document_edits::read_file(app, path).await?.as_deref(), &Value::Null));
    }
    let is_gone = |directory: &SiteSnapshot| directory.layout_files.values().all(|file| file != path);
    wait_until_published(app, path, None, is_gone).await?;
    app.watch.log_note(format!("{peer} deleted layout {id}: {path}", path = path.display()));
    Ok(tagged_response(StatusCode::OK, before))
}

#[derive(Deserialize, JsonSchema)]
pub(crate) struct LayoutQuery {
    #[serde(default)]
    size: String,
    #[serde(default)]
    image: String,
}

#[derive(Deserialize, JsonSchema)]
pub(crate) struct LayoutMatchQuery {
    #[serde(default)]
    machine: String,
    #[serde(default)]
    filesystemlayout: String,
}

/// `POST /v1/filesystemlayout/try`: returns the layout that applies to a size and an image. `POST
/// /v1/filesystemlayout/matches`: checks whether a layout fits the disks of a machine.
pub(crate) async fn query_layout(
    State(app): State<Arc<AppState>>,
    Path(question): Path<String>,
    _: OperatorAuth,
    peer: ClientAddress,
    body: Body,
) -> ApiResult {
    match question.as_str() {
        "try" => select_layout(&app, &read_operator_document(&app, peer, body, MAXIMUM_REQUEST_BYTES).await?),
        "matches" => match_layout(&app, &read_operator_document(&app, peer, body, MAXIMUM_REQUEST_BYTES).await?).await,
        _ => Err(ApiRefusal::new(StatusCode::METHOD_NOT_ALLOWED, "method not allowed for this endpoint")),
    }
}

fn select_layout(app: &AppState, layout_query: &LayoutQuery) -> ApiResult {
    let directory = app.directory();
    let known = &directory.known;
    let chosen = known.set.select(&layout_query.size, &layout_query.image).map_err(|why| {
        let nearest = why.nearest.iter().map(|line| Diagnostic::new("", line)).collect();
        ApiRefusal::unprocessable(why.message).with_problems(nearest)
    })?;
    let layout = known.layouts.get(&chosen.id).ok_or_else(|| ApiRefusal::not_found(KIND, &chosen.id))?;
    Ok(tagged_response(StatusCode::OK, layout))
}

async fn match_layout(app: &AppState, layout_match_query: &LayoutMatchQuery) -> ApiResult {
    let directory = app.directory();
    let id = &layout_match_query.filesystemlayout;
    let layout = directory.known.layouts.get(id).ok_or_else(|| ApiRefusal::not_found(KIND, id))?;
    let machine = layout_match_query.machine.to_lowercase();
    let unknown = || match directory.find_machine(&machine) {
        Some(_) => ApiRefusal::unprocessable(format!("machine {machine} has not registered: its disks are unknown")),
        None => ApiRefusal::not_found("machine", &machine),
    };
    let inventory = app.read_inventory(&machine).await?.ok_or_else(unknown)?;
    let problems = find_capacity_problems(layout, &inventory);
    match problems.is_empty() {
        true => Ok(tagged_response(StatusCode::OK, layout)),
        false => Err(ApiRefusal::from_problems(StatusCode::UNPROCESSABLE_ENTITY, problems)),
    }
}

fn tagged_response(status: StatusCode, layout: &Layout) -> Response {
    add_version((status, Json(layout_response(layout))).into_response(), &version_tag(layout))
}

/// Returns a digest that identifies the version of a layout. The digest does not depend on the comments and the
/// spelling in the layout file.
fn version_tag(layout: &Layout) -> String {
    layout::compute_digest(layout)
}

/// Returns a layout in metal-api's format: absent values are null, absent descriptions are empty strings, and defaults
/// that metal-api's clients require are inserted.
fn layout_response(layout: &Layout) -> Value {
    let mut document = json!(layout);
    fill_fields(&mut document, &json!({"name": "", "description": ""}));
    for filesystem in document["filesystems"].as_array_mut().into_iter().flatten() {
        fill_fields(filesystem, &json!({"path": null, "label": null}));
    }
    for disk in document["disks"].as_array_mut().into_iter().flatten() {
        for partition in disk["partitions"].as_array_mut().into_iter().flatten() {
            fill_fields(partition, &json!({"label": null}));
        }
    }
    fill_partition_types(&mut document);
    document
}

/// Inserts the default type into each partition that has no type.
pub(super) fn fill_partition_types(layout: &mut Value) {
    let disks = layout.get_mut("disks").and_then(Value::as_array_mut).into_iter().flatten();
    for partition in disks.filter_map(|disk| disk.get_mut("partitions")?.as_array_mut()).flatten() {
        fill_fields(partition, &json!({"gpttype": PartitionType::Linux}));
    }
}

/// Removes the default type from partitions that have no type in the version in effect. Responses contain the default
/// type, so a client that sends back a response would otherwise change these partitions.
fn keep_implicit_types(new: &mut Layout, before: &Layout) {
    for disk in &mut new.disks {
        let unchanged = before.disks.iter().find(|old| old.device == disk.device);
        for partition in disk.partitions.iter_mut().filter(|partition| partition.kind == Some(PartitionType::Linux)) {
            let mut old = unchanged.into_iter().flat_map(|old| &old.partitions);
            if old.any(|old| old.number == partition.number && old.kind.is_none()) {
                partition.kind = None;
            }
        }
    }
}

/// Inserts each field of `defaults` that the document lacks.
fn fill_fields(document: &mut Value, defaults: &Value) {
    let Some(fields) = document.as_object_mut() else { return };
    for (name, default) in defaults.as_object().into_iter().flatten() {
        fields.entry(name).or_insert_with(|| default.clone());
    }
}

fn required_id(document: &Value) -> ApiResult<&str> {
    let id = document.get("id").and_then(Value::as_str).filter(|id| !id.is_empty());
    id.ok_or_else(|| ApiRefusal::bad_request("id should not be empty"))
}

/// Returns the layout in a request, if it is valid and its constraints do not collide with those of another layout.
fn validate_layout(app: &AppState, document: &Value) -> ApiResult<Layout> {
    let layout = layout::read_json(document).map_err(metal_api_refusal)?.layout;
    let directory = app.directory();
    let others = directory.known.layouts.values().filter(|other| other.id != layout.id);
    let own = document_edits::file_path(&app.layouts, &layout.id);
    let file = |id: &str| directory.layout_files.get(id).unwrap_or(&own).as_path();
    let set = LayoutSet::new(others.chain([&layout]).map(|layout| (file(&layout.id), layout)));
    let own = set.find_collisions().into_iter().filter(|collision| collision.second.id == layout.id);
    let problems: Vec<Diagnostic> =
        own.map(|collision| Diagnostic::new("constraints", collision.to_string())).collect();
    match problems.is_empty() {
        true => Ok(layout),
        false => Err(ApiRefusal::from_problems(StatusCode::BAD_REQUEST, problems)),
    }
}

/// Returns an error with the status that metal-api uses: 422 for unsupported values, and 400 for all other problems.
fn metal_api_refusal(problems: Vec<Diagnostic>) -> ApiRefusal {
    let is_word = |problem: &Diagnostic| {
        problem.message.starts_with("given ") && problem.message.contains("is not supported, but:")
    };
    match problems.iter().any(is_word) {
        true => ApiRefusal::from_problems(StatusCode::UNPROCESSABLE_ENTITY, problems),
        false => ApiRefusal::from_problems(StatusCode::BAD_REQUEST, problems),
    }
}

/// Returns the file of a layout. Fails if the file was edited and the edit is not in effect yet, or if the client's
/// `If-Match` differs from the version in effect.
async fn read_unchanged<'a>(
    app: &AppState,
    directory: &'a SiteSnapshot,
    what: EditedObject<'_>,
    before: &Layout,
    headers: &HeaderMap,
    yours: &Value,
) -> ApiResult<(&'a File, String, ParsedLayout)> {
    let path = directory.layout_files.get(what.id).ok_or_else(|| what.not_found())?;
    let text = document_edits::read_file(app, path).await?;
    let parsed = text.as_deref().map(layout::read_yaml).transpose();
    let parsed = parsed.map_err(|problems| document_edits::invalid_file(path, &join_problems(&problems)))?;
    match (text, parsed) {
        (Some(text), Some(parsed)) if parsed.layout == *before && matches_version(headers, &version_tag(before)) => {
            Ok((path, text, parsed))
        }
        (text, _) => Err(what.conflict(path, text.as_deref(), yours)),
    }
}

fn edit_layout(text: &str, parsed: &ParsedLayout, new: &Layout) -> Option<EditedYaml> {
    let canonical = match parsed.is_canonical() {
        true => text.to_owned(),
        false => layout::respell_canonically(text, &[parsed])?,
    };
    edit::edit_values(&canonical, &json!(parsed.layout), &json!(new))
}

fn text_equals(text: &str, layout: &Layout) -> bool {
    layout::read_yaml(text).is_ok_and(|parsed| parsed.layout == *layout)
}
