//! Replacement of a machine file by the version that the operator has edited.

use super::EditPermit;
use super::api_refusal::{ApiRefusal, ApiResult};
use super::document_edits::{self, change_text};
use super::machine_file_edits::check_allocation;
use super::machines::{FIELDS, KIND};
use crate::AppState;
use crate::access;
use common::error_code::ErrorCode;
use common::yaml::edit;
use serde_json::{Value, json};
use site::controller_index::ControllerSharing;
use site::operator_files::{self, MachineSpec};
use std::path::PathBuf;
use std::time::Duration;

/// Time limit for the new text to take effect. After this time, the response is sent even if the new text is not in
/// effect yet.
const EFFECT_TIMEOUT: Duration = Duration::from_secs(5);

/// Text of a machine file.
pub struct MachineFileText {
    pub path: PathBuf,
    pub text: String,
}

/// Reads the file of the machine.
///
/// # Errors
/// Returns an error if the machine has no file, or the file cannot be read.
pub async fn read_machine_text(app: &AppState, id: &str) -> ApiResult<MachineFileText> {
    let directory = app.directory();
    let missing = || ApiRefusal::not_found(KIND, id);
    let path = directory.machine_files.get(id).ok_or_else(missing)?.clone();
    let text = document_edits::read_file(app, &path).await?.ok_or_else(missing)?;
    Ok(MachineFileText { path, text })
}

/// Allocation that is added to a machine file.
#[derive(Debug, Clone, Default)]
pub struct NewAllocation {
    pub id: String,
    pub hostname: String,
    /// Id of the image.
    pub image: String,
    /// Id of the layout; empty for the layout that applies to the machine's size and the image.
    pub layout: String,
    pub ssh_pub_keys: Vec<String>,
    pub user_data: String,
}

impl NewAllocation {
    /// Returns the text of the machine file with this allocation. Preserves comments and the order of the other fields.
    ///
    /// # Errors
    /// Returns an error if the file cannot be parsed, or already contains an allocation.
    pub fn add_to(&self, file: &MachineFileText) -> ApiResult<String> {
        let old = operator_files::parse_unvalidated(&file.text).map_err(ApiRefusal::unprocessable)?;
        // The machine may have been locked after the snapshot that the form shows.
        if old.get("locked").is_some_and(|locked| !locked.is_null()) {
            let why = "the machine file now contains a lock: reload the page";
            return Err(ApiRefusal::conflict(why).with_error_code(ErrorCode::MachineLocked));
        }
        let mut new = old.clone();
        let fields = new.as_object_mut().filter(|fields| fields.get("allocation").is_none_or(Value::is_null));
        let taken = || ApiRefusal::conflict("the machine file already contains an allocation: reload the page");
        fields.ok_or_else(taken)?.insert("allocation".to_owned(), self.to_document());
        let anew = edit::format_document(&new, &FIELDS);
        let is_right = |text: &str| operator_files::parse_unvalidated(text).as_ref() == Ok(&new);
        let edited = change_text(&file.path, &file.text, |text| edit::edit_values(text, &old, &new), anew, is_right)?;
        Ok(edited.text)
    }

    fn to_document(&self) -> Value {
        let fields = [
            ("id", json!(self.id)),
            ("hostname", json!(self.hostname)),
            ("image", json!(self.image)),
            ("filesystemlayout", json!(self.layout)),
            ("ssh_pub_keys", json!(self.ssh_pub_keys)),
            ("user_data", json!(self.user_data)),
        ];
        let is_given = |value: &Value| *value != json!("") && *value != json!([]);
        let given = fields.into_iter().filter(|(_, value)| is_given(value));
        Value::Object(given.map(|(name, value)| (name.to_owned(), value)).collect())
    }
}

/// Applies the checks of `drophammer check` to an edited machine file, and checks that the allocation in the file can
/// be carried out. Runs the `verify` program of the OS definition in the allocation. Returns the machine, with its OS
/// definition.
///
/// # Errors
/// Returns all problems, with line and column. Returns an error if the text describes another machine, or contains
/// the name or a MAC of another machine.
pub async fn check_machine_text(app: &AppState, id: &str, text: &str) -> ApiResult<MachineSpec> {
    let mut machine = operator_files::parse_machine(text).map_err(ApiRefusal::unprocessable)?;
    check_identity(app, id, &machine)?;
    if machine.allocation.as_ref().is_some_and(|allocation| allocation.os.is_some()) {
        let directory = app.directory();
        let settle = move || {
            machine.allocation.iter_mut().for_each(|own| directory.os_definitions.resolve_definition(own));
            machine
        };
        let settled = tokio::task::spawn_blocking(settle).await;
        machine = settled.map_err(|error| ApiRefusal::internal_error(error.to_string()))?;
    }
    recheck_machine(app, id, &machine).await?;
    Ok(machine)
}

/// Repeats the checks of [`check_machine_text`] against the current versions of all other files, but does not run the
/// `verify` program again.
///
/// # Errors
/// Fails as [`check_machine_text`] does.
pub async fn recheck_machine(app: &AppState, id: &str, machine: &MachineSpec) -> ApiResult<()> {
    check_identity(app, id, machine)?;
    check_allocation(app, machine, &app.directory().known).await?.map_err(ApiRefusal::unprocessable)
}

/// Checks that the edited file contains the id of its machine, and that no other machine has the same name, one of
/// the same MACs, or the same management controller. Machines that the user is not allowed to see are also compared,
/// but are not named in the refusal.
fn check_identity(app: &AppState, id: &str, machine: &MachineSpec) -> ApiResult<()> {
    let (directory, visible) = (app.whole_directory(), app.directory());
    let describe = |other: &MachineSpec| match visible.find_machine(&other.id) {
        Some(_) if other.name.is_empty() => format!("machine {}", other.id),
        Some(_) => format!("machine {} ({:?})", other.id, other.name),
        None => access::HIDDEN_MACHINE_TEXT.to_owned(),
    };
    if machine.id != id {
        return Err(ApiRefusal::unprocessable(format!(
            "the id in the text is {new_id}, but this is the file of machine {id}: to change the id, run `drophammer machine rename`",
            new_id = machine.id
        )));
    }
    if let Some(other) =
        directory.machines().find(|other| other.id != id && other.name == machine.name && !machine.name.is_empty())
    {
        let other = describe(other);
        return Err(ApiRefusal::unprocessable(format!(
            "machine {other} already has the name {name:?}",
            name = machine.name
        )));
    }
    for mac in &machine.macs {
        if let Some(other) = directory.find_machines_by_mac(mac).find(|other| other.id != id) {
            let other = describe(other);
            return Err(ApiRefusal::unprocessable(format!("the file of {other} already lists {mac}")));
        }
    }
    let at = machine.bmc.as_ref().map(|bmc| &bmc.at);
    match at.map(|at| (at, directory.compare_controller(at, id))) {
        Some((at, ControllerSharing::Conflict(other))) => {
            let other = directory.find_machine(&other).map_or(other.clone(), describe);
            Err(ApiRefusal::unprocessable(format!(
                "the file of {other} already contains the management controller {at}: correct the address"
            )))
        }
        _ => Ok(()),
    }
}

/// Replaces the text of the file by `new`, which must have passed [`check_machine_text`].
///
/// # Errors
/// Returns an error if the file no longer has the text in `file`, or cannot be written.
pub async fn replace_machine_text(permit: &EditPermit, id: &str, file: &MachineFileText, new: &str) -> ApiResult<()> {
    let EditPermit { app, peer, directory, .. } = permit;
    let mut published = app.directory.clone();
    published.mark_unchanged();
    if !document_edits::replace_file(app, &file.path, &file.text, new).await? {
        return Err(ApiRefusal::conflict(format!(
            "{file} was changed by another process: reload the page and repeat your changes",
            file = file.path.display()
        )));
    }
    app.watch.log_note(format!("{}: {peer} changed {}", directory.display_name(id), file.path.display()));
    app.request_reload();
    // A change of comments alone publishes no new snapshot, so the timeout is not an error.
    drop(tokio::time::timeout(EFFECT_TIMEOUT, published.changed()).await);
    Ok(())
}
