//! Operation that creates a Kubernetes volume.

use crate::operation_text::{DeviceSizes, MIB, OperationLine, join_devices, strip_dev};
use crate::{CreateVolume, Effect, MakeFilesystem, PlannedOperation};
use model::device_name::DevicePath;
use model::inventory::format_array_uuid;
use serde::Serialize;
use uuid::Uuid;

/// Operation that creates a Kubernetes volume on a blank disk, in the free space of a preserved group, or on a device
/// that this plan creates.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct CreateK8sVolume {
    pub name: String,
    pub uid: Uuid,
    /// Device of the volume: a disk, array, partition or logical volume.
    pub device: DevicePath,
    /// Logical volume that is created first, and then gets the content; `None` if the device already exists.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub create: Option<CreateVolume>,
    /// True if the device must be blank, because the layout does not list it. Immediately before the write, samples
    /// from the whole device are read again and must be zero.
    pub must_be_blank: bool,
    pub filling: InitialVolumeContent,
}

impl CreateK8sVolume {
    /// Returns the devices that a tool writes by path.
    pub fn written_devices(&self) -> Vec<&DevicePath> {
        match &self.create {
            Some(create) => create.physical.iter().collect(),
            None => vec![&self.device],
        }
    }
}

impl PlannedOperation for CreateK8sVolume {
    fn describe(&self, _: &DeviceSizes) -> OperationLine<'_> {
        describe_volume(self).into()
    }

    fn effect(&self) -> Effect<'_> {
        // The creation is not undone, because a volume is not bootable, and because the next attempt finds the volume
        // by its UUID.
        let written: Vec<DevicePath> = self.written_devices().into_iter().cloned().collect();
        Effect::opening(self.written_devices()).writing(written)
    }
}

/// Describes a new Kubernetes volume: `volume db-1: sdc if it is still blank, ext4`,
/// `volume web: vg00/web in free space of sdb1, xfs`.
fn describe_volume(volume: &CreateK8sVolume) -> String {
    let CreateK8sVolume { name, device, create, must_be_blank, filling, .. } = volume;
    let place = match create {
        Some(create) => format!(" in free space of {devices}", devices = join_devices(&create.physical)),
        None if *must_be_blank => " if it is still blank".to_owned(),
        None => String::new(),
    };
    format!("volume {name}: {}{place}, {}", strip_dev(device), describe_initial_content(filling))
}

/// Initial content of the device of a new volume. The content contains the UUID that identifies the volume, except for
/// `Nothing`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum InitialVolumeContent {
    Filesystem(MakeFilesystem),
    /// A single partition that spans the device, with the UUID and name of the volume, in a GPT with this GUID.
    Partition {
        guid: Uuid,
    },
    /// No content: an LVM block volume is identified by its LVM UUID.
    Nothing,
}

pub(crate) fn describe_initial_content(filling: &InitialVolumeContent) -> String {
    match filling {
        InitialVolumeContent::Filesystem(make) => make.format.to_string(),
        InitialVolumeContent::Partition { .. } => "GPT with one partition".to_owned(),
        InitialVolumeContent::Nothing => "uninitialized".to_owned(),
    }
}

/// Returns the size of a partition that spans a device of `bytes` bytes: the size of the device, rounded down to
/// whole MiB, minus 1 MiB at each end for the partition tables.
pub fn spanning_partition_bytes(bytes: u64) -> u64 {
    (bytes / MIB).saturating_sub(2) * MIB
}

/// Returns the link that udev creates for a partition of an array. The link contains the UUID of the array instead
/// of the GUID of the partition: mdadm's udev rules (63-md-raid-arrays.rules in versions 4.2 and 4.4) create a link
/// by GUID only for partitions with a filesystem, and udev's own rules for disks (in versions 252 and 257) ignore
/// arrays.
pub fn array_partition_link(array: Uuid, number: u32) -> String {
    format!("/dev/disk/by-id/md-uuid-{}-part{number}", format_array_uuid(array))
}

/// Returns the link that udev creates for a logical volume. It is derived from the UUIDs of the group and the volume,
/// in the notation of LVM.
pub fn logical_volume_link(group: &str, volume: &str) -> String {
    format!("/dev/disk/by-id/dm-uuid-LVM-{}{}", group.replace('-', ""), volume.replace('-', ""))
}
