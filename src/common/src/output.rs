//! Output of commands. Hidden characters are escaped, so that text from a disk, an image, a network or a file cannot
//! control the operator's terminal. Only the agent's console and the server's log write to standard output or standard
//! error in another way; a test in `drophammer::terminal_writers_tests` checks this.

#[cfg(test)]
mod tests;

use crate::error::{Context, Error, Phase, Result};
use crate::format::os_error_messages::without_os_error_numbers;
use crate::format::terminal_escaping::{self, TextStyle, escape_hidden, escape_json, render_styles};
use serde::Serialize;
use std::fmt::Display;
use std::io::{self, ErrorKind, IsTerminal, Write};
use std::sync::atomic::{AtomicBool, Ordering};

/// Writes text to standard output, with hidden characters escaped. It is not an error if the reader closes the pipe
/// early (`| head`).
///
/// # Errors
/// Fails if standard output cannot be written.
pub fn print_text(text: &str) -> Result<()> {
    write_output(&escape_hidden(text))
}

/// Writes text with the program's own styles, [`crate::format::terminal_escaping::TextStyle`], to standard output,
/// which must be a terminal.
///
/// # Errors
/// Fails if standard output cannot be written.
pub fn print_styled(text: &str) -> Result<()> {
    write_output(&render_styles(text))
}

/// Replaces the contents of the screen by text with the program's own styles. Standard output must be a terminal.
///
/// # Errors
/// Fails if standard output cannot be written.
pub fn redraw_screen(text: &str) -> Result<()> {
    // Moves the cursor to the first column of the first line, and erases the rest of the screen (ECMA-48, 8.3.21 and
    // 8.3.39).
    write_output(&format!("\u{1b}[H\u{1b}[J{}", render_styles(text)))
}

/// True after the reader of standard output has closed the pipe.
static OUTPUT_CLOSED: AtomicBool = AtomicBool::new(false);

/// Returns whether the reader of standard output has closed the pipe. Commands that print repeatedly, such as those
/// with `--watch`, then end.
pub fn is_output_closed() -> bool {
    OUTPUT_CLOSED.load(Ordering::Relaxed)
}

fn write_output(text: &str) -> Result<()> {
    #[cfg(any(test, feature = "testing"))]
    if crate::output_capture::record(text) {
        return Ok(());
    }
    match io::stdout().lock().write_all(text.as_bytes()) {
        Err(error) if error.kind() == ErrorKind::BrokenPipe => {
            OUTPUT_CLOSED.store(true, Ordering::Relaxed);
            Ok(())
        }
        written => written.context(Phase::Settings, || "write to standard output".to_owned()),
    }
}

/// Writes a line to standard output. Errors are ignored.
pub fn print_line(line: &str) {
    let _ = write_output(&(escape_hidden(line).into_owned() + "\n"));
}

/// Writes a message to standard error, preceded by the program's name.
pub fn print_error(message: &dyn Display) {
    print_note(&format!("drophammer: {message}"));
}

/// Writes a message to standard error. Errors are ignored.
pub fn print_note(message: &str) {
    write_error(&(terminal_escaping::escape_message(&without_os_error_numbers(message)) + "\n"));
}

/// Writes text with several lines to standard error. Unlike [`print_note`], does not indent the lines.
pub fn print_preformatted(text: &str) {
    write_error(&escape_hidden(text));
}

/// Writes a message to standard error, preceded by the program's name. If `is_styled` is true, the message is red;
/// standard error must then be a terminal.
pub fn print_alert(message: &dyn Display, is_styled: bool) {
    let message = format!("drophammer: {message}");
    let message = terminal_escaping::escape_message(&without_os_error_numbers(&message));
    match is_styled {
        true => write_error(&(render_styles(&TextStyle::Red.paint_text(&message)) + "\n")),
        false => write_error(&(message + "\n")),
    }
}

fn write_error(text: &str) {
    #[cfg(any(test, feature = "testing"))]
    if crate::output_capture::record(text) {
        return;
    }
    // The command continues even if its messages cannot be written.
    let _ = io::stderr().write_all(text.as_bytes());
}

/// Replaces the progress line on standard error, if standard error is a terminal.
pub fn redraw_progress(line: &dyn Display) {
    if io::stderr().is_terminal() {
        let _ = write!(io::stderr(), "\r\u{1b}[K{}\r", terminal_escaping::escape_line(&line.to_string()));
    }
}

/// Returns the value as indented JSON. Hidden characters in strings are written as JSON escapes, so that the value does
/// not change.
///
/// # Errors
/// Fails if the value cannot be represented in JSON.
pub fn to_json(value: &impl Serialize) -> Result<String> {
    let text = serde_json::to_string_pretty(value);
    let text = text.map_err(|error| Error::with_source(Phase::Settings, "print as JSON", error))?;
    Ok(escape_json(&text).into_owned())
}
