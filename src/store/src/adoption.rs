//! Adoption of an installation that the server has no record of: the operator confirms that the allocation is
//! installed. The agent then boots the installed system that the install marker on the machine's disks describes, and
//! reports this marker.
//!
//! If the machine reported a marker before the adoption, its report of success is valid only if it contains the same
//! marker. The server cannot verify the content of the marker, and shows it as unverified until a reinstall has
//! completed.

use super::install_state::read_install_state;
use super::json_columns::to_json_column;
use super::{ServerState, migration_records, now};
use crate::sql::{self, Transaction, params};
use common::error::Result;
use model::install_marker::InstallMarker;

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum AdoptOutcome {
    Adopted,
    /// The adoption is rejected. Contains the reason.
    Rejected(String),
}

impl ServerState {
    /// Records that the allocation is installed on this machine, as reported by the operator. The failure of an earlier
    /// attempt is discarded.
    ///
    /// # Errors
    /// Returns an error if the database cannot be read or written.
    pub async fn adopt_allocation(&self, machine: &str, allocation: &str) -> Result<AdoptOutcome> {
        let (machine, allocation) = (machine.to_owned(), allocation.to_owned());
        self.run_durably(move |transaction| {
            let standing = read_install_state(transaction, &machine, &allocation)?;
            if let Some(why) = migration_records::explain_block(transaction, &machine)? {
                return Ok(AdoptOutcome::Rejected(why));
            }
            if standing.barred {
                let why = format!("allocation {allocation} was migrated, and no longer belongs to machine {machine}");
                return Ok(AdoptOutcome::Rejected(why));
            }
            if standing.succeeded {
                return Ok(AdoptOutcome::Rejected(format!(
                    "allocation {allocation} of machine {machine} is already recorded as installed"
                )));
            }
            if let Some(other) = standing.elsewhere {
                return Ok(AdoptOutcome::Rejected(format!(
                    "allocation {allocation} is installed under machine {other}"
                )));
            }
            transaction.execute(
                "INSERT INTO allocations (machine, id, created, adopted) VALUES (?1, ?2, ?3, ?3)
                 ON CONFLICT (machine, id) DO UPDATE SET adopted = ?3, adopted_marker = allocations.waits, failure = NULL",
                params![machine, allocation, now()],
            )?;
            Ok(AdoptOutcome::Adopted)
        })
        .await
    }
}

/// Withdraws the operator's adoption of the allocation. Called if the machine has reported an install marker other than
/// the adopted one. The reported marker then waits for the operator's confirmation.
pub(crate) fn withdraw_adoption(
    transaction: &Transaction,
    machine: &str,
    allocation: &str,
    found: Option<&InstallMarker>,
) -> sql::Result<()> {
    let Some(found) = found.filter(|found| found.allocation == allocation) else { return Ok(()) };
    let update =
        "UPDATE allocations SET adopted = NULL, adopted_marker = NULL, waits = ?3 WHERE machine = ?1 AND id = ?2";
    transaction.execute(update, params![machine, allocation, to_json_column(found)?]).map(drop)
}
