//! `drophammer machine lock` and `machine unlock`: lock and unlock machines in their machine files.

use super::per_machine_requests::send_for_each;
use super::subcommand_options::{LockOptions, NamedMachinesOptions};
use super::{OperatorClient, print_json};
use ::api::metal_api::machine_lock::LockRequest;
use ::api::operator_api::MachineSummary;
use common::command_outcome::CommandOutcome;
use common::error::Result;
use common::format::terminal_escaping::escape_line;
use reqwest::Method;
use reqwest::blocking::RequestBuilder;

/// Locks the machines.
pub(super) fn lock_machines(
    server: &OperatorClient,
    all: &[MachineSummary],
    lock_options: &LockOptions,
    json: bool,
) -> Result<CommandOutcome> {
    let body = LockRequest { reason: lock_options.reason.clone() };
    let build = |machine: &MachineSummary| server.request(Method::POST, &lock_path(&machine.id)).json(&body);
    change_locks(server, all, &lock_options.machines, &build, json)
}

/// Unlocks the machines.
pub(super) fn unlock_machines(
    server: &OperatorClient,
    all: &[MachineSummary],
    named_machines_options: &NamedMachinesOptions,
    json: bool,
) -> Result<CommandOutcome> {
    let build = |machine: &MachineSummary| server.request(Method::DELETE, &lock_path(&machine.id));
    change_locks(server, all, &named_machines_options.machines, &build, json)
}

fn lock_path(id: &str) -> String {
    format!("/v1/machine/{id}/lock")
}

fn change_locks(
    server: &OperatorClient,
    all: &[MachineSummary],
    names: &[String],
    build: &dyn Fn(&MachineSummary) -> RequestBuilder,
    json: bool,
) -> Result<CommandOutcome> {
    let describe = (!json).then_some(&describe_lock as &dyn Fn(&_, &_) -> _);
    let (changed, outcome) = send_for_each(server, all, names, build, describe)?;
    if json && !changed.is_empty() {
        print_json(&changed)?;
    }
    Ok(outcome)
}

fn describe_lock(before: &MachineSummary, now: &MachineSummary) -> String {
    let name = escape_line(if now.name.is_empty() { &now.id } else { &now.name });
    match (&before.locked, &now.locked) {
        (None, None) => format!("{name} was not locked: nothing was changed.\n"),
        (Some(_), None) => format!("{name} is unlocked.\n"),
        (_, Some(reason)) => {
            let order = now.order.as_ref().filter(|order| !order.started);
            let order = order.map(|_| {
                format!(
                    " A reinstall was ordered before, and will be carried out: `drophammer machine reinstall {name} --cancel` cancels it."
                )
            });
            format!("{name} is locked: {}.{}\n", escape_line(reason), order.unwrap_or_default())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ::api::operator_api::ReinstallOrder;
    use serde_json::json;

    #[test]
    fn the_change_is_described_and_an_open_order_is_mentioned() {
        let open = MachineSummary { id: "4c-1".to_owned(), name: "web-1".to_owned(), ..MachineSummary::default() };
        let locked = MachineSummary { locked: Some("repair\u{1b}".to_owned()), ..open.clone() };
        assert_eq!(describe_lock(&open, &open), "web-1 was not locked: nothing was changed.\n");
        assert_eq!(describe_lock(&locked, &open), "web-1 is unlocked.\n");
        let text = describe_lock(&open, &locked);
        assert!(text.starts_with("web-1 is locked: repair") && !text.contains(['\u{1b}', '`']), "{text}");
        let order = json!({"id": "o", "image": "i", "created": "", "attempts": 0, "begun": false,
            "without_marker": false, "given_up": false});
        let order: ReinstallOrder = serde_json::from_value(order).unwrap();
        let text = describe_lock(&open, &MachineSummary { order: Some(order.clone()), ..locked.clone() });
        assert!(text.ends_with("`drophammer machine reinstall web-1 --cancel` cancels it.\n"), "{text}");
        let started = Some(ReinstallOrder { started: true, ..order });
        assert!(!describe_lock(&open, &MachineSummary { order: started, ..locked }).contains("--cancel"));
    }
}
