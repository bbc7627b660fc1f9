//! The plan of a machine that is not asked: made of the inventory that it has registered, on a desk or in the server.

use super::{correct_begun, request};
use crate::allocation::{Allocation, Machine};
use crate::inventory::{Inventory, OwnIdentifiers, Use, VolumeGroup};
use crate::layout::Layout;
use crate::plan::{self, Mode, Plan, Request, Verdict, Verdicts, Waiver};
use crate::problem::{Problem, lines};
use serde::Serialize;
use uuid::Uuid;

pub const NOBODY_LOOKED: &str =
    "only the machine can tell whether what is to be kept is in order: its agent looks, and refuses otherwise";

/// A disk that the layout names, and what becomes of it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct PlannedDisk {
    pub serial: String,
    pub wwn: String,
    /// As the kernel called it when the inventory was read.
    pub device: String,
    pub size_bytes: u64,
    pub verdict: Verdict,
    pub lost_bytes: u64,
}

/// What would be done.
pub struct Planned {
    pub disks: Vec<PlannedDisk>,
    /// All of it, where the inventory tells enough.
    pub plan: Option<Box<Plan>>,
    /// `None`: nothing is written.
    pub verdicts: Option<Verdicts>,
    /// Why this is not the whole truth.
    pub foreseen: Option<&'static str>,
}

/// Why nothing would be done.
pub struct Refused {
    pub problems: Vec<Problem>,
    /// As `drophammer plan` prints it.
    pub printed: String,
}

impl From<Vec<Problem>> for Refused {
    fn from(problems: Vec<Problem>) -> Refused {
        Refused { printed: lines(&problems), problems }
    }
}

/// As the agent does it, as far as the inventory goes.
///
/// # Errors
/// The plan is refused.
pub fn planned(
    machine: &Machine,
    mut allocation: Allocation,
    mut inventory: Inventory,
    is_outdated: bool,
) -> Result<Planned, Refused> {
    let parsed = allocation.layout()?;
    stop_using(&mut inventory);
    correct_begun(&machine.id, &mut allocation, &parsed.layout, &inventory);
    let mut request = request(machine, &machine.id, &allocation, &[]);
    if is_outdated {
        return foreseen(&parsed.layout, &inventory, &request, "its disks have changed since it registered");
    }
    if inventory.filesystems.is_empty()
        && request.mode == Mode::Reinstall
        && let Some(claim) = request.claim.as_mut().filter(|claim| claim.waiver.is_none())
    {
        claim.waiver = Some(Waiver::Unseen);
    }
    match plan::make(&parsed.layout, &inventory, request.clone(), &mut placeholders()) {
        Ok(plan) => {
            let (disks, verdicts) = (of_plan(&plan, &inventory), plan.verdicts.clone());
            Ok(Planned { disks, verdicts, plan: Some(Box::new(plan)), foreseen: None })
        }
        Err(_) if request.mode == Mode::Reinstall && is_at_rest(&inventory) => {
            foreseen(&parsed.layout, &inventory, &request, "its arrays and groups did not run when it registered")
        }
        Err(refusal) => Err(Refused { printed: refusal.to_string(), problems: refusal.problems }),
    }
}

/// There is something on the disks that the agent assembles before it looks.
fn is_at_rest(inventory: &Inventory) -> bool {
    let is_inactive = |group: &VolumeGroup| group.volumes.iter().any(|volume| volume.running.is_none());
    inventory.arrays.iter().any(|array| array.running.is_none()) || inventory.groups.iter().any(is_inactive)
}

fn of_plan(plan: &Plan, inventory: &Inventory) -> Vec<PlannedDisk> {
    let ours = plan.disks.iter().filter(|disk| disk.verdict != Verdict::NotOurs);
    let wwn = |device: &str| inventory.disk(device).map(|disk| disk.wwn.clone()).unwrap_or_default();
    ours.map(|disk| PlannedDisk {
        serial: disk.serial.clone(),
        wwn: wwn(disk.device.as_str()),
        device: disk.device.to_string(),
        size_bytes: disk.size_bytes,
        verdict: disk.verdict,
        lost_bytes: if disk.verdict == Verdict::Wipe && !disk.found.blank { disk.size_bytes } else { 0 },
    })
    .collect()
}

fn foreseen(layout: &Layout, inventory: &Inventory, request: &Request, why: &'static str) -> Result<Planned, Refused> {
    let verdicts = plan::verdicts::foreseen(layout, inventory, request)?;
    let identifiers = OwnIdentifiers::of(&inventory.disks);
    let disks = verdicts.disks.iter().map(|disk| {
        let found = inventory.disks.iter().find(|found| disk.is_of(found, &identifiers));
        let device = found.map(|found| found.device.to_string()).unwrap_or_default();
        PlannedDisk {
            serial: disk.serial.clone(),
            wwn: disk.wwn.clone(),
            device,
            size_bytes: disk.size_bytes,
            verdict: disk.verdict,
            lost_bytes: if disk.verdict == Verdict::Wipe { disk.size_bytes } else { 0 },
        }
    });
    Ok(Planned { disks: disks.collect(), plan: None, verdicts: Some(verdicts), foreseen: Some(why) })
}

/// What a plan makes has UUIDs that nobody knows before it is carried out. These stand for them, the same in every run,
/// and are evidently drawn by nobody.
pub fn placeholders() -> impl FnMut() -> Uuid {
    let mut next = 0;
    move || {
        next += 1;
        Uuid::from_u128(next << 96 | next)
    }
}

/// As the agent will find the disks: what the installed system has mounted, and its swap, end with it.
pub fn stop_using(inventory: &mut Inventory) {
    let stop = |uses: &mut Vec<Use>| uses.retain(|usage| matches!(usage, Use::Holder(_)));
    let disks = inventory.disks.iter_mut().map(|disk| (&mut disk.uses, &mut disk.table));
    let stacked = inventory.stacked.iter_mut().map(|device| (&mut device.uses, &mut device.table));
    for (uses, table) in disks.chain(stacked) {
        stop(uses);
        table.iter_mut().flat_map(|table| &mut table.partitions).for_each(|partition| stop(&mut partition.uses));
    }
}
