//! Summaries of rollouts. The database counts the members, so that reading a summary takes about as long for a rollout
//! of ten thousand machines as for one of ten machines.

use super::records::parse_required;
use super::{MemberState, Rollout, RolloutRecord, RolloutState};
use crate::json_columns::to_json_column;
use crate::sql::{self, Connection, OptionalExtension, Row, Transaction, params};

/// Rollout without its members.
#[derive(Debug, Clone, PartialEq)]
pub struct RolloutSummary {
    pub id: i64,
    pub state: RolloutState,
    /// Fields that are stored as JSON.
    pub record: RolloutRecord,
    /// Number of members in each state. States without members are omitted.
    counts: Vec<(MemberState, u32)>,
    /// Number of the first member that is waiting; `None` if no member is.
    pub(super) first_waiting: Option<usize>,
}

impl RolloutSummary {
    /// Returns the number of members whose state meets the condition.
    pub fn count(&self, is_counted: impl Fn(MemberState) -> bool) -> u32 {
        self.counts.iter().filter(|(state, _)| is_counted(*state)).map(|(_, count)| *count).sum()
    }

    /// Returns whether the server must update the rollout: members can start, or are in progress.
    fn is_active(&self) -> bool {
        self.state == RolloutState::Running || self.count(MemberState::is_in_progress) > 0
    }
}

impl Rollout {
    /// Returns the summary of the rollout.
    pub fn summarize(&self) -> RolloutSummary {
        let counts = MemberState::ALL.into_iter().map(|state| (state, self.count(|member| member == state)));
        RolloutSummary {
            id: self.id,
            state: self.state,
            record: self.record.clone(),
            counts: counts.filter(|(_, count)| *count > 0).collect(),
            first_waiting: self.members.iter().position(|member| member.state == MemberState::Waiting),
        }
    }
}

/// Reads the summary of a rollout.
pub(super) fn read_summary(connection: &Connection, id: i64) -> sql::Result<Option<RolloutSummary>> {
    let select = "SELECT state, document FROM rollouts WHERE id = ?1";
    let read = |row: &Row| Ok((parse_required(row, 0)?, parse_required(row, 1)?));
    let stored: Option<(RolloutState, RolloutRecord)> = connection.query_row(select, [id], read).optional()?;
    let Some((state, record)) = stored else { return Ok(None) };
    let select = "SELECT state, count(*), min(number) FROM rollout_members WHERE rollout = ?1 GROUP BY state";
    let read = |row: &Row| Ok((parse_required(row, 0)?, row.get(1)?, row.get(2)?));
    let members = connection.prepare_cached(select)?.query_map([id], read)?;
    let members = members.collect::<sql::Result<Vec<(MemberState, u32, i64)>>>()?;
    let waiting = members.iter().find(|(state, ..)| *state == MemberState::Waiting);
    let first_waiting = waiting.and_then(|(.., number)| usize::try_from(*number).ok());
    let counts = members.iter().map(|(state, count, _)| (*state, *count)).collect();
    Ok(Some(RolloutSummary { id, state, record, counts, first_waiting }))
}

/// Stores the state of the rollout, without its members.
pub(super) fn store_rollout(transaction: &Transaction, rollout: &RolloutSummary) -> sql::Result<()> {
    let update = "UPDATE rollouts SET state = ?2, active = ?3, document = ?4 WHERE id = ?1";
    let (state, document) = (to_json_column(&rollout.state)?, to_json_column(&rollout.record)?);
    transaction.execute(update, params![rollout.id, state, rollout.is_active(), document]).map(drop)
}
