//! Cleanup of a session. Each operation has recorded how to undo it, and the newest operation is undone first. After a
//! failure, a partial installation is not bootable, and nothing stays mounted, locked or running.

use super::PlanExecutor;
use common::error::{Error, Phase, Result};
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

/// Moves the undo operation that erases the root filesystem, so that it is executed before the other devices are made
/// unbootable. The marker is then removed first: while the marker exists, the control plane considers the system
/// complete.
pub(super) fn erase_root_first(log: &mut Vec<UndoOperation>, erase: &UndoOperation) {
    let Some(place) = log.iter().rposition(|undo| undo == erase) else { return };
    let erase = log.remove(place);
    let last = log.iter().rposition(makes_unbootable).map_or(place, |last| last + 1);
    log.insert(last.max(place), erase);
}

fn makes_unbootable(undo: &UndoOperation) -> bool {
    match undo {
        UndoOperation::WipeUnfinishedDisk(_)
        | UndoOperation::WipeDeviceEnds(_)
        | UndoOperation::WipeBootCode(_)
        | UndoOperation::Clearing(_) => true,
        UndoOperation::StopArray(_)
        | UndoOperation::DeactivateGroup(_)
        | UndoOperation::CloseContainer(_)
        | UndoOperation::Unlock
        | UndoOperation::Unmount
        | UndoOperation::EndProcesses
        | UndoOperation::UnloadKernel => false,
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
        let erases_root = self.root_device.take().map(UndoOperation::WipeDeviceEnds);
        if let Some(erase) = &erases_root {
            erase_root_first(&mut self.undo, erase);
        }
        while let Some(undo) = self.undo.pop() {
            match self.undo_operation(&undo, leaves) {
                Ok(()) if leaves.is_incomplete() && Some(&undo) == erases_root.as_ref() => self.facts.marker = None,
                Ok(()) => {}
                Err(error) if makes_unbootable(&undo) => self.keep_marked_system(&error),
                Err(error) => self.print_line(&format!("clean up: {error}")),
            }
        }
        self.held = HeldDisks::default();
    }

    /// Handles a device that cannot be made unbootable. If the device may contain the marker, the other devices are not
    /// erased: the next attempt would find the marker, and would report a system as installed that cannot boot.
    pub(super) fn keep_marked_system(&mut self, error: &Error) {
        self.print_line(&error.to_string());
        if self.facts.marker.is_some() {
            self.print_line(
                "no further devices are erased: this device may still contain the install marker, and the next \
                 attempt would then report a system that cannot boot as installed",
            );
            self.undo.retain(|undo| !makes_unbootable(undo));
        }
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
    ///
    /// # Errors
    /// Fails if the device is not on a disk of the plan, or cannot be written.
    fn make_unbootable(
        &self,
        device: &DevicePath,
        leaves: FailureState,
        wipe: impl FnOnce() -> Result<()>,
    ) -> Result<()> {
        if !leaves.is_incomplete() {
            return Ok(());
        }
        let wiped = self.held.verify_underlying_disks(device).and_then(|()| wipe());
        wiped.map_err(|error| Error::with_source(error.phase, format!("{device} MAY STILL BE BOOTABLE"), error))?;
        self.print_line(&format!("{device}: wiped, so that the partial installation cannot boot"));
        Ok(())
    }

    /// Wipes the start and the end of these disks after the control plane has rejected the report of success. Arrays
    /// and volume groups on the disks are already stopped.
    pub(super) fn wipe_rejected(&self, disks: &[DevicePath], denied: Error) -> Error {
        let wipe = |disk: &DevicePath| match self
            .held
            .verify_underlying_disks(disk)
            .and_then(|()| signature_wipe::wipe_ends(disk))
        {
            Ok(()) => {
                format!("the start and the end of {disk} were wiped, so that the machine does not boot from this disk")
            }
            Err(error) => format!("{disk} MAY STILL BE BOOTABLE: {error}"),
        };
        let said: Vec<String> = disks.iter().map(wipe).collect();
        if said.is_empty() { denied } else { Error::with_source(Phase::Move, said.join("; "), denied) }
    }
}
