//! Result of a command, for its exit status.

use crate::error::Result;
use crate::output;

/// Outcome of a command.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CommandOutcome {
    Good,
    Refused,
    /// Result for plans of several machines: none is refused, and some lose data.
    Erases,
    /// Result of the agent: the machine reboots immediately.
    BootAgain,
    /// Result of the agent: the machine offers logins, and waits to be powered off.
    Rescue,
}

impl CommandOutcome {
    pub fn good_if(good: bool) -> CommandOutcome {
        if good { CommandOutcome::Good } else { CommandOutcome::Refused }
    }
}

/// Prints a refusal like a failure, and gives it an exit status of its own.
pub fn report_refusal(result: Result<CommandOutcome>) -> Result<CommandOutcome> {
    match result {
        Err(error) if error.is_refusal() => {
            output::print_error(&error);
            Ok(CommandOutcome::Refused)
        }
        other => other,
    }
}
