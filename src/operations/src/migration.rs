//! Operations of a migration target, which receives its data from another machine and does not unpack an
//! image.

use crate::operation_text::{DeviceSizes, OperationLine, OperationText, strip_dev};
use crate::{Effect, FinishInputs, PlannedOperation, UndoOperation};
use common::format;
use model::device_name::{DevicePath, LayoutPath};
use model::inventory::FirmwareType;
use model::layout::FilesystemFormat;
use serde::Serialize;

/// Operation that fills devices with the data of another machine.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ReceiveMigration {
    /// Id of the migration order.
    pub order: String,
    /// Id of the source machine, to which the allocation belongs until the migration is complete.
    pub machine: String,
    pub devices: Vec<ReceivedDevice>,
}

impl PlannedOperation for ReceiveMigration {
    fn describe(&self, _: &DeviceSizes) -> OperationLine<'_> {
        describe_migration(self).into()
    }

    fn effect(&self) -> Effect<'_> {
        let devices = self.devices.iter().map(|received| &received.device);
        Effect::opening(devices.clone()).undone_by(devices.cloned().map(UndoOperation::WipeDeviceEnds))
    }
}

/// Describes a migration: `received from machine m-1`, and a line for each device.
fn describe_migration(receive: &ReceiveMigration) -> OperationText {
    let below = receive.devices.iter().map(|device| {
        let preserved = if device.uuid.is_empty() { "as is".to_owned() } else { format!("UUID {} kept", device.uuid) };
        let what = if device.uuid.is_empty() { "all" } else { device.format.name() };
        format!(
            "{}: {what} of {}, {}, {preserved}",
            strip_dev(&device.device),
            device.name,
            format::format_bytes(device.size_bytes)
        )
    });
    OperationText::after(format!("received from machine {}", receive.machine)).with(below.collect())
}

/// Device that receives the content of the device with the same name on the source machine.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ReceivedDevice {
    /// Name of the device in the layout. Both machines use the same layout, so the name is the same on both.
    pub name: LayoutPath,
    pub device: DevicePath,
    pub format: FilesystemFormat,
    /// UUID of the filesystem in blkid's notation; empty if the filesystem has none.
    pub uuid: String,
    /// Size of the device on the source machine, in bytes. At most this many bytes are written.
    pub size_bytes: u64,
}

/// Operation that asks the control plane whether the migration was canceled. If the control plane does not respond, the
/// migration continues, and the control plane can still deny the final report.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct CheckMigrationCanceled {
    pub order: String,
}

impl PlannedOperation for CheckMigrationCanceled {
    fn describe(&self, _: &DeviceSizes) -> OperationLine<'_> {
        "the control plane has not canceled the migration".into()
    }

    fn effect(&self) -> Effect<'_> {
        Effect::none()
    }
}

/// Operation that makes a system from another machine bootable on this machine, without other changes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct AdaptMoved(pub Box<FinishInputs>);

impl PlannedOperation for AdaptMoved {
    fn describe(&self, _: &DeviceSizes) -> OperationLine<'_> {
        describe_migrated(&self.0).into()
    }

    fn effect(&self) -> Effect<'_> {
        Effect::none().undone_by([UndoOperation::EndProcesses])
    }
}

/// Describes how a system from another machine is made bootable.
fn describe_migrated(finishing: &FinishInputs) -> OperationText {
    let loader = match finishing.firmware {
        FirmwareType::Uefi => "keep the boot loader on its EFI system partition".to_owned(),
        FirmwareType::Bios => {
            let disks: Vec<&str> = finishing.boot_disks.iter().map(|disk| strip_dev(&disk.device)).collect();
            format!("GRUB for BIOS on {}", disks.join(", "))
        }
    };
    OperationText::after("adapted to this hardware: initramfs if needed, MAC addresses, disk names in fstab")
        .with(vec![loader])
}
