//! Adoption of an installation that the server has no record of: the operator confirms that the allocation is
//! installed. The agent then boots the installed system that the install marker on the machine's disks describes, and
//! reports this marker.
//!
//! If the machine reported a marker before the adoption, a later report of success is valid only if that report
//! contains the same marker. The operator can specify the marker that was listed: if the machine has reported another
//! one in the meantime, the adoption is refused. The server cannot verify the content of the marker, and shows the
//! content as unverified until a reinstall has completed.
//!
//! `drophammer adopt` writes a marker to a machine that another installer has installed. Such a machine is adopted
//! together with this marker, before the machine has reported it.

use super::install_state::{InstallState, read_install_state};
use super::json_columns::to_json_column;
use super::waiting_marker::{ConfirmedMarker, explain_other_marker};
use super::{ServerState, migration_records, now};
use crate::sql::{self, Transaction, params};
use common::error::Result;
use model::install_marker::InstallMarker;
use serde_json::Value;

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum AdoptOutcome {
    /// The request is carried out: the adoption is recorded, or the record of the adoption is removed.
    Adopted,
    /// The request is rejected. Contains the reason.
    Rejected(String),
}

impl ServerState {
    /// Records that the allocation is installed on this machine, as reported by the operator. The failure of an earlier
    /// attempt is discarded. `confirmed` is the install marker that the operator has seen; `None` if it is unknown.
    ///
    /// # Errors
    /// Returns an error if the database cannot be read or written.
    pub async fn adopt_allocation(
        &self,
        machine: &str,
        allocation: &str,
        confirmed: Option<ConfirmedMarker>,
    ) -> Result<AdoptOutcome> {
        let (machine, allocation) = (machine.to_owned(), allocation.to_owned());
        self.run_durably(move |transaction| {
            if let Some(why) = explain_rejection(transaction, &machine, &allocation)? {
                return Ok(AdoptOutcome::Rejected(why));
            }
            let install_state = read_install_state(transaction, &machine, &allocation)?;
            let other = confirmed.and_then(|confirmed| explain_other_marker(&install_state, &machine, &confirmed));
            if let Some(why) = other {
                return Ok(AdoptOutcome::Rejected(why));
            }
            mark_adopted(transaction, &machine, &allocation)?;
            Ok(AdoptOutcome::Adopted)
        })
        .await
    }

    /// Marks the allocation that the marker names as adopted and installed, and stores the marker and the layout with
    /// it. The contents of the marker are not verified.
    ///
    /// # Errors
    /// Returns an error if the database cannot be read or written.
    pub async fn adopt_with_marker(&self, marker: &InstallMarker, layout: &Value) -> Result<AdoptOutcome> {
        let (marker, layout) = (marker.clone(), layout.to_string());
        self.run_durably(move |transaction| {
            let (machine, allocation) = (&marker.machine, &marker.allocation);
            if let Some(why) = explain_rejection(transaction, machine, allocation)? {
                return Ok(AdoptOutcome::Rejected(why));
            }
            mark_adopted(transaction, machine, allocation)?;
            transaction.execute(
                "UPDATE allocations SET succeeded = 1, image = ?3, layout = ?4, marker = ?5, waits = NULL
                 WHERE machine = ?1 AND id = ?2",
                params![machine, allocation, marker.image, layout, to_json_column(&marker)?],
            )?;
            Ok(AdoptOutcome::Adopted)
        })
        .await
    }

    /// Removes the record of an adopted installation. An allocation without a record is not an error.
    ///
    /// # Errors
    /// Returns an error if the database cannot be read or written.
    pub async fn remove_adoption(&self, machine: &str, allocation: &str) -> Result<AdoptOutcome> {
        let (machine, allocation) = (machine.to_owned(), allocation.to_owned());
        self.run_durably(move |transaction| {
            if let Some(why) = migration_records::explain_block(transaction, &machine)? {
                return Ok(AdoptOutcome::Rejected(why));
            }
            let install_state = read_install_state(transaction, &machine, &allocation)?;
            if let Some(why) = explain_lasting_adoption(&install_state) {
                return Ok(AdoptOutcome::Rejected(format!("allocation {allocation} of machine {machine}: {why}")));
            }
            for delete in [
                "DELETE FROM layouts WHERE machine = ?1 AND allocation = ?2",
                "DELETE FROM allocations WHERE machine = ?1 AND id = ?2",
            ] {
                transaction.execute(delete, params![machine, allocation])?;
            }
            Ok(AdoptOutcome::Adopted)
        })
        .await
    }
}

/// Returns the reason why the record of an adopted installation must not be removed.
pub fn explain_lasting_adoption(install_state: &InstallState) -> Option<&'static str> {
    let is_reported = install_state.succeeded && !install_state.is_claimed;
    if install_state.order.is_some() {
        Some("a reinstall is ordered; cancel the reinstall first")
    } else if is_reported || install_state.first.is_some() {
        Some("the machine was installed or reinstalled after its adoption; free the machine instead")
    } else {
        None
    }
}

/// Returns the reason why the allocation cannot be recorded as installed on this machine.
fn explain_rejection(transaction: &Transaction, machine: &str, allocation: &str) -> sql::Result<Option<String>> {
    let install_state = read_install_state(transaction, machine, allocation)?;
    let blocked = migration_records::explain_block(transaction, machine)?;
    let why = if install_state.barred {
        Some(format!("allocation {allocation} was migrated, and no longer belongs to machine {machine}"))
    } else if install_state.succeeded {
        Some(format!("allocation {allocation} of machine {machine} is already recorded as installed"))
    } else {
        let installed_on = |other| format!("allocation {allocation} is installed under machine {other}");
        install_state.elsewhere.map(installed_on)
    };
    Ok(blocked.or(why))
}

/// Records the adoption, and discards the failure of an earlier attempt. If the adoption is already recorded, it still
/// applies only to the marker that the operator has seen then.
fn mark_adopted(transaction: &Transaction, machine: &str, allocation: &str) -> sql::Result<()> {
    let upsert = "INSERT INTO allocations (machine, id, created, adopted) VALUES (?1, ?2, ?3, ?3)
         ON CONFLICT (machine, id) DO UPDATE SET adopted = ?3, failure = NULL,
             adopted_marker = CASE WHEN allocations.adopted IS NULL THEN allocations.waits
                 ELSE allocations.adopted_marker END";
    transaction.execute(upsert, params![machine, allocation, now()]).map(drop)
}

/// Records the adopted allocation as installed, although the machine has not reported an install marker.
pub(crate) fn claim_installation(transaction: &Transaction, machine: &str, allocation: &str) -> sql::Result<()> {
    let update = "UPDATE allocations SET succeeded = 1, waits = NULL WHERE machine = ?1 AND id = ?2";
    transaction.execute(update, params![machine, allocation]).map(drop)
}

/// Withdraws the operator's adoption of the allocation. Called if the machine has reported an install marker that
/// differs from the adopted one. The reported marker then waits for the operator's confirmation.
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
