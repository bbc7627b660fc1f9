//! `drophammer machine confirm`: confirms that the records of a restored server are up to date.

use super::per_machine_requests::send_for_each;
use super::subcommand_options::ConfirmOptions;
use super::{OperatorClient, OperatorResponse, print_json, print_refusal};
use api::operator_api::MachineSummary;
use common::command_outcome::CommandOutcome;
use common::error::Result;
use common::format::terminal_escaping::escape_line;
use common::output::print_text;
use reqwest::Method;

pub(crate) fn confirm_machines(
    server: &OperatorClient,
    all: &[MachineSummary],
    confirm_options: &ConfirmOptions,
    json: bool,
) -> Result<CommandOutcome> {
    if confirm_options.all {
        let request = server.request(Method::POST, "/v1/machines/confirm");
        return match server.send_json::<Vec<MachineSummary>>(request)? {
            OperatorResponse::Refused(why) => Ok(print_refusal(&why)),
            OperatorResponse::Good(listed) if json => print_json(&listed),
            OperatorResponse::Good(listed) => {
                print_text(&listed.iter().map(describe_next).collect::<String>()).map(|()| CommandOutcome::Good)
            }
        };
    }
    let describe = |_: &MachineSummary, confirmed: &MachineSummary| describe_next(confirmed);
    let describe = (!json).then_some(&describe as &dyn Fn(&_, &_) -> _);
    let build = |machine: &MachineSummary| server.request(Method::POST, &format!("/v1/machine/{}/confirm", machine.id));
    let (confirmed, outcome) = send_for_each(server, all, &confirm_options.machines, &build, describe)?;
    if json && !confirmed.is_empty() {
        print_json(&confirmed)?;
    }
    Ok(outcome)
}

/// Describes the next boot of a confirmed machine.
fn describe_next(machine: &MachineSummary) -> String {
    let name = escape_line(if machine.name.is_empty() { &machine.id } else { &machine.name });
    let next = match (&machine.order, &machine.allocation, &machine.moving) {
        (_, _, Some(moving)) => format!("the machine's migration continues ({state})", state = moving.state),
        (Some(order), ..) if order.is_suspended() => {
            "the machine boots its disk, because its order is suspended".to_owned()
        }
        (Some(order), ..) if order.given_up => {
            "the machine waits for the operator, because its order was abandoned".to_owned()
        }
        (Some(order), ..) => format!(
            "the machine will be reinstalled with {image} (`drophammer machine reinstall {name} --cancel` cancels an order that has not started)",
            image = order.image
        ),
        (None, Some(_), _) if machine.installed => "the machine boots its disk".to_owned(),
        (None, Some(_), _) if machine.adopted => "the machine boots its disks and reports the installation".to_owned(),
        (None, Some(allocation), _) => format!("allocation {allocation} is installed for the first time"),
        (None, None, _) => "the machine waits for an allocation".to_owned(),
    };
    format!("{name} is confirmed: at its next boot over PXE, {next}.\n")
}

#[cfg(test)]
mod tests {
    use super::*;
    use api::operator_api::ReinstallOrder;

    #[test]
    fn next_step_of_a_confirmed_machine_is_printed() {
        let order = serde_json::json!({"id": "o", "image": "debian-13", "created": "", "attempts": 0, "begun": false,
            "without_marker": false, "given_up": false});
        let order = serde_json::from_value::<ReinstallOrder>(order).unwrap();
        let abandoned = Some(ReinstallOrder { started: true, given_up: true, ..order.clone() });
        let suspended = Some(ReinstallOrder { given_up: true, ..order.clone() });
        let order = Some(order);
        let machine = MachineSummary { id: "4c-1".to_owned(), name: "one".to_owned(), ..MachineSummary::default() };
        let allocated = MachineSummary { allocation: Some("a1".to_owned()), ..machine.clone() };
        let installed = MachineSummary { installed: true, ..allocated.clone() };
        for (listed, words) in [
            (&machine, "the machine waits for an allocation"),
            (&allocated, "allocation a1 is installed for the first time"),
            (
                &MachineSummary { adopted: true, ..allocated.clone() },
                "the machine boots its disks and reports the installation",
            ),
            (&installed, "the machine boots its disk"),
            (
                &MachineSummary { order: abandoned, ..installed.clone() },
                "the machine waits for the operator, because its order was abandoned",
            ),
            (
                &MachineSummary { order: suspended, ..installed.clone() },
                "the machine boots its disk, because its order is suspended",
            ),
            (&MachineSummary { order, ..installed.clone() }, "the machine will be reinstalled with debian-13"),
        ] {
            assert!(
                describe_next(listed).starts_with(&format!("one is confirmed: at its next boot over PXE, {words}"))
            );
        }
    }
}
