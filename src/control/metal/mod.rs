//! metal-stack: pixie says where its control plane is, and which version of its API that speaks. What both versions have in common is
//! here; what differs is behind [`Api`].

mod clock;
pub mod config;
pub mod events;
#[cfg(test)]
mod judge;
mod loki;
mod record;
pub mod register;
mod v1;
mod v2;

use super::retry::PATIENT;
use super::{Acknowledged, Control, Pool};
use crate::allocation::Machine;
use crate::boot::efi;
use crate::error::{Error, Phase, Result};
use crate::facts::{Ended, Event, EventName};
use crate::inventory::Inventory;
use crate::marker::MarkedDisk;
use crate::plan::Extents;
use crate::plan::pool_disks::KnownDisk;
use crate::stdout;
use events::Told;
use loki::Loki;
use record::FirmwareRecord;
use register::Registration;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Letters that are not taken for each other on a console.
const LETTERS: &[u8] = b"abcdefghijkmnpqrstuvwxyzABCDEFGHJKLMNPQRSTUVWXYZ23456789";
const PASSWORD: usize = 16;

/// For logs, before the machine is gone.
const LAST_WORDS: Duration = Duration::from_secs(1);

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

    /// Returns the sizes of the disks that the machine registered last, in bytes; none if the control plane does not say.
    fn registered_disks(&self) -> Vec<u64>;

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

    /// Is this allocation, or this reinstall of it, still wanted? It is about to write.
    ///
    /// # Errors
    /// It is not, or nobody can tell.
    fn begin(&self, begin: &Begin) -> Result<()>;

    /// Of a first installation that has failed there is no report: the event [`EventName::Crashed`] says it all.
    /// There is no password where an earlier boot has made it.
    ///
    /// # Errors
    /// It was not acknowledged.
    fn report(&self, ended: &Ended, console_password: Option<&str>) -> Result<Acknowledged>;
}

/// What is about to be written, and for whom.
pub struct Begin<'a> {
    pub allocation: &'a str,
    /// Of a reinstall.
    pub order: Option<&'a str>,
    /// Which disks of the machine the layout means.
    pub disks: &'a [MarkedDisk],
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
    record: FirmwareRecord,
    /// Where the configuration names one.
    loki: Option<Loki>,
}

impl MetalControl {
    /// Asks pixie.
    ///
    /// # Errors
    /// Its configuration cannot be had, or not be used.
    pub fn new(pixie: &str, machine: &str) -> Result<MetalControl> {
        let config = config::fetch(pixie, machine, PATIENT)?;
        clock::set(&config, &stdout::say);
        let (partition, record) = (config.partition.clone(), FirmwareRecord::new(Path::new(efi::VARIABLES)));
        let api: Box<dyn Api> = match &config.api {
            config::Api::V2(_) => Box::new(v2::V2::new(pixie, machine, &config, record.clone())?),
            config::Api::V1(_) => Box::new(v1::V1::new(pixie, machine, &config)?),
        };
        let mut control = MetalControl::with(api, machine, &partition, record);
        control.loki = Loki::of(&config, machine).map(|mut loki| {
            loki.conceal(&control.password);
            loki
        });
        Ok(control)
    }

    fn with(api: Box<dyn Api>, machine: &str, partition: &str, record: FirmwareRecord) -> MetalControl {
        MetalControl {
            api,
            machine: machine.to_owned(),
            partition: partition.to_owned(),
            password: password(),
            begun: AtomicBool::default(),
            told: Mutex::default(),
            record,
            loki: None,
        }
    }
}

impl MetalControl {
    /// How far the image is says little a day later. What the machine says last is worth a moment.
    fn log(&self, event: &Event) {
        let Some(loki) = self.loki.as_ref().filter(|_| event.progress.is_none()) else { return };
        let seconds = event.seconds.map(|seconds| format!(" ({seconds:.1} s)")).unwrap_or_default();
        let stage = event.stage.as_ref().map(|stage| format!("{stage}: ")).unwrap_or_default();
        loki.say(&format!("{}: {stage}{}{seconds}", event.event, event.message));
        if matches!(event.event, EventName::Crashed | EventName::BootingNewKernel | EventName::PlannedReboot) {
            loki.flush(LAST_WORDS);
        }
    }
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
        self.log(event);
        let told = self.told.lock().unwrap_or_else(PoisonError::into_inner).of(event, Instant::now());
        told.map_or(Ok(()), |(name, message)| self.api.event(name, &message))
    }

    /// Without an allocation nobody has the machine, and that must still be so.
    fn point_of_no_return(
        &self,
        allocation: &str,
        order: Option<&str>,
        disks: &[MarkedDisk],
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
        self.api.begin(&Begin { allocation, order, disks })?;
        self.begun.store(true, Ordering::Relaxed);
        Ok(())
    }

    fn report(&self, ended: &Ended) -> Result<Acknowledged> {
        if let Some(loki) = &self.loki {
            loki.say(&format!("{}\n{}", ended.plan, ended.message));
        }
        let is_new = self.begun.load(Ordering::Relaxed);
        self.api.report(ended, is_new.then_some(self.password.as_str()))
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

    /// The machine's own record goes first: a registration overwrites the control plane's.
    fn known_disks(&self) -> Vec<KnownDisk> {
        let recorded = self.record.disks();
        if !recorded.is_empty() {
            return recorded;
        }
        let registered = self.api.registered_disks().into_iter();
        registered.map(|size_bytes| KnownDisk { size_bytes, ..KnownDisk::default() }).collect()
    }

    fn remember_disks(&self, disks: &[KnownDisk]) -> Result<()> {
        self.record.write_disks(disks)
    }
}
