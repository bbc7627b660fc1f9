//! Valid values that `drophammer check` suggests instead of invalid ones.

use common::diagnostic::Diagnostic;
use serde_json::Value;
use site::operator_files::yaml_node::{parse_document, to_json};

/// Appends a suggestion to each problem for which a valid value can be derived.
pub(super) fn add_suggestions(text: &str, problems: &mut [Diagnostic]) {
    let layout = parse_document(text).map(|node| to_json(&node)).unwrap_or_default();
    for problem in problems {
        let suggestion =
            suggest_size(problem).or_else(|| suggest_level(problem)).or_else(|| suggest_device(problem, &layout));
        problem.message.extend(suggestion);
    }
}

/// Suggests 0, which stands for the remaining space, instead of `100%`.
fn suggest_size(problem: &Diagnostic) -> Option<String> {
    let value = problem.message.rsplit_once("but is \"")?.1.trim_end_matches('"').to_lowercase();
    let is_rest = ["100%", "max", "rest", "all", "*", "100%free"].contains(&value.as_str());
    (problem.place.ends_with(".size") && is_rest).then(|| "; use size 0 for all remaining space".to_owned())
}

/// Suggests `1` instead of `raid1`.
fn suggest_level(problem: &Diagnostic) -> Option<String> {
    let (value, levels) = problem.message.strip_prefix("given raidlevel:")?.split_once(" is not supported, but:")?;
    let level = value.to_lowercase().trim_start_matches("raid").trim_start_matches(['-', ' ']).to_owned();
    levels.split(',').any(|known| known == level).then(|| format!("; use {level}"))
}

/// For a partition that is not in the layout, suggests the layout's partition with the same number, such as
/// `/dev/nvme0n1p1` instead of `/dev/sda1`.
fn suggest_device(problem: &Diagnostic, layout: &Value) -> Option<String> {
    // The members of an array must differ, so the same suggestion for several of them would be wrong.
    if problem.place.starts_with("raid") {
        return None;
    }
    let missing = problem.message.strip_prefix("device:")?.split(' ').next()?;
    let digits = missing.len() - missing.trim_end_matches(|c: char| c.is_ascii_digit()).len();
    let number: u64 = missing[missing.len() - digits..].parse().ok()?;
    let disks = layout["disks"].as_array().into_iter().flatten();
    let devices: Vec<String> = disks.filter_map(|disk| partition_device(disk, number)).collect();
    match &devices[..] {
        [device] if device != missing => Some(format!("; did you mean {device}?")),
        _ => None,
    }
}

/// Returns the path of the partition with this number on the disk; `None` if the disk has no such partition.
fn partition_device(disk: &Value, number: u64) -> Option<String> {
    let partitions = disk["partitions"].as_array()?;
    let device = disk["device"].as_str()?;
    let infix = if device.ends_with(|c: char| c.is_ascii_digit()) { "p" } else { "" };
    partitions.iter().any(|partition| partition["number"] == number).then(|| format!("{device}{infix}{number}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use model::layout::read_yaml;

    /// Returns the messages about the problems of a layout, with suggestions.
    fn messages(text: &str) -> Vec<String> {
        let mut problems = read_yaml(text).unwrap_err();
        add_suggestions(text, &mut problems);
        problems.into_iter().map(|problem| problem.message).collect()
    }

    fn layout(disk: &str, size: &str, level: &str, root: &str) -> String {
        format!(
            "id: a\ndisks:\n  - device: {disk}\n    wipeonreinstall: true\n    partitions:\n      \
             - {{number: 1, label: root, size: 500}}\n      - {{number: 2, label: var, size: {size}}}\n      \
             - {{number: 3, label: r, size: 0}}\nraid:\n  - {{arrayname: /dev/md0, devices: [{disk}p2, {disk}p3], level: {level}}}\n\
             filesystems:\n  - {{path: /, device: {root}, format: ext4}}\n"
        )
    }

    #[test]
    fn valid_values_are_suggested() {
        for (text, expected) in [
            (
                layout("/dev/nvme0n1", "100%", "1", "/dev/nvme0n1p1"),
                "but is \"100%\"; use size 0 for all remaining space",
            ),
            (
                layout("/dev/nvme0n1", "500", "raid1", "/dev/nvme0n1p1"),
                "given raidlevel:raid1 is not supported, but:0,1,5,6,10; use 1",
            ),
            (layout("/dev/nvme0n1", "500", "1", "/dev/sda1"), "is not configured; did you mean /dev/nvme0n1p1?"),
        ] {
            let messages = messages(&text);
            assert!(messages.iter().any(|message| message.ends_with(expected)), "{expected}: {messages:#?}");
        }
    }

    #[test]
    fn nothing_is_suggested_if_no_value_is_certain() {
        for text in [
            layout("/dev/nvme0n1", "50%", "1", "/dev/nvme0n1p1"),
            layout("/dev/nvme0n1", "500", "raid7", "/dev/nvme0n1p1"),
            layout("/dev/nvme0n1", "500", "1", "/dev/sda7"),
            layout("/dev/nvme0n1", "500", "1", "/dev/mapper/x"),
        ] {
            let messages = messages(&text);
            let suggests = |message: &String| message.contains("; use ") || message.contains("did you mean");
            assert!(!messages.is_empty() && !messages.iter().any(suggests), "{messages:#?}");
        }
    }
}
