//! Decision about what a machine boots next. Nothing that was installed is installed again without an order, and the attempts are limited.

use super::boots::{self, Boot};
use super::orders::{ATTEMPTS, end, forget, keep};
use super::standing::{Order, Outcome, read};
use super::store::Durability;
use super::{State, moves, now, strangers};
use crate::carried::Part;
use crate::error::Result;
use crate::serve::moves::MoveState;
use rusqlite::{OptionalExtension, Transaction, params};
use std::time::Duration;
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;

/// Content of the operator's files about a machine that boots.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Files {
    /// The file contains this allocation.
    Allocated(String),
    /// The file contains no allocation.
    Free,
    /// There is no usable file.
    Nothing,
}

/// Boot target of a machine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum NextBoot {
    /// The ramdisk: the machine will be installed, or waits for its file or its allocation.
    Install,
    /// The ramdisk, for an attempt at this order.
    Attempt(Order),
    /// The ramdisk, which boots the installed system: the order needs confirmation, because the database was restored.
    Unconfirmed(Order),
    /// The disk: the machine is installed, and no reinstall is ordered.
    Disk,
    /// The disk: no attempt at this order has passed the point of no return, and the order is dropped.
    Dropped(Order),
    /// The disk: the allocation is installed under this other id.
    Elsewhere(String),
    /// The disk: the machine is installed, and does not have a usable file.
    NoFile,
    /// The ramdisk without the agent: this order has started and was abandoned. The operator must intervene.
    Stop(Order),
    /// The ramdisk, for its role in a migration.
    Moving(Part, MoveState),
    /// The ramdisk, where it waits: its disks contain the system of another machine.
    Released,
    /// Refuses the boot: the machine does not have a file, and the limit of such machines is reached.
    Crowded,
}

/// Response to a request for a boot.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Handed {
    pub next: NextBoot,
    /// Active boot of the machine, which the request does not change.
    pub active: Option<Boot>,
}

impl State {
    /// Decides what the machine boots, and counts the attempt. Only a counted attempt is synced, since any client can send the request.
    ///
    /// A missing file does not make a machine new: see [`NextBoot::NoFile`]. While a boot is active, nothing is counted: the requested boot
    /// counts when it registers.
    ///
    /// # Errors
    /// The database cannot be read or written.
    pub async fn next_boot(&self, machine: &str, files: Files) -> Result<Handed> {
        let (machine, heard) = (machine.to_owned(), self.heard.clone());
        self.as_durable_as_needed(move |transaction| {
            let active = boots::current(transaction, &machine)?.filter(|boot| heard.is(boot));
            let files = moves::files(transaction, &machine, files)?;
            let before = transaction.total_changes();
            let next = chosen(transaction, &machine, &files, active.is_some(), heard.quiet)?;
            let durability = durability_since(transaction, before);
            match (&files, &next) {
                (Files::Nothing, NextBoot::Install) if !strangers::admit(transaction, &machine, &heard)? => {
                    return Ok((Handed { next: NextBoot::Crowded, active }, durability));
                }
                (Files::Nothing, _) => {}
                _ => strangers::is_known(transaction, &machine)?,
            }
            Ok((Handed { next, active }, durability))
        })
        .await
    }
}

/// Matches if something is barred, and nothing else is installed: the allocation in the file or, without a usable file, any allocation.
const HELD: &str = "SELECT 1 FROM barred WHERE machine = ?1 AND NOT EXISTS (
     SELECT 1 FROM allocations a WHERE a.machine = ?1 AND a.succeeded = 1 AND (?2 IS NULL OR a.id = ?2)
         AND NOT EXISTS (SELECT 1 FROM barred b WHERE b.machine = a.machine AND b.allocation = a.id))";

impl State {
    /// Returns whether nothing may be booted from the machine's disks because of a migration. Any client may ask: nothing is counted or
    /// stored.
    ///
    /// # Errors
    /// The database cannot be read or written.
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

/// Returns what the machine boots. While another of its boots is active, nothing is counted.
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

/// Returns what the machine would boot, without counting an attempt or abandoning an order.
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

/// Returns whether an attempt was counted recently, for which no boot has registered. Another request, even from an unknown client, then
/// uses up no further one.
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
    let message = format!("abandoned after {ATTEMPTS} attempts, none of which reached the point of no return");
    end(transaction, machine, allocation, &Outcome::of(&order, false, message))?;
    Ok(NextBoot::Dropped(order))
}

/// Returns what a machine without a file boots. A machine that was installed boots its disk until its file is back. A machine whose
/// reinstall has started has no system there: it gets the ramdisk and waits for its file. No attempt is counted.
fn without_file(transaction: &Transaction, machine: &str) -> rusqlite::Result<NextBoot> {
    let select = "SELECT o.begun FROM allocations a LEFT JOIN orders o ON o.machine = a.machine AND o.allocation = a.id
         WHERE a.machine = ?1 AND a.succeeded = 1 ORDER BY coalesce(o.begun, 0) DESC LIMIT 1";
    let installed = transaction.query_row(select, [machine], |row| row.get::<_, Option<u32>>(0)).optional()?;
    Ok(match installed {
        Some(begun) if begun.unwrap_or_default() == 0 => NextBoot::NoFile,
        Some(_) | None => NextBoot::Install,
    })
}
