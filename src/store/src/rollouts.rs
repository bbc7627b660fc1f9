//! Stored rollouts. A rollout reinstalls many machines, of which only a limited number is in progress at the same time.
//! `records` reads and writes rollouts and members, and `summary` reads rollouts without their members. `queries` lists
//! rollouts and members for the server. `schedule` decides which member starts next, `transactions` stores rollouts and
//! orders the reinstalls of members, `power_cycles` coordinates the power cycles of machines, `progress` updates the
//! members from the records of their machines, and `state_change` updates the states of rollouts. `restored_rollouts`
//! halts rollouts after a restore, and `statistics` counts rollouts and members.

mod power_cycles;
mod progress;
mod queries;
mod records;
mod restored_rollouts;
mod schedule;
pub mod start_window;
mod state_change;
mod statistics;
mod summary;
mod transactions;

pub(crate) use records::rename_member;
pub(crate) use restored_rollouts::halt_restored;
pub use state_change::RolloutEvent;
pub use statistics::RolloutStatistics;
pub use summary::RolloutSummary;
pub use transactions::{MemberOrderOutcome, RolloutChange, RolloutOutcome};

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
    /// Images of the members; empty in records of earlier versions.
    #[serde(default)]
    pub images: Vec<String>,
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
}
