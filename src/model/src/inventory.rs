//! Hardware and disk contents of a machine, collected by `probe`. Serialized as the JSON of `drophammer inventory`,
//! which `drophammer plan` reads.

mod array;
mod firmware_variables;
mod hardware;
mod inspection_failures;
#[cfg(any(test, feature = "testing"))]
pub mod large_inventories;
mod limits;
pub mod lldp;
mod marker_limits;
mod sanity_checks;
mod spanning_component;
#[cfg(test)]
mod tests;
mod uninspected_objects;
mod unique_disk_identifiers;
mod volume_group;

pub use array::{ArrayMember, MdArray, MemberRole, format_array_uuid};
pub use firmware_variables::{
    FirmwareLoadOption, FirmwareVariables, GLOBAL_VENDOR, LoadOptionClass, LoadTarget, OtherFirmwareVariable,
    VariablePurpose,
};
pub use hardware::{Cpu, FirmwareType, Nic, SystemInfo};
pub use inspection_failures::{InspectionFailure, InspectionTarget, UnassignedDevices};
pub use marker_limits::MARKER_BYTES;
pub use spanning_component::{BTRFS_SEED, ComponentRole, SpanningComponent, XFS_LOG, XFS_REALTIME};
pub use uninspected_objects::{OpaqueKind, OpaqueObject};
pub use unique_disk_identifiers::{ComparableDiskIndex, UniqueIdentifiers};
pub use volume_group::{
    FreeSpace, GroupAllocation, HAS_SNAPSHOT, LvmHiddenVolume, LvmLogicalVolume, LvmPhysicalVolume, LvmVolumeGroup,
    SHARED_GROUP, VolumeHealth, VolumeRange, is_raid1_part,
};

use crate::device_name::by_path_spellings::is_same_by_path;
use crate::device_name::{DevicePath, KernelName};
use crate::disk_identifiers::names_placeholder;
use crate::install_marker::InstallMarker;
use serde::{Deserialize, Deserializer, Serialize};
use std::collections::BTreeSet;
use uuid::Uuid;

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Inventory {
    pub system: SystemInfo,
    pub cpus: Vec<Cpu>,
    pub memory_bytes: u64,
    pub nics: Vec<Nic>,
    /// Whole disks, without the hardware areas of an eMMC, which the kernel also shows as disks.
    #[serde(deserialize_with = "read_disks")]
    pub disks: Vec<InventoryDisk>,
    /// Running block devices on top of other block devices, such as arrays and logical volumes.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub stacked: Vec<StackedDevice>,
    /// md arrays as described by the superblocks of their members, whether running or not.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub arrays: Vec<MdArray>,
    /// LVM volume groups as described by their metadata, whether active or not.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub groups: Vec<LvmVolumeGroup>,
    /// Array members and physical volumes that could not be assigned to an array or group.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub unknown: Vec<UnassignedDevices>,
    /// Components of objects that span several devices, such as a btrfs filesystem on several disks. Objects that mdadm
    /// or lvm reports are not listed here.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub parts: Vec<SpanningComponent>,
    /// Filesystems whose contents were inspected: those that were already mounted, and those that the agent mounted
    /// read-only for the inspection.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub filesystems: Vec<FilesystemContents>,
    /// Failed attempts of the agent to start or mount an object for inspection. The list is empty if no attempt failed,
    /// or if no attempt was made.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub failed: Vec<InspectionFailure>,
    /// Boot variables of UEFI firmware; `None` for BIOS, and in inventories of earlier versions.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub firmware_variables: Option<FirmwareVariables>,
    /// True if the agent assembled and mounted all objects that can be inspected without writing. If this is false, the
    /// inventory lacks the contents of inactive arrays, of inactive groups, and of unmounted filesystems.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub explored: bool,
}

fn read_disks<'de, D: Deserializer<'de>>(text: D) -> Result<Vec<InventoryDisk>, D::Error> {
    let mut disks = Vec::<InventoryDisk>::deserialize(text)?;
    disks.retain(|disk| !disk.name.is_emmc_area());
    Ok(disks)
}

/// Prefix of the names of the agent's overlay mappings, which redirect writes to memory.
pub const OVERLAY: &str = "drophammer-overlay-";

/// Contents of a filesystem that was inspected.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct FilesystemContents {
    /// Device path, spelled as in the entry of the disk, partition or stacked device: `/dev/sda2`, `/dev/md127`.
    pub device: DevicePath,
    pub size_bytes: u64,
    pub used_bytes: u64,
    /// Install marker, if this is the root filesystem of an installation.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub marker: Option<InstallMarker>,
    /// Reason why an existing install marker cannot be read.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unreadable_marker: Option<String>,
    /// Text of `/etc/fstab`, if this is the root filesystem of an installation.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fstab: Option<String>,
    /// Backing files of sparse Kubernetes volumes.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub sparse: Vec<SparseFile>,
}

/// Backing file of a sparse Kubernetes volume. The name of the file is the UUID of the volume.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SparseFile {
    pub uid: Uuid,
    pub size_bytes: u64,
}

/// Whole disk.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct InventoryDisk {
    /// Kernel name: `sda`, `nvme0n1`.
    pub name: KernelName,
    /// Device path, `/dev/NAME`.
    pub device: DevicePath,
    pub size_bytes: u64,
    /// Logical sector size in bytes, 512 or 4096. Logical block addresses are counted in sectors of this size.
    pub sector_bytes: u32,
    #[serde(default)]
    pub model: String,
    #[serde(default)]
    pub vendor: String,
    #[serde(default)]
    pub serial: String,
    #[serde(default)]
    pub wwn: String,
    /// Sequence number (`diskseq`) that the kernel assigns to a disk when it detects the disk; unique within a boot; 0
    /// if unknown.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub diskseq: u64,
    #[serde(default)]
    pub rotational: bool,
    /// Zone model of the kernel: `host-aware` or `host-managed`; empty for disks without zones.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub zoned: String,
    /// Transport: `sata`, `sas`, `nvme`, `virtio`, `usb`, …; empty if unknown.
    #[serde(default)]
    pub transport: String,
    /// Link `/dev/disk/by-path/…` that udev would create; empty if unknown.
    #[serde(default)]
    pub by_path: String,
    /// All links `/dev/disk/by-id/…` that udev would create for the disk.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub by_id: Vec<String>,
    /// SCSI address, HOST:CHANNEL:TARGET:LUN; empty for disks other than SCSI and ATA.
    #[serde(default)]
    pub hctl: String,
    /// Methods that can erase the whole disk, best first. [`EraseMethod::WriteZeroes`] and
    /// [`EraseMethod::Ends`] are omitted, because every disk supports them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub erase: Vec<EraseMethod>,
    #[serde(default)]
    pub read_only: bool,
    #[serde(default)]
    pub removable: bool,
    #[serde(default)]
    pub table: Option<DiskTable>,
    /// Signatures on the whole disk, except the signature of the partition table.
    #[serde(default)]
    pub signatures: Vec<DeviceSignature>,
    /// Current uses of the disk itself, not of its partitions.
    #[serde(default)]
    pub uses: Vec<DeviceUse>,
    /// Reason why the contents of the disk are not completely known, such as a read error or a signature with a wrong
    /// checksum. If a reason is set, the disk may have tables and signatures that are not listed, and must not be
    /// treated as blank.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unreadable: Option<String>,
    /// True if the device is blank: no content was recognized on it, and samples from the whole device contain only
    /// zeros.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub blank: bool,
}

/// Partition table that was found on the disk.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct DiskTable {
    /// Type of the table, named as in libblkid: `gpt` or `dos`.
    pub kind: String,
    /// Disk GUID, for GPT.
    #[serde(default)]
    pub guid: Option<Uuid>,
    pub partitions: Vec<DiskPartition>,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct DiskPartition {
    pub number: u32,
    /// Device path, such as `/dev/sda1`.
    pub device: DevicePath,
    pub start_bytes: u64,
    pub size_bytes: u64,
    /// Partition type: a GUID in a GPT, or a number such as `0x83` in a DOS table.
    #[serde(default)]
    pub kind: String,
    /// Unique partition GUID (PARTUUID).
    #[serde(default)]
    pub guid: Option<Uuid>,
    #[serde(default)]
    pub label: String,
    #[serde(default)]
    pub signatures: Vec<DeviceSignature>,
    #[serde(default)]
    pub uses: Vec<DeviceUse>,
    /// True if the partition is blank, as defined by [`InventoryDisk::blank`].
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub blank: bool,
}

/// Running block device on top of other block devices according to sysfs: md array, device-mapper device, bcache.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct StackedDevice {
    /// Kernel name: `md127`, `dm-0`.
    pub name: KernelName,
    /// Device path: `/dev/md127`, `/dev/mapper/vg00-varlib`.
    pub device: DevicePath,
    pub kind: StackedDeviceKind,
    /// Underlying devices: disks, partitions, other stacked devices.
    pub below: Vec<KernelName>,
    pub size_bytes: u64,
    #[serde(default)]
    pub table: Option<DiskTable>,
    #[serde(default)]
    pub signatures: Vec<DeviceSignature>,
    #[serde(default)]
    pub uses: Vec<DeviceUse>,
    /// True if the agent assembled the device for inspection. If this is false, the device was already running.
    #[serde(default)]
    pub assembled: bool,
    /// Reason why the contents of the device are not completely known, as in [`InventoryDisk::unreadable`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unreadable: Option<String>,
    /// True if the device is blank, as defined by [`InventoryDisk::blank`].
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub blank: bool,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum StackedDeviceKind {
    /// md array. Inactive arrays are included, because the kernel also reserves the members of inactive
    /// arrays.
    Array,
    /// LVM logical volume, or a hidden subvolume of a logical volume.
    Volume,
    /// dm-crypt mapping.
    Crypt,
    Bcache,
    #[default]
    Other,
}

/// Method of making data on a disk unreadable. All methods except [`EraseMethod::Ends`] cover the whole disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum EraseMethod {
    NvmeSanitizeCrypto,
    NvmeSanitizeBlock,
    /// NVMe Format with secure erase setting 2, which discards the encryption key.
    NvmeFormatCrypto,
    /// NVMe Format with secure erase setting 1, which erases all user data.
    NvmeFormat,
    AtaEnhancedErase,
    AtaErase,
    /// Discard of the whole disk. The disk is then read back and must contain zeros.
    Discard,
    /// Zeros written to the whole disk. If the disk has a command for writing zeros, the kernel uses it.
    WriteZeroes,
    /// Zeros written only to the locations of signatures.
    Ends,
}

/// Signature that libblkid recognizes, such as that of a filesystem, a RAID member or a physical volume.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeviceSignature {
    /// Type as reported by libblkid (TYPE): `ext4`, `vfat`, `linux_raid_member`, `LVM2_member`, `swap`.
    pub kind: String,
    /// Usage as reported by libblkid (USAGE): `filesystem`, `raid`, `crypto`, `other`.
    #[serde(default)]
    pub usage: String,
    #[serde(default)]
    pub label: String,
    #[serde(default)]
    pub uuid: String,
}

/// Current use of a device.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum DeviceUse {
    /// The device is mounted at this mount point.
    Mounted(String),
    Swap,
    /// The device is held by this other block device (`/sys/block/*/holders`), such as `md127` or `dm-0`.
    Holder(KernelName),
}

impl std::fmt::Display for DeviceUse {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            DeviceUse::Mounted(path) => write!(f, "mounted at {path}"),
            DeviceUse::Swap => f.write_str("active swap"),
            DeviceUse::Holder(name) => write!(f, "held by {name}"),
        }
    }
}

#[allow(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
fn is_zero(number: &u64) -> bool {
    *number == 0
}

impl Inventory {
    /// Returns the disk with this path (`/dev/sda`, `/dev/disk/by-path/…`, `/dev/disk/by-id/…`). Returns `None` if no
    /// disk has this path, or if several disks have it, such as cheap USB sticks with the same serial number.
    pub fn find_disk(&self, device: &str) -> Option<&InventoryDisk> {
        let mut found = self.disks.iter().filter(|disk| disk.has_path(device));
        found.next().filter(|_| found.next().is_none())
    }

    /// Returns the reason why the last attempt to inspect this object failed; `None` if the attempt succeeded or no
    /// attempt was made.
    pub fn find_failure(&self, tried: &InspectionTarget) -> Option<&str> {
        self.failed.iter().rfind(|failed| failed.tried == *tried).map(|failed| failed.why.as_str())
    }

    /// Returns the kernel name of a device of this inventory: `dm-0` for `/dev/mapper/vg00-root`.
    pub fn resolve_kernel_name(&self, device: &DevicePath) -> KernelName {
        let stacked = self.stacked.iter().find(|stacked| stacked.device == *device);
        stacked.map_or_else(|| device.kernel_name(), |stacked| stacked.name.clone())
    }

    /// Returns the partitions inside logical volumes, such as those of a virtual machine's disk. Such partitions do
    /// not have device nodes, so no tool can read them. Their contents belong to the virtual machine.
    pub fn partitions_inside_volumes(&self) -> BTreeSet<&DevicePath> {
        use StackedDeviceKind::{Crypt, Other, Volume};
        let volumes = self.stacked.iter().filter(|stacked| matches!(stacked.kind, Volume | Crypt | Other));
        let parts = volumes.flat_map(|stacked| stacked.table.iter().flat_map(|table| &table.partitions));
        // Partitions that kpartx has mapped have device nodes, and are listed as stacked devices.
        let stacked: BTreeSet<&DevicePath> = self.stacked.iter().map(|stacked| &stacked.device).collect();
        parts.map(|part| &part.device).filter(|device| !stacked.contains(device)).collect()
    }

    /// Returns the paths of all disks, partitions and stacked devices with a signature of one of these types.
    pub fn devices_with_signature(&self, kinds: &[&str]) -> Vec<&DevicePath> {
        let has = |signatures: &[DeviceSignature]| signatures.iter().any(|found| kinds.contains(&found.kind.as_str()));
        self.all_signatures().filter(|(_, signatures)| has(signatures)).map(|(device, _)| device).collect()
    }

    /// Returns the path and the signatures of each disk, partition and stacked device.
    pub fn all_signatures(&self) -> impl Iterator<Item = (&DevicePath, &[DeviceSignature])> {
        let disks = self.disks.iter().map(|disk| (&disk.device, &disk.signatures, &disk.table));
        let stacked = self.stacked.iter().map(|stacked| (&stacked.device, &stacked.signatures, &stacked.table));
        disks.chain(stacked).flat_map(|(device, signatures, table)| {
            let partitions = table.iter().flat_map(|table| &table.partitions);
            let partitions = partitions.map(|part| (&part.device, part.signatures.as_slice()));
            std::iter::once((device, signatures.as_slice())).chain(partitions)
        })
    }
}

impl StackedDevice {
    /// Returns whether the device is an overlay of the agent. An overlay prevents writes to the underlying device.
    pub fn is_overlay(&self) -> bool {
        self.device.as_str().strip_prefix("/dev/mapper/").is_some_and(|name| name.starts_with(OVERLAY))
    }
}

impl InventoryDisk {
    /// Returns whether the disk has this path. A link that is derived from a placeholder matches no disk.
    pub fn has_path(&self, device: &str) -> bool {
        self.device == device
            || (device.starts_with("/dev/disk/by-path/") && is_same_by_path(&self.by_path, device))
            || (self.by_id.iter().any(|name| name == device) && !names_placeholder(device))
    }
}
