//! Cleanup of a session: each operation has recorded how it is undone, and the newest is undone first. After a failure, no partial
//! installation is bootable, and nothing stays mounted, locked or running.

use super::PlanExecutor;
use super::device_ops::run_device_op;
use common::error::Result;
use linux::storage::disk_identity::HeldDisks;
use linux::storage::wipe;
use model::device::DevicePath;
use model::layout::FilesystemFormat;
use newroot::boot::kexec;
use newroot::chroot;
use plan::{ActivateGroup, AssembleArray, CreateArray, CreateGroup, DeviceOp, FailureState, OpenContainer};

/// Undo of one operation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum UndoOperation {
    /// Unlocks everything that the session has locked.
    Unlock,
    /// Disk that the current stage wipes. After a failed wipe it must not be mistaken for an untouched disk.
    Wiping(DevicePath),
    /// Disk that was wiped: its tables are from this session.
    Wiped(DevicePath),
    /// Device with a filesystem or raw image from this session.
    Made(DevicePath),
    /// Array or volume group that the session has started.
    TakeDown(DeviceOp),
    /// Unmounts everything.
    Unmount,
    /// Ends processes that programs of the image may have left running.
    EndProcesses,
    UnloadKernel,
}

impl UndoOperation {
    pub(super) fn for_operation(operation: &DeviceOp) -> Option<UndoOperation> {
        match operation {
            DeviceOp::WipeDisk(disk) => Some(UndoOperation::Wiping(disk.device.clone())),
            // With the format `none`, nothing is created.
            DeviceOp::MakeFilesystem(make) if make.format != FilesystemFormat::None => {
                Some(UndoOperation::Made(make.device.clone()))
            }
            DeviceOp::CreateArray(CreateArray { device, .. })
            | DeviceOp::AssembleArray(AssembleArray { device, .. }) => {
                Some(UndoOperation::TakeDown(DeviceOp::StopArray { device: device.clone() }))
            }
            DeviceOp::CreateGroup(CreateGroup { name, devices, .. })
            | DeviceOp::ActivateGroup(ActivateGroup { name, devices, .. }) => {
                Some(UndoOperation::TakeDown(DeviceOp::DeactivateGroup {
                    name: name.clone(),
                    devices: devices.clone(),
                }))
            }
            DeviceOp::CreateContainer(container) | DeviceOp::OpenContainer(OpenContainer { container, .. }) => {
                Some(UndoOperation::TakeDown(DeviceOp::CloseContainer { mapping: container.mapping.clone() }))
            }
            // Volumes are not bootable, and the next attempt finds them by their UUIDs.
            DeviceOp::PreparePersistent(_)
            | DeviceOp::DeactivateGroup { .. }
            | DeviceOp::StopArray { .. }
            | DeviceOp::CloseContainer { .. }
            | DeviceOp::Release(_)
            | DeviceOp::AssertFree { .. }
            | DeviceOp::TakeDown { .. }
            | DeviceOp::ProveZeros(_)
            | DeviceOp::WriteTable(_)
            | DeviceOp::CreateVolume(_)
            | DeviceOp::TryArray(_)
            | DeviceOp::TryFilesystem(_)
            | DeviceOp::MakeFilesystem(_) => None,
        }
    }
}

/// Marks the wipes of a completed stage.
pub(super) fn mark_wipes_complete(log: &mut [UndoOperation]) {
    for undo in log {
        if let UndoOperation::Wiping(disk) = undo {
            *undo = UndoOperation::Wiped(std::mem::take(disk));
        }
    }
}

impl PlanExecutor {
    /// Undoes the operations of the session as far as possible. Failures are logged, and the next operation is undone. Called before kexec
    /// and after a failure. Only partial results are made unbootable.
    pub fn leave_session(&mut self, leaves: FailureState) {
        // Stops the image: its target is about to be unmounted.
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
            UndoOperation::Unlock => self.locks.unlock_all(),
            UndoOperation::TakeDown(operation) => run_device_op(operation, &self.reporter).map(drop),
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
                self.make_unbootable(device, leaves, wipe::wipe_ends)
            }
            UndoOperation::Wiped(device) => self.make_unbootable(device, leaves, wipe::wipe_boot_code),
        }
    }

    /// Makes a device of the plan's disks unbootable: a firmware finds no boot loader on it, and a boot loader no filesystem.
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
