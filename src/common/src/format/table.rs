//! Tables for terminals: aligned columns that fit a width. Cells that are too long are wrapped between words. If they
//! are still too long, they are truncated.

#[cfg(test)]
mod tests;

use super::terminal_escaping::{TextStyle, escape_line};
use super::{display_width, pad_to_width};
use crate::error_code;

/// Number of spaces between two columns.
const GAP: usize = 2;
/// Minimum width to which columns shrink if the table is too wide.
const NARROWEST: usize = 8;
/// Width to which columns of sentences shrink first. Below this width, they shrink together with all other columns.
const NARROWEST_PROSE: usize = 24;
/// Maximum number of lines of a wrapped cell.
const CELL_LINES: usize = 3;

/// Column of a table.
#[derive(Debug, Clone, Default)]
pub struct TableColumn {
    pub title: String,
    /// True for a column that contains sentences. If the table is too wide, this column shrinks before the other
    /// columns.
    pub is_prose: bool,
    /// True for a column that never shrinks, because its wrapped or truncated cells would be useless.
    pub is_rigid: bool,
}

/// Cell of a table.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct TableCell {
    pub text: String,
    pub style: Option<TextStyle>,
}

/// Options of [`format_table`].
#[derive(Debug, Clone, Copy, Default)]
pub struct TableFormat {
    /// Maximum width in columns; `None` if lines may have any length.
    pub width: Option<usize>,
    pub has_titles: bool,
    /// True if the table contains the styles of its cells, as marks that [`super::terminal_escaping::render_styles`]
    /// replaces.
    pub is_styled: bool,
}

/// Formats a table. Columns are separated by two spaces, and lines do not end in spaces. Line breaks in cells are
/// escaped.
pub fn format_table(columns: &[TableColumn], rows: &[Vec<TableCell>], format: TableFormat) -> String {
    let titles = columns.iter().map(|column| TableCell { text: column.title.clone(), style: Some(TextStyle::Bold) });
    let titles = format.has_titles.then(|| titles.collect::<Vec<_>>());
    let rows: Vec<Vec<TableCell>> = titles.iter().chain(rows).map(|row| escape_cells(row)).collect();
    let natural =
        |index: usize| rows.iter().filter_map(|row| row.get(index)).map(|cell| display_width(&cell.text)).max();
    let mut widths: Vec<usize> = (0..columns.len()).map(|index| natural(index).unwrap_or_default()).collect();
    if let Some(width) = format.width {
        fit_widths(&mut widths, columns, width);
    }
    rows.iter().map(|row| format_row(row, &widths, format.is_styled)).collect()
}

fn escape_cells(row: &[TableCell]) -> Vec<TableCell> {
    row.iter().map(|cell| TableCell { text: escape_line(&cell.text).into_owned(), style: cell.style }).collect()
}

/// Reduces the widths of columns until the table fits. First reduces the columns of sentences, and then always the
/// widest column.
fn fit_widths(widths: &mut [usize], columns: &[TableColumn], available: usize) {
    let available = available.saturating_sub(GAP * widths.len().saturating_sub(1));
    for (floor, is_shrunk) in [(NARROWEST_PROSE, [false, true]), (NARROWEST, [true, true])] {
        loop {
            let excess = widths.iter().sum::<usize>().saturating_sub(available);
            let shrinks = |index: usize, width: usize| {
                let column = columns.get(index);
                let is_rigid = column.is_some_and(|column| column.is_rigid);
                width > floor && !is_rigid && is_shrunk[usize::from(column.is_some_and(|column| column.is_prose))]
            };
            let widest = widths.iter().enumerate().filter(|(index, width)| shrinks(*index, **width));
            match widest.max_by_key(|(_, width)| **width).map(|(index, _)| index) {
                Some(index) if excess > 0 => widths[index] -= 1,
                _ => break,
            }
        }
    }
}

fn format_row(row: &[TableCell], widths: &[usize], is_styled: bool) -> String {
    let cells: Vec<Vec<String>> =
        row.iter().zip(widths).map(|(cell, width)| wrap_cell(&cell.text, (*width).max(1))).collect();
    let height = cells.iter().map(Vec::len).max().unwrap_or_default();
    let mut text = String::new();
    for line in 0..height {
        let last = cells.iter().rposition(|lines| lines.get(line).is_some_and(|part| !part.is_empty()));
        for (index, (lines, width)) in cells.iter().zip(widths).enumerate().take(last.map_or(0, |last| last + 1)) {
            let part = lines.get(line).map(String::as_str).unwrap_or_default();
            let padded = pad_to_width(part, if Some(index) == last { 0 } else { *width + GAP });
            text += &match row[index].style.filter(|_| is_styled && !part.is_empty()) {
                Some(style) => style.paint_text(part) + &padded[part.len()..],
                None => padded,
            };
        }
        text.truncate(text.trim_end_matches(' ').len());
        text.push('\n');
    }
    text
}

/// Wraps the text of a cell between words into at most [`CELL_LINES`] lines. Words that are too long are truncated. If
/// the remaining text does not fit into the last line, the last line is truncated, but an error code remains visible.
fn wrap_cell(text: &str, width: usize) -> Vec<String> {
    if display_width(text) <= width {
        return vec![text.to_owned()];
    }
    let mut lines: Vec<String> = Vec::new();
    let mut rest = text.trim_start();
    while !rest.is_empty() && lines.len() + 1 < CELL_LINES {
        let end = find_line_end(rest, width);
        lines.push(truncate_to_width(&rest[..end], width));
        rest = rest[end..].trim_start();
    }
    if !rest.is_empty() {
        lines.push(truncate_last_line(rest, width));
    }
    lines
}

/// Truncates the last line of a cell. If the omitted text contains an error code, the line ends with this code.
fn truncate_last_line(text: &str, width: usize) -> String {
    let truncated = truncate_to_width(text, width);
    match error_code::find_in_parentheses(text) {
        Some(code) if !truncated.contains(code) && code.len() + 1 < width => {
            format!("{} {code}", truncate_to_width(text, width - code.len() - 1))
        }
        _ => truncated,
    }
}

/// Returns the length, in bytes, of the leading words that fit into a line. The result includes at least the first
/// word.
fn find_line_end(text: &str, width: usize) -> usize {
    let ends = text.match_indices(' ').map(|(at, _)| at).chain([text.len()]).filter(|end| !text[..*end].ends_with(' '));
    let fitting = ends.enumerate().take_while(|(index, end)| *index == 0 || display_width(&text[..*end]) <= width);
    fitting.last().map_or(text.len(), |(_, end)| end)
}

/// Truncates the text to a width in columns. Truncated text ends with `…`.
pub fn truncate_to_width(text: &str, width: usize) -> String {
    if display_width(text) <= width {
        return text.to_owned();
    }
    let mut shown = String::new();
    for c in text.chars() {
        if display_width(&shown) + display_width(c.encode_utf8(&mut [0; 4])) + 1 > width {
            break;
        }
        shown.push(c);
    }
    shown.trim_end().to_owned() + "…"
}
