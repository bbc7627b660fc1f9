//! Transactions that create and change rollouts, and order the reinstalls of members. The transaction that orders a
//! reinstall also marks its member as ordered. Therefore no member is ordered twice, even if two servers share the
//! database.

use super::schedule::{next_members, resulting_state};
use super::{
    MemberRecord, MemberState, Rollout, RolloutMember, RolloutRecord, RolloutState, list_ids, read_rollout,
    store_member, store_rollout,
};
use crate::event_history::{HistoryEntry, HistoryKind, insert_entry};
use crate::install_state::read_install_state;
use crate::json_columns::to_json_column;
use crate::operator_documents;
use crate::reinstall_order_records::{ReinstallOrder, ReinstallOverrides, delete_order};
use crate::reinstall_orders::{OrderBasis, OrderOutcome, insert_order};
use crate::sql::{self, Transaction, params};
use crate::{ServerState, now};
use common::error::Result;
use time::OffsetDateTime;

/// Number of the newest rollouts, which are never deleted. The creation of a rollout deletes older rollouts that have
/// ended.
const MAXIMUM_STORED_ROLLOUTS: usize = 200;

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
        self.run_durably(move |transaction| {
            for (machine, _) in &members {
                if let Some(other) = find_open_membership(transaction, machine)? {
                    let why = format!(
                        "machine {machine} is a member of rollout {other}, which has not ended: wait until it has ended, or \
                         run `drophammer rollout cancel {other}`"
                    );
                    return Ok(RolloutOutcome::Refused(why));
                }
            }
            delete_oldest(transaction)?;
            let insert = "INSERT INTO rollouts (state, active, document) VALUES (?1, 1, ?2) RETURNING id";
            let state = RolloutState::Running;
            let values = params![to_json_column(&state)?, to_json_column(&record)?];
            let id = transaction.query_row(insert, values, |row| row.get(0))?;
            let member = |(machine, record)| RolloutMember { machine, state: MemberState::Waiting, record };
            let members: Vec<RolloutMember> = members.into_iter().map(member).collect();
            for (number, member) in members.iter().enumerate() {
                store_member(transaction, id, number, member)?;
            }
            Ok(RolloutOutcome::Done(Rollout { id, state, record, members }))
        })
        .await
    }

    /// Returns all rollouts, the newest first.
    ///
    /// # Errors
    /// Returns an error if the database cannot be read.
    pub async fn list_rollouts(&self) -> Result<Vec<Rollout>> {
        self.list_rollouts_where(false).await
    }

    /// Returns the rollouts whose members can start or are in progress, the newest first.
    ///
    /// # Errors
    /// Returns an error if the database cannot be read.
    pub async fn list_active_rollouts(&self) -> Result<Vec<Rollout>> {
        self.list_rollouts_where(true).await
    }

    async fn list_rollouts_where(&self, is_active: bool) -> Result<Vec<Rollout>> {
        self.run_job(move |connection| {
            let ids = list_ids(connection, is_active)?;
            ids.into_iter().filter_map(|id| read_rollout(connection, id).transpose()).collect()
        })
        .await
    }

    /// Returns the rollout with this id.
    ///
    /// # Errors
    /// Returns an error if the database cannot be read.
    pub async fn find_rollout(&self, id: i64) -> Result<Option<Rollout>> {
        self.run_job(move |connection| read_rollout(connection, id)).await
    }

    /// Returns the newest rollout of which the machine is a member.
    ///
    /// # Errors
    /// Returns an error if the database cannot be read.
    pub async fn find_rollout_of_machine(&self, machine: &str) -> Result<Option<Rollout>> {
        let machine = machine.to_owned();
        self.run_job(move |connection| {
            let select = "SELECT max(rollout) FROM rollout_members WHERE machine = ?1";
            let id = connection.query_row(select, [machine], |row| row.get::<_, Option<i64>>(0))?;
            id.map_or(Ok(None), |id| read_rollout(connection, id))
        })
        .await
    }

    /// Halts, resumes or cancels a rollout.
    ///
    /// # Errors
    /// Returns an error if the database cannot be read or written.
    pub async fn change_rollout(&self, id: i64, change: RolloutChange) -> Result<RolloutOutcome> {
        self.run_durably(move |transaction| {
            let Some(rollout) = read_rollout(transaction, id)? else { return Ok(RolloutOutcome::NotFound) };
            apply_change(transaction, rollout, change)
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
            let Some(mut rollout) = due.filter(|_| !is_outdated) else { return Ok(MemberOrderOutcome::NotDue) };
            let member = &mut rollout.members[number];
            let machine = member.machine.clone();
            let open = read_install_state(transaction, &machine, &allocation)?.order;
            let user = rollout.record.created_by.clone();
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
                            store_member(transaction, id, number, member)?;
                            store_rollout(transaction, &rollout)?;
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
            end_member(transaction, &mut rollout, number, MemberState::Skipped, refused.clone())?;
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
            let Some(mut rollout) = find_due(transaction, id, number, time)? else { return Ok(false) };
            end_member(transaction, &mut rollout, number, MemberState::Skipped, reason)?;
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
            let Some(mut rollout) = read_rollout(transaction, id)? else { return Ok(false) };
            let Some(member) = rollout.members.get(number).filter(|member| member.state.is_in_progress()) else {
                return Ok(false);
            };
            withdraw_order(transaction, member)?;
            end_member(transaction, &mut rollout, number, MemberState::Failed, reason)?;
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

/// Returns the id of a rollout in which the machine is waiting or in progress.
fn find_open_membership(transaction: &Transaction, machine: &str) -> sql::Result<Option<i64>> {
    let select = "SELECT rollout FROM rollout_members WHERE machine = ?1 ORDER BY rollout DESC";
    let ids: Vec<i64> =
        transaction.prepare(select)?.query_map([machine], |row| row.get(0))?.collect::<sql::Result<_>>()?;
    for id in ids {
        let Some(rollout) = read_rollout(transaction, id)? else { continue };
        let is_open = |member: &&RolloutMember| {
            member.machine == machine && (member.state == MemberState::Waiting || member.state.is_in_progress())
        };
        if rollout.members.iter().any(|member| is_open(&member)) {
            return Ok(Some(id));
        }
    }
    Ok(None)
}

fn delete_oldest(transaction: &Transaction) -> sql::Result<()> {
    for id in list_ids(transaction, false)?.into_iter().skip(MAXIMUM_STORED_ROLLOUTS) {
        let ended = read_rollout(transaction, id)?.is_some_and(|rollout| {
            matches!(rollout.state, RolloutState::Canceled | RolloutState::Finished) && !rollout.is_active()
        });
        if ended {
            transaction.execute("DELETE FROM rollout_members WHERE rollout = ?1", [id])?;
            transaction.execute("DELETE FROM rollouts WHERE id = ?1", [id])?;
        }
    }
    Ok(())
}

/// Returns the rollout if the member is the next one that may start.
fn find_due(transaction: &Transaction, id: i64, number: usize, now: OffsetDateTime) -> sql::Result<Option<Rollout>> {
    let rollout = read_rollout(transaction, id)?;
    Ok(rollout.filter(|rollout| next_members(rollout, now).first() == Some(&number)))
}

/// Stores the final state of a member, and updates the state of the rollout.
pub(super) fn end_member(
    transaction: &Transaction,
    rollout: &mut Rollout,
    number: usize,
    state: MemberState,
    reason: String,
) -> sql::Result<()> {
    if let Some(member) = rollout.members.get_mut(number) {
        (member.state, member.record.reason, member.record.ended) = (state, reason, now());
        store_member(transaction, rollout.id, number, member)?;
    }
    settle(transaction, rollout)
}

/// Derives the state of the rollout from the states of its members, and stores it.
pub(super) fn settle(transaction: &Transaction, rollout: &mut Rollout) -> sql::Result<()> {
    (rollout.state, rollout.record.reason) = resulting_state(rollout);
    store_rollout(transaction, rollout)
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

fn apply_change(transaction: &Transaction, mut rollout: Rollout, change: RolloutChange) -> sql::Result<RolloutOutcome> {
    let id = rollout.id;
    let refuse = |why: &str| Ok(RolloutOutcome::Refused(format!("rollout {id}: {why}")));
    match (rollout.state, change) {
        (RolloutState::Finished, _) => return refuse("the rollout has finished"),
        (RolloutState::Canceled, RolloutChange::Cancel(_)) => {}
        (RolloutState::Canceled, _) => {
            return refuse("the rollout was canceled; order a new rollout of the other machines");
        }
        (_, RolloutChange::Cancel(reason)) => {
            (rollout.state, rollout.record.reason) = (RolloutState::Canceled, reason.clone());
            for number in 0..rollout.members.len() {
                let member = &rollout.members[number];
                let is_withdrawn = member.state.is_in_progress() && withdraw_order(transaction, member)?;
                if member.state == MemberState::Waiting || is_withdrawn {
                    end_member(transaction, &mut rollout, number, MemberState::Skipped, reason.clone())?;
                }
            }
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
    settle(transaction, &mut rollout)?;
    Ok(RolloutOutcome::Done(rollout))
}
