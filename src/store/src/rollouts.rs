//! Stored rollouts. A rollout reinstalls many machines, of which only a limited number is in progress at the same time.
//! `schedule` decides which members start next, `transactions` stores rollouts and orders the reinstalls of members,
//! `power_cycles` coordinates the power cycles of machines, `progress` updates the members from the records of their
//! machines, `restored_rollouts` halts rollouts after a restore, and `statistics` counts rollouts and members.

mod power_cycles;
mod progress;
mod restored_rollouts;
pub mod schedule;
pub mod start_window;
mod statistics;
mod transactions;

pub use progress::RolloutEvent;
pub(crate) use restored_rollouts::halt_restored;
pub use statistics::RolloutStatistics;
pub use transactions::{MemberOrderOutcome, RolloutChange, RolloutOutcome};

use crate::json_columns::{parse_column, to_json_column};
use crate::sql::{self, Connection, OptionalExtension, Row, Transaction, params};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use start_window::StartWindow;
use std::fmt;

/// State of a rollout.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum RolloutState {
    /// Members are started as soon as the limits permit it.
    Running,
    /// Halted by an operator, or by the restore of a backup.
    Halted,
    /// Stopped because too many members have failed.
    Stopped,
    /// Canceled by an operator: no further member is ever started.
    Canceled,
    /// Every member has been reinstalled, has failed, or was skipped.
    Finished,
}

impl RolloutState {
    pub const ALL: [RolloutState; 5] = [
        RolloutState::Running,
        RolloutState::Halted,
        RolloutState::Stopped,
        RolloutState::Canceled,
        RolloutState::Finished,
    ];

    pub fn as_str(self) -> &'static str {
        match self {
            RolloutState::Running => "running",
            RolloutState::Halted => "halted",
            RolloutState::Stopped => "stopped",
            RolloutState::Canceled => "canceled",
            RolloutState::Finished => "finished",
        }
    }
}

impl fmt::Display for RolloutState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

/// State of a member of a rollout.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum MemberState {
    Waiting,
    /// The reinstall is ordered, and the machine has not booted the ramdisk yet.
    Ordered,
    Installing,
    Done,
    Failed,
    /// The reinstall could not be ordered when the member was due, or the rollout was canceled.
    Skipped,
}

impl MemberState {
    pub const ALL: [MemberState; 6] = [
        MemberState::Waiting,
        MemberState::Ordered,
        MemberState::Installing,
        MemberState::Done,
        MemberState::Failed,
        MemberState::Skipped,
    ];

    pub fn as_str(self) -> &'static str {
        match self {
            MemberState::Waiting => "waiting",
            MemberState::Ordered => "ordered",
            MemberState::Installing => "installing",
            MemberState::Done => "done",
            MemberState::Failed => "failed",
            MemberState::Skipped => "skipped",
        }
    }

    /// Returns whether the member counts towards the maximum number of members in progress.
    pub fn is_in_progress(self) -> bool {
        matches!(self, MemberState::Ordered | MemberState::Installing)
    }

    /// Returns whether the member counts as a failure.
    pub fn is_failure(self) -> bool {
        matches!(self, MemberState::Failed | MemberState::Skipped)
    }
}

impl fmt::Display for MemberState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

/// Limits of a rollout.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct RolloutLimits {
    /// Maximum number of members in progress.
    pub at_most: u32,
    /// Number of failures after which no further member is started.
    pub stop_after: u32,
    /// Time before which no member is started, as RFC 3339 in UTC.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub start: Option<String>,
    /// Hours in UTC outside of which no member is started.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<String>")]
    pub window: Option<StartWindow>,
    /// True if the server power-cycles each machine when its reinstall is ordered.
    #[serde(default)]
    pub power_cycle: bool,
}

/// Rollout with its members.
#[derive(Debug, Clone, PartialEq)]
pub struct Rollout {
    pub id: i64,
    pub state: RolloutState,
    /// Fields that are stored as JSON.
    pub record: RolloutRecord,
    /// Members in the order in which they start.
    pub members: Vec<RolloutMember>,
}

/// Fields of a rollout that are stored as JSON.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct RolloutRecord {
    /// Time of the request, as RFC 3339 in UTC.
    pub created: String,
    /// User who has requested the rollout.
    pub created_by: String,
    pub limits: RolloutLimits,
    /// Reason for the state; empty if the rollout runs or has finished.
    #[serde(default)]
    pub reason: String,
    /// Number of failures that the operator has accepted by resuming the rollout.
    #[serde(default)]
    pub accepted_failures: u32,
}

/// Member of a rollout.
#[derive(Debug, Clone, PartialEq)]
pub struct RolloutMember {
    pub machine: String,
    pub state: MemberState,
    pub record: MemberRecord,
}

/// Fields of a member that are stored as JSON.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct MemberRecord {
    /// Id of the image.
    pub image: String,
    /// Requested reinstall with its approval, as the server's API has stored it.
    pub request: Value,
    /// Id of the allocation; empty until the reinstall is ordered.
    #[serde(default)]
    pub allocation: String,
    /// Id of the reinstall order; empty until the reinstall is ordered.
    #[serde(default)]
    pub order: String,
    /// Reason why the member has failed, was skipped, or requires the attention of the operator; until the member has
    /// ended, also the order that its order has replaced.
    #[serde(default)]
    pub reason: String,
    /// Time of the order, as RFC 3339 in UTC.
    #[serde(default)]
    pub ordered: String,
    /// Time at which the member has ended, as RFC 3339 in UTC.
    #[serde(default)]
    pub ended: String,
    /// Time at which the server began to power-cycle the machine; empty before that. The server power-cycles each
    /// machine only once.
    #[serde(default)]
    pub power_cycled: String,
}

impl Rollout {
    /// Returns the number of members that meet the condition.
    pub fn count(&self, is_counted: impl Fn(MemberState) -> bool) -> u32 {
        let count = self.members.iter().filter(|member| is_counted(member.state)).count();
        u32::try_from(count).unwrap_or(u32::MAX)
    }

    /// Returns the states of the members, in their order.
    pub fn member_states(&self) -> Vec<MemberState> {
        self.members.iter().map(|member| member.state).collect()
    }

    /// Returns whether the server must update the rollout: members can start, or are in progress.
    fn is_active(&self) -> bool {
        self.state == RolloutState::Running || self.count(MemberState::is_in_progress) > 0
    }
}

/// Stores the state of the rollout, without its members.
fn store_rollout(transaction: &Transaction, rollout: &Rollout) -> sql::Result<()> {
    let update = "UPDATE rollouts SET state = ?2, active = ?3, document = ?4 WHERE id = ?1";
    let (state, document) = (to_json_column(&rollout.state)?, to_json_column(&rollout.record)?);
    transaction.execute(update, params![rollout.id, state, rollout.is_active(), document]).map(drop)
}

/// Stores a member. Inserts a new member, or updates an existing one.
fn store_member(transaction: &Transaction, rollout: i64, number: usize, member: &RolloutMember) -> sql::Result<()> {
    let upsert = "INSERT INTO rollout_members (rollout, number, machine, state, document) VALUES (?1, ?2, ?3, ?4, ?5)
         ON CONFLICT (rollout, number) DO UPDATE SET state = ?4, document = ?5";
    let (state, document) = (to_json_column(&member.state)?, to_json_column(&member.record)?);
    let number = i64::try_from(number).unwrap_or(i64::MAX);
    transaction.execute(upsert, params![rollout, number, member.machine, state, document]).map(drop)
}

/// Parses a column that must contain a value.
fn parse_required<T: serde::de::DeserializeOwned>(row: &Row, column: usize) -> sql::Result<T> {
    let missing = || sql::Error::Unsuitable(format!("column {column} of a rollout is empty"));
    parse_column(row, column)?.ok_or_else(missing)
}

/// Returns the state of a rollout, without reading its members.
fn read_state(connection: &Connection, id: i64) -> sql::Result<Option<RolloutState>> {
    let select = "SELECT state FROM rollouts WHERE id = ?1";
    connection.query_row(select, [id], |row| parse_required(row, 0)).optional()
}

fn read_rollout(connection: &Connection, id: i64) -> sql::Result<Option<Rollout>> {
    let select = "SELECT state, document FROM rollouts WHERE id = ?1";
    let read = |row: &Row| {
        let (state, record) = (parse_required(row, 0)?, parse_required(row, 1)?);
        Ok(Rollout { id, state, record, members: Vec::new() })
    };
    let Some(mut rollout) = connection.query_row(select, [id], read).optional()? else { return Ok(None) };
    let select = "SELECT machine, state, document FROM rollout_members WHERE rollout = ?1 ORDER BY number";
    let read = |row: &Row| {
        Ok(RolloutMember { machine: row.get(0)?, state: parse_required(row, 1)?, record: parse_required(row, 2)? })
    };
    rollout.members = connection.prepare_cached(select)?.query_map([id], read)?.collect::<sql::Result<_>>()?;
    Ok(Some(rollout))
}

/// Returns the ids of rollouts, the newest first.
fn list_ids(connection: &Connection, only_active: bool) -> sql::Result<Vec<i64>> {
    let select = match only_active {
        true => "SELECT id FROM rollouts WHERE active = 1 ORDER BY id DESC",
        false => "SELECT id FROM rollouts ORDER BY id DESC",
    };
    connection.prepare_cached(select)?.query_map([], |row| row.get(0))?.collect()
}

/// Transfers the memberships of a machine to its new id.
pub(crate) fn rename_member(transaction: &Transaction, old: &str, new: &str) -> sql::Result<()> {
    let update = "UPDATE rollout_members SET machine = ?2 WHERE machine = ?1";
    transaction.execute(update, [old, new]).map(drop)
}
