//! `/v1/image`: images, compatible with metal-api.

use super::api_refusal::{ApiRefusal, ApiResult};
use super::document_edits::{
    self, EditedObject, add_version, change_text, hex_digest, matches_version, wait_until_published,
    warn_removed_comments,
};
use super::edit_permit::{EditPermit, EditRequest};
use super::referencing_machines;
use crate::AppState;
use crate::access::set_audited_object;
use crate::base_url::BaseUrls;
use crate::json_schemas::{SchemaGenerators, fields_schema};
use crate::openapi::parameters::query_parameters;
use crate::operator_api::OperatorAuth;
use crate::page_query::{PageQuery, PageSelection};
use axum::Json;
use axum::extract::rejection::QueryRejection;
use axum::extract::{Path, Query, State};
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use common::encoding::percent_encode;
use common::yaml::edit;
use model::allocation::FinisherChoice;
use model::architecture::Architecture;
use model::layout::ImageId;
use schemars::JsonSchema;
use serde::de::Error;
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::{Map, Value, json};
use site::operator_files::{self, ImageLocation, ImageSpec};
use site::snapshot::SiteSnapshot;
use std::path::Path as File;
use std::sync::Arc;
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;

const KIND: &str = "image";
const IMAGE_BYTES: usize = 64 << 10;
/// Fields of an image file that can be read and changed over the API, in the order in which they are written. Registry
/// credentials can be changed only in the file.
const FIELDS: [&str; 9] = ["id", "name", "description", "url", "file", "mirrors", "digest", "finish", "architecture"];
/// Additional fields of responses, which are ignored in requests.
const RESPONSE_ONLY_FIELDS: [&str; 7] =
    ["hidden", "blacklisted", "usedby", "ready", "created", "changed", "expirationDate"];
/// Expiry date of all images in responses. Images do not expire, but metal-api's clients require a date.
pub(super) const EXPIRY: &str = "9999-12-31T00:00:00Z";

/// An image in a response.
#[derive(Serialize, JsonSchema)]
pub(crate) struct ImageResponse {
    id: String,
    name: String,
    description: String,
    /// URL of the image. If the image is a file in the directory, this is the URL at which this server serves the file.
    url: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    file: Option<String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    mirrors: Vec<String>,
    /// Digest of the image. For a file in the directory, absent until the server has computed the digest.
    #[serde(skip_serializing_if = "Option::is_none")]
    digest: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    finish: Option<FinisherChoice>,
    /// Architecture of the machines for which the image is built.
    #[serde(skip_serializing_if = "Option::is_none")]
    architecture: Option<Architecture>,
    /// True if the digest is known, which is necessary for an installation.
    ready: bool,
    hidden: bool,
    blacklisted: bool,
    /// Expiry date of the image; always [`EXPIRY`].
    #[serde(rename = "expirationDate")]
    expiration_date: &'static str,
    /// Ids of machines that use the image, if requested.
    #[serde(skip_serializing_if = "Option::is_none")]
    usedby: Option<Vec<String>>,
}

/// Returns the schema of a request that creates or changes an image.
pub(crate) fn request_schema(schemas: &mut SchemaGenerators) -> Value {
    fields_schema::<ImageResponse>(schemas, &FIELDS)
}

/// Returns the parameters of a list of images.
pub(crate) fn list_parameters() -> Vec<Value> {
    [query_parameters::<ImageQuery>(), query_parameters::<PageQuery>()].concat()
}

#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(default)]
pub(crate) struct ImageQuery {
    /// Include hidden images.
    #[serde(deserialize_with = "read_flag")]
    hidden: bool,
    /// Include blacklisted images.
    #[serde(deserialize_with = "read_flag")]
    blacklisted: bool,
    /// Include the ids of the machines that use each image.
    #[serde(rename = "show-usage", deserialize_with = "read_flag")]
    show_usage: bool,
}

/// Reads a flag in the spellings that metal-api accepts. Its Python client sends `True`.
fn read_flag<'de, D: Deserializer<'de>>(source: D) -> Result<bool, D::Error> {
    match String::deserialize(source)?.as_str() {
        "1" | "t" | "T" | "true" | "True" | "TRUE" => Ok(true),
        "0" | "f" | "F" | "false" | "False" | "FALSE" => Ok(false),
        _ => Err(D::Error::custom("provided string was not `true` or `false`")),
    }
}

/// `GET /v1/image`: lists the images, sorted by id.
pub(crate) async fn list_images(
    State(app): State<Arc<AppState>>,
    base: BaseUrls,
    _: OperatorAuth,
    query: Result<Query<ImageQuery>, QueryRejection>,
    mut page: PageSelection,
) -> ApiResult<Json<Vec<ImageResponse>>> {
    let Query(request_fields) = query.map_err(|error| ApiRefusal::bad_request(error.to_string()))?;
    app.await_added_images().await;
    let directory = app.directory();
    let states = &directory.known.states;
    let mut all = Vec::new();
    for (id, (_, image)) in &directory.images {
        if (states.is_hidden(id) && !request_fields.hidden)
            || (states.is_blacklisted(id) && !request_fields.blacklisted)
            || !page.accepts(id, [image.name.as_str(), &image.description])
        {
            continue;
        }
        let mut shown = image_response(&directory, &base.calls, image);
        if request_fields.show_usage {
            shown.usedby = Some(referencing_machines::machines_with_image(&app, &directory, id).await?);
        }
        all.push(shown);
    }
    page.finish()?;
    Ok(Json(all))
}

/// `GET /v1/image/{id}`: returns one image, even if hidden.
pub(crate) async fn get_image(
    State(app): State<Arc<AppState>>,
    Path(id): Path<String>,
    base: BaseUrls,
    _: OperatorAuth,
) -> ApiResult {
    app.await_image(&id).await;
    let directory = app.directory();
    let (_, image) = directory.images.get(&id).ok_or_else(|| ApiRefusal::not_found(KIND, &id))?;
    Ok(tagged_response(StatusCode::OK, &directory, &base, image))
}

/// `PUT /v1/image`: creates an image.
pub(crate) async fn create_image(base: BaseUrls, change: EditRequest<Map<String, Value>, IMAGE_BYTES>) -> ApiResult {
    let EditRequest { document: request_fields, permit: EditPermit { app, peer, directory, .. } } = &change;
    let id = required_id(request_fields)?.to_owned();
    set_audited_object(&id);
    ImageId::parse(&id).map_err(ApiRefusal::bad_request)?;
    let mut request_fields = given_fields(request_fields.clone(), &base)?;
    if !request_fields.contains_key("url") && !request_fields.contains_key("file") {
        return Err(ApiRefusal::bad_request("url should not be empty"));
    }
    request_fields.retain(|_, value| !is_empty_value(value));
    if directory.images.contains_key(&id) {
        return Err(ApiRefusal::conflict(format!("cannot create image in database, entity already exists: {id}")));
    }
    let document = Value::Object(request_fields);
    let text = format_document(&document);
    let new = operator_files::parse_image(&text).map_err(ApiRefusal::bad_request)?;
    check_file_exists(app, &new).await?;
    if self::image_document(&new) != document {
        return Err(ApiRefusal::bad_request("the document cannot be represented in YAML without loss"));
    }
    let path = document_edits::file_path(&app.images, &id);
    document_edits::create_file(app, &path, &text).await?;
    wait_until_published(app, &path, Some(&text), |directory| is_in_effect(directory, &id, &document)).await?;
    app.watch.log_note(format!("{peer} created image {id}: {path}", path = path.display()));
    Ok(tagged_response(StatusCode::CREATED, &app.directory(), &base, &new))
}

/// `POST /v1/image`: changes the specified fields of an image.
pub(crate) async fn update_image(base: BaseUrls, change: EditRequest<Map<String, Value>, IMAGE_BYTES>) -> ApiResult {
    let EditRequest { document: request_fields, permit: EditPermit { app, peer, headers, directory, .. } } = &change;
    let id = required_id(request_fields)?.to_owned();
    set_audited_object(&id);
    let mut request_fields = given_fields(request_fields.clone(), &base)?;
    let what = EditedObject { kind: KIND, id: &id };
    let (path, before) = directory.images.get(&id).ok_or_else(|| what.not_found())?;
    let old = image_document(before);
    // The client may send back a digest that the server has computed. Such a digest must not be written to the file,
    // because the server would then no longer compute it.
    let computed = directory.known.images.get(&id).and_then(Option::as_ref).and_then(|image| image.digest.as_deref());
    if before.digest.is_none() && request_fields.get("digest").and_then(Value::as_str) == computed {
        request_fields.remove("digest");
    }
    let new = merge_fields(&old, request_fields);
    let wanted = operator_files::parse_image(&format_document(&new)).map_err(ApiRefusal::bad_request)?;
    check_file_exists(app, &wanted).await?;
    let text = read_unchanged(app, what, path, before, headers, &new).await?;
    if new == old {
        return Ok(tagged_response(StatusCode::OK, directory, &base, before));
    }
    // The edited file must have the requested fields and its old registry credentials.
    let is_right = |text: &str| {
        operator_files::parse_image(text).is_ok_and(|read| {
            image_document(&read) == image_document(&wanted) && read.pull_secrets == before.pull_secrets
        })
    };
    let edited = change_text(path, &text, |text| edit::edit_values(text, &old, &new), format_document(&new), is_right)?;
    if !document_edits::replace_file(app, path, &text, &edited.text).await? {
        return Err(what.conflict(path, document_edits::read_file(app, path).await?.as_deref(), &new));
    }
    let new = image_document(&wanted);
    wait_until_published(app, path, Some(&edited.text), |directory| is_in_effect(directory, &id, &new)).await?;
    app.watch.log_note(format!("{peer} updated image {id}: {path}", path = path.display()));
    let mut response = tagged_response(StatusCode::OK, &app.directory(), &base, &wanted);
    warn_removed_comments(app, path, &edited.removed_comments, &mut response);
    Ok(response)
}

/// `DELETE /v1/image/{id}`: deletes the image's description in `images/*.yaml`, but not the image itself.
pub(crate) async fn delete_image(Path(id): Path<String>, base: BaseUrls, permit: EditPermit) -> ApiResult {
    let EditPermit { app, peer, headers, directory, .. } = &permit;
    let what = EditedObject { kind: KIND, id: &id };
    let (path, before) = directory.images.get(&id).ok_or_else(|| what.not_found())?;
    let users = referencing_machines::machines_with_image(app, directory, &id).await?;
    if !users.is_empty() {
        return Err(ApiRefusal::unprocessable(format!("image {id} is in use by machines:[{}]", users.join(" "))));
    }
    let text = read_unchanged(app, what, path, before, headers, &Value::Null).await?;
    if !document_edits::remove_file(app, path, &text).await? {
        return Err(what.conflict(path, document_edits::read_file(app, path).await?.as_deref(), &Value::Null));
    }
    let is_gone = |directory: &SiteSnapshot| directory.images.values().all(|(file, _)| file != path);
    wait_until_published(app, path, None, is_gone).await?;
    app.watch.log_note(format!("{peer} deleted image {id}: {path}", path = path.display()));
    Ok(tagged_response(StatusCode::OK, directory, &base, before))
}

fn required_id(request_fields: &Map<String, Value>) -> ApiResult<&str> {
    let id = request_fields.get("id").and_then(Value::as_str).filter(|id| !id.is_empty());
    id.ok_or_else(|| ApiRefusal::bad_request("id should not be empty"))
}

/// Returns the fields of a request that are not null, without fields that occur only in responses.
fn given_fields(mut request_fields: Map<String, Value>, base: &BaseUrls) -> ApiResult<Map<String, Value>> {
    if let Some(other) = request_fields.get("expirationDate").filter(|date| !date.is_null() && !is_expiry(date)) {
        return Err(ApiRefusal::bad_request(format!(
            "expirationDate {other} is not supported: images do not expire, so only {EXPIRY} is accepted"
        )));
    }
    request_fields.retain(|name, value| !value.is_null() && !RESPONSE_ONLY_FIELDS.contains(&name.as_str()));
    if let Some(other) = request_fields.keys().find(|name| !FIELDS.contains(&name.as_str())) {
        let others = operator_files::suggest_name(other, FIELDS.into_iter());
        return Err(ApiRefusal::bad_request(format!("there is no field {other:?}{others}")));
    }
    // Responses contain the URL at which this server serves the file. The client may send this URL back.
    let served = request_fields.get("file").and_then(Value::as_str).map(|file| served_url(&base.calls, file));
    if served.is_some() && request_fields.get("url").and_then(Value::as_str) == served.as_deref() {
        request_fields.remove("url");
    }
    Ok(request_fields)
}

/// Returns whether a date in a request is the expiry date that responses contain. The date may have any spelling that
/// RFC 3339 permits.
fn is_expiry(date: &Value) -> bool {
    let parse = |text: &str| OffsetDateTime::parse(text, &Rfc3339).ok();
    date.as_str().and_then(parse).is_some_and(|date| Some(date) == parse(EXPIRY))
}

/// Returns whether the value means that a field is unset. metal-stack's clients send such values for unset fields.
pub(super) fn is_empty_value(value: &Value) -> bool {
    value.is_null() || value.as_str() == Some("") || value.as_array().is_some_and(Vec::is_empty)
}

/// Merges the specified fields into the old fields. A specified field with an empty value is removed.
fn merge_fields(old: &Value, request_fields: Map<String, Value>) -> Value {
    let mut new = old.as_object().cloned().unwrap_or_default();
    for (one, other) in [("url", "file"), ("file", "url")] {
        if request_fields.contains_key(one) && !request_fields.contains_key(other) {
            new.remove(other);
        }
    }
    new.extend(request_fields);
    new.retain(|_, value| !is_empty_value(value));
    Value::Object(new)
}

/// Returns the fields of an image's file, without registry credentials.
fn image_document(image: &ImageSpec) -> Value {
    let (url, file) = match &image.at {
        ImageLocation::Url(url) => (Some(url), None),
        ImageLocation::File(file) => (None, Some(file)),
    };
    let mut document = json!({"id": image.id, "name": image.name, "description": image.description, "url": url, "file": file,
        "mirrors": image.mirrors, "digest": image.digest, "finish": image.finish,
        "architecture": image.architecture});
    if let Some(fields) = document.as_object_mut() {
        fields.retain(|_, value| !is_empty_value(value));
    }
    document
}

fn format_document(document: &Value) -> String {
    edit::format_document(document, &FIELDS)
}

fn is_in_effect(directory: &SiteSnapshot, id: &str, says: &Value) -> bool {
    directory.images.get(id).is_some_and(|(_, image)| image_document(image) == *says)
}

fn version_tag(image: &ImageSpec) -> String {
    hex_digest(image_document(image).to_string().as_bytes())
}

/// Returns the text of the file. Fails if the file was edited and the edit is not in effect yet, or if the client's
/// `If-Match` differs from the version in effect.
async fn read_unchanged(
    app: &AppState,
    what: EditedObject<'_>,
    path: &File,
    before: &ImageSpec,
    headers: &HeaderMap,
    yours: &Value,
) -> ApiResult<String> {
    let text = document_edits::read_file(app, path).await?;
    let now = text.as_deref().map(operator_files::parse_image).transpose();
    let now = now.map_err(|problems| document_edits::invalid_file(path, &problems))?;
    match text {
        Some(text) if now.as_ref() == Some(before) && matches_version(headers, &version_tag(before)) => Ok(text),
        text => {
            // Registry credentials may contain a password, so the response omits the text of a file with credentials.
            let shown = text.as_deref().filter(|text| !text.contains("pull_secret"));
            Err(what.conflict(path, shown, yours))
        }
    }
}

/// Checks that the file of an image exists. In contrast, metal-api checks that the URL of the image is accessible.
async fn check_file_exists(app: &AppState, image: &ImageSpec) -> ApiResult<()> {
    let ImageLocation::File(file) = &image.at else { return Ok(()) };
    let path = app.images.join(file);
    let is_there = tokio::fs::metadata(&path).await.and_then(|metadata| match metadata.is_file() {
        true => Ok(()),
        false => Err(std::io::Error::other("not a regular file")),
    });
    is_there.map_err(|error| {
        ApiRefusal::bad_request(format!("image:{} is not accessible under:{} error:{error}", image.id, path.display()))
    })
}

fn served_url(base: &str, file: &str) -> String {
    format!("{base}/images/{}", percent_encode(file, "/"))
}

fn image_response(directory: &SiteSnapshot, base: &str, image: &ImageSpec) -> ImageResponse {
    let known = directory.known.images.get(&image.id).and_then(Option::as_ref);
    let states = &directory.known.states;
    let (url, file) = match &image.at {
        ImageLocation::Url(url) => (url.clone(), None),
        ImageLocation::File(file) => (served_url(base, file), Some(file.clone())),
    };
    ImageResponse {
        id: image.id.clone(),
        name: image.name.clone(),
        description: image.description.clone(),
        url,
        file,
        mirrors: image.mirrors.clone(),
        digest: known.and_then(|known| known.digest.clone()).or_else(|| image.digest.clone()),
        finish: image.finish,
        architecture: image.architecture.or_else(|| image.contents.as_ref()?.architecture),
        ready: known.is_some(),
        hidden: states.is_hidden(&image.id),
        blacklisted: states.is_blacklisted(&image.id),
        expiration_date: EXPIRY,
        usedby: None,
    }
}

fn tagged_response(status: StatusCode, directory: &SiteSnapshot, base: &BaseUrls, image: &ImageSpec) -> Response {
    add_version((status, Json(image_response(directory, &base.calls, image))).into_response(), &version_tag(image))
}
