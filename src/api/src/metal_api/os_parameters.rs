//! Requests that change the stored parameters of OS definitions, for one machine or for all machines. As with Ganeti's
//! `--os-parameters`, `-KEY` deletes a stored value.

use super::api_refusal::{ApiRefusal, ApiResult};
use super::document_edits::{self, EditedObject, change_text, log_removed_comments, wait_until_published};
use super::edit_permit::{EditPermit, EditRequest};
use super::machine_file_edits::rewrite_machine_file;
use axum::Json;
use axum::extract::Path;
use common::yaml::edit;
use model::ganeti_os_definition::{OsSelector, ParameterChange, SelectedDefinition, parse_changes, update_stored};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};
use site::ganeti_os_definitions::verify_now;
use site::operator_files::{self, MachineSpec};
use site::readable_secrets::OS_FOLDER;

/// Maximum size of a request, in bytes.
const CHANGE_BYTES: usize = 256 << 10;
/// Path of the file to which the parameters of a definition are written, unless another file already contains
/// parameters of this definition.
const DEFAULT_FILE: &str = "parameters.yaml";

/// Requested changes of parameters.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct OsParameterChanges {
    /// Changes: `KEY=VALUE` stores a value, and `-KEY` deletes the stored value.
    pub changes: Vec<String>,
}

/// Stored parameters after a change.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct StoredOsParameters {
    /// OS definition, with its variant if the request or the machine file specifies one.
    pub os: String,
    /// Names of the parameters that are stored for this machine, or for all machines. The values are omitted, since
    /// they may be secret.
    pub parameters: Vec<String>,
}

/// `POST /v1/machine/{id}/os-parameters`: changes the parameters in a machine file.
pub(crate) async fn change_machine_parameters(
    Path(id): Path<String>,
    EditRequest { document: parameter_changes, permit }: EditRequest<OsParameterChanges, CHANGE_BYTES>,
) -> ApiResult<Json<StoredOsParameters>> {
    let (id, EditPermit { app, peer, directory, .. }) = (id.to_lowercase(), &permit);
    let requested = parse_changes(&parameter_changes.changes).map_err(ApiRefusal::bad_request)?;
    let machine = directory.find_machine(&id).ok_or_else(|| ApiRefusal::not_found("machine", &id))?;
    let allocation = machine.allocation.as_ref();
    let named = allocation.and_then(|allocation| Some((allocation, allocation.os.as_ref()?.to_string())));
    let Some((allocation, os)) = named else {
        let why =
            format!("the allocation of machine {id} does not name an OS definition: set `os` in the machine file");
        return Err(ApiRefusal::unprocessable(why));
    };
    let before: Vec<ParameterChange> = allocation.changes.iter().map(|change| (**change).clone()).collect();
    let new = update_stored(&before, &requested);
    let chosen = directory.os_definitions.select_for_allocation(&os, &new).map_err(ApiRefusal::unprocessable)?;
    verify_selections(vec![chosen]).await?;
    if new != before {
        let texts: Vec<String> = new.iter().map(ToString::to_string).collect();
        let change = |document: &mut Map<String, Value>| {
            let allocation = document.get_mut("allocation").and_then(Value::as_object_mut);
            allocation.into_iter().for_each(|allocation| set_list(allocation, "os_parameters", &texts));
        };
        let has = |machine: &MachineSpec, expected: &[ParameterChange]| {
            machine.allocation.as_ref().is_some_and(|allocation| {
                allocation.os.as_ref().is_some_and(|is| is.as_str() == os)
                    && allocation.changes.iter().map(|change| &**change).eq(expected)
            })
        };
        let (was, becomes) =
            (|machine: &MachineSpec| has(machine, &before), |machine: &MachineSpec| has(machine, &new));
        rewrite_machine_file(app, &id, was, change, becomes, str::to_owned).await?;
        app.watch.log_note(format!(
            "{machine}: {peer} changed the OS parameters",
            machine = app.directory().display_name(&id)
        ));
    }
    Ok(Json(stored_response(os, &new)))
}

/// `POST /v1/os/{name}/parameters`: changes the parameters of a definition or variant for all machines. The
/// definition need not exist yet.
pub(crate) async fn change_site_parameters(
    Path(name): Path<String>,
    EditRequest { document: parameter_changes, permit }: EditRequest<OsParameterChanges, CHANGE_BYTES>,
) -> ApiResult<Json<StoredOsParameters>> {
    let EditPermit { app, peer, directory, .. } = &permit;
    let os = OsSelector::parse(&name).map_err(ApiRefusal::bad_request)?;
    let requested = parse_changes(&parameter_changes.changes).map_err(ApiRefusal::bad_request)?;
    let before = directory.os_definitions.site_changes(&os);
    let new = update_stored(&before, &requested);
    let affected = directory.os_definitions.select_for_site(&os, &new).map_err(ApiRefusal::unprocessable)?;
    verify_selections(affected).await?;
    if new != before {
        write_site_parameters(&permit, &os, &before, &new).await?;
        app.watch.log_note(format!("{peer} changed the parameters of OS definition {os} for all machines"));
    }
    Ok(Json(stored_response(os.to_string(), &new)))
}

/// Changes or creates the file with the parameters of a definition, and waits until the change is in effect.
async fn write_site_parameters(
    permit: &EditPermit,
    os: &OsSelector,
    before: &[ParameterChange],
    new: &[ParameterChange],
) -> ApiResult<()> {
    let EditPermit { app, directory, .. } = permit;
    let folder = app.dir.join(OS_FOLDER);
    let path = directory.os_definitions.site_file(os).map_or_else(|| folder.join(DEFAULT_FILE), |path| path.to_owned());
    let name = os.to_string();
    // The file may contain secrets, so the response to a conflict omits its text.
    let changed = || EditedObject { kind: "os", id: &name }.conflict(&path, None, &Value::Null);
    let text = document_edits::read_file(app, &path).await?;
    let old = operator_files::parse_unvalidated(text.as_deref().unwrap_or_default());
    let mut old = old.map_err(|_| changed())?;
    if old.is_null() {
        old = json!({});
    }
    let texts = |changes: &[ParameterChange]| changes.iter().map(ToString::to_string).collect::<Vec<_>>();
    let stored = old.get(&name).cloned().unwrap_or_else(|| json!([]));
    let mut wanted = old.as_object().filter(|_| stored == json!(texts(before))).cloned().ok_or_else(changed)?;
    set_list(&mut wanted, &name, &texts(new));
    let wanted = Value::Object(wanted);
    let anew = edit::format_document(&wanted, &[]);
    let now = match &text {
        None => {
            if app.documents.stored().is_none() {
                tokio::fs::create_dir_all(&folder)
                    .await
                    .map_err(|error| ApiRefusal::internal_error(format!("create {}: {error}", folder.display())))?;
            }
            document_edits::create_file(app, &path, &anew).await?;
            anew
        }
        Some(text) => {
            let is_right = |text: &str| operator_files::parse_unvalidated(text).as_ref() == Ok(&wanted);
            let edited = change_text(&path, text, |text| edit::edit_values(text, &old, &wanted), anew, is_right)?;
            if !document_edits::replace_file(app, &path, text, &edited.text).await? {
                return Err(changed());
            }
            log_removed_comments(app, &path, &edited.removed_comments);
            edited.text
        }
    };
    wait_until_published(app, &path, Some(&now), |directory| directory.os_definitions.site_changes(os) == new).await
}

/// Stores a list in a document. If the list is empty, removes its field instead.
fn set_list(fields: &mut Map<String, Value>, name: &str, list: &[String]) {
    let _ = match list.is_empty() {
        true => fields.remove(name),
        false => fields.insert(name.to_owned(), json!(list)),
    };
}

/// Runs the `verify` programs of the definitions with the changed parameters.
async fn verify_selections(chosen: Vec<SelectedDefinition>) -> ApiResult<()> {
    let verify = move || chosen.iter().try_for_each(verify_now);
    let verdict = tokio::task::spawn_blocking(verify).await;
    verdict.map_err(|error| ApiRefusal::internal_error(error.to_string()))?.map_err(ApiRefusal::unprocessable)
}

fn stored_response(os: String, stored: &[ParameterChange]) -> StoredOsParameters {
    StoredOsParameters { os, parameters: stored.iter().map(|change| change.key().to_owned()).collect() }
}
