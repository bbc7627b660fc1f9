//! The plan of the rack as a table. The most important rows come last, directly above the summary.

use super::{RackOutcome, RackRow, RackSummary};
use common::format::{format_bytes, format_columns, format_count, replace_hidden};
use model::device_name::identifiers::{comparable_serial, comparable_wwn};
use plan::DiskVerdict;
use plan::request_from_allocation::preview::PlannedDisk;

/// Maximum number of disks listed per machine; `--json` lists all.
const NAMED: usize = 4;

pub(crate) fn format_table(rows: &[RackRow], summary: &RackSummary) -> String {
    let mut rows: Vec<&RackRow> = rows.iter().collect();
    rows.sort_by_key(|row| row.outcome);
    let mut cells = vec![["name", "plan", "image", "disks", "lost", "minutes"].map(str::to_owned)];
    cells.extend(rows.iter().map(|row| format_row(row)));
    let mut text = String::new();
    for (index, line) in format_columns(&cells).lines().enumerate() {
        text += &format!("{line}\n");
        let reasons = index.checked_sub(1).map(|index| rows[index].reasons.as_slice()).unwrap_or_default();
        reasons.iter().for_each(|why| text += &format!("    {}\n", replace_hidden(why)));
    }
    text + "\n" + &format_summary(summary)
}

fn format_row(row: &RackRow) -> [String; 6] {
    let is_done = matches!(row.outcome, RackOutcome::Installs | RackOutcome::Erases);
    let or_none = |text: String| if text.is_empty() { "-".to_owned() } else { text };
    let name = if row.name.is_empty() { &row.id } else { &row.name };
    let plan = match row.outcome {
        RackOutcome::Nothing => "nothing",
        RackOutcome::Installs => "installs",
        RackOutcome::Erases => "ERASES",
        RackOutcome::Unknown => "unknown",
        RackOutcome::Refused => "refused",
    };
    let minutes = row.minutes.map_or_else(|| "unknown".to_owned(), |minutes| minutes.to_string());
    let lost = if row.lost_bytes > 0 { format_bytes(row.lost_bytes) } else { String::new() };
    [
        replace_hidden(name),
        plan.to_owned() + if row.approved { ", approved" } else { "" },
        or_none(replace_hidden(row.image.as_deref().unwrap_or_default())),
        or_none(format_disks(&row.disks)),
        or_none(lost),
        if is_done { minutes } else { "-".to_owned() },
    ]
}

/// Summarizes the disks, such as `wipes S1, S2; keeps S3`.
fn format_disks(disks: &[PlannedDisk]) -> String {
    let verdicts = [
        (DiskVerdict::Wipe, "wipes"),
        (DiskVerdict::Make, "recreates"),
        (DiskVerdict::Keep, "keeps"),
        (DiskVerdict::Volumes, "has volumes on"),
    ];
    let said = verdicts.into_iter().filter_map(|(verdict, word)| {
        let of: Vec<&PlannedDisk> = disks.iter().filter(|disk| disk.verdict == verdict).collect();
        let more = of.len().saturating_sub(NAMED);
        let names = of.iter().take(NAMED).map(|disk| disk_name(disk)).chain((more > 0).then(|| format!("{more} more")));
        (!of.is_empty()).then(|| format!("{word} {}", names.collect::<Vec<_>>().join(", ")))
    });
    said.collect::<Vec<_>>().join("; ")
}

fn disk_name(disk: &PlannedDisk) -> String {
    let PlannedDisk { serial, wwn, device, .. } = disk;
    let name = match (comparable_serial(serial), comparable_wwn(wwn)) {
        (Some(_), _) => serial,
        (None, Some(_)) => wwn,
        (None, None) => device,
    };
    replace_hidden(name.trim())
}

fn format_summary(sum: &RackSummary) -> String {
    let parts = [
        (sum.erases, format!("{} on {} lost", format_bytes(sum.lost_bytes), format_count(sum.disks, "disk", "disks"))),
        (sum.installs, "installed without loss".to_owned()),
        (sum.refused, "refused".to_owned()),
        (sum.unknown, "unknown".to_owned()),
        (sum.nothing, "unchanged".to_owned()),
    ];
    let parts: Vec<String> =
        parts.into_iter().filter(|(count, _)| *count > 0).map(|(count, what)| format!("{count}: {what}")).collect();
    let parts: String = parts.into_iter().map(|part| format!("; {part}")).collect();
    let mut text = format!("{}{parts}.", format_count(sum.machines, "machine", "machines"));
    if sum.erases + sum.installs > 0 {
        text += &match (sum.minutes, sum.of_unknown_length) {
            (None, _) => " The duration is unknown.".to_owned(),
            (Some(minutes), 0) => format!(" Estimated duration: at most {} for each machine.", format_minutes(minutes)),
            (Some(minutes), unknown) => {
                let others = format_count(unknown, "machine", "machines");
                format!(
                    " Estimated duration: at most {} for each machine; unknown for {others}.",
                    format_minutes(minutes)
                )
            }
        };
    }
    if sum.approved > 0 {
        text += &format!(" {} approved.", format_count(sum.approved, "plan is", "plans are"));
    }
    text + "\n"
}

fn format_minutes(minutes: u64) -> String {
    format_count(usize::try_from(minutes).unwrap_or(usize::MAX), "minute", "minutes")
}
