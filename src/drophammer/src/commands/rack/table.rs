//! The plan of the rack as a table. The most important rows come last, directly above the summary.

use super::{RackOutcome, RackRow, RackSummary};
use api::rack_plan::machine_rows::describe_disks;
use common::format::{format_bytes, format_columns, format_count, replace_hidden};

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
        or_none(describe_disks(&row.disks).join("; ")),
        or_none(lost),
        if is_done { minutes } else { "-".to_owned() },
    ]
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
    let duration = sum.describe_duration();
    if !duration.is_empty() {
        text += &format!(" {duration}");
    }
    if sum.approved > 0 {
        text += &format!(" {} approved.", format_count(sum.approved, "plan is", "plans are"));
    }
    text + "\n"
}
