//! Outcome of a command. It determines the exit status.

use crate::error::Result;
use crate::format::metal_api_wording::reword_metal_phrases;
use crate::output;

/// Outcome of a command that did not fail with an error.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CommandOutcome {
    Good,
    Refused,
    /// One or several plans were computed. No plan is refused, and at least one plan erases data.
    Erases,
    /// A plan was computed that changes the machine without erasing data.
    Changes,
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

/// Prints the error if it is a refusal, and converts it to [`CommandOutcome::Refused`], because a refusal has a
/// different exit status than a failure.
pub fn report_refusal(result: Result<CommandOutcome>) -> Result<CommandOutcome> {
    match result {
        Err(error) if error.is_refusal() => {
            output::print_error(&reword_metal_phrases(&error.to_coded_text()));
            Ok(CommandOutcome::Refused)
        }
        other => other,
    }
}
