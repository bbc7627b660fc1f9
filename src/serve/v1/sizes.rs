//! `/v1/size`: sizes of machines, defined by constraints on their hardware. They are stored in the folder that `machine add` selects from.

use super::answer::{Answered, Refused};
use super::change::{Change, Turn};
use super::kept::{self, What, changed_text, hex, knows, published, tagged, tell_gone};
use crate::control::wire::Register;
use crate::serve::App;
use crate::serve::api::bodies::read;
use crate::serve::directory::Directory;
use crate::serve::input;
use crate::serve::openapi::{Schemas, fields};
use crate::serve::operator::Operator;
use crate::serve::peers::Peer;
use crate::serve::sizes::{Constraint, FOLDER, Kind, Size};
use crate::yaml::edit;
use axum::Json;
use axum::body::Body;
use axum::extract::{Path, State};
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};
use std::collections::BTreeMap;
use std::path::Path as File;
use std::sync::Arc;

const KIND: &str = "size";
const SIZE_BYTES: usize = 64 << 10;
const FIELDS: [&str; 4] = ["id", "name", "description", "constraints"];
/// Additional fields of responses, which are ignored in requests.
const ANSWERED: [&str; 4] = ["labels", "reservations", "created", "changed"];
const UNKNOWN: &str = "unknown";

/// A size in a response.
#[derive(Serialize, JsonSchema)]
pub struct SizeShown {
    id: String,
    name: String,
    description: String,
    constraints: Vec<Constraint>,
    /// Always empty.
    labels: BTreeMap<String, String>,
}

/// Returns the schema of a request.
pub fn asked(schemas: &mut Schemas) -> Value {
    fields::<SizeShown>(schemas, &FIELDS)
}

/// `GET /v1/size`, by id.
pub async fn list(State(app): State<Arc<App>>, _: Operator) -> Json<Vec<SizeShown>> {
    Json(app.directory().known.sizes.values().map(shown).collect())
}

/// `GET /v1/size/{id}`.
pub async fn get(State(app): State<Arc<App>>, Path(id): Path<String>, _: Operator) -> Answered {
    let directory = app.directory();
    let size = directory.known.sizes.get(&id).ok_or_else(|| Refused::unknown(KIND, &id))?;
    Ok(answer(StatusCode::OK, size))
}

/// `PUT /v1/size`.
pub async fn create(Change { asked, turn }: Change<Map<String, Value>, SIZE_BYTES>) -> Answered {
    let (asked, Turn { app, peer, directory, .. }) = (given(asked)?, &turn);
    let size = good(Value::Object(asked), &directory.known.sizes)?;
    let id = &size.id;
    if directory.known.sizes.contains_key(id) {
        return Err(Refused::taken(format!("cannot create size in database, entity already exists: {id}")));
    }
    let (path, text) = (kept::path(&app.dir.join(FOLDER), id), edit::written(&json!(size), &FIELDS));
    if Size::read(&text).as_ref() != Ok(&size) {
        return Err(Refused::bad("the document cannot be represented in YAML without loss"));
    }
    kept::make(&path, &text).await?;
    published(app, &path, Some(&text), |directory| directory.known.sizes.get(id) == Some(&size)).await?;
    app.watch.note(format!("{peer} created size {id}: {}", path.display()));
    Ok(answer(StatusCode::CREATED, &size))
}

/// `POST /v1/size`: changes the given fields.
pub async fn update(Change { asked, turn }: Change<Map<String, Value>, SIZE_BYTES>) -> Answered {
    let (asked, Turn { app, peer, headers, directory, .. }) = (given(asked)?, &turn);
    let id = asked.get("id").and_then(Value::as_str).unwrap_or_default().to_owned();
    let what = What { kind: KIND, id: &id };
    let old = directory.known.sizes.get(&id).ok_or_else(|| what.unknown())?;
    let mut new = json!(old);
    new.as_object_mut().into_iter().for_each(|fields| fields.extend(asked.clone()));
    let new = good(new, &directory.known.sizes)?;
    let (path, text) = unchanged(directory, what, old, headers, &json!(new)).await?;
    if new == *old {
        return Ok(answer(StatusCode::OK, old));
    }
    let edited = changed_text(
        path,
        &text,
        |text| edit::edit(text, &json!(old), &json!(new)),
        edit::written(&json!(new), &FIELDS),
        |text| Size::read(text).as_ref() == Ok(&new),
    )?;
    if !kept::put(path, &text, &edited.text).await? {
        return Err(what.changed(path, kept::read(path).await?.as_deref(), &json!(new)));
    }
    published(app, path, Some(&edited.text), |directory| directory.known.sizes.get(&id) == Some(&new)).await?;
    app.watch.note(format!("{peer} updated size {id}: {}", path.display()));
    let mut response = answer(StatusCode::OK, &new);
    tell_gone(app, path, &edited.gone, &mut response);
    Ok(response)
}

/// `DELETE /v1/size/{id}`. Machine files that name it remain unchanged.
pub async fn delete(Path(id): Path<String>, turn: Turn) -> Answered {
    let Turn { app, peer, headers, directory, .. } = &turn;
    let what = What { kind: KIND, id: &id };
    let size = directory.known.sizes.get(&id).ok_or_else(|| what.unknown())?;
    let (path, text) = unchanged(directory, what, size, headers, &Value::Null).await?;
    if !kept::remove(path, &text).await? {
        return Err(what.changed(path, kept::read(path).await?.as_deref(), &Value::Null));
    }
    let is_gone = |directory: &Directory| directory.size_files.values().all(|file| file != path);
    published(app, path, None, is_gone).await?;
    app.watch.note(format!("{peer} deleted size {id}: {}", path.display()));
    Ok(answer(StatusCode::OK, size))
}

/// Returns the file of a size, if it is the version in effect and the client's `If-Match` matches.
async fn unchanged<'a>(
    directory: &'a Directory,
    what: What<'_>,
    before: &Size,
    headers: &HeaderMap,
    yours: &Value,
) -> Answered<(&'a File, String)> {
    let path = directory.size_files.get(what.id).ok_or_else(|| what.unknown())?;
    match kept::read(path).await? {
        Some(text) if Size::read(&text).as_ref() == Ok(before) && knows(headers, &tag(before)) => Ok((path, text)),
        text => Err(what.changed(path, text.as_deref(), yours)),
    }
}

#[derive(Deserialize, JsonSchema)]
pub struct Suggest {
    #[serde(default, rename = "machineID")]
    machine: String,
}

/// `POST /v1/size/suggest`: returns constraints that match only this machine.
pub async fn ask(
    State(app): State<Arc<App>>,
    Path(question): Path<String>,
    _: Operator,
    peer: Peer,
    body: Body,
) -> Answered<Json<Value>> {
    if question != "suggest" {
        return Err(Refused::new(StatusCode::METHOD_NOT_ALLOWED, "method not allowed for this endpoint"));
    }
    let asked: Suggest = read(&app, peer, body, SIZE_BYTES).await?;
    if asked.machine.is_empty() {
        return Err(Refused::bad("machineID must be given"));
    }
    let machine = asked.machine.to_lowercase();
    let registered = app.state.registered(&machine).await?.ok_or_else(|| Refused::unknown("machine", &machine))?;
    let register: Register =
        serde_json::from_str(&registered.document).map_err(|error| Refused::failed(error.to_string()))?;
    let exactly = |kind: Kind| {
        let has = kind.of(&register.hardware);
        Constraint { kind, min: has, max: has }
    };
    Ok(Json(json!(Kind::ALL.map(exactly))))
}

/// Returns the fields of a request that have a value.
fn given(mut asked: Map<String, Value>) -> Answered<Map<String, Value>> {
    let says = |value: &Value| !value.is_null() && value.as_object().is_none_or(|fields| !fields.is_empty());
    asked.retain(|_, value| says(value) && value.as_array().is_none_or(|items| !items.is_empty()));
    asked.retain(|name, _| !["created", "changed"].contains(&name.as_str()));
    match asked.keys().find(|name| !FIELDS.contains(&name.as_str())) {
        Some(kept) if ANSWERED.contains(&kept.as_str()) => {
            Err(Refused::bad(format!("{kept} of a size are not supported")))
        }
        Some(other) => {
            Err(Refused::bad(format!("there is no field {other:?}{}", input::nearest(other, FIELDS.into_iter()))))
        }
        None => Ok(asked),
    }
}

/// Validates a size with the rules and messages of metal-api.
fn good(mut asked: Value, all: &BTreeMap<String, Size>) -> Answered<Size> {
    let id = asked["id"].as_str().unwrap_or_default().to_owned();
    if id.is_empty() {
        return Err(Refused::bad("id should not be empty"));
    }
    if id == UNKNOWN {
        return Err(Refused::bad(format!("id cannot be {UNKNOWN:?}")));
    }
    for constraint in asked.get_mut("constraints").and_then(Value::as_array_mut).into_iter().flatten() {
        if let Some(fields) = constraint.as_object_mut() {
            fields.retain(|name, value| name != "identifier" || value.as_str() != Some(""));
        }
    }
    let size: Size = serde_json::from_value(asked).map_err(|error| Refused::bad(error.to_string()))?;
    let mut wrong = Vec::new();
    for (index, one) in size.constraints.iter().enumerate() {
        let earlier = size.constraints[..index].iter().any(|earlier| earlier.kind == one.kind);
        if one.max < one.min {
            wrong.push(format!("constraint at index {index} is invalid: max is smaller than min"));
        }
        if earlier && one.kind != Kind::Storage {
            let why = format!("type duplicates are not allowed for type {:?}", one.kind.name());
            wrong.push(format!("constraint at index {index} is invalid: {why}"));
        }
    }
    if size.constraints.is_empty() {
        wrong.push("without constraints it would match every machine".to_owned());
    }
    if !wrong.is_empty() {
        return Err(Refused::unprocessable(format!("size {id:?} is invalid: {}", wrong.join("\n"))));
    }
    match all.values().find(|other| other.id != id && overlap(other, &size)) {
        Some(other) => Err(Refused::bad(format!("size {id:?} overlaps with {:?}", other.id))),
        None => Ok(size),
    }
}

/// Returns whether a machine can match both sizes. Like metal-api, only compares sizes with constraints of the same types.
fn overlap(one: &Size, other: &Size) -> bool {
    let kinds = |size: &Size| size.constraints.iter().map(|one| one.kind).collect::<std::collections::BTreeSet<_>>();
    let apart =
        |one: &Constraint, other: &Constraint| one.kind == other.kind && (one.min > other.max || one.max < other.min);
    kinds(one) == kinds(other)
        && !one.constraints.iter().any(|one| other.constraints.iter().any(|other| apart(one, other)))
}

fn tag(size: &Size) -> String {
    hex(json!(size).to_string().as_bytes())
}

fn shown(size: &Size) -> SizeShown {
    let Size { id, name, description, constraints } = size.clone();
    SizeShown { id, name, description, constraints, labels: BTreeMap::new() }
}

fn answer(status: StatusCode, size: &Size) -> Response {
    tagged((status, Json(shown(size))).into_response(), &tag(size))
}
