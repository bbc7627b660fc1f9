//! Changes of the states of rollouts and members.

use super::schedule::resulting_state;
use super::summary::{read_summary, store_rollout};
use super::{MemberState, RolloutMember, RolloutState, RolloutSummary};
use crate::now;
use crate::sql::{self, Transaction};

/// Change of a rollout, for the log of the server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RolloutEvent {
    /// A member has ended in this state, for this reason.
    MemberEnded { rollout: i64, machine: String, state: MemberState, reason: String },
    /// The rollout has changed to this state, for this reason.
    StateChanged { rollout: i64, state: RolloutState, reason: String },
}

/// Sets the final state of a member, which the caller then stores.
pub(super) fn mark_ended(member: &mut RolloutMember, state: MemberState, reason: String) {
    (member.state, member.record.reason, member.record.ended) = (state, reason, now());
}

/// Derives the state of the rollout from the states of its members, and stores it. Returns the change of the state, if
/// there was one.
pub(super) fn settle(transaction: &Transaction, id: i64) -> sql::Result<Option<RolloutEvent>> {
    let Some(mut rollout) = read_summary(transaction, id)? else { return Ok(None) };
    let before = rollout.state;
    (rollout.state, rollout.record.reason) = resulting_state(&rollout);
    store_rollout(transaction, &rollout)?;
    let RolloutSummary { state, record, .. } = rollout;
    Ok((state != before).then_some(RolloutEvent::StateChanged { rollout: id, state, reason: record.reason }))
}
