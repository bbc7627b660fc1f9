//! Formatting of text and numbers for terminals: aligned columns, sizes, durations, and the removal of secrets and
//! hidden characters.

pub mod machine_ids_as_names;
pub mod metal_api_phrase_replacement;
pub mod os_error_messages;
pub mod table;
pub mod terminal_escaping;
pub mod untrusted_text_limits;

use std::cmp::Ordering;
use table::{TableCell, TableColumn, TableFormat, format_table};
use terminal_escaping::is_hidden;

/// Error message about a YAML line that is indented by a tab.
pub const INDENTING_TAB_ERROR: &str = "a tab indents this line; YAML requires spaces";

/// Returns the line and column of a tab that indents `line` or the line after it. Both lines are searched, because the
/// YAML parser reports such a tab at the end of the previous line.
pub fn find_indenting_tab(text: &str, line: usize) -> Option<(usize, usize)> {
    let indents = |line: &str| line.chars().take_while(|c| c.is_whitespace()).position(|c| c == '\t');
    let mut lines = text.lines().enumerate().skip(line.saturating_sub(1)).take(2);
    lines.find_map(|(number, line)| Some((number + 1, indents(line)? + 1)))
}

/// Formats rows as aligned columns, separated by two spaces, without spaces at line ends. Line breaks in cells are
/// escaped.
pub fn format_columns<const N: usize>(rows: &[[String; N]]) -> String {
    let cell = |text: &String| TableCell { text: text.clone(), style: None };
    let rows: Vec<Vec<TableCell>> = rows.iter().map(|row| row.iter().map(cell).collect()).collect();
    format_table(&vec![TableColumn::default(); N], &rows, TableFormat::default())
}

/// Pads the text with spaces to a width in columns. Rust's format strings are not used, because they panic if the width
/// exceeds 65,535.
pub fn pad_to_width(text: &str, width: usize) -> String {
    text.to_owned() + &" ".repeat(width.saturating_sub(self::display_width(text)))
}

/// Maximum width of console output, in columns. Most server consoles are at least this wide, and longer lines are
/// folded.
pub const CONSOLE_COLUMNS: usize = 100;

/// Folds each line that is longer than `columns` between words. Continuation lines are indented by four columns more
/// than the folded line. A word that is too long is not split.
pub fn fold_lines(text: &str, columns: usize) -> String {
    text.split('\n').map(|line| fold_line(line, columns)).collect::<Vec<_>>().join("\n")
}

fn fold_line(line: &str, columns: usize) -> String {
    let indent = " ".repeat(line.len() - line.trim_start_matches(' ').len() + 4);
    let (mut lines, mut current) = (Vec::new(), String::new());
    for word in line.split_inclusive(' ') {
        let begins = current.trim().is_empty();
        if !begins && display_width(&current) + display_width(word.trim_end()) > columns {
            lines.push(current.trim_end().to_owned());
            current = indent.clone();
        }
        // A continuation line does not start with the spaces between two words.
        if lines.is_empty() || !current.trim().is_empty() || word != " " {
            current += word;
        }
    }
    lines.push(current);
    lines.join("\n")
}

/// Returns the width of the text on a terminal in columns. Wide East Asian characters and emoji take two columns, and
/// combining characters none.
pub fn display_width(text: &str) -> usize {
    text.chars().map(|c| if is_joining(c) { 0 } else { 1 + usize::from(is_wide(c)) }).sum()
}

/// Returns whether a character is in one of the large wide blocks of Unicode's EastAsianWidth.txt.
fn is_wide(c: char) -> bool {
    matches!(c,
        '\u{1100}'..='\u{115f}' | '\u{2e80}'..='\u{303e}' | '\u{3041}'..='\u{a4cf}' | '\u{a960}'..='\u{a97f}'
        | '\u{ac00}'..='\u{d7a3}' | '\u{f900}'..='\u{faff}' | '\u{fe30}'..='\u{fe6f}' | '\u{ff00}'..='\u{ff60}'
        | '\u{ffe0}'..='\u{ffe6}' | '\u{1f300}'..='\u{1f64f}' | '\u{1f680}'..='\u{1f6ff}' | '\u{1f900}'..='\u{1faff}'
        | '\u{20000}'..='\u{3fffd}')
}

fn is_joining(c: char) -> bool {
    matches!(c, '\u{300}'..='\u{36f}' | '\u{200b}'..='\u{200d}' | '\u{20d0}'..='\u{20ff}' | '\u{fe00}'..='\u{fe0f}')
}

/// Replaces each hidden character by a space: characters that control a terminal, break a line, are invisible, or
/// change the writing direction (such as U+202E).
pub fn replace_hidden(text: &str) -> String {
    text.chars().map(|c| if is_hidden(c) { ' ' } else { c }).collect::<String>().trim_end().to_owned()
}

/// Truncates the text to a number of bytes, but not within a character.
pub fn truncate_bytes(text: &str, bytes: usize) -> &str {
    let ends = (0..=bytes.min(text.len())).rev();
    &text[..ends.into_iter().find(|end| text.is_char_boundary(*end)).unwrap_or_default()]
}

/// Masks passwords and signatures in URLs: `http://…@host/image?X-Amz-Signature=…`.
pub fn without_secrets(text: &str) -> String {
    let mut shown = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find("://") {
        let (before, after) = rest.split_at(at + 3);
        let ends = |c: char| c.is_whitespace() || c.is_control() || "\"'`<>()".contains(c);
        let (url, beyond) = after.split_at(after.find(ends).unwrap_or(after.len()));
        shown.push_str(before);
        shown.push_str(&mask_url(url));
        rest = beyond;
    }
    shown + rest
}

/// Masks the secrets in a URL without its scheme.
fn mask_url(url: &str) -> String {
    const SECRET_PARAMETER_NAMES: [&str; 8] =
        ["sig", "token", "credential", "password", "passwd", "secret", "key", "auth"];
    let (host, path) = url.split_at(url.find(['/', '?', '#']).unwrap_or(url.len()));
    let host = host.rsplit_once('@').map_or(host.to_owned(), |(_, host)| format!("…@{host}"));
    let (path, query) = path.split_once('?').map_or((path, None), |(path, query)| (path, Some(query)));
    let value = |pair: &str| match pair.split_once('=') {
        Some((name, _)) if SECRET_PARAMETER_NAMES.iter().any(|secret| name.to_ascii_lowercase().contains(secret)) => {
            format!("{name}=…")
        }
        _ => pair.to_owned(),
    };
    let query = query.map(|query| format!("?{}", query.split('&').map(value).collect::<Vec<_>>().join("&")));
    format!("{host}{path}{}", query.unwrap_or_default())
}

/// Maximum number of items listed by [`join_few`].
const MAXIMUM_LISTED_ITEMS: usize = 32;

/// Joins the first 32 items of a list, and appends the number of the remaining items.
pub fn join_few(items: &[String], separator: &str) -> String {
    let more = items.len().saturating_sub(MAXIMUM_LISTED_ITEMS);
    let first = items[..items.len() - more].join(separator);
    if more == 0 { first } else { format!("{first}{separator}{more} more") }
}

/// Formats a count with its noun: `1 disk`, `2 disks`.
pub fn format_count(count: usize, one: &str, many: &str) -> String {
    format!("{count} {}", if count == 1 { one } else { many })
}

/// Formats a number of bytes with three significant digits and a decimal unit, as on the labels of disks.
pub fn format_bytes(bytes: u64) -> String {
    const UNITS: [&str; 6] = ["kB", "MB", "GB", "TB", "PB", "EB"];
    if bytes < 1000 {
        return format!("{bytes} B");
    }
    let mut value = bytes as f64 / 1000.0;
    let mut unit = 0;
    // A value of 999.5 or more would be rounded to 1000, so the next unit is used.
    while value >= 999.5 && unit + 1 < UNITS.len() {
        value /= 1000.0;
        unit += 1;
    }
    let digits = if value >= 99.95 {
        0
    } else if value >= 9.995 {
        1
    } else {
        2
    };
    format!("{value:.digits$} {}", UNITS[unit])
}

/// Formats a duration: `4.2 s`, `3 min 20 s`, `2 h 5 min`.
pub fn format_seconds(seconds: f64) -> String {
    if seconds < 59.95 {
        return format!("{seconds:.1} s");
    }
    let whole = seconds.round() as u64;
    match whole {
        ..3600 => format!("{} min {} s", whole / 60, whole % 60),
        _ => format!("{} h {} min", whole / 3600, whole % 3600 / 60),
    }
}

/// Formats the age of an event: `59 s ago`, `3 min ago`, `47 h ago`, `2 d ago`.
pub fn format_age(seconds: u64) -> String {
    match seconds {
        ..60 => format!("{seconds} s ago"),
        60..3_600 => format!("{} min ago", seconds / 60),
        3_600..172_800 => format!("{} h ago", seconds / 3_600),
        _ => format!("{} d ago", seconds / 86_400),
    }
}

/// Returns a sort key that compares sequences of digits by their numeric value, so that 6.9 precedes 6.10.
pub fn natural_sort_key(name: &str) -> Vec<(usize, &[u8])> {
    let runs = name.as_bytes().chunk_by(|one, next| one.is_ascii_digit() == next.is_ascii_digit());
    let runs = runs.map(|run| {
        if !run[0].is_ascii_digit() {
            return (0, run);
        }
        let number = &run[run.iter().take_while(|digit| **digit == b'0').count()..];
        (1 + number.len(), number)
    });
    runs.collect()
}

/// Compares names in natural order: node2 precedes node10. Names that differ only in leading zeros are compared as
/// text, so that the order is total.
pub fn compare_natural(one: &str, other: &str) -> Ordering {
    natural_sort_key(one).cmp(&natural_sort_key(other)).then_with(|| one.cmp(other))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ages_have_one_unit() {
        for (seconds, text) in [
            (0, "0 s ago"),
            (59, "59 s ago"),
            (60, "1 min ago"),
            (3_599, "59 min ago"),
            (172_799, "47 h ago"),
            (172_800, "2 d ago"),
        ] {
            assert_eq!(format_age(seconds), text);
        }
    }

    #[test]
    fn long_lines_are_folded_with_indentation() {
        for (text, expected) in [
            ("", ""),
            ("short", "short"),
            ("a line\n", "a line\n"),
            ("WARNING: one two three", "WARNING: one two\n    three"),
            ("  sda  one   two", "  sda  one   two"),
            ("  sda  one   two three", "  sda  one   two\n      three"),
            ("a  b           c-long-word", "a  b\n    c-long-word"),
            ("a-word-that-is-longer-than-a-line", "a-word-that-is-longer-than-a-line"),
            ("\n  one\n  two three four five\n", "\n  one\n  two three four\n      five\n"),
            ("日本語 日本語 日本語", "日本語 日本語\n    日本語"),
        ] {
            assert_eq!(fold_lines(text, 16), expected, "{text:?}");
            let unbroken = |text: &str| text.split_whitespace().map(str::to_owned).collect::<Vec<_>>();
            assert_eq!(unbroken(&fold_lines(text, 16)), unbroken(text));
        }
    }

    #[test]
    fn urls_are_shown_without_their_secrets() {
        for (text, shown) in [
            ("http://h/i.tar?a=b", "http://h/i.tar?a=b"),
            ("http://me:pass@h:80/i", "http://…@h:80/i"),
            ("ask https://u@x:p@h?sig=1&b=2#f", "ask https://…@h?sig=…&b=2#f"),
            (
                "https://s3/i?X-Amz-Credential=AK&X-Amz-Date=1&X-Amz-Signature=ff (url (https://a:b@c/?Token=1))",
                "https://s3/i?X-Amz-Credential=…&X-Amz-Date=1&X-Amz-Signature=… (url (https://…@c/?Token=…))",
            ),
            ("oci://r/os:12@sha256:00, http://h/a@b", "oci://r/os:12@sha256:00, http://h/a@b"),
            ("no url: a://", "no url: a://"),
            ("ä://ö:ü@ß?keyé=x", "ä://…@ß?keyé=…"),
        ] {
            assert_eq!(without_secrets(text), shown);
        }
    }

    #[test]
    fn byte_counts_are_formatted_with_decimal_units() {
        let cases = [
            (0, "0 B"),
            (999, "999 B"),
            (1000, "1.00 kB"),
            (999_999, "1.00 MB"),
            (480_103_981_056, "480 GB"),
            (3_840_755_982_336, "3.84 TB"),
            (21_474_836_480, "21.5 GB"),
            (u64::MAX, "18.4 EB"),
        ];
        for (count, expected) in cases {
            assert_eq!(format_bytes(count), expected);
        }
    }

    #[test]
    fn count_selects_singular_or_plural_noun() {
        for (count, expected) in [(0, "0 disks"), (1, "1 disk"), (2, "2 disks")] {
            assert_eq!(format_count(count, "disk", "disks"), expected);
        }
    }

    #[test]
    fn seconds_are_formatted_as_durations() {
        for (count, expected) in
            [(0.04, "0.0 s"), (59.9, "59.9 s"), (59.99, "1 min 0 s"), (200.0, "3 min 20 s"), (7500.0, "2 h 5 min")]
        {
            assert_eq!(format_seconds(count), expected);
        }
    }

    #[test]
    fn control_characters_are_replaced_by_blanks() {
        assert_eq!(replace_hidden("sda\n\u{1b}[2J\u{202e}dc \n"), "sda  [2J dc");
    }

    #[test]
    fn columns_support_cells_longer_than_format_width_limit() {
        let long = "x".repeat(70_000);
        let text = format_columns(&[[long.clone(), "y".to_owned()], ["z".to_owned(), "y".to_owned()]]);
        assert_eq!(text.lines().map(str::len).collect::<Vec<_>>(), [70_003, 70_003]);
    }

    #[test]
    fn columns_align_with_wide_characters() {
        for (text, columns) in
            [("sda", 3), ("データ", 6), ("é", 1), ("e\u{301}", 1), ("한글", 4), ("💾", 2), ("−·…", 3)]
        {
            assert_eq!(display_width(text), columns, "{text}");
        }
        let rows = [["データ", "x"], ["sda", "x"]].map(|row| row.map(str::to_owned));
        assert_eq!(super::format_columns(&rows), "データ  x\nsda     x\n");
    }

    #[test]
    fn columns_align_by_characters() {
        let rows = [["disk", "now"], ["nvme0n1", "−"], ["sda", ""]].map(|row| row.map(str::to_owned));
        assert_eq!(format_columns(&rows), "disk     now\nnvme0n1  −\nsda\n");
    }
}
