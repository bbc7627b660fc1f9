//! Runs the `verify` of an OS definition, which says no before anything is destroyed. It sees the definition alone: no disks, no
//! network, nothing that it could write (`command::sandbox`).

pub mod worker;

use crate::command::{Command, CommandError, End};
use crate::definition::Chosen;
use std::time::Duration;

/// What this program is called with, once more, as the process that goes into the sandbox.
pub const WORKER: &str = "verify-worker";

/// The same program, also where its file has been replaced meanwhile.
#[cfg(not(test))]
const PROGRAM: (&str, &[&str]) = ("/proc/self/exe", &[WORKER]);

/// In place of `main`, which a test has not.
#[cfg(test)]
const PROGRAM: (&str, &[&str]) =
    ("/proc/self/exe", &["--exact", "verify::worker::tests::worker", "--ignored", "--test-threads=1", "--nocapture"]);

/// What comes of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Verdict {
    Good,
    /// In its words.
    Refused(String),
    /// Nobody knows: it could not be run here, for this reason.
    NotRun(String),
}

/// Runs it to its end, or to the deadline.
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
    let saying = if said.is_empty() { ", without a word".to_owned() } else { format!(", saying: {said}") };
    match &error.end {
        End::NotStarted(error) => Verdict::NotRun(error.to_string()),
        End::Exited(worker::NOT_RUN) if said.contains(worker::TROUBLE) => {
            Verdict::NotRun(said.rsplit(worker::TROUBLE).next().unwrap_or_default().to_owned())
        }
        End::Exited(code) => Verdict::Refused(format!("it exited with {code}{saying}")),
        End::Killed(signal) => Verdict::Refused(format!("it was killed by signal {signal}{saying}")),
        End::Deadline { limit, .. } => {
            Verdict::Refused(format!("it did not end within {} s, and was ended{saying}", limit.as_secs_f32()))
        }
        // Its output is not read to the end.
        End::NotWhole(_) => Verdict::Good,
    }
}

#[cfg(test)]
mod tests;
