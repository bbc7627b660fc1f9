//! Boots of machines that have registered, each from one address. A boot that was only requested has a signed token, and is not stored.
//!
//! Every client on the boot network can request a boot. A request therefore changes no boot. A registered boot ends with its own
//! report, after a day without an installation, or when another boot of the machine registers after it has become silent.

use super::database_file::Durability;
use super::next_boot::{BootTarget, FileAllocation, decide_boot, durability_since};
use super::{ServerState, TokenHash, freed_machines, migrations, registrations, unknown_machines};
use crate::boot_activity::{BootActivity, MachineBoot};
use common::error::Result;
use rusqlite::{Connection, OptionalExtension, Row, Transaction, params};

/// Client that registers a boot.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Enrollment {
    pub address: String,
    /// Allocation in the machine's file.
    pub allocation: Option<String>,
    /// True if a file in `machines/` describes the machine.
    pub has_file: bool,
}

/// Result of a registration.
#[derive(Debug, Clone, PartialEq, Eq)]
#[allow(clippy::large_enum_variant, reason = "one value for each registration")]
pub enum EnrollOutcome {
    /// The boot is now the machine's current one. Contains what it boots if another boot was active when this one was requested.
    Yes(Option<BootTarget>),
    /// The boot has registered before, from this other address.
    Moved(String),
    /// Another boot of the machine, registered from this address, is still active.
    Waits(String),
    /// The machine was freed, or another boot has registered, after this boot was requested; or there are too many unknown machines.
    Gone,
}

impl ServerState {
    /// Returns the registered boot with this token, or the requested one if nothing has revoked its token.
    ///
    /// # Errors
    /// The database cannot be read or written.
    pub async fn find_boot(&self, hash: TokenHash, requested: Option<MachineBoot>) -> Result<Option<MachineBoot>> {
        self.run_job(move |connection| {
            let select = format!("SELECT {COLUMNS} FROM boots WHERE hash = ?1");
            let registered = connection.query_row(&select, [hash], read_row).optional()?;
            match (registered, requested) {
                (None, Some(requested)) if !is_revoked(connection, &requested)? => Ok(Some(requested)),
                (registered, _) => Ok(registered),
            }
        })
        .await
    }

    /// Makes this boot the machine's current one, unless another one is active. The caller has verified that a privileged process
    /// registers.
    ///
    /// # Errors
    /// The database cannot be read or written.
    pub async fn enroll_boot(&self, boot: MachineBoot, by: Enrollment) -> Result<EnrollOutcome> {
        let heard = self.heard.clone();
        self.run_as_durable_as_needed(move |transaction| {
            let deferred = |enrolled| Ok((enrolled, Durability::Deferred));
            let current = current_boot(transaction, &boot.machine)?;
            if let Some(current) = current.as_ref().filter(|current| current.hash == boot.hash) {
                return deferred(re_enroll(transaction, current, &by.address, &heard)?);
            }
            let has_room = |transaction| unknown_machines::admit_machine(transaction, &boot.machine, &heard);
            if is_revoked(transaction, &boot)? || !(by.has_file || has_room(transaction)?) {
                return deferred(EnrollOutcome::Gone);
            }
            if let Some(active) = current.filter(|current| heard.blocks_registration(current, &by.address)) {
                return deferred(EnrollOutcome::Waits(active.address.unwrap_or_default()));
            }
            let before = transaction.total_changes();
            let next = match by.allocation.filter(|_| boot.while_active) {
                Some(allocation) => {
                    let files = FileAllocation::Allocated(allocation.clone());
                    Some(match migrations::migration_boot(transaction, &boot.machine, &files)? {
                        Some(next) => next,
                        None => decide_boot(transaction, &boot.machine, &allocation, heard.quiet)?,
                    })
                }
                None => None,
            };
            let durability = durability_since(transaction, before);
            transaction.execute("UPDATE orders SET handed = NULL WHERE machine = ?1", [&boot.machine])?;
            replace_boot(transaction, &boot, &by.address)?;
            Ok((EnrollOutcome::Yes(next), durability))
        })
        .await
    }

    /// Records that the boot has passed its point of no return.
    ///
    /// # Errors
    /// The database cannot be read or written.
    pub async fn record_boot_start(&self, hash: TokenHash) -> Result<()> {
        self.run_durably(move |transaction| {
            transaction.execute("UPDATE boots SET begun = 1 WHERE hash = ?1", [hash])?;
            registrations::record_erase_start(transaction, hash)
        })
        .await
    }

    /// Records that the boot has reported its end.
    ///
    /// # Errors
    /// The database cannot be read or written.
    pub async fn record_boot_end(&self, hash: TokenHash, success: bool) -> Result<()> {
        let update = "UPDATE boots SET over = ?2 WHERE hash = ?1 AND over IS NOT 1";
        self.run_durably(move |transaction| transaction.execute(update, params![hash, success]).map(drop)).await
    }
}

/// Returns whether the boot is revoked: since it was requested, a later boot of the machine has registered, or the machine was freed.
fn is_revoked(connection: &Connection, boot: &MachineBoot) -> rusqlite::Result<bool> {
    let current = current_boot(connection, &boot.machine)?;
    let freed = freed_machines::last_freed(connection, &boot.machine)?;
    let times = [current.map(|current| current.created), freed];
    Ok(times.into_iter().flatten().any(|time| !boot.is_newer_than(&time)))
}

/// Registers the machine's current boot again. Its address may have changed.
fn re_enroll(
    transaction: &Transaction,
    boot: &MachineBoot,
    address: &str,
    heard: &BootActivity,
) -> rusqlite::Result<EnrollOutcome> {
    let before = boot.address.clone().filter(|before| before != address);
    let Some(before) = before else { return Ok(EnrollOutcome::Yes(None)) };
    if heard.is_active(boot) {
        return Ok(EnrollOutcome::Waits(before));
    }
    transaction.execute("UPDATE boots SET address = ?2 WHERE hash = ?1", params![boot.hash, address])?;
    Ok(EnrollOutcome::Moved(before))
}

/// Replaces the machine's boot with this one, which registers from the address.
pub fn replace_boot(transaction: &Transaction, boot: &MachineBoot, address: &str) -> rusqlite::Result<()> {
    transaction.execute("DELETE FROM boots WHERE machine = ?1", [&boot.machine])?;
    let MachineBoot { machine, hash, created, while_active, .. } = boot;
    transaction.execute(
        "INSERT OR REPLACE INTO boots (hash, machine, created, asked_by, while_heard, address)
         VALUES (?1, ?2, ?3, '', ?4, ?5)",
        params![hash, machine, created, while_active, address],
    )?;
    Ok(())
}

const COLUMNS: &str = "machine, hash, created, while_heard, address, begun, over";

fn read_row(row: &Row) -> rusqlite::Result<MachineBoot> {
    Ok(MachineBoot {
        machine: row.get(0)?,
        hash: row.get(1)?,
        created: row.get(2)?,
        while_active: row.get(3)?,
        address: row.get(4)?,
        begun: row.get(5)?,
        over: row.get(6)?,
    })
}

/// Returns the boot of the machine that has registered last.
pub(crate) fn current_boot(connection: &Connection, machine: &str) -> rusqlite::Result<Option<MachineBoot>> {
    let select = format!("SELECT {COLUMNS} FROM boots WHERE machine = ?1 AND address IS NOT NULL");
    connection.query_row(&select, [machine], read_row).optional()
}

#[cfg(test)]
mod tests {
    use super::*;
    use time::OffsetDateTime;
    use time::format_description::well_known::Rfc3339;

    #[test]
    fn a_token_ends_after_a_day_unless_its_installation_has_begun() {
        let at = |hours: i64| (OffsetDateTime::now_utc() - time::Duration::hours(hours)).format(&Rfc3339).unwrap();
        let boot = |created: String, begun: bool| MachineBoot {
            machine: "m".to_owned(),
            hash: [1; 32],
            created,
            while_active: false,
            address: None,
            begun,
            over: None,
        };
        for (created, begun, is_expired) in [
            (at(0), false, false),
            (at(23), false, false),
            (at(25), false, true),
            (at(25), true, false),
            ("yesterday".to_owned(), false, true),
        ] {
            assert_eq!(boot(created.clone(), begun).is_expired(), is_expired, "{created} {begun}");
        }
    }
}
