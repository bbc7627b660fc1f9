//! Table of the disks: the verdict and current content of each disk, followed by a tree of this content.
use crate::{DiskPlan, DiskVerdict};
use common::format::terminal_escaping::{TextStyle, escape_line};
use common::format::{display_width, format_bytes, format_columns};
use operations::operation_text::strip_dev;
use std::fmt;

const WIPE: &str = "WIPE";

pub(crate) fn write_disks(f: &mut fmt::Formatter<'_>, disks: &[DiskPlan]) -> fmt::Result {
    let mut rows = vec![["disk", "size", "model", "serial", "verdict", "now"].map(str::to_owned)];
    rows.extend(disks.iter().map(disk_row));
    let table = format_columns(&rows);
    // Everything before the verdict has the same width, in characters, on every line.
    let verdict_at = table.find("verdict").unwrap_or_default();
    for (number, row) in table.lines().enumerate() {
        let disk = number.checked_sub(1).and_then(|number| disks.get(number));
        let is_wiped = disk.is_some_and(|disk| disk.verdict == DiskVerdict::Wipe);
        writeln!(f, "{}", if is_wiped && f.alternate() { color_verdict(row, verdict_at) } else { row.to_owned() })?;
        let Some(disk) = disk else { continue };
        for line in
            disk.listed_as.iter().map(|name| format!("{} in the layout", strip_dev(name))).chain(disk.running.clone())
        {
            writeln!(f, "    {}", escape_line(&line))?;
        }
    }
    writeln!(f)
}

fn disk_row(disk: &DiskPlan) -> [String; 6] {
    let verdict = match disk.verdict {
        DiskVerdict::Wipe => WIPE,
        DiskVerdict::Keep => "keep",
        DiskVerdict::Make => "make",
        DiskVerdict::PartlyKept => "partly kept",
        DiskVerdict::NotOurs => "not ours",
        DiskVerdict::Volumes => "volumes",
    };
    let or_dash = |text: &str| if text.is_empty() { "-".to_owned() } else { text.to_owned() };
    let now = match disk.verdict {
        DiskVerdict::NotOurs => format!("never written: {}", disk.now),
        _ => disk.now.clone(),
    };
    [
        disk.name.to_string(),
        format_bytes(disk.size_bytes),
        or_dash(&disk.model),
        or_dash(&disk.serial),
        verdict.to_owned(),
        now,
    ]
}

/// Returns the row with its verdict in color. The verdict starts at column `verdict_at`.
fn color_verdict(row: &str, verdict_at: usize) -> String {
    let at =
        row.char_indices().map(|(at, _)| at).find(|at| display_width(&row[..*at]) == verdict_at).unwrap_or(row.len());
    let (before, rest) = row.split_at(at);
    match rest.strip_prefix(WIPE) {
        Some(after) => format!("{before}{}{after}", TextStyle::BoldRed.paint_text(WIPE)),
        None => row.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_verdict_is_colored() {
        for (row, expected) in [
            ("sda  WIPE  GPT", format!("sda  {}  GPT", TextStyle::BoldRed.paint_text("WIPE"))),
            ("デ   WIPE", format!("デ   {}", TextStyle::BoldRed.paint_text("WIPE"))),
            ("sda  keep  WIPE", "sda  keep  WIPE".to_owned()),
            ("sd", "sd".to_owned()),
        ] {
            assert_eq!(color_verdict(row, 5), expected);
        }
    }
}
