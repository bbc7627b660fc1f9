//! Release of the holders of disks. Holders are stopped, removed or deactivated before a disk is wiped.

use crate::operation_text::{DeviceSizes, OperationLine, join_devices, strip_dev};
use crate::{Effect, PlannedOperation};
use model::device_name::DevicePath;
use serde::Serialize;

/// A holder that is released, because it is on disks that will be wiped, or because it was assembled only for
/// inspection.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Holder {
    /// Released with swapoff(2).
    Swap { device: DevicePath },
    /// Released with `mdadm --stop`.
    Array { device: DevicePath },
    /// Released with `dmsetup remove`: dm-crypt and other device-mapper targets.
    Mapping { device: DevicePath },
    /// A logical volume `GROUP/VOLUME`, also released with `dmsetup remove`.
    Volume { device: DevicePath, name: String },
    /// Released through `/sys/block/NAME/bcache/stop`.
    Bcache { device: DevicePath },
}

impl PlannedOperation for Holder {
    fn describe(&self, _: &DeviceSizes) -> OperationLine<'_> {
        describe_release(self).into()
    }

    fn effect(&self) -> Effect<'_> {
        Effect::none()
    }
}

fn describe_release(holder: &Holder) -> String {
    // One line for each holder, in order of release.
    let verb = |verb: &str, device: &DevicePath| format!("{verb} {}", strip_dev(device));
    match holder {
        Holder::Swap { device } => verb("swap off", device),
        Holder::Array { device } => verb("stop", device),
        Holder::Mapping { device } => verb("remove", device),
        Holder::Volume { name, .. } => format!("deactivate {}", strip_dev(name)),
        Holder::Bcache { device } => verb("stop", device),
    }
}

/// Checks immediately before the wipe that these disks and their partitions have no holders. Fails if a holder is left.
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

/// Stops the arrays and mappings that were assembled on these devices only for inspection.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct TakeDown {
    pub devices: Vec<DevicePath>,
}

impl PlannedOperation for TakeDown {
    fn describe(&self, _: &DeviceSizes) -> OperationLine<'_> {
        let devices = join_devices(&self.devices);
        format!("stop the arrays and mappings on {devices} that were started for inspection").into()
    }

    fn effect(&self) -> Effect<'_> {
        Effect::none()
    }
}
