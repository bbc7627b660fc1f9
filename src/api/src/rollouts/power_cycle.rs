//! Power cycle of a member's machine. Only the server that holds the lease of the machine performs it.

use crate::AppState;
use crate::bmc_lease::HeldLease;
use crate::power::{MachineController, log_warning};
use bmc::{PowerAction, PowerState, read_power_state};
use http_server::api_error::ApiError;
use store::server_leases::{AbandonedLease, LeaseClaim, ServerLease};

/// Id of a rollout, and number of a member.
type MemberKey = (i64, usize);

/// Power-cycles a machine so that it boots over PXE. If a request fails, the member fails, and its order is canceled.
/// If the order is canceled in the meantime, no further request is sent.
pub(super) async fn power_cycle(app: &AppState, key: MemberKey, lease: ServerLease) {
    perform(app, key, lease, &[PowerAction::Pxe, PowerAction::Cycle]).await;
}

async fn perform(app: &AppState, key: MemberKey, lease: ServerLease, actions: &[PowerAction]) {
    let (rollout, machine) = (key.0, lease.machine.clone());
    let name = app.directory().display_name(&machine).to_owned();
    let held = HeldLease::new(&app.state, lease);
    for action in actions {
        match switch(app, &machine, *action, &held).await {
            Ok(()) => app.watch.log_note(format!("{name}: {action}, as requested by rollout {rollout}")),
            Err(error) if held.is_refused() && must_take_over(app, key).await => {
                // The lease is not released: when it expires, a server that can reach the database takes over.
                let why = error.parts().1;
                return app
                    .log_rate_limited(format!("rollout {rollout}: {name}: the power cycle is interrupted: {why}"));
            }
            Err(error) if held.is_refused() => {
                let why = error.parts().1;
                app.watch.log_note(format!("rollout {rollout}: {name}: the machine is not power-cycled: {why}"));
                break;
            }
            Err(error) => {
                fail_member(app, key, &name, &format!("the machine could not be restarted: {}", error.parts().1)).await;
                break;
            }
        }
    }
    held.release().await;
    app.rollouts.notify_one();
}

/// Returns whether another server must take over the interrupted power cycle, because the order of the member is
/// still open. With SQLite, there is no other server.
async fn must_take_over(app: &AppState, key: MemberKey) -> bool {
    app.state.is_shared() && app.state.is_power_cycle_due(key).await.unwrap_or(true)
}

async fn switch(app: &AppState, machine: &str, action: PowerAction, held: &HeldLease) -> Result<(), ApiError> {
    let warning = MachineController::find(app, machine).await?.switch(action, Some(held)).await?;
    log_warning(app, machine, warning);
    Ok(())
}

async fn fail_member(app: &AppState, key: MemberKey, name: &str, why: &str) {
    app.watch.log_problem(format!("rollout {}: {name} failed: {why}", key.0));
    if let Err(error) = app.state.fail_member(key, why.to_owned()).await {
        app.log_rate_limited(format!("rollout {}: {name}: {error}", key.0));
    }
}

/// Continues the power cycle of a server whose lease has expired. If that server may have switched the power already,
/// the machine is not power-cycled again: if the machine is off, it is switched on; otherwise, the problem is logged
/// and recorded.
///
/// # Errors
/// Returns an error if the database cannot be read or written.
pub(crate) async fn take_over_power_cycle(
    app: &AppState,
    key: MemberKey,
    abandoned: AbandonedLease,
) -> common::error::Result<()> {
    let AbandonedLease { lease, may_have_switched, .. } = abandoned;
    let (machine, former) = (lease.machine.clone(), lease.action.server.clone());
    let name = app.directory().display_name(&machine).to_owned();
    let claimed = match app.state.resume_power_cycle(key, lease.clone()).await? {
        LeaseClaim::Claimed(claimed) => claimed,
        LeaseClaim::Busy(_) => return Ok(()),
        // The database refuses the lease if the machine has booted, or if its order was canceled.
        LeaseClaim::Refused => return app.state.release_lease(&lease).await.map(drop),
    };
    app.watch.log_note(format!(
        "rollout {}: {name}: this server continues the power cycle that server {former} started",
        key.0
    ));
    if !may_have_switched {
        perform(app, key, claimed, &[PowerAction::Pxe, PowerAction::Cycle]).await;
        return Ok(());
    }
    if let Ok(PowerState::Off) = read_state(app, &machine).await {
        perform(app, key, claimed, &[PowerAction::On]).await;
        return Ok(());
    }
    let why = format!(
        "server {former} may have power-cycled the machine, and has not confirmed it; if the machine does not boot its \
         ramdisk, power-cycle it"
    );
    app.watch.log_problem(format!("rollout {}: {name}: {why}", key.0));
    app.state.record_member_problem(key, why).await?;
    app.state.release_lease(&claimed).await.map(drop)
}

async fn read_state(app: &AppState, machine: &str) -> Result<PowerState, ApiError> {
    MachineController::find(app, machine).await?.run(read_power_state).await.map(|(state, _)| state)
}
