//! What a command prints.

use crate::error::{Context, Error, Phase, Result};
use serde::Serialize;
use std::io::{ErrorKind, Write};

/// A reader that has seen enough (`| head`) is no error.
///
/// # Errors
/// It cannot be written.
pub fn print(text: &str) -> Result<()> {
    match std::io::stdout().lock().write_all(text.as_bytes()) {
        Err(error) if error.kind() == ErrorKind::BrokenPipe => Ok(()),
        written => written.context(Phase::Settings, || "write to standard output".to_owned()),
    }
}

/// As people read it.
///
/// # Errors
/// It has no form in JSON.
pub fn json(value: &impl Serialize) -> Result<String> {
    serde_json::to_string_pretty(value).map_err(|error| Error::with_source(Phase::Settings, "print as JSON", error))
}
