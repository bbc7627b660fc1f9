//! How a session is left: each operation has noted how it is taken back, and the newest goes first. After a failure nothing
//! half-written boots, and nothing stays mounted, locked or running.

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

/// How one operation is taken back.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Undo {
    /// Everything that the session has locked.
    Unlock,
    /// A disk that this stage wipes. One whose wipe has failed must not pass for one that was never touched.
    Wiping(DevicePath),
    /// A disk that was wiped: its tables are of this session.
    Wiped(DevicePath),
    /// A device with a filesystem, or a raw image, of this session.
    Made(DevicePath),
    /// An array or a group that the session has started.
    TakeDown(OnDevice),
    /// Everything that is mounted.
    Unmount,
    /// What programs of the image may have left running.
    EndProcesses,
    UnloadKernel,
}

impl Undo {
    pub(super) fn of(operation: &OnDevice) -> Option<Undo> {
        match operation {
            OnDevice::WipeDisk(disk) => Some(Undo::Wiping(disk.device.clone())),
            // `none` is left as it is, now and then.
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
            // Nothing boots of a volume, and the next attempt finds it by its UUID.
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

/// The stage that wiped has ended well.
pub(super) fn wipes_are_whole(log: &mut [Undo]) {
    for undo in log {
        if let Undo::Wiping(disk) = undo {
            *undo = Undo::Wiped(std::mem::take(disk));
        }
    }
}

impl Session {
    /// Takes back what the session has done, as far as possible. What fails is reported on the console, and the next one is tried.
    /// It is called before kexec and after a failure. Only what is half made is made unbootable.
    pub fn leave(&mut self, leaves: Leaves) {
        // What still arrives has no place to go to.
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

    /// Only on the disks of the plan: no firmware finds a boot loader there any more, no boot loader a filesystem.
    fn make_unbootable(&self, device: &DevicePath, leaves: Leaves, wipe: fn(&DevicePath) -> Result<()>) -> Result<()> {
        if leaves.half_made() {
            match self.held.prove_below(device).and_then(|()| wipe(device)) {
                Ok(()) => self.say(&format!("{device}: wiped, so that nothing half-installed can boot")),
                Err(error) => self.say(&format!("{device} MAY STILL BE BOOTABLE: {error}")),
            }
        }
        Ok(())
    }
}
