//! Lock of a machine: the reason in its file.

use super::EditTurn;
use super::machine_file::rewrite_machine_file;
use super::refusal::{ApiRefusal, ApiResult};
use serde_json::{Map, Value};
use site::operator_files::MachineSpec;

/// Locks the machine with a reason, or unlocks it if no reason is given.
///
/// # Errors
/// Returns an error if the file was changed concurrently, or if the reason is not a valid one.
pub async fn set_lock(turn: &EditTurn, id: &str, reason: Option<&str>) -> ApiResult<()> {
    if reason.is_some_and(|reason| ["true", "false"].contains(&reason)) {
        return Err(ApiRefusal::bad_request("the lock's reason must be text, not true or false"));
    }
    let EditTurn { app, peer, directory, .. } = turn;
    let before = directory.find_machine(id).and_then(|machine| machine.locked.clone());
    let change = |document: &mut Map<String, Value>| {
        drop(match reason {
            Some(reason) => document.insert("locked".to_owned(), Value::from(reason)),
            None => document.remove("locked"),
        });
    };
    let is_unchanged = |machine: &MachineSpec| machine.locked == before;
    let becomes = |machine: &MachineSpec| machine.locked.is_some() == reason.is_some();
    rewrite_machine_file(app, id, is_unchanged, change, becomes, str::to_owned).await?;
    let name = directory.display_name(id);
    match reason {
        Some(reason) => app.watch.log_note(format!("{name}: {peer} locked the machine: {reason}")),
        None => app.watch.log_note(format!("{name}: {peer} unlocked the machine")),
    }
    Ok(())
}
