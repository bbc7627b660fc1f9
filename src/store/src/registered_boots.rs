//! Registered boots of machines, each with the address from which it registered. A boot that was requested but has
//! not registered is not stored; its signed token contains its data.
//!
//! Every client on the boot network can request a boot, so a request does not affect any registered boot. A
//! registered boot ends when it reports the end of its installation, or when it has become inactive and another boot
//! of the machine registers. It also ends after a day if it has not started an installation. `boot_registration`
//! registers boots.

use super::boot_activity::MachineBoot;
use super::{ServerState, TokenHash, freed_machines, hardware_registrations, out_of_band_runs};
use crate::sql::{self, Connection, OptionalExtension, Row, Transaction, params};
use common::error::Result;
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;

impl ServerState {
    /// Returns the registered boot with this token. If there is none, returns `requested`, or `None` if the token of
    /// `requested` is revoked.
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
    pub async fn record_boot_start(&self, machine: &str, hash: TokenHash) -> Result<()> {
        self.run_durably_for(machine.to_owned(), move |transaction| {
            transaction.execute("UPDATE boots SET begun = 1 WHERE hash = ?1", [hash])?;
            hardware_registrations::record_erase_start(transaction, hash)
        })
        .await
    }

    /// Records that the boot has reported the end of its installation.
    ///
    /// # Errors
    /// Returns an error if the database cannot be read or written.
    pub async fn record_boot_end(&self, machine: &str, hash: TokenHash, success: bool) -> Result<()> {
        let update = "UPDATE boots SET over = ?2 WHERE hash = ?1 AND over IS DISTINCT FROM 1";
        let end = move |transaction: &Transaction| transaction.execute(update, params![hash, success]).map(drop);
        self.run_durably_for(machine.to_owned(), end).await
    }
}

/// Returns whether the token of a requested boot is revoked. That is the case if a boot that was requested later has
/// registered, or if the machine was freed after the request.
pub(crate) fn is_revoked(connection: &Connection, boot: &MachineBoot) -> sql::Result<bool> {
    Ok(revocation_times(connection, &boot.machine)?.into_iter().flatten().any(|time| !boot.is_newer_than(&time)))
}

/// Returns the time at which the machine's registered boot was requested, and the time at which the machine was last
/// freed.
fn revocation_times(connection: &Connection, machine: &str) -> sql::Result<[Option<String>; 2]> {
    let current = current_boot(connection, machine)?.map(|current| current.created);
    Ok([current, freed_machines::last_freed(connection, machine)?])
}

/// Returns the time to record as the request time of a boot that the machine requests now. This is `now`, unless a
/// recorded event that a new boot must follow is later: the request of the registered boot, the freeing of the machine,
/// or a restart or phase change of the out-of-band run. In that case, the returned time is just after the event.
/// Without this rule, an event that was recorded while a clock was ahead would prevent the machine from booting until
/// the recorded time, because each new boot would be considered older than the event.
///
/// # Errors
/// Returns an error if the database cannot be read.
pub(crate) fn request_time(connection: &Connection, machine: &str, now: OffsetDateTime) -> sql::Result<OffsetDateTime> {
    let run = out_of_band_runs::read_run(connection, machine)?;
    let restarts = run.map(|run| [run.restarted, run.since]).into_iter().flatten();
    let times = revocation_times(connection, machine)?.into_iter().flatten().chain(restarts);
    let latest = times.filter_map(|time| OffsetDateTime::parse(&time, &Rfc3339).ok()).max();
    Ok(latest.map_or(now, |latest| now.max(latest.saturating_add(time::Duration::MICROSECOND))))
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
        started: row.get(5)?,
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

    #[test]
    fn token_expires_after_a_day_unless_installation_started() {
        // Time of the shared clock. It is 40 days ahead of the clock of this server, because only the shared clock
        // matters.
        let now = OffsetDateTime::now_utc() + time::Duration::days(40);
        let at = |hours: i64| (now - time::Duration::hours(hours)).format(&Rfc3339).unwrap();
        let boot = |created: String, started: bool| MachineBoot {
            machine: "m".to_owned(),
            hash: [1; 32],
            created,
            while_active: false,
            address: None,
            started,
            over: None,
        };
        for (created, started, is_expired) in [
            (at(0), false, false),
            (at(23), false, false),
            (at(25), false, true),
            (at(25), true, false),
            ("yesterday".to_owned(), false, true),
        ] {
            assert_eq!(boot(created.clone(), started).is_expired(now), is_expired, "{created} {started}");
        }
    }
}
