//! Permission for the requests that change a machine. It is requested immediately before each of these requests.

use common::error::Result;

/// Effect of a request on the machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WriteKind {
    /// Changes boot device or BIOS settings. The request can be repeated.
    Settings,
    /// Changes the power state, or restarts the machine.
    Power,
}

/// Permission to send the requests of one action.
pub trait WriteGuard: Sync {
    /// Permits the next request.
    ///
    /// # Errors
    /// Returns the reason why the request must not be sent.
    fn permit(&self, write: WriteKind) -> Result<()>;

    /// Records that the controller has responded to the last permitted request.
    fn confirm(&self);
}

/// Guard that permits all requests, for commands that run without a server.
pub struct Unguarded;

impl WriteGuard for Unguarded {
    fn permit(&self, _: WriteKind) -> Result<()> {
        Ok(())
    }

    fn confirm(&self) {}
}
