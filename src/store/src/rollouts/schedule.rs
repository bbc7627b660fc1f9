//! Decision which member of a rollout starts next. The result depends only on the arguments, so the transaction that
//! stores the result can compute it again.

use super::{MemberState, RolloutState, RolloutSummary};
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;

/// Returns the number of the member that may start now; `None` if no member may start.
pub(super) fn next_member(rollout: &RolloutSummary, now: OffsetDateTime) -> Option<usize> {
    let limits = &rollout.record.limits;
    let has_begun = rollout.count(|state| state != MemberState::Waiting) > 0;
    // Once a rollout has begun, it continues even if the clock is set back.
    let is_due = has_begun || limits.start.as_deref().is_none_or(|start| is_reached(start, now));
    let is_open = limits.window.as_ref().is_none_or(|window| window.contains(now));
    if rollout.state != RolloutState::Running || !is_due || !is_open || has_failed(rollout) {
        return None;
    }
    rollout.first_waiting.filter(|_| rollout.count(MemberState::is_in_progress) < limits.at_most)
}

/// Returns whether the number of failed members has reached the limit at which no further members are started.
fn has_failed(rollout: &RolloutSummary) -> bool {
    let failures = rollout.count(MemberState::is_failure).saturating_sub(rollout.record.accepted_failures);
    failures >= rollout.record.limits.stop_after
}

/// Returns whether a time in RFC 3339 is reached. A time that cannot be parsed is never reached.
fn is_reached(time: &str, now: OffsetDateTime) -> bool {
    OffsetDateTime::parse(time, &Rfc3339).is_ok_and(|time| time <= now)
}

/// Returns the state of the rollout that results from the states of its members, with the reason.
pub(super) fn resulting_state(rollout: &RolloutSummary) -> (RolloutState, String) {
    let waiting = rollout.count(|state| state == MemberState::Waiting);
    let failures = rollout.count(MemberState::is_failure);
    match rollout.state {
        RolloutState::Canceled | RolloutState::Finished => (rollout.state, rollout.record.reason.clone()),
        _ if waiting == 0 && rollout.count(MemberState::is_in_progress) == 0 => (RolloutState::Finished, String::new()),
        RolloutState::Running if waiting > 0 && has_failed(rollout) => {
            let members = if failures == 1 { "member has" } else { "members have" };
            let why = format!("{failures} {members} failed or were skipped, so no further members are started");
            (RolloutState::Stopped, why.replace("has failed or were", "has failed or was"))
        }
        state => (state, rollout.record.reason.clone()),
    }
}

#[cfg(test)]
mod tests;
