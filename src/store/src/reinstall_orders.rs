//! Orders for reinstalls: this module places, starts and cancels them, `install_reports` completes them, `next_boot`
//! sends them to machines, suspends and abandons them, and `reinstall_order_records` stores them.
//!
//! Each of these actions is one durable transaction, so a crash leaves the order either in its state before the action
//! or in its state after the action. A repeated request has no further effect.

mod install_reports;

pub use install_reports::ReportOutcome;

use super::event_history::{HistoryEntry, HistoryKind, insert_entry};
use super::install_attempt::AttemptStart;
use super::install_state::read_install_state;
use super::installed_allocation::start_record;
use super::operator_documents::{self, ExpectedDocument};
use super::registered_boots::current_token;
use super::reinstall_order_records::{ReinstallOrder, ReinstallOverrides, delete_order, store_order};
use super::required_approval::RequiredApproval;
use super::unrecorded_installations::claim_installation;
use super::{ServerState, database_epoch, migration_records, now, restore_confirmation};
use crate::sql::{self, Transaction};
use common::error::Result;
use model::install_marker::FencingToken;

/// Documents with which a reinstall order was checked.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct OrderBasis {
    /// Machine file, if it is in the database. The order is placed only if the file has not changed.
    pub machine_file: Option<ExpectedDocument>,
    /// Digest of the approved plan; `None` if no approval is in force. The order is carried out only while this plan is
    /// approved.
    pub approval: Option<String>,
}

/// Result of placing a reinstall order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum OrderOutcome {
    /// The reinstall order is open.
    Placed {
        order: ReinstallOrder,
        /// Older order that the new order has replaced.
        replaced: Option<Box<ReinstallOrder>>,
    },
    /// The machine has not reported an installation yet, so there is nothing to reinstall.
    NotInstalled,
    /// An older reinstall order has started, and remains open. The new order is not stored. Contains the older order.
    Started(ReinstallOrder),
    /// The machine is part of a migration, or needs confirmation after a restore. Contains the reason.
    Blocked(String),
}

/// Result of cancelling a reinstall order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CancelOutcome {
    Done(ReinstallOrder),
    NothingOrdered,
    /// The reinstall order has started, and can no longer be cancelled. Contains this order.
    Started(ReinstallOrder),
}

/// Response to an attempt that requests permission to pass the point of no return, after which the attempt may erase
/// data.
#[derive(Debug, Clone, PartialEq, Eq)]
#[allow(
    clippy::large_enum_variant,
    reason = "an attempt contains only one `OrderStart`, so the size of its largest variant does not matter"
)]
pub enum OrderStart {
    /// The attempt may pass the point of no return. Contains true if no earlier attempt of the reinstall order has
    /// passed that point.
    Permitted(ReinstallOrder, bool),
    /// The attempt must not pass the point of no return: its reinstall order is no longer open or is suspended, the
    /// machine has booted again, or the machine is blocked.
    NotInForce,
    /// The attempt must not pass the point of no return: the agent has not compared its plan with the approval that the
    /// order requires.
    Unapproved,
    /// The decision was based on outdated documents, and must be repeated.
    Outdated,
}

impl ServerState {
    /// Orders a reinstall on behalf of the user of the current request. The failure of an earlier attempt is discarded.
    /// `based_on` contains the documents with which the order was checked, as far as they must be unchanged.
    ///
    /// # Errors
    /// Returns an error if the database cannot be read or written.
    pub async fn place_order(
        &self,
        machine: &str,
        allocation: &str,
        image: &str,
        words: ReinstallOverrides,
        based_on: Option<OrderBasis>,
    ) -> Result<OrderOutcome> {
        let (machine, allocation, image) = (machine.to_owned(), allocation.to_owned(), image.to_owned());
        let (user, OrderBasis { machine_file, approval }) = (self.current_user(), based_on.unwrap_or_default());
        self.run_durably_for(machine.clone(), move |transaction| {
            if operator_documents::has_changed(transaction, machine_file.as_slice())? {
                let why =
                    format!("the file of machine {machine} has changed since the order was checked: repeat the order");
                return Ok(OrderOutcome::Blocked(why));
            }
            insert_order(transaction, (&machine, &allocation), (&image, words, approval), user)
        })
        .await
    }

    /// Cancels a reinstall order.
    ///
    /// # Errors
    /// Returns an error if the database cannot be read or written.
    pub async fn cancel_order(&self, machine: &str, allocation: &str) -> Result<CancelOutcome> {
        let (machine, allocation) = (machine.to_owned(), allocation.to_owned());
        self.run_durably_for(machine.clone(), move |transaction| {
            match read_install_state(transaction, &machine, &allocation)?.order {
                None => Ok(CancelOutcome::NothingOrdered),
                Some(order) if order.started => Ok(CancelOutcome::Started(order)),
                Some(order) => {
                    delete_order(transaction, &machine, &allocation)?;
                    insert_entry(transaction, &machine, &HistoryEntry::from_order(HistoryKind::Cancelled, &order))?;
                    Ok(CancelOutcome::Done(order))
                }
            }
        })
        .await
    }

    /// Records that an attempt of the reinstall order passes the point of no return, if this order is still open.
    ///
    /// # Errors
    /// Returns an error if the database cannot be read or written.
    pub async fn start_order(
        &self,
        machine: &str,
        allocation: &str,
        order: &str,
        start: AttemptStart,
    ) -> Result<OrderStart> {
        let (machine, allocation, order) = (machine.to_owned(), allocation.to_owned(), order.to_owned());
        self.run_durably_for(machine.clone(), move |transaction| {
            if operator_documents::has_changed(transaction, &start.based_on)? {
                return Ok(OrderStart::Outdated);
            }
            let open = read_install_state(transaction, &machine, &allocation)?.order;
            let is_blocked = explain_block(transaction, &machine)?.is_some();
            // A delayed announcement of an earlier boot must not replace the attempt of the current boot.
            let is_outdated = current_token(transaction, &machine)?.is_some_and(|current| current != start.by);
            let is_startable = |open: &ReinstallOrder| open.id == order && open.confirmed && !open.is_suspended();
            let Some(mut open) = open.filter(|open| is_startable(open) && !is_blocked && !is_outdated) else {
                return Ok(OrderStart::NotInForce);
            };
            if !open.accepts_approval(start.approved.as_deref()) {
                return Ok(OrderStart::Unapproved);
            }
            let news = !std::mem::replace(&mut open.started, true);
            open.attempt = Some(start.to_attempt(Some(open.image.clone())));
            open.disks = start.disks;
            store_order(transaction, &machine, &allocation, &open)?;
            start_record(transaction, &machine, &allocation)?;
            Ok(OrderStart::Permitted(open, news))
        })
        .await
    }
}

/// Places a reinstall order of a user within a transaction.
pub(crate) fn insert_order(
    transaction: &Transaction,
    (machine, allocation): (&str, &str),
    (image, words, approval): (&str, ReinstallOverrides, Option<String>),
    created_by: String,
) -> sql::Result<OrderOutcome> {
    if let Some(why) = explain_block(transaction, machine)? {
        return Ok(OrderOutcome::Blocked(why));
    }
    let install_state = read_install_state(transaction, machine, allocation)?;
    if !install_state.can_be_reinstalled(words.without_marker) {
        return Ok(OrderOutcome::NotInstalled);
    }
    if install_state.adopted {
        claim_installation(transaction, machine, allocation)?;
    }
    if let Some(open) = install_state.order.clone().filter(|open| open.started && !open.given_up) {
        return Ok(OrderOutcome::Started(open));
    }
    // If the earlier order had started when it was abandoned, the installed system is incomplete. The new order
    // therefore counts as started from the beginning.
    let replaced = install_state.order;
    let earlier = replaced.clone().filter(|open| open.started);
    let fencing = database_epoch::issue_token(transaction)?;
    let order = ReinstallOrder {
        created_by,
        started: earlier.is_some(),
        disks: earlier.map(|open| open.disks).unwrap_or_default(),
        required_approval: approval.map(RequiredApproval::Plan),
        ..new_order(image, words, fencing)
    };
    store_order(transaction, machine, allocation, &order)?;
    clear_failure(transaction, machine, allocation)?;
    insert_entry(transaction, machine, &HistoryEntry::from_order(HistoryKind::Ordered, &order))?;
    Ok(OrderOutcome::Placed { order, replaced: replaced.map(Box::new) })
}

/// Returns an order that has not started. The attempt of an earlier order is not copied: an install marker that this
/// attempt has written is not evidence for the new order.
fn new_order(image: &str, words: ReinstallOverrides, fencing: FencingToken) -> ReinstallOrder {
    let ReinstallOverrides { without_marker, change_promise, give_up, leave_locked, .. } = words;
    let ReinstallOverrides { replace_newer, apply_allocation, layout_digest, .. } = words;
    ReinstallOrder {
        id: uuid::Uuid::new_v4().to_string(),
        image: image.to_owned(),
        created: now(),
        created_by: String::new(),
        attempts: 0,
        started: false,
        without_marker,
        change_promise,
        give_up,
        leave_locked,
        replace_newer,
        apply_allocation,
        fencing: Some(fencing),
        confirmed: true,
        disks: Vec::new(),
        attempt: None,
        given_up: false,
        handed: None,
        unregistered: 0,
        is_final_boot: false,
        required_approval: None,
        layout_digest,
    }
}

/// Discards the failure of the last attempt, because it does not concern the new order.
fn clear_failure(transaction: &Transaction, machine: &str, allocation: &str) -> sql::Result<()> {
    let update = "UPDATE allocations SET failure = NULL WHERE machine = ?1 AND id = ?2";
    transaction.execute(update, [machine, allocation]).map(drop)
}

/// Returns the reason why no reinstall order of the machine may be placed or carried out now, or `None` if reinstall
/// orders are permitted.
fn explain_block(transaction: &Transaction, machine: &str) -> sql::Result<Option<String>> {
    match restore_confirmation::explain_first_unconfirmed(transaction, [machine])? {
        Some(why) => Ok(Some(why)),
        None => migration_records::explain_block(transaction, machine),
    }
}
