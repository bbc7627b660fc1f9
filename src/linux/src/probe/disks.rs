//! Disks of this machine: their sysfs attributes and contents.

use super::device_contents::{self, ProbeTarget};
use super::device_users::DeviceUsers;
use super::sysfs::{ProbeRoots, list_names, parse_sectors, read_attribute, to_printable};
use super::{ProbeDepth, ata_identity, by_id, disk_connection};
use common::error::{Context, Error, Phase, Result};
use model::device_name::KernelName;
use model::inventory::InventoryDisk;
use std::path::Path;
use std::thread;

/// Name prefixes of block devices that are not disks: devices backed by memory, files or other disks (`zd` is a volume
/// of a zpool), and CD and floppy drives. The areas of an eMMC are recognized by [`KernelName::is_emmc_area`].
const EXCLUDED_NAME_PREFIXES: [&str; 10] = ["loop", "ram", "zram", "dm-", "md", "bcache", "drbd", "zd", "sr", "fd"];

/// SCSI peripheral type of a disk (SPC-5 table 150).
const SCSI_DISK: &str = "0";
/// SCSI peripheral type of a CD-ROM (SPC-5 table 150).
const SCSI_CDROM: &str = "5";

/// Returns all whole disks in natural order: sda, sdb, sdaa.
pub(super) fn read_disks(roots: &ProbeRoots, users: &DeviceUsers, depth: ProbeDepth) -> Result<Vec<InventoryDisk>> {
    let block = roots.sys.join("block");
    // Unlike other sysfs directories, this one must exist: without it, the machine would appear to have no disks.
    std::fs::read_dir(&block).context(Phase::Inventory, || format!("read {}", block.display()))?;
    let names = list_names(&block)?;
    // Disks are read in parallel: 24 hard disks would take a minute sequentially.
    let found: Vec<Result<Option<InventoryDisk>>> = thread::scope(|scope| {
        let readers: Vec<_> = names.iter().map(|name| scope.spawn(|| read_disk(roots, users, name, depth))).collect();
        let gone = || Error::new(Phase::Inventory, "a thread that reads a disk panicked");
        readers.into_iter().map(|reader| reader.join().unwrap_or_else(|_| Err(gone()))).collect()
    });
    let mut disks = Vec::new();
    for disk in found {
        disks.extend(disk?);
    }
    disks.sort_by(|a, b| (a.name.len(), &a.name).cmp(&(b.name.len(), &b.name)));
    if depth == ProbeDepth::Deep {
        super::erase_methods::add_erase_methods(roots, &mut disks);
    }
    Ok(disks)
}

/// Returns the probable reason why the kernel reports a capacity of 0 for a disk: the kernel's `sd_read_capacity` sets
/// the capacity to 0 if the sector size is not supported. Returns `None` for SCSI devices that are not disks, and for
/// drives with a removable medium, because the medium may be missing.
fn explain_missing_capacity(scsi_type: &str, removable: &str) -> Option<&'static str> {
    (scsi_type == SCSI_DISK && removable == "0").then_some(
        "the kernel reports a capacity of 0: the disk's sectors are probably 520 or 528 bytes, as on disks from \
         storage arrays; reformat the disk with `sg_format --format --size=512`, or remove the disk",
    )
}

/// Reads the disk with this kernel name; `None` if the device is not a disk, or has no medium, like a card reader
/// without a card.
fn read_disk(roots: &ProbeRoots, users: &DeviceUsers, name: &str, depth: ProbeDepth) -> Result<Option<InventoryDisk>> {
    let dir = roots.sys.join("block").join(name);
    let at = |attribute_name: &str| read_attribute(&dir.join(attribute_name));
    if is_other_device(&dir, name)? {
        return Ok(None);
    }
    let Some(size_bytes) = parse_sectors(&at("size")).filter(|size| *size > 0) else {
        if depth == ProbeDepth::Deep
            && let Some(reason) = explain_missing_capacity(&at("device/type"), &at("removable"))
        {
            tracing::warn!("{name} cannot be used: {reason}");
        }
        return Ok(None);
    };
    let place = dir.canonicalize().unwrap_or_else(|_| dir.clone());
    let (name, device) = (KernelName::from(name), KernelName::from(name).device_path());
    // For SATA disks, the model is taken from the identify data, which contain 40 characters of it; SCSI provides only
    // 16.
    let identity = ata_identity::read_identity(&dir);
    let mut disk = InventoryDisk {
        name,
        size_bytes,
        sector_bytes: at("queue/logical_block_size").parse().unwrap_or(512),
        model: identity.as_ref().map_or_else(|| read_model(&dir), |identity| identity.model.clone()),
        vendor: normalize_vendor(&at("device/vendor")),
        serial: read_serial(&dir),
        wwn: read_wwn(&dir),
        diskseq: at("diskseq").parse().unwrap_or_default(),
        rotational: at("queue/rotational") == "1",
        zoned: Some(at("queue/zoned")).filter(|model| model != "none").unwrap_or_default(),
        transport: disk_connection::find_transport(&roots.sys, &place).to_owned(),
        by_path: disk_connection::find_by_path(&roots.sys, &place),
        hctl: disk_connection::find_hctl(&place),
        read_only: at("ro") == "1",
        removable: at("removable") == "1",
        uses: users.find_uses(&dir, &device)?,
        device,
        ..InventoryDisk::default()
    };
    disk.by_id = by_id::list_by_id_paths(&disk, identity.as_ref(), &at("nsid"));
    if disk.transport == "nvme" {
        let names = by_id::list_other_nvme_paths(&disk.wwn, [&at("uuid"), &at("nguid"), &at("eui")]);
        disk.by_id.extend(names);
    }
    if depth == ProbeDepth::Shallow {
        return Ok(Some(disk));
    }
    add_contents(&mut disk, roots, users)?;
    Ok(Some(disk))
}

/// Returns whether the block device is not a disk.
fn is_other_device(dir: &Path, name: &str) -> Result<bool> {
    let at = |attribute_name: &str| read_attribute(&dir.join(attribute_name));
    // `hidden` marks the paths of an NVMe multipath disk (nvme0c0n1), which have no device node. The kernel lists the
    // devices below a device in `slaves`, whatever driver made the device. A disk has none.
    Ok(KernelName::from(name).is_emmc_area()
        || EXCLUDED_NAME_PREFIXES.iter().any(|prefix| name.starts_with(prefix))
        || at("hidden") == "1"
        || at("device/type") == SCSI_CDROM
        || !list_names(&dir.join("slaves"))?.is_empty())
}

/// Reads the partition table and the signatures of the disk.
fn add_contents(disk: &mut InventoryDisk, roots: &ProbeRoots, users: &DeviceUsers) -> Result<()> {
    let InventoryDisk { name, device, sector_bytes, size_bytes, .. } = &*disk;
    let target =
        ProbeTarget { name, device, sector_bytes: *sector_bytes, size_bytes: *size_bytes, may_be_cut_off: false };
    let contents = device_contents::read_contents(&target, roots, users)?;
    disk.blank = contents.blank && disk.uses.is_empty();
    disk.table = contents.table;
    disk.signatures = contents.signatures;
    disk.uses.extend(contents.uses);
    disk.unreadable = contents.unreadable;
    Ok(())
}

/// Returns the model of the disk. An eMMC provides the model as its name.
fn read_model(dir: &Path) -> String {
    let model = read_attribute(&dir.join("device/model"));
    if model.is_empty() { read_attribute(&dir.join("device/name")) } else { model }
}

/// Returns the vendor name; empty for virtio disks, which provide only a PCI vendor ID.
fn normalize_vendor(text: &str) -> String {
    if text.starts_with("0x") { String::new() } else { text.to_owned() }
}

/// Returns the serial number. For virtio, the serial number is an attribute of the disk; for NVMe, of the controller;
/// for SCSI and ATA, it is in the vital product data.
fn read_serial(dir: &Path) -> String {
    let candidates = [read_attribute(&dir.join("serial")), read_attribute(&dir.join("device/serial"))];
    let vital = || parse_unit_serial_number(&std::fs::read(dir.join("device/vpd_pg80")).unwrap_or_default());
    candidates.into_iter().find(|text| !text.is_empty()).unwrap_or_else(vital)
}

/// Returns the serial number and the world wide name of the disk with this sysfs directory, in the same format as in
/// [`InventoryDisk`]. An unknown value is empty.
pub(crate) fn read_serial_and_wwn(dir: &Path) -> (String, String) {
    (read_serial(dir), read_wwn(dir))
}

/// Parses VPD page 0x80 (SPC-5 7.7.20): a header of four bytes with the length in the last two, then the text.
fn parse_unit_serial_number(page: &[u8]) -> String {
    match page {
        [_, 0x80, high, low, rest @ ..] => {
            let length = usize::from(u16::from_be_bytes([*high, *low]));
            to_printable(rest.get(..length).unwrap_or(rest))
        }
        _ => String::new(),
    }
}

/// Returns the world wide name in the format of udev and lsblk: `0x5000c500…`, `eui.0025388…`.
fn read_wwn(dir: &Path) -> String {
    let text =
        [dir.join("wwid"), dir.join("device/wwid")].iter().map(|path| read_attribute(path)).find(|id| !id.is_empty());
    match text.unwrap_or_default() {
        id if id.starts_with("naa.") => id.replacen("naa.", "0x", 1),
        // A T10 identifier is not a registered name: it is derived from vendor, model and serial number, which are
        // already known.
        id if id.starts_with("t10.") => String::new(),
        id => id,
    }
}

#[cfg(test)]
mod tests;
