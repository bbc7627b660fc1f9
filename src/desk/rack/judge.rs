//! Plans one machine of the rack as its agent would, and summarizes the plan as a row.

use super::{Outcome, Row};
use crate::assigned::preview::{NOBODY_LOOKED, Planned, planned};
use crate::desk::plan::possible;
use crate::error::{Error, Phase};
use crate::inventory::Inventory;
use crate::plan::{Mode, Verdicts};
use crate::serve::rack::{Outlook, Seen};

pub fn refusal(why: impl Into<String>) -> Error {
    Error::refusal(Phase::Plan, why)
}

pub fn failure(why: impl Into<String>) -> Error {
    Error::new(Phase::Plan, why)
}

/// Returns the row, and the verdicts that can be approved. A fresh inventory replaces the registered one.
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
        return ends(Outcome::Nothing, "it does not have an allocation".to_owned());
    };
    let (inventory, is_outdated) = match (fresh, seen.registered) {
        (Some(fresh), _) => (fresh, false),
        (None, Some(registered)) => {
            row.inventory = Some(registered.time).filter(|time| !time.is_empty());
            (registered.inventory, registered.outdated)
        }
        (None, None) => {
            let why = "it has never registered: boot it over PXE once, or provide its inventory with --inventories";
            return ends(Outcome::Unknown, why.to_owned());
        }
    };
    row.mode = Some(if allocation.reinstall { Mode::Reinstall } else { Mode::Install });
    row.image = Some(allocation.image.id.clone());
    let inventory = match possible(inventory, || "the registered inventory is invalid".to_owned()) {
        Ok(inventory) => inventory,
        Err(error) => {
            row.outcome = Outcome::Unknown;
            row.reasons = vec![error.to_string()];
            return (row, None);
        }
    };
    match planned(&machine, allocation, inventory, is_outdated) {
        Ok(Planned { verdicts: None, .. }) => {
            row.reasons = vec!["the ordered installation already exists and is booted".to_owned()];
            (row, None)
        }
        Ok(Planned { disks, verdicts: Some(verdicts), foreseen, .. }) => {
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
        Err(refused) => {
            row.outcome = Outcome::Refused;
            row.reasons = refused.problems.iter().map(ToString::to_string).collect();
            (row, None)
        }
    }
}
