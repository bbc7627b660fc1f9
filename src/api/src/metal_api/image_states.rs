//! Images that are hidden or blacklisted: `/v1/image-states`, and the requests that change these states.

use super::api_refusal::{ApiRefusal, ApiResult};
use super::document_edits::{self, EditedObject, change_text, wait_until_published};
use super::edit_permit::EditPermit;
use crate::AppState;
use crate::operator_api::OperatorAuth;
use axum::Json;
use axum::extract::{Path, State};
use axum::http::{Method, StatusCode};
use axum::response::IntoResponse;
use common::format::replace_hidden;
use common::yaml::edit;
use serde_json::{Value, json};
use site::image_states::{FILE, ImageStates};
use site::operator_files;
use std::sync::Arc;

const STATES: [&str; 2] = ["hidden", "blacklisted"];
const LONGEST_NAME: usize = 255;

/// `GET /v1/image-states`: returns the ids of all hidden and of all blacklisted images.
pub(crate) async fn get_states(State(app): State<Arc<AppState>>, _: OperatorAuth) -> Json<ImageStates> {
    Json(app.directory().known.states.clone())
}

/// `PUT` and `DELETE /v1/image/{id}/hidden` and `/blacklisted`: sets or clears a state. The image need not exist yet.
pub(crate) async fn set_image_state(
    method: Method,
    Path((id, state)): Path<(String, String)>,
    permit: EditPermit,
) -> ApiResult {
    let EditPermit { app, peer, directory, .. } = &permit;
    if id.is_empty() || id.len() > LONGEST_NAME || replace_hidden(&id) != id {
        return Err(ApiRefusal::bad_request(format!(
            "{image:?} is not a valid image name",
            image = replace_hidden(&id)
        )));
    }
    let before = directory.known.states.clone();
    let mut new = before.clone();
    let names = match state.as_str() {
        "hidden" => &mut new.hidden,
        "blacklisted" => &mut new.blacklisted,
        _ => return Err(ApiRefusal::new(StatusCode::NOT_FOUND, "no such endpoint")),
    };
    let is_set = method == Method::PUT;
    let _ = if is_set { names.insert(id.clone()) } else { names.remove(&id) };
    if new == before {
        return Ok(Json(new).into_response());
    }
    let path = app.dir.join(FILE);
    let now = write_states(app, &path, &id, &before, &new).await?;
    wait_until_published(app, &path, Some(&now), |directory| directory.known.states == new).await?;
    let word = if is_set { "is" } else { "is no longer" };
    app.watch.log_note(format!("image {id} {word} {state}, as requested by {peer}"));
    Ok(Json(new).into_response())
}

/// Replaces the states `before` in the file with `new`, and returns the new text of the file.
///
/// # Errors
/// Returns an error if the file does not contain `before`, or cannot be read or written.
async fn write_states(
    app: &AppState,
    path: &std::path::Path,
    id: &str,
    before: &ImageStates,
    new: &ImageStates,
) -> Result<String, ApiRefusal> {
    let what = EditedObject { kind: "image states", id };
    let present = document_edits::read_file(app, path).await?;
    let now = present.as_deref().map(ImageStates::parse).transpose();
    let now = now.map_err(|problems| document_edits::invalid_file(path, &problems))?;
    match present {
        None if *before == ImageStates::default() => {
            let text = edit::format_document(&json!(new), &STATES);
            document_edits::create_file(app, path, &text).await?;
            Ok(text)
        }
        Some(text) if now.as_ref() == Some(before) => {
            let says = |text: &str| ImageStates::parse(text).as_ref() == Ok(new);
            let old = parse_file(&text)?;
            let edited = change_text(
                path,
                &text,
                |text| edit::edit_values(text, &old, &preserve_order(&old, new)),
                edit::format_document(&json!(new), &STATES),
                says,
            )?;
            if !document_edits::replace_file(app, path, &text, &edited.text).await? {
                return Err(what.conflict(path, document_edits::read_file(app, path).await?.as_deref(), &json!(new)));
            }
            Ok(edited.text)
        }
        text => Err(what.conflict(path, text.as_deref(), &json!(new))),
    }
}

fn parse_file(text: &str) -> ApiResult<Value> {
    operator_files::parse_unvalidated(text).map_err(ApiRefusal::internal_error)
}

/// Returns the new states as JSON. Names that the old file contains keep their order; new names come after them.
fn preserve_order(old: &Value, new: &ImageStates) -> Value {
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
