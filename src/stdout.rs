//! Output of commands. No other code writes to standard output or standard error, except the agent's console and the server's log: text
//! from a disk, an image, a network or a file must not control the operator's terminal. `tests` search the sources for other writers.

#[cfg(test)]
mod tests;

use crate::error::{Context, Error, Phase, Result};
use crate::text::terminal::{self, escape, escape_json, styled};
use serde::Serialize;
use std::fmt::Display;
use std::io::{self, ErrorKind, IsTerminal, Write};

/// Writes text to standard output, with hidden characters escaped. A reader that closes the pipe early (`| head`) is not an error.
///
/// # Errors
/// Standard output cannot be written.
pub fn print(text: &str) -> Result<()> {
    write(&escape(text))
}

/// Writes text with the program's own styles, [`terminal::Style`], to a terminal.
///
/// # Errors
/// Standard output cannot be written.
pub fn print_styled(text: &str) -> Result<()> {
    write(&styled(text))
}

fn write(text: &str) -> Result<()> {
    #[cfg(test)]
    if tests::record(text) {
        return Ok(());
    }
    match io::stdout().lock().write_all(text.as_bytes()) {
        Err(error) if error.kind() == ErrorKind::BrokenPipe => Ok(()),
        written => written.context(Phase::Settings, || "write to standard output".to_owned()),
    }
}

/// Writes a line to standard output. Errors are ignored.
pub fn say(line: &str) {
    let _ = write(&(escape(line).into_owned() + "\n"));
}

/// Writes a message to standard error, after the program's name.
pub fn complain(message: &dyn Display) {
    note(&format!("drophammer: {message}"));
}

/// Writes a message to standard error. Errors are ignored.
pub fn note(message: &str) {
    write_error(&(terminal::message(message) + "\n"));
}

/// Writes preformatted text to standard error.
pub fn explain(text: &str) {
    write_error(&escape(text));
}

fn write_error(text: &str) {
    #[cfg(test)]
    if tests::record(text) {
        return;
    }
    // The command continues even if its messages cannot be written.
    let _ = io::stderr().write_all(text.as_bytes());
}

/// Redraws a progress line, if standard error is a terminal.
pub fn redraw(line: &dyn Display) {
    if io::stderr().is_terminal() {
        let _ = write!(io::stderr(), "\r\u{1b}[K{}\r", terminal::escape_line(&line.to_string()));
    }
}

/// Returns the value as JSON, indented. Hidden characters in its strings are escaped as JSON does, so that the value stays exact.
///
/// # Errors
/// The value cannot be represented in JSON.
pub fn json(value: &impl Serialize) -> Result<String> {
    let text = serde_json::to_string_pretty(value);
    let text = text.map_err(|error| Error::with_source(Phase::Settings, "print as JSON", error))?;
    Ok(escape_json(&text).into_owned())
}
