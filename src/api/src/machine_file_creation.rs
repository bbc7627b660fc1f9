//! Creation of a file in `machines/` for a registered machine.

use super::AppState;
use super::deploy_templates::template_files::CreationPermit;
use super::metal_api::ApiRefusal;
use super::metal_api::document_edits::database_edits::{self, StoredChange};
use super::metal_api::document_edits::wait_until_in_effect;
use super::metal_api::machine_file_edits::check_templates;
use super::operator_api::OperatorAuth;
use super::request_body::{EVENT_BYTES, read_operator_document};
use axum::Json;
use axum::body::Body;
use axum::extract::{Path, State};
use axum::http::StatusCode;
use common::error_code::ErrorCode;
use common::type_errors::locate_json_error;
use control::agent_api_types::{RegisterRequest, RegisteredHardware};
use http_server::api_error::ApiError;
use http_server::client_address::ClientAddress;
use model::machine_identity::usable_mac;
use serde::{Deserialize, Serialize};
use serde_json::json;
use site::boot_value_validation;
use site::operator_files::{DEFAULT_ID, MachineSpec, replace_positions};
use site::snapshot::SiteSnapshot;
use site::{operator_files, sizes};
use std::fs::{File, Permissions};
use std::io::{ErrorKind, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::Path as FilePath;
use std::sync::Arc;
use uuid::Uuid;

/// Request body: name and size of the new machine.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct MachineFileRequest {
    pub name: String,
    /// Id of the size. If absent, the size whose constraints match the hardware is used.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub size: Option<String>,
    /// Id of the image. With an image, the file contains an allocation: the machine is installed at once if it waits in
    /// the ramdisk, and otherwise at its next boot over PXE. The hostname is the name of the machine.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub image: Option<String>,
    /// Id of the allocation. If absent, a new id is generated.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub allocation: Option<String>,
    /// Id of the layout. If absent, the layout for the machine's size and the image is used.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub layout: Option<String>,
    /// SSH public keys that may log in to the installed system.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub ssh_pub_keys: Vec<String>,
}

/// Machine whose file was created.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct CreatedMachineFile {
    pub id: String,
    pub name: String,
    pub size: Option<String>,
    pub macs: Vec<String>,
    /// MACs of the machine that the machine file omits, because they do not identify the machine.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub omitted: Vec<OmittedMac>,
    /// Path of the machine file, relative to the server's directory.
    pub file: String,
    /// Id of the image that will be installed; absent if the file has no allocation.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub image: Option<String>,
}

/// MAC address that does not identify a machine.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct OmittedMac {
    pub mac: String,
    pub reason: String,
}

/// Handles `POST /v1/machine/{id}/file`.
pub(crate) async fn create_machine_file(
    State(app): State<Arc<AppState>>,
    Path(id): Path<String>,
    _: OperatorAuth,
    peer: ClientAddress,
    body: Body,
) -> Result<Json<CreatedMachineFile>, ApiError> {
    let machine_file_request: MachineFileRequest = read_operator_document(&app, peer, body, EVENT_BYTES).await?;
    let prepared = prepare_machine_file(&app, &id, &machine_file_request).await?;
    write_machine_file(&app, peer, prepared).await.map(Json)
}

/// Machine file that is complete and valid, but not written yet.
pub struct PreparedMachineFile {
    pub added: CreatedMachineFile,
    /// Machine that the file describes.
    pub machine: MachineSpec,
    text: String,
}

/// Composes and validates the file of a machine that has registered.
///
/// # Errors
/// Returns an error if the machine has not registered or has a file already, or if the file would be invalid or its
/// allocation could not be carried out.
pub async fn prepare_machine_file(
    app: &AppState,
    id: &str,
    machine_file_request: &MachineFileRequest,
) -> Result<PreparedMachineFile, ApiError> {
    let default = || ApiError::bad_request(format!("{id} {DEFAULT_ID}"));
    let id = boot_value_validation::parse_uuid(id).map_err(ApiError::bad_request)?.ok_or_else(default)?;
    let row = app.state.find_committed_registration(&id).await?;
    let unknown = || {
        ApiError::not_found(format!(
            "machine {id} has not registered: boot it over PXE once (a machine without an allocation is not installed)"
        ))
    };
    let row = row.ok_or_else(unknown)?;
    if let Some(image) = &machine_file_request.image {
        app.await_image(image).await;
    }
    let register: RegisterRequest = serde_json::from_str(&row.document).map_err(|error| {
        let why = locate_json_error(&error);
        conflict_error(format!("the registration of machine {id} cannot be parsed: {why}"))
    })?;
    prepare_registered_file(app, &id, machine_file_request, &register).await
}

/// Composes and validates the file of a machine from its registration.
///
/// # Errors
/// Returns an error if the machine has a file already, or if the file would be invalid or its allocation could not be
/// carried out.
pub(crate) async fn prepare_registered_file(
    app: &AppState,
    id: &str,
    machine_file_request: &MachineFileRequest,
    register: &RegisterRequest,
) -> Result<PreparedMachineFile, ApiError> {
    let directory = app.directory();
    let macs = find_identifying_macs(app, &directory, id, register).await?;
    let added = validate_new_machine(&directory, id.to_owned(), machine_file_request, &register.hardware, macs)
        .map_err(conflict_error)?;
    let text = render_machine_file(&added, machine_file_request).map_err(conflict_error)?;
    // The new file is validated by the same code as files that the operator writes.
    let named = |why: String| replace_positions(&text, &why, str::to_owned);
    let invalid =
        |why: String| conflict_error(format!("the new machine file would be invalid: {problem}", problem = named(why)));
    let machine = operator_files::parse_machine(&text).map_err(invalid)?;
    let resolved = check_templates(app, &machine, &directory.known).await.map_err(ApiRefusal::into_error)?;
    resolved.map_err(|why| conflict_error(named(why)))?;
    Ok(PreparedMachineFile { added, machine, text })
}

/// Failure to create a machine file.
pub(crate) enum CreationFailure {
    /// The file was not created.
    NotCreated(ApiError),
    /// The file was created, or may have been created.
    Uncertain(ApiError),
}

impl CreationFailure {
    pub(crate) fn into_error(self) -> ApiError {
        match self {
            CreationFailure::NotCreated(error) | CreationFailure::Uncertain(error) => error,
        }
    }
}

/// Writes the file, and waits until it is in effect.
///
/// # Errors
/// Returns an error if the machine has a file already, a file with this name exists already, or the file cannot be
/// written.
pub async fn write_machine_file(
    app: &Arc<AppState>,
    peer: ClientAddress,
    prepared: PreparedMachineFile,
) -> Result<CreatedMachineFile, ApiError> {
    let Some(permit) = app.templates.lock_creation(&prepared.added.id).await else {
        return Err(conflict_error(format!("another request is creating the file of machine {}", prepared.added.id)));
    };
    create_prepared_file(app, peer, prepared, permit).await.map_err(CreationFailure::into_error)
}

/// Writes the file like [`write_machine_file`], but with a permit that the caller has already acquired. The error
/// states whether the file may exist.
pub(crate) async fn create_prepared_file(
    app: &Arc<AppState>,
    peer: ClientAddress,
    PreparedMachineFile { added, text, .. }: PreparedMachineFile,
    permit: CreationPermit,
) -> Result<CreatedMachineFile, CreationFailure> {
    // The directory is checked again: another request may have created a file for the machine since this file was
    // prepared.
    if let Some(known) = app.directory().find_machine_by_uuid(&added.id) {
        return Err(CreationFailure::NotCreated(conflict_error(already_described(&added.id, known))));
    }
    let path = app.machines.join(format!("{}.yaml", added.name));
    let permit = create_new_file(app, &path, &added, &text, permit).await?;
    app.watch.log_note(format!(
        "created {file} for machine {machine} on request of {peer}",
        file = added.file,
        machine = added.id
    ));
    let is_known = |directory: &SiteSnapshot| directory.find_machine_by_uuid(&added.id).is_some();
    app.request_machine_reload(&added.id, Some(path.clone()));
    let in_effect = wait_until_in_effect(app, &path, Some(&text), is_known).await;
    in_effect.map_err(|refusal| CreationFailure::Uncertain(refusal.into_error()))?;
    drop(permit);
    // The request succeeds even if the database cannot record now that the machine has a file: the file is in effect,
    // and the next boot or installation creates this record.
    if let Err(error) = app.state.record_machine_file(&added.id).await {
        app.log_rate_limited(ErrorCode::ServerProblem.annotate(format!(
            "{file}: cannot record that machine {machine} has a machine file: {error}; the file is in effect",
            file = added.file,
            machine = added.id
        )));
    }
    Ok(added)
}

/// Creates the file in the directory or in the database. Takes the caller's permit, and returns it.
async fn create_new_file(
    app: &AppState,
    path: &FilePath,
    added: &CreatedMachineFile,
    text: &str,
    permit: CreationPermit,
) -> Result<CreationPermit, CreationFailure> {
    let taken = || {
        let why = format!("{file} already exists: choose another name", file = added.file);
        CreationFailure::NotCreated(conflict_error(why))
    };
    // An error of the database counts as uncertain: it may have stored the file nevertheless.
    match database_edits::change(app, path, None, Some(text)).await.map_err(CreationFailure::Uncertain)? {
        Some(StoredChange::Stored) => return Ok(permit),
        Some(StoredChange::Conflict(_)) => return Err(taken()),
        None => {}
    }
    let (folder, file, new) = (app.machines.clone(), format!("{}.yaml", added.name), text.to_owned());
    // The closure owns the permit, so that a canceled request does not release the permit before the file is complete.
    let write = move || write_new_file(&folder, &file, &new).map(|()| permit);
    let written = tokio::task::spawn_blocking(write).await;
    let written = written.unwrap_or_else(|panicked| Err(std::io::Error::other(panicked)));
    written.map_err(|error| match error.kind() {
        ErrorKind::AlreadyExists => taken(),
        _ => {
            let why = format!("write {}: {error}", added.file);
            CreationFailure::Uncertain(ApiError::new(StatusCode::INTERNAL_SERVER_ERROR, why))
        }
    })
}

fn conflict_error(why: String) -> ApiError {
    ApiError::new(StatusCode::CONFLICT, why)
}

/// Returns the machine to add. The error is the reason why the machine cannot be added, for example because another
/// machine has the same name.
fn validate_new_machine(
    directory: &SiteSnapshot,
    id: String,
    machine_file_request: &MachineFileRequest,
    hardware: &RegisteredHardware,
    (macs, omitted): (Vec<String>, Vec<OmittedMac>),
) -> Result<CreatedMachineFile, String> {
    let name = machine_file_request.name.trim();
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"._-".contains(&byte);
    if name.is_empty() || name.len() > 200 || name.starts_with('.') || !name.bytes().all(plain) {
        return Err(format!(
            "{name:?} cannot be the name of a machine file: up to 200 letters, digits, dots, _ and - are allowed, without a dot at the start"
        ));
    }
    if let Some(known) = directory.find_machine_by_uuid(&id) {
        return Err(already_described(&id, known));
    }
    if let Some(other) = directory.machines().find(|machine| machine.name == name) {
        return Err(format!("machine {other} already has the name {name:?}", other = other.id));
    }
    let size = sizes::choose_size(&directory.known.sizes, hardware, machine_file_request.size.as_deref())?;
    if let ([], Some(first)) = (&macs[..], omitted.iter().find(|omitted| omitted.reason.contains(OMITTED_MAC_PREFIX))) {
        return Err(format!(
            "machine {id}: its MAC {mac} cannot identify the machine, because the MAC {reason}, and the machine does not have another usable MAC: write the machine file by hand, and list the machine's MACs in it",
            mac = first.mac,
            reason = first.reason
        ));
    }
    let (image, file) = (machine_file_request.image.clone(), format!("machines/{name}.yaml"));
    Ok(CreatedMachineFile { id, name: name.to_owned(), size, macs, omitted, file, image })
}

fn already_described(id: &str, known: &MachineSpec) -> String {
    format!("machine {id} already has a machine file, with the name {known_name:?}", known_name = known.name)
}

/// First words of the reason for omitting a MAC that the file of another machine lists.
const OMITTED_MAC_PREFIX: &str = "belongs to machine";

/// Returns the MACs that identify the machine, and the omitted MACs with the reasons. A USB NIC is omitted because it
/// can be moved to another machine, and the MAC of a management controller because it is the same on all machines of
/// some models.
async fn find_identifying_macs(
    app: &AppState,
    directory: &SiteSnapshot,
    id: &str,
    register: &RegisterRequest,
) -> Result<(Vec<String>, Vec<OmittedMac>), ApiError> {
    let (mut macs, mut omitted) = (Vec::new(), Vec::new());
    let inventory = register.inventory.as_ref();
    for nic in &register.hardware.nics {
        let Some(mac) = usable_mac(&nic.mac) else { continue };
        let usb =
            inventory.and_then(|inventory| inventory.nics.iter().find(|found| found.mac == nic.mac && found.is_usb()));
        let file = directory.find_machines_by_mac(&mac).find(|other| other.id != id);
        let registered = app.state.find_committed_machines_with_mac(&mac).await?;
        let registered = registered.into_iter().find(|other| other != id);
        let reason = match (usb, file, registered) {
            (_, Some(other), _) => format!("{OMITTED_MAC_PREFIX} {} already ({:?})", other.id, other.name),
            (_, None, Some(other)) => format!("was also registered by machine {other}"),
            (Some(nic), None, None) => {
                format!("belongs to a USB NIC ({driver}), which can be moved to another machine", driver = nic.driver)
            }
            (None, None, None) => {
                macs.push(mac);
                continue;
            }
        };
        omitted.push(OmittedMac { mac, reason });
    }
    Ok((macs, omitted))
}

/// Formats the machine file. Strings are written as JSON strings, which are valid YAML.
///
/// # Errors
/// Returns an error if the request contains a layout or SSH keys, but no image.
pub(crate) fn render_machine_file(
    added: &CreatedMachineFile,
    machine_file_request: &MachineFileRequest,
) -> Result<String, String> {
    let CreatedMachineFile { id, name, size, macs, .. } = added;
    let mut text = format!("id: {id}\nname: {}\n", json!(name));
    if !macs.is_empty() {
        text += &format!("macs: {}\n", json!(macs));
    }
    if let Some(size) = size {
        text += &format!("size: {}\n", json!(size));
    }
    let Some(image) = &machine_file_request.image else {
        let has_more = machine_file_request.layout.is_some() || !machine_file_request.ssh_pub_keys.is_empty();
        let message = "an allocation with a layout or SSH keys requires an image; add an image";
        return if has_more { Err(message.to_owned()) } else { Ok(text) };
    };
    let allocation = machine_file_request.allocation.clone().unwrap_or_else(|| Uuid::new_v4().to_string());
    text += &format!(
        "allocation:\n  id: {}\n  hostname: {}\n  image: {}\n",
        json!(allocation),
        json!(name.to_lowercase()),
        json!(image)
    );
    if let Some(layout) = &machine_file_request.layout {
        text += &format!("  filesystemlayout: {}\n", json!(layout));
    }
    if !machine_file_request.ssh_pub_keys.is_empty() {
        text += "  ssh_pub_keys:\n";
        machine_file_request.ssh_pub_keys.iter().for_each(|key| text += &format!("    - {}\n", json!(key.trim())));
    }
    Ok(text)
}

/// Writes the file atomically. Fails if the file already exists. Syncs the content before the file gets its name, and
/// then syncs the folder, so that the complete file is on disk when it is acknowledged.
fn write_new_file(folder: &FilePath, name: &str, text: &str) -> std::io::Result<()> {
    // Each request uses a temporary file with a unique name. With a common name, a request could write to a file that
    // another request has already renamed to its final name.
    let mut file = tempfile::Builder::new()
        .prefix(&format!(".{name}."))
        .suffix(".new")
        .permissions(Permissions::from_mode(0o640))
        .tempfile_in(folder)?;
    file.write_all(text.as_bytes())?;
    file.as_file().sync_all()?;
    file.persist_noclobber(folder.join(name))?;
    File::open(folder)?.sync_all()
}
