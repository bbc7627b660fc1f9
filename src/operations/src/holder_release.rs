//! Operations that release the holders of disks: before a disk is wiped, its holders are stopped, removed or
//! deactivated.

use crate::operation_text::{DeviceSizes, OperationLine, join_devices, strip_dev};
use crate::{Effect, PlannedOperation};
use model::device_name::DevicePath;
use serde::Serialize;

/// Holder that must be released, because its disks will be wiped, or because it was assembled only for inspection.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum DiskHolder {
    /// Swap area, which is released with swapoff(2).
    Swap { device: DevicePath },
    /// Array, which is released with `mdadm --stop`.
    Array { device: DevicePath },
    /// dm-crypt mapping or other device-mapper target, which is released with `dmsetup remove`.
    Mapping { device: DevicePath },
    /// Logical volume `GROUP/VOLUME`, which is also released with `dmsetup remove`.
    Volume { device: DevicePath, name: String },
    /// bcache device, which is released through `/sys/block/NAME/bcache/stop`.
    Bcache { device: DevicePath },
}

/// Operation that releases a holder.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ReleaseDiskHolder(pub DiskHolder);

impl PlannedOperation for ReleaseDiskHolder {
    fn describe(&self, _: &DeviceSizes) -> OperationLine<'_> {
        describe_release(&self.0).into()
    }

    fn effect(&self) -> Effect<'_> {
        Effect::none()
    }
}

fn describe_release(holder: &DiskHolder) -> String {
    // The printed plan contains such a line for each holder, in the order of release.
    let verb = |verb: &str, device: &DevicePath| format!("{verb} {}", strip_dev(device));
    match holder {
        DiskHolder::Swap { device } => verb("swap off", device),
        DiskHolder::Array { device } => verb("stop", device),
        DiskHolder::Mapping { device } => verb("remove", device),
        DiskHolder::Volume { name, .. } => format!("deactivate {}", strip_dev(name)),
        DiskHolder::Bcache { device } => verb("stop", device),
    }
}

/// Operation that checks immediately before the wipe that these disks and their partitions have no holders. It fails if
/// a disk has a holder.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct AssertFree {
    pub disks: Vec<DevicePath>,
}

impl PlannedOperation for AssertFree {
    fn describe(&self, _: &DeviceSizes) -> OperationLine<'_> {
        format!("check that nothing holds {disks}", disks = join_devices(&self.disks)).into()
    }

    fn effect(&self) -> Effect<'_> {
        Effect::none()
    }
}

/// Operation that stops the arrays and mappings that were assembled on these devices only for inspection.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct StopInspectedDevices {
    pub devices: Vec<DevicePath>,
}

impl PlannedOperation for StopInspectedDevices {
    fn describe(&self, _: &DeviceSizes) -> OperationLine<'_> {
        let devices = join_devices(&self.devices);
        format!("stop the arrays and mappings on {devices} that were started for inspection").into()
    }

    fn effect(&self) -> Effect<'_> {
        Effect::none()
    }
}
