//! Who tells us what to do and hears what happened. HTTP today; the install does not know who is calling.

#[cfg(feature = "agent")]
mod http;
#[cfg(feature = "agent")]
mod retry;
pub mod wire;

#[cfg(feature = "agent")]
pub use http::HttpControl;

use crate::allocation::Machine;
use crate::error::Result;
use std::time::Duration;
use wire::{Acknowledged, Event, PointOfNoReturn, Register, Report};

/// A control plane, seen from one machine.
pub trait Control: Send + Sync {
    /// Tells what this machine is.
    ///
    /// # Errors
    /// The control plane cannot be reached within its bounded retries, or refuses.
    fn register(&self, register: &Register) -> Result<()>;

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

    /// Tells that a reinstall is about to destroy, and returns when the control plane still wants that.
    ///
    /// # Errors
    /// As [`Control::register`]; the order is no longer in force.
    fn point_of_no_return(&self, notice: &PointOfNoReturn) -> Result<()>;

    /// Delivers the final report and returns when it is acknowledged.
    ///
    /// # Errors
    /// It was not acknowledged within bounded retries.
    fn report(&self, report: &Report) -> Result<Acknowledged>;
}
