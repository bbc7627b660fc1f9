//! What a tool or the kernel gets by its path is proven right before: names of devices move.

use super::Run;
use crate::error::Result;
use crate::layout::Format;
use crate::plan::Operation;
use crate::storage::raid;

impl Run<'_> {
    /// # Errors
    /// One of the paths means another disk than the plan's; nothing was written there.
    pub(super) fn prove_paths(&self, operation: &Operation) -> Result<()> {
        // What is installed already is only read.
        if self.installation.plan.already.is_some() {
            return Ok(());
        }
        written(operation).into_iter().try_for_each(|device| self.held.prove_below(device))
    }
}

/// Devices that this makes somebody write who looks up their paths. What wipes a disk, writes its table or burns onto it opens
/// it itself, and proves that.
fn written(operation: &Operation) -> Vec<&str> {
    match operation {
        Operation::CreateArray(array) => {
            all(&array.devices).into_iter().filter(|device| *device != raid::MISSING).collect()
        }
        Operation::AssembleArray { members: devices, .. } | Operation::ActivateGroup { devices, .. } => all(devices),
        Operation::CreateGroup(group) => all(&group.devices),
        Operation::CreateVolume(volume) => all(&volume.physical),
        Operation::MakeFilesystem(make) if make.format != Format::None => vec![&make.device],
        Operation::Mount(mount) | Operation::GrowFilesystem(mount) if mount.format != Format::Tmpfs => {
            vec![&mount.device]
        }
        Operation::UnlockDisk { device, .. } => vec![device],
        _ => Vec::new(),
    }
}

fn all(devices: &[String]) -> Vec<&str> {
    devices.iter().map(String::as_str).collect()
}
