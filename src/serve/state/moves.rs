//! Migrations of machines, one row each; their effects on allocations; and allocations that a machine must no longer boot.
//!
//! Each step is one durable transaction. The allocation's rows are transferred to the target machine in the transaction that records its
//! success, and the response is sent afterwards.

#[cfg(test)]
mod safety;

use super::boots;
use super::next::{Files, NextBoot};
use super::orders::column;
use super::proof::AttemptStart;
use super::standing::parsed;
use super::{Hash, State, confirmed, epoch, json};
use crate::control::wire::Report;
use crate::error::Result;
use crate::serve::moves::{Boots, Move, MoveState, Present, Word};
use rusqlite::{Connection, OptionalExtension, Transaction, params};

/// Result of an order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Placed {
    Yes,
    /// Something has changed since the order was checked.
    No(String),
}

/// Migration after an event.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Heard {
    pub is: Move,
    /// True if the event has changed the migration.
    pub news: bool,
}

impl State {
    /// Orders a migration, unless something else is open for one of the machines.
    ///
    /// # Errors
    /// The database cannot be read or written.
    pub async fn place_move(&self, new: Move) -> Result<Placed> {
        self.durably(move |transaction| place(transaction, &new)).await
    }

    /// Returns the migration that currently affects this machine.
    ///
    /// # Errors
    /// The database cannot be read or written.
    pub async fn live_move(&self, machine: &str) -> Result<Option<Move>> {
        let machine = machine.to_owned();
        self.run(move |connection| live(connection, &machine)).await
    }

    /// Blocking variant of [`State::live_move`].
    ///
    /// # Errors
    /// The database cannot be read or written.
    pub fn live_move_blocking(&self, machine: &str) -> Result<Option<Move>> {
        let machine = machine.to_owned();
        self.run_blocking(move |connection| live(connection, &machine))
    }

    /// Returns all migrations that affect machines, or are not yet applied to the operator's files.
    ///
    /// # Errors
    /// The database cannot be read or written.
    pub async fn live_moves(&self) -> Result<Vec<Move>> {
        self.run(|connection| all_live(connection)).await
    }

    /// Blocking variant of [`State::live_moves`].
    ///
    /// # Errors
    /// The database cannot be read or written.
    pub fn live_moves_blocking(&self) -> Result<Vec<Move>> {
        self.run_blocking(|connection| all_live(connection))
    }

    /// Returns the newest migration of this machine, even if it has ended.
    ///
    /// # Errors
    /// The database cannot be read or written.
    pub async fn last_move(&self, machine: &str) -> Result<Option<Move>> {
        let machine = machine.to_owned();
        self.run(move |connection| last(connection, &machine)).await
    }

    /// Returns the current boots of the two machines.
    ///
    /// # Errors
    /// The database cannot be read or written.
    pub async fn present(&self, of: &Move) -> Result<Present> {
        let (a, b) = (of.a.clone(), of.b.clone());
        self.run(move |connection| present(connection, &a, &b)).await
    }

    /// Records an event of the machine's migration, with all its effects. Returns `None` if no live migration has this id; an empty id
    /// matches any. The inner error is the reason why the event is rejected.
    ///
    /// # Errors
    /// The database cannot be read or written.
    pub async fn move_hears(&self, machine: &str, id: &str, word: Word) -> Result<Option<Result<Heard, String>>> {
        let (machine, id) = (machine.to_owned(), id.to_owned());
        self.durably(move |transaction| {
            let Some(is) = live(transaction, &machine)?.filter(|is| id.is_empty() || is.id == id) else {
                return Ok(None);
            };
            hear(transaction, &is, &word).map(Some)
        })
        .await
    }

    /// Records that the target machine passes its point of no return, if it may. Returns `None` if the machine is not the target of a live
    /// migration.
    ///
    /// # Errors
    /// The database cannot be read or written.
    pub async fn move_begins(&self, machine: &str, start: AttemptStart) -> Result<Option<Result<Heard, String>>> {
        let machine = machine.to_owned();
        self.durably(move |transaction| {
            let Some(is) = live(transaction, &machine)?.filter(|is| is.b == machine) else { return Ok(None) };
            if let Some(why) = confirmed::first_unconfirmed(transaction, [is.a.as_str(), &is.b])? {
                return Ok(Some(Err(why)));
            }
            let now = present(transaction, &is.a, &is.b)?;
            hear(transaction, &is, &Word::Begins { start, now }).map(Some)
        })
        .await
    }

    /// Stores a report of a machine in a migration, with all its effects. Returns `None` if the report is about something else.
    ///
    /// # Errors
    /// The database cannot be read or written.
    pub async fn move_report(
        &self,
        machine: &str,
        boot: Hash,
        report: &Report,
    ) -> Result<Option<Result<Heard, String>>> {
        let (machine, report, text) = (machine.to_owned(), report.clone(), json(report)?);
        self.durably(move |transaction| reported(transaction, &machine, boot, &report, &text)).await
    }

    /// Records that the operator's files reflect the result of the migration.
    ///
    /// # Errors
    /// The database cannot be read or written.
    pub async fn move_files_are_right(&self, id: &str, state: MoveState) -> Result<()> {
        let id = id.to_owned();
        self.durably(move |transaction| {
            let select = "SELECT document FROM moves WHERE id = ?1";
            let is: Option<Move> = transaction.query_row(select, [&id], |row| parsed(row, 0)).optional()?.flatten();
            match is.filter(|is| is.state == state) {
                Some(is) => keep(transaction, &Move { files: false, ..is }),
                None => Ok(()),
            }
        })
        .await
    }
}

/// Handles a report. `text` is the report as JSON.
fn reported(
    transaction: &Transaction,
    machine: &str,
    boot: Hash,
    report: &Report,
    text: &str,
) -> rusqlite::Result<Option<Result<Heard, String>>> {
    let of = live(transaction, machine)?.filter(|is| is.allocation == report.allocationuuid);
    // A migration that has ended no longer affects its machines, except for a repeated report of success.
    let Some(is) = of else { return repeated(transaction, machine, boot, report) };
    let part = is.part(machine);
    let step = report.step.as_deref().map(|step| format!("{step}: ")).unwrap_or_default();
    let message = format!("{step}{}", report.message);
    let word = match report.success {
        true => succeeds(transaction, &is, part, boot, report)?,
        false => Word::Fails { part, boot, untouched: report.untouched, message },
    };
    let heard = hear(transaction, &is, &word)?;
    if let Ok(Heard { is: Move { state: MoveState::Booting, .. }, news: true }) = &heard
        && report.success
    {
        let marker = report.marker.as_ref().map(column).transpose()?;
        transaction.execute(
            "UPDATE allocations SET report = ?3, marker = coalesce(?4, marker) WHERE machine = ?1 AND id = ?2",
            params![machine, is.allocation, text, marker],
        )?;
    }
    Ok(Some(heard))
}

/// Returns the event of a report of success.
fn succeeds(
    transaction: &Transaction,
    is: &Move,
    part: crate::carried::Part,
    boot: Hash,
    report: &Report,
) -> rusqlite::Result<Word> {
    let received_from = report.marker.as_ref().and_then(|marker| marker.received_from.clone());
    Ok(Word::Succeeds { part, boot, received_from, now: present(transaction, &is.a, &is.b)? })
}

/// Handles a report about a migration that has ended: a repeated success of the boot that ended it. Other reports are handled as for any
/// machine.
fn repeated(
    transaction: &Transaction,
    machine: &str,
    boot: Hash,
    report: &Report,
) -> rusqlite::Result<Option<Result<Heard, String>>> {
    let select = "SELECT document FROM moves WHERE (a = ?1 OR b = ?1) AND allocation = ?2 ORDER BY rowid DESC LIMIT 1";
    let key = [machine, report.allocationuuid.as_str()];
    let is: Option<Move> = transaction.query_row(select, key, |row| parsed(row, 0)).optional()?.flatten();
    let Some(is) = is.filter(|_| !report.allocationuuid.is_empty()) else { return Ok(None) };
    let is_taken_back = matches!(is.state, MoveState::Cancelled | MoveState::Refused);
    if !report.success && !report.untouched && is_taken_back && is.b == machine {
        // It has written without permission: nothing may be booted from its disks.
        bar(transaction, machine, &is.allocation, &is.id)?;
    }
    if !report.success {
        return Ok(None);
    }
    let has_begun = is.begun.as_ref().is_some_and(|begun| begun.by == boot);
    match is.part(machine) {
        crate::carried::Part::Receive if has_begun => {
            let word = succeeds(transaction, &is, crate::carried::Part::Receive, boot, report)?;
            Ok(Some(is.after(&word).map(|after| Heard { is: after, news: false })))
        }
        _ => Ok(None),
    }
}

pub fn place(transaction: &Transaction, new: &Move) -> rusqlite::Result<Placed> {
    let no = |why: String| Ok(Placed::No(why));
    if let Some(why) = confirmed::first_unconfirmed(transaction, [new.a.as_str(), &new.b])? {
        return no(why);
    }
    for machine in [&new.a, &new.b] {
        if let Some(other) = live(transaction, machine)? {
            return no(in_a_move(machine, &other));
        }
        let open = "SELECT 1 FROM orders WHERE machine = ?1 LIMIT 1";
        if transaction.query_row(open, [machine], |_| Ok(())).optional()?.is_some() {
            return no(format!("a reinstall of machine {machine} is ordered"));
        }
    }
    let installed = "SELECT 1 FROM allocations WHERE machine = ?1 AND id = ?2 AND succeeded = 1";
    if transaction.query_row(installed, [&new.a, &new.allocation], |_| Ok(())).optional()?.is_none() {
        return no(format!("allocation {} of machine {} is not installed", new.allocation, new.a));
    }
    keep(transaction, &Move { fencing: Some(epoch::issue_token(transaction)?), ..new.clone() })?;
    Ok(Placed::Yes)
}

/// Returns why nothing else can be ordered for a machine in a migration.
pub fn in_a_move(machine: &str, is: &Move) -> String {
    let what = format!("machine {machine} is part of a migration of {} to {} ({})", is.a, is.b, is.state);
    match is.state.is_open() {
        true => format!("{what}: wait for its end, or cancel it with `drophammer machine move {} --cancel`", is.a),
        false => format!("{what}, and the files of the two machines are not updated yet: see the server's output"),
    }
}

/// Returns why nothing else can be ordered for this machine now.
pub fn blocked(connection: &Connection, machine: &str) -> rusqlite::Result<Option<String>> {
    Ok(live(connection, machine)?.map(|is| in_a_move(machine, &is)))
}

pub fn live(connection: &Connection, machine: &str) -> rusqlite::Result<Option<Move>> {
    let select = "SELECT document FROM moves WHERE live = 1 AND (a = ?1 OR b = ?1) LIMIT 1";
    let found = connection.prepare_cached(select)?.query_row([machine], |row| parsed(row, 0)).optional()?;
    Ok(found.flatten())
}

pub fn last(connection: &Connection, machine: &str) -> rusqlite::Result<Option<Move>> {
    let select = "SELECT document FROM moves WHERE a = ?1 OR b = ?1 ORDER BY live DESC, rowid DESC LIMIT 1";
    let found = connection.prepare_cached(select)?.query_row([machine], |row| parsed(row, 0)).optional()?;
    Ok(found.flatten())
}

fn all_live(connection: &Connection) -> rusqlite::Result<Vec<Move>> {
    let mut all = connection.prepare("SELECT document FROM moves WHERE live = 1 ORDER BY rowid")?;
    let all: Vec<Option<Move>> = all.query_map([], |row| parsed(row, 0))?.collect::<rusqlite::Result<_>>()?;
    Ok(all.into_iter().flatten().collect())
}

pub fn present(connection: &Connection, a: &str, b: &str) -> rusqlite::Result<Present> {
    let [a, b] = [boots::current(connection, a)?, boots::current(connection, b)?];
    Ok(Present { a: a.map(|boot| boot.hash), b: b.map(|boot| boot.hash) })
}

/// Applies an event to the migration, and stores the result with all its effects.
pub fn hear(transaction: &Transaction, is: &Move, word: &Word) -> rusqlite::Result<Result<Heard, String>> {
    let after = match is.after(word) {
        Ok(after) => after,
        Err(why) => return Ok(Err(why)),
    };
    let news = after != *is;
    if news {
        follow(transaction, is, &after)?;
        keep(transaction, &after)?;
        if let (MoveState::Copying, Some(sender)) = (after.state, &after.sender) {
            // Like the boot of an installation that has started, it does not end after a day.
            transaction.execute("UPDATE boots SET begun = 1 WHERE hash = ?1", [sender.boot])?;
        }
    }
    Ok(Ok(Heard { is: after, news }))
}

/// Applies a change of state to the rows of the allocation, and to what the machines may boot.
fn follow(transaction: &Transaction, before: &Move, after: &Move) -> rusqlite::Result<()> {
    let Move { id, a, b, allocation, .. } = after;
    match (before.state, after.state) {
        (before, after) if before == after => Ok(()),
        (_, MoveState::Copying) => bar(transaction, b, allocation, id),
        (_, MoveState::Booting) => {
            hand_over(transaction, allocation, a, b)?;
            free(transaction, b, Some(allocation))?;
            bar(transaction, a, allocation, id)
        }
        (MoveState::Booting, MoveState::Cancelled) => {
            hand_over(transaction, allocation, b, a)?;
            let marker = after.marker.as_ref().map(column).transpose()?;
            let update = "UPDATE allocations SET marker = ?3 WHERE machine = ?1 AND id = ?2";
            transaction.execute(update, params![a, allocation, marker])?;
            // Allocations that the source must not boot because of this migration.
            transaction.execute("DELETE FROM barred WHERE machine = ?1 AND move = ?2", [a, id])?;
            bar(transaction, b, allocation, id)
        }
        // Nothing was written.
        (_, MoveState::Refused) => transaction.execute("DELETE FROM barred WHERE move = ?1", [id]).map(drop),
        _ => Ok(()),
    }
}

/// Transfers all rows of the allocation to another machine.
fn hand_over(transaction: &Transaction, allocation: &str, from: &str, to: &str) -> rusqlite::Result<()> {
    for (table, column) in [("allocations", "id"), ("layouts", "allocation"), ("orders", "allocation")] {
        let delete = format!("DELETE FROM {table} WHERE machine = ?1 AND {column} = ?2");
        transaction.execute(&delete, [to, allocation])?;
        let update = format!("UPDATE {table} SET machine = ?3 WHERE machine = ?1 AND {column} = ?2");
        transaction.execute(&update, [from, allocation, to])?;
    }
    Ok(())
}

/// Bars the machine from booting anything that it had before: its disks contain this allocation's system, or a part of it.
fn bar(transaction: &Transaction, machine: &str, allocation: &str, by: &str) -> rusqlite::Result<()> {
    transaction.execute(
        "INSERT OR IGNORE INTO barred (machine, allocation, move)
         SELECT ?1, ?2, ?3 UNION SELECT ?1, id, ?3 FROM allocations WHERE machine = ?1",
        [machine, allocation, by],
    )?;
    Ok(())
}

/// Lifts the bar: the machine has this allocation, or was reinstalled.
pub fn free(transaction: &Transaction, machine: &str, allocation: Option<&str>) -> rusqlite::Result<()> {
    let delete = "DELETE FROM barred WHERE machine = ?1 AND (?2 IS NULL OR allocation = ?2)";
    transaction.execute(delete, params![machine, allocation]).map(drop)
}

/// Returns whether the machine must not boot this allocation from its disks.
pub fn is_barred(connection: &Connection, machine: &str, allocation: &str) -> rusqlite::Result<bool> {
    let mut select = connection.prepare_cached("SELECT 1 FROM barred WHERE machine = ?1 AND allocation = ?2")?;
    select.exists([machine, allocation])
}

/// Returns what the files contain about a machine, or will contain when they are updated after the end of its migration.
pub fn files(connection: &Connection, machine: &str, files: Files) -> rusqlite::Result<Files> {
    let ended = live(connection, machine)?.filter(|is| !is.state.is_open() && is.part(machine) == is.state.owner());
    Ok(ended.map_or(files, |is| Files::Allocated(is.allocation)))
}

/// Matches if something is barred, and nothing else is installed.
const NOTHING_OF_ITS_OWN: &str = "SELECT 1 FROM barred WHERE machine = ?1 AND NOT EXISTS (
     SELECT 1 FROM allocations a WHERE a.machine = ?1 AND a.succeeded = 1
         AND NOT EXISTS (SELECT 1 FROM barred b WHERE b.machine = a.machine AND b.allocation = a.id))";

/// Returns what the machine boots because of a migration; `None` if migrations do not affect it.
pub fn next(connection: &Connection, machine: &str, files: &Files) -> rusqlite::Result<Option<NextBoot>> {
    if let Some(is) = live(connection, machine)? {
        match is.boots(machine) {
            Boots::Ramdisk => return Ok(Some(NextBoot::Moving(is.part(machine), is.state))),
            Boots::Disk => return Ok(Some(NextBoot::Disk)),
            Boots::AsEver => {}
        }
    }
    let is_barred = match files {
        Files::Allocated(allocation) => is_barred(connection, machine, allocation)?,
        Files::Free => false,
        Files::Nothing => connection.prepare_cached(NOTHING_OF_ITS_OWN)?.exists([machine])?,
    };
    Ok(is_barred.then_some(NextBoot::Released))
}

fn keep(transaction: &Transaction, is: &Move) -> rusqlite::Result<()> {
    transaction.execute(
        "INSERT INTO moves (id, a, b, allocation, state, live, created, document) VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8)
         ON CONFLICT (id) DO UPDATE SET state = ?5, live = ?6, document = ?8",
        params![is.id, is.a, is.b, is.allocation, is.state.name(), is.is_live(), is.created, column(is)?],
    )?;
    Ok(())
}
