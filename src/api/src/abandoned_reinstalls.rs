//! Messages about reinstall orders that were abandoned after too many attempts.

use super::AppState;
use http_server::quotas::ClientAddress;
use http_server::server_log::MachineOrigin;
use store::{ATTEMPTS, BootTarget, ReinstallOrder};

/// Returns why a machine with an abandoned reinstall boots its previous system.
pub(crate) fn describe_abandoned(order: &ReinstallOrder) -> String {
    format!(
        "the reinstall with image {} is abandoned: {ATTEMPTS} attempts did not reach the point of no return; the machine \
         is unchanged",
        order.image
    )
}

/// Returns why a partially installed machine with an abandoned reinstall waits.
pub(crate) fn describe_stopped(order: &ReinstallOrder) -> String {
    format!(
        "the reinstall with image {} is abandoned: it has started, and {ATTEMPTS} attempts did not complete it; the machine is \
         only partially installed and waits at its console",
        order.image
    )
}

/// Logs that a reinstall order was abandoned. For a partially installed machine, returns why the machine waits.
pub(crate) fn log_order_end(app: &AppState, id: &str, next: &BootTarget, peer: ClientAddress) -> Option<String> {
    if let BootTarget::Dropped(order) | BootTarget::Stop(order) = next {
        let text = format!(
            "abandoned after {attempts} attempts: image {image} is not installed",
            attempts = order.attempts,
            image = order.image
        );
        app.watch.log_reinstall(MachineOrigin::new(id, app.directory().display_name(id), peer), text);
        app.request_reload();
    }
    if let BootTarget::Stop(order) = next { Some(describe_stopped(order)) } else { None }
}
