//! Outcome of a command, which determines its exit status.

use crate::error::Result;
use crate::format::metal_api_phrase_replacement::reword_metal_phrases;
use crate::output;

/// Outcome of a command that has not failed with an error.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CommandOutcome {
    Good,
    Refused,
    /// One or more plans were computed. None of them is refused, and at least one erases data.
    Erases,
    /// A plan was computed that changes the machine without erasing data.
    Changes,
    /// The agent has decided that the machine reboots immediately.
    BootAgain,
    /// The agent has decided that the machine offers a login, and waits until it is powered off.
    Rescue,
}

impl CommandOutcome {
    pub fn good_if(good: bool) -> CommandOutcome {
        if good { CommandOutcome::Good } else { CommandOutcome::Refused }
    }
}

/// If the error is a refusal, prints it, and returns [`CommandOutcome::Refused`] in place of the error, because the
/// exit status of a refusal differs from that of a failure.
pub fn report_refusal(result: Result<CommandOutcome>) -> Result<CommandOutcome> {
    match result {
        Err(error) if error.is_refusal() => {
            output::print_error(&reword_metal_phrases(&error.to_coded_text()));
            Ok(CommandOutcome::Refused)
        }
        other => other,
    }
}
