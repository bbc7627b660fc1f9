//! Preview of the plan that a machine's agent would make, based on the registered inventory.

use api::AppState;
use api::agent_api::wire_allocation::to_wire_allocation;
use api::base_url::BaseUrls;
use api::plan_input::{INPUT_NOT_READY, RegisteredInventory, parse_registration};
use axum::http::StatusCode;
use common::error_code::ErrorCode;
use common::format::format_bytes;
use common::format::metal_api_phrase_replacement::reword_metal_phrases;
use http_server::api_error::ApiError;
use maud::{Markup, html};
use model::allocation;
use plan::approval_summary::ObjectFate;
use plan::request_from_allocation::preview::{PREVIEW_REMARK, PlannedDisk, PreviewPlan, preview_plan};
use plan::{DiskPlan, DiskVerdict};
use site::allocation_resolution::resolve_allocation;
use site::operator_files::MachineSpec;
use store::{InstallState, ReinstallOrder, StoredRegistration as Row};

pub(crate) enum PlanPreview {
    /// The plan cannot be determined, for this reason.
    Unknown(String),
    /// The plan is refused. The first line contains the reasons; the other lines contain the text that
    /// `drophammer plan` prints.
    Refused(String),
    Planned(Box<PreviewPlan>, Box<RegisteredInventory>),
}

/// Makes the plan for the allocation that the machine would receive in the state `install_state`. `now` is true if the
/// machine's agent is running. The agent has then already made its plan from the registered inventory, so this
/// inventory does not count as outdated, even if the installation has started since the registration.
pub(crate) async fn load_preview(
    app: &AppState,
    base: &BaseUrls,
    machine: &MachineSpec,
    install_state: InstallState,
    now: bool,
) -> Result<PlanPreview, ApiError> {
    let directory = app.directory();
    let is_installed = install_state.is_installed();
    let assigned = match resolve_allocation(machine, &install_state, &directory.known) {
        Ok(Some(assigned)) => assigned,
        Ok(None) => return Ok(PlanPreview::Unknown(INPUT_NOT_READY.to_owned())),
        Err(why) => {
            return Ok(PlanPreview::Refused(reword_metal_phrases(&ErrorCode::SiteFile.annotate_uncoded(why))));
        }
    };
    let Some(row) = app.state.find_registration(&machine.id).await? else { return Ok(PlanPreview::unregistered()) };
    let told = to_wire_allocation(
        &assigned,
        if now { before_attempt(install_state) } else { install_state },
        &base.calls,
        false,
    );
    let told = allocation::AssignedMachine {
        id: machine.id.clone(),
        name: machine.name.clone(),
        size: machine.size.clone().map(|id| allocation::IdReference { id }),
        allocation: Some(told),
        newest_move: None,
    };
    let computed =
        app.planner.run_job(&machine.id, move || plan_from_registration(&told, row, is_installed, now)).await;
    match computed {
        Ok(outlook) => outlook.map_err(|why| ApiError::new(StatusCode::CONFLICT, why)),
        // If the planner is busy, the rest of the page must still be shown.
        Err(error) if error.status() == StatusCode::SERVICE_UNAVAILABLE => Ok(PlanPreview::Unknown(error.parts().1)),
        Err(error) => Err(error),
    }
}

/// Makes the plan from the registered inventory of the machine.
fn plan_from_registration(
    told: &allocation::AssignedMachine,
    row: Row,
    is_installed: bool,
    now: bool,
) -> Result<PlanPreview, String> {
    let Some(registered) = parse_registration(row, &told.id, is_installed)? else {
        return Ok(PlanPreview::unregistered());
    };
    if let Some(why) = registered.inventory.find_impossible_property() {
        return Ok(PlanPreview::Unknown(format!("the registered inventory is invalid: {why}")));
    }
    let inventory = registered.inventory.clone();
    let allocation = told.allocation.clone().unwrap_or_default();
    let is_outdated = registered.outdated && !now;
    Ok(match preview_plan(told, allocation, inventory, is_outdated) {
        Ok(planned) => PlanPreview::Planned(Box::new(planned), Box::new(registered)),
        Err(refused) => PlanPreview::Refused(reword_metal_phrases(&refused.reasons_and_plan())),
    })
}

impl PlanPreview {
    fn unregistered() -> PlanPreview {
        let why = "the machine has never registered, so its disks are unknown: boot it over PXE once";
        PlanPreview::Unknown(why.to_owned())
    }
}

/// Returns the state from which the running agent has made its plan: the state before its attempt passed the point of
/// no return.
fn before_attempt(install_state: InstallState) -> InstallState {
    let first = install_state.first.filter(|first| !first.only);
    let order = install_state.order.map(|order| match order.attempts {
        ..2 => ReinstallOrder { started: false, disks: Vec::new(), ..order },
        _ => order,
    });
    InstallState { first, order, ..install_state }
}

/// Describes the inventory that the plan is based on.
pub(crate) fn show_inventory_source(registered: &RegisteredInventory) -> Markup {
    let since = match registered.seconds_ago {
        ..60 => "just now".to_owned(),
        seconds => format!("{} ago", common::format::format_seconds(seconds as f64)),
    };
    html! {
        p.faint {
            "Based on the registered inventory"
            @if !registered.time.is_empty() { ", " (super::page_frame::show_time(&registered.time)) ", " (since) }
            ". UUIDs are placeholders until the plan is carried out."
        }
    }
}

/// Shows for each disk which data would be lost and preserved, and shows the plan.
pub(crate) fn show_plan(planned: &PreviewPlan) -> Markup {
    let of = |verdict: DiskVerdict| planned.disks.iter().filter(move |disk| disk.verdict == verdict);
    let lost = planned.disks.iter().fold(0, |sum: u64, disk| sum.saturating_add(disk.lost_bytes));
    html! {
        @if let Some(why) = planned.foreseen { p.problem { (why) ": " (PREVIEW_REMARK) } }
        @if planned.plan.as_ref().is_some_and(|plan| plan.already.is_some()) {
            p { "The machine already has the ordered installation and boots it. Nothing is written." }
        }
        div.sides {
            section.dies {
                h2 { "Data lost: " (format_bytes(lost)) }
                ul {
                    @for disk in of(DiskVerdict::Wipe) { li { (show_disk(disk, find_details(planned, disk))) } }
                    @for disk in of(DiskVerdict::PartlyKept) {
                        li { (show_disk(disk, find_details(planned, disk))) ": everything except the preserved partitions" }
                    }
                    @if of(DiskVerdict::Wipe).chain(of(DiskVerdict::PartlyKept)).next().is_none() { li { "nothing" } }
                    @for dismantled in planned.plan.iter().flat_map(|plan| &plan.dismantled) {
                        li { strong { "dismantled: " } (dismantled.whole) }
                    }
                }
            }
            (show_preserved(planned))
        }
        @if let Some(plan) = &planned.plan { h2 { "Plan, as printed" } pre tabindex="0" { (plan) } }
    }
}

fn show_preserved(planned: &PreviewPlan) -> Markup {
    let of = |verdict: DiskVerdict| planned.disks.iter().filter(move |disk| disk.verdict == verdict);
    let not_ours = planned.plan.iter().flat_map(|plan| &plan.disks).filter(|disk| disk.verdict == DiskVerdict::NotOurs);
    html! {
        section.stays {
            h2 { "Preserved" }
            ul {
                @for disk in of(DiskVerdict::Keep) { li { (show_disk(disk, find_details(planned, disk))) } }
                @for disk in of(DiskVerdict::Make) {
                    li { (show_disk(disk, find_details(planned, disk))) ": recreated, because the disk is blank" }
                }
                @for disk in of(DiskVerdict::Volumes) {
                    li { (show_disk(disk, find_details(planned, disk))) ": for Kubernetes volumes; written only if the disk is blank" }
                }
                @for thing in planned.verdicts.iter().flat_map(|verdicts| &verdicts.things) {
                    @match thing.fate {
                        ObjectFate::Kept => li { (thing.name) },
                        ObjectFate::Added => li { (thing.name) ": files of the image are added to the preserved data" },
                        ObjectFate::Made => {}
                    }
                }
                @for disk in not_ours {
                    li { code { (disk.name) } " " (format_bytes(disk.size_bytes)) " " (disk.serial) ": not in the layout, untouched" }
                }
                @if planned.plan.is_none() { li { "every disk that the layout does not list" } }
            }
        }
    }
}

fn find_details<'a>(planned: &'a PreviewPlan, disk: &PlannedDisk) -> Option<&'a DiskPlan> {
    let plan = planned.plan.as_ref()?;
    plan.disks.iter().find(|planned| planned.device.as_str() == disk.device)
}

fn show_disk(disk: &PlannedDisk, details: Option<&DiskPlan>) -> Markup {
    let name = disk.device.strip_prefix("/dev/").unwrap_or(&disk.device);
    let printed = if disk.serial.is_empty() { &disk.wwn } else { &disk.serial };
    html! {
        code { (name) } " " (format_bytes(disk.size_bytes)) " " strong { (printed) }
        @if let Some(details) = details { " " (details.model) ": " (details.now) }
    }
}
