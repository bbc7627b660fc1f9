//! `drophammer machine reinstall --plan FILE`: orders a reinstall that carries out exactly a saved plan.

use super::machine_list::name_or_id;
use super::{OperatorClient, OperatorResponse, find_machine};
use crate::local_commands::saved_plan::SavedPlan;
use ::api::operator_api::MachineSummary;
use ::api::operator_api::reinstalls::ReinstallRequest;
use ::api::plan_input::PlanInput;
use ::api::rack_plan::PLANNED_ORDER;
use common::encoding::percent_encode;
use common::error::{Error, Phase, Result};
use common::error_code::ErrorCode;
use reqwest::Method;
use std::path::Path;

type PlannedOrder<'a> = std::result::Result<(&'a MachineSummary, Option<ReinstallRequest>), String>;

/// Reads the saved plan. Returns the machine of the plan, and the order that approves the plan. `named` is the machine
/// on the command line, if there is one. The inner error is the reason why the plan cannot be ordered.
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
        return Ok(Err(format!(
            "{file}: the plan is for machine {planned}, not for machine {other}",
            file = file.display(),
            planned = name_or_id(machine),
            other = name_or_id(other)
        )));
    }
    let preview = match fetch_reinstall_preview(server, request)? {
        OperatorResponse::Good(preview) => preview,
        OperatorResponse::Refused(why) => return Ok(Err(why)),
    };
    let changes = saved.find_changes(&preview);
    if !changes.is_empty() {
        let why = format!(
            "{}: the plan is outdated: {}; review and save a new plan: `drophammer machine plan {} --image {} --out {}`",
            file.display(),
            changes.join("; "),
            name_or_id(machine),
            request.imageid,
            file.display()
        );
        return Ok(Err(ErrorCode::ApprovalMismatch.annotate(why)));
    }
    Ok(Ok((machine, Some(ReinstallRequest { approved: Some(saved.approval().clone()), ..request.clone() }))))
}

/// Requests the inputs for planning a reinstall that is not ordered yet.
///
/// # Errors
/// Returns an error if the server cannot be reached, or does not support such plans.
pub(crate) fn fetch_reinstall_preview(
    server: &OperatorClient,
    reinstall_request: &ReinstallRequest,
) -> Result<OperatorResponse<PlanInput>> {
    let overrides = [
        ("without_marker", reinstall_request.without_marker),
        ("change_promise", reinstall_request.change_promise),
        ("replace_newer", reinstall_request.replace_newer),
        ("apply_allocation", reinstall_request.apply_allocation),
    ];
    let overrides = overrides.into_iter().filter(|(_, is_set)| *is_set);
    let overrides: String = overrides.map(|(name, _)| format!("&{name}=true")).collect();
    let lists = [("give_up", &reinstall_request.give_up), ("leave_locked", &reinstall_request.leave_locked)];
    let lists = lists.into_iter().filter(|(_, listed)| !listed.is_empty());
    let lists: String =
        lists.map(|(name, listed)| format!("&{name}={}", percent_encode(&listed.join(","), ""))).collect();
    let image = percent_encode(&reinstall_request.imageid, "");
    let path = format!("/v1/machine/{}/preview?image={image}{lists}{overrides}", reinstall_request.id);
    let request = server.request(Method::GET, &path);
    let response = server.send_json::<PlanInput>(request)?;
    match &response {
        OperatorResponse::Good(preview) => match explain_other_plan(preview, reinstall_request) {
            Some(why) => Err(Error::refusal(Phase::Plan, why)),
            None => Ok(response),
        },
        OperatorResponse::Refused(_) => Ok(response),
    }
}

/// Returns the reason why the response does not belong to this reinstall; `None` if it does. Servers of earlier
/// versions ignore the query, and return the inputs for the open order or for the installed system.
fn explain_other_plan(preview: &PlanInput, reinstall_request: &ReinstallRequest) -> Option<String> {
    let (machine, image) = (&preview.machine, &reinstall_request.imageid);
    let allocation = machine.allocation.as_ref()?;
    let id = if machine.name.is_empty() { &machine.id } else { &machine.name };
    if allocation.moving.is_some() {
        return Some(format!(
            "cannot plan a reinstall of machine {id} with {image}: the machine takes part in a migration; wait until the migration has \
             ended, or cancel it (`drophammer machine move {id} --cancel`)"
        ));
    }
    let outdated = "the server has an earlier version, which can plan only ordered reinstalls; upgrade the server";
    match &allocation.order {
        Some(order) if allocation.reinstall && order.id == PLANNED_ORDER => None,
        Some(_) if allocation.reinstall => Some(format!(
            "cannot plan a reinstall of machine {id} with {image}: {outdated}, or omit --image to plan the open order, which is for image {open_image}",
            open_image = allocation.image.id
        )),
        _ => Some(format!("cannot plan a reinstall of machine {id} with {image}: {outdated}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use model::allocation::{AllocatedImage, Allocation, AssignedMachine, OrderedReinstall};
    use model::machine_migration::{MigrationOffer, MigrationSide};

    fn explain(allocation: Option<Allocation>) -> Option<String> {
        let machine = AssignedMachine { id: "m".to_owned(), allocation, ..AssignedMachine::default() };
        let reinstall_request = ReinstallRequest { imageid: "i1".to_owned(), ..ReinstallRequest::default() };
        explain_other_plan(&PlanInput { machine, ..PlanInput::default() }, &reinstall_request)
    }

    fn ordered(id: &str) -> Allocation {
        let order = Some(OrderedReinstall { id: id.to_owned(), ..OrderedReinstall::default() });
        let image = AllocatedImage { id: "i0".to_owned(), ..AllocatedImage::default() };
        Allocation { reinstall: true, order, image, ..Allocation::default() }
    }

    #[test]
    fn the_plan_of_another_order_is_refused() {
        assert_eq!(explain(None), None);
        assert_eq!(explain(Some(ordered(PLANNED_ORDER))), None);
        let why = explain(Some(ordered("o1"))).unwrap();
        assert!(why.contains("earlier version") && why.ends_with("the open order, which is for image i0"), "{why}");
        let why = explain(Some(Allocation::default())).unwrap();
        assert!(why.ends_with("upgrade the server"), "{why}");
        let moving = Some(MigrationOffer {
            order: "o".to_owned(),
            part: MigrationSide::Source,
            started: false,
            awaits_approval: false,
            peer: None,
            carried: None,
            disks: Vec::new(),
        });
        let why = explain(Some(Allocation { moving, ..Allocation::default() })).unwrap();
        assert!(why.contains("takes part in a migration") && !why.contains("version"), "{why}");
    }
}
