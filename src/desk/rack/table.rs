//! The plan of the rack as a table. The most important rows come last, directly above the summary.

use super::{Outcome, Row, Summary};
use crate::assigned::preview::PlannedDisk;
use crate::device::identifiers::{comparable_serial, comparable_wwn};
use crate::plan::Verdict;
use crate::text::{bytes, clean, columns, counted};

/// Maximum number of disks listed per machine; `--json` lists all.
const NAMED: usize = 4;

pub fn table(rows: &[Row], summary: &Summary) -> String {
    let mut rows: Vec<&Row> = rows.iter().collect();
    rows.sort_by_key(|row| row.outcome);
    let mut cells = vec![["name", "plan", "image", "disks", "lost", "minutes"].map(str::to_owned)];
    cells.extend(rows.iter().map(|row| of_row(row)));
    let mut text = String::new();
    for (index, line) in columns(&cells).lines().enumerate() {
        text += &format!("{line}\n");
        let reasons = index.checked_sub(1).map(|index| rows[index].reasons.as_slice()).unwrap_or_default();
        reasons.iter().for_each(|why| text += &format!("    {}\n", clean(why)));
    }
    text + "\n" + &in_words(summary)
}

fn of_row(row: &Row) -> [String; 6] {
    let is_done = matches!(row.outcome, Outcome::Installs | Outcome::Erases);
    let or_none = |text: String| if text.is_empty() { "-".to_owned() } else { text };
    let name = if row.name.is_empty() { &row.id } else { &row.name };
    let plan = match row.outcome {
        Outcome::Nothing => "nothing",
        Outcome::Installs => "installs",
        Outcome::Erases => "ERASES",
        Outcome::Unknown => "unknown",
        Outcome::Refused => "refused",
    };
    let minutes = row.minutes.map_or_else(|| "unknown".to_owned(), |minutes| minutes.to_string());
    let lost = if row.lost_bytes > 0 { bytes(row.lost_bytes) } else { String::new() };
    [
        clean(name),
        plan.to_owned() + if row.approved { ", approved" } else { "" },
        or_none(clean(row.image.as_deref().unwrap_or_default())),
        or_none(disks(&row.disks)),
        or_none(lost),
        if is_done { minutes } else { "-".to_owned() },
    ]
}

/// Summarizes the disks, such as `wipes S1, S2; keeps S3`.
fn disks(disks: &[PlannedDisk]) -> String {
    let verdicts = [
        (Verdict::Wipe, "wipes"),
        (Verdict::Make, "recreates"),
        (Verdict::Keep, "keeps"),
        (Verdict::Volumes, "has volumes on"),
    ];
    let said = verdicts.into_iter().filter_map(|(verdict, word)| {
        let of: Vec<&PlannedDisk> = disks.iter().filter(|disk| disk.verdict == verdict).collect();
        let more = of.len().saturating_sub(NAMED);
        let names = of.iter().take(NAMED).map(|disk| name(disk)).chain((more > 0).then(|| format!("{more} more")));
        (!of.is_empty()).then(|| format!("{word} {}", names.collect::<Vec<_>>().join(", ")))
    });
    said.collect::<Vec<_>>().join("; ")
}

fn name(disk: &PlannedDisk) -> String {
    let PlannedDisk { serial, wwn, device, .. } = disk;
    let name = match (comparable_serial(serial), comparable_wwn(wwn)) {
        (Some(_), _) => serial,
        (None, Some(_)) => wwn,
        (None, None) => device,
    };
    clean(name.trim())
}

fn in_words(sum: &Summary) -> String {
    let parts = [
        (sum.erases, format!("{} on {} lost", bytes(sum.lost_bytes), counted(sum.disks, "disk", "disks"))),
        (sum.installs, "installed without loss".to_owned()),
        (sum.refused, "refused".to_owned()),
        (sum.unknown, "unknown".to_owned()),
        (sum.nothing, "unchanged".to_owned()),
    ];
    let parts: Vec<String> =
        parts.into_iter().filter(|(count, _)| *count > 0).map(|(count, what)| format!("{count}: {what}")).collect();
    let parts: String = parts.into_iter().map(|part| format!("; {part}")).collect();
    let mut text = format!("{}{parts}.", counted(sum.machines, "machine", "machines"));
    if sum.erases + sum.installs > 0 {
        text += &match (sum.minutes, sum.of_unknown_length) {
            (None, _) => " The duration is unknown.".to_owned(),
            (Some(minutes), 0) => format!(" Each takes at most about {}.", counted_minutes(minutes)),
            (Some(minutes), unknown) => format!(
                " Each takes at most about {}, as far as known; the duration of {unknown} is unknown.",
                counted_minutes(minutes)
            ),
        };
    }
    if sum.approved > 0 {
        text += &format!(" {} approved.", counted(sum.approved, "plan is", "plans are"));
    }
    text + "\n"
}

fn counted_minutes(minutes: u64) -> String {
    counted(usize::try_from(minutes).unwrap_or(usize::MAX), "minute", "minutes")
}
