//! What is there, as data that `survey` reads. Serialised it is the JSON of `drophammer inventory`, which `drophammer plan` reads back.

mod array;
#[cfg(test)]
pub mod crowded;
mod firmware;
mod group;
mod hardware;
mod identifiers;
mod impossible;
mod limits;
pub mod lldp;
mod markers;
mod opaque;
mod part;
#[cfg(test)]
mod tests;
mod unclear;

pub use array::{Array, ArrayMember, MemberRole, array_uuid_text};
pub use firmware::{
    FirmwareLoadOption, FirmwareVariables, GLOBAL_VENDOR, LoadOptionClass, LoadTarget, OtherVariable, VariablePurpose,
};
pub use group::{FreeSpace, GroupAllocation, HAS_SNAPSHOT, Health, LogicalVolume, PhysicalVolume, VolumeGroup};
pub use hardware::{Cpu, Firmware, Nic, System};
pub use identifiers::{ComparableDisks, OwnIdentifiers};
pub use markers::MARKER_BYTES;
pub use opaque::{OpaqueKind, OpaqueObject};
pub use part::{Part, Role, XFS_LOG, XFS_REALTIME};
pub use unclear::{Failed, Tried, Unknown};

use crate::device::identifiers::names_placeholder;
use crate::device::{DevicePath, KernelName};
use crate::marker::Marker;
use crate::order::Gather;
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;
use uuid::Uuid;

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Inventory {
    pub system: System,
    pub cpus: Vec<Cpu>,
    pub memory_bytes: u64,
    pub nics: Vec<Nic>,
    pub disks: Vec<Disk>,
    /// Block devices made of others that are running now.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub stacked: Vec<Stacked>,
    /// md arrays by what their members say, running or not.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub arrays: Vec<Array>,
    /// LVM volume groups by what their physical volumes say, active or not.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub groups: Vec<VolumeGroup>,
    /// Members of arrays and physical volumes that belong to something, and nobody could tell to what.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub unknown: Vec<Unknown>,
    /// Devices that are parts of something on several, and that neither mdadm nor lvm tells of.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub parts: Vec<Part>,
    /// Filesystems whose inside was seen, because they are mounted or were mounted read-only to look.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub filesystems: Vec<Filesystem>,
    /// What the agent tried to start or to mount, to look inside, and could not. Empty where nothing was tried.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub failed: Vec<Failed>,
    /// Boot variables of a UEFI firmware; none of a BIOS, and in inventories of earlier versions.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub firmware_variables: Option<FirmwareVariables>,
    /// Whether everything that can be shown without a write was assembled and mounted before this was read. An inventory without it
    /// does not contain what inactive arrays, groups and unmounted filesystems hold.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub explored: bool,
}

/// How the names begin of mappings that the agent puts over devices so that nothing is written to these.
pub const OVERLAY: &str = "drophammer-overlay-";

/// What the inside of a filesystem tells.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Filesystem {
    /// `/dev/sda2`, `/dev/md127`, `/dev/mapper/vg00-varlib`: as the disk, partition or stacked device spells it.
    pub device: DevicePath,
    pub size_bytes: u64,
    pub used_bytes: u64,
    /// Of the installation whose root this is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub marker: Option<Marker>,
    /// Reason why the file of the marker exists and cannot be read.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unreadable_marker: Option<String>,
    /// Files of sparse volumes of Kubernetes.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub sparse: Vec<SparseFile>,
}

/// The file of a sparse volume, which is called by its UUID.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SparseFile {
    pub uid: Uuid,
    pub size_bytes: u64,
}

/// A whole disk.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Disk {
    /// `sda`, `nvme0n1`.
    pub name: KernelName,
    /// `/dev/NAME`.
    pub device: DevicePath,
    pub size_bytes: u64,
    /// Logical sector, 512 or 4096: the unit of LBAs.
    pub sector_bytes: u32,
    #[serde(default)]
    pub model: String,
    #[serde(default)]
    pub vendor: String,
    #[serde(default)]
    pub serial: String,
    #[serde(default)]
    pub wwn: String,
    /// The kernel's count of disks: no two that are ever shown have the same, whatever their names; 0 when it is not known.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub diskseq: u64,
    #[serde(default)]
    pub rotational: bool,
    /// `sata`, `sas`, `nvme`, `virtio`, `usb`, …; empty when unknown.
    #[serde(default)]
    pub transport: String,
    /// `/dev/disk/by-path/…` as udev would name it; empty when unknown.
    #[serde(default)]
    pub by_path: String,
    /// `/dev/disk/by-id/…`, all that udev would make.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub by_id: Vec<String>,
    /// SCSI host:channel:target:lun; empty for what is not SCSI or ATA.
    #[serde(default)]
    pub hctl: String,
    /// How all of it can be erased, the best first. What every disk can, [`EraseMethod::WriteZeroes`] and
    /// [`EraseMethod::Ends`], is not listed.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub erase: Vec<EraseMethod>,
    #[serde(default)]
    pub read_only: bool,
    #[serde(default)]
    pub removable: bool,
    #[serde(default)]
    pub table: Option<Table>,
    /// Signatures on the whole disk, the partition table left out.
    #[serde(default)]
    pub signatures: Vec<Signature>,
    /// Who uses the whole disk now.
    #[serde(default)]
    pub uses: Vec<Use>,
    /// Why not all that is on the disk is known: a read error, a signature with a wrong checksum. Then the absence of
    /// a table or signature proves nothing, and the disk must not be taken for blank.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unreadable: Option<String>,
    /// Nothing is known on it, and samples from all over it are zero.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub blank: bool,
}

/// A partition table as it is on the disk.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Table {
    /// `gpt` or `dos`, as libblkid names it.
    pub kind: String,
    /// Disk GUID, for GPT.
    #[serde(default)]
    pub guid: Option<Uuid>,
    pub partitions: Vec<Partition>,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Partition {
    pub number: u32,
    /// `/dev/sda1`.
    pub device: DevicePath,
    pub start_bytes: u64,
    pub size_bytes: u64,
    /// Partition type: GUID for GPT, `0x83` for DOS.
    #[serde(default)]
    pub kind: String,
    /// PARTUUID.
    #[serde(default)]
    pub guid: Option<Uuid>,
    #[serde(default)]
    pub label: String,
    #[serde(default)]
    pub signatures: Vec<Signature>,
    #[serde(default)]
    pub uses: Vec<Use>,
    /// As [`Disk::blank`].
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub blank: bool,
}

/// A running block device that is made of others, as sysfs shows it: md array, device-mapper device, bcache.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Stacked {
    /// `md127`, `dm-0`.
    pub name: KernelName,
    /// `/dev/md127`, `/dev/mapper/vg00-varlib`.
    pub device: DevicePath,
    pub kind: StackedKind,
    /// What it lies on: disks, partitions, other stacked devices.
    pub below: Vec<KernelName>,
    pub size_bytes: u64,
    #[serde(default)]
    pub table: Option<Table>,
    #[serde(default)]
    pub signatures: Vec<Signature>,
    #[serde(default)]
    pub uses: Vec<Use>,
    /// It was not running before the agent assembled what it found, to see what is on it.
    #[serde(default)]
    pub assembled: bool,
    /// As [`Disk::blank`].
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub blank: bool,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum StackedKind {
    /// md; inactive ones too, which hold their members all the same.
    Array,
    /// A logical volume of LVM, or a hidden part of one.
    Volume,
    /// dm-crypt.
    Crypt,
    Bcache,
    #[default]
    Other,
}

/// A way to make all of a disk unreadable or zero.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum EraseMethod {
    NvmeSanitizeCrypto,
    NvmeSanitizeBlock,
    /// Format NVM with secure erase setting 2: the key is thrown away.
    NvmeFormatCrypto,
    /// Format NVM with secure erase setting 1.
    NvmeFormat,
    AtaEnhancedErase,
    AtaErase,
    /// Discard all, and prove by reading that it gave zeros.
    Discard,
    /// Zeros over all of it, by the disk itself where it can.
    WriteZeroes,
    /// Zeros where signatures live, and nothing else.
    Ends,
}

/// Something that libblkid recognises: a filesystem, a RAID member, a physical volume.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Signature {
    /// libblkid's TYPE: `ext4`, `vfat`, `linux_raid_member`, `LVM2_member`, `swap`.
    pub kind: String,
    /// libblkid's USAGE: `filesystem`, `raid`, `crypto`, `other`.
    #[serde(default)]
    pub usage: String,
    #[serde(default)]
    pub label: String,
    #[serde(default)]
    pub uuid: String,
}

/// Who holds a device at this moment.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Use {
    /// Mounted at this path.
    Mounted(String),
    Swap,
    /// Held by another block device (`/sys/block/*/holders`): `md127`, `dm-0`.
    Holder(KernelName),
}

impl std::fmt::Display for Use {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Use::Mounted(path) => write!(f, "mounted at {path}"),
            Use::Swap => f.write_str("active swap"),
            Use::Holder(name) => write!(f, "held by {name}"),
        }
    }
}

#[allow(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
fn is_zero(number: &u64) -> bool {
    *number == 0
}

impl Inventory {
    /// The disk of that device path (`/dev/sda`, `/dev/disk/by-path/…`, `/dev/disk/by-id/…`). None as well when two
    /// disks answer to the same name, as cheap USB sticks with one serial number do.
    pub fn disk(&self, device: &str) -> Option<&Disk> {
        let mut found = self.disks.iter().filter(|disk| disk.is(device));
        found.next().filter(|_| found.next().is_none())
    }

    /// Why that does not come up, by the last of several tries; none when it does, or when nobody tried.
    pub fn failure(&self, tried: &Tried) -> Option<&str> {
        self.failed.iter().rfind(|failed| failed.tried == *tried).map(|failed| failed.why.as_str())
    }

    /// The kernel's name of a device path of this inventory: `/dev/mapper/vg00-root` → `dm-0`.
    pub fn kernel_name(&self, device: &DevicePath) -> KernelName {
        let stacked = self.stacked.iter().find(|stacked| stacked.device == *device);
        stacked.map_or_else(|| device.kernel_name(), |stacked| stacked.name.clone())
    }

    /// Returns the partitions inside volumes, as virtual machines' disks have them. They have no devices of their own, so that no tool
    /// can read them, and what they belong to is the business of that machine.
    pub fn inside_devices(&self) -> BTreeSet<&DevicePath> {
        use StackedKind::{Crypt, Other, Volume};
        let volumes = self.stacked.iter().filter(|stacked| matches!(stacked.kind, Volume | Crypt | Other));
        let parts = volumes.flat_map(|stacked| stacked.table.iter().flat_map(|table| &table.partitions));
        // kpartx makes devices of them.
        let stacked: BTreeSet<&DevicePath> = self.stacked.iter().map(|stacked| &stacked.device).gather();
        parts.map(|part| &part.device).filter(|device| !stacked.contains(device)).gather()
    }

    /// Paths of all disks, partitions and stacked devices with a signature of one of these kinds.
    pub fn devices_with(&self, kinds: &[&str]) -> Vec<&DevicePath> {
        let has = |signatures: &[Signature]| signatures.iter().any(|found| kinds.contains(&found.kind.as_str()));
        self.all_signatures().filter(|(_, signatures)| has(signatures)).map(|(device, _)| device).collect()
    }

    /// What is on each disk, partition and stacked device, by its path.
    pub fn all_signatures(&self) -> impl Iterator<Item = (&DevicePath, &[Signature])> {
        let disks = self.disks.iter().map(|disk| (&disk.device, &disk.signatures, &disk.table));
        let stacked = self.stacked.iter().map(|stacked| (&stacked.device, &stacked.signatures, &stacked.table));
        disks.chain(stacked).flat_map(|(device, signatures, table)| {
            let partitions = table.iter().flat_map(|table| &table.partitions);
            let partitions = partitions.map(|part| (&part.device, part.signatures.as_slice()));
            std::iter::once((device, signatures.as_slice())).chain(partitions)
        })
    }
}

impl Stacked {
    /// Did the agent put it over another device, so that nothing is written to that one?
    pub fn is_overlay(&self) -> bool {
        self.device.as_str().strip_prefix("/dev/mapper/").is_some_and(|name| name.starts_with(OVERLAY))
    }
}

impl Disk {
    /// Returns whether the disk has this path. A link that is made of a placeholder names no disk.
    pub fn is(&self, device: &str) -> bool {
        self.device == device
            || (!self.by_path.is_empty() && self.by_path == device)
            || (self.by_id.iter().any(|name| name == device) && !names_placeholder(device))
    }
}
