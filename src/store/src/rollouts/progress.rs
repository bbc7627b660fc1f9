//! Progress of the members of rollouts, derived from the orders and reports of their machines.

use super::records::{list_ids, list_members_in_progress, store_member};
use super::schedule::resulting_state;
use super::state_change::{RolloutEvent, mark_ended, settle};
use super::summary::read_summary;
use super::{MemberState, RolloutMember};
use crate::event_history::{HistoryEntry, HistoryKind};
use crate::install_state::read_install_state;
use crate::json_columns::parse_column;
use crate::sql::{self, Connection};
use crate::{InstallState, ServerState};
use common::error::Result;

impl ServerState {
    /// Updates the members in progress of all rollouts from the records of their machines, and returns the changes.
    ///
    /// # Errors
    /// Returns an error if the database cannot be read or written.
    pub async fn update_rollouts(&self) -> Result<Vec<RolloutEvent>> {
        // An unnecessary transaction is avoided: it would be counted as durable, and the latest backup would then
        // appear outdated.
        if !self.run_job(needs_update).await? {
            return Ok(Vec::new());
        }
        self.run_durably(|transaction| {
            let mut events = Vec::new();
            for id in list_ids(transaction, true)? {
                for (number, mut member) in list_members_in_progress(transaction, id)? {
                    match observe_member(transaction, &member)? {
                        (state, _) if state == member.state => continue,
                        (state, _) if state.is_in_progress() => member.state = state,
                        (state, reason) => {
                            mark_ended(&mut member, state, reason.clone());
                            let machine = member.machine.clone();
                            events.push(RolloutEvent::MemberEnded { rollout: id, machine, state, reason });
                        }
                    }
                    store_member(transaction, id, number, &member)?;
                }
                events.extend(settle(transaction, id)?);
            }
            Ok(events)
        })
        .await
    }
}

/// Returns whether the stored state of a rollout or of a member in progress differs from its current state. Derives the
/// current states of members from the records of their machines.
fn needs_update(connection: &Connection) -> sql::Result<bool> {
    for id in list_ids(connection, true)? {
        let Some(rollout) = read_summary(connection, id)? else { continue };
        if resulting_state(&rollout).0 != rollout.state {
            return Ok(true);
        }
        for (_, member) in list_members_in_progress(connection, id)? {
            if observe_member(connection, &member)?.0 != member.state {
                return Ok(true);
            }
        }
    }
    Ok(false)
}

/// Returns the state of a member whose reinstall was ordered, and the reason if it has failed.
pub(super) fn observe_member(connection: &Connection, member: &RolloutMember) -> sql::Result<(MemberState, String)> {
    let RolloutMember { machine, record, .. } = member;
    let install_state = read_install_state(connection, machine, &record.allocation)?;
    if let Some(order) = install_state.order.as_ref().filter(|order| order.id == record.order) {
        // An order that replaces an abandoned one counts as started before its machine has booted.
        return Ok(match (order.given_up, order.attempts > 0 || order.attempt.is_some()) {
            (true, _) if order.is_suspended() => {
                let outcome = install_state.outcome.filter(|outcome| outcome.order == record.order);
                (MemberState::Failed, outcome.map(|outcome| outcome.message).unwrap_or_default())
            }
            (true, _) => (
                MemberState::Failed,
                format!("abandoned after its point of no return{reason}", reason = last_message(&install_state)),
            ),
            (false, true) => (MemberState::Installing, String::new()),
            (false, false) => (MemberState::Ordered, String::new()),
        });
    }
    if let Some(outcome) = install_state.outcome.filter(|outcome| outcome.order == record.order) {
        return Ok(match outcome.success {
            true => (MemberState::Done, String::new()),
            false => (MemberState::Failed, outcome.message),
        });
    }
    // A later order has replaced the outcome of this order, so only the history still contains the outcome.
    Ok(match find_last_entry(connection, machine, &record.order)? {
        Some(HistoryEntry { kind: HistoryKind::Installed, .. }) => (MemberState::Done, String::new()),
        Some(HistoryEntry { kind: HistoryKind::Failed, message, .. }) => (MemberState::Failed, message),
        Some(HistoryEntry { kind: HistoryKind::Cancelled, .. }) => {
            (MemberState::Failed, "the reinstall order was canceled".to_owned())
        }
        _ => (MemberState::Failed, "the reinstall order was replaced by another order".to_owned()),
    })
}

fn last_message(install_state: &InstallState) -> String {
    install_state.failure.as_ref().map(|failure| format!(": {failure}")).unwrap_or_default()
}

/// Returns the last entry about an order in the history of the machine.
fn find_last_entry(connection: &Connection, machine: &str, order: &str) -> sql::Result<Option<HistoryEntry>> {
    let select = "SELECT entry FROM history WHERE machine = ?1 ORDER BY id DESC";
    let entries = connection.prepare_cached(select)?.query_map([machine], |row| parse_column(row, 0))?;
    let entries: Vec<Option<HistoryEntry>> = entries.collect::<sql::Result<_>>()?;
    Ok(entries.into_iter().flatten().find(|entry| entry.order.as_deref() == Some(order)))
}
