//! Plans one machine of the rack as its agent would, and summarizes the plan as a row.

use super::{RackOutcome, RackRow};
use crate::commands::plan::refuse_impossible;
use api::rack_plan::{MachineForecast, PredictedMachine};
use common::error::{Error, Phase};
use model::inventory::Inventory;
use plan::request_from_allocation::preview::{NOBODY_LOOKED, PreviewPlan, PreviewRefusal, preview_plan};
use plan::{ApprovalSummary, InstallMode};

pub(crate) fn plan_refusal(why: impl Into<String>) -> Error {
    Error::refusal(Phase::Plan, why)
}

pub(crate) fn plan_failure(why: impl Into<String>) -> Error {
    Error::new(Phase::Plan, why)
}

/// Plans the machine from the inventory `fresh` or, if `fresh` is `None`, from the registered inventory. Returns the
/// row of the machine, and the verdicts if the plan can be approved.
pub(crate) fn judge_machine(seen: PredictedMachine, fresh: Option<Inventory>) -> (RackRow, Option<ApprovalSummary>) {
    let minutes = seen.seconds.map(|seconds| (seconds / 60.0).ceil().max(1.0) as u64);
    let mut row = create_row(seen.id, seen.name, seen.size);
    let mut ends = |outcome: RackOutcome, why: String| {
        row.outcome = outcome;
        row.reasons.extend(why.lines().map(str::to_owned));
        (row.clone(), None)
    };
    let machine = match seen.outlook {
        MachineForecast::NoAction(why) => return ends(RackOutcome::Nothing, why),
        MachineForecast::Refused(why) => return ends(RackOutcome::Refused, why),
        MachineForecast::Unknown(why) => return ends(RackOutcome::Unknown, why),
        MachineForecast::Assigned(machine) => *machine,
    };
    let Some(allocation) = machine.allocation.clone() else {
        return ends(RackOutcome::Nothing, "the machine does not have an allocation".to_owned());
    };
    let (inventory, is_outdated) = match (fresh, seen.registered) {
        (Some(fresh), _) => (fresh, false),
        (None, Some(registered)) => {
            row.inventory = Some(registered.time).filter(|time| !time.is_empty());
            (registered.inventory, registered.outdated)
        }
        (None, None) => {
            let why =
                "the machine has never registered: boot it over PXE once, or provide its inventory with --inventories";
            return ends(RackOutcome::Unknown, why.to_owned());
        }
    };
    row.mode = Some(if allocation.reinstall { InstallMode::Reinstall } else { InstallMode::Install });
    row.image = Some(allocation.image.id.clone());
    let inventory = match refuse_impossible(inventory, || "the registered inventory is invalid".to_owned()) {
        Ok(inventory) => inventory,
        Err(error) => {
            row.outcome = RackOutcome::Unknown;
            row.reasons = vec![error.to_string()];
            return (row, None);
        }
    };
    plan_row(row, preview_plan(&machine, allocation, inventory, is_outdated), minutes)
}

fn create_row(id: String, name: String, size: Option<String>) -> RackRow {
    RackRow {
        id,
        name,
        size,
        outcome: RackOutcome::Nothing,
        mode: None,
        image: None,
        layout: None,
        disks: Vec::new(),
        lost_bytes: 0,
        reasons: Vec::new(),
        inventory: None,
        foreseen: false,
        minutes: None,
        sha256: None,
        approved: false,
    }
}

/// Completes the row with the plan, or with the reasons for its refusal.
fn plan_row(
    mut row: RackRow,
    planned: Result<PreviewPlan, PreviewRefusal>,
    minutes: Option<u64>,
) -> (RackRow, Option<ApprovalSummary>) {
    match planned {
        Ok(PreviewPlan { verdicts: None, .. }) => {
            row.reasons = vec!["the machine already has the ordered installation and boots it".to_owned()];
            (row, None)
        }
        Ok(PreviewPlan { disks, verdicts: Some(verdicts), foreseen, .. }) => {
            row.lost_bytes = disks.iter().fold(0, |sum: u64, disk| sum.saturating_add(disk.lost_bytes));
            row.outcome = if row.lost_bytes > 0 { RackOutcome::Erases } else { RackOutcome::Installs };
            row.layout = Some(verdicts.layout.clone());
            row.reasons.extend(foreseen.map(|why| format!("{why}: {NOBODY_LOOKED}")));
            row.foreseen = foreseen.is_some();
            row.minutes = minutes;
            row.sha256 = Some(verdicts.digest());
            row.disks = disks;
            (row, Some(verdicts))
        }
        Err(refused) => {
            row.outcome = RackOutcome::Refused;
            row.reasons = refused.problems.iter().map(ToString::to_string).collect();
            (row, None)
        }
    }
}
