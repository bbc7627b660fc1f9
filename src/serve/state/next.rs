//! What a machine boots next. Nothing that was installed is installed again without an order, and the attempts are limited.

use super::boots::{self, Boot};
use super::orders::{ATTEMPTS, end, forget, keep};
use super::standing::{Order, Outcome, read};
use super::store::Durability;
use super::{Hash, State, moves, now, strangers};
use crate::carried::Part;
use crate::error::Result;
use crate::serve::moves::MoveState;
use rusqlite::{OptionalExtension, Transaction, params};
use std::time::Duration;
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;

/// What the operator's files say about a machine that boots.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Files {
    /// Its file gives it this allocation.
    Allocated(String),
    /// Its file gives it no allocation.
    Free,
    /// It has no usable file.
    Nothing,
}

/// What a machine boots.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum NextBoot {
    /// The ramdisk: the machine is to be installed, or waits for its file or its allocation.
    Install,
    /// The ramdisk, for an attempt at this order.
    Attempt(Order),
    /// The ramdisk, which boots what is installed: the order needs confirmation, because the database was restored.
    Unconfirmed(Order),
    /// Its disk: it is installed, and nothing is ordered.
    Disk,
    /// Its disk: no attempt at this order has begun, and the order is dropped.
    Dropped(Order),
    /// Its disk: its allocation is installed under this other id.
    Elsewhere(String),
    /// Its disk: it is installed, and has no usable file.
    NoFile,
    /// The ramdisk without the agent: this order has begun and is given up. A person has to look.
    Stop(Order),
    /// The ramdisk, for its part in a move.
    Moving(Part, MoveState),
    /// The ramdisk, where it waits: what is on its disks is not its own any more.
    Released,
    /// Nothing: it has no file, and there is no room for one more such machine.
    Crowded,
}

/// A request for a boot.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Asked {
    /// Token of the new boot, as a hash.
    pub token: Hash,
    /// The address that it comes from.
    pub by: String,
    /// Hand out the ramdisk for an attempt at an order, and for nothing else.
    pub ordered_only: bool,
}

/// The answer to a request for a boot.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Handed {
    pub next: NextBoot,
    /// The machine's boot, if it is heard at another address.
    pub other: Option<Boot>,
}

impl State {
    /// Decides what the machine boots, and counts the attempt. If the machine gets the ramdisk, its boot is kept. Only a counted attempt
    /// is synced: the request comes from any client.
    ///
    /// A machine without a file is not new for that reason: see [`NextBoot::NoFile`]. While a boot is heard, a request from
    /// another address changes nothing. What it asks for counts when its boot registers.
    ///
    /// # Errors
    /// The database's.
    pub async fn next_boot(&self, machine: &str, files: Files, asked: Asked) -> Result<Handed> {
        let (machine, heard) = (machine.to_owned(), self.heard.clone());
        self.as_durable_as_needed(move |transaction| {
            let is_at = |boot: &Boot| boot.address.as_ref() == Some(&asked.by) || boot.asked_by == asked.by;
            let other = boots::current(transaction, &machine)?.filter(|boot| heard.is(boot) && !is_at(boot));
            let files = moves::files(transaction, &machine, files)?;
            let before = transaction.total_changes();
            let next = chosen(transaction, &machine, &files, other.is_some(), heard.quiet)?;
            let durability = durability_since(transaction, before);
            match (&files, &next) {
                (Files::Nothing, NextBoot::Install) if !strangers::admit(transaction, &machine, &heard)? => {
                    return Ok((Handed { next: NextBoot::Crowded, other }, durability));
                }
                (Files::Nothing, _) => {}
                _ => strangers::is_known(transaction, &machine)?,
            }
            let ramdisk = match next {
                // Also a system that runs may go there for its move.
                NextBoot::Attempt(_) | NextBoot::Moving(..) => true,
                NextBoot::Install | NextBoot::Unconfirmed(_) | NextBoot::Stop(_) | NextBoot::Released => {
                    !asked.ordered_only
                }
                NextBoot::Disk
                | NextBoot::Dropped(_)
                | NextBoot::Elsewhere(_)
                | NextBoot::NoFile
                | NextBoot::Crowded => false,
            };
            if ramdisk {
                boots::hand_out(transaction, &machine, asked.token, &asked.by, other.is_some())?;
            }
            Ok((Handed { next, other }, durability))
        })
        .await
    }
}

/// Something is barred, and neither what the file gives (nor anything, where none can be read) is installed beside that.
const HELD: &str = "SELECT 1 FROM barred WHERE machine = ?1 AND NOT EXISTS (
     SELECT 1 FROM allocations a WHERE a.machine = ?1 AND a.succeeded = 1 AND (?2 IS NULL OR a.id = ?2)
         AND NOT EXISTS (SELECT 1 FROM barred b WHERE b.machine = a.machine AND b.allocation = a.id))";

impl State {
    /// Must nothing be booted from the machine's disks, because of a move? Whoever asks in its name: nothing is counted or kept.
    ///
    /// # Errors
    /// The database's.
    pub async fn is_held(&self, machine: &str, files: Files) -> Result<bool> {
        let machine = machine.to_owned();
        self.run(move |connection| {
            let files = moves::files(connection, &machine, files)?;
            match moves::next(connection, &machine, &files)? {
                Some(NextBoot::Disk) => return Ok(false),
                Some(_) => return Ok(true),
                None => {}
            }
            let allocation = match files {
                Files::Allocated(allocation) => Some(allocation),
                Files::Free | Files::Nothing => None,
            };
            connection.prepare_cached(HELD)?.exists(params![machine, allocation])
        })
        .await
    }
}

/// Returns the durability of a decision: one that has changed an order is synced. Everything else that any client can cause is not.
pub fn durability_since(transaction: &Transaction, changes: u64) -> Durability {
    match transaction.total_changes() > changes {
        true => Durability::Synced,
        false => Durability::Deferred,
    }
}

/// What the machine boots. While another boot of it is heard, nothing is counted.
pub fn chosen(
    transaction: &Transaction,
    machine: &str,
    files: &Files,
    is_heard: bool,
    quiet: Duration,
) -> rusqlite::Result<NextBoot> {
    if let Some(next) = moves::next(transaction, machine, files)? {
        return Ok(next);
    }
    match files {
        Files::Allocated(allocation) if is_heard => as_it_is(transaction, machine, allocation),
        Files::Allocated(allocation) => decide(transaction, machine, allocation, quiet),
        Files::Free => Ok(NextBoot::Install),
        Files::Nothing => without_file(transaction, machine),
    }
}

/// What the machine would boot. No attempt is counted, and no order is given up.
fn as_it_is(transaction: &Transaction, machine: &str, allocation: &str) -> rusqlite::Result<NextBoot> {
    let standing = read(transaction, machine, allocation)?;
    Ok(match (standing.elsewhere, standing.succeeded, standing.order) {
        (Some(other), _, _) => NextBoot::Elsewhere(other),
        (None, false, _) => NextBoot::Install,
        (None, true, Some(order)) if standing.unconfirmed && !order.given_up => NextBoot::Unconfirmed(order),
        (None, true, Some(order)) => NextBoot::Attempt(order),
        (None, true, None) => NextBoot::Disk,
    })
}

/// Has an attempt been counted lately that no boot has registered for? Then another request, even a stranger's, uses up none.
fn is_counted(order: &Order, quiet: Duration) -> bool {
    let handed = order.handed.as_ref().and_then(|handed| OffsetDateTime::parse(handed, &Rfc3339).ok());
    handed.is_some_and(|handed| (OffsetDateTime::now_utc() - handed).unsigned_abs() < quiet)
}

pub fn decide(
    transaction: &Transaction,
    machine: &str,
    allocation: &str,
    quiet: Duration,
) -> rusqlite::Result<NextBoot> {
    let standing = read(transaction, machine, allocation)?;
    if let Some(other) = standing.elsewhere {
        return Ok(NextBoot::Elsewhere(other));
    }
    if !standing.succeeded {
        return Ok(NextBoot::Install);
    }
    let Some(mut order) = standing.order else { return Ok(NextBoot::Disk) };
    if standing.unconfirmed && !order.given_up {
        return Ok(NextBoot::Unconfirmed(order));
    }
    if is_counted(&order, quiet) && !order.given_up {
        return Ok(NextBoot::Attempt(order));
    }
    if order.attempts < ATTEMPTS && !order.given_up {
        order.attempts += 1;
        order.handed = Some(now());
        keep(transaction, machine, allocation, &order)?;
        return Ok(NextBoot::Attempt(order));
    }
    if order.begun {
        // The last attempt may be complete and its report lost in a power cut: one more boot can report it.
        let is_unheard = !std::mem::replace(&mut order.given_up, true);
        if is_unheard {
            keep(transaction, machine, allocation, &order)?;
        }
        return Ok(if is_unheard { NextBoot::Attempt(order) } else { NextBoot::Stop(order) });
    }
    forget(transaction, machine, allocation)?;
    let message = format!("given up after {ATTEMPTS} attempts, none of which reached the point of no return");
    end(transaction, machine, allocation, &Outcome::of(&order, false, message))?;
    Ok(NextBoot::Dropped(order))
}

/// A machine that was installed once boots its disk until its file is back. A machine whose reinstall has begun has no system
/// there: it gets the ramdisk and waits for its file. No attempt is counted.
fn without_file(transaction: &Transaction, machine: &str) -> rusqlite::Result<NextBoot> {
    let select = "SELECT o.begun FROM allocations a LEFT JOIN orders o ON o.machine = a.machine AND o.allocation = a.id
         WHERE a.machine = ?1 AND a.succeeded = 1 ORDER BY coalesce(o.begun, 0) DESC LIMIT 1";
    let installed = transaction.query_row(select, [machine], |row| row.get::<_, Option<u32>>(0)).optional()?;
    Ok(match installed {
        Some(begun) if begun.unwrap_or_default() == 0 => NextBoot::NoFile,
        Some(_) | None => NextBoot::Install,
    })
}
