//! Start of a first installation, at its point of no return. It may start if nothing has changed since the allocation was served. From then
//! on it continues only with the same disks.

use super::orders::column;
use super::proof::{AttemptStart, BegunAttempt};
use super::standing::{First, read};
use super::{Hash, State, boots, confirmed, moves};
use crate::control::wire::Report;
use crate::error::Result;
use crate::marker::MarkedDisk;
use rusqlite::{OptionalExtension, Transaction, params};

/// Response to a boot that requests to pass the point of no return.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum BegunFirst {
    /// The boot may erase. True if no boot of this installation has started before.
    Yes(bool),
    /// The boot must not erase, for this reason.
    No(String),
}

impl State {
    /// Records that the boot with this token passes the point of no return of a first installation, if it may.
    ///
    /// # Errors
    /// The database cannot be read or written.
    pub async fn begin_first(&self, machine: &str, allocation: &str, start: AttemptStart) -> Result<BegunFirst> {
        let (machine, allocation) = (machine.to_owned(), allocation.to_owned());
        self.durably(move |transaction| {
            let standing = read(transaction, &machine, &allocation)?;
            let no = |why: String| Ok(BegunFirst::No(why));
            if let Some(why) = moves::blocked(transaction, &machine)? {
                return no(why);
            }
            if standing.unconfirmed {
                return no(confirmed::explain(&machine));
            }
            if standing.barred {
                return no(format!("allocation {allocation} was migrated, and no longer belongs to this machine"));
            }
            if standing.succeeded {
                return no(format!("allocation {allocation} is installed: a reinstall must be ordered"));
            }
            if standing.adopted {
                return no(format!(
                    "allocation {allocation} is installed according to the operator (`drophammer machine adopt`)"
                ));
            }
            if let Some(other) = &standing.elsewhere {
                return no(format!("allocation {allocation} is installed under machine {other}"));
            }
            if standing.handed_out.is_none() {
                return no(format!("allocation {allocation} was not served to this machine"));
            }
            if current_token(transaction, &machine)? != Some(start.by) {
                return no("the machine has booted again in the meantime".to_owned());
            }
            if let Some(why) = standing.first.as_ref().and_then(|first| other_disks(&first.disks, &start.disks)) {
                return no(why);
            }
            let only = standing.first.as_ref().is_none_or(|first| first.only && first.by == start.by);
            let image = handed_out_image(transaction, &machine, &allocation)?;
            let BegunAttempt { by, record } = start.attempt(image);
            let begun = column(&First { disks: start.disks, by, only, heard: false, record })?;
            transaction.execute(
                "UPDATE allocations SET begun = ?3 WHERE machine = ?1 AND id = ?2",
                params![machine, allocation, begun],
            )?;
            Ok(BegunFirst::Yes(standing.first.is_none()))
        })
        .await
    }
}

/// Records the failure of an installation that has started. A report that nothing was written is valid only if no earlier boot has started:
/// its changes would remain.
pub fn failed(
    transaction: &Transaction,
    machine: &str,
    allocation: &str,
    first: Option<First>,
    report: &Report,
) -> rusqlite::Result<()> {
    let token = current_token(transaction, machine)?;
    let Some(first) = first.filter(|first| token == Some(first.by)) else { return Ok(()) };
    let begun = match report.untouched && first.only {
        true => None,
        false => Some(column(&First { heard: true, ..first })?),
    };
    let update = "UPDATE allocations SET begun = ?3 WHERE machine = ?1 AND id = ?2";
    transaction.execute(update, params![machine, allocation, begun]).map(drop)
}

/// Returns the image of the allocation as it was served last.
fn handed_out_image(transaction: &Transaction, machine: &str, allocation: &str) -> rusqlite::Result<Option<String>> {
    let select = "SELECT image FROM layouts WHERE machine = ?1 AND allocation = ?2";
    Ok(transaction.query_row(select, [machine, allocation], |row| row.get(0)).optional()?.flatten())
}

pub fn current_token(transaction: &Transaction, machine: &str) -> rusqlite::Result<Option<Hash>> {
    Ok(boots::current(transaction, machine)?.map(|boot| boot.hash))
}

/// Describes the first disk that is not the one with which the installation started.
fn other_disks(begun: &[MarkedDisk], now: &[MarkedDisk]) -> Option<String> {
    now.iter().find_map(|now| {
        let then = begun.iter().find(|then| then.device == now.device)?;
        then.is_another_than(now).then(|| {
            format!(
                "the installation started on {} with {}, which is now {}: put the disk back, or give the machine a new \
                 allocation id",
                now.device,
                in_words(then),
                in_words(now)
            )
        })
    })
}

fn in_words(disk: &MarkedDisk) -> String {
    let MarkedDisk { serial, wwn, size_bytes, .. } = disk;
    format!("serial {serial:?}, wwn {wwn:?}, {}", crate::text::bytes(*size_bytes))
}
