//! Properties of the terminal to which a command prints its output.

use common::error::Result;
use common::output::{print_styled, print_text};
use std::env;
use std::io::{IsTerminal, stderr, stdout};
use terminal_size::{Width, terminal_size_of};

/// Width that is assumed if the terminal does not report one.
const DEFAULT_WIDTH: usize = 80;

/// Returns whether output is colored. Standard output must be a terminal, `TERM` must not be `dumb`, and NO_COLOR must
/// not be set (no-color.org).
pub(crate) fn wants_color() -> bool {
    stdout().is_terminal() && !is_color_unwanted()
}

/// Returns whether messages on standard error are colored; the conditions are those of [`wants_color`].
pub(crate) fn wants_colored_messages() -> bool {
    stderr().is_terminal() && !is_color_unwanted()
}

fn is_color_unwanted() -> bool {
    env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty()) || is_dumb()
}

fn is_dumb() -> bool {
    env::var_os("TERM").is_some_and(|term| term == "dumb")
}

/// Returns whether the contents of the screen can be replaced.
pub(crate) fn replaces_screen() -> bool {
    stdout().is_terminal() && !is_dumb()
}

/// Returns the maximum width of tables: the value of COLUMNS, or the width of the terminal. Returns `None` if standard
/// output is not a terminal, because programs expect each object of a table in one line.
pub(crate) fn table_width() -> Option<usize> {
    let columns = env::var("COLUMNS").ok();
    let read_width =
        || terminal_size_of(stdout()).map(|(Width(columns), _)| usize::from(columns)).filter(|width| *width > 0);
    choose_width(columns.as_deref(), stdout().is_terminal(), read_width)
}

fn choose_width(columns: Option<&str>, is_terminal: bool, read_width: impl Fn() -> Option<usize>) -> Option<usize> {
    let columns = columns.and_then(|columns| columns.trim().parse().ok()).filter(|columns| *columns > 0);
    columns.or_else(|| is_terminal.then(|| read_width().unwrap_or(DEFAULT_WIDTH)))
}

/// Prints text. Its styles are shown only on a terminal with colors.
///
/// # Errors
/// Returns an error if standard output cannot be written.
pub(crate) fn print_for_terminal(text: &str) -> Result<()> {
    if wants_color() { print_styled(text) } else { print_text(text) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn width_is_taken_from_variable_or_terminal() {
        for (columns, is_terminal, width, expected) in [
            (Some("120"), false, None, Some(120)),
            (Some("120"), true, Some(90), Some(120)),
            (Some("0"), true, Some(90), Some(90)),
            (Some("wide"), true, None, Some(80)),
            (None, true, Some(132), Some(132)),
            (None, true, None, Some(80)),
            (None, false, Some(132), None),
            (Some(""), false, None, None),
        ] {
            assert_eq!(choose_width(columns, is_terminal, || width), expected, "{columns:?} {is_terminal} {width:?}");
        }
    }
}
