//! Actions of steps on the machine. Tests replace these actions with a simulation that does not access devices.

use super::{inject_files, log_collection, rescue};
use crate::executor::{ImageTrust, PlanExecutor};
use crate::preflight::{self, preserved_container_unlock};
use crate::report::ProgressReporter;
use common::error::Result;
use common::sync::lock_mutex;
use control::{AttemptNotice, ControlPlane, ReportAcknowledgement};
use image::{MinimumVersions, SignatureKeys};
use model::agent_kernel_arguments::AgentSettings;
use model::allocation::Allocation;
use model::install_report::{DiskChanges, InstallResult};
use model::inventory::Inventory;
use model::layout::Layout;
use operations::FailureState;
use plan::Plan;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// Executor of steps.
pub(crate) trait MachineActions: Send + Sync {
    /// Unmounts, stops and closes everything that an earlier step has left active, and takes the inventory. If a layout
    /// is specified, this function also waits for the disks of the layout, stores the ramdisk's key in the allocation,
    /// and unlocks the encrypted filesystems and volume groups that a reinstall preserves.
    ///
    /// # Errors
    /// Fails if a tool is missing or the inventory cannot be taken.
    fn begin_step(&self, wanted: Option<(&Layout, &mut Allocation)>) -> Result<Inventory>;

    /// Runs the stages of one part of a plan. Before the call, the stages of all previous parts must have been run.
    ///
    /// # Errors
    /// Fails at the first stage that fails. Before the error is returned, everything is unmounted and stopped, and a
    /// partial installation is made unbootable.
    fn run_part(&self, part: &Plan) -> Result<DiskChanges>;

    /// Unmounts, stops and closes everything that the steps have left active. `whole` is true if the installation is
    /// complete. An incomplete installation is made unbootable.
    fn release_all(&self, whole: bool);

    /// Flushes all filesystems.
    fn sync_filesystems(&self);

    /// Enables logins with the password that has this hash.
    ///
    /// # Errors
    /// Fails if logins cannot be enabled.
    fn enable_rescue(&self, hash: &str) -> Result<()>;

    /// Downloads a file.
    ///
    /// # Errors
    /// Fails if the file cannot be downloaded completely.
    fn fetch_file(&self, url: &str) -> Result<Vec<u8>>;

    /// Returns the logs, by file name.
    fn collect_logs(&self) -> Vec<(&'static str, Vec<u8>)>;
}

/// Executor that acts on the real machine.
pub(crate) struct MachineExecutor {
    settings: AgentSettings,
    control: Arc<dyn ControlPlane>,
    reporter: Arc<ProgressReporter>,
    session: Mutex<PlanExecutor>,
}

impl MachineExecutor {
    pub(crate) fn new(settings: &AgentSettings) -> MachineExecutor {
        let control: Arc<dyn ControlPlane> = Arc::new(NoControlPlane);
        let reporter = Arc::new(ProgressReporter::new(control.clone()));
        let session = Mutex::new(PlanExecutor::new(reporter.clone(), control.clone(), ImageTrust::default()));
        MachineExecutor { settings: settings.clone(), control, reporter, session }
    }

    fn read_trust(&self) -> Result<ImageTrust> {
        let keys = SignatureKeys::read(&self.settings.keys, Path::new(image::KEY_DIRECTORY))?;
        let minimum = MinimumVersions::read(&self.settings.minimum, Path::new(image::MINIMUM_FILE), &keys)?;
        Ok(ImageTrust { keys, minimum })
    }
}

impl MachineActions for MachineExecutor {
    fn begin_step(&self, wanted: Option<(&Layout, &mut Allocation)>) -> Result<Inventory> {
        self.release_all(false);
        let trust = self.read_trust()?;
        preflight::require_tools()?;
        if let Some((layout, _)) = &wanted {
            preflight::wait_for_layout_disks(layout)?;
        }
        *lock_mutex(&self.session) = PlanExecutor::new(self.reporter.clone(), self.control.clone(), trust);
        let Some((layout, allocation)) =
            wanted.filter(|(layout, _)| preserved_container_unlock::has_encryption(layout))
        else {
            return preflight::read_assembled_inventory();
        };
        preserved_container_unlock::read_ramdisk_key(layout, allocation)?;
        // The agent does not prompt for passphrases, because the console of a machine that Ironic controls is
        // unattended.
        let mut nobody = |_: &str, _| Ok(None);
        let mut open = |inventory: &Inventory| {
            preserved_container_unlock::unlock_preserved(layout, inventory, allocation, &mut nobody)
        };
        preflight::read_assembled_with(Some(&mut open))
    }

    fn run_part(&self, part: &Plan) -> Result<DiskChanges> {
        lock_mutex(&self.session).run_plan(part).map(|facts| facts.done).map_err(|failure| failure.error)
    }

    fn release_all(&self, whole: bool) {
        lock_mutex(&self.session).leave_session(if whole { FailureState::Complete } else { FailureState::Incomplete });
    }

    fn sync_filesystems(&self) {
        nix::unistd::sync();
    }

    fn enable_rescue(&self, hash: &str) -> Result<()> {
        rescue::enable_login(Path::new("/"), hash)
    }

    fn fetch_file(&self, url: &str) -> Result<Vec<u8>> {
        inject_files::download_file(url)
    }

    fn collect_logs(&self) -> Vec<(&'static str, Vec<u8>)> {
        vec![("kernel.log", log_collection::read_kernel_log())]
    }
}

/// Control plane for steps of a conductor. Events of a run are discarded, because the conductor only reads the result
/// of each step.
struct NoControlPlane;

impl ControlPlane for NoControlPlane {
    fn register_machine(&self, _: &Inventory) -> Result<()> {
        Ok(())
    }

    fn wait_for_allocation(&self, _: Duration) -> Result<bool> {
        Ok(true)
    }

    fn fetch_machine(&self) -> Result<model::allocation::AssignedMachine> {
        Ok(Default::default())
    }

    fn announce_point_of_no_return(&self, _: &AttemptNotice) -> Result<()> {
        Ok(())
    }

    fn report_result(&self, _: &InstallResult) -> Result<ReportAcknowledgement> {
        Ok(ReportAcknowledgement::default())
    }
}
