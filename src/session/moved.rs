//! A system that comes from another machine.

use super::Session;
use super::undo::Undo;
use crate::error::{Error, Phase, Result};
use crate::plan::{Finishing, Receive};

impl Session {
    /// What stands there half is made unbootable when the run fails.
    pub(super) fn receive(&mut self, receive: &Receive) -> Result<()> {
        self.undo.extend(receive.devices.iter().map(|received| Undo::Made(received.device.clone())));
        Err(Error::new(
            Phase::Storage,
            format!("nothing comes from machine {}: no other end is known", receive.machine),
        ))
    }

    pub(super) fn adapt_moved(&mut self, _finishing: &Finishing) -> Result<()> {
        Err(Error::new(Phase::Target, "a system of another machine is not adapted yet"))
    }
}
