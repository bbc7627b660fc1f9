//! Start of a first installation. A first installation starts when a boot passes the point of no return, after which
//! the boot may erase data. The start is permitted if the record of the allocation still permits a first
//! installation, and the boot is the machine's current boot. Once the installation has started, it can be continued
//! only on the same disks.

use super::install_attempt::{AttemptStart, StartedAttempt};
use super::install_state::{FirstInstall, InstallState, read_install_state};
use super::installed_allocation::start_record;
use super::json_columns::to_json_column;
use super::registered_boots::current_token;
use super::{ServerState, migration_records, operator_documents, restore_confirmation};
use crate::sql::{self, OptionalExtension, Transaction, params};
use common::error::Result;
use control::agent_api_types::InstallReport;
use model::install_marker::RecordedDisk;

/// Response to a boot that requests permission to pass the point of no return of a first installation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum FirstStartOutcome {
    /// The boot may erase data. Contains true if this is the first boot that starts the installation.
    Permitted(bool),
    /// The boot must not erase data, for this reason.
    Rejected(String),
    /// The decision was based on outdated documents, and must be repeated.
    Outdated,
}

impl ServerState {
    /// Records that this boot passes the point of no return of a first installation. If the start must be refused,
    /// records nothing, and returns the reason.
    ///
    /// # Errors
    /// Returns an error if the database cannot be read or written.
    pub async fn start_first_install(
        &self,
        machine: &str,
        allocation: &str,
        start: AttemptStart,
    ) -> Result<FirstStartOutcome> {
        let (machine, allocation) = (machine.to_owned(), allocation.to_owned());
        self.run_durably_for(machine.clone(), move |transaction| {
            if operator_documents::has_changed(transaction, &start.based_on)? {
                return Ok(FirstStartOutcome::Outdated);
            }
            let install_state = read_install_state(transaction, &machine, &allocation)?;
            let no = |why: String| Ok(FirstStartOutcome::Rejected(why));
            if let Some(why) = migration_records::explain_block(transaction, &machine)? {
                return no(why);
            }
            if let Some(why) = explain_refusal(&install_state, &machine, &allocation) {
                return no(why);
            }
            if current_token(transaction, &machine)? != Some(start.by) {
                return no("the machine has booted again in the meantime".to_owned());
            }
            if let Some(why) =
                install_state.first.as_ref().and_then(|first| explain_other_disk(&first.disks, &start.disks))
            {
                return no(why);
            }
            let only = install_state.first.as_ref().is_none_or(|first| first.only && first.by == start.by);
            let image = served_image(transaction, &machine, &allocation)?;
            let StartedAttempt { by, record } = start.to_attempt(image);
            let started = to_json_column(&FirstInstall { disks: start.disks, by, only, heard: false, record })?;
            transaction.execute(
                "UPDATE allocations SET begun = ?3 WHERE machine = ?1 AND id = ?2",
                params![machine, allocation, started],
            )?;
            start_record(transaction, &machine, &allocation)?;
            // This installation replaces the systems of earlier allocations, so their orders no longer apply.
            transaction
                .execute("DELETE FROM orders WHERE machine = ?1 AND allocation <> ?2", [&machine, &allocation])?;
            Ok(FirstStartOutcome::Permitted(install_state.first.is_none()))
        })
        .await
    }
}

/// Returns the reason why the record of the allocation forbids a first installation, or `None` if the record permits
/// it.
fn explain_refusal(install_state: &InstallState, machine: &str, allocation: &str) -> Option<String> {
    if install_state.unconfirmed {
        return Some(restore_confirmation::explain_confirmation(machine));
    }
    if install_state.barred {
        return Some(format!("allocation {allocation} was migrated, and no longer belongs to this machine"));
    }
    if install_state.succeeded {
        return Some(format!("allocation {allocation} is already installed: order a reinstall to install it again"));
    }
    if install_state.adopted {
        return Some(format!(
            "the operator has recorded allocation {allocation} as installed (`drophammer machine adopt`)"
        ));
    }
    if let Some(other) = &install_state.elsewhere {
        return Some(format!("allocation {allocation} is installed under machine {other}"));
    }
    install_state.handed_out.is_none().then(|| format!("allocation {allocation} was not sent to this machine"))
}

/// Records the failure of a first installation that has started. If the boot reports that it has written nothing, and
/// no earlier boot has passed the point of no return, the installation no longer counts as started.
pub(crate) fn record_failure(
    transaction: &Transaction,
    machine: &str,
    allocation: &str,
    first: Option<FirstInstall>,
    report: &InstallReport,
) -> sql::Result<()> {
    let token = current_token(transaction, machine)?;
    let Some(first) = first.filter(|first| token == Some(first.by)) else { return Ok(()) };
    let started = match report.untouched && first.only {
        true => None,
        false => Some(to_json_column(&FirstInstall { heard: true, ..first })?),
    };
    let update = "UPDATE allocations SET begun = ?3 WHERE machine = ?1 AND id = ?2";
    transaction.execute(update, params![machine, allocation, started]).map(drop)
}

/// Returns the id of the image that was specified when the allocation was last served to the machine.
pub(crate) fn served_image(transaction: &Transaction, machine: &str, allocation: &str) -> sql::Result<Option<String>> {
    let select = "SELECT image FROM layouts WHERE machine = ?1 AND allocation = ?2";
    Ok(transaction.query_row(select, [machine, allocation], |row| row.get(0)).optional()?.flatten())
}

/// Compares the machine's disks with those on which the installation started. Describes the first different disk.
fn explain_other_disk(started: &[RecordedDisk], now: &[RecordedDisk]) -> Option<String> {
    now.iter().find_map(|now| {
        let then = started.iter().find(|then| then.device == now.device)?;
        then.is_different_disk(now).then(|| {
            format!(
                "the installation started on {} with {}, but this device is now the disk with {}: put the original disk back, or assign the machine a new \
                 allocation id",
                now.device,
                describe_disk(then),
                describe_disk(now)
            )
        })
    })
}

fn describe_disk(disk: &RecordedDisk) -> String {
    let RecordedDisk { serial, wwn, size_bytes, .. } = disk;
    format!("serial {serial:?}, wwn {wwn:?}, {size}", size = common::format::format_bytes(*size_bytes))
}
