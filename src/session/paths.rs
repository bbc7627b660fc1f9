//! Verification of paths right before a tool or the kernel uses them, since device names move.

use super::Session;
use crate::device::DevicePath;
use crate::error::Result;
use crate::layout::Format;
use crate::plan::{MountFilesystem, OfRun, OnDevice, Operation};

impl Session {
    /// Verifies the paths of an operation.
    ///
    /// # Errors
    /// Fails if a path refers to another disk than the plan's. Nothing has been written there.
    pub(super) fn prove_paths(&self, operation: &Operation) -> Result<()> {
        let written = match operation {
            Operation::Device(operation) => by_tools(operation),
            Operation::Run(operation) => by_the_run(operation),
        };
        written.into_iter().try_for_each(|device| self.held.prove_below(device))
    }
}

/// Returns devices that an operation passes to a writing tool by path.
fn by_tools(operation: &OnDevice) -> Vec<&DevicePath> {
    match operation {
        OnDevice::CreateArray(array) => array.there().collect(),
        OnDevice::AssembleArray(array) => all(&array.members),
        OnDevice::ActivateGroup(group) => all(&group.devices),
        OnDevice::CreateGroup(group) => all(&group.devices),
        OnDevice::CreateVolume(volume) => all(&volume.physical),
        OnDevice::CreateContainer(container) => vec![&container.device],
        OnDevice::OpenContainer(open) => vec![&open.container.device],
        OnDevice::PreparePersistent(volume) => volume.written(),
        // These are only read, but the proof must be about the device that is written later.
        OnDevice::ProveZeros(proofs) => proofs.iter().map(|proof| &proof.device).collect(),
        OnDevice::MakeFilesystem(make) if make.format != Format::None => vec![&make.device],
        // These open the disk themselves, and verify the open descriptor.
        OnDevice::WipeDisk(_) | OnDevice::WriteTable(_) => Vec::new(),
        // These write nothing.
        OnDevice::Release(_)
        | OnDevice::AssertFree { .. }
        | OnDevice::TakeDown { .. }
        | OnDevice::TryArray(_)
        | OnDevice::TryFilesystem(_)
        | OnDevice::MakeFilesystem(_) => Vec::new(),
        // These were assembled from verified devices.
        OnDevice::DeactivateGroup { .. } | OnDevice::StopArray { .. } | OnDevice::CloseContainer { .. } => Vec::new(),
    }
}

/// Returns devices that the kernel writes from this operation on, by path.
fn by_the_run(operation: &OfRun) -> Vec<&DevicePath> {
    match operation {
        OfRun::Mount(mount) | OfRun::GrowFilesystem(mount) => mounted(mount),
        OfRun::UnlockDisk { device, .. } => vec![device],
        // Nothing is written, but the same devices must be assembled later.
        OfRun::Rehearse(rehearsal) => all(&rehearsal.over),
        // The program that it runs opens these by path.
        OfRun::CreateSystem(create) => all(&create.disks),
        OfRun::Receive(receive) => receive.devices.iter().map(|received| &received.device).collect(),
        // A seed that the target does not mount is mounted temporarily.
        OfRun::Finish(finishing) | OfRun::AdaptImage(finishing) => {
            finishing.seed.iter().filter(|seed| seed.path.is_none()).map(|seed| &seed.device).collect()
        }
        // This opens the disk itself, and verifies the open descriptor.
        OfRun::BurnDisk(_) => Vec::new(),
        // These write no device, or only below the mounted target.
        OfRun::ReachImage { .. }
        | OfRun::VerifyDefinition { .. }
        | OfRun::FindPrograms { .. }
        | OfRun::IdentifyDisk(_)
        | OfRun::CheckContainers(_)
        | OfRun::LockDisk { .. }
        | OfRun::TellPointOfNoReturn { .. }
        | OfRun::MoveStands { .. }
        | OfRun::MountReadOnly(_)
        | OfRun::BurnImage { .. }
        | OfRun::WriteMachineFiles { .. }
        | OfRun::InjectFiles(_)
        | OfRun::AdaptMoved(_)
        | OfRun::WritePersistent(_)
        | OfRun::WriteFstab(_)
        | OfRun::ExtendFstab(_)
        | OfRun::WriteCrypttab(_)
        | OfRun::FindLoader
        | OfRun::RemoveVariables(_)
        | OfRun::WriteBootEntries(_)
        | OfRun::LoadKernel
        | OfRun::ProveKept(_)
        | OfRun::WriteMarker(_)
        | OfRun::Unmount
        | OfRun::FlushDisks { .. }
        | OfRun::Report(_)
        | OfRun::Kexec => Vec::new(),
    }
}

/// Returns the devices of a filesystem. The kernel finds the other devices of a btrfs by its own list of paths.
fn mounted(mount: &MountFilesystem) -> Vec<&DevicePath> {
    if mount.format == Format::Tmpfs {
        return Vec::new();
    }
    std::iter::once(&mount.device).chain(&mount.others).collect()
}

fn all(devices: &[DevicePath]) -> Vec<&DevicePath> {
    devices.iter().collect()
}
