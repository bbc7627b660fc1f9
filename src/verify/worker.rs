//! The process that goes into the sandbox, and becomes `verify` there.

use crate::command::sandbox::{self, Seen};
use crate::definition::Files;
use std::io::{self, Read};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{self, Command, Stdio};

/// Where the definition lies in the sandbox.
const FOLDER: &str = "/definition";

/// It exits with this when `verify` was not started,
pub const NOT_RUN: i32 = 125;
/// and says why after this.
pub const TROUBLE: &str = "no sandbox: ";

/// Becomes the `verify` of the definition whose files come through standard input. What is in its environment stays.
pub fn run() -> ! {
    let Err(error) = start();
    eprintln!("{TROUBLE}{error}");
    process::exit(NOT_RUN)
}

fn start() -> io::Result<std::convert::Infallible> {
    let mut text = Vec::new();
    io::stdin().read_to_end(&mut text)?;
    let files: Files = serde_json::from_slice(&text)?;
    let seen = files.iter().map(|(path, file)| Seen {
        path: Path::new(FOLDER).join(path),
        executable: file.executable,
        content: file.text.as_bytes(),
    });
    sandbox::enter(&seen.collect::<Vec<_>>())?;
    let program = Path::new(FOLDER).join("verify");
    let error = Command::new(&program).arg("parameters").current_dir(FOLDER).stdin(Stdio::null()).exec();
    let first = files.get("verify").and_then(|file| file.text.lines().next()).unwrap_or_default();
    Err(io::Error::other(format!("verify, which begins with {first:?}, cannot be started here: {error}")))
}

#[cfg(test)]
mod tests;
