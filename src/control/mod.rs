//! Who tells us what to do and hears what happened: a server over HTTP, or a file. The install does not know which.

#[cfg(any(feature = "agent", feature = "serve"))]
pub mod boot_digest;
#[cfg(feature = "agent")]
mod file;
#[cfg(feature = "agent")]
mod http;
#[cfg(feature = "agent")]
pub mod metal;
#[cfg(feature = "agent")]
mod retry;
pub mod wire;

#[cfg(feature = "agent")]
pub use file::FileControl;
#[cfg(feature = "agent")]
pub use http::HttpControl;
#[cfg(feature = "agent")]
pub use metal::MetalControl;

use crate::allocation::Machine;
use crate::carried::Standing;
use crate::error::{Error, Phase, Result};
use crate::facts::{Ended, Event};
use crate::inventory::Inventory;
use crate::marker::MarkedDisk;
use crate::plan::pool_disks::KnownDisk;
use crate::plan::{Extents, Memory};
use serde::{Deserialize, Serialize};
use std::time::Duration;

/// A control plane, seen from one machine.
pub trait Control: Send + Sync {
    /// Tells the control plane what this machine is.
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

    /// Sends one event, once, with a short deadline. Where nobody listens it is none.
    ///
    /// # Errors
    /// It did not arrive. The caller drops it.
    fn event(&self, _: &Event) -> Result<()> {
        Ok(())
    }

    /// Sends a part of what was said on the console, once, with a short deadline: what came after the first `start` bytes of this boot's.
    /// False where nobody keeps it.
    ///
    /// # Errors
    /// It did not arrive. The caller may send it again.
    fn log(&self, _start: u64, _text: &str) -> Result<bool> {
        Ok(false)
    }

    /// Announces that this allocation or order is about to destroy data. Returns if the control plane still wants that.
    /// `disks` are those that the layout means now, so that the next attempt takes no other disk for one of them.
    /// `extents` say what each stage may write, for a control plane that keeps a record. `approved` is the hash of the approval that
    /// the plan was compared with.
    ///
    /// # Errors
    /// As [`Control::register`]; the order is no longer in force.
    fn point_of_no_return(
        &self,
        allocation: &str,
        order: Option<&str>,
        disks: &[MarkedDisk],
        extents: &[Extents],
        approved: Option<&str>,
    ) -> Result<()>;

    /// Tells how the installation ended, and returns when it is acknowledged.
    ///
    /// # Errors
    /// It was not acknowledged within bounded retries.
    fn report(&self, ended: &Ended) -> Result<Acknowledged>;

    /// Tells how this machine stands in a move: which certificate it shows, where it listens, what it has.
    ///
    /// # Errors
    /// As [`Control::register`]; the order is no longer in force.
    fn moving(&self, _: &Standing) -> Result<()> {
        Err(Error::refusal(Phase::Control, "this control plane moves no machines"))
    }

    /// Does the control plane remember what was installed? If not, only the marker on the disks tells.
    fn remembers(&self) -> bool {
        true
    }

    /// Returns what is remembered of earlier installations on this machine's disks.
    fn memory(&self) -> Memory {
        Memory::ControlPlane
    }

    /// Is this machine one of a pool, whose next owner must find nothing of the last one's? Everywhere else its disks are left alone until
    /// somebody has got it.
    fn pool(&self) -> Option<&dyn Pool> {
        None
    }
}

/// A control plane that hands machines from one owner to the next.
pub trait Pool {
    /// Has somebody got this machine now? `at_stake`: there is something on its disks, which a wrong "no" would erase.
    ///
    /// # Errors
    /// Nobody can tell. An answer that did not arrive is no "no": nothing may be erased then.
    fn allocated(&self, at_stake: bool) -> Result<bool>;

    /// Returns the disks that earlier boots of this machine have seen, as far as anything remembers them.
    fn known_disks(&self) -> Vec<KnownDisk>;

    /// Remembers these disks for later boots.
    ///
    /// # Errors
    /// The machine has no memory for them, or the memory is full.
    fn remember_disks(&self, disks: &[KnownDisk]) -> Result<()>;
}

/// Returns the machine if it is the one that asked: another one's allocation must not erase this one's disks.
///
/// # Errors
/// It is another machine.
#[cfg(feature = "agent")]
fn of_this_machine(machine: Machine, id: &str) -> Result<Machine> {
    match machine.id.eq_ignore_ascii_case(id) {
        true => Ok(machine),
        false => {
            let message =
                format!("the allocation is that of machine {:?}, and this is {id}: nothing is installed", machine.id);
            Err(Error::new(Phase::Control, message))
        }
    }
}

/// The answer to a report.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Acknowledged {
    /// After a failed reinstall: boot over PXE at once, for another attempt.
    #[serde(default)]
    pub retry: bool,
}

#[cfg(all(test, feature = "agent"))]
mod tests {
    use super::*;

    #[test]
    fn an_allocation_of_another_machine_is_refused() {
        let machine = |id: &str| Machine { id: id.to_owned(), ..Machine::default() };
        assert_eq!(of_this_machine(machine("4C-1"), "4c-1").unwrap().id, "4C-1");
        for other in ["4c-2", ""] {
            let why = of_this_machine(machine(other), "4c-1").unwrap_err().to_string();
            assert!(why.contains(other) && why.contains("4c-1"), "{why}");
        }
    }
}
