//! Forecast of `drophammer plan --machine` for a machine whose registered inventory is older than its last
//! installation. The forecast contains the verdict about each disk. A complete plan cannot be made, because the
//! contents of the disks have changed.

use super::machine_plan::{FRESH_INVENTORY_REMEDY, format_time, require_allocation, simulate_reinstall};
use crate::local_commands::plan::{PlanArgs, choose_outcome, refuse_impossible};
use api::plan_input::{PlanInput, RegisteredInventory};
use common::command_outcome::CommandOutcome;
use common::error::Result;
use common::format::metal_api_phrase_replacement::reword_metal_phrases;
use common::format::terminal_escaping::escape_line;
use common::format::{self, format_bytes, format_count};
use common::output::to_json;
use plan::DiskVerdict;
use plan::request_from_allocation::preview::{PREVIEW_REMARK, PlannedDisk, PreviewPlan, preview_plan};
use serde::Serialize;

/// Forecast in the JSON format of `--json`.
#[derive(Serialize)]
struct PlanForecast<'a> {
    /// Reason why only a forecast is possible.
    foreseen: &'a str,
    /// Time of the inventory, as RFC 3339 in UTC.
    inventory: &'a str,
    lost_bytes: u64,
    disks: &'a [PlannedDisk],
}

/// Returns the forecast as text or JSON, and the outcome.
///
/// # Errors
/// Returns an error if the machine has nothing to install, or if the options contradict the machine's state.
pub(crate) fn forecast_plan(
    options: &PlanArgs,
    name: &str,
    preview: &PlanInput,
    registered: &RegisteredInventory,
) -> Result<(String, CommandOutcome)> {
    let mut allocation = require_allocation(preview, name)?;
    simulate_reinstall(options, name, &mut allocation)?;
    let is_reinstall = allocation.reinstall;
    let image = allocation.image.id.clone();
    let inventory = refuse_impossible(registered.inventory.clone(), || {
        format!("the registered inventory of machine {name} is invalid")
    })?;
    let planned = match preview_plan(&preview.machine, allocation, inventory, true) {
        Ok(planned) => planned,
        Err(refused) => return Ok((reword_metal_phrases(&refused.printed) + "\n", CommandOutcome::Refused)),
    };
    let lost_bytes = planned.disks.iter().fold(0, |sum: u64, disk| sum.saturating_add(disk.lost_bytes));
    let subject = ForecastSubject { name, image: &image, registered };
    let text = format_forecast(&subject, is_reinstall, &planned, options.json)?;
    // Without verdicts, the requested installation is already on the disks.
    let outcome = if planned.verdicts.is_some() { choose_outcome(options, lost_bytes) } else { CommandOutcome::Good };
    Ok((text, outcome))
}

/// Machine, image and inventory to which a forecast refers.
pub(crate) struct ForecastSubject<'a> {
    pub name: &'a str,
    pub image: &'a str,
    pub registered: &'a RegisteredInventory,
}

/// Formats the forecast as JSON, or as text that begins with a summary.
///
/// # Errors
/// Returns an error if the forecast cannot be formatted as JSON.
pub(crate) fn format_forecast(
    subject: &ForecastSubject,
    is_reinstall: bool,
    planned: &PreviewPlan,
    json: bool,
) -> Result<String> {
    let foreseen = planned.foreseen.unwrap_or_default();
    let lost_bytes = planned.disks.iter().fold(0, |sum: u64, disk| sum.saturating_add(disk.lost_bytes));
    let ForecastSubject { name, image, registered } = subject;
    if json {
        let inventory = registered.time.as_str();
        return Ok(to_json(&PlanForecast { foreseen, inventory, lost_bytes, disks: &planned.disks })? + "\n");
    }
    let what = if is_reinstall { "reinstall" } else { "installation" };
    Ok(format!(
        "{machine}: {what} with {image}; the inventory is {registered}\nData lost: {losses}\n{foreseen}: {PREVIEW_REMARK}.\n\n{disks}\nFor the whole plan: {FRESH_INVENTORY_REMEDY}\n",
        machine = escape_line(name),
        image = escape_line(image),
        registered = format_time(registered),
        losses = describe_losses(&planned.disks, lost_bytes),
        disks = format_disks(&planned.disks)
    ))
}

/// Describes in one line how much data is lost, and how many disks are wiped and preserved.
fn describe_losses(disks: &[PlannedDisk], lost_bytes: u64) -> String {
    let count = |verdict: DiskVerdict| disks.iter().filter(|disk| disk.verdict == verdict).count();
    let disks = |count: usize| format_count(count, "disk is", "disks are");
    format!(
        "{}; {} wiped, {} preserved",
        format_bytes(lost_bytes),
        disks(count(DiskVerdict::Wipe)),
        disks(count(DiskVerdict::Keep))
    )
}

fn format_disks(disks: &[PlannedDisk]) -> String {
    let mut rows = vec![["disk", "size", "serial", "contents"].map(str::to_owned)];
    rows.extend(disks.iter().map(|disk| {
        let serial = if disk.serial.is_empty() { &disk.wwn } else { &disk.serial };
        let contents = match disk.verdict {
            DiskVerdict::Wipe => "WIPED",
            DiskVerdict::Keep => "preserved",
            DiskVerdict::Make => "recreated: the disk is blank",
            DiskVerdict::PartlyKept => "RENEWED, except for preserved partitions",
            DiskVerdict::Volumes => "used for Kubernetes volumes; written only if the disk is blank",
            DiskVerdict::NotOurs => "untouched",
        };
        [disk.device.clone(), format_bytes(disk.size_bytes), format::replace_hidden(serial), contents.to_owned()]
    }));
    format::format_columns(&rows)
}
