//! The disks of this machine: what sysfs says about each, and what is on it.

use super::holders::Users;
use super::signatures::{Area, FoundPartition, FoundTable, Probe};
use super::{Disk, Partition, Roots, Signature, Table, Use, attribute, names, paths, printable};
use crate::error::{Context, Phase, Result};
use std::io;
use std::path::{Path, PathBuf};

/// Block devices that are no disks to install on: made of memory, files or other disks, and drives for CDs and floppies.
const NOT_DISKS: [&str; 7] = ["loop", "ram", "zram", "dm-", "md", "sr", "fd"];

/// SCSI peripheral type of a CD-ROM (SPC-5 table 150).
const SCSI_CDROM: &str = "5";

/// sysfs gives sizes and places of disks and partitions in these, whatever the disk's sector size is
/// (Documentation/ABI/stable/sysfs-block).
const SYSFS_UNIT_BYTES: u64 = 512;

/// All whole disks, sda before sdb before sdaa.
pub(super) fn read(roots: &Roots) -> Result<Vec<Disk>> {
    let block = roots.sys.join("block");
    let users = Users::read(roots)?;
    // Unlike other directories of sysfs this one must be there: no disks at all would look like an empty machine.
    std::fs::read_dir(&block).context(Phase::Inventory, || format!("read the directory {}", block.display()))?;
    let mut disks = Vec::new();
    for name in names(&block)? {
        if let Some(disk) = read_disk(roots, &users, &name)? {
            disks.push(disk);
        }
    }
    disks.sort_by(|a, b| (a.name.len(), &a.name).cmp(&(b.name.len(), &b.name)));
    Ok(disks)
}

/// One disk; none when it is not a disk, or empty as a card reader without a card.
fn read_disk(roots: &Roots, users: &Users, name: &str) -> Result<Option<Disk>> {
    let dir = roots.sys.join("block").join(name);
    let at = |attribute_name: &str| attribute(&dir.join(attribute_name));
    // `hidden` are the single paths below an NVMe multipath disk (nvme0c0n1): they have no device node.
    if NOT_DISKS.iter().any(|prefix| name.starts_with(prefix)) || at("hidden") == "1" || at("device/type") == SCSI_CDROM
    {
        return Ok(None);
    }
    let Some(size_bytes) = units(&at("size")).filter(|size| *size > 0) else {
        return Ok(None);
    };
    let place = dir.canonicalize().unwrap_or_else(|_| dir.clone());
    let device = device_path(name);
    let mut disk = Disk {
        name: name.to_owned(),
        size_bytes,
        sector_bytes: at("queue/logical_block_size").parse().unwrap_or(512),
        model: at("device/model"),
        vendor: vendor(&at("device/vendor")),
        serial: serial(&dir),
        wwn: wwn(&dir),
        rotational: at("queue/rotational") == "1",
        transport: paths::transport(&roots.sys, &place).to_owned(),
        by_path: paths::by_path(&roots.sys, &place),
        read_only: at("ro") == "1",
        removable: at("removable") == "1",
        uses: users.of(&dir, &device)?,
        device,
        ..Disk::default()
    };
    let kernel = kernel_partitions(&dir, users)?;
    add_contents(&mut disk, kernel, roots);
    Ok(Some(disk))
}

/// A count of 512-byte units in bytes.
fn units(text: &str) -> Option<u64> {
    text.parse::<u64>().ok()?.checked_mul(SYSFS_UNIT_BYTES)
}

/// sysfs writes the slash of names like `cciss/c0d0` as an exclamation mark.
fn device_path(name: &str) -> String {
    format!("/dev/{}", name.replace('!', "/"))
}

/// virtio gives the number of a PCI vendor where SCSI gives a name.
fn vendor(text: &str) -> String {
    if text.starts_with("0x") { String::new() } else { text.to_owned() }
}

/// The serial number: virtio gives it on the disk, NVMe on the controller, SCSI and ATA in vital product data.
fn serial(dir: &Path) -> String {
    let candidates = [attribute(&dir.join("serial")), attribute(&dir.join("device/serial"))];
    let vital = || unit_serial_number(&std::fs::read(dir.join("device/vpd_pg80")).unwrap_or_default());
    candidates.into_iter().find(|text| !text.is_empty()).unwrap_or_else(vital)
}

/// VPD page 0x80 (SPC-5 7.7.20): four bytes of header with the length in the last two, then the text.
fn unit_serial_number(page: &[u8]) -> String {
    match page {
        [_, 0x80, high, low, rest @ ..] => {
            let length = usize::from(u16::from_be_bytes([*high, *low]));
            printable(rest.get(..length).unwrap_or(rest))
        }
        _ => String::new(),
    }
}

/// The world wide name as udev and lsblk spell it: `0x5000c500…`, `eui.0025388…`.
fn wwn(dir: &Path) -> String {
    let text = [dir.join("wwid"), dir.join("device/wwid")].iter().map(|path| attribute(path)).find(|id| !id.is_empty());
    match text.unwrap_or_default() {
        id if id.starts_with("naa.") => id.replacen("naa.", "0x", 1),
        // Made of vendor, model and serial number, which are given already: nobody registered it world wide.
        id if id.starts_with("t10.") => String::new(),
        id => id,
    }
}

/// A partition as the kernel has it now.
struct KernelPartition {
    name: String,
    number: u32,
    start_bytes: u64,
    size_bytes: u64,
    uses: Vec<Use>,
}

impl KernelPartition {
    /// Is this what the table on the disk says? The kernel gives an extended partition two sectors only, for the
    /// boot loader (block/partitions/msdos.c).
    fn is(&self, found: &FoundPartition) -> bool {
        self.number == found.number
            && self.start_bytes == found.start_bytes
            && (self.size_bytes == found.size_bytes || found.extended)
    }
}

fn kernel_partitions(disk: &Path, users: &Users) -> Result<Vec<KernelPartition>> {
    let mut partitions = Vec::new();
    for name in names(disk)? {
        let dir = disk.join(&name);
        let at = |attribute_name: &str| attribute(&dir.join(attribute_name));
        let Ok(number) = at("partition").parse() else { continue };
        let (Some(start_bytes), Some(size_bytes)) = (units(&at("start")), units(&at("size"))) else { continue };
        let uses = users.of(&dir, &device_path(&name))?;
        partitions.push(KernelPartition { name, number, start_bytes, size_bytes, uses });
    }
    Ok(partitions)
}

/// Table and signatures. Whatever cannot be read is named in `disk.unreadable`; the rest is told all the same.
fn add_contents(disk: &mut Disk, mut kernel: Vec<KernelPartition>, roots: &Roots) {
    let mut doubts = Vec::new();
    let node = node(roots, &disk.device);
    let whole = |probe: &mut Probe| Ok((probe.table()?, probe.signatures()?));
    let (found, signatures) = match Probe::open(&node, None, disk.sector_bytes).and_then(|mut probe| whole(&mut probe))
    {
        Ok((found, signatures)) => (found, checked(&disk.device, signatures, &mut doubts)),
        Err(error) => {
            doubts.push(format!("{}: {error}", disk.device));
            (None, Vec::new())
        }
    };
    disk.signatures = signatures;
    disk.table = found.map(|found| table(disk, found, &mut kernel, roots, &mut doubts));
    // What the kernel has and the table has not: somebody changed the table under it, or it could not be read.
    for left in kernel {
        if disk.table.is_some() {
            tracing::warn!(
                partition = left.name,
                "the kernel has this partition, the table on {} has not",
                disk.device
            );
        }
        disk.uses.extend(left.uses);
    }
    if !doubts.is_empty() {
        let text = doubts.join("; ");
        tracing::warn!(disk = disk.name, "not all that is on the disk is known: {text}");
        disk.unreadable = Some(text);
    }
}

/// The table with what is inside each partition. Takes from `kernel` the partitions that are in it.
fn table(
    disk: &Disk,
    found: FoundTable,
    kernel: &mut Vec<KernelPartition>,
    roots: &Roots,
    doubts: &mut Vec<String>,
) -> Table {
    let partitions = found.partitions.into_iter().map(|found| {
        let known = kernel.iter().position(|partition| partition.is(&found)).map(|index| kernel.swap_remove(index));
        let device = crate::layout::partition_device(&disk.device, found.number);
        let signatures = match inside(disk, &found, known.is_some().then(|| node(roots, &device)), roots) {
            Ok(signatures) => checked(&device, signatures, doubts),
            Err(error) => {
                doubts.push(format!("{device}: {error}"));
                Vec::new()
            }
        };
        Partition {
            number: found.number,
            device,
            start_bytes: found.start_bytes,
            size_bytes: found.size_bytes,
            kind: found.kind,
            // A DOS partition has an id that is no UUID.
            guid: found.guid.parse().ok(),
            label: found.name,
            signatures,
            uses: known.map(|partition| partition.uses).unwrap_or_default(),
        }
    });
    let mut partitions: Vec<Partition> = partitions.collect();
    partitions.sort_by_key(|partition| partition.number);
    Table { kind: found.kind, guid: found.id.parse().ok(), partitions }
}

/// The signatures inside a partition: through its own node, whose cache sees what was written through it, else, where
/// the kernel has not taken the partition up, through the disk.
fn inside(
    disk: &Disk,
    found: &FoundPartition,
    own: Option<PathBuf>,
    roots: &Roots,
) -> io::Result<Vec<super::signatures::FoundSignature>> {
    if found.extended {
        return Ok(Vec::new());
    }
    let mut probe = match own.filter(|node| node.exists()) {
        Some(node) => Probe::open(&node, None, disk.sector_bytes)?,
        None => {
            let area = Area { start_bytes: found.start_bytes, size_bytes: found.size_bytes };
            Probe::open(&node(roots, &disk.device), Some(area), disk.sector_bytes)?
        }
    };
    probe.signatures()
}

/// The signatures, and a doubt for each that is damaged.
fn checked(device: &str, found: Vec<super::signatures::FoundSignature>, doubts: &mut Vec<String>) -> Vec<Signature> {
    let damaged = found.iter().filter(|found| found.damaged);
    doubts.extend(damaged.map(|found| format!("{device}: {} with a wrong checksum", found.signature.kind)));
    found.into_iter().map(|found| found.signature).collect()
}

/// The file behind `/dev/NAME`.
fn node(roots: &Roots, device: &str) -> PathBuf {
    roots.dev.join(device.strip_prefix("/dev/").unwrap_or(device))
}
