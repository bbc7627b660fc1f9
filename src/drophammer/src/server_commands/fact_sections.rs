//! Text output of `show` commands: sections that list facts by name.

use crate::terminal_output::table_width;
use common::format::{fold_lines, replace_hidden};

/// Width of the column with the names of the facts.
const NAME_WIDTH: usize = 15;
/// Minimum width of values. On a narrower terminal, the terminal wraps the lines.
const NARROWEST_VALUE: usize = 24;

/// Formats the title of a section.
pub(super) fn format_section(title: &str) -> String {
    format!("\n{title}\n")
}

/// Formats a fact with its name. Long lines of the value are wrapped between words on a terminal. All further lines are
/// aligned with the first line.
pub(super) fn format_fact(name: &str, value: &str) -> String {
    format_fact_within(name, value, table_width())
}

fn format_fact_within(name: &str, value: &str, width: Option<usize>) -> String {
    let value: Vec<String> = value.lines().map(|line| replace_hidden(line).to_string()).collect();
    let value = match width {
        Some(width) => fold_lines(&value.join("\n"), width.saturating_sub(NAME_WIDTH + 2).max(NARROWEST_VALUE)),
        None => value.join("\n"),
    };
    let mut lines = value.lines().map(str::trim_start);
    let first = lines.next().unwrap_or_default();
    let mut text = format!("  {name:NAME_WIDTH$}{first}\n");
    lines.for_each(|line| text += &format!("  {:NAME_WIDTH$}{line}\n", ""));
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_values_are_wrapped_between_words() {
        let value = "mkfs.ext4: Input/output error while writing out and closing\nsecond\u{1b} line";
        let text = format_fact_within("reason", value, Some(50));
        let expected =
            "  reason         mkfs.ext4: Input/output error\n                 while writing out and closing\n";
        assert!(text.starts_with(expected) && text.lines().all(|line| line.len() <= 50), "{text}");
        assert!(text.ends_with("\n                 second line\n") || !text.contains('\u{1b}'), "{text}");
        assert_eq!(format_fact_within("reason", value, None).lines().count(), 2);
        assert_eq!(format_fact_within("size", "", Some(80)), "  size           \n");
    }
}
