//! Who tells us what to do and hears what happened: a server over HTTP, or a file. The install does not know which.

#[cfg(feature = "agent")]
mod file;
#[cfg(feature = "agent")]
mod http;
#[cfg(feature = "agent")]
mod retry;
pub mod wire;

#[cfg(feature = "agent")]
pub use file::FileControl;
#[cfg(feature = "agent")]
pub use http::HttpControl;

use crate::allocation::Machine;
use crate::error::Result;
use crate::facts::{Ended, Event};
use crate::inventory::Inventory;
use crate::marker::MarkedDisk;
use crate::plan::Extents;
use serde::{Deserialize, Serialize};
use std::time::Duration;

/// A control plane, seen from one machine.
pub trait Control: Send + Sync {
    /// Tells what this machine is.
    ///
    /// # Errors
    /// The control plane cannot be reached within its bounded retries, or refuses.
    fn register(&self, inventory: &Inventory) -> Result<()>;

    /// Blocks until the machine is allocated or `patience` is over; true when it is allocated.
    ///
    /// # Errors
    /// As [`Control::register`].
    fn wait(&self, patience: Duration) -> Result<bool>;

    /// The machine with its allocation.
    ///
    /// # Errors
    /// As [`Control::register`].
    fn machine(&self) -> Result<Machine>;

    /// Sends one event, once, with a short deadline.
    ///
    /// # Errors
    /// It did not arrive. The caller drops it.
    fn event(&self, event: &Event) -> Result<()>;

    /// Tells that the allocation or its order, by their ids, is about to destroy, and returns when the control plane still wants that. The
    /// disks are those that the layout means now: the next attempt must not take another one for them. The extents are what each
    /// stage may write, for a control plane that keeps a record.
    ///
    /// # Errors
    /// As [`Control::register`]; the order is no longer in force.
    fn point_of_no_return(
        &self,
        allocation: &str,
        order: Option<&str>,
        disks: &[MarkedDisk],
        extents: &[Extents],
    ) -> Result<()>;

    /// Tells how the installation ended, and returns when it is acknowledged.
    ///
    /// # Errors
    /// It was not acknowledged within bounded retries.
    fn report(&self, ended: &Ended) -> Result<Acknowledged>;

    /// Does it remember what was installed? Where it does not, the marker on the disks is the only word for that.
    fn remembers(&self) -> bool {
        true
    }
}

/// The answer to a report.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Acknowledged {
    /// Of a failed reinstall: boot over PXE at once for another attempt.
    #[serde(default)]
    pub retry: bool,
}
