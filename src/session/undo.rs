//! Cleanup of a session: each operation has recorded how it is undone, and the newest is undone first. After a failure, no partial
//! installation is bootable, and nothing stays mounted, locked or running.

use super::Session;
use super::alone::on_device;
use crate::boot::kexec;
use crate::device::DevicePath;
use crate::error::Result;
use crate::layout::Format;
use crate::plan::{ActivateGroup, AssembleArray, CreateArray, CreateGroup, Leaves, OnDevice, OpenContainer};
use crate::storage::identify::Held;
use crate::storage::wipe;
use crate::target::chroot;

/// Undo of one operation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Undo {
    /// Unlocks everything that the session has locked.
    Unlock,
    /// Disk that the current stage wipes. After a failed wipe it must not be mistaken for an untouched disk.
    Wiping(DevicePath),
    /// Disk that was wiped: its tables are from this session.
    Wiped(DevicePath),
    /// Device with a filesystem or raw image from this session.
    Made(DevicePath),
    /// Array or volume group that the session has started.
    TakeDown(OnDevice),
    /// Unmounts everything.
    Unmount,
    /// Ends processes that programs of the image may have left running.
    EndProcesses,
    UnloadKernel,
}

impl Undo {
    pub(super) fn of(operation: &OnDevice) -> Option<Undo> {
        match operation {
            OnDevice::WipeDisk(disk) => Some(Undo::Wiping(disk.device.clone())),
            // With the format `none`, nothing is created.
            OnDevice::MakeFilesystem(make) if make.format != Format::None => Some(Undo::Made(make.device.clone())),
            OnDevice::CreateArray(CreateArray { device, .. })
            | OnDevice::AssembleArray(AssembleArray { device, .. }) => {
                Some(Undo::TakeDown(OnDevice::StopArray { device: device.clone() }))
            }
            OnDevice::CreateGroup(CreateGroup { name, devices, .. })
            | OnDevice::ActivateGroup(ActivateGroup { name, devices, .. }) => {
                Some(Undo::TakeDown(OnDevice::DeactivateGroup { name: name.clone(), devices: devices.clone() }))
            }
            OnDevice::CreateContainer(container) | OnDevice::OpenContainer(OpenContainer { container, .. }) => {
                Some(Undo::TakeDown(OnDevice::CloseContainer { mapping: container.mapping.clone() }))
            }
            // Volumes are not bootable, and the next attempt finds them by their UUIDs.
            OnDevice::PreparePersistent(_)
            | OnDevice::DeactivateGroup { .. }
            | OnDevice::StopArray { .. }
            | OnDevice::CloseContainer { .. }
            | OnDevice::Release(_)
            | OnDevice::AssertFree { .. }
            | OnDevice::TakeDown { .. }
            | OnDevice::ProveZeros(_)
            | OnDevice::WriteTable(_)
            | OnDevice::CreateVolume(_)
            | OnDevice::TryArray(_)
            | OnDevice::TryFilesystem(_)
            | OnDevice::MakeFilesystem(_) => None,
        }
    }
}

/// Marks the wipes of a completed stage.
pub(super) fn wipes_are_whole(log: &mut [Undo]) {
    for undo in log {
        if let Undo::Wiping(disk) = undo {
            *undo = Undo::Wiped(std::mem::take(disk));
        }
    }
}

impl Session {
    /// Undoes the operations of the session as far as possible. Failures are logged, and the next operation is undone. Called before kexec
    /// and after a failure. Only partial results are made unbootable.
    pub fn leave(&mut self, leaves: Leaves) {
        // Stops the image: its target is about to be unmounted.
        self.image = None;
        while let Some(undo) = self.undo.pop() {
            if let Err(error) = self.take_back(&undo, leaves) {
                self.say(&format!("clean up: {error}"));
            }
        }
        self.held = Held::default();
    }

    fn take_back(&mut self, undo: &Undo, leaves: Leaves) -> Result<()> {
        match undo {
            Undo::Unlock => self.locks.unlock(),
            Undo::TakeDown(operation) => on_device(operation, &self.reporter).map(drop),
            Undo::Unmount => {
                for error in self.mounts.abandon() {
                    self.say(&format!("clean up: {error}"));
                }
                Ok(())
            }
            Undo::EndProcesses => {
                chroot::end_processes(self.mounts.root(), &|line| self.say(line));
                Ok(())
            }
            Undo::UnloadKernel => {
                kexec::unload();
                Ok(())
            }
            Undo::Wiping(device) | Undo::Made(device) => self.make_unbootable(device, leaves, wipe::wipe_ends),
            Undo::Wiped(device) => self.make_unbootable(device, leaves, wipe::wipe_boot_code),
        }
    }

    /// Makes a device of the plan's disks unbootable: a firmware finds no boot loader on it, and a boot loader no filesystem.
    fn make_unbootable(&self, device: &DevicePath, leaves: Leaves, wipe: fn(&DevicePath) -> Result<()>) -> Result<()> {
        if leaves.half_made() {
            match self.held.prove_below(device).and_then(|()| wipe(device)) {
                Ok(()) => self.say(&format!("{device}: wiped, so that the partial installation cannot boot")),
                Err(error) => self.say(&format!("{device} MAY STILL BE BOOTABLE: {error}")),
            }
        }
        Ok(())
    }
}
