//! Rollouts: reinstalls of many machines, of which a limited number is in progress at a time. This module contains
//! the endpoints, `member_approval` checks that members are reinstalled as requested, and [`runner`] orders the
//! reinstalls of the members.

mod member_approval;
mod member_refusals;
pub(crate) mod power_cycle;
pub mod runner;
mod start_time;
mod view;

pub use member_approval::PLAN_REFUSED;
pub(crate) use member_approval::require_plan;
pub use view::{MemberView, RolloutCounts, RolloutView};

use crate::AppState;
use crate::access::{self, Identity};
use crate::operator_api::OperatorAuth;
use crate::operator_api::reinstalls::{ReinstallRequest, parse_request};
use crate::page_query::PageSelection;
use crate::request_body::read_operator_document;
use axum::body::Body;
use axum::extract::{Path, State};
use axum::http::StatusCode;
use axum::{Extension, Json};
use common::error_code::ErrorCode;
use common::format::metal_api_phrase_replacement::reword_metal_phrases;
use common::type_errors::locate_json_error;
use http_server::api_error::ApiError;
use http_server::client_address::ClientAddress;
use member_refusals::{MemberRefusal, list_refusals};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;
use store::now;
use store::rollouts::start_window::StartWindow;
use store::rollouts::{MemberRecord, Rollout, RolloutLimits, RolloutOutcome, RolloutRecord};
pub use store::rollouts::{MemberState, RolloutChange, RolloutState};
use time::OffsetDateTime;

/// Maximum number of members of a rollout.
const MEMBERS: usize = 20_000;
/// Maximum size of a request, whose members may contain approved plans.
const REQUEST_BYTES: usize = 16 << 20;
/// Interval at which the database is checked for requests to management controllers that are still in progress.
const PENDING_INTERVAL: Duration = Duration::from_millis(50);

/// Request body: a rollout.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct RolloutRequest {
    /// Reinstalls in the order in which they start.
    pub members: Vec<ReinstallRequest>,
    /// Maximum number of machines whose reinstalls are in progress.
    pub at_most: u32,
    /// Number of failures after which no further reinstall is ordered; 1 if absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stop_after: Option<u32>,
    /// Time of the first order, as RFC 3339, or relative to the server's clock: `+2h`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub start: Option<String>,
    /// Hours in UTC in which reinstalls are ordered: `01:00-05:00` or `Sat,Sun 01:00-05:00`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub window: Option<String>,
    /// True if the server power-cycles each machine when its reinstall is ordered.
    #[serde(default)]
    pub power_cycle: bool,
}

impl RolloutRequest {
    fn parse(document: Value) -> Result<RolloutRequest, ApiError> {
        for member in document["members"].as_array().into_iter().flatten() {
            parse_request(member.as_object().cloned().unwrap_or_default())?;
        }
        let rollout_request = RolloutRequest::deserialize(document);
        let mut rollout_request = rollout_request
            .map_err(|error| ApiError::bad_request(format!("request body: {}", locate_json_error(&error))))?;
        rollout_request.members.iter_mut().for_each(|member| member.id = member.id.to_lowercase());
        rollout_request.check_members()?;
        Ok(rollout_request)
    }

    fn check_members(&self) -> Result<(), ApiError> {
        let mut seen = BTreeSet::new();
        if let Some(twice) = self.members.iter().find(|member| !seen.insert(&member.id)) {
            return Err(ApiError::bad_request(format!("machine {machine} is listed twice", machine = twice.id)));
        }
        match self.members.len() {
            0 => Err(ApiError::bad_request("members: the list of machines is empty")),
            1..=MEMBERS => Ok(()),
            count => Err(ApiError::bad_request(format!("members: {count} machines; at most {MEMBERS} are allowed"))),
        }
    }

    fn limits(&self, now: OffsetDateTime) -> Result<RolloutLimits, ApiError> {
        let stop_after = self.stop_after.unwrap_or(1);
        if self.at_most == 0 || stop_after == 0 {
            return Err(ApiError::bad_request("at_most and stop_after must be at least 1"));
        }
        let start = self.start.as_deref().map(|start| start_time::parse_start(start, now));
        let start = start.transpose().map_err(|why| ApiError::bad_request(format!("start: {why}")))?;
        let window = self.window.as_deref().map(StartWindow::parse).transpose();
        let window = window.map_err(|why| ApiError::bad_request(format!("window: {why}")))?;
        Ok(RolloutLimits { at_most: self.at_most, stop_after, start, window, power_cycle: self.power_cycle })
    }
}

/// `GET /v1/rollouts`: lists the rollouts without their members, the newest first.
pub(crate) async fn list_rollouts(
    State(app): State<Arc<AppState>>,
    _: OperatorAuth,
    mut page: PageSelection,
) -> Result<Json<Vec<RolloutView>>, ApiError> {
    let mut views = list_views(&app).await?;
    views.retain(|rollout| {
        let texts = rollout.images.iter().map(String::as_str);
        page.accepts(&rollout.id.to_string(), texts.chain([rollout.created_by.as_str(), rollout.state.as_str()]))
    });
    page.finish()?;
    Ok(Json(views))
}

/// `POST /v1/rollouts`: creates a rollout.
pub(crate) async fn post_rollout(
    State(app): State<Arc<AppState>>,
    _: OperatorAuth,
    Extension(identity): Extension<Identity>,
    peer: ClientAddress,
    body: Body,
) -> Result<(StatusCode, Json<RolloutView>), ApiError> {
    let rollout_request = RolloutRequest::parse(read_operator_document(&app, peer, body, REQUEST_BYTES).await?)?;
    let rollout = create_rollout(&app, &identity, peer, &rollout_request).await?;
    access::set_audited_object(&rollout.id.to_string());
    Ok((StatusCode::CREATED, Json(RolloutView::new(&app, &rollout))))
}

/// Creates a rollout, if each of its reinstalls can be ordered now.
///
/// # Errors
/// Returns the reason why the rollout is refused. In that case, nothing is stored.
async fn create_rollout(
    app: &AppState,
    identity: &Identity,
    peer: ClientAddress,
    rollout_request: &RolloutRequest,
) -> Result<Rollout, ApiError> {
    let limits = rollout_request.limits(app.state.shared_time())?;
    let (mut members, mut refused) = (Vec::new(), Vec::new());
    for request in &rollout_request.members {
        match member_approval::approve_member(app, request, rollout_request.power_cycle).await {
            Ok(approved) => {
                let image = request.imageid.clone();
                let record = MemberRecord { image, request: serde_json::json!(approved), ..MemberRecord::default() };
                members.push((request.id.clone(), record));
            }
            Err(error) => refused.push(MemberRefusal {
                machine: app.directory().display_name(&request.id).to_owned(),
                reason: reword_metal_phrases(&error.into_coded_message()),
            }),
        }
    }
    if !refused.is_empty() {
        return Err(refuse(format!("nothing was ordered: {reasons}", reasons = list_refusals(&refused))));
    }
    let created_by = identity.user.clone();
    let record = RolloutRecord { created: now(), created_by, limits, ..RolloutRecord::default() };
    let rollout = require_done(app.state.create_rollout(record, members).await?, 0)?;
    let count = common::format::format_count(rollout.members.len(), "machine", "machines");
    app.watch.log_note(format!(
        "rollout {rollout}: user {user} at {peer} ordered reinstalls of {count}",
        rollout = rollout.id,
        user = identity.user
    ));
    app.rollouts.notify_one();
    Ok(rollout)
}

fn refuse(why: String) -> ApiError {
    ApiError::new(StatusCode::CONFLICT, why).with_error_code(ErrorCode::RolloutRefused)
}

fn require_done(outcome: RolloutOutcome, id: i64) -> Result<Rollout, ApiError> {
    match outcome {
        RolloutOutcome::Done(rollout) => Ok(rollout),
        RolloutOutcome::NotFound => Err(unknown_rollout(&id.to_string())),
        RolloutOutcome::Refused(why) => Err(refuse(why)),
    }
}

fn unknown_rollout(id: &str) -> ApiError {
    ApiError::not_found(format!("there is no rollout {id}; `drophammer rollout list` lists the rollouts"))
}

/// `GET /v1/rollouts/{id}`: returns a rollout with its members.
pub(crate) async fn get_rollout(
    State(app): State<Arc<AppState>>,
    Path(id): Path<String>,
    _: OperatorAuth,
) -> Result<Json<RolloutView>, ApiError> {
    let rollout = find_visible(&app, &id).await?;
    Ok(Json(RolloutView::new(&app, &rollout)))
}

/// `POST /v1/rollouts/{id}/halt`: halts a rollout. No further members are started.
pub(crate) async fn halt_rollout(
    State(app): State<Arc<AppState>>,
    Path(id): Path<String>,
    Extension(identity): Extension<Identity>,
) -> Result<Json<RolloutView>, ApiError> {
    let change = RolloutChange::Halt(format!("halted by {}", identity.user));
    change_rollout(&app, &id, &identity, change).await.map(Json)
}

/// `POST /v1/rollouts/{id}/resume`: resumes a halted rollout.
pub(crate) async fn resume_rollout(
    State(app): State<Arc<AppState>>,
    Path(id): Path<String>,
    Extension(identity): Extension<Identity>,
) -> Result<Json<RolloutView>, ApiError> {
    change_rollout(&app, &id, &identity, RolloutChange::Resume).await.map(Json)
}

/// `DELETE /v1/rollouts/{id}`: cancels a rollout, and those of its reinstall orders whose installation has not passed
/// the point of no return.
pub(crate) async fn cancel_rollout(
    State(app): State<Arc<AppState>>,
    Path(id): Path<String>,
    Extension(identity): Extension<Identity>,
) -> Result<Json<RolloutView>, ApiError> {
    let change = RolloutChange::Cancel(format!("user {user} canceled the rollout", user = identity.user));
    change_rollout(&app, &id, &identity, change).await.map(Json)
}

/// Halts, resumes or cancels a rollout that the current user may access.
///
/// # Errors
/// Returns an error if the rollout does not exist, or does not permit the change.
pub async fn change_rollout(
    app: &AppState,
    id: &str,
    identity: &Identity,
    change: RolloutChange,
) -> Result<RolloutView, ApiError> {
    let id = find_visible(app, id).await?.id;
    let word = match &change {
        RolloutChange::Halt(_) => "halted",
        RolloutChange::Resume => "resumed",
        RolloutChange::Cancel(_) => "canceled",
    };
    let is_cancel = matches!(change, RolloutChange::Cancel(_));
    let rollout = require_done(app.state.change_rollout(id, change).await?, id)?;
    if is_cancel {
        await_pending_requests(app, id).await?;
    }
    app.watch.log_note(format!("rollout {id}: user {user} {word} the rollout", user = identity.user));
    app.request_reload();
    app.rollouts.notify_one();
    Ok(RolloutView::new(app, &rollout))
}

/// Waits until all requests to management controllers that were permitted before the cancellation of the rollout have
/// ended. After that, no server power-cycles a machine of the rollout, so the cancellation can be acknowledged.
async fn await_pending_requests(app: &AppState, id: i64) -> Result<(), ApiError> {
    while app.state.has_pending_requests(id).await? {
        tokio::time::sleep(PENDING_INTERVAL).await;
    }
    Ok(())
}

/// Returns the rollout with this id, if the current user may access all of its machines.
///
/// # Errors
/// Returns an error if the rollout does not exist, or the user must not see it.
async fn find_visible(app: &AppState, id: &str) -> Result<Rollout, ApiError> {
    let number = id.parse().map_err(|_| unknown_rollout(id))?;
    if !is_visible(app, number).await? {
        return Err(unknown_rollout(id));
    }
    app.state.find_rollout(number).await?.ok_or_else(|| unknown_rollout(id))
}

/// Returns whether the current user may access all machines of the rollout.
async fn is_visible(app: &AppState, id: i64) -> Result<bool, ApiError> {
    if access::current_projects().is_none() {
        return Ok(true);
    }
    let directory = app.directory();
    let machines = app.state.list_rollout_machines(id).await?;
    Ok(machines.iter().all(|machine| directory.find_machine(machine).is_some()))
}

/// Returns the rollouts that the current user may access, without their members, the newest first.
///
/// # Errors
/// Returns an error if the database cannot be read.
pub async fn list_views(app: &AppState) -> Result<Vec<RolloutView>, ApiError> {
    let mut views = Vec::new();
    for rollout in app.state.list_rollouts().await? {
        if is_visible(app, rollout.id).await? {
            views.push(RolloutView::from_summary(rollout));
        }
    }
    Ok(views)
}

/// Returns a rollout that the current user may access.
///
/// # Errors
/// Returns an error if the rollout does not exist.
pub async fn find_view(app: &AppState, id: &str) -> Result<RolloutView, ApiError> {
    Ok(RolloutView::new(app, &find_visible(app, id).await?))
}

/// Returns the id and the state of the newest rollout of which the machine is a member, and the member, if the current
/// user may access the rollout.
///
/// # Errors
/// Returns an error if the database cannot be read.
pub async fn find_membership(
    app: &AppState,
    machine: &str,
) -> Result<Option<(i64, RolloutState, MemberView)>, ApiError> {
    let Some((rollout, member)) = app.state.find_membership(machine).await? else { return Ok(None) };
    let is_visible = is_visible(app, rollout.id).await?;
    Ok(is_visible.then(|| (rollout.id, rollout.state, MemberView::new(app, &member))))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn request(count: usize) -> Value {
        let member = |number: usize| {
            let image = "debian-13.1.20261101-with-a-long-name".to_owned();
            let id = format!("4c4c4544-0051-3010-8052-{number:012}");
            json!(ReinstallRequest { id, imageid: image, ..ReinstallRequest::default() })
        };
        json!({ "at_most": 20, "members": (0..count).map(member).collect::<Vec<_>>() })
    }

    #[test]
    fn largest_rollout_fits_into_a_request() {
        let largest = request(MEMBERS);
        assert!(largest.to_string().len() < REQUEST_BYTES / 2);
        assert!(RolloutRequest::parse(largest).is_ok_and(|parsed| parsed.members.len() == MEMBERS));
        let (status, message) = RolloutRequest::parse(request(MEMBERS + 1)).err().unwrap().parts();
        assert_eq!((status.as_u16(), message.as_str()), (400, "members: 20001 machines; at most 20000 are allowed"));
    }
}
