//! Outcome of a command, which determines its exit status.

use crate::error::Result;
use crate::output;

/// Outcome of a command that has not failed with an error.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CommandOutcome {
    Good,
    Refused,
    /// Plans of several machines were computed: none is refused, and at least one erases data.
    Erases,
    /// Outcome of the agent: the machine reboots immediately.
    BootAgain,
    /// Outcome of the agent: the machine offers a login and waits until it is powered off.
    Rescue,
}

impl CommandOutcome {
    pub fn good_if(good: bool) -> CommandOutcome {
        if good { CommandOutcome::Good } else { CommandOutcome::Refused }
    }
}

/// Prints the error of a refusal, and converts it to [`CommandOutcome::Refused`], which has a different exit status than a failure.
pub fn report_refusal(result: Result<CommandOutcome>) -> Result<CommandOutcome> {
    match result {
        Err(error) if error.is_refusal() => {
            output::print_error(&error);
            Ok(CommandOutcome::Refused)
        }
        other => other,
    }
}
