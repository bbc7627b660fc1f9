//! Replacement of a machine file's text by a text that the operator has edited.

use super::EditTurn;
use super::edited_files;
use super::machine_file::check_allocation;
use super::machines::KIND;
use super::refusal::{ApiRefusal, ApiResult};
use crate::AppState;
use site::operator_files::{self, MachineSpec};
use std::path::PathBuf;
use std::time::Duration;

/// Time limit for the new text to take effect. After this time, the response is sent even though the page may still
/// show the previous state.
const PATIENCE: Duration = Duration::from_secs(5);

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
    let text = edited_files::read_file(&path).await?.ok_or_else(missing)?;
    Ok(MachineFileText { path, text })
}

/// Checks a text as `drophammer check` does, and checks that its allocation can be carried out.
///
/// # Errors
/// Returns all problems, with line and column. Returns an error if the text describes another machine, or has a name or
/// MAC of another machine.
pub async fn check_machine_text(app: &AppState, id: &str, text: &str) -> ApiResult<MachineSpec> {
    let machine = operator_files::parse_machine(text).map_err(ApiRefusal::unprocessable)?;
    if machine.id != id {
        return Err(ApiRefusal::unprocessable(format!(
            "the text has the id {}, but this is the file of machine {id}: to change the id, run `drophammer machine rename`",
            machine.id
        )));
    }
    let directory = app.directory();
    if let Some(other) =
        directory.machines().find(|other| other.id != id && other.name == machine.name && !machine.name.is_empty())
    {
        return Err(ApiRefusal::unprocessable(format!("machine {} already has the name {:?}", other.id, machine.name)));
    }
    for mac in &machine.macs {
        if let Some(other) = directory.find_machines_by_mac(mac).find(|other| other.id != id) {
            let name = other.name.as_str();
            return Err(ApiRefusal::unprocessable(format!(
                "the file of machine {} ({name:?}) already lists {mac}",
                other.id
            )));
        }
    }
    check_allocation(app, &machine, &directory.known).await?.map_err(ApiRefusal::unprocessable)?;
    Ok(machine)
}

/// Replaces the text `old` of the file by `new`, which must have passed [`check_machine_text`].
///
/// # Errors
/// Returns an error if the text of the file is no longer `old`, or the file cannot be written.
pub async fn replace_machine_text(turn: &EditTurn, id: &str, file: &MachineFileText, new: &str) -> ApiResult<()> {
    let EditTurn { app, peer, directory, .. } = turn;
    let mut published = app.directory.clone();
    published.mark_unchanged();
    if !edited_files::replace_file(&file.path, &file.text, new).await? {
        return Err(ApiRefusal::conflict(format!(
            "{} was changed by another process: reload the page and repeat your changes",
            file.path.display()
        )));
    }
    app.watch.log_note(format!("{}: {peer} changed {}", directory.display_name(id), file.path.display()));
    app.request_reload();
    // If the text has only other comments than before, no new snapshot is published.
    drop(tokio::time::timeout(PATIENCE, published.changed()).await);
    Ok(())
}
