//! Cancellation of orders and revocation of boots when a machine is freed, so that the machine is not reinstalled, and
//! power-off, so that the system of the previous tenant is stopped. Also cancels the orders of allocations that were
//! removed from machine files by other means.

use super::metal_api::ApiRefusal;
use super::metrics::OrderEvent;
use super::{AppState, power};
use bmc::PowerAction;
use common::error_code::ErrorCode;
use http_server::api_error::ApiError;
use http_server::client_address::ClientAddress;
use site::snapshot::SiteSnapshot;
use std::sync::Arc;
use std::time::Duration;
use store::{ReinstallOrder, ReleaseOutcome};

/// Pause after a failed cancellation of removed orders.
const RETRY_INTERVAL: Duration = Duration::from_secs(10);

/// Cancels the reinstall order of an allocation that is about to be removed from the machine file, and ends the boots
/// of the allocation.
///
/// # Errors
/// Returns an error if an installation of the allocation has passed its point of no return, or the database fails.
pub(crate) async fn release_allocation(
    app: &AppState,
    peer: ClientAddress,
    id: &str,
    allocation: &str,
) -> Result<(), ApiRefusal> {
    match app.state.release_allocation(id, allocation).await? {
        ReleaseOutcome::Released(order) => {
            order.into_iter().for_each(|order| log_cancellation(app, id, &order, &format!("{peer} frees the machine")));
            Ok(())
        }
        ReleaseOutcome::Started => Err(ApiRefusal::conflict(format!(
            "an installation of machine {id} has passed its point of no return: wait until it has ended"
        ))
        .with_error_code(ErrorCode::OrderTooLate)),
    }
}

fn log_cancellation(app: &AppState, id: &str, order: &ReinstallOrder, reason: &str) {
    app.counters.count_order(OrderEvent::Cancelled);
    let name = app.directory().display_name(id).to_owned();
    app.watch.log_note(format!("{name}: reinstall with image {image} cancelled: {reason}", image = order.image));
}

/// Cancels reinstall orders of allocations that an edit has removed from the machine files. Otherwise such an order
/// would be carried out if the allocation was added again. Never returns before the server exits.
pub async fn cancel_removed_orders(app: Arc<AppState>) {
    let mut directory = app.directory.clone();
    let mut before: Option<Arc<SiteSnapshot>> = None;
    loop {
        let now = directory.borrow_and_update().clone();
        match cancel_orders_since(&app, before.as_deref(), &now).await {
            Ok(()) => before = Some(now),
            Err(error) => {
                let why = format!("orders of removed allocations cannot be canceled: {error}; the server tries again");
                app.log_rate_limited(ErrorCode::ServerProblem.annotate(why));
                tokio::time::sleep(RETRY_INTERVAL).await;
                continue;
            }
        }
        if directory.changed().await.is_err() {
            return;
        }
    }
}

/// Cancels orders whose allocation is not in the machine file, but was in the file in the snapshot `before`. A missing
/// or invalid file does not cancel an order. Without `before`, all orders are compared, unless other servers share the
/// database: their files may be newer than those of this server.
async fn cancel_orders_since(
    app: &AppState,
    before: Option<&SiteSnapshot>,
    now: &SiteSnapshot,
) -> common::error::Result<()> {
    if before.is_none() && app.state.is_shared() {
        return Ok(());
    }
    let allocation_of = |snapshot: &SiteSnapshot, id: &str| {
        let machine = snapshot.find_machine(id)?;
        Some(machine.allocation.as_ref().map(|allocation| allocation.id.to_string()))
    };
    let is_removed = |id: &str, allocation: &str| {
        let current = allocation_of(now, id)?;
        let is_in = |current: &Option<String>| current.as_deref() == Some(allocation);
        let was_in = before.is_none_or(|before| allocation_of(before, id).is_some_and(|before| is_in(&before)));
        (!is_in(&current) && was_in).then_some(current)
    };
    for (id, allocation) in app.state.list_ordered_allocations().await? {
        let Some(current) = is_removed(&id, &allocation) else { continue };
        if app.state.find_live_migration(&id).await?.is_some() {
            continue;
        }
        if let Some(order) = app.state.cancel_removed_orders(&id, &allocation, current.as_deref()).await? {
            let reason = format!("allocation {allocation} was removed from the machine file");
            log_cancellation(app, &id, &order, &reason);
            app.request_reload();
        }
    }
    Ok(())
}

/// Revokes the tokens of all boots that the machine has requested so far. Powers the machine off if the previous
/// tenant's system may still run. If the machine cannot be powered off, a problem is logged.
///
/// # Errors
/// Returns an error if the database fails.
pub(crate) async fn end_previous_system(app: &AppState, id: &str) -> Result<(), ApiError> {
    app.state.free_machine(id).await?;
    if !app.state.may_run_previous_system(id, None).await? {
        return Ok(());
    }
    let name = app.directory().display_name(id).to_owned();
    match power::switch_machine(app, id, PowerAction::Off).await {
        Ok(()) => app.watch.log_note(format!("{name}: powered off, because it was freed")),
        Err(error) => app.watch.log_problem(format!(
            "{name}: cannot power off the freed machine: {error}; power the machine off before it gets another \
            allocation: the system of the previous tenant may still be running, and root on that system can register \
            as this machine",
            error = error.parts().1
        )),
    }
    Ok(())
}
