//! What is there, as data. Serialised it is the JSON of `drophammer inventory`, which `drophammer plan` reads back.

use serde::{Deserialize, Serialize};
use uuid::Uuid;

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Inventory {
    pub system: System,
    pub cpus: Vec<Cpu>,
    pub memory_bytes: u64,
    pub nics: Vec<Nic>,
    pub disks: Vec<Disk>,
}

/// The machine itself, from SMBIOS (`/sys/class/dmi/id`).
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct System {
    /// SMBIOS UUID, lower case; empty when the firmware gives none.
    pub uuid: String,
    #[serde(default)]
    pub vendor: String,
    #[serde(default)]
    pub product: String,
    #[serde(default)]
    pub serial: String,
    #[serde(default)]
    pub bios_vendor: String,
    #[serde(default)]
    pub bios_version: String,
    #[serde(default)]
    pub bios_date: String,
    pub firmware: Firmware,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Firmware {
    #[default]
    Bios,
    Uefi,
}

/// One socket.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Cpu {
    pub vendor: String,
    pub model: String,
    pub cores: u32,
    pub threads: u32,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Nic {
    pub name: String,
    pub mac: String,
    #[serde(default)]
    pub driver: String,
    /// Is there a carrier?
    #[serde(default)]
    pub link: bool,
}

/// A whole disk.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Disk {
    /// Kernel name: `sda`, `nvme0n1`.
    pub name: String,
    /// `/dev/NAME`.
    pub device: String,
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
    #[serde(default)]
    pub rotational: bool,
    /// `sata`, `sas`, `nvme`, `virtio`, `usb`, …; empty when unknown.
    #[serde(default)]
    pub transport: String,
    /// `/dev/disk/by-path/…` as udev would name it; empty when unknown.
    #[serde(default)]
    pub by_path: String,
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
    pub device: String,
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
    Holder(String),
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

impl Inventory {
    /// The disk of that device path (`/dev/sda`, `/dev/disk/by-path/…`).
    pub fn disk(&self, device: &str) -> Option<&Disk> {
        self.disks.iter().find(|disk| disk.device == device || (!disk.by_path.is_empty() && disk.by_path == device))
    }
}
