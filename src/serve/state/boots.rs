//! Boots and their tokens. A boot begins when somebody asks for the ramdisk. When it registers, from one address, it becomes the
//! machine's boot. It ends with the installation, with the machine's next boot, or after a day.
//!
//! A stranger on the boot network can ask for a boot too. So nobody at another address can end a boot that is still heard.

use super::next::{Files, NextBoot, decide, durability_since};
use super::store::Durability;
use super::{Hash, State, moves, now, registered};
use crate::error::Result;
use rusqlite::{Connection, OptionalExtension, Row, Transaction, params};
use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;

/// A machine calls each minute. A boot that has not called for this long is not heard any more.
pub const QUIET: Duration = Duration::from_secs(180);
/// A boot that has not begun to install by then ends, and the machine has to boot again.
const LASTS: time::Duration = time::Duration::hours(24);
/// How long a boot that was asked for may stay unregistered. It registers within a few minutes, or never.
const ASKED_FOR: time::Duration = time::Duration::hours(1);
/// So many boots of one machine may be asked for and not registered.
const ASKED_MOST: u32 = 16;

/// One boot of a machine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Boot {
    pub machine: String,
    pub hash: Hash,
    created: String,
    /// The address that asked for it.
    pub asked_by: String,
    /// The machine's boot was still heard, at another address, when this one was asked for.
    while_heard: bool,
    /// The address from which it has registered.
    pub address: Option<String>,
    /// It has passed its point of no return.
    pub begun: bool,
    /// Its reported end, if any: was it a success?
    pub over: Option<bool>,
}

impl Boot {
    /// A boot that installs does not expire: how long it takes depends on its disks.
    pub fn is_expired(&self) -> bool {
        !self.begun && is_older(&self.created, LASTS)
    }
}

/// Is this time longer ago? A time that cannot be read counts as longer ago.
fn is_older(text: &str, than: time::Duration) -> bool {
    OffsetDateTime::parse(text, &Rfc3339).map_or(true, |time| OffsetDateTime::now_utc() - time > than)
}

/// When each boot has called last.
#[derive(Clone)]
pub struct Heard {
    at: Arc<Mutex<HashMap<Hash, Instant>>>,
    /// Start of the server. Earlier calls are not known, so every boot counts as heard then.
    started: Instant,
    pub quiet: Duration,
}

impl Heard {
    pub fn new(quiet: Duration) -> Heard {
        Heard { at: Arc::default(), started: Instant::now(), quiet }
    }

    pub fn note(&self, boot: &Hash) {
        let mut at = self.at.lock().unwrap_or_else(PoisonError::into_inner);
        at.insert(*boot, Instant::now());
        if at.len() > 16 << 10 {
            at.retain(|_, heard| heard.elapsed() < self.quiet);
        }
    }

    pub fn since(&self, boot: &Hash) -> Duration {
        let at = self.at.lock().unwrap_or_else(PoisonError::into_inner);
        at.get(boot).copied().unwrap_or(self.started).elapsed()
    }

    /// Is the boot under way, and has it called lately?
    pub fn is(&self, boot: &Boot) -> bool {
        boot.over.is_none() && self.since(&boot.hash) < self.quiet
    }
}

/// The answer to a registration.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Enrolled {
    /// The boot is the machine's now. What it boots was decided only now if another boot was heard when this one was asked for.
    Yes(Option<NextBoot>),
    /// The boot is the machine's already, and was at this other address before.
    Moved(String),
    /// The machine's boot is still heard, at this other address.
    Waits(String),
    /// There is no such boot.
    Gone,
}

impl State {
    /// The boot with this token.
    ///
    /// # Errors
    /// The database's.
    pub async fn boot(&self, hash: Hash) -> Result<Option<Boot>> {
        self.run(move |connection| {
            let select = format!("SELECT {COLUMNS} FROM boots WHERE hash = ?1");
            connection.query_row(&select, [hash], row).optional()
        })
        .await
    }

    /// Makes this boot the machine's, unless the machine's boot is heard at another address. `allocation` is in the machine's
    /// file.
    ///
    /// # Errors
    /// The database's.
    pub async fn enroll(&self, hash: Hash, address: &str, allocation: Option<String>) -> Result<Enrolled> {
        let (address, heard) = (address.to_owned(), self.heard.clone());
        self.as_durable_as_needed(move |transaction| {
            let deferred = |enrolled| Ok((enrolled, Durability::Deferred));
            let select = format!("SELECT {COLUMNS} FROM boots WHERE hash = ?1");
            let Some(boot) = transaction.query_row(&select, [hash], row).optional()? else {
                return deferred(Enrolled::Gone);
            };
            let current = current(transaction, &boot.machine)?;
            let is_it = current.as_ref().is_some_and(|current| current.hash == hash);
            let other = current.filter(|current| current.address.as_deref() != Some(address.as_str()));
            if let Some(at) = other.as_ref().filter(|other| heard.is(other)).and_then(|other| other.address.clone()) {
                return deferred(Enrolled::Waits(at));
            }
            let set = "UPDATE boots SET address = ?2 WHERE hash = ?1";
            if is_it {
                transaction.execute(set, params![hash, address])?;
                return deferred(other.and_then(|other| other.address).map_or(Enrolled::Yes(None), Enrolled::Moved));
            }
            let before = transaction.total_changes();
            let next = match allocation.filter(|_| boot.while_heard) {
                Some(allocation) => {
                    let files = Files::Allocated(allocation.clone());
                    Some(match moves::next(transaction, &boot.machine, &files)? {
                        Some(next) => next,
                        None => decide(transaction, &boot.machine, &allocation, heard.quiet)?,
                    })
                }
                None => None,
            };
            let durability = durability_since(transaction, before);
            transaction.execute("UPDATE orders SET handed = NULL WHERE machine = ?1", [&boot.machine])?;
            // Boots that were asked for later stay: one may be the machine's next boot.
            let older =
                "DELETE FROM boots WHERE machine = ?1 AND hash <> ?2 AND (address IS NOT NULL OR created <= ?3)";
            transaction.execute(older, params![boot.machine, hash, boot.created])?;
            transaction.execute(set, params![hash, address])?;
            Ok((Enrolled::Yes(next), durability))
        })
        .await
    }

    /// Notes that the boot has passed its point of no return.
    ///
    /// # Errors
    /// The database's.
    pub async fn boot_begins(&self, hash: Hash) -> Result<()> {
        self.durably(move |transaction| {
            transaction.execute("UPDATE boots SET begun = 1 WHERE hash = ?1", [hash])?;
            registered::is_over(transaction, hash)
        })
        .await
    }

    /// Notes that the boot has reported its end.
    ///
    /// # Errors
    /// The database's.
    pub async fn boot_ends(&self, hash: Hash, success: bool) -> Result<()> {
        let update = "UPDATE boots SET over = ?2 WHERE hash = ?1 AND over IS NOT 1";
        self.durably(move |transaction| transaction.execute(update, params![hash, success]).map(drop)).await
    }
}

const COLUMNS: &str = "machine, hash, created, asked_by, while_heard, address, begun, over";

fn row(row: &Row) -> rusqlite::Result<Boot> {
    Ok(Boot {
        machine: row.get(0)?,
        hash: row.get(1)?,
        created: row.get(2)?,
        asked_by: row.get(3)?,
        while_heard: row.get(4)?,
        address: row.get(5)?,
        begun: row.get(6)?,
        over: row.get(7)?,
    })
}

/// The machine's boot: the last one that has registered.
pub fn current(connection: &Connection, machine: &str) -> rusqlite::Result<Option<Boot>> {
    let select = format!("SELECT {COLUMNS} FROM boots WHERE machine = ?1 AND address IS NOT NULL");
    connection.query_row(&select, [machine], row).optional()
}

/// Keeps a boot that somebody at this address has asked for. The machine's boot ends now, unless it is heard at another address.
pub fn hand_out(
    transaction: &Transaction,
    machine: &str,
    hash: Hash,
    asked_by: &str,
    while_heard: bool,
) -> rusqlite::Result<()> {
    if !while_heard {
        transaction.execute("DELETE FROM boots WHERE machine = ?1 AND address IS NOT NULL", [machine])?;
    }
    let again = "DELETE FROM boots WHERE machine = ?1 AND asked_by = ?2 AND address IS NULL";
    transaction.execute(again, params![machine, asked_by])?;
    let mut asked = transaction.prepare("SELECT hash, created FROM boots WHERE machine = ?1 AND address IS NULL")?;
    let asked: Vec<(Hash, String)> =
        asked.query_map([machine], |row| Ok((row.get(0)?, row.get(1)?)))?.collect::<rusqlite::Result<_>>()?;
    for (old, _) in asked.iter().filter(|(_, created)| is_older(created, ASKED_FOR)) {
        transaction.execute("DELETE FROM boots WHERE hash = ?1", [old])?;
    }
    let most = "DELETE FROM boots WHERE hash IN (SELECT hash FROM boots WHERE machine = ?1 AND address IS NULL
         ORDER BY created DESC LIMIT -1 OFFSET ?2)";
    transaction.execute(most, params![machine, ASKED_MOST - 1])?;
    transaction.execute(
        "INSERT OR REPLACE INTO boots (hash, machine, created, asked_by, while_heard) VALUES (?1, ?2, ?3, ?4, ?5)",
        params![hash, machine, now(), asked_by, while_heard],
    )?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_ends_after_a_day_unless_its_installation_has_begun() {
        let at = |hours: i64| (OffsetDateTime::now_utc() - time::Duration::hours(hours)).format(&Rfc3339).unwrap();
        let boot = |created: String, begun: bool| Boot {
            machine: "m".to_owned(),
            hash: [1; 32],
            created,
            asked_by: String::new(),
            while_heard: false,
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
