//! Registration of machines that another installer has installed. `drophammer adopt` sends the requests after it has
//! written the install marker on the machine.

use super::AppState;
use super::deploy_templates::template_files::CreationPermit;
use super::machine_file_creation::{
    CreatedMachineFile, CreationFailure, MachineFileRequest, create_prepared_file, prepare_registered_file,
    render_machine_file,
};
use super::metal_api::ApiRefusal;
use super::metal_api::document_edits::{create_file, database_edits, remove_file, wait_until_published};
use super::metal_api::machine_file_replacement::{MachineFileText, read_machine_text};
use super::operator_api::{MachineSummary, OperatorAuth, summarize_machine};
use super::request_body::read_operator_document;
use axum::Json;
use axum::body::Body;
use axum::extract::{Path, Query, State};
use axum::http::StatusCode;
use control::agent_api_types::RegisterRequest;
use http_server::api_error::ApiError;
use http_server::client_address::ClientAddress;
use model::install_marker::InstallMarker;
use model::layout::{Layout, compute_digest};
use serde::{Deserialize, Serialize};
use serde_json::json;
use site::boot_value_validation;
use site::operator_files::{self, DEFAULT_ID, MachineSpec};
use std::sync::Arc;
use store::AdoptOutcome;

/// Maximum size of a request, in bytes. Most of it is the inventory of the machine.
const REQUEST_BYTES: usize = 4 << 20;

/// Request body: a machine that another installer has installed, and on which the install marker was written.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct AdoptionRequest {
    /// Name of the machine, for machines/NAME.yaml in the server's directory.
    pub name: String,
    /// Id of the size. If absent, the size whose constraints match the hardware is used.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub size: Option<String>,
    /// Id of the image in the machine file.
    pub image: String,
    /// Id of the layout, which must exist on the server.
    pub layout: String,
    /// Install marker on the machine.
    pub marker: InstallMarker,
    /// Hardware of the machine.
    pub registration: RegisterRequest,
}

/// Machine whose registration was removed.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct RemovedAdoption {
    pub machine: String,
    pub allocation: String,
}

/// Query of a request that removes a registration.
#[derive(Debug, Deserialize, schemars::JsonSchema)]
pub(crate) struct AdoptionRemovalQuery {
    /// Id of the allocation.
    allocation: String,
}

/// `PUT /v1/machine/{id}/adopt`: creates the file of a machine, and records that its allocation is installed. A
/// repeated request with the same marker succeeds.
pub(crate) async fn register_adopted_machine(
    State(app): State<Arc<AppState>>,
    Path(id): Path<String>,
    _: OperatorAuth,
    peer: ClientAddress,
    body: Body,
) -> Result<Json<MachineSummary>, ApiError> {
    let adoption_request: AdoptionRequest = read_operator_document(&app, peer, body, REQUEST_BYTES).await?;
    let id = parse_machine_id(&id)?;
    let machine = match adopt_new_machine(&app, &id, &adoption_request, peer).await {
        Ok(machine) => machine,
        Err(error) => find_registered_machine(&app, &id, &adoption_request, error).await?,
    };
    Ok(Json(summarize_machine(&app, &machine).await?))
}

/// Records the installation, and creates the machine file. If an error occurs, but the file may exist, the record of
/// the installation is kept: without this record, the machine would be installed at its next boot over PXE.
async fn adopt_new_machine(
    app: &Arc<AppState>,
    id: &str,
    adoption_request: &AdoptionRequest,
    peer: ClientAddress,
) -> Result<MachineSpec, ApiError> {
    let layout = find_marked_layout(app, id, adoption_request)?;
    let file = MachineFileRequest {
        name: adoption_request.name.clone(),
        size: adoption_request.size.clone(),
        image: Some(adoption_request.image.clone()),
        allocation: Some(adoption_request.marker.allocation.clone()),
        layout: Some(adoption_request.layout.clone()),
        ssh_pub_keys: Vec::new(),
    };
    let prepared = prepare_registered_file(app, id, &file, &adoption_request.registration).await?;
    let machine = prepared.machine.clone();
    let permit = lock_adoption(app, id).await?;
    // The record of the installation is stored before the machine file is created: with the file alone, the machine
    // would be installed at its next boot over PXE.
    if let AdoptOutcome::Rejected(why) = app.state.adopt_with_marker(&adoption_request.marker, &json!(layout)).await? {
        return Err(conflict_error(why));
    }
    let created = match app.state.store_registration(id, &adoption_request.name, &adoption_request.registration).await {
        Ok(()) => create_prepared_file(app, peer, prepared, permit).await,
        Err(error) => Err(CreationFailure::NotCreated(error.into())),
    };
    match created {
        Ok(_) => {}
        Err(CreationFailure::Uncertain(error)) => return Err(error),
        Err(CreationFailure::NotCreated(error)) => {
            app.state.remove_adoption(id, &adoption_request.marker.allocation).await?;
            return Err(error);
        }
    }
    app.watch.log_note(format!(
        "{name}: {peer} registered the machine, which another installer has installed, with allocation {allocation}",
        name = adoption_request.name,
        allocation = adoption_request.marker.allocation
    ));
    app.request_reload();
    Ok(machine)
}

/// Returns the machine if an earlier request has registered it with this marker, and its file has not been changed
/// since.
///
/// # Errors
/// Returns `error` if no installation with this marker is recorded. If the installation is recorded, but the machine
/// file is missing, not in effect, or changed, returns an error with status 500: if the status meant a refusal, the
/// client would remove the marker.
async fn find_registered_machine(
    app: &AppState,
    id: &str,
    adoption_request: &AdoptionRequest,
    error: ApiError,
) -> Result<MachineSpec, ApiError> {
    let allocation = &adoption_request.marker.allocation;
    let install_state = app.state.read_install_state(id, allocation).await?;
    if !install_state.succeeded || install_state.marker.as_ref() != Some(&adoption_request.marker) {
        return Err(error);
    }
    let directory = app.directory();
    if let Some(machine) = directory.find_machine(id).filter(|machine| machine.name == adoption_request.name.trim()) {
        let file = read_machine_text(app, id).await.map_err(ApiRefusal::into_error)?;
        let has_image = machine.allocation.as_ref().is_some_and(|own| *own.image == *adoption_request.image);
        if has_image && is_as_created(machine, allocation, &file) {
            return Ok(machine.clone());
        }
    }
    let (_, why) = error.parts();
    Err(ApiError::new(
        StatusCode::INTERNAL_SERVER_ERROR,
        format!(
            "machine {id} is recorded as installed with allocation {allocation}, but its machine file is missing, is not in effect, or was changed: {why}"
        ),
    ))
}

/// Acquires the permission to register the machine, or to remove its registration. Fails with status 503 if another
/// request holds this permission: the status must not mean a refusal, because the other request may register the
/// machine.
async fn lock_adoption(app: &AppState, id: &str) -> Result<CreationPermit, ApiError> {
    let permit = app.templates.lock_creation(id).await;
    let why = || format!("another request is creating or removing the file of machine {id}: repeat the request");
    permit.ok_or_else(|| ApiError::new(StatusCode::SERVICE_UNAVAILABLE, why()))
}

/// `DELETE /v1/machine/{id}/adopt?allocation=ID`: removes the file and the record of an adopted machine. Succeeds if
/// the machine is not registered.
pub(crate) async fn remove_adopted_machine(
    State(app): State<Arc<AppState>>,
    Path(id): Path<String>,
    _: OperatorAuth,
    peer: ClientAddress,
    Query(AdoptionRemovalQuery { allocation }): Query<AdoptionRemovalQuery>,
) -> Result<Json<RemovedAdoption>, ApiError> {
    let id = parse_machine_id(&id)?;
    let _lock = lock_adoption(&app, &id).await?;
    let install_state = app.state.read_install_state(&id, &allocation).await?;
    if let Some(why) = store::explain_lasting_adoption(&install_state) {
        return Err(conflict_error(format!("machine {id}: the registration cannot be removed: {why}")));
    }
    let found = find_machine_file(&app, &id, &allocation).await?;
    if let Some((machine, file)) = &found {
        if !is_as_created(machine, &allocation, file) {
            return Err(conflict_error(format!(
                "{file} was changed since the machine was adopted: remove this file by hand if the machine is not needed",
                file = file.path.display()
            )));
        }
        remove_machine_file(&app, &id, file).await?;
    }
    // The record of the installation is removed after the machine file: without the file, the machine boots its disk,
    // with or without the record, and a reinstall that was ordered in the meantime cannot run.
    if let AdoptOutcome::Rejected(why) = app.state.remove_adoption(&id, &allocation).await? {
        return Err(match found {
            Some((_, file)) => restore_machine_file(&app, &id, &file, why).await,
            None => conflict_error(why),
        });
    }
    app.watch
        .log_note(format!("{id}: {peer} removed the registration of the adopted machine, allocation {allocation}"));
    Ok(Json(RemovedAdoption { machine: id, allocation }))
}

/// Returns the machine and its file. If the file is not in effect yet, it is found by the id of its allocation.
async fn find_machine_file(
    app: &AppState,
    id: &str,
    allocation: &str,
) -> Result<Option<(MachineSpec, MachineFileText)>, ApiError> {
    if let Some(machine) = app.directory().find_machine(id) {
        let file = read_machine_text(app, id).await.map_err(ApiRefusal::into_error)?;
        return Ok(Some((machine.clone(), file)));
    }
    database_edits::refresh(app).await?;
    let (documents, folder) = (app.documents.clone(), app.machines.clone());
    let (id, allocation) = (id.to_owned(), allocation.to_owned());
    let searched = tokio::task::spawn_blocking(move || -> std::io::Result<Option<(MachineSpec, MachineFileText)>> {
        for path in documents.list_yaml(&folder)? {
            let Ok(text) = documents.read(&path) else { continue };
            let parsed = text.contains(&allocation).then(|| operator_files::parse_machine(&text).ok()).flatten();
            if let Some(machine) = parsed.filter(|machine| machine.id == id) {
                return Ok(Some((machine, MachineFileText { path, text })));
            }
        }
        Ok(None)
    });
    let searched = searched.await.unwrap_or_else(|panicked| Err(std::io::Error::other(panicked)));
    let failed = |error: std::io::Error| format!("search the machine files: {error}");
    searched.map_err(|error| ApiError::new(StatusCode::INTERNAL_SERVER_ERROR, failed(error)))
}

/// Creates the removed machine file again, because the record of the installation could not be removed. Returns the
/// error, which contains the reason.
async fn restore_machine_file(app: &AppState, id: &str, file: &MachineFileText, why: String) -> ApiError {
    let MachineFileText { path, text } = file;
    if let Err(refusal) = create_file(app, path, text).await {
        let (path, refusal) = (path.display(), refusal.into_message());
        let message = format!("{why}; {path} was removed, and cannot be restored: {refusal}");
        return ApiError::new(StatusCode::INTERNAL_SERVER_ERROR, message);
    }
    match wait_until_published(app, path, Some(text), |directory| directory.find_machine(id).is_some()).await {
        Ok(()) => conflict_error(why),
        Err(refusal) => refusal.into_error(),
    }
}

async fn remove_machine_file(app: &AppState, id: &str, file: &MachineFileText) -> Result<(), ApiError> {
    let removed = remove_file(app, &file.path, &file.text).await.map_err(ApiRefusal::into_error)?;
    if !removed {
        let path = file.path.display();
        return Err(conflict_error(format!("{path} was changed by another process: repeat the request")));
    }
    wait_until_published(app, &file.path, None, |directory| directory.find_machine(id).is_none())
        .await
        .map_err(ApiRefusal::into_error)
}

fn parse_machine_id(id: &str) -> Result<String, ApiError> {
    let default = || ApiError::bad_request(format!("{id} {DEFAULT_ID}"));
    boot_value_validation::parse_uuid(id).map_err(ApiError::bad_request)?.ok_or_else(default)
}

/// Returns the layout that the install marker names.
fn find_marked_layout(app: &AppState, id: &str, adoption_request: &AdoptionRequest) -> Result<Layout, ApiError> {
    let AdoptionRequest { layout, marker, .. } = adoption_request;
    if marker.machine != *id || marker.allocation.is_empty() || marker.layout != *layout {
        return Err(ApiError::bad_request(format!(
            "the install marker names machine {:?}, allocation {:?} and layout {:?}, but the request is for machine {id} and layout {layout:?}",
            marker.machine, marker.allocation, marker.layout
        )));
    }
    let directory = app.directory();
    let known = directory.known.layouts.get(layout);
    let known = known.ok_or_else(|| conflict_error(directory.known.explain_absent_layout(layout).reason))?;
    match marker.layout_digest.as_deref() == Some(compute_digest(known).as_str()) {
        true => Ok(known.clone()),
        false => {
            Err(conflict_error(format!("layout {layout:?} differs from the layout with which the machine was planned")))
        }
    }
}

/// Returns whether the file has the text that the adoption has written.
fn is_as_created(machine: &MachineSpec, allocation: &str, file: &MachineFileText) -> bool {
    let Some(own) = machine.allocation.as_ref().filter(|own| *own.id == *allocation) else { return false };
    let added = CreatedMachineFile {
        id: machine.id.clone(),
        name: machine.name.clone(),
        size: machine.size.clone(),
        macs: machine.macs.clone(),
        ..CreatedMachineFile::default()
    };
    let adoption_request = MachineFileRequest {
        name: machine.name.clone(),
        image: Some(own.image.to_string()),
        allocation: Some(allocation.to_owned()),
        layout: own.filesystemlayout.as_ref().map(|layout| layout.to_string()),
        ..MachineFileRequest::default()
    };
    render_machine_file(&added, &adoption_request).is_ok_and(|text| text == file.text)
}

fn conflict_error(why: String) -> ApiError {
    ApiError::new(StatusCode::CONFLICT, why)
}
