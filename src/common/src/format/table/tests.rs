use super::super::terminal_escaping::render_styles;
use super::*;
use crate::output_capture::{HOSTILE, first_hidden};

fn column(title: &str, is_prose: bool) -> TableColumn {
    TableColumn { title: title.to_owned(), is_prose, is_rigid: false }
}

fn plain_cells(texts: &[&str]) -> Vec<TableCell> {
    texts.iter().map(|text| TableCell { text: (*text).to_owned(), style: None }).collect()
}

fn of_width(width: usize) -> TableFormat {
    TableFormat { width: Some(width), has_titles: true, is_styled: false }
}

#[test]
fn a_table_that_fits_is_not_changed() {
    let columns = [column("NAME", false), column("MESSAGE", true)];
    let rows = [plain_cells(&["storage-7", "image.burn: no space left"]), plain_cells(&["a", ""])];
    let expected = "NAME       MESSAGE\nstorage-7  image.burn: no space left\na\n";
    assert_eq!(format_table(&columns, &rows, of_width(80)), expected);
    assert_eq!(format_table(&columns, &rows, TableFormat { has_titles: true, ..TableFormat::default() }), expected);
    assert_eq!(format_table(&columns, &rows[1..], TableFormat::default()), "a\n");
    assert_eq!(format_table(&columns, &[], TableFormat::default()), "");
}

#[test]
fn sentences_are_wrapped_between_words() {
    let columns = [column("NAME", false), column("MESSAGE", true), column("SEEN", false)];
    let rows = [plain_cells(&["storage-7", "the disk with this serial number does not exist", "2 h ago"])];
    let expected = "NAME       MESSAGE                     SEEN\nstorage-7  the disk with this serial   2 h ago\n           number does not exist\n";
    assert_eq!(format_table(&columns, &rows, of_width(46)), expected);
}

#[test]
fn long_cells_end_in_an_ellipsis() {
    let columns = [column("NAME", false), column("MESSAGE", true)];
    let rows = [plain_cells(&["a-name-without-any-blank-in-it", &"word ".repeat(40)])];
    let table = format_table(&columns, &rows, of_width(40));
    let lines: Vec<&str> = table.lines().collect();
    assert!(lines.iter().all(|line| display_width(line) <= 40), "{table}");
    assert_eq!(lines.len(), 1 + CELL_LINES, "{table}");
    assert!(lines[1].starts_with("a-name-without-any…  word word"), "{table}");
    assert!(lines[CELL_LINES].ends_with("word word word wor…"), "{table}");
}

#[test]
fn a_truncated_cell_ends_with_its_error_code() {
    let columns = [column("NAME", false), column("MESSAGE", true)];
    let message = format!("{} (DH-705); retried", "word ".repeat(100).trim_end());
    for width in [40, 60, 80] {
        let table = format_table(&columns, &[plain_cells(&["storage-7", &message])], of_width(width));
        let lines: Vec<&str> = table.lines().collect();
        assert!(lines.len() == 1 + CELL_LINES && lines[CELL_LINES].ends_with("… (DH-705)"), "{table}");
        assert!(lines.iter().all(|line| display_width(line) <= width), "{table}");
    }
    let narrow = wrap_cell(&message, 8);
    assert!(narrow.iter().all(|line| display_width(line) <= 8), "{narrow:?}");
}

#[test]
fn rigid_columns_keep_their_width() {
    let time = TableColumn { is_rigid: true, ..column("TIME", false) };
    let columns = [time, column("ACTION", false), column("RESULT", true)];
    let cells = ["2026-11-28 10:00:00Z", "POST machine reinstall", "refused: the machine is locked"];
    let table = format_table(&columns, &[plain_cells(&cells)], of_width(50));
    assert!(table.lines().nth(1).unwrap().starts_with("2026-11-28 10:00:00Z  POST"), "{table}");
    assert!(table.lines().all(|line| display_width(line) <= 50), "{table}");
}

#[test]
fn table_fits_every_width_above_its_minimum() {
    let columns = [column("NAME", false), column("IMAGE", false), column("MESSAGE", true)];
    let cells =
        ["データセンター-storage-1", "debian-13.1.20261101", "刃 wörds of e\u{301} various   widths and lengths"];
    for width in 28..120 {
        let table = format_table(&columns, &[plain_cells(&cells)], of_width(width));
        assert!(table.lines().all(|line| display_width(line) <= width && line == line.trim_end()), "{width}\n{table}");
    }
    // The columns cannot shrink to the width of this terminal.
    assert!(format_table(&columns, &[plain_cells(&cells)], of_width(1)).lines().all(|line| display_width(line) <= 28));
}

#[test]
fn styles_do_not_change_the_widths() {
    let columns = [column("NAME", false), column("PHASE", false), column("IMAGE", false)];
    let mut row = plain_cells(&["a", "failed", "debian-12"]);
    row[1].style = Some(TextStyle::Red);
    let format = TableFormat { is_styled: true, ..TableFormat::default() };
    let styled = render_styles(&format_table(&columns, &[row.clone()], format));
    assert_eq!(styled, "a  \u{1b}[31mfailed\u{1b}[0m  debian-12\n");
    let plain = format_table(&columns, &[row], TableFormat::default());
    assert_eq!(styled.replace("\u{1b}[31m", "").replace("\u{1b}[0m", ""), plain);
}

#[test]
fn names_cannot_imitate_other_cells() {
    let columns = [column("NAME", false), column("MESSAGE", true)];
    for is_styled in [false, true] {
        let mut row = plain_cells(&[HOSTILE, HOSTILE]);
        row[0].style = Some(TextStyle::Red);
        let format = TableFormat { width: Some(60), has_titles: true, is_styled };
        let shown = render_styles(&format_table(&columns, &[row], format));
        let shown = shown.replace("\u{1b}[31m", "").replace("\u{1b}[1m", "").replace("\u{1b}[0m", "");
        assert_eq!(first_hidden(&shown), None, "{shown:?}");
        assert!(!shown.lines().any(|line| line.starts_with("drophammer: forged")), "{shown}");
    }
}
