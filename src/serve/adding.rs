//! A machine that has registered becomes a file in `machines/`.

use super::App;
use super::api::bodies::{EVENT_BYTES, read};
use super::api_error::ApiError;
use super::directory::Directory;
use super::operator::Operator;
use super::peers::Peer;
use super::{input, ipxe, sizes};
use crate::control::wire::{Hardware, Register};
use axum::Json;
use axum::body::Body;
use axum::extract::{Path, State};
use axum::http::StatusCode;
use serde::{Deserialize, Serialize};
use serde_json::json;
use std::fs::{self, File, OpenOptions};
use std::io::{ErrorKind, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path as FilePath;
use std::sync::Arc;

/// What a person says of it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct Add {
    pub name: String,
    /// The one that takes it, when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub size: Option<String>,
}

/// What it has become.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct Added {
    pub id: String,
    pub name: String,
    pub size: Option<String>,
    pub macs: Vec<String>,
    /// Below the server's directory.
    pub file: String,
}

/// `POST /v1/machine/{id}/file`.
pub async fn add(
    State(app): State<Arc<App>>,
    Path(id): Path<String>,
    _: Operator,
    peer: Peer,
    body: Body,
) -> Result<Json<Added>, ApiError> {
    let asked: Add = read(&app, peer, body, EVENT_BYTES).await?;
    let made_up =
        || ApiError::bad(format!("{id} is what firmware without a UUID says: write the file by hand, with its macs"));
    let id = ipxe::uuid(&id).map_err(ApiError::bad)?.ok_or_else(made_up)?;
    let row = app.state.registered(&id).await?;
    let unknown = || {
        ApiError::not_found(format!(
            "no machine {id} has registered: boot it over PXE once, which installs nothing before it has an allocation"
        ))
    };
    let row = row.ok_or_else(unknown)?;
    let register: Register = serde_json::from_str(&row.document)
        .map_err(|error| conflict(format!("what machine {id} has registered is not understood: {error}")))?;
    let added = described(&app.directory(), id, &asked, &register.hardware).map_err(conflict)?;
    let text = text(&added);
    // The reader's word counts, as for every file.
    input::machine(&text).map_err(|why| conflict(format!("the file would not be good: {why}")))?;
    put(&app.machines, &format!("{}.yaml", added.name), &text).map_err(|error| match error.kind() {
        ErrorKind::AlreadyExists => conflict(format!("{} is there already: choose another name", added.file)),
        _ => ApiError::new(StatusCode::INTERNAL_SERVER_ERROR, format!("write {}: {error}", added.file)),
    })?;
    app.watch.note(format!("{} is machine {} now, by the word of {peer}", added.file, added.id));
    app.state_has_changed();
    Ok(Json(added))
}

fn conflict(why: String) -> ApiError {
    ApiError::new(StatusCode::CONFLICT, why)
}

/// The machine, when it and its name are new.
fn described(directory: &Directory, id: String, asked: &Add, hardware: &Hardware) -> Result<Added, String> {
    let name = asked.name.trim();
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"._-".contains(&byte);
    if name.is_empty() || name.len() > 200 || name.starts_with('.') || !name.bytes().all(plain) {
        return Err(format!("{name:?} cannot be the name of a machine's file: letters, digits, dots, _ and - can"));
    }
    if let Some(known) = directory.machine(&id) {
        return Err(format!("machine {id} has a file already, and is called {:?}", known.name));
    }
    if let Some(other) = directory.machines().find(|machine| machine.name == name) {
        return Err(format!("machine {} is called {name:?} already", other.id));
    }
    let size = sizes::choose(&directory.known.sizes, hardware, asked.size.as_deref())?;
    let macs: Vec<String> = hardware.nics.iter().filter_map(|nic| ipxe::mac(&nic.mac).ok()).collect();
    if let Some((mac, other)) = macs.iter().find_map(|mac| Some((mac, directory.machine_by_mac(mac)?))) {
        return Err(format!("its MAC {mac} belongs to machine {} already ({:?})", other.id, other.name));
    }
    Ok(Added { id, name: name.to_owned(), size, macs, file: format!("machines/{name}.yaml") })
}

/// Strings of JSON are strings of YAML.
fn text(added: &Added) -> String {
    let Added { id, name, size, macs, .. } = added;
    let mut text = format!("id: {id}\nname: {}\n", json!(name));
    if !macs.is_empty() {
        text += &format!("macs: {}\n", json!(macs));
    }
    if let Some(size) = size {
        text += &format!("size: {}\n", json!(size));
    }
    text
}

/// Whole or not at all, and never in the place of another.
fn put(folder: &FilePath, name: &str, text: &str) -> std::io::Result<()> {
    let (new, path) = (folder.join(format!(".{name}.new")), folder.join(name));
    let mut file = OpenOptions::new().create(true).truncate(true).write(true).mode(0o640).open(&new)?;
    let written = file.write_all(text.as_bytes()).and_then(|()| file.sync_all());
    let put = written.and_then(|()| fs::hard_link(&new, &path));
    fs::remove_file(&new)?;
    put.and_then(|()| File::open(folder)?.sync_all())
}
