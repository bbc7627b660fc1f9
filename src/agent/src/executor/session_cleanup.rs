//! Cleanup of a session. Each operation has recorded how to undo it, and the newest operation is undone first. After a
//! failure, a partial installation is not bootable, and nothing stays mounted, locked or running.

use super::PlanExecutor;
use common::error::Result;
use linux::storage::disk_identity::HeldDisks;
use linux::storage::{luks, lvm, mdadm, signature_wipe};
use model::device_name::DevicePath;
use newroot::boot::kexec;
use newroot::chroot;
use operations::{DeviceOp, FailureState, UndoOperation};

/// Marks the disks of a completed wipe stage as wiped in the list of operations to undo.
pub(super) fn mark_wipes_complete(log: &mut [UndoOperation]) {
    for undo in log {
        if let UndoOperation::Wiping(disk) = undo {
            *undo = UndoOperation::Wiped(std::mem::take(disk));
        }
    }
}

/// Returns whether the executed `operation` has the same effect as `undo`, so that `undo` is no longer needed.
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
            UndoOperation::Wiping(device) | UndoOperation::Made(device) => {
                self.make_unbootable(device, leaves, signature_wipe::wipe_ends)
            }
            UndoOperation::Wiped(device) => self.make_unbootable(device, leaves, signature_wipe::wipe_boot_code),
        }
    }

    /// Makes a device on one of the plan's disks unbootable if the system is incomplete. Afterwards, the firmware does
    /// not find a boot loader on the device, and a boot loader on another device does not find a filesystem on this
    /// device.
    fn make_unbootable(
        &self,
        device: &DevicePath,
        leaves: FailureState,
        wipe: fn(&DevicePath) -> Result<()>,
    ) -> Result<()> {
        if leaves.is_half_made() {
            match self.held.verify_underlying_disks(device).and_then(|()| wipe(device)) {
                Ok(()) => self.print_line(&format!("{device}: wiped, so that the partial installation cannot boot")),
                Err(error) => self.print_line(&format!("{device} MAY STILL BE BOOTABLE: {error}")),
            }
        }
        Ok(())
    }
}
