//! One machine of the rack: the plan that its agent would make, in a row.

use super::{Outcome, Row, RowDisk};
use crate::allocation::{Allocation, Machine};
use crate::assigned::{correct_begun, request};
use crate::desk::plan::{placeholders, possible, stop_using};
use crate::error::{Error, Phase};
use crate::inventory::{Inventory, VolumeGroup};
use crate::layout::Layout;
use crate::plan::verdicts::printed;
use crate::plan::{self, Mode, Plan, Request, Verdict, Verdicts, Waiver};
use crate::problem::Problem;
use crate::serve::rack::{Outlook, Seen};

const NOBODY_LOOKED: &str =
    "only the machine can tell whether what is to be kept is in order: its agent looks, and refuses otherwise";

pub fn refusal(why: impl Into<String>) -> Error {
    Error::refusal(Phase::Plan, why)
}

pub fn failure(why: impl Into<String>) -> Error {
    Error::new(Phase::Plan, why)
}

/// The row, and what can be approved. A fresh inventory goes before the registered one.
pub fn judge(seen: Seen, fresh: Option<Inventory>) -> (Row, Option<Verdicts>) {
    let minutes = seen.seconds.map(|seconds| (seconds / 60.0).ceil().max(1.0) as u64);
    let mut row = Row {
        id: seen.id,
        name: seen.name,
        size: seen.size,
        outcome: Outcome::Nothing,
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
    };
    let mut ends = |outcome: Outcome, why: String| {
        row.outcome = outcome;
        row.reasons.extend(why.lines().map(str::to_owned));
        (row.clone(), None)
    };
    let machine = match seen.outlook {
        Outlook::Nothing(why) => return ends(Outcome::Nothing, why),
        Outlook::Refused(why) => return ends(Outcome::Refused, why),
        Outlook::Unknown(why) => return ends(Outcome::Unknown, why),
        Outlook::Told(machine) => *machine,
    };
    let Some(allocation) = machine.allocation.clone() else {
        return ends(Outcome::Nothing, "it has no allocation".to_owned());
    };
    let (inventory, is_outdated) = match (fresh, seen.registered) {
        (Some(fresh), _) => (fresh, false),
        (None, Some(registered)) => {
            row.inventory = Some(registered.time).filter(|time| !time.is_empty());
            (registered.inventory, registered.outdated)
        }
        (None, None) => {
            let why = "it has never registered: boot it over PXE once, or give its inventory with --inventories";
            return ends(Outcome::Unknown, why.to_owned());
        }
    };
    row.mode = Some(if allocation.reinstall { Mode::Reinstall } else { Mode::Install });
    row.image = Some(allocation.image.id.clone());
    let inventory = match possible(inventory, || "what it has registered is no inventory".to_owned()) {
        Ok(inventory) => inventory,
        Err(error) => {
            row.outcome = Outcome::Unknown;
            row.reasons = vec![error.to_string()];
            return (row, None);
        }
    };
    match planned(&machine, allocation, inventory, is_outdated) {
        Ok(Planned { verdicts: None, .. }) => {
            row.reasons = vec!["what is ordered is installed there already: it is booted".to_owned()];
            (row, None)
        }
        Ok(Planned { disks, verdicts: Some(verdicts), foreseen }) => {
            row.lost_bytes = disks.iter().fold(0, |sum: u64, disk| sum.saturating_add(disk.lost_bytes));
            row.outcome = if row.lost_bytes > 0 { Outcome::Erases } else { Outcome::Installs };
            row.layout = Some(verdicts.layout.clone());
            row.reasons.extend(foreseen.map(|why| format!("{why}: {NOBODY_LOOKED}")));
            row.foreseen = foreseen.is_some();
            row.minutes = minutes;
            row.sha256 = Some(verdicts.digest());
            row.disks = disks;
            (row, Some(verdicts))
        }
        Err(problems) => {
            row.outcome = Outcome::Refused;
            row.reasons = problems.iter().map(ToString::to_string).collect();
            (row, None)
        }
    }
}

struct Planned {
    disks: Vec<RowDisk>,
    /// `None`: nothing is written.
    verdicts: Option<Verdicts>,
    /// Why this is not the whole truth.
    foreseen: Option<&'static str>,
}

/// As the agent does it, as far as the inventory goes.
fn planned(
    machine: &Machine,
    mut allocation: Allocation,
    mut inventory: Inventory,
    is_outdated: bool,
) -> Result<Planned, Vec<Problem>> {
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
        Ok(plan) => Ok(Planned { disks: of_plan(&plan, &inventory), verdicts: plan.verdicts, foreseen: None }),
        Err(_) if request.mode == Mode::Reinstall && is_at_rest(&inventory) => {
            foreseen(&parsed.layout, &inventory, &request, "its arrays and groups did not run when it registered")
        }
        Err(refusal) => Err(refusal.problems),
    }
}

/// There is something on the disks that the agent assembles before it looks.
fn is_at_rest(inventory: &Inventory) -> bool {
    let is_inactive = |group: &VolumeGroup| group.volumes.iter().any(|volume| volume.running.is_none());
    inventory.arrays.iter().any(|array| array.running.is_none()) || inventory.groups.iter().any(is_inactive)
}

fn of_plan(plan: &Plan, inventory: &Inventory) -> Vec<RowDisk> {
    let ours = plan.disks.iter().filter(|disk| disk.verdict != Verdict::NotOurs);
    let wwn = |device: &str| inventory.disk(device).map(|disk| disk.wwn.clone()).unwrap_or_default();
    ours.map(|disk| RowDisk {
        serial: disk.serial.clone(),
        wwn: wwn(disk.device.as_str()),
        device: disk.device.to_string(),
        size_bytes: disk.size_bytes,
        verdict: disk.verdict,
        lost_bytes: if disk.verdict == Verdict::Wipe && !disk.found.blank { disk.size_bytes } else { 0 },
    })
    .collect()
}

fn foreseen(
    layout: &Layout,
    inventory: &Inventory,
    request: &Request,
    why: &'static str,
) -> Result<Planned, Vec<Problem>> {
    let verdicts = plan::verdicts::foreseen(layout, inventory, request)?;
    let disks = verdicts.disks.iter().map(|disk| {
        let is_it = |is: &&crate::inventory::Disk| printed(&is.serial) == disk.serial && printed(&is.wwn) == disk.wwn;
        let device = inventory.disks.iter().find(is_it).map(|is| is.device.to_string()).unwrap_or_default();
        RowDisk {
            serial: disk.serial.clone(),
            wwn: disk.wwn.clone(),
            device,
            size_bytes: disk.size_bytes,
            verdict: disk.verdict,
            lost_bytes: if disk.verdict == Verdict::Wipe { disk.size_bytes } else { 0 },
        }
    });
    Ok(Planned { disks: disks.collect(), verdicts: Some(verdicts), foreseen: Some(why) })
}
