//! Protection of machines whose files a request would remove. Without its file, a machine becomes unknown to the
//! server.

use axum::http::StatusCode;
use http_server::api_error::ApiError;
use site::snapshot::SiteSnapshot;
use store::machine_removal_protection::{ProtectedMachine, RemovedMachine};

/// Maximum number of machines that a message lists.
const MAXIMUM_LISTED_MACHINES: usize = 20;

/// Returns the machines that the documents would no longer describe after the change.
pub(super) fn find_removed(before: &SiteSnapshot, after: &SiteSnapshot) -> Vec<RemovedMachine> {
    let removed = before.machines().filter(|machine| after.find_machine(&machine.id).is_none());
    let removed = removed.map(|machine| RemovedMachine {
        id: machine.id.clone(),
        allocation: machine.allocation.as_ref().map(|allocation| allocation.id.to_string()),
    });
    removed.collect()
}

/// Returns the error for machines that must not be removed.
pub(super) fn refuse_removal(before: &SiteSnapshot, protected: &[ProtectedMachine]) -> ApiError {
    let describe = |machine: &ProtectedMachine| {
        format!("machine {} ({}) {}", before.display_name(&machine.id), machine.id, machine.reason)
    };
    let mut lines: Vec<String> = protected.iter().take(MAXIMUM_LISTED_MACHINES).map(describe).collect();
    if protected.len() > MAXIMUM_LISTED_MACHINES {
        lines.push(format!("and {} further machines", protected.len() - MAXIMUM_LISTED_MACHINES));
    }
    let why = format!(
        "apply: nothing was stored: the documents would remove machines that are in use; free these machines first with `drophammer machine free`, or include their files\n{lines}",
        lines = lines.join("\n")
    );
    ApiError::new(StatusCode::CONFLICT, why)
}
