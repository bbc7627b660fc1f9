//! Plan of a machine that is made from its registered inventory, without contacting the machine. Used by the server,
//! and by the commands that plan offline.

use super::{build_request, clear_begun_if_intact};
use crate::{ApprovalSummary, DiskVerdict, InstallMode, MarkerWaiver, Plan, PlanRequest};
use common::diagnostic::{Diagnostic, summarize_problems};
use common::error_code::ErrorCode;
use model::allocation::{Allocation, AssignedMachine};
use model::inventory::{DeviceUse, Inventory, LvmVolumeGroup, UniqueIdentifiers};
use model::layout::Layout;
use serde::Serialize;
use uuid::Uuid;

pub const PREVIEW_REMARK: &str = "the data that must be preserved can be checked only on the machine: the agent \
    refuses the run if that data is not intact";

/// A disk that the layout lists, and its verdict.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct PlannedDisk {
    pub serial: String,
    pub wwn: String,
    /// Kernel path that the disk had when the inventory was read.
    pub device: String,
    pub size_bytes: u64,
    pub verdict: DiskVerdict,
    pub lost_bytes: u64,
}

/// A plan that would be executed.
pub struct PreviewPlan {
    pub disks: Vec<PlannedDisk>,
    /// The whole plan, if the inventory is sufficient for it.
    pub plan: Option<Box<Plan>>,
    /// Verdicts to approve; `None` if nothing is written.
    pub verdicts: Option<ApprovalSummary>,
    /// Reason why the verdicts are only a prediction.
    pub foreseen: Option<&'static str>,
}

/// A plan that would be refused.
pub struct PreviewRefusal {
    pub problems: Vec<Diagnostic>,
    /// Refusal as `drophammer plan` prints it.
    pub printed: String,
}

impl PreviewRefusal {
    /// Returns the code of the first problem.
    pub fn code(&self) -> ErrorCode {
        self.problems.first().and_then(|problem| problem.code).unwrap_or(ErrorCode::Plan)
    }

    /// Returns all reasons in one line, each with its code.
    pub fn reasons(&self) -> String {
        summarize_problems(&self.problems)
    }

    /// Returns all reasons in the first line. The other lines contain the refusal as `drophammer plan` prints it.
    pub fn reasons_and_plan(&self) -> String {
        let reasons = self.reasons();
        if self.printed == reasons { reasons } else { format!("{reasons}\n\n{}", self.printed) }
    }

    /// Returns whether the only problem is that the disks must be read again. The agent, which reads the disks, may
    /// accept the plan.
    pub fn is_unknown(&self) -> bool {
        let is_unknown = |problem: &Diagnostic| problem.message == crate::approval_summary::UNKNOWN_VOLUMES;
        !self.problems.is_empty() && self.problems.iter().all(is_unknown)
    }
}

impl From<Vec<Diagnostic>> for PreviewRefusal {
    fn from(problems: Vec<Diagnostic>) -> PreviewRefusal {
        let printed = problems.iter().map(Diagnostic::to_coded_text).collect::<Vec<_>>().join("\n");
        PreviewRefusal { problems, printed }
    }
}

/// Makes the plan as the agent would, as far as the inventory permits.
///
/// # Errors
/// Fails if the plan is refused.
pub fn preview_plan(
    machine: &AssignedMachine,
    mut allocation: Allocation,
    mut inventory: Inventory,
    is_outdated: bool,
) -> Result<PreviewPlan, PreviewRefusal> {
    let parsed = allocation.parse_layout()?;
    remove_temporary_uses(&mut inventory);
    clear_begun_if_intact(&machine.id, &mut allocation, &parsed.layout, &inventory);
    let mut request = build_request(machine, &machine.id, &allocation, &[]);
    if is_outdated {
        return predict_plan(
            &parsed.layout,
            &inventory,
            &request,
            "the disks of the machine have changed since it registered",
        );
    }
    if inventory.filesystems.is_empty()
        && request.mode == InstallMode::Reinstall
        && let Some(claim) = request.claim.as_mut().filter(|claim| claim.waiver.is_none())
    {
        claim.waiver = Some(MarkerWaiver::OfflinePlan);
    }
    match crate::make_plan(&parsed.layout, &inventory, request.clone(), &mut placeholder_uuids()) {
        Ok(plan) => {
            let (disks, verdicts) = (planned_disks(&plan, &inventory), plan.verdicts.clone());
            Ok(PreviewPlan { disks, verdicts, plan: Some(Box::new(plan)), foreseen: None })
        }
        Err(_) if request.mode == InstallMode::Reinstall && has_inactive_devices(&inventory) => predict_plan(
            &parsed.layout,
            &inventory,
            &request,
            "the arrays and volume groups of the machine were not active when it registered",
        ),
        Err(refusal) => Err(PreviewRefusal { printed: refusal.to_string(), problems: refusal.problems }),
    }
}

/// Returns whether the disks contain inactive arrays or volumes, which the agent assembles for inspection.
fn has_inactive_devices(inventory: &Inventory) -> bool {
    let is_inactive = |group: &LvmVolumeGroup| group.volumes.iter().any(|volume| volume.running.is_none());
    inventory.arrays.iter().any(|array| array.running.is_none()) || inventory.groups.iter().any(is_inactive)
}

fn planned_disks(plan: &Plan, inventory: &Inventory) -> Vec<PlannedDisk> {
    let ours = plan.disks.iter().filter(|disk| disk.verdict != DiskVerdict::NotOurs);
    let wwn = |device: &str| inventory.find_disk(device).map(|disk| disk.wwn.clone()).unwrap_or_default();
    ours.map(|disk| PlannedDisk {
        serial: disk.serial.clone(),
        wwn: wwn(disk.device.as_str()),
        device: disk.device.to_string(),
        size_bytes: disk.size_bytes,
        verdict: disk.verdict,
        lost_bytes: disk.lost_bytes(),
    })
    .collect()
}

fn predict_plan(
    layout: &Layout,
    inventory: &Inventory,
    request: &PlanRequest,
    why: &'static str,
) -> Result<PreviewPlan, PreviewRefusal> {
    let verdicts = crate::approval_summary::predict_summary(layout, inventory, request)?;
    let identifiers = UniqueIdentifiers::from_disks(&inventory.disks);
    let disks = verdicts.disks.iter().map(|disk| {
        let found = inventory.disks.iter().find(|found| disk.is_about(found, &identifiers));
        let device = found.map(|found| found.device.to_string()).unwrap_or_default();
        PlannedDisk {
            serial: disk.serial.clone(),
            wwn: disk.wwn.clone(),
            device,
            size_bytes: disk.size_bytes,
            verdict: disk.verdict,
            lost_bytes: if disk.verdict == DiskVerdict::Wipe { disk.size_bytes } else { 0 },
        }
    });
    Ok(PreviewPlan { disks: disks.collect(), plan: None, verdicts: Some(verdicts), foreseen: Some(why) })
}

/// Returns a generator of placeholders for the UUIDs of new objects; the final UUIDs are unknown until the plan is
/// executed. The placeholders are the same in every run, and can be recognized as such.
pub fn placeholder_uuids() -> impl FnMut() -> Uuid {
    let mut next = 0;
    move || {
        next += 1;
        Uuid::from_u128(next << 96 | next)
    }
}

/// Removes mounts and active swap areas from the inventory, because they end when the installed system is shut down.
/// The inventory then describes the disks as the agent will find them.
pub fn remove_temporary_uses(inventory: &mut Inventory) {
    let stop = |uses: &mut Vec<DeviceUse>| uses.retain(|usage| matches!(usage, DeviceUse::Holder(_)));
    let disks = inventory.disks.iter_mut().map(|disk| (&mut disk.uses, &mut disk.table));
    let stacked = inventory.stacked.iter_mut().map(|device| (&mut device.uses, &mut device.table));
    for (uses, table) in disks.chain(stacked) {
        stop(uses);
        table.iter_mut().flat_map(|table| &mut table.partitions).for_each(|partition| stop(&mut partition.uses));
    }
}
