//! Cleanup of a session. Each operation has recorded how to undo it, and the newest operation is undone first. After a
//! failure, a partial installation is not bootable, and nothing stays mounted, locked or running.

use super::PlanExecutor;
use common::error::Result;
use linux::storage::disk_identity::HeldDisks;
use linux::storage::{luks, lvm, mdadm, range_clearing, signature_wipe};
use model::device_name::DevicePath;
use newroot::boot::kexec;
use newroot::chroot;
use operations::{DeviceOp, FailureState, UndoOperation};

/// Updates the undo list when all disks are wiped and the boot areas of all removed partitions are cleared. A later
/// failure requires only that the boot code is wiped, on the wiped disks and on the partly kept disks whose boot code
/// was cleared.
pub(super) fn mark_wipes_complete(log: &mut Vec<UndoOperation>) {
    log.retain(|undo| !matches!(undo, UndoOperation::Clearing(clear) if !clear.boot_code));
    for undo in log {
        let disk = match undo {
            UndoOperation::WipeUnfinishedDisk(disk) => std::mem::take(disk),
            UndoOperation::Clearing(clear) => std::mem::take(&mut clear.device),
            _ => continue,
        };
        *undo = UndoOperation::WipeBootCode(disk);
    }
}

/// Returns whether the executed `operation` has the same effect as `undo`, which is then no longer needed.
pub(super) fn is_done_by(undo: &UndoOperation, operation: &DeviceOp) -> bool {
    match (undo, operation) {
        (UndoOperation::StopArray(undo), DeviceOp::StopArray(stop)) => undo == stop,
        (UndoOperation::DeactivateGroup(undo), DeviceOp::DeactivateGroup(group)) => undo == group,
        (UndoOperation::CloseContainer(undo), DeviceOp::CloseContainer(close)) => undo == close,
        _ => false,
    }
}

impl PlanExecutor {
    /// Undoes the operations of the session as far as possible. If an operation cannot be undone, the error is logged,
    /// and the cleanup continues. Called before kexec and after a failure. An installation is made unbootable only if
    /// it is incomplete.
    pub(crate) fn leave_session(&mut self, leaves: FailureState) {
        // Stops the download of the image, because its target is about to be unmounted.
        self.image = None;
        while let Some(undo) = self.undo.pop() {
            if let Err(error) = self.undo_operation(&undo, leaves) {
                self.print_line(&format!("clean up: {error}"));
            }
        }
        self.held = HeldDisks::default();
    }

    fn undo_operation(&mut self, undo: &UndoOperation, leaves: FailureState) -> Result<()> {
        match undo {
            UndoOperation::StopArray(stop) => mdadm::stop_array(&stop.device),
            UndoOperation::DeactivateGroup(group) => lvm::deactivate_group(&group.name, &group.devices),
            UndoOperation::CloseContainer(close) => luks::close_mapping(&close.mapping),
            UndoOperation::Unlock => self.locks.unlock_all(),
            UndoOperation::Unmount => {
                for error in self.mounts.unmount_best_effort() {
                    self.print_line(&format!("clean up: {error}"));
                }
                Ok(())
            }
            UndoOperation::EndProcesses => {
                chroot::kill_processes(self.mounts.root(), &|line| self.print_line(line));
                Ok(())
            }
            UndoOperation::UnloadKernel => {
                kexec::unload_kernel();
                Ok(())
            }
            UndoOperation::WipeUnfinishedDisk(device) | UndoOperation::WipeDeviceEnds(device) => {
                self.make_unbootable(device, leaves, || signature_wipe::wipe_ends(device))
            }
            UndoOperation::WipeBootCode(device) => {
                self.make_unbootable(device, leaves, || signature_wipe::wipe_boot_code(device))
            }
            UndoOperation::Clearing(clear) => {
                self.make_unbootable(&clear.device, leaves, || range_clearing::clear_boot_ranges(clear))
            }
        }
    }

    /// Makes a device on one of the plan's disks unbootable if the system is incomplete. Afterwards, the firmware does
    /// not find a boot loader on the device, and a boot loader on another device does not find a filesystem on this
    /// device.
    fn make_unbootable(
        &self,
        device: &DevicePath,
        leaves: FailureState,
        wipe: impl FnOnce() -> Result<()>,
    ) -> Result<()> {
        if leaves.is_incomplete() {
            match self.held.verify_underlying_disks(device).and_then(|()| wipe()) {
                Ok(()) => self.print_line(&format!("{device}: wiped, so that the partial installation cannot boot")),
                Err(error) => self.print_line(&format!("{device} MAY STILL BE BOOTABLE: {error}")),
            }
        }
        Ok(())
    }
}
