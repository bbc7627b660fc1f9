//! Protection of machines whose files are removed: a machine in use must not become unknown to the server.

use crate::ServerState;
use crate::install_state::read_install_state;
use crate::migration_records::find_live;
use crate::sql::{self, Connection};
use common::error::Result;

/// Machine whose file is removed, with the id of the allocation in this file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RemovedMachine {
    pub id: String,
    pub allocation: Option<String>,
}

/// Machine whose file must not be removed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ProtectedMachine {
    pub id: String,
    /// Reason for the protection, as the predicate of a sentence: `is installed`.
    pub reason: &'static str,
}

/// Returns the machines that have an installed system, an installation in progress, an order, or a migration.
pub(crate) fn find_protected(
    connection: &Connection,
    machines: &[RemovedMachine],
) -> sql::Result<Vec<ProtectedMachine>> {
    let mut protected = Vec::new();
    for machine in machines {
        let reason = find_reason(connection, machine)?;
        protected.extend(reason.map(|reason| ProtectedMachine { id: machine.id.clone(), reason }));
    }
    Ok(protected)
}

fn find_reason(connection: &Connection, machine: &RemovedMachine) -> sql::Result<Option<&'static str>> {
    if find_live(connection, &machine.id)?.is_some() {
        return Ok(Some("is being migrated"));
    }
    let Some(allocation) = &machine.allocation else { return Ok(None) };
    let install_state = read_install_state(connection, &machine.id, allocation)?;
    Ok(match () {
        () if install_state.order.is_some() => Some("has an order for a reinstall"),
        () if install_state.is_installed() => Some("is installed"),
        () if install_state.first.is_some() => Some("is being installed"),
        () => None,
    })
}

impl ServerState {
    /// Returns the machines whose files must not be removed now.
    ///
    /// # Errors
    /// Returns an error if the database cannot be read.
    pub async fn list_protected_machines(&self, machines: Vec<RemovedMachine>) -> Result<Vec<ProtectedMachine>> {
        self.run_job(move |connection| find_protected(connection, &machines)).await
    }
}
