//! Helper functions for the host, which run tools and write files, and return errors with the action that has failed.

use std::path::Path;
use std::process::{Command, Stdio};

pub type Result<T> = std::result::Result<T, String>;

/// Adds the subject to an error.
pub trait Context<T> {
    fn context(self, what: impl std::fmt::Display) -> Result<T>;
}

impl<T, E: std::fmt::Display> Context<T> for std::result::Result<T, E> {
    fn context(self, what: impl std::fmt::Display) -> Result<T> {
        self.map_err(|error| format!("{what}: {error}"))
    }
}

pub fn write(path: &Path, bytes: impl AsRef<[u8]>) -> Result<()> {
    std::fs::write(path, bytes).context(path.display())
}

/// Returns a command that is killed after some minutes, because damaged filesystems can make a tool run forever. If it
/// is killed, `timeout` exits with 137.
pub fn limit_command(argv: &[&str]) -> Command {
    let mut command = Command::new("timeout");
    command.args(["--signal=KILL", &(300 * patience()).to_string()]).args(argv);
    command
}

/// Returns the factor by which this host may be slower than the time limits assume: the integer in
/// `DROPHAMMER_PATIENCE`.
pub fn patience() -> u64 {
    let value = std::env::var("DROPHAMMER_PATIENCE").ok();
    value.and_then(|value| value.parse().ok()).unwrap_or(1)
}

/// Runs a tool with a file as its input, and returns its output, or its error message.
pub fn run_tool(argv: &[&str], stdin: Stdio) -> Result<Vec<u8>> {
    let output = limit_command(argv).stdin(stdin).output().context(argv[0])?;
    if output.status.success() {
        return Ok(output.stdout);
    }
    let words = String::from_utf8_lossy(&output.stderr).trim().to_owned();
    Err(format!("`{}` ended with {}: {words}", argv.join(" "), output.status))
}

/// Returns a command for a process that ends together with the thread that starts it, so that no VM or server outlives
/// a killed harness.
pub fn tie_to_thread(program: &str) -> Command {
    let mut command = Command::new("setpriv");
    command.args(["--pdeathsig", "KILL", "--", program]);
    command
}
