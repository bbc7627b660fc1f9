//! Registered boots of machines, each with the address from which it registered. A boot that was requested but has not
//! registered is described by its signed token, and is not stored here.
//!
//! Every client on the boot network can request a boot, so a request does not affect any registered boot. A registered
//! boot ends when it reports the end of its installation, or when it has become silent and another boot of the machine
//! registers. A registered boot that has not started an installation also ends after a day. `boot_registration`
//! registers boots.

use super::boot_activity::MachineBoot;
use super::{ServerState, TokenHash, freed_machines, registrations};
use crate::sql::{self, Connection, OptionalExtension, Row, Transaction, params};
use common::error::Result;

impl ServerState {
    /// Returns the registered boot with this token. If no boot has registered with the token, returns `requested`, or
    /// `None` if the token of that boot is revoked.
    ///
    /// # Errors
    /// Returns an error if the database cannot be read or written.
    pub async fn find_boot(&self, hash: TokenHash, requested: Option<MachineBoot>) -> Result<Option<MachineBoot>> {
        self.run_job(move |connection| {
            let select = format!("SELECT {COLUMNS} FROM boots WHERE hash = ?1");
            let registered = connection.prepare_cached(&select)?.query_row([hash], read_row).optional()?;
            match (registered, requested) {
                (None, Some(requested)) if !is_revoked(connection, &requested)? => Ok(Some(requested)),
                (registered, _) => Ok(registered),
            }
        })
        .await
    }

    /// Records that the machine has passed the point of no return during this boot, after which the machine's disks may
    /// be erased.
    ///
    /// # Errors
    /// Returns an error if the database cannot be read or written.
    pub async fn record_boot_start(&self, hash: TokenHash) -> Result<()> {
        self.run_durably(move |transaction| {
            transaction.execute("UPDATE boots SET begun = 1 WHERE hash = ?1", [hash])?;
            registrations::record_erase_start(transaction, hash)
        })
        .await
    }

    /// Records that the boot has reported the end of its installation.
    ///
    /// # Errors
    /// Returns an error if the database cannot be read or written.
    pub async fn record_boot_end(&self, hash: TokenHash, success: bool) -> Result<()> {
        let update = "UPDATE boots SET over = ?2 WHERE hash = ?1 AND over IS DISTINCT FROM 1";
        self.run_durably(move |transaction| transaction.execute(update, params![hash, success]).map(drop)).await
    }
}

/// Returns whether the token of a requested boot is revoked. That is the case if a boot that was requested later has
/// registered, or if the machine was freed after the request.
pub(crate) fn is_revoked(connection: &Connection, boot: &MachineBoot) -> sql::Result<bool> {
    let current = current_boot(connection, &boot.machine)?;
    let freed = freed_machines::last_freed(connection, &boot.machine)?;
    let times = [current.map(|current| current.created), freed];
    Ok(times.into_iter().flatten().any(|time| !boot.is_newer_than(&time)))
}

/// Replaces the machine's registered boot with `boot`, which registers from `address`.
pub fn replace_boot(transaction: &Transaction, boot: &MachineBoot, address: &str) -> sql::Result<()> {
    let MachineBoot { machine, hash, created, while_active, .. } = boot;
    transaction.execute("DELETE FROM boots WHERE machine = ?1 OR hash = ?2", params![machine, hash])?;
    transaction.execute(
        "INSERT INTO boots (hash, machine, created, asked_by, while_heard, address)
         VALUES (?1, ?2, ?3, '', ?4, ?5)",
        params![hash, machine, created, while_active, address],
    )?;
    Ok(())
}

const COLUMNS: &str = "machine, hash, created, while_heard, address, begun, over";

fn read_row(row: &Row) -> sql::Result<MachineBoot> {
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

/// Returns the machine's boot that registered last.
pub(crate) fn current_boot(connection: &Connection, machine: &str) -> sql::Result<Option<MachineBoot>> {
    let select = format!("SELECT {COLUMNS} FROM boots WHERE machine = ?1 AND address IS NOT NULL");
    connection.prepare_cached(&select)?.query_row([machine], read_row).optional()
}

/// Returns the hash of the token of the machine's current boot.
pub(crate) fn current_token(connection: &Connection, machine: &str) -> sql::Result<Option<TokenHash>> {
    Ok(current_boot(connection, machine)?.map(|boot| boot.hash))
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
