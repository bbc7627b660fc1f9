//! Result of a command, for its exit status.

use crate::error::Result;
use crate::stdout;

/// Outcome of a command.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Exit {
    Good,
    Refused,
    /// Result for plans of several machines: none is refused, and some lose data.
    Erases,
    /// Result of the agent: the machine reboots immediately.
    BootAgain,
    /// Result of the agent: the machine offers logins, and waits to be powered off.
    Rescue,
}

impl Exit {
    pub fn good_if(good: bool) -> Exit {
        if good { Exit::Good } else { Exit::Refused }
    }
}

/// Prints a refusal like a failure, and gives it an exit status of its own.
pub fn or_refused(result: Result<Exit>) -> Result<Exit> {
    match result {
        Err(error) if error.is_refusal() => {
            stdout::complain(&error);
            Ok(Exit::Refused)
        }
        other => other,
    }
}
