//! Messages about reinstall orders that were suspended or abandoned after too many attempts.

use super::AppState;
use common::format::format_count;
use http_server::client_address::ClientAddress;
use http_server::server_log::MachineOrigin;
use store::{ATTEMPTS, BootTarget, ReinstallOrder};

/// Returns the reason why a machine with a suspended reinstall order boots its old system.
pub(crate) fn describe_suspended(order: &ReinstallOrder) -> String {
    format!(
        "the reinstall with image {} is suspended, because its attempts did not reach the point of no return; the machine \
         is unchanged. Remove the cause, then order the reinstall again, or cancel the order",
        order.image
    )
}

/// Returns the reason why a partially installed machine waits after its reinstall was abandoned.
pub(crate) fn describe_stopped(order: &ReinstallOrder) -> String {
    format!(
        "the reinstall with image {} is abandoned: it has started, and {ATTEMPTS} attempts did not complete it; the machine is \
         only partially installed and waits at its console",
        order.image
    )
}

/// Logs that a reinstall order is suspended or was abandoned. If the machine is partially installed, returns the
/// reason why it waits.
pub(crate) fn log_order_end(app: &AppState, id: &str, next: &BootTarget, peer: ClientAddress) -> Option<String> {
    let directory = app.directory();
    let name = directory.display_name(id);
    let describe_end = |result: &str, order: &ReinstallOrder| {
        let attempts = format_count(order.attempts as usize, "attempt", "attempts");
        format!("{result} after {attempts}: image {image} is not installed", image = order.image)
    };
    match next {
        // The log line is rate-limited, because it is repeated at every boot of the machine.
        BootTarget::Suspended(order) => app.log_rate_limited(format!(
            "{name} at {peer}: reinstall {end}; remove the cause, then order the reinstall again, or cancel the order",
            end = describe_end("suspended", order)
        )),
        BootTarget::AbandonedAfterErase(order) => {
            app.watch.log_reinstall(MachineOrigin::new(id, name, peer), describe_end("abandoned", order));
        }
        _ => return None,
    }
    app.request_reload();
    if let BootTarget::AbandonedAfterErase(order) = next { Some(describe_stopped(order)) } else { None }
}
