//! `/v1/filesystemlayout`.

use super::answer::{Answered, Refused};
use super::change::{Change, Turn};
use super::kept::{self, What, changed_text, knows, published, tagged, tell_gone};
use super::users;
use crate::layout::set::Set;
use crate::layout::{self, Layout, Parsed};
use crate::problem::Problem;
use crate::serve::App;
use crate::serve::api::bodies::read;
use crate::serve::directory::Directory;
use crate::serve::openapi::Schemas;
use crate::serve::operator::Operator;
use crate::serve::peers::Peer;
use crate::topology::find;
use crate::yaml::edit::{self, Edited};
use axum::Json;
use axum::body::Body;
use axum::extract::{Path, State};
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Value, json};
use std::path::Path as File;
use std::sync::Arc;

const KIND: &str = "filesystemlayout";
/// Maximum size of a layout, that of the file's reader.
const LAYOUT_BYTES: usize = 128 << 10;
const ASKED_BYTES: usize = 4 << 10;

/// Returns the schema of a request, which may use any supported spelling.
pub fn asked(_: &mut Schemas) -> Value {
    let what = "A layout in any supported spelling; `drophammer schema layout` prints its schema.";
    json!({"type": "object", "required": ["id"], "properties": {"id": {"type": "string"}}, "description": what})
}

/// `GET /v1/filesystemlayout`, by id.
pub async fn list(State(app): State<Arc<App>>, _: Operator) -> Json<Vec<Value>> {
    Json(app.directory().known.layouts.values().map(shown).collect())
}

/// `GET /v1/filesystemlayout/{id}`.
pub async fn get(State(app): State<Arc<App>>, Path(id): Path<String>, _: Operator) -> Answered {
    let directory = app.directory();
    let layout = directory.known.layouts.get(&id).ok_or_else(|| Refused::unknown(KIND, &id))?;
    Ok(answer(StatusCode::OK, layout))
}

/// `PUT /v1/filesystemlayout`.
pub async fn create(change: Change<Value, LAYOUT_BYTES>) -> Answered {
    let Change { asked: document, turn: Turn { app, peer, directory, .. } } = &change;
    let id = id(document)?;
    if directory.known.layouts.contains_key(id) {
        return Err(Refused::taken(format!("{KIND}:{id} already exists")));
    }
    let new = good(app, document)?;
    let (path, text) = (kept::path(&app.layouts, id), layout::canonical_yaml(&new));
    if !says(&text, &new) {
        return Err(Refused::bad("the document cannot be represented in YAML without loss"));
    }
    kept::make(&path, &text).await?;
    published(app, &path, Some(&text), |directory| directory.known.layouts.get(id) == Some(&new)).await?;
    app.watch.note(format!("{peer} created layout {id}: {}", path.display()));
    Ok(answer(StatusCode::CREATED, &new))
}

/// `POST /v1/filesystemlayout`.
pub async fn update(change: Change<Value, LAYOUT_BYTES>) -> Answered {
    let Change { asked: document, turn: Turn { app, peer, headers, directory, .. } } = &change;
    let id = id(document)?;
    let what = What { kind: KIND, id };
    let before = directory.known.layouts.get(id).ok_or_else(|| what.unknown())?;
    let new = good(app, document)?;
    let (path, text, parsed) = unchanged(directory, what, before, headers, &shown(&new)).await?;
    if new == *before {
        return Ok(answer(StatusCode::OK, &new));
    }
    let edited = changed_text(
        path,
        &text,
        |text| edited(text, &parsed, &new),
        layout::canonical_yaml(&new),
        |text| says(text, &new),
    )?;
    if !kept::put(path, &text, &edited.text).await? {
        return Err(what.changed(path, kept::read(path).await?.as_deref(), &shown(&new)));
    }
    published(app, path, Some(&edited.text), |directory| directory.known.layouts.get(id) == Some(&new)).await?;
    app.watch.note(format!("{peer} updated layout {id}: {}", path.display()));
    let mut response = answer(StatusCode::OK, &new);
    tell_gone(app, path, &edited.gone, &mut response);
    Ok(response)
}

/// `DELETE /v1/filesystemlayout/{id}`.
pub async fn delete(Path(id): Path<String>, turn: Turn) -> Answered {
    let Turn { app, peer, headers, directory, .. } = &turn;
    let what = What { kind: KIND, id: &id };
    let before = directory.known.layouts.get(&id).ok_or_else(|| what.unknown())?;
    let users = users::of_layout(app, directory, &id).await?;
    if !users.is_empty() {
        return Err(Refused::unprocessable(format!("{KIND} {id} is in use by machines:[{}]", users.join(" "))));
    }
    let (path, text, _) = unchanged(directory, what, before, headers, &Value::Null).await?;
    if !kept::remove(path, &text).await? {
        return Err(what.changed(path, kept::read(path).await?.as_deref(), &Value::Null));
    }
    let is_gone = |directory: &Directory| directory.layout_files.values().all(|file| file != path);
    published(app, path, None, is_gone).await?;
    app.watch.note(format!("{peer} deleted layout {id}: {}", path.display()));
    Ok(answer(StatusCode::OK, before))
}

#[derive(Deserialize, JsonSchema)]
pub struct Try {
    #[serde(default)]
    size: String,
    #[serde(default)]
    image: String,
}

#[derive(Deserialize, JsonSchema)]
pub struct Match {
    #[serde(default)]
    machine: String,
    #[serde(default)]
    filesystemlayout: String,
}

/// `POST /v1/filesystemlayout/try` and `/matches`: returns the layout for a size and an image, and checks whether a layout fits a machine.
pub async fn ask(
    State(app): State<Arc<App>>,
    Path(question): Path<String>,
    _: Operator,
    peer: Peer,
    body: Body,
) -> Answered {
    match question.as_str() {
        "try" => choose(&app, &read(&app, peer, body, ASKED_BYTES).await?),
        "matches" => matches(&app, &read(&app, peer, body, ASKED_BYTES).await?).await,
        _ => Err(Refused::new(StatusCode::METHOD_NOT_ALLOWED, "method not allowed for this endpoint")),
    }
}

fn choose(app: &App, asked: &Try) -> Answered {
    let directory = app.directory();
    let known = &directory.known;
    let chosen = known.set.select(&asked.size, &asked.image).map_err(|why| {
        let nearest = why.nearest.iter().map(|line| Problem::new("", line)).collect();
        Refused::unprocessable(why.message).beside(nearest)
    })?;
    let layout = known.layouts.get(&chosen.id).ok_or_else(|| Refused::unknown(KIND, &chosen.id))?;
    Ok(answer(StatusCode::OK, layout))
}

async fn matches(app: &App, asked: &Match) -> Answered {
    let directory = app.directory();
    let id = &asked.filesystemlayout;
    let layout = directory.known.layouts.get(id).ok_or_else(|| Refused::unknown(KIND, id))?;
    let machine = asked.machine.to_lowercase();
    let unknown = || match directory.machine(&machine) {
        Some(_) => Refused::unprocessable(format!("machine {machine} has not registered: its disks are unknown")),
        None => Refused::unknown("machine", &machine),
    };
    let inventory = app.inventory(&machine).await?.ok_or_else(unknown)?;
    let mut problems = Vec::new();
    for (index, listed) in layout.disks.iter().enumerate() {
        let place = format!("disks[{index}]");
        match find::disk(listed, &inventory) {
            Err(why) => problems.push(Problem::new(place, why)),
            Ok(disk) => {
                let required: u64 = listed.partitions.iter().filter_map(|partition| partition.size.mib()).sum();
                let existing = disk.size_bytes >> 20;
                if required > existing {
                    let device = &listed.device;
                    let why =
                        format!("device:{device} is not big enough required:{required}MiB, existing:{existing}MiB");
                    problems.push(Problem::new(place, why));
                }
            }
        }
    }
    match problems.is_empty() {
        true => Ok(answer(StatusCode::OK, layout)),
        false => Err(Refused::wrong(StatusCode::UNPROCESSABLE_ENTITY, problems)),
    }
}

fn answer(status: StatusCode, layout: &Layout) -> Response {
    tagged((status, Json(shown(layout))).into_response(), &tag(layout))
}

/// Returns the version, which ignores comments and spelling.
fn tag(layout: &Layout) -> String {
    layout::digest(layout)
}

/// Returns a layout in metal-api's format: absent values are null, and display texts are empty.
fn shown(layout: &Layout) -> Value {
    let mut document = json!(layout);
    let fill = |value: &mut Value, names: &[&str], with: Value| {
        for name in names {
            if value.get(*name).is_none() {
                value[*name] = with.clone();
            }
        }
    };
    fill(&mut document, &["name", "description"], json!(""));
    for filesystem in document["filesystems"].as_array_mut().into_iter().flatten() {
        fill(filesystem, &["path", "label"], Value::Null);
    }
    for disk in document["disks"].as_array_mut().into_iter().flatten() {
        for partition in disk["partitions"].as_array_mut().into_iter().flatten() {
            fill(partition, &["label", "gpttype"], Value::Null);
        }
    }
    document
}

fn id(document: &Value) -> Answered<&str> {
    let id = document.get("id").and_then(Value::as_str).filter(|id| !id.is_empty());
    id.ok_or_else(|| Refused::bad("id should not be empty"))
}

/// Returns the layout of a request, if it is valid and does not collide with another one.
fn good(app: &App, document: &Value) -> Answered<Layout> {
    let layout = layout::read_json(document).map_err(refused)?.layout;
    let directory = app.directory();
    let others = directory.known.layouts.values().filter(|other| other.id != layout.id);
    let own = kept::path(&app.layouts, &layout.id);
    let file = |id: &str| directory.layout_files.get(id).unwrap_or(&own).as_path();
    let set = Set::new(others.chain([&layout]).map(|layout| (file(&layout.id), layout)));
    let own = set.collisions().into_iter().filter(|collision| collision.second.id == layout.id);
    let problems: Vec<Problem> = own.map(|collision| Problem::new("constraints", collision.to_string())).collect();
    match problems.is_empty() {
        true => Ok(layout),
        false => Err(Refused::wrong(StatusCode::BAD_REQUEST, problems)),
    }
}

/// Returns an error with metal-api's status, which differs for unsupported values and for other problems.
fn refused(problems: Vec<Problem>) -> Refused {
    let is_word =
        |problem: &Problem| problem.message.starts_with("given ") && problem.message.contains("is not supported, but:");
    match problems.iter().any(is_word) {
        true => Refused::wrong(StatusCode::UNPROCESSABLE_ENTITY, problems),
        false => Refused::wrong(StatusCode::BAD_REQUEST, problems),
    }
}

/// Returns the file of a layout, if it is the version in effect and the client's `If-Match` matches.
async fn unchanged<'a>(
    directory: &'a Directory,
    what: What<'_>,
    before: &Layout,
    headers: &HeaderMap,
    yours: &Value,
) -> Answered<(&'a File, String, Parsed)> {
    let path = directory.layout_files.get(what.id).ok_or_else(|| what.unknown())?;
    let text = kept::read(path).await?;
    let parsed = text.as_deref().and_then(|text| layout::read_yaml(text).ok());
    match (text, parsed) {
        (Some(text), Some(parsed)) if parsed.layout == *before && knows(headers, &tag(before)) => {
            Ok((path, text, parsed))
        }
        (text, _) => Err(what.changed(path, text.as_deref(), yours)),
    }
}

fn edited(text: &str, parsed: &Parsed, new: &Layout) -> Option<Edited> {
    let canonical = match parsed.is_canonical() {
        true => text.to_owned(),
        false => layout::respelt(text, &[parsed])?,
    };
    edit::edit(&canonical, &json!(parsed.layout), &json!(new))
}

fn says(text: &str, layout: &Layout) -> bool {
    layout::read_yaml(text).is_ok_and(|parsed| parsed.layout == *layout)
}
