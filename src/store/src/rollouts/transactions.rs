//! Transactions that create and change rollouts, and order the reinstalls of members. The transaction that orders a
//! reinstall also marks its member as ordered. Therefore no member is ordered twice, even if two servers share the
//! database.

use super::records::{find_open_membership, list_ids, read_member, read_rollout, store_member, store_members};
use super::schedule::next_member;
use super::state_change::{mark_ended, settle};
use super::summary::{read_summary, store_rollout};
use super::{MemberRecord, MemberState, Rollout, RolloutMember, RolloutRecord, RolloutState, RolloutSummary};
use crate::event_history::{HistoryEntry, HistoryKind, insert_entry};
use crate::install_state::read_install_state;
use crate::json_columns::to_json_column;
use crate::operator_documents;
use crate::reinstall_order_records::{ReinstallOrder, ReinstallOverrides, delete_order};
use crate::reinstall_orders::{OrderBasis, OrderOutcome, insert_order};
use crate::sql::{self, Transaction, params};
use crate::{ServerState, now};
use common::error::Result;
use std::collections::BTreeSet;
use time::OffsetDateTime;

/// Number of the newest rollouts that are stored. The creation of a rollout deletes older rollouts that have ended.
const MAXIMUM_STORED_ROLLOUTS: usize = 200;
/// Number of members of the newest rollouts that are stored. Lists and metrics count all stored members.
const MAXIMUM_STORED_MEMBERS: u32 = 200_000;

/// Result of a request for a rollout.
#[derive(Debug, Clone, PartialEq)]
pub enum RolloutOutcome {
    Done(Rollout),
    NotFound,
    /// The request is refused for this reason.
    Refused(String),
}

/// Change of a rollout that an operator requests.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RolloutChange {
    /// Starts no further members. Contains the reason.
    Halt(String),
    /// Starts members again, and accepts all failures so far.
    Resume,
    /// Starts no further members, and cancels the orders that have not passed their point of no return. Contains the
    /// reason.
    Cancel(String),
}

/// Result of ordering the reinstall of a member.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum MemberOrderOutcome {
    Ordered {
        order: Box<ReinstallOrder>,
        /// Suspended or abandoned order that the new order has replaced.
        replaced: Option<Box<ReinstallOrder>>,
    },
    /// The member was skipped for this reason.
    Skipped(String),
    /// The member is not due: another server has ordered it, or the rollout was halted. Nothing was changed.
    NotDue,
}

impl ServerState {
    /// Stores a new rollout. Refuses machines that are waiting or in progress in another rollout.
    ///
    /// # Errors
    /// Returns an error if the database cannot be read or written.
    pub async fn create_rollout(
        &self,
        record: RolloutRecord,
        members: Vec<(String, MemberRecord)>,
    ) -> Result<RolloutOutcome> {
        let images: BTreeSet<&String> = members.iter().map(|(_, member)| &member.image).collect();
        let record = RolloutRecord { images: images.into_iter().cloned().collect(), ..record };
        self.run_durably(move |transaction| {
            let machines: Vec<&str> = members.iter().map(|(machine, _)| machine.as_str()).collect();
            if let Some((machine, other)) = find_open_membership(transaction, &machines)? {
                let why = format!(
                    "machine {machine} is a member of rollout {other}, which has not ended: wait until it has ended, \
                     or run `drophammer rollout cancel {other}`"
                );
                return Ok(RolloutOutcome::Refused(why));
            }
            delete_oldest(transaction)?;
            let insert = "INSERT INTO rollouts (state, active, document) VALUES (?1, 1, ?2) RETURNING id";
            let state = RolloutState::Running;
            let values = params![to_json_column(&state)?, to_json_column(&record)?];
            let id = transaction.query_row(insert, values, |row| row.get(0))?;
            let member = |(machine, record)| RolloutMember { machine, state: MemberState::Waiting, record };
            let members: Vec<RolloutMember> = members.into_iter().map(member).collect();
            store_members(transaction, id, &members.iter().enumerate().collect::<Vec<_>>())?;
            Ok(RolloutOutcome::Done(Rollout { id, state, record, members }))
        })
        .await
    }

    /// Halts, resumes or cancels a rollout.
    ///
    /// # Errors
    /// Returns an error if the database cannot be read or written.
    pub async fn change_rollout(&self, id: i64, change: RolloutChange) -> Result<RolloutOutcome> {
        self.run_durably(move |transaction| {
            let Some(rollout) = read_summary(transaction, id)? else { return Ok(RolloutOutcome::NotFound) };
            if let Err(why) = apply_change(transaction, rollout, change)? {
                return Ok(RolloutOutcome::Refused(format!("rollout {id}: {why}")));
            }
            Ok(read_rollout(transaction, id)?.map_or(RolloutOutcome::NotFound, RolloutOutcome::Done))
        })
        .await
    }

    /// Orders the reinstall of a member, if the member is due. A member whose reinstall cannot be ordered is skipped.
    /// `based_on` contains the documents with which the order was checked. If the machine file has changed, the outcome
    /// is `NotDue`: the check must be repeated. `replaces` is the suspended or abandoned order that the operator
    /// replaces; an order that was suspended or abandoned later is not replaced.
    ///
    /// # Errors
    /// Returns an error if the database cannot be read or written.
    pub async fn order_member(
        &self,
        (id, number): (i64, usize),
        allocation: &str,
        overrides: ReinstallOverrides,
        replaces: Option<&str>,
        based_on: Option<OrderBasis>,
    ) -> Result<MemberOrderOutcome> {
        let (allocation, time, replaces) = (allocation.to_owned(), self.shared_time(), replaces.map(str::to_owned));
        let OrderBasis { machine_file, approval } = based_on.unwrap_or_default();
        self.run_durably(move |transaction| {
            let due = find_due(transaction, id, number, time)?;
            let is_outdated = operator_documents::has_changed(transaction, machine_file.as_slice())?;
            let Some((rollout, mut member)) = due.filter(|_| !is_outdated) else {
                return Ok(MemberOrderOutcome::NotDue);
            };
            let machine = member.machine.clone();
            let open = read_install_state(transaction, &machine, &allocation)?.order;
            let user = rollout.record.created_by;
            let refused = match open.and_then(|open| explain_open_order(&open, replaces.as_deref())) {
                Some(why) => why,
                None => {
                    let order = (&*member.record.image, overrides, approval);
                    match insert_order(transaction, (&machine, &allocation), order, user)? {
                        OrderOutcome::Placed { order, replaced } => {
                            member.state = MemberState::Ordered;
                            member.record.allocation = allocation;
                            member.record.order.clone_from(&order.id);
                            member.record.ordered = now();
                            member.record.reason = replaced.as_deref().map(describe_replaced).unwrap_or_default();
                            store_member(transaction, id, number, &member)?;
                            return Ok(MemberOrderOutcome::Ordered { order: Box::new(order), replaced });
                        }
                        OrderOutcome::NotInstalled => format!("allocation {allocation} is not installed"),
                        OrderOutcome::Started(open) => {
                            format!("the reinstall with image {image} has started", image = open.image)
                        }
                        OrderOutcome::Blocked(why) => why,
                    }
                }
            };
            end_member(transaction, (id, number), member, MemberState::Skipped, refused.clone())?;
            Ok(MemberOrderOutcome::Skipped(refused))
        })
        .await
    }

    /// Skips a member whose reinstall cannot be ordered, if the member is due. Returns whether it was skipped.
    ///
    /// # Errors
    /// Returns an error if the database cannot be read or written.
    pub async fn skip_member(&self, (id, number): (i64, usize), reason: String) -> Result<bool> {
        let time = self.shared_time();
        self.run_durably(move |transaction| {
            let Some((_, member)) = find_due(transaction, id, number, time)? else { return Ok(false) };
            end_member(transaction, (id, number), member, MemberState::Skipped, reason)?;
            Ok(true)
        })
        .await
    }

    /// Records that a member in progress has failed for this reason, and cancels its order unless the order has passed
    /// its point of no return. Returns whether the member was in progress.
    ///
    /// # Errors
    /// Returns an error if the database cannot be read or written.
    pub async fn fail_member(&self, (id, number): (i64, usize), reason: String) -> Result<bool> {
        self.run_durably(move |transaction| {
            let member = read_member(transaction, id, number)?.filter(|member| member.state.is_in_progress());
            let Some(member) = member else { return Ok(false) };
            withdraw_order(transaction, &member)?;
            end_member(transaction, (id, number), member, MemberState::Failed, reason)?;
            Ok(true)
        })
        .await
    }
}

/// Returns the reason why a rollout must not replace this order of the machine, or `None` if the operator replaces it.
fn explain_open_order(open: &ReinstallOrder, replaces: Option<&str>) -> Option<String> {
    let image = &open.image;
    match open.given_up {
        false => Some(format!("another reinstall of the machine is ordered, with image {image}")),
        true if replaces == Some(open.id.as_str()) => None,
        true => Some(format!(
            "another reinstall of the machine, with image {image}, was {state} after the rollout was requested: order the \
             reinstall of this machine separately",
            state = describe_end(open)
        )),
    }
}

fn describe_end(order: &ReinstallOrder) -> &'static str {
    if order.is_suspended() { "suspended" } else { "abandoned after its point of no return" }
}

/// Describes the order that the order of a member has replaced.
fn describe_replaced(replaced: &ReinstallOrder) -> String {
    let ReinstallOrder { id, image, .. } = replaced;
    format!("replaces order {id} with image {image}, which was {state}", state = describe_end(replaced))
}

/// Deletes the oldest rollouts that have ended, if there are too many rollouts or members.
fn delete_oldest(transaction: &Transaction) -> sql::Result<()> {
    let ids = list_ids(transaction, false)?.into_iter();
    let rollouts = ids.filter_map(|id| read_summary(transaction, id).transpose());
    for id in list_excess(&rollouts.collect::<sql::Result<Vec<_>>>()?) {
        transaction.execute("DELETE FROM rollout_members WHERE rollout = ?1", [id])?;
        transaction.execute("DELETE FROM rollouts WHERE id = ?1", [id])?;
    }
    Ok(())
}

/// Returns the ids of the rollouts that have ended and exceed the limits. The newest rollout is the first one.
fn list_excess(rollouts: &[RolloutSummary]) -> Vec<i64> {
    let (mut excess, mut members) = (Vec::new(), 0);
    for (index, rollout) in rollouts.iter().enumerate() {
        members += rollout.count(|_| true);
        let is_excess = index >= MAXIMUM_STORED_ROLLOUTS || members > MAXIMUM_STORED_MEMBERS;
        let has_ended = matches!(rollout.state, RolloutState::Canceled | RolloutState::Finished);
        if is_excess && has_ended && rollout.count(MemberState::is_in_progress) == 0 {
            excess.push(rollout.id);
        }
    }
    excess
}

/// Returns the rollout and the member, if the member is the next one that may start.
fn find_due(
    transaction: &Transaction,
    id: i64,
    number: usize,
    now: OffsetDateTime,
) -> sql::Result<Option<(RolloutSummary, RolloutMember)>> {
    let rollout = read_summary(transaction, id)?.filter(|rollout| next_member(rollout, now) == Some(number));
    Ok(rollout.zip(read_member(transaction, id, number)?))
}

/// Stores the final state of a member, and updates the state of the rollout.
fn end_member(
    transaction: &Transaction,
    (id, number): (i64, usize),
    mut member: RolloutMember,
    state: MemberState,
    reason: String,
) -> sql::Result<()> {
    mark_ended(&mut member, state, reason);
    store_member(transaction, id, number, &member)?;
    settle(transaction, id).map(drop)
}

/// Cancels the member's order if it is open and has not passed its point of no return. Returns whether it was canceled.
fn withdraw_order(transaction: &Transaction, member: &RolloutMember) -> sql::Result<bool> {
    let RolloutMember { machine, record: MemberRecord { allocation, order, .. }, .. } = member;
    let open = read_install_state(transaction, machine, allocation)?.order;
    let Some(open) = open.filter(|open| open.id == *order && !open.started) else { return Ok(false) };
    delete_order(transaction, machine, allocation)?;
    insert_entry(transaction, machine, &HistoryEntry::from_order(HistoryKind::Cancelled, &open))?;
    Ok(true)
}

/// Applies the change. The inner error is the reason why the change is refused.
fn apply_change(
    transaction: &Transaction,
    mut rollout: RolloutSummary,
    change: RolloutChange,
) -> sql::Result<std::result::Result<(), &'static str>> {
    match (rollout.state, change) {
        (RolloutState::Finished, _) => return Ok(Err("the rollout has finished")),
        (RolloutState::Canceled, RolloutChange::Cancel(_)) => {}
        (RolloutState::Canceled, _) => {
            return Ok(Err("the rollout was canceled; order a new rollout of the other machines"));
        }
        (_, RolloutChange::Cancel(reason)) => {
            skip_remaining_members(transaction, rollout.id, &reason)?;
            (rollout.state, rollout.record.reason) = (RolloutState::Canceled, reason);
        }
        (RolloutState::Running | RolloutState::Stopped, RolloutChange::Halt(reason)) => {
            (rollout.state, rollout.record.reason) = (RolloutState::Halted, reason);
        }
        (RolloutState::Halted, RolloutChange::Halt(_)) | (RolloutState::Running, RolloutChange::Resume) => {}
        (RolloutState::Halted | RolloutState::Stopped, RolloutChange::Resume) => {
            rollout.record.accepted_failures = rollout.count(MemberState::is_failure);
            (rollout.state, rollout.record.reason) = (RolloutState::Running, String::new());
        }
    }
    store_rollout(transaction, &rollout)?;
    settle(transaction, rollout.id).map(|_| Ok(()))
}

/// Skips the waiting members, and the members whose orders can still be canceled.
fn skip_remaining_members(transaction: &Transaction, id: i64, reason: &str) -> sql::Result<()> {
    let Some(mut rollout) = read_rollout(transaction, id)? else { return Ok(()) };
    let mut skipped = Vec::new();
    for (number, member) in rollout.members.iter_mut().enumerate() {
        let is_withdrawn = member.state.is_in_progress() && withdraw_order(transaction, member)?;
        if member.state == MemberState::Waiting || is_withdrawn {
            mark_ended(member, MemberState::Skipped, reason.to_owned());
            skipped.push((number, &*member));
        }
    }
    store_members(transaction, id, &skipped)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rollouts_above_the_limits_are_deleted_after_their_end() {
        let rollout = |id: i64, state, members: usize| {
            let member =
                RolloutMember { machine: "m".to_owned(), state: MemberState::Done, record: MemberRecord::default() };
            let members = vec![member; members];
            Rollout { id, state, record: RolloutRecord::default(), members }.summarize()
        };
        let small: Vec<_> = (0..203).rev().map(|id| rollout(id, RolloutState::Finished, 1)).collect();
        assert_eq!(list_excess(&small), [2, 1, 0]);
        let large = [
            rollout(5, RolloutState::Running, 20_000),
            rollout(4, RolloutState::Finished, 180_000),
            rollout(3, RolloutState::Canceled, 1),
            rollout(2, RolloutState::Halted, 1),
            rollout(1, RolloutState::Finished, 1),
        ];
        assert_eq!(list_excess(&large), [3, 1]);
    }
}
