//! Rollouts as the API and the page show them.

use super::member_approval::MemberRequest;
use crate::AppState;
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;
use store::rollouts::{
    MemberState, Rollout, RolloutLimits, RolloutMember, RolloutRecord, RolloutState, RolloutSummary,
};

/// A rollout with its members.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct RolloutView {
    pub id: i64,
    pub state: RolloutState,
    /// Reason for the state; absent if the rollout runs or has finished.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub reason: String,
    /// Time of the request, as RFC 3339 in UTC.
    pub created: String,
    /// User who has requested the rollout.
    pub created_by: String,
    #[serde(flatten)]
    pub limits: RolloutLimits,
    /// Images of the members.
    pub images: Vec<String>,
    /// Number of members.
    pub total: u32,
    pub counts: RolloutCounts,
    /// Members in the order in which they start; absent in lists.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub members: Vec<MemberView>,
}

/// Number of members in each state.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct RolloutCounts {
    pub waiting: u32,
    pub ordered: u32,
    pub installing: u32,
    pub done: u32,
    pub failed: u32,
    pub skipped: u32,
}

/// A member of a rollout.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct MemberView {
    /// Id of the machine.
    pub machine: String,
    pub name: String,
    pub image: String,
    pub state: MemberState,
    /// Reason why the member has failed, was skipped, or requires attention; until the member has ended, also the
    /// suspended or abandoned order that its order has replaced.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub reason: String,
    /// Id of the reinstall order.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub order: String,
    /// Time of the order, as RFC 3339 in UTC.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub ordered: String,
    /// Time at which the member has ended, as RFC 3339 in UTC.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub ended: String,
    /// Number of bytes that the reinstall would discard according to the plan at the time of the request; absent if the
    /// plan was unknown.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lost_bytes: Option<u64>,
    /// SHA-256 of the approved plan, if the request contains one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub approved: Option<String>,
}

impl RolloutView {
    pub(super) fn new(app: &AppState, rollout: &Rollout) -> RolloutView {
        let images: BTreeSet<&String> = rollout.members.iter().map(|member| &member.record.image).collect();
        RolloutView {
            images: images.into_iter().cloned().collect(),
            members: rollout.members.iter().map(|member| MemberView::new(app, member)).collect(),
            ..RolloutView::from_summary(rollout.summarize())
        }
    }

    /// Returns the view of a rollout without its members.
    pub(super) fn from_summary(rollout: RolloutSummary) -> RolloutView {
        let count = |state| rollout.count(|member| member == state);
        let counts = RolloutCounts {
            waiting: count(MemberState::Waiting),
            ordered: count(MemberState::Ordered),
            installing: count(MemberState::Installing),
            done: count(MemberState::Done),
            failed: count(MemberState::Failed),
            skipped: count(MemberState::Skipped),
        };
        let total = rollout.count(|_| true);
        let RolloutSummary { id, state, record, .. } = rollout;
        let RolloutRecord { created, created_by, limits, images, reason, .. } = record;
        RolloutView { id, state, reason, created, created_by, limits, images, total, counts, members: Vec::new() }
    }
}

impl MemberView {
    pub(super) fn new(app: &AppState, member: &RolloutMember) -> MemberView {
        let RolloutMember { machine, state, record } = member;
        let request = MemberRequest::parse(&record.request).ok();
        let forecast = request.as_ref().and_then(|request| request.forecast.as_ref());
        MemberView {
            machine: machine.clone(),
            name: app.directory().display_name(machine).to_owned(),
            image: record.image.clone(),
            state: *state,
            reason: record.reason.clone(),
            order: record.order.clone(),
            ordered: record.ordered.clone(),
            ended: record.ended.clone(),
            lost_bytes: forecast.map(|forecast| forecast.lost_bytes),
            approved: request.and_then(|request| request.request.approved).map(|approved| approved.sha256),
        }
    }
}
