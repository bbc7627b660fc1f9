//! Orders for reinstalls: placed, started, reported and cancelled here. `next` serves and abandons them.
//!
//! Each of these is one durable transaction: a crash leaves the order as before or as after it. A repeated request finds that it was done.

use super::first::{self, current_token};
use super::proof::{self, AttemptStart, SuccessEffect, Unproven};
use super::standing::{Order, Outcome, Standing, Words, read};
use super::{Hash, State, adopted, confirmed, epoch, json, moves, now};
use crate::control::wire::Report;
use crate::error::Result;
use crate::marker::Marker;
use crate::plan::{Leaves, StageName};
use crate::serve::promise::contradiction;
use rusqlite::{OptionalExtension, Transaction, params};

/// Maximum number of attempts at one order.
pub const ATTEMPTS: u32 = 3;

/// Response to an operator who orders a reinstall.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Ordered {
    /// The order is open. It replaces an older open order.
    Placed(Order),
    /// The machine has not yet reported an installation that a reinstall could renew.
    NotInstalled,
    /// The older order has passed the point of no return, and remains.
    Begun(Order),
    /// The machine is part of a migration, or needs confirmation after a restore.
    Blocked(String),
}

/// Response to an operator who cancels an order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Cancelled {
    Done(Order),
    NothingOrdered,
    /// Too late: the order has passed the point of no return.
    Begun(Order),
}

/// Response to an attempt that requests to pass the point of no return.
#[derive(Debug, Clone, PartialEq, Eq)]
#[allow(clippy::large_enum_variant, reason = "one value for each attempt")]
pub enum Begun {
    /// The order has started, by this attempt or an earlier one. True if no attempt has started before.
    Yes(Order, bool),
    /// The order is not the open one.
    NotInForce,
}

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Reported {
    /// True if the report is not a repetition.
    pub news: bool,
    /// True if the machine should try again immediately.
    pub retry: bool,
    /// Open order to which the report refers, after the report.
    pub order: Option<Order>,
    /// Success of the machine's installation; `None` if the report is about another one.
    pub over: Option<bool>,
    /// Reason why the reported success is not valid. Nothing was recorded then.
    pub unproven: Option<Unproven>,
}

impl State {
    /// Orders a reinstall.
    ///
    /// # Errors
    /// The database cannot be read or written.
    pub async fn order(&self, machine: &str, allocation: &str, image: &str, words: Words) -> Result<Ordered> {
        let (machine, allocation, image) = (machine.to_owned(), allocation.to_owned(), image.to_owned());
        self.durably(move |transaction| {
            if let Some(why) = blocked(transaction, &machine)? {
                return Ok(Ordered::Blocked(why));
            }
            let standing = read(transaction, &machine, &allocation)?;
            if !standing.succeeded {
                return Ok(Ordered::NotInstalled);
            }
            if let Some(open) = standing.order.clone().filter(|open| open.begun && !open.given_up) {
                return Ok(Ordered::Begun(open));
            }
            // An abandoned order that has started leaves an incomplete system: the new order counts as started too.
            let earlier = standing.order.filter(|open| open.begun);
            let Words { without_marker, change_promise, give_up, replace_newer } = words;
            let order = Order {
                id: uuid::Uuid::new_v4().to_string(),
                image,
                created: now(),
                attempts: 0,
                begun: earlier.is_some(),
                without_marker,
                change_promise,
                give_up,
                replace_newer,
                fencing: Some(epoch::issue_token(transaction)?),
                confirmed: true,
                disks: earlier.map(|open| open.disks).unwrap_or_default(),
                // The marker of an attempt at the earlier order proves nothing about this one.
                attempt: None,
                given_up: false,
                handed: None,
            };
            keep(transaction, &machine, &allocation, &order)?;
            Ok(Ordered::Placed(order))
        })
        .await
    }

    /// Cancels an order.
    ///
    /// # Errors
    /// The database cannot be read or written.
    pub async fn cancel(&self, machine: &str, allocation: &str) -> Result<Cancelled> {
        let (machine, allocation) = (machine.to_owned(), allocation.to_owned());
        self.durably(move |transaction| match read(transaction, &machine, &allocation)?.order {
            None => Ok(Cancelled::NothingOrdered),
            Some(order) if order.begun => Ok(Cancelled::Begun(order)),
            Some(order) => {
                forget(transaction, &machine, &allocation)?;
                Ok(Cancelled::Done(order))
            }
        })
        .await
    }

    /// Records that the order passes its point of no return, if it is still the open order.
    ///
    /// # Errors
    /// The database cannot be read or written.
    pub async fn begin(&self, machine: &str, allocation: &str, order: &str, start: AttemptStart) -> Result<Begun> {
        let (machine, allocation, order) = (machine.to_owned(), allocation.to_owned(), order.to_owned());
        self.durably(move |transaction| {
            let open = read(transaction, &machine, &allocation)?.order;
            let is_blocked = blocked(transaction, &machine)?.is_some();
            // A delayed announcement of an earlier boot must not replace the attempt of a later one.
            let is_outdated = current_token(transaction, &machine)?.is_some_and(|current| current != start.by);
            let Some(mut open) = open.filter(|open| open.id == order && !is_blocked && !is_outdated) else {
                return Ok(Begun::NotInForce);
            };
            let news = !std::mem::replace(&mut open.begun, true);
            open.attempt = Some(start.attempt(Some(open.image.clone())));
            open.disks = start.disks;
            keep(transaction, &machine, &allocation, &open)?;
            Ok(Begun::Yes(open, news))
        })
        .await
    }

    /// Stores the report of this boot, and records its effects. The same report again changes nothing. A success that is not proven is not
    /// stored.
    ///
    /// # Errors
    /// The database cannot be read or written.
    pub async fn report(&self, machine: &str, allocation: &str, boot: Hash, report: &Report) -> Result<Reported> {
        let (machine, allocation, text) = (machine.to_owned(), allocation.to_owned(), json(report)?);
        let report = report.clone();
        self.durably(move |transaction| {
            let before = read(transaction, &machine, &allocation)?;
            let judged = report.success.then(|| proof::judge(&before, &allocation, boot, &report)).transpose();
            let effect = match judged {
                Ok(effect) => effect,
                Err(why) => {
                    if why == Unproven::NotAdopted {
                        adopted::withdraw(transaction, &machine, &allocation, report.marker.as_ref())?;
                    }
                    return Ok(Reported { unproven: Some(why), ..Reported::default() });
                }
            };
            transaction.execute(
                "INSERT OR IGNORE INTO allocations (machine, id, created) VALUES (?1, ?2, ?3)",
                params![machine, allocation, now()],
            )?;
            let order = before.order.clone().filter(|order| report.order.as_ref() == Some(&order.id));
            let is_recorded = effect != Some(SuccessEffect::Nothing);
            let mut reported = Reported { order: order.clone().filter(|_| is_recorded), ..Reported::default() };
            // An unconfirmed machine boots its installed system, whatever is ordered.
            let is_about_it = order.is_some() || before.order.is_none() || before.unconfirmed;
            match (effect, order) {
                (Some(effect), _) => succeed(transaction, (&machine, &allocation), &before, effect, &report)?,
                (None, Some(order)) => reported = failed(transaction, &machine, &allocation, order, &report)?,
                (None, None) if report.order.is_none() => {
                    first::failed(transaction, &machine, &allocation, before.first.clone(), &report)?
                }
                // The report is not about the open order, which remains.
                (None, None) => {}
            }
            confirmed::confirm_by_report(transaction, &machine, &allocation, &report)?;
            let waits = unknown_marker(&read(transaction, &machine, &allocation)?, &allocation, &report);
            let waits = waits.map(column).transpose()?;
            let update = "UPDATE allocations SET waits = ?3 WHERE machine = ?1 AND id = ?2";
            transaction.execute(update, params![machine, allocation, waits])?;
            let is_same = "UPDATE allocations SET report = ?3 WHERE machine = ?1 AND id = ?2 AND report IS NOT ?3";
            let other_text = transaction.execute(is_same, params![machine, allocation, text])? > 0;
            let after = read(transaction, &machine, &allocation)?;
            reported.over = is_about_it.then_some(report.success);
            reported.news = other_text || before.succeeded != after.succeeded || before.order != after.order;
            Ok(reported)
        })
        .await
    }
}

/// Records a success that is proven.
fn succeed(
    transaction: &Transaction,
    (machine, allocation): (&str, &str),
    before: &Standing,
    effect: SuccessEffect,
    report: &Report,
) -> rusqlite::Result<()> {
    let is_moved = before.barred || moves::blocked(transaction, machine)?.is_some();
    match effect {
        SuccessEffect::Completes(order) => finish(transaction, machine, allocation, &order, report),
        SuccessEffect::Nothing => Ok(()),
        SuccessEffect::Installs | SuccessEffect::Adopts if before.elsewhere.is_some() || is_moved => Ok(()),
        SuccessEffect::Installs => {
            installed(transaction, machine, allocation, report, None)?;
            end_adoption(transaction, machine, allocation)
        }
        SuccessEffect::Adopts => installed(transaction, machine, allocation, report, None),
    }
}

/// Returns why no order of the machine may be placed or carried out now.
fn blocked(transaction: &Transaction, machine: &str) -> rusqlite::Result<Option<String>> {
    match confirmed::first_unconfirmed(transaction, [machine])? {
        Some(why) => Ok(Some(why)),
        None => moves::blocked(transaction, machine),
    }
}

/// Returns the reported marker of this allocation if the database lacks that installation: after a failure, or while the machine
/// needs confirmation.
fn unknown_marker<'a>(standing: &Standing, allocation: &str, report: &'a Report) -> Option<&'a Marker> {
    let is_unknown = |marker: &&Marker| {
        let differs = standing.unconfirmed && standing.marker.as_ref() != Some(*marker);
        marker.allocation == allocation && (!report.success || differs)
    };
    report.marker.as_ref().filter(is_unknown)
}

fn finish(
    transaction: &Transaction,
    machine: &str,
    allocation: &str,
    order: &Order,
    report: &Report,
) -> rusqlite::Result<()> {
    installed(transaction, machine, allocation, report, Some(&order.image))?;
    end_adoption(transaction, machine, allocation)?;
    end(transaction, machine, allocation, &Outcome::of(order, true, report.message.as_str()))?;
    forget(transaction, machine, allocation)
}

/// Records that the installation is proven, and no longer a claim of an adopted marker.
fn end_adoption(transaction: &Transaction, machine: &str, allocation: &str) -> rusqlite::Result<()> {
    let update = "UPDATE allocations SET adopted = NULL, adopted_marker = NULL WHERE machine = ?1 AND id = ?2";
    transaction.execute(update, [machine, allocation]).map(drop)
}

/// Records that the allocation is installed as it was served last.
fn installed(
    transaction: &Transaction,
    machine: &str,
    allocation: &str,
    report: &Report,
    ordered: Option<&str>,
) -> rusqlite::Result<()> {
    let select = "SELECT document, image FROM layouts WHERE machine = ?1 AND allocation = ?2";
    let handed_out = transaction.query_row(select, [machine, allocation], |row| Ok((row.get(0)?, row.get(1)?)));
    let (layout, handed_out): (Option<String>, Option<String>) = handed_out.optional()?.unwrap_or_default();
    let marked = report.marker.as_ref().map(|marker| marker.image.clone()).filter(|image| !image.is_empty());
    let image = ordered.map(str::to_owned).or(marked).or(handed_out);
    // After an earlier installation, the layout that was served last may not be the installed one. The marker decides.
    let is_other = |marker: &Marker| {
        let document = layout.as_deref().and_then(|layout| serde_json::from_str::<serde_json::Value>(layout).ok());
        document.is_some_and(|document| contradiction(marker, &document).is_some())
    };
    let layout = if report.marker.as_ref().is_some_and(is_other) { None } else { layout };
    let marker = report.marker.as_ref().and_then(|marker| serde_json::to_string(marker).ok());
    // Its disks contain this installation, whatever was copied to them before.
    moves::free(transaction, machine, None)?;
    // A report of a system that was only found and booted does not list volumes.
    let volumes = report.burn.as_ref().and_then(|_| serde_json::to_string(&report.volumes).ok());
    transaction.execute(
        "UPDATE allocations SET succeeded = 1, image = ?3, layout = coalesce(?4, layout), marker = ?5, begun = NULL,
            volumes = coalesce(?6, volumes)
         WHERE machine = ?1 AND id = ?2",
        params![machine, allocation, image, layout, marker, volumes],
    )?;
    Ok(())
}

/// Records a failed attempt at the open order.
fn failed(
    transaction: &Transaction,
    machine: &str,
    allocation: &str,
    mut order: Order,
    report: &Report,
) -> rusqlite::Result<Reported> {
    let step = report.step.as_deref().map(|step| format!("{step}: ")).unwrap_or_default();
    end(transaction, machine, allocation, &Outcome::of(&order, false, format!("{step}{}", report.message)))?;
    // The order may have started already: an attempt has announced its start, but never received the response. The agent has checked that
    // the old installation is complete.
    if report.untouched {
        forget(transaction, machine, allocation)?;
        return Ok(Reported { order: Some(order), ..Reported::default() });
    }
    order.begun = true;
    // `storage.prove_kept` has failed: another attempt would take the changed data for the data to preserve.
    let failed = report.step.as_deref().and_then(StageName::named);
    let has_changed = failed.is_some_and(|stage| stage.leaves() == Leaves::Changed);
    order.given_up |= has_changed || order.attempts >= ATTEMPTS;
    keep(transaction, machine, allocation, &order)?;
    Ok(Reported { retry: !order.given_up, order: Some(order), ..Reported::default() })
}

pub fn keep(transaction: &Transaction, machine: &str, allocation: &str, order: &Order) -> rusqlite::Result<()> {
    let Order { id, image, created, attempts, begun, without_marker, change_promise, give_up, .. } = order;
    let Order { disks, attempt, given_up, handed, replace_newer, fencing, .. } = order;
    let words = Words {
        without_marker: *without_marker,
        change_promise: *change_promise,
        give_up: give_up.clone(),
        replace_newer: *replace_newer,
    };
    let (disks, words) = (column(disks)?, column(&words)?);
    let fencing = fencing.as_ref().map(column).transpose()?;
    let attempt = attempt.as_ref().map(column).transpose()?;
    transaction.execute(
        "INSERT OR REPLACE INTO orders
         (machine, allocation, id, image, created, attempts, begun, without_marker, given_up, disks, words, handed,
             fencing, attempt)
         VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14)",
        params![
            machine,
            allocation,
            id,
            image,
            created,
            attempts,
            begun,
            without_marker,
            given_up,
            disks,
            words,
            handed,
            fencing,
            attempt
        ],
    )?;
    Ok(())
}

pub fn forget(transaction: &Transaction, machine: &str, allocation: &str) -> rusqlite::Result<()> {
    transaction.execute("DELETE FROM orders WHERE machine = ?1 AND allocation = ?2", [machine, allocation])?;
    Ok(())
}

pub fn end(transaction: &Transaction, machine: &str, allocation: &str, outcome: &Outcome) -> rusqlite::Result<()> {
    let text = column(outcome)?;
    transaction.execute(
        "UPDATE allocations SET outcome = ?3 WHERE machine = ?1 AND id = ?2",
        params![machine, allocation, text],
    )?;
    Ok(())
}

/// Serializes a value to JSON for a column.
pub fn column(value: &impl serde::Serialize) -> rusqlite::Result<String> {
    serde_json::to_string(value).map_err(|error| rusqlite::Error::ToSqlConversionFailure(error.into()))
}
