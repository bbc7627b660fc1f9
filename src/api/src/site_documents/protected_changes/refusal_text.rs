//! Text of the refusal of protected changes.

use axum::http::StatusCode;
use common::error_code::ErrorCode;
use http_server::api_error::ApiError;
use site::snapshot::SiteSnapshot;
use store::document_protection::{GuardedChangeKind, RefusedChange};

/// Maximum number of changes that each part of a message lists.
const MAXIMUM_LISTED_CHANGES: usize = 20;

const REMOVED_MACHINES: &str = "the documents would remove machines that are in use; free these machines first with \
    `drophammer machine free`, or include their files";
const REMOVED_APPROVALS: &str = "the documents would remove approvals that open orders require; include the files in \
    approved/, or cancel the orders first with `drophammer machine reinstall MACHINE --cancel`";
const UNDONE_CHANGES: &str = "the documents would undo changes that were made at the server; include the current files \
    (`drophammer export`), or confirm the changes of each machine with `--overwrite MACHINE`";

/// Returns the error for changes without the required confirmation, and for changes that the states of machines forbid.
/// Each line of `unconfirmed` describes one change.
pub(in crate::site_documents) fn refuse_changes(
    present: &SiteSnapshot,
    unconfirmed: &[String],
    refused: &[RefusedChange],
) -> ApiError {
    let (mut machines, mut approvals, mut undone) = (Vec::new(), Vec::new(), unconfirmed.to_vec());
    for RefusedChange { change, reason } in refused {
        let machine =
            format!("machine {name} ({id})", name = present.display_name(&change.machine), id = change.machine);
        match &change.kind {
            GuardedChangeKind::RemovedMachine(_) => machines.push(format!("{machine} {reason}")),
            GuardedChangeKind::RemovedApproval => approvals.push(format!("{machine} {reason}")),
            GuardedChangeKind::EndedAllocation(allocation) => {
                undone.push(format!(
                    "{machine}: allocation {allocation} would be removed or replaced, but the machine {reason}"
                ));
            }
            GuardedChangeKind::AddedAllocation(allocation) => {
                undone.push(format!("{machine}: allocation {allocation} would be added again: the machine {reason}"));
            }
        }
    }
    let is_undone = !undone.is_empty();
    let parts = [(REMOVED_MACHINES, machines), (REMOVED_APPROVALS, approvals), (UNDONE_CHANGES, undone)];
    let parts = parts.into_iter().filter(|(_, lines)| !lines.is_empty());
    let parts: Vec<String> = parts.map(|(title, lines)| format!("{title}\n{}", list_changes(lines))).collect();
    let why = format!("apply: nothing was stored: {}", parts.join("\n"));
    let error = ApiError::new(StatusCode::CONFLICT, why);
    if is_undone { error.with_error_code(ErrorCode::UndoneChange) } else { error }
}

fn list_changes(mut lines: Vec<String>) -> String {
    let hidden = lines.len().saturating_sub(MAXIMUM_LISTED_CHANGES);
    lines.truncate(MAXIMUM_LISTED_CHANGES);
    if hidden > 0 {
        lines.push(format!("and {hidden} further changes"));
    }
    lines.join("\n")
}
