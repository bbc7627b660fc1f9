//! Runs the `verify` program of an OS definition, which rejects invalid parameters before anything is erased. The
//! program runs in a sandbox (`process::program_sandbox`), in which it can read the definition, but has no access to
//! disks or the network, and cannot write files.

pub mod worker;

use crate::process::{CommandError, OUTPUT_SEPARATOR, ProcessFailure, ToolCommand};
use model::ganeti_os_definition::SelectedDefinition;
use std::time::Duration;

/// Argument with which this program is called to become the sandboxed process.
pub const WORKER: &str = "verify-worker";

/// Path of this program. The path is valid even if the program file was replaced after the start.
const PROGRAM: &str = "/proc/self/exe";

/// Result of running `verify`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum VerifyVerdict {
    Good,
    /// `verify` rejected the parameters, was killed, or did not end in time. The text describes how the program ended,
    /// and quotes its output.
    Refused(String),
    /// `verify` could not be started, for this reason.
    NotRun(String),
}

/// Runs `verify` until it exits or the deadline passes.
pub fn run_verify(chosen: &SelectedDefinition, deadline: Duration) -> VerifyVerdict {
    if !chosen.has_verify() {
        return VerifyVerdict::Good;
    }
    let files = match serde_json::to_vec(&chosen.files) {
        Ok(files) => files,
        Err(error) => return VerifyVerdict::NotRun(error.to_string()),
    };
    let command =
        ToolCommand::new(PROGRAM).args([WORKER]).only_env(chosen.verify_environment()).input(files).deadline(deadline);
    command.run().map_or_else(|error| classify_verify_error(&error), |_| VerifyVerdict::Good)
}

fn classify_verify_error(error: &CommandError) -> VerifyVerdict {
    let said = error.tail.join(" | ");
    let saying = if said.is_empty() { ", without output".to_owned() } else { format!("{OUTPUT_SEPARATOR}{said}") };
    match &error.end {
        ProcessFailure::NotStarted(error) => VerifyVerdict::NotRun(error.to_string()),
        ProcessFailure::Exited(worker::NOT_STARTED_EXIT_CODE) if said.contains(worker::NO_SANDBOX_PREFIX) => {
            VerifyVerdict::NotRun(said.rsplit(worker::NO_SANDBOX_PREFIX).next().unwrap_or_default().to_owned())
        }
        ProcessFailure::Exited(code) => VerifyVerdict::Refused(format!("the program exited with {code}{saying}")),
        ProcessFailure::Killed(signal) => {
            VerifyVerdict::Refused(format!("the program was killed by signal {signal}{saying}"))
        }
        ProcessFailure::Deadline { limit, .. } => VerifyVerdict::Refused(format!(
            "the program did not end within {seconds} s and was killed{saying}",
            seconds = limit.as_secs_f32()
        )),
        // `verify` succeeded, although its output was not read completely.
        ProcessFailure::NotWhole(_) => VerifyVerdict::Good,
    }
}

#[cfg(test)]
mod tests;
