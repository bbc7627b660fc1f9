//! Runs the `verify` program of an OS definition, which rejects invalid parameters before anything is erased. It runs
//! in a sandbox with the definition alone: no disks, no network, nothing writable (`command::sandbox`).

pub mod worker;

use crate::command::{Command, CommandError, End};
use crate::definition::Chosen;
use std::time::Duration;

/// Argument with which this program is called to become the sandboxed process.
pub const WORKER: &str = "verify-worker";

/// This program, even if its file has been replaced meanwhile.
#[cfg(not(test))]
const PROGRAM: (&str, &[&str]) = ("/proc/self/exe", &[WORKER]);

/// Test function that takes the place of `main`.
#[cfg(test)]
const PROGRAM: (&str, &[&str]) =
    ("/proc/self/exe", &["--exact", "verify::worker::tests::worker", "--ignored", "--test-threads=1", "--nocapture"]);

/// Result of running `verify`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Verdict {
    Good,
    /// The error output of `verify`.
    Refused(String),
    /// `verify` could not be run, for this reason.
    NotRun(String),
}

/// Runs `verify` until it exits or the deadline passes.
pub fn verify(chosen: &Chosen, deadline: Duration) -> Verdict {
    if !chosen.has_verify() {
        return Verdict::Good;
    }
    let files = match serde_json::to_vec(&chosen.files) {
        Ok(files) => files,
        Err(error) => return Verdict::NotRun(error.to_string()),
    };
    let (program, args) = PROGRAM;
    let command = Command::new(program).args(args).only_env(chosen.environment()).input(files).deadline(deadline);
    command.run().map_or_else(|error| judged(&error), |_| Verdict::Good)
}

fn judged(error: &CommandError) -> Verdict {
    let said = error.tail.join(" | ");
    let saying = if said.is_empty() { ", without output".to_owned() } else { format!(", saying: {said}") };
    match &error.end {
        End::NotStarted(error) => Verdict::NotRun(error.to_string()),
        End::Exited(worker::NOT_RUN) if said.contains(worker::TROUBLE) => {
            Verdict::NotRun(said.rsplit(worker::TROUBLE).next().unwrap_or_default().to_owned())
        }
        End::Exited(code) => Verdict::Refused(format!("it exited with {code}{saying}")),
        End::Killed(signal) => Verdict::Refused(format!("it was killed by signal {signal}{saying}")),
        End::Deadline { limit, .. } => {
            Verdict::Refused(format!("it did not end within {} s and was killed{saying}", limit.as_secs_f32()))
        }
        // The output is not read completely.
        End::NotWhole(_) => Verdict::Good,
    }
}

#[cfg(test)]
mod tests;
