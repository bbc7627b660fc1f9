//! `drophammer plan --machine`: makes the plan of a server's machine from the machine's registered inventory, and from
//! the allocation that the server would now send to the machine.

use super::machine_plan_forecast::forecast_plan;
use super::{
    OperatorClient, OperatorResponse, ReinstallOverrideOptions, describe_differences, fetch_reinstall_preview,
    find_machine,
};
use crate::local_commands::plan::{
    MissingPlan, PlanArgs, PlanInputs, inputs_from_files, read_inventory, refuse_impossible,
};
use crate::local_commands::plan_templates::NamedTemplates;
use api::operator_api::MachineSummary;
use api::operator_api::reinstalls::ReinstallRequest;
use api::plan_input::{PlanInput, RegisteredInventory};
use common::command_outcome::CommandOutcome;
use common::diagnostic;
use common::error::{Error, Phase, Result};
use model::allocation::{Allocation, OrderedReinstall};
use model::inventory::Inventory;
use plan::request_from_allocation::preview::remove_temporary_uses;
use plan::request_from_allocation::{build_request, clear_begun_if_intact};
use plan::{InstallMode, MarkerWaiver, PlanRequest};
use reqwest::Method;
use serde::de::DeserializeOwned;

pub(crate) const FRESH_INVENTORY_REMEDY: &str =
    "run `drophammer inventory` on the machine, and specify the output of that command with --inventory FILE";

/// Inputs of a plan, or a forecast if the registered inventory is outdated.
#[allow(
    clippy::large_enum_variant,
    reason = "a command creates only one value of this enum, so the size of its largest variant does not matter"
)]
pub(crate) enum RegisteredPlan {
    /// Inputs of the plan. The error is the reason why no plan is made.
    Inputs(std::result::Result<PlanInputs, MissingPlan>),
    /// Output of the forecast, and its outcome.
    Forecast(String, CommandOutcome),
}

/// Collects the inputs from which the agent of the machine would make its plan.
///
/// # Errors
/// Returns an error if the server cannot be reached, if the server has no inventory or no allocation of the machine, or
/// if the options contradict the machine's state.
pub(crate) fn collect_inputs(options: &PlanArgs, machine: &str) -> Result<RegisteredPlan> {
    let server = OperatorClient::new(&options.of)?;
    let (preview, _) = fetch_machine_preview(&server, options, machine)?;
    if let Some(allocation) = &preview.machine.allocation
        && is_unchanged(options, allocation)
    {
        return Ok(RegisteredPlan::Inputs(Err(MissingPlan::Unchanged(format!(
            "machine {machine} is installed with {image} and boots it, because no reinstall is ordered. Use --reinstall to preview a reinstall",
            image = allocation.image.id
        )))));
    }
    if let Some(registered) = outdated_inventory(options, &preview) {
        let (text, outcome) = forecast_plan(options, machine, &preview, registered)?;
        return Ok(RegisteredPlan::Forecast(text, outcome));
    }
    let (inventory, note) = match &options.inventory {
        Some(path) => (read_inventory(path)?, None),
        None => registered_inventory(machine, preview.registered.as_ref())?,
    };
    let differences = match &preview.machine.allocation {
        Some(allocation) if options.layout.is_none() && (options.reinstall || allocation.reinstall) => {
            let lines = describe_differences(&preview.differences, preview.allocation_unrecorded);
            let all = lines.iter().map(|line| line.trim_start());
            (!lines.is_empty()).then(|| all.collect::<Vec<_>>().join("; ").replacen(":; ", ": ", 1))
        }
        _ => None,
    };
    let plan_inputs = match &options.layout {
        Some(_) => inputs_from_files(options, inventory)?.map_err(MissingPlan::from),
        None => inputs_from_allocation(options, machine, &preview, inventory)?,
    };
    Ok(RegisteredPlan::Inputs(plan_inputs.map(|mut plan_inputs| {
        plan_inputs.notes.extend(note);
        plan_inputs.notes.extend(differences);
        plan_inputs
    })))
}

/// Requests the inputs of the plan. Also returns the reinstall that the options request; `None` if the plan is for the
/// current orders.
///
/// # Errors
/// Returns an error if the server cannot be reached, or the reinstall cannot be ordered.
pub(crate) fn fetch_machine_preview(
    server: &OperatorClient,
    options: &PlanArgs,
    machine: &str,
) -> Result<(PlanInput, Option<ReinstallRequest>)> {
    let id = match uuid::Uuid::parse_str(machine) {
        Ok(id) => id.to_string(),
        Err(_) => {
            let all: Vec<MachineSummary> = fetch(server, "/v1/machines")?;
            find_machine(&all, machine).map_err(|why| Error::refusal(Phase::Settings, why))?.id.clone()
        }
    };
    let present = || fetch::<PlanInput>(server, &format!("/v1/machine/{id}/preview"));
    let overrides = ReinstallOverrideOptions { without_marker: waives_marker(options), ..options.overrides.clone() };
    let image = match &options.image {
        Some(image) => image.clone(),
        None if options.out.is_none() && options.overrides == ReinstallOverrideOptions::default() => {
            return Ok((present()?, None));
        }
        None => require_allocation(&present()?, machine)?.image.id,
    };
    let request = overrides.to_request(&id, &image);
    match fetch_reinstall_preview(server, &request)? {
        OperatorResponse::Good(preview) => Ok((preview, Some(request))),
        OperatorResponse::Refused(why) => Err(Error::refusal(Phase::Settings, why)),
    }
}

/// Returns the registered inventory if the plan would be made from this inventory, but the inventory is outdated,
/// because an installation has started since the registration.
fn outdated_inventory<'a>(options: &PlanArgs, preview: &'a PlanInput) -> Option<&'a RegisteredInventory> {
    let replaces = options.inventory.is_some() || options.layout.is_some() || !options.template.is_empty();
    preview.registered.as_ref().filter(|registered| registered.outdated && !replaces)
}

fn fetch<T: DeserializeOwned>(server: &OperatorClient, path: &str) -> Result<T> {
    match server.send_json(server.request(Method::GET, path))? {
        OperatorResponse::Good(answer) => Ok(answer),
        OperatorResponse::Refused(why) => Err(Error::refusal(Phase::Settings, why)),
    }
}

fn inventory_refusal(why: impl Into<String>) -> Error {
    Error::refusal(Phase::Inventory, why)
}

/// Returns the error for a machine that cannot be planned, although its inventory is usable.
pub(crate) fn plan_refusal(why: impl Into<String>) -> Error {
    Error::refusal(Phase::Plan, why)
}

/// Returns the inventory at the server, and a note about its age.
pub(crate) fn registered_inventory(
    machine: &str,
    registered: Option<&RegisteredInventory>,
) -> Result<(Inventory, Option<String>)> {
    let registered = require_registered(machine, registered)?;
    let as_of = format_time(registered);
    if registered.outdated {
        return Err(inventory_refusal(format!(
            "the inventory of machine {machine} is {as_of}, and an installation has started since then: the contents of its disks have \
             changed; {FRESH_INVENTORY_REMEDY}"
        )));
    }
    let what = || format!("the registered inventory of machine {machine} is invalid");
    let inventory = refuse_impossible(registered.inventory.clone(), what)?;
    Ok((inventory, Some(format!("the inventory is {as_of}: later changes on the machine are not in this plan"))))
}

/// Returns the registration of the machine.
///
/// # Errors
/// Returns an error if the machine has never registered.
pub(crate) fn require_registered<'a>(
    machine: &str,
    registered: Option<&'a RegisteredInventory>,
) -> Result<&'a RegisteredInventory> {
    registered.ok_or_else(|| {
        inventory_refusal(format!(
            "machine {machine} has never registered, so the server has no inventory of it: boot it over PXE once (nothing is installed \
             before it has an allocation), or {FRESH_INVENTORY_REMEDY}"
        ))
    })
}

pub(crate) fn format_time(registered: &RegisteredInventory) -> String {
    match registered.time.get(..16) {
        Some(minute) => format!("as of {} UTC, {}", minute.replace('T', " "), format_age(registered.seconds_ago)),
        None => "from an unknown time".to_owned(),
    }
}

fn format_age(seconds: u64) -> String {
    let (count, unit) = match seconds {
        ..120 => return "just now".to_owned(),
        120..7_200 => (seconds / 60, "minutes"),
        7_200..172_800 => (seconds / 3_600, "hours"),
        _ => (seconds / 86_400, "days"),
    };
    format!("{count} {unit} ago")
}

/// Collects the inputs from which the machine's agent would make its plan: the allocation, layout and options that the
/// server would send.
fn inputs_from_allocation(
    options: &PlanArgs,
    name: &str,
    preview: &PlanInput,
    mut inventory: Inventory,
) -> Result<std::result::Result<PlanInputs, MissingPlan>> {
    let templates = match NamedTemplates::read(&options.template)? {
        Ok(templates) => templates,
        Err(problems) => return Ok(Err(problems.into())),
    };
    let machine = &preview.machine;
    let mut allocation = require_allocation(preview, name)?;
    simulate_reinstall(options, name, &mut allocation)?;
    let told = build_request(machine, &machine.id, &allocation, &[]).steps;
    let merged = match templates.merge(told.list()) {
        Ok(merged) => merged,
        Err(problems) => return Ok(Err(problems.into())),
    };
    let parsed = allocation.parse_layout().map_err(|problems| {
        let reasons = diagnostic::summarize_problems(&problems);
        Error::refusal(Phase::Layout, format!("the server's layout for machine {name} is invalid: {reasons}"))
    })?;
    let parsed = match templates.generate_layout(&merged, &inventory) {
        Some(Ok(made)) => made,
        Some(Err(problems)) => return Ok(Err(problems.into())),
        None => parsed,
    };
    if allocation.reinstall || options.at_rest {
        remove_temporary_uses(&mut inventory);
    }
    clear_begun_if_intact(&machine.id, &mut allocation, &parsed.layout, &inventory);
    let mut request = build_request(machine, &machine.id, &allocation, &[]);
    if request.subject.url.is_empty() {
        "the image's server".clone_into(&mut request.subject.url);
    }
    let notes = if inventory.filesystems.is_empty() { waive_unseen_marker(&mut request) } else { Vec::new() };
    // If the server has sent a step that this version does not support, the steps are not replaced, so that the planner
    // refuses this step.
    if !templates.is_empty() && told.problems().is_empty() {
        request.steps = merged.steps.into();
    }
    Ok(Ok(PlanInputs { parsed, inventory, request, notes, templates }))
}

/// Returns the allocation that the server would send to the machine.
///
/// # Errors
/// Returns the reason why the server would not send an allocation.
pub(crate) fn require_allocation(preview: &PlanInput, name: &str) -> Result<Allocation> {
    let why = || {
        let why = preview.withheld.as_deref().unwrap_or("the server does not offer an allocation");
        plan_refusal(format!(
            "machine {name} cannot be planned, because nothing would be installed: {why}. Use --layout FILE to plan with another layout"
        ))
    };
    preview.machine.allocation.clone().ok_or_else(why)
}

/// Disables the check of the install marker, because the registered inventory does not contain the marker. For a first
/// installation, returns a note about the missing check. The plan of a reinstall already mentions the missing check.
fn waive_unseen_marker(request: &mut PlanRequest) -> Vec<String> {
    let claim = request.claim.as_mut().filter(|claim| claim.waiver.is_none());
    match (request.mode, claim) {
        (InstallMode::Reinstall, Some(claim)) => {
            claim.waiver = Some(MarkerWaiver::OfflinePlan);
            Vec::new()
        }
        (InstallMode::Reinstall, None) => Vec::new(),
        (InstallMode::Install, _) => vec![
            "the contents of filesystems are not in this inventory: the agent reads them, and refuses the installation if they contain \
             an install marker"
                .to_owned(),
        ],
    }
}

/// Returns whether the machine is installed, and a reinstall is neither ordered nor previewed.
fn is_unchanged(options: &PlanArgs, allocation: &Allocation) -> bool {
    options.layout.is_none() && !options.reinstall && allocation.succeeded && !allocation.reinstall
}

/// Returns whether the reinstall is planned without an install marker. `drophammer plan` and `drophammer machine plan`
/// have separate options for this.
fn waives_marker(options: &PlanArgs) -> bool {
    options.without_marker || options.overrides.without_marker
}

/// Changes the allocation to that of a reinstall if `--reinstall` is given and no reinstall is ordered at the server.
pub(crate) fn simulate_reinstall(options: &PlanArgs, name: &str, allocation: &mut Allocation) -> Result<()> {
    if !allocation.succeeded && options.reinstall {
        return Err(plan_refusal(format!(
            "machine {name} is not installed and cannot be reinstalled: omit --reinstall to show the installation"
        )));
    }
    if allocation.succeeded && !allocation.reinstall {
        allocation.reinstall = true;
        allocation.order =
            Some(OrderedReinstall { id: "preview".to_owned(), attempt: 1, attempts: 1, ..OrderedReinstall::default() });
    }
    if let Some(order) = &mut allocation.order {
        order.without_marker |= waives_marker(options);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn inventory_time_is_formatted_with_age() {
        for (seconds, words) in [
            (0, "just now"),
            (150, "2 minutes ago"),
            (3 * 3600, "3 hours ago"),
            (47 * 3600, "47 hours ago"),
            (50 * 3600, "2 days ago"),
        ] {
            assert_eq!(format_age(seconds), words);
        }
        let at = |time: &str| {
            format_time(&RegisteredInventory {
                time: time.to_owned(),
                seconds_ago: 7300,
                ..RegisteredInventory::default()
            })
        };
        assert_eq!(at("2026-11-22T10:11:12.123456789Z"), "as of 2026-11-22 10:11 UTC, 2 hours ago");
        assert_eq!(at(""), "from an unknown time");
    }
}
