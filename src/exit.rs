//! How a command ends, for its exit status.

use crate::error::Result;
use crate::stdout;

/// Was the input good?
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Exit {
    Good,
    Refused,
    /// Of a plan for many machines: none is refused, and some lose data.
    Erases,
    /// Of the agent: the machine is to boot again at once.
    BootAgain,
    /// Of the agent: the machine is to offer logins, and waits for its power to be cut.
    Rescue,
}

impl Exit {
    pub fn good_if(good: bool) -> Exit {
        if good { Exit::Good } else { Exit::Refused }
    }
}

/// A refusal is said as a failure is, and has an exit status of its own.
pub fn or_refused(result: Result<Exit>) -> Result<Exit> {
    match result {
        Err(error) if error.is_refusal() => {
            stdout::complain(&error);
            Ok(Exit::Refused)
        }
        other => other,
    }
}
