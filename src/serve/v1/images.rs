//! `/v1/image`.

use super::answer::{Answered, Refused};
use super::change::{Change, Turn};
use super::kept::{self, What, changed_text, hex, knows, published, tagged, tell_gone};
use super::users;
use crate::allocation::Finish;
use crate::layout::ImageId;
use crate::serve::App;
use crate::serve::api::told::percent_encoded;
use crate::serve::base::Base;
use crate::serve::directory::Directory;
use crate::serve::input::{self, Image, Location};
use crate::serve::openapi::{Schemas, fields};
use crate::serve::operator::Operator;
use crate::yaml::edit;
use axum::Json;
use axum::extract::rejection::QueryRejection;
use axum::extract::{Path, Query, State};
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};
use std::path::Path as File;
use std::sync::Arc;

const KIND: &str = "image";
const IMAGE_BYTES: usize = 64 << 10;
/// Fields of a file that can be read and changed over the API, in their order. Registry credentials can only be changed in the file.
const FIELDS: [&str; 8] = ["id", "name", "description", "url", "file", "mirrors", "digest", "finish"];
/// Additional fields of responses, which are ignored in requests.
const ANSWERED: [&str; 5] = ["hidden", "blacklisted", "usedby", "ready", "changed"];

/// An image in a response.
#[derive(Serialize, JsonSchema)]
pub struct ImageShown {
    id: String,
    name: String,
    description: String,
    /// URL of the image; of a file, the URL at which this server serves it.
    url: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    file: Option<String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    mirrors: Vec<String>,
    /// Digest; of a file, only after it has been computed.
    #[serde(skip_serializing_if = "Option::is_none")]
    digest: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    finish: Option<Finish>,
    /// Whether its digest is known.
    ready: bool,
    hidden: bool,
    blacklisted: bool,
    /// Ids of machines that use the image, if requested.
    #[serde(skip_serializing_if = "Option::is_none")]
    usedby: Option<Vec<String>>,
}

/// Returns the schema of a request.
pub fn asked(schemas: &mut Schemas) -> Value {
    fields::<ImageShown>(schemas, &FIELDS)
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub struct Shown {
    /// Include hidden images.
    hidden: bool,
    blacklisted: bool,
    #[serde(rename = "show-usage")]
    show_usage: bool,
}

/// `GET /v1/image`, by id.
pub async fn list(
    State(app): State<Arc<App>>,
    base: Base,
    _: Operator,
    query: Result<Query<Shown>, QueryRejection>,
) -> Answered<Json<Vec<ImageShown>>> {
    let Query(asked) = query.map_err(|error| Refused::bad(error.to_string()))?;
    let directory = app.directory();
    let states = &directory.known.states;
    let mut all = Vec::new();
    for (id, (_, image)) in &directory.images {
        if (states.is_hidden(id) && !asked.hidden) || (states.is_blacklisted(id) && !asked.blacklisted) {
            continue;
        }
        let mut shown = shown(&directory, &base.calls, image);
        if asked.show_usage {
            shown.usedby = Some(users::of_image(&app, &directory, id).await?);
        }
        all.push(shown);
    }
    Ok(Json(all))
}

/// `GET /v1/image/{id}`.
pub async fn get(State(app): State<Arc<App>>, Path(id): Path<String>, base: Base, _: Operator) -> Answered {
    let directory = app.directory();
    let (_, image) = directory.images.get(&id).ok_or_else(|| Refused::unknown(KIND, &id))?;
    Ok(answer(StatusCode::OK, &directory, &base, image))
}

/// `PUT /v1/image`.
pub async fn create(base: Base, change: Change<Map<String, Value>, IMAGE_BYTES>) -> Answered {
    let Change { asked, turn: Turn { app, peer, directory, .. } } = &change;
    let id = id(asked)?.to_owned();
    ImageId::parse(&id).map_err(Refused::bad)?;
    let mut asked = given(asked.clone(), &base)?;
    if !asked.contains_key("url") && !asked.contains_key("file") {
        return Err(Refused::bad("url should not be empty"));
    }
    asked.retain(|_, value| !is_nothing(value));
    if directory.images.contains_key(&id) {
        return Err(Refused::taken(format!("cannot create image in database, entity already exists: {id}")));
    }
    let document = Value::Object(asked);
    let text = text_of(&document);
    let new = input::image(&text).map_err(Refused::bad)?;
    must_be_there(app, &new).await?;
    if self::document(&new) != document {
        return Err(Refused::bad("the document cannot be represented in YAML without loss"));
    }
    let path = kept::path(&app.images, &id);
    kept::make(&path, &text).await?;
    published(app, &path, Some(&text), |directory| in_force(directory, &id, &document)).await?;
    app.watch.note(format!("{peer} created image {id}: {}", path.display()));
    Ok(answer(StatusCode::CREATED, &app.directory(), &base, &new))
}

/// `POST /v1/image`: changes the given fields.
pub async fn update(base: Base, change: Change<Map<String, Value>, IMAGE_BYTES>) -> Answered {
    let Change { asked, turn: Turn { app, peer, headers, directory, .. } } = &change;
    let id = id(asked)?.to_owned();
    let mut asked = given(asked.clone(), &base)?;
    let what = What { kind: KIND, id: &id };
    let (path, before) = directory.images.get(&id).ok_or_else(|| what.unknown())?;
    let old = document(before);
    // A computed digest may be sent back as received. If it were written to the file, it would no longer be computed.
    let computed = directory.known.images.get(&id).and_then(Option::as_ref).and_then(|image| image.digest.as_deref());
    if before.digest.is_none() && asked.get("digest").and_then(Value::as_str) == computed {
        asked.remove("digest");
    }
    let new = with(&old, asked);
    let wanted = input::image(&text_of(&new)).map_err(Refused::bad)?;
    must_be_there(app, &wanted).await?;
    let text = unchanged(what, path, before, headers, &new).await?;
    if new == old {
        return Ok(answer(StatusCode::OK, directory, &base, before));
    }
    // Registry credentials must remain unchanged.
    let is_right = |text: &str| {
        input::image(text)
            .is_ok_and(|read| document(&read) == document(&wanted) && read.pull_secrets == before.pull_secrets)
    };
    let edited = changed_text(path, &text, |text| edit::edit(text, &old, &new), text_of(&new), is_right)?;
    if !kept::put(path, &text, &edited.text).await? {
        return Err(what.changed(path, kept::read(path).await?.as_deref(), &new));
    }
    let new = document(&wanted);
    published(app, path, Some(&edited.text), |directory| in_force(directory, &id, &new)).await?;
    app.watch.note(format!("{peer} updated image {id}: {}", path.display()));
    let mut response = answer(StatusCode::OK, &app.directory(), &base, &wanted);
    tell_gone(app, path, &edited.gone, &mut response);
    Ok(response)
}

/// `DELETE /v1/image/{id}`. The image file itself is preserved.
pub async fn delete(Path(id): Path<String>, base: Base, turn: Turn) -> Answered {
    let Turn { app, peer, headers, directory, .. } = &turn;
    let what = What { kind: KIND, id: &id };
    let (path, before) = directory.images.get(&id).ok_or_else(|| what.unknown())?;
    let users = users::of_image(app, directory, &id).await?;
    if !users.is_empty() {
        return Err(Refused::unprocessable(format!("image {id} is in use by machines:[{}]", users.join(" "))));
    }
    let text = unchanged(what, path, before, headers, &Value::Null).await?;
    if !kept::remove(path, &text).await? {
        return Err(what.changed(path, kept::read(path).await?.as_deref(), &Value::Null));
    }
    let is_gone = |directory: &Directory| directory.images.values().all(|(file, _)| file != path);
    published(app, path, None, is_gone).await?;
    app.watch.note(format!("{peer} deleted image {id}: {}", path.display()));
    Ok(answer(StatusCode::OK, directory, &base, before))
}

fn id(asked: &Map<String, Value>) -> Answered<&str> {
    let id = asked.get("id").and_then(Value::as_str).filter(|id| !id.is_empty());
    id.ok_or_else(|| Refused::bad("id should not be empty"))
}

/// Returns the fields of a request that have a value.
fn given(mut asked: Map<String, Value>, base: &Base) -> Answered<Map<String, Value>> {
    asked.retain(|name, value| !value.is_null() && !ANSWERED.contains(&name.as_str()));
    if let Some(other) = asked.keys().find(|name| !FIELDS.contains(&name.as_str())) {
        let others = input::nearest(other, FIELDS.into_iter());
        return Err(Refused::bad(format!("there is no field {other:?}{others}")));
    }
    // Responses contain the URL at which this server serves the file, which may be sent back as received.
    let served = asked.get("file").and_then(Value::as_str).map(|file| served(&base.calls, file));
    if served.is_some() && asked.get("url").and_then(Value::as_str) == served.as_deref() {
        asked.remove("url");
    }
    Ok(asked)
}

fn is_nothing(value: &Value) -> bool {
    value.is_null() || value.as_str() == Some("") || value.as_array().is_some_and(Vec::is_empty)
}

/// Merges the given fields into the old ones. Fields that are given empty are removed.
fn with(old: &Value, asked: Map<String, Value>) -> Value {
    let mut new = old.as_object().cloned().unwrap_or_default();
    for (one, other) in [("url", "file"), ("file", "url")] {
        if asked.contains_key(one) && !asked.contains_key(other) {
            new.remove(other);
        }
    }
    new.extend(asked);
    new.retain(|_, value| !is_nothing(value));
    Value::Object(new)
}

/// Returns the fields of an image's file, without registry credentials.
fn document(image: &Image) -> Value {
    let (url, file) = match &image.at {
        Location::Url(url) => (Some(url), None),
        Location::File(file) => (None, Some(file)),
    };
    let mut document = json!({"id": image.id, "name": image.name, "description": image.description, "url": url, "file": file,
        "mirrors": image.mirrors, "digest": image.digest, "finish": image.finish});
    if let Some(fields) = document.as_object_mut() {
        fields.retain(|_, value| !is_nothing(value));
    }
    document
}

fn text_of(document: &Value) -> String {
    edit::written(document, &FIELDS)
}

fn in_force(directory: &Directory, id: &str, says: &Value) -> bool {
    directory.images.get(id).is_some_and(|(_, image)| document(image) == *says)
}

fn tag(image: &Image) -> String {
    hex(document(image).to_string().as_bytes())
}

/// Returns the text of an image's file, if it is the version in effect and the client's `If-Match` matches.
async fn unchanged(
    what: What<'_>,
    path: &File,
    before: &Image,
    headers: &HeaderMap,
    yours: &Value,
) -> Answered<String> {
    let text = kept::read(path).await?;
    let is_same = |text: &String| input::image(text).is_ok_and(|now| now == *before);
    match text {
        Some(text) if is_same(&text) && knows(headers, &tag(before)) => Ok(text),
        text => {
            // The file may contain a password.
            let shown = text.as_deref().filter(|text| !text.contains("pull_secret"));
            Err(what.changed(path, shown, yours))
        }
    }
}

/// Checks that the image's file exists. metal-api checks the URL instead.
async fn must_be_there(app: &App, image: &Image) -> Answered<()> {
    let Location::File(file) = &image.at else { return Ok(()) };
    let path = app.images.join(file);
    let is_there = tokio::fs::metadata(&path).await.and_then(|is| match is.is_file() {
        true => Ok(()),
        false => Err(std::io::Error::other("not a regular file")),
    });
    is_there.map_err(|error| {
        Refused::bad(format!("image:{} is not accessible under:{} error:{error}", image.id, path.display()))
    })
}

fn served(base: &str, file: &str) -> String {
    format!("{base}/images/{}", percent_encoded(file))
}

fn shown(directory: &Directory, base: &str, image: &Image) -> ImageShown {
    let known = directory.known.images.get(&image.id).and_then(Option::as_ref);
    let states = &directory.known.states;
    let (url, file) = match &image.at {
        Location::Url(url) => (url.clone(), None),
        Location::File(file) => (served(base, file), Some(file.clone())),
    };
    ImageShown {
        id: image.id.clone(),
        name: image.name.clone(),
        description: image.description.clone(),
        url,
        file,
        mirrors: image.mirrors.clone(),
        digest: known.and_then(|known| known.digest.clone()).or_else(|| image.digest.clone()),
        finish: image.finish,
        ready: known.is_some(),
        hidden: states.is_hidden(&image.id),
        blacklisted: states.is_blacklisted(&image.id),
        usedby: None,
    }
}

fn answer(status: StatusCode, directory: &Directory, base: &Base, image: &Image) -> Response {
    tagged((status, Json(shown(directory, &base.calls, image))).into_response(), &tag(image))
}
