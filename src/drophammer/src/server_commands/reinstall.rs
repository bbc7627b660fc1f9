//! `drophammer machine reinstall`: orders or cancels a reinstall, and prints the next steps.

use super::reinstall_options::ReinstallOrderOptions;
use super::rollout_confirmation::OrderedMachines;
use super::{
    OperatorClient, OperatorResponse, boot_digest, find_machine, power, print_json, print_refusal, rollouts,
    saved_plan_reinstall,
};
use ::api::operator_api::MachineSummary;
use ::api::operator_api::order_descriptions::describe_replaced_order;
use ::api::operator_api::reinstalls::ReinstallRequest;
use ::api::rollouts::PLAN_REFUSED;
use common::command_outcome::CommandOutcome;
use common::error::Result;
use common::error_code::ErrorCode;
use common::format::terminal_escaping::escape_line;
use common::output::print_text;
use model::allocation::ApprovedPlan;
use reqwest::Method;
use site::effective_allocation::{AllocationDifference, UNRECORDED};
use std::slice;

pub(crate) fn reinstall_machine(
    server: &OperatorClient,
    all: &[MachineSummary],
    reinstall_order_options: &ReinstallOrderOptions,
    json: bool,
) -> Result<CommandOutcome> {
    if reinstall_order_options.cancel && reinstall_order_options.machines.len() > 1 {
        let why = "--cancel accepts only one machine; to cancel the reinstalls of a rollout, use `drophammer rollout cancel ID`";
        return Ok(print_refusal(why));
    }
    if reinstall_order_options.is_rollout() {
        return rollouts::order_rollout(server, all, reinstall_order_options, json);
    }
    let (machine, order) = match find_order(server, all, reinstall_order_options)? {
        Ok(found) => found,
        Err(why) => return Ok(print_refusal(&why)),
    };
    if let (Some(order), Some(_)) = (&order, reinstall_order_options.yes)
        && let Err(why) =
            OrderedMachines::new(all, slice::from_ref(order)).confirm(reinstall_order_options.yes, false)?
    {
        return Ok(print_refusal(&why));
    }
    let path = format!("/v1/machine/{}/reinstall", machine.id);
    let request = match &order {
        None => server.request(Method::DELETE, &path),
        Some(order) => server.request(Method::POST, &(path + order_query(reinstall_order_options))).json(order),
    };
    match server.send_json::<MachineSummary>(request)? {
        OperatorResponse::Refused(why) => Ok(print_refusal(&add_plan_remedy(&why, reinstall_order_options))),
        OperatorResponse::Good(listed) => {
            let command = listed.order.as_ref().and_then(|_| boot_digest::reinstall_command_for(server, &listed));
            let approved = order.as_ref().and_then(|order| order.approved.as_ref());
            let text = describe_next_steps(machine, &listed, command.as_deref()) + &describe_approval(approved);
            match json {
                true => drop(print_json(&listed)?),
                // The instructions for starting the reinstall are omitted, because `--now` starts it.
                false if reinstall_order_options.now => {
                    print_text(&(describe_order(machine, &listed) + &describe_approval(approved)))?
                }
                false => print_text(&text)?,
            }
            if reinstall_order_options.now {
                power::power_cycle_now(server, &listed, "reinstall", json)
            } else {
                Ok(CommandOutcome::Good)
            }
        }
    }
}

/// Returns the query parameter that makes the server refuse an order whose plan is refused; empty with `--ignore-plan`.
/// Servers of earlier versions ignore the parameter.
fn order_query(reinstall_order_options: &ReinstallOrderOptions) -> &'static str {
    if reinstall_order_options.ignore_plan { "" } else { "?check_plan=true" }
}

/// If the order was refused because of its plan, adds the commands that show the plan, or order the reinstall in spite
/// of it.
fn add_plan_remedy(why: &str, reinstall_order_options: &ReinstallOrderOptions) -> String {
    let (Some(machine), Some(image)) = (reinstall_order_options.machines.first(), &reinstall_order_options.image)
    else {
        return why.to_owned();
    };
    if !why.starts_with(PLAN_REFUSED) {
        return why.to_owned();
    }
    format!(
        "nothing was ordered: {why}\n`drophammer machine plan {machine} --image {image}` shows the plan; if the disks have changed since the machine registered, add --ignore-plan"
    )
}

/// Returns the machine, and the reinstall to order. The reinstall is `None` if the open order must be canceled. The
/// inner error is the reason why nothing can be ordered.
fn find_order<'a>(
    server: &OperatorClient,
    all: &'a [MachineSummary],
    reinstall_order_options: &ReinstallOrderOptions,
) -> Result<std::result::Result<(&'a MachineSummary, Option<ReinstallRequest>), String>> {
    let named = reinstall_order_options.machines.first().map(|name| find_machine(all, name)).transpose();
    let named = match named {
        Ok(named) => named,
        Err(why) => return Ok(Err(why)),
    };
    if let Some(file) = reinstall_order_options.plans.first() {
        return saved_plan_reinstall::read_planned_order(server, all, named, file);
    }
    let Some(machine) = named else { return Ok(Err("the machine is missing: specify its id or its name".to_owned())) };
    if reinstall_order_options.image.is_some() && machine.allocation.is_none() && !machine.new {
        return Ok(Err(explain_missing_allocation(machine)));
    }
    Ok(Ok((
        machine,
        reinstall_order_options
            .image
            .as_ref()
            .map(|image| reinstall_order_options.overrides.to_request(&machine.id, image)),
    )))
}

pub(super) fn explain_missing_allocation(machine: &MachineSummary) -> String {
    let name = display_name(machine);
    // Without a size, no layout applies to the machine.
    let layout = if machine.size.is_none() { " --layout LAYOUT" } else { "" };
    ErrorCode::ReinstallRefused.annotate(format!(
        "machine {name} cannot be reinstalled: it is free; `drophammer machine allocate {name} --image IMAGE{layout}` installs it"
    ))
}

/// Describes the reinstall order and its effects on the allocation, or its cancellation.
fn describe_order(before: &MachineSummary, now: &MachineSummary) -> String {
    let name = display_name(now);
    let Some(order) = &now.order else {
        return format!("The reinstall of {name} is canceled. The machine is unchanged.\n");
    };
    let from = before.image.as_deref().map(|image| format!(" in place of {}", escape_line(image))).unwrap_or_default();
    let (image, id) = (escape_line(&order.image), escape_line(&order.id));
    let notes = describe_differences(&now.differences, now.allocation_unrecorded);
    let notes: String = notes.iter().map(|note| format!("{note}\n")).collect();
    let replaced = now.replaced.as_ref().map(|replaced| escape_line(&describe_replaced_order(replaced)).into_owned());
    let replaced = replaced.map(|replaced| format!("This order {replaced}.\n")).unwrap_or_default();
    format!("{name} will be reinstalled with {image}{from} at its next boot over PXE; order {id}.\n{replaced}{notes}")
}

/// Describes the effects of a reinstall on the allocation, with a line for each difference between the machine file and
/// the installed allocation.
pub(crate) fn describe_differences(differences: &[AllocationDifference], is_unrecorded: bool) -> Vec<String> {
    let is_applied = differences.iter().all(AllocationDifference::is_applied);
    let summary = match (is_unrecorded, differences.is_empty()) {
        (true, _) => Some(UNRECORDED.to_owned()),
        (false, true) => None,
        (false, false) if is_applied => {
            Some("the reinstall applies the machine file to the installed allocation:".to_owned())
        }
        (false, false) => Some(
            "the machine file differs from the installed allocation; --apply-allocation applies the whole file:"
                .to_owned(),
        ),
    };
    let lines = differences.iter().map(|one| format!("  {}", escape_line(&one.to_string())));
    summary.into_iter().chain(lines).collect()
}

/// Describes the approval in the order; empty if there is none.
fn describe_approval(approved: Option<&ApprovedPlan>) -> String {
    let text = |approved: &ApprovedPlan| {
        format!(
            "The plan {hash} is approved. The reinstall is refused if the machine's disks, its allocation, the layout or the image change before it starts.\n",
            hash = escape_line(&approved.sha256)
        )
    };
    approved.map(text).unwrap_or_default()
}

fn display_name(machine: &MachineSummary) -> String {
    escape_line(if machine.name.is_empty() { &machine.id } else { &machine.name }).to_string()
}

/// Describes the order and the next steps of the operator.
pub(super) fn describe_next_steps(before: &MachineSummary, now: &MachineSummary, command: Option<&str>) -> String {
    let (name, ordered) = (display_name(now), describe_order(before, now));
    if now.order.is_none() {
        return ordered;
    }
    let command = command.map_or_else(
        || format!("the output of `drophammer machine boot-digest {name} --at URL`; URL is the address at which machines reach the server"),
        str::to_owned,
    );
    format!(
        "{ordered}\
         Start the reinstall in one of two ways:\n  \
         power-cycle the machine into PXE\n  \
         {command}\n    \
         on the machine, as root: starts the reinstall without waiting for the firmware\n\
         Show what the reinstall will do, disk by disk:\n  \
         drophammer machine plan {name}\n\
         Cancel the reinstall before it starts:\n  \
         drophammer machine reinstall {name} --cancel\n"
    )
}
