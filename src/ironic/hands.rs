//! Actions of steps on the machine. Tests use a simulation, which touches nothing.

use super::{files, logs, rescue};
use crate::allocation::Allocation;
use crate::control::{Acknowledged, AttemptNotice, Control};
use crate::error::Result;
use crate::facts::{Done, Ended};
use crate::image::{self, Keys, Minimum};
use crate::inventory::Inventory;
use crate::layout::Layout;
use crate::plan::{Leaves, Plan};
use crate::ready::{self, opened};
use crate::report::Reporter;
use crate::session::{Session, Trust};
use crate::settings::Settings;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// Executor of steps.
pub trait Hands: Send + Sync {
    /// Releases everything that an earlier step holds, and takes the inventory. Waits for the disks of the layout and unlocks what a
    /// reinstall preserves; the allocation receives the ramdisk's own key.
    ///
    /// # Errors
    /// Fails if a tool is missing or the inventory cannot be taken.
    fn begin(&self, wanted: Option<(&Layout, &mut Allocation)>) -> Result<Inventory>;

    /// Runs the stages of a part of a plan, after those of previous parts.
    ///
    /// # Errors
    /// Fails at the first stage that fails. Everything has been released then, and a partial installation is not bootable.
    fn run(&self, part: &Plan) -> Result<Done>;

    /// Releases everything. An installation that is not `whole` is made unbootable.
    fn leave(&self, whole: bool);

    /// Flushes all filesystems.
    fn sync(&self);

    /// Enables logins with the password of this hash.
    ///
    /// # Errors
    /// Fails if logins cannot be enabled.
    fn rescue(&self, hash: &str) -> Result<()>;

    /// Downloads a file.
    ///
    /// # Errors
    /// Fails if it cannot be downloaded completely.
    fn fetch(&self, url: &str) -> Result<Vec<u8>>;

    /// Returns the logs, by file name.
    fn logs(&self) -> Vec<(&'static str, Vec<u8>)>;
}

/// Executor on the real machine.
pub struct Metal {
    settings: Settings,
    control: Arc<dyn Control>,
    reporter: Arc<Reporter>,
    session: Mutex<Session>,
}

impl Metal {
    pub fn new(settings: &Settings) -> Metal {
        let control: Arc<dyn Control> = Arc::new(Silent);
        let reporter = Arc::new(Reporter::new(control.clone()));
        let session = Mutex::new(Session::new(reporter.clone(), control.clone(), Trust::default()));
        Metal { settings: settings.clone(), control, reporter, session }
    }

    fn session(&self) -> MutexGuard<'_, Session> {
        self.session.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn trust(&self) -> Result<Trust> {
        let keys = Keys::read(&self.settings.keys, Path::new(image::KEY_DIRECTORY))?;
        let minimum = Minimum::read(&self.settings.minimum, Path::new(image::MINIMUM_FILE), &keys)?;
        Ok(Trust { keys, minimum })
    }
}

impl Hands for Metal {
    fn begin(&self, wanted: Option<(&Layout, &mut Allocation)>) -> Result<Inventory> {
        self.leave(false);
        let trust = self.trust()?;
        ready::require_tools()?;
        if let Some((layout, _)) = &wanted {
            ready::late_disks(layout)?;
        }
        *self.session() = Session::new(self.reporter.clone(), self.control.clone(), trust);
        let Some((layout, allocation)) = wanted.filter(|(layout, _)| opened::wants(layout)) else {
            return ready::assembled_inventory();
        };
        opened::read_key(layout, allocation)?;
        // The console of a machine that Ironic controls is unattended.
        let mut nobody = |_: &str, _| Ok(None);
        let mut open = |inventory: &Inventory| opened::open(layout, inventory, allocation, &mut nobody);
        ready::assembled_and(Some(&mut open))
    }

    fn run(&self, part: &Plan) -> Result<Done> {
        self.session().run(part).map(|facts| facts.done).map_err(|failure| failure.error)
    }

    fn leave(&self, whole: bool) {
        self.session().leave(if whole { Leaves::Complete } else { Leaves::HalfMade });
    }

    fn sync(&self) {
        nix::unistd::sync();
    }

    fn rescue(&self, hash: &str) -> Result<()> {
        rescue::let_in(Path::new("/"), hash)
    }

    fn fetch(&self, url: &str) -> Result<Vec<u8>> {
        files::fetched(url)
    }

    fn logs(&self) -> Vec<(&'static str, Vec<u8>)> {
        vec![("kernel.log", logs::kernel())]
    }
}

/// Control plane that ignores all events: the conductor ordered the step, and reads its result.
struct Silent;

impl Control for Silent {
    fn register(&self, _: &Inventory) -> Result<()> {
        Ok(())
    }

    fn wait(&self, _: Duration) -> Result<bool> {
        Ok(true)
    }

    fn machine(&self) -> Result<crate::allocation::Machine> {
        Ok(Default::default())
    }

    fn point_of_no_return(&self, _: &AttemptNotice) -> Result<()> {
        Ok(())
    }

    fn report(&self, _: &Ended) -> Result<Acknowledged> {
        Ok(Acknowledged::default())
    }
}
