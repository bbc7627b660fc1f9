//! Permission to send requests that change a machine. It is requested immediately before each such request.

use common::error::Result;

/// Type of change that a request makes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WriteKind {
    /// Change of the boot device or of BIOS settings. Such a request can be repeated.
    Settings,
    /// Change of the power state, or a restart of the machine.
    Power,
}

/// Guard that permits or refuses the requests of one action.
pub trait WriteGuard: Sync {
    /// Permits the next request, or refuses it.
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
