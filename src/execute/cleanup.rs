//! What a failure leaves behind: nothing half-written that boots, nothing mounted, locked or running.

use super::Run;
use super::alone::on_device;
use crate::boot::kexec;
use crate::error::Result;
use crate::plan::StepName;
use crate::storage::wipe;
use crate::target::installer;

impl Run<'_> {
    /// Best effort, after a failure: each thing that does not work is said, and the next one is tried.
    pub(super) fn clean_up(&mut self, failed: StepName) {
        if self.boot.is_some() {
            kexec::unload();
        }
        installer::end_processes(self.mounts.root(), &|line| self.say(line));
        for error in self.mounts.abandon() {
            self.say(&format!("clean up: {error}"));
        }
        // A report or a kexec that fails leaves a complete system on the disks; what goes before it does not.
        // Nor is anything half made where the plan is to boot what is there.
        let half_made = failed < StepName::ReportFinal && self.installation.plan.already.is_none();
        if half_made {
            self.make_unbootable(&self.made, wipe::wipe_ends);
        }
        while let Some(operation) = self.running.pop() {
            if let Err(error) = on_device(&operation, self.installation) {
                self.say(&format!("clean up: {error}"));
            }
        }
        // After the arrays: a disk cannot be opened for writing while something holds it.
        if half_made {
            // One whose wipe has failed must not pass for one that was never touched. Later the tables are of this run.
            let wiping = failed == StepName::StorageWipe;
            self.make_unbootable(&self.wiped, if wiping { wipe::wipe_ends } else { wipe::wipe_boot_code });
        }
        if let Err(error) = self.locks.unlock() {
            self.say(&format!("clean up: {error}"));
        }
    }

    /// Only what this run has made, and on its disks: no firmware finds a boot loader there any more, no boot loader a filesystem.
    fn make_unbootable(&self, devices: &[String], wipe: fn(&str) -> Result<()>) {
        for device in devices {
            match self.held.prove_below(device).and_then(|()| wipe(device)) {
                Ok(()) => self.say(&format!("{device}: wiped, so that nothing half-installed can boot")),
                Err(error) => self.say(&format!("{device} MAY STILL BE BOOTABLE: {error}")),
            }
        }
    }
}
