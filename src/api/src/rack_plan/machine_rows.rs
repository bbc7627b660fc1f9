//! Plans each machine as its agent would, and summarizes the plan as a row.

use super::{MachineForecast, PredictedMachine};
use common::error::{Error, Phase};
use common::format::metal_api_phrase_replacement::reword_metal_phrases;
use common::format::{format_count, replace_hidden};
use model::disk_identifiers::{comparable_serial, comparable_wwn};
use model::inventory::Inventory;
use plan::request_from_allocation::preview::{PREVIEW_REMARK, PlannedDisk, PreviewPlan, PreviewRefusal, preview_plan};
use plan::{ApprovalSummary, DiskVerdict, InstallMode};
use serde::Serialize;

/// Reason why the plan of a machine without a registration is unknown.
pub const NEVER_REGISTERED: &str = "the machine has never registered: boot it over PXE once";

/// Maximum number of a machine's disks that are listed for each verdict, such as wiped or kept.
const MAXIMUM_LISTED_DISKS: usize = 4;

/// Outcome of a plan for a machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum RackOutcome {
    /// The machine would not be changed.
    Nothing,
    /// Installation or reinstall in which no wiped disk contains data.
    Installs,
    /// Installation or reinstall in which data is lost.
    Erases,
    /// The outcome cannot be determined yet.
    Unknown,
    Refused,
}

#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct RackRow {
    pub id: String,
    pub name: String,
    pub size: Option<String>,
    pub outcome: RackOutcome,
    pub mode: Option<InstallMode>,
    pub image: Option<String>,
    pub layout: Option<String>,
    /// Disks that the layout lists.
    pub disks: Vec<PlannedDisk>,
    pub lost_bytes: u64,
    /// Reasons for the outcomes `Refused`, `Unknown` and `Nothing`; important notes for other outcomes.
    pub reasons: Vec<String>,
    /// Time at which the inventory was registered.
    pub inventory: Option<String>,
    /// True if the disks have changed since the inventory was registered. The plan then uses the disk contents that
    /// the last installation should have created.
    pub foreseen: bool,
    /// Estimated duration in minutes; `None` if unknown.
    pub minutes: Option<u64>,
    /// SHA-256 of the plan's verdicts about the disks, such as wiping or keeping them. An approval of the plan contains
    /// the same hash.
    pub sha256: Option<String>,
    pub approved: bool,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct RackSummary {
    pub machines: usize,
    pub nothing: usize,
    pub installs: usize,
    pub erases: usize,
    pub unknown: usize,
    pub refused: usize,
    pub approved: usize,
    /// Number of disks that lose data.
    pub disks: usize,
    pub lost_bytes: u64,
    /// Estimated duration of the slowest installation, in minutes; `None` if no duration is known.
    pub minutes: Option<u64>,
    /// Number of planned installations without an estimated duration.
    pub of_unknown_length: usize,
}

impl RackRow {
    /// Returns the row of a machine whose plan is unknown. `why` is the reason.
    pub fn unknown(id: String, name: String, why: &str) -> RackRow {
        let reasons = why.lines().map(str::to_owned).collect();
        RackRow { outcome: RackOutcome::Unknown, reasons, ..RackRow::without_plan(id, name, None) }
    }

    fn without_plan(id: String, name: String, size: Option<String>) -> RackRow {
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
}

impl RackSummary {
    /// Counts the outcomes of rows.
    pub fn from_rows(rows: &[RackRow]) -> RackSummary {
        let mut sum = RackSummary { machines: rows.len(), ..RackSummary::default() };
        for row in rows {
            match row.outcome {
                RackOutcome::Nothing => sum.nothing += 1,
                RackOutcome::Installs => sum.installs += 1,
                RackOutcome::Erases => sum.erases += 1,
                RackOutcome::Unknown => sum.unknown += 1,
                RackOutcome::Refused => sum.refused += 1,
            }
            sum.approved += usize::from(row.approved);
            if matches!(row.outcome, RackOutcome::Installs | RackOutcome::Erases) {
                sum.disks += row.disks.iter().filter(|disk| disk.lost_bytes > 0).count();
                sum.lost_bytes = sum.lost_bytes.saturating_add(row.lost_bytes);
                sum.minutes = sum.minutes.max(row.minutes);
                sum.of_unknown_length += usize::from(row.minutes.is_none());
            }
        }
        sum
    }

    /// Describes the estimated duration, such as `Estimated duration: at most 7 minutes for each machine.`; empty if
    /// nothing would be installed.
    pub fn describe_duration(&self) -> String {
        let minutes = |minutes: u64| format_count(usize::try_from(minutes).unwrap_or(usize::MAX), "minute", "minutes");
        match (self.erases + self.installs, self.minutes, self.of_unknown_length) {
            (0, ..) => String::new(),
            (_, None, _) => "The duration of the installations is unknown.".to_owned(),
            (_, Some(most), 0) => {
                format!("Estimated duration: at most {minutes} for each machine.", minutes = minutes(most))
            }
            (_, Some(most), unknown) => {
                let others = format_count(unknown, "machine", "machines");
                format!(
                    "Estimated duration: at most {minutes} for each machine; unknown for {others}.",
                    minutes = minutes(most)
                )
            }
        }
    }
}

/// Plans the machine from the inventory `fresh` or, if `fresh` is `None`, from the registered inventory. Returns the
/// row of the machine, and the verdicts if the plan can be approved.
pub fn plan_machine_row(seen: PredictedMachine, fresh: Option<Inventory>) -> (RackRow, Option<ApprovalSummary>) {
    let minutes = seen.seconds.map(|seconds| (seconds / 60.0).ceil().max(1.0) as u64);
    let mut row = RackRow::without_plan(seen.id, seen.name, seen.size);
    let mut ends = |outcome: RackOutcome, why: String| {
        row.outcome = outcome;
        row.reasons.extend(reword_metal_phrases(&why).lines().map(str::to_owned));
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
            return ends(RackOutcome::Unknown, NEVER_REGISTERED.to_owned());
        }
    };
    row.mode = Some(if allocation.reinstall { InstallMode::Reinstall } else { InstallMode::Install });
    row.image = Some(allocation.image.id.clone());
    if let Some(why) = inventory.find_impossible_property() {
        let why = Error::refusal(Phase::Inventory, format!("the registered inventory is invalid: {why}"));
        row.outcome = RackOutcome::Unknown;
        row.reasons = vec![why.to_coded_text()];
        return (row, None);
    }
    plan_row(row, preview_plan(&machine, allocation, inventory, is_outdated), minutes)
}

/// Completes the row with the plan, or with the reasons for its refusal.
fn plan_row(
    mut row: RackRow,
    planned: Result<PreviewPlan, PreviewRefusal>,
    minutes: Option<u64>,
) -> (RackRow, Option<ApprovalSummary>) {
    match planned {
        Ok(PreviewPlan { verdicts: None, .. }) => {
            row.reasons = vec![
                "the ordered installation is already on the machine, so the machine boots the installed system"
                    .to_owned(),
            ];
            (row, None)
        }
        Ok(PreviewPlan { disks, verdicts: Some(verdicts), foreseen, .. }) => {
            row.lost_bytes = disks.iter().fold(0, |sum: u64, disk| sum.saturating_add(disk.lost_bytes));
            row.outcome = if row.lost_bytes > 0 { RackOutcome::Erases } else { RackOutcome::Installs };
            row.layout = Some(verdicts.layout.clone());
            row.reasons.extend(foreseen.map(|why| format!("{why}: {PREVIEW_REMARK}")));
            row.foreseen = foreseen.is_some();
            row.minutes = minutes;
            row.sha256 = Some(verdicts.digest());
            row.disks = disks;
            (row, Some(verdicts))
        }
        Err(refused) => {
            row.outcome = RackOutcome::Refused;
            row.reasons =
                refused.problems.iter().map(|problem| reword_metal_phrases(&problem.to_coded_text())).collect();
            (row, None)
        }
    }
}

/// Describes the disks by verdict, such as `wipes S1, S2` and `keeps S3`.
pub fn describe_disks(disks: &[PlannedDisk]) -> Vec<String> {
    let verdicts = [
        (DiskVerdict::Wipe, "wipes"),
        (DiskVerdict::Make, "recreates"),
        (DiskVerdict::PartlyKept, "partly keeps"),
        (DiskVerdict::Keep, "keeps"),
        (DiskVerdict::Volumes, "has volumes on"),
    ];
    let said = verdicts.into_iter().filter_map(|(verdict, word)| {
        let of: Vec<&PlannedDisk> = disks.iter().filter(|disk| disk.verdict == verdict).collect();
        let more = of.len().saturating_sub(MAXIMUM_LISTED_DISKS);
        let names = of
            .iter()
            .take(MAXIMUM_LISTED_DISKS)
            .map(|disk| disk_name(disk))
            .chain((more > 0).then(|| format!("{more} more")));
        (!of.is_empty()).then(|| format!("{word} {}", names.collect::<Vec<_>>().join(", ")))
    });
    said.collect()
}

/// Returns the serial number of a disk or, if it does not identify the disk, its WWN or path.
fn disk_name(disk: &PlannedDisk) -> String {
    let PlannedDisk { serial, wwn, device, .. } = disk;
    let name = match (comparable_serial(serial), comparable_wwn(wwn)) {
        (Some(_), _) => serial,
        (None, Some(_)) => wwn,
        (None, None) => device,
    };
    replace_hidden(name.trim())
}
