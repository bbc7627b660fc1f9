//! metal-stack: pixie says where its control plane is, and which version of its API that speaks. What both versions have in common is
//! here; what differs is behind [`Api`].

pub mod config;
pub mod events;
#[cfg(test)]
mod judge;
pub mod register;
mod v2;

use super::retry::PATIENT;
use super::{Acknowledged, Control, Pool};
use crate::allocation::Machine;
use crate::error::{Error, Phase, Result};
use crate::facts::{Ended, Event, EventName};
use crate::inventory::Inventory;
use crate::marker::MarkedDisk;
use crate::plan::Extents;
use config::Config;
use events::Told;
use register::Registration;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Letters that are not taken for each other on a console.
const LETTERS: &[u8] = b"abcdefghijkmnpqrstuvwxyzABCDEFGHJKLMNPQRSTUVWXYZ23456789";
const PASSWORD: usize = 16;

/// What stands in the place of a console password that was made in an earlier boot.
const MADE_BEFORE: &str = "not known: this boot found the machine installed";

/// A version of metal-stack's API, seen from one machine. Each call has the patience that it needs, and the errors are those of
/// [`Control`]'s methods.
pub trait Api: Send + Sync {
    /// # Errors
    /// It is away, or refuses.
    fn register(&self, registration: &Registration) -> Result<()>;

    /// As [`Pool::allocated`].
    ///
    /// # Errors
    /// Nobody can tell.
    fn allocated(&self, at_stake: bool) -> Result<bool>;

    /// Blocks until the machine is allocated or `patience` is over.
    ///
    /// # Errors
    /// None that passes.
    fn wait(&self, patience: Duration) -> Result<bool>;

    /// As it was last told.
    ///
    /// # Errors
    /// As [`Api::register`].
    fn machine(&self) -> Result<Machine>;

    /// # Errors
    /// It did not arrive.
    fn event(&self, name: EventName, message: &str) -> Result<()>;

    /// Is this allocation, or this reinstall of it, still wanted?
    ///
    /// # Errors
    /// It is not, or nobody can tell.
    fn begin(&self, allocation: &str, reinstall: bool) -> Result<()>;

    /// Of a first installation that has failed there is no report: the event [`EventName::Crashed`] says it all.
    ///
    /// # Errors
    /// It was not acknowledged.
    fn report(&self, ended: &Ended, console_password: &str) -> Result<Acknowledged>;
}

pub struct MetalControl {
    api: Box<dyn Api>,
    machine: String,
    partition: String,
    /// Of the system that is installed. The control plane has none: it hears of this one with the report.
    password: String,
    /// This boot has begun to write: the password is that of the installed system.
    begun: AtomicBool,
    told: Mutex<Told>,
}

impl MetalControl {
    /// Asks pixie.
    ///
    /// # Errors
    /// Its configuration cannot be had, or not be used.
    pub fn new(pixie: &str, machine: &str) -> Result<MetalControl> {
        let config = config::fetch(pixie, machine, PATIENT)?;
        let partition = config.partition.clone();
        let api: Box<dyn Api> = match &config.api {
            config::Api::V2(_) => Box::new(v2::V2::new(pixie, machine, &config)?),
            config::Api::V1(_) => return Err(unspoken(&config)),
        };
        Ok(MetalControl::with(api, machine, &partition))
    }

    fn with(api: Box<dyn Api>, machine: &str, partition: &str) -> MetalControl {
        MetalControl {
            api,
            machine: machine.to_owned(),
            partition: partition.to_owned(),
            password: password(),
            begun: AtomicBool::default(),
            told: Mutex::default(),
        }
    }
}

fn unspoken(config: &Config) -> Error {
    let message = format!(
        "the control plane of partition {} speaks version 1 of metal-stack's API, and this drophammer version 2 alone",
        config.partition
    );
    Error::new(Phase::Settings, message)
}

fn password() -> String {
    (0..PASSWORD).map(|_| char::from(LETTERS[fastrand::usize(..LETTERS.len())])).collect()
}

impl Control for MetalControl {
    fn register(&self, inventory: &Inventory) -> Result<()> {
        self.api.register(&Registration::new(&self.machine, &self.partition, inventory))
    }

    fn wait(&self, patience: Duration) -> Result<bool> {
        self.api.wait(patience)
    }

    fn machine(&self) -> Result<Machine> {
        let mut machine = self.api.machine()?;
        if let Some(allocation) = &mut machine.allocation {
            allocation.console_password.clone_from(&self.password);
        }
        Ok(machine)
    }

    fn event(&self, event: &Event) -> Result<()> {
        let told = self.told.lock().unwrap_or_else(PoisonError::into_inner).of(event, Instant::now());
        told.map_or(Ok(()), |(name, message)| self.api.event(name, &message))
    }

    /// Without an allocation nobody has the machine, and that must still be so.
    fn point_of_no_return(
        &self,
        allocation: &str,
        order: Option<&str>,
        _: &[MarkedDisk],
        _: &[Extents],
        _: Option<&str>,
    ) -> Result<()> {
        if allocation.is_empty() {
            return match self.api.allocated(false)? {
                false => Ok(()),
                true => {
                    let message = "somebody has got this machine in the meantime: its disks are not erased for nobody";
                    Err(Error::refusal(Phase::Control, message))
                }
            };
        }
        self.api.begin(allocation, order.is_some())?;
        self.begun.store(true, Ordering::Relaxed);
        Ok(())
    }

    fn report(&self, ended: &Ended) -> Result<Acknowledged> {
        let is_new = self.begun.load(Ordering::Relaxed);
        let password = if is_new { self.password.as_str() } else { MADE_BEFORE };
        self.api.report(ended, password)
    }

    /// An allocation does not say whether it is installed: the marker on the disks does.
    fn remembers(&self) -> bool {
        false
    }

    fn pool(&self) -> Option<&dyn Pool> {
        Some(self)
    }
}

impl Pool for MetalControl {
    fn allocated(&self, at_stake: bool) -> Result<bool> {
        self.api.allocated(at_stake)
    }
}
