//! A system that comes from another machine.

use super::Session;
use super::undo::Undo;
use crate::error::{Error, Phase, Result};
use crate::moving::whole::Device;
use crate::plan::{Finishing, Receive, Received};

impl Session {
    /// What stands there half is made unbootable when the run fails.
    pub(super) fn receive(&mut self, receive: &Receive) -> Result<()> {
        self.undo.extend(receive.devices.iter().map(|received| Undo::Made(received.device.clone())));
        let device = |received: &Received| Device { name: received.name.to_string(), path: received.device.clone() };
        let total_bytes = receive.devices.iter().map(|received| received.size_bytes).sum();
        self.receive_devices(&receive.order, receive.devices.iter().map(device).collect(), total_bytes)
    }

    pub(super) fn adapt_moved(&mut self, _finishing: &Finishing) -> Result<()> {
        Err(Error::new(Phase::Target, "a system of another machine is not adapted yet"))
    }
}
