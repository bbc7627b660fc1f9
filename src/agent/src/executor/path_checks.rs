//! Verification of paths right before a tool or the kernel uses them, since device names move.

use super::PlanExecutor;
use common::error::Result;
use model::device::DevicePath;
use model::layout::FilesystemFormat;
use plan::{DeviceOp, MountFilesystem, Operation, SessionOp};

impl PlanExecutor {
    /// Verifies the paths of an operation.
    ///
    /// # Errors
    /// Fails if a path refers to another disk than the plan's. Nothing has been written there.
    pub(super) fn verify_paths(&self, operation: &Operation) -> Result<()> {
        let written = match operation {
            Operation::Device(operation) => paths_for_tools(operation),
            Operation::Run(operation) => paths_for_kernel(operation),
        };
        written.into_iter().try_for_each(|device| self.held.verify_underlying_disks(device))
    }
}

/// Returns devices that an operation passes to a writing tool by path.
fn paths_for_tools(operation: &DeviceOp) -> Vec<&DevicePath> {
    match operation {
        DeviceOp::CreateArray(array) => array.present_devices().collect(),
        DeviceOp::AssembleArray(array) => all_devices(&array.members),
        DeviceOp::ActivateGroup(group) => all_devices(&group.devices),
        DeviceOp::CreateGroup(group) => all_devices(&group.devices),
        DeviceOp::CreateVolume(volume) => all_devices(&volume.physical),
        DeviceOp::CreateContainer(container) => vec![&container.device],
        DeviceOp::OpenContainer(open) => vec![&open.container.device],
        DeviceOp::PreparePersistent(volume) => volume.written_devices(),
        // These are only read, but the proof must be about the device that is written later.
        DeviceOp::ProveZeros(proofs) => proofs.iter().map(|proof| &proof.device).collect(),
        DeviceOp::MakeFilesystem(make) if make.format != FilesystemFormat::None => vec![&make.device],
        // These open the disk themselves, and verify the open descriptor.
        DeviceOp::WipeDisk(_) | DeviceOp::WriteTable(_) => Vec::new(),
        // These write nothing.
        DeviceOp::Release(_)
        | DeviceOp::AssertFree { .. }
        | DeviceOp::TakeDown { .. }
        | DeviceOp::TryArray(_)
        | DeviceOp::TryFilesystem(_)
        | DeviceOp::MakeFilesystem(_) => Vec::new(),
        // These were assembled from verified devices.
        DeviceOp::DeactivateGroup { .. } | DeviceOp::StopArray { .. } | DeviceOp::CloseContainer { .. } => Vec::new(),
    }
}

/// Returns the paths that this operation passes to the kernel or to a program, which then write the devices.
fn paths_for_kernel(operation: &SessionOp) -> Vec<&DevicePath> {
    match operation {
        SessionOp::Mount(mount) | SessionOp::GrowFilesystem(mount) => mounted_devices(mount),
        SessionOp::UnlockDisk { device, .. } => vec![device],
        // Nothing is written, but the same devices must be assembled later.
        SessionOp::Rehearse(rehearsal) => all_devices(&rehearsal.over),
        // The program that it runs opens these by path.
        SessionOp::CreateSystem(create) => all_devices(&create.disks),
        SessionOp::Receive(receive) => receive.devices.iter().map(|received| &received.device).collect(),
        // A seed that the target does not mount is mounted temporarily.
        SessionOp::Finish(finishing) | SessionOp::AdaptImage(finishing) => {
            finishing.seed.iter().filter(|seed| seed.path.is_none()).map(|seed| &seed.device).collect()
        }
        // This opens the disk itself, and verifies the open descriptor.
        SessionOp::BurnDisk(_) => Vec::new(),
        // These write no device, or only below the mounted target.
        SessionOp::ReachImage { .. }
        | SessionOp::VerifyDefinition { .. }
        | SessionOp::FindPrograms { .. }
        | SessionOp::IdentifyDisk(_)
        | SessionOp::CheckContainers(_)
        | SessionOp::LockDisk { .. }
        | SessionOp::TellPointOfNoReturn { .. }
        | SessionOp::MoveStands { .. }
        | SessionOp::MountReadOnly(_)
        | SessionOp::BurnImage { .. }
        | SessionOp::WriteMachineFiles { .. }
        | SessionOp::InjectFiles(_)
        | SessionOp::AdaptMoved(_)
        | SessionOp::WritePersistent(_)
        | SessionOp::WriteFstab(_)
        | SessionOp::ExtendFstab(_)
        | SessionOp::WriteCrypttab(_)
        | SessionOp::FindLoader
        | SessionOp::RemoveVariables(_)
        | SessionOp::WriteBootEntries(_)
        | SessionOp::LoadKernel
        | SessionOp::ProveKept(_)
        | SessionOp::WriteMarker(_)
        | SessionOp::Unmount
        | SessionOp::FlushDisks { .. }
        | SessionOp::Report(_)
        | SessionOp::Kexec => Vec::new(),
    }
}

/// Returns the devices of a filesystem. The kernel finds the other devices of a btrfs by its own list of paths.
fn mounted_devices(mount: &MountFilesystem) -> Vec<&DevicePath> {
    if mount.format == FilesystemFormat::Tmpfs {
        return Vec::new();
    }
    std::iter::once(&mount.device).chain(&mount.others).collect()
}

fn all_devices(devices: &[DevicePath]) -> Vec<&DevicePath> {
    devices.iter().collect()
}
