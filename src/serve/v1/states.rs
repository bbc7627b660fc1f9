//! Hidden and blacklisted images: `/v1/image-states`, and the requests that change them.

use super::answer::{Answered, Refused};
use super::change::Turn;
use super::kept::{self, What, changed_text, published};
use crate::serve::App;
use crate::serve::input;
use crate::serve::operator::Operator;
use crate::serve::states::{FILE, States};
use crate::text::clean;
use crate::yaml::edit;
use axum::Json;
use axum::extract::{Path, State};
use axum::http::{Method, StatusCode};
use axum::response::IntoResponse;
use serde_json::{Value, json};
use std::sync::Arc;

const STATES: [&str; 2] = ["hidden", "blacklisted"];
const LONGEST_NAME: usize = 255;

/// `GET /v1/image-states`.
pub async fn states(State(app): State<Arc<App>>, _: Operator) -> Json<States> {
    Json(app.directory().known.states.clone())
}

/// `PUT` and `DELETE /v1/image/{id}/hidden` and `/blacklisted`. The image need not exist yet.
pub async fn set_state(method: Method, Path((id, state)): Path<(String, String)>, turn: Turn) -> Answered {
    let Turn { app, peer, directory, .. } = &turn;
    if id.is_empty() || id.len() > LONGEST_NAME || clean(&id) != id {
        return Err(Refused::bad(format!("{:?} is not a valid image name", clean(&id))));
    }
    let before = directory.known.states.clone();
    let mut new = before.clone();
    let names = match state.as_str() {
        "hidden" => &mut new.hidden,
        "blacklisted" => &mut new.blacklisted,
        _ => return Err(Refused::new(StatusCode::NOT_FOUND, "no such endpoint")),
    };
    let is_set = method == Method::PUT;
    let _ = if is_set { names.insert(id.clone()) } else { names.remove(&id) };
    if new == before {
        return Ok(Json(new).into_response());
    }
    let path = app.dir.join(FILE);
    let what = What { kind: "image states", id: &id };
    let now = match kept::read(&path).await? {
        None if before == States::default() => {
            let text = edit::written(&json!(new), &STATES);
            kept::make(&path, &text).await?;
            text
        }
        Some(text) if States::read(&text).as_ref() == Ok(&before) => {
            let says = |text: &str| States::read(text).as_ref() == Ok(&new);
            let old = as_written(&text)?;
            let edited = changed_text(
                &path,
                &text,
                |text| edit::edit(text, &old, &in_its_order(&old, &new)),
                edit::written(&json!(new), &STATES),
                says,
            )?;
            if !kept::put(&path, &text, &edited.text).await? {
                return Err(what.changed(&path, kept::read(&path).await?.as_deref(), &json!(new)));
            }
            edited.text
        }
        text => return Err(what.changed(&path, text.as_deref(), &json!(new))),
    };
    published(app, &path, Some(&now), |directory| directory.known.states == new).await?;
    let word = if is_set { "is" } else { "is no longer" };
    app.watch.note(format!("image {id} {word} {state}, as requested by {peer}"));
    Ok(Json(new).into_response())
}

fn as_written(text: &str) -> Answered<Value> {
    input::written(text).map_err(Refused::failed)
}

/// Returns the new states in the order of the old ones; new names come last.
fn in_its_order(old: &Value, new: &States) -> Value {
    let mut states = json!({});
    for (name, names) in [("hidden", &new.hidden), ("blacklisted", &new.blacklisted)] {
        let before: Vec<&str> = old[name].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
        let stays = before.iter().copied().filter(|one| names.contains(*one));
        let comes = names.iter().map(String::as_str).filter(|one| !before.contains(one));
        let all: Vec<&str> = stays.chain(comes).collect();
        if !all.is_empty() || old.get(name).is_some() {
            states[name] = json!(all);
        }
    }
    states
}
