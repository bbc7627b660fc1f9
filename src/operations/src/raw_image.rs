//! Operation that writes a raw image to a disk.

use crate::operation_text::{DeviceSizes, OperationLine, OperationText, strip_dev};
use crate::{DiskIdentity, Effect, PlannedOperation, UndoOperation};
use common::format::format_bytes;
use model::device_name::DevicePath;
use model::layout::FilesystemFormat;
use serde::Serialize;
use std::collections::BTreeMap;
use uuid::Uuid;

/// Operation that writes a raw image to a disk, adapts the image's partition table to the disk, and checks for the
/// filesystems that the layout expects.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct BurnDisk {
    /// Name of the image.
    pub name: String,
    pub device: DevicePath,
    /// Expected identity of the disk, verified on the open file descriptor before the first write.
    pub identity: DiskIdentity,
    /// Size of the disk, in bytes. Before the first write, the executor checks that the image fits on a disk of this
    /// size with sectors of `sector_bytes` bytes.
    pub size_bytes: u64,
    pub sector_bytes: u32,
    /// Number of the partition that is enlarged to the end of the disk.
    pub grow: Option<u32>,
    /// Filesystems that the image must contain, because the layout mounts them.
    pub filesystems: Vec<ExpectedFilesystem>,
    /// UUIDs, in lower case, that the image must not contain, because devices on preserved disks have these UUIDs. Each
    /// UUID is mapped to the device that has it.
    pub taken: BTreeMap<String, DevicePath>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub added: Option<AddedPartition>,
}

impl PlannedOperation for BurnDisk {
    fn describe(&self, _: &DeviceSizes) -> OperationLine<'_> {
        describe_raw_image(self).into()
    }

    fn effect(&self) -> Effect<'_> {
        // The undo also erases partition tables, because it is unknown which partitions are bootable.
        Effect::none().undone_by([UndoOperation::WipeDeviceEnds(self.device.clone())])
    }
}

fn describe_raw_image(burn: &BurnDisk) -> OperationText {
    let held_back = "its first MiB is written last, after the digest is verified".to_owned();
    // Images that Ironic or a file specifies have no name.
    let name = if burn.name.is_empty() { "disk image" } else { &burn.name };
    OperationText::after(format!("{name} onto {}{}", strip_dev(&burn.device), describe_growth(burn)))
        .with(std::iter::once(held_back).chain(describe_expected(burn)).chain(describe_added(burn)).collect())
}

fn describe_added(burn: &BurnDisk) -> Option<String> {
    let added = burn.added.as_ref()?;
    Some(format!(
        "partition {name} with {size} at the end of the disk",
        name = added.name,
        size = format_bytes(added.content.len() as u64)
    ))
}

pub(crate) fn describe_growth(burn: &BurnDisk) -> String {
    let number = |number: u32| strip_dev(&burn.device.partition_path(number)).to_owned();
    burn.grow.map(|grow| format!(", grow {}", number(grow))).unwrap_or_default()
}

pub(crate) fn describe_expected(burn: &BurnDisk) -> impl Iterator<Item = String> {
    burn.filesystems.iter().map(|filesystem| {
        let label = filesystem.label.as_deref().map(|label| format!(" \"{label}\"")).unwrap_or_default();
        format!("{} must be {}{label}", strip_dev(&filesystem.device), filesystem.format)
    })
}

/// Partition that is added at the end of a disk, after the partitions of a raw image, and the content of this
/// partition.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct AddedPartition {
    pub name: String,
    pub guid: Uuid,
    /// Image of the partition's filesystem, which may contain confidential data of the machine.
    #[serde(skip)]
    pub content: Vec<u8>,
}

/// A filesystem that a raw image must contain.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ExpectedFilesystem {
    pub number: u32,
    /// Device name that the kernel will assign, such as `/dev/sda2`.
    pub device: DevicePath,
    /// Mount point in the target.
    pub path: String,
    pub format: FilesystemFormat,
    /// Expected label; `None` if the layout specifies no label, in which case labels are not compared.
    pub label: Option<String>,
}
