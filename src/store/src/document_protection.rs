//! Changes of machine files and approvals that a batch of documents must not contain because of the state of a machine:
//! a machine in use must not become unknown to the server, lose its allocation or get back an earlier one, and an order
//! must not lose the approval of its plan.

use crate::ServerState;
use crate::install_state::read_install_state;
use crate::migration_records::find_live;
use crate::reinstall_order_records::read_order;
use crate::sql::{self, Connection};
use common::error::Result;

/// Change of a machine's documents whose permission depends on the state of the machine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GuardedChange {
    pub machine: String,
    pub kind: GuardedChangeKind,
}

/// Kind of a [`GuardedChange`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum GuardedChangeKind {
    /// The machine file is removed. Contains the id of the allocation in this file.
    RemovedMachine(Option<String>),
    /// This allocation is removed from the machine file, or replaced by an allocation with another id.
    EndedAllocation(String),
    /// This allocation is added to an existing machine file.
    AddedAllocation(String),
    /// The approval of the machine's plan is removed.
    RemovedApproval,
}

/// Change that is refused because of the state of the machine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RefusedChange {
    pub change: GuardedChange,
    /// Reason for the refusal, as the predicate of a sentence about the machine: `is installed`.
    pub reason: &'static str,
}

/// Returns the changes that are refused because of the present states of the machines.
pub(crate) fn find_refused(connection: &Connection, changes: &[GuardedChange]) -> sql::Result<Vec<RefusedChange>> {
    let mut refused = Vec::new();
    for change in changes {
        let machine = &change.machine;
        let reason = match &change.kind {
            GuardedChangeKind::RemovedMachine(allocation) => explain_use(connection, machine, allocation.as_deref())?,
            GuardedChangeKind::EndedAllocation(allocation) => explain_use(connection, machine, Some(allocation))?,
            GuardedChangeKind::AddedAllocation(allocation) => {
                let is_recorded = !read_install_state(connection, machine, allocation)?.created.is_empty();
                is_recorded.then_some("has already had this allocation, which was removed")
            }
            GuardedChangeKind::RemovedApproval => {
                has_approved_order(connection, machine)?.then_some("has an order that requires the approved plan")
            }
        };
        refused.extend(reason.map(|reason| RefusedChange { change: change.clone(), reason }));
    }
    Ok(refused)
}

/// Returns the reason why the machine is in use: it has an installed system, an installation in progress, an order, or
/// a migration. Returns `None` if it is not in use.
fn explain_use(connection: &Connection, machine: &str, allocation: Option<&str>) -> sql::Result<Option<&'static str>> {
    if find_live(connection, machine)?.is_some() {
        return Ok(Some("is being migrated"));
    }
    let Some(allocation) = allocation else { return Ok(None) };
    let install_state = read_install_state(connection, machine, allocation)?;
    Ok(match () {
        () if install_state.order.is_some() => Some("has an order for a reinstall"),
        () if install_state.is_installed() => Some("is installed"),
        () if install_state.first.is_some() => Some("is being installed"),
        () => None,
    })
}

/// Returns whether an open order of the machine requires an approval.
fn has_approved_order(connection: &Connection, machine: &str) -> sql::Result<bool> {
    let select = connection.prepare_cached("SELECT allocation FROM orders WHERE machine = ?1")?;
    let allocations: Vec<String> = select.query_map([machine], |row| row.get(0))?.collect::<sql::Result<_>>()?;
    for allocation in allocations {
        let order = read_order(connection, machine, &allocation)?;
        if order.is_some_and(|order| order.required_approval.is_some()) {
            return Ok(true);
        }
    }
    Ok(false)
}

impl ServerState {
    /// Returns the changes that are refused because of the present states of the machines.
    ///
    /// # Errors
    /// Returns an error if the database cannot be read.
    pub async fn list_refused_changes(&self, changes: Vec<GuardedChange>) -> Result<Vec<RefusedChange>> {
        self.run_job(move |connection| find_refused(connection, &changes)).await
    }
}
