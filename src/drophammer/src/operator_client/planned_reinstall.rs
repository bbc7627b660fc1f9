//! `drophammer machine reinstall --plan FILE`: orders exactly a saved plan.

use super::{OperatorClient, OperatorResponse, find_machine};
use crate::commands::saved_plan::SavedPlan;
use ::api::operator::MachineSummary;
use ::api::operator::reinstalls::ReinstallRequest;
use ::api::plan_input::PlanInput;
use common::encoding::percent_encode;
use common::error::{Error, Phase, Result};
use reqwest::Method;
use std::path::Path;

type PlannedOrder<'a> = std::result::Result<(&'a MachineSummary, Option<ReinstallRequest>), String>;

/// Reads the saved plan, and returns its machine and the order that approves it. `named` is the machine that the command
/// line names, if any. The inner error is the reason why the plan cannot be ordered.
pub(super) fn read_planned_order<'a>(
    server: &OperatorClient,
    all: &'a [MachineSummary],
    named: Option<&MachineSummary>,
    file: &Path,
) -> Result<PlannedOrder<'a>> {
    let saved = SavedPlan::read_file(file)?;
    let request = saved.request();
    let machine = match find_machine(all, &request.id) {
        Ok(machine) => machine,
        Err(why) => return Ok(Err(why)),
    };
    if let Some(other) = named.filter(|named| named.id != machine.id) {
        return Ok(Err(format!("{}: the plan is for machine {}, not for {}", file.display(), request.id, other.id)));
    }
    let preview = match fetch_reinstall_preview(server, request)? {
        OperatorResponse::Good(preview) => preview,
        OperatorResponse::Refused(why) => return Ok(Err(why)),
    };
    let changes = saved.find_changes(&preview);
    if !changes.is_empty() {
        return Ok(Err(format!(
            "{}: the plan is outdated: {}; review and save a new plan: `drophammer machine plan {} --image {} --out {}`",
            file.display(),
            changes.join("; "),
            if machine.name.is_empty() { &machine.id } else { &machine.name },
            request.imageid,
            file.display()
        )));
    }
    Ok(Ok((machine, Some(ReinstallRequest { approved: Some(saved.approval().clone()), ..request.clone() }))))
}

/// Requests the inputs for planning a reinstall that is not ordered.
///
/// # Errors
/// Returns an error if the server cannot be reached, or does not support such plans.
pub(crate) fn fetch_reinstall_preview(
    server: &OperatorClient,
    asked: &ReinstallRequest,
) -> Result<OperatorResponse<PlanInput>> {
    let overrides = [
        ("without_marker", asked.without_marker),
        ("change_promise", asked.change_promise),
        ("replace_newer", asked.replace_newer),
        ("apply_allocation", asked.apply_allocation),
    ];
    let overrides = overrides.into_iter().filter(|(_, is_set)| *is_set);
    let overrides: String = overrides.map(|(name, _)| format!("&{name}=true")).collect();
    let (image, give_up) = (percent_encode(&asked.imageid, ""), percent_encode(&asked.give_up.join(","), ""));
    let path = format!("/v1/machine/{}/preview?image={image}&give_up={give_up}{overrides}", asked.id);
    let request = server.request(Method::GET, &path);
    let response = server.send_json::<PlanInput>(request)?;
    if let OperatorResponse::Good(PlanInput { machine, .. }) = &response
        && machine.allocation.as_ref().is_some_and(|allocation| !allocation.reinstall)
    {
        let why =
            "the server has an earlier version, which cannot plan a reinstall before it is ordered; upgrade the server";
        return Err(Error::refusal(Phase::Plan, why));
    }
    Ok(response)
}
