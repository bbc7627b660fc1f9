//! Plan of the rack as a summary and a table, with the most important rows first.

use super::{RackOutcome, RackRow, RackSummary};
use api::rack_plan::machine_rows::describe_disks;
use common::format::{format_bytes, format_columns, format_count, replace_hidden};
use plan::InstallMode;
use std::cmp::Reverse;

pub(crate) fn format_table(rows: &[RackRow], summary: &RackSummary) -> String {
    let mut text = format_summary(rows, summary);
    if rows.is_empty() {
        return text;
    }
    text.push('\n');
    let mut rows: Vec<&RackRow> = rows.iter().collect();
    rows.sort_by_key(|row| Reverse(row.outcome));
    let mut cells = vec![["name", "plan", "image", "disks", "lost", "minutes"].map(str::to_owned)];
    cells.extend(rows.iter().map(|row| format_row(row)));
    for (index, line) in format_columns(&cells).lines().enumerate() {
        text += &format!("{line}\n");
        let reasons = index.checked_sub(1).map(|index| rows[index].reasons.as_slice()).unwrap_or_default();
        reasons.iter().for_each(|why| text += &format!("    {}\n", replace_hidden(why)));
    }
    text
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

/// Returns the lines above the table, such as `Plan: 3 reinstalls, 1 refused.`
fn format_summary(rows: &[RackRow], sum: &RackSummary) -> String {
    let is_planned = |row: &&RackRow| matches!(row.outcome, RackOutcome::Installs | RackOutcome::Erases);
    let planned = |mode| rows.iter().filter(is_planned).filter(|row| row.mode == Some(mode)).count();
    let counts = [
        (planned(InstallMode::Install), "installation", "installations"),
        (planned(InstallMode::Reinstall), "reinstall", "reinstalls"),
        (sum.refused, "refused", "refused"),
        (sum.unknown, "unknown", "unknown"),
        (sum.nothing, "unchanged", "unchanged"),
    ];
    let counts =
        counts.into_iter().filter(|(count, ..)| *count > 0).map(|(count, one, many)| format_count(count, one, many));
    let counts: Vec<String> = counts.collect();
    let mut text = match counts.is_empty() {
        true => "Plan: no machines.\n".to_owned(),
        false => format!("Plan: {}.\n", counts.join(", ")),
    };
    let mut effects = Vec::new();
    if sum.erases + sum.installs > 0 {
        effects.push(describe_loss(sum));
        effects.push(sum.describe_duration());
    }
    if sum.approved > 0 {
        effects.push(format!("{} approved.", format_count(sum.approved, "plan is", "plans are")));
    }
    if !effects.is_empty() {
        text += &format!("{}\n", effects.join(" "));
    }
    text
}

fn describe_loss(sum: &RackSummary) -> String {
    if sum.erases == 0 {
        return "No machine loses data.".to_owned();
    }
    let machines = format_count(sum.erases, "machine loses", "machines lose");
    let disks = format_count(sum.disks, "disk", "disks");
    format!("{machines} data: {lost} on {disks}.", lost = format_bytes(sum.lost_bytes))
}
