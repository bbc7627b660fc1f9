//! Task that orders the reinstalls of members when they are due, and power-cycles their machines.

use super::member_approval::MemberRequest;
use super::power_cycle::power_cycle;
use crate::AppState;
use crate::metrics::OrderEvent;
use crate::operator_api::new_order_approval::find_required_approval;
use crate::operator_api::order_descriptions::describe_replaced_order;
use crate::operator_api::order_recheck::recheck_machine_file;
use crate::operator_api::reinstalls::prepare_order;
use axum::http::StatusCode;
use common::error::Result;
use common::error_code::ErrorCode;
use common::format::metal_api_phrase_replacement::reword_metal_phrases;
use http_server::api_error::ApiError;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;
use store::OrderBasis;
use store::rollouts::{MemberOrderOutcome, MemberState, RolloutEvent, RolloutMember, RolloutState, RolloutSummary};
use store::server_leases::LeaseClaim;
use tokio::task::JoinHandle;

/// Interval at which the database is read while no rollout is active, in case another server has created a rollout.
const IDLE: Duration = Duration::from_secs(60);

/// Running power cycles, by rollout and number of the member.
type PowerCycles = BTreeMap<(i64, usize), JoinHandle<()>>;

/// Continues all rollouts, including those of an earlier server process. Never returns.
pub async fn continue_rollouts(app: Arc<AppState>) {
    let mut power_cycles = PowerCycles::new();
    loop {
        power_cycles.retain(|_, task| !task.is_finished());
        let is_active = match advance_rollouts(&app, &mut power_cycles).await {
            Ok(is_active) => is_active,
            Err(error) => {
                let why = format!("rollouts cannot be continued: {error}; the server tries again");
                app.log_rate_limited(ErrorCode::ServerProblem.annotate(why));
                true
            }
        };
        let pause = if is_active { app.run_interval } else { IDLE };
        drop(tokio::time::timeout(pause, app.rollouts.notified()).await);
    }
}

/// Updates all rollouts, and starts the members that are due. Returns whether a rollout is active.
async fn advance_rollouts(app: &Arc<AppState>, power_cycles: &mut PowerCycles) -> Result<bool> {
    for event in app.state.update_rollouts().await? {
        log_event(app, event);
    }
    let active = app.state.list_active_rollouts().await?;
    for rollout in &active {
        let members = app.state.list_members_in_progress(rollout.id).await?;
        fail_freed_members(app, rollout.id, &members).await?;
        start_power_cycles(app, rollout, &members, power_cycles).await?;
        while let Some((number, member)) = app.state.find_due_member(rollout.id).await? {
            if !start_member(app, (rollout.id, number), &member).await? {
                break;
            }
        }
    }
    Ok(!active.is_empty())
}

fn log_event(app: &AppState, event: RolloutEvent) {
    let reason = |reason: &str| if reason.is_empty() { String::new() } else { format!(": {reason}") };
    match event {
        RolloutEvent::MemberEnded { rollout, machine, state, reason: why } => {
            let word = if state == MemberState::Done { "done" } else { "failed" };
            let name = app.directory().display_name(&machine).to_owned();
            app.watch.log_note(format!("rollout {rollout}: machine {name} {word}{reason}", reason = reason(&why)));
        }
        RolloutEvent::StateChanged { rollout, state: RolloutState::Stopped, reason } => app.watch.log_problem(format!(
            "rollout {rollout} is stopped: {reason}; `drophammer rollout show {rollout}` lists the reasons, and \
             `drophammer rollout resume {rollout}` continues it"
        )),
        RolloutEvent::StateChanged { rollout, state, reason: why } => {
            let word = if state == RolloutState::Finished { "finished" } else { "changed" };
            app.watch.log_note(format!("rollout {rollout} has {word}{reason}", reason = reason(&why)));
        }
    }
}

/// Marks a member in progress as failed if the file of its machine no longer contains the member's allocation, since
/// the machine will then not be reinstalled. While the file is absent, for example during a checkout of the directory,
/// the order remains.
async fn fail_freed_members(app: &AppState, rollout: i64, members: &[(usize, RolloutMember)]) -> Result<()> {
    for (number, member) in members {
        let directory = app.directory();
        let Some(machine) = directory.find_machine(&member.machine) else { continue };
        if machine.allocation.as_ref().is_none_or(|current| *current.id != member.record.allocation) {
            let why = format!(
                "allocation {allocation} was removed from the machine file",
                allocation = member.record.allocation
            );
            app.state.fail_member((rollout, *number), why).await?;
        }
    }
    Ok(())
}

/// Starts the reinstall of a member, or skips the member. Returns false if the member must be tried again later.
async fn start_member(app: &Arc<AppState>, key: (i64, usize), member: &RolloutMember) -> Result<bool> {
    let (rollout, _) = key;
    let name = app.directory().display_name(&member.machine).to_owned();
    let image = &member.record.image;
    if is_digest_pending(app, image) {
        app.log_rate_limited(format!(
            "rollout {rollout}: machine {name} waits until the digest of image {image} is known"
        ));
        return Ok(false);
    }
    let skipped = match order_member(app, key, member).await {
        Ok(MemberOrderOutcome::Ordered { order, replaced }) => {
            app.counters.count_order(OrderEvent::Placed);
            let replaced = replaced.map(|replaced| format!("; {}", describe_replaced_order(&replaced)));
            app.watch.log_note(format!(
                "rollout {rollout}: machine {name}: reinstall with image {image} ordered{replaced}",
                image = order.image,
                replaced = replaced.unwrap_or_default()
            ));
            app.request_reload();
            return Ok(true);
        }
        Ok(MemberOrderOutcome::NotDue) => return Ok(true),
        Ok(MemberOrderOutcome::Skipped(why)) => why,
        Err(error) => {
            let status = error.status();
            let why = reword_metal_phrases(&error.into_coded_message());
            if !status.is_client_error() && status != StatusCode::BAD_GATEWAY {
                app.log_rate_limited(format!(
                    "rollout {rollout}: the reinstall of machine {name} cannot be started yet: {why}"
                ));
                return Ok(false);
            }
            app.state.skip_member(key, why.clone()).await?;
            why
        }
    };
    app.watch.log_problem(format!("rollout {rollout}: machine {name} is skipped: {skipped}"));
    Ok(true)
}

/// Returns whether the image exists, but its digest is still being computed, for example because its file has changed.
fn is_digest_pending(app: &AppState, image: &str) -> bool {
    app.directory().known.images.get(image).is_some_and(Option::is_none)
}

/// Orders the reinstall of a member if nothing has changed since the request. Performs all checks of an individual
/// order.
async fn order_member(
    app: &AppState,
    key: (i64, usize),
    member: &RolloutMember,
) -> std::result::Result<MemberOrderOutcome, ApiError> {
    let mut stored = MemberRequest::parse(&member.record.request).map_err(ApiError::bad_request)?;
    // The present id of the machine is used, because the machine may have been renamed since the rollout was requested.
    stored.request.id.clone_from(&member.machine);
    stored.check_unchanged(app).await?;
    let orderable = prepare_order(app, &stored.request).await?;
    let approval = find_required_approval(app, &stored.request, &orderable).await?;
    let file = recheck_machine_file(app, &orderable.machine.id, &orderable.allocation).await?;
    let basis = OrderBasis { machine_file: file.document.clone(), approval };
    let (allocation, replaces) = (&orderable.allocation, stored.replaces.as_deref());
    Ok(app.state.order_member(key, allocation, orderable.words, replaces, Some(basis)).await?)
}

/// Starts to power-cycle the machines of ordered members, if the rollout requests it.
async fn start_power_cycles(
    app: &Arc<AppState>,
    rollout: &RolloutSummary,
    members: &[(usize, RolloutMember)],
    running: &mut PowerCycles,
) -> Result<()> {
    if !rollout.record.limits.power_cycle {
        return Ok(());
    }
    for (number, member) in members {
        let is_new = member.state == MemberState::Ordered && member.record.power_cycled.is_empty();
        let key = (rollout.id, *number);
        if is_new && let LeaseClaim::Claimed(lease) = app.state.claim_power_cycle(key).await? {
            let app = app.clone();
            running.insert(key, tokio::spawn(async move { power_cycle(&app, key, lease).await }));
        }
    }
    Ok(())
}
