//! Contents of block devices: partition table, signatures, and users of the partitions.

use super::blank_detection::is_area_blank;
use super::blkid::{BlkidPartition, BlkidProbe, BlkidTable, DeviceArea, FoundSignatures};
use super::device_users::DeviceUsers;
use super::sysfs::{ProbeRoots, list_names, parse_sectors, read_attribute};
use common::error::Result;
use common::format::os_error_messages::without_os_error_numbers;
use model::device_name::{DevicePath, KernelName};
use model::inventory::{DeviceSignature, DeviceUse, DiskPartition, DiskTable};
use std::io;
use std::path::{Path, PathBuf};

/// Device to read.
pub(super) struct ProbeTarget<'a> {
    /// Kernel name of the device. The device node with this name exists even without udev.
    pub name: &'a KernelName,
    /// Path of the device in messages. The paths of the partitions are derived from it.
    pub device: &'a DevicePath,
    pub sector_bytes: u32,
    pub size_bytes: u64,
    /// True if a partition beyond the end of the device does not make the contents of the device uncertain.
    pub may_be_cut_off: bool,
}

#[derive(Default)]
pub(super) struct DeviceContents {
    pub table: Option<DiskTable>,
    pub signatures: Vec<DeviceSignature>,
    /// Uses of partitions that are registered with the kernel but missing from the partition table, because the table
    /// was changed or cannot be read.
    pub uses: Vec<DeviceUse>,
    /// Reason why the contents are not completely known.
    pub unreadable: Option<String>,
    /// True if the device is blank as defined by [`model::inventory::InventoryDisk::blank`], ignoring users of the
    /// whole device.
    pub blank: bool,
}

/// Partition table types that are used only by computers on which this program does not run. libblkid and the kernel
/// recognize these tables by a few bytes, and therefore sometimes detect them by mistake in the first sector of
/// filesystems, encrypted disks and Ceph OSDs (ceph-volume: phantom Atari partitions). If the whole device has a
/// signature, a table of such a type is ignored.
const OBSOLETE_TABLES: [&str; 8] = ["atari", "sun", "sgi", "mac", "aix", "minix", "ultrix", "unixware"];

/// Reads the partition table and the signatures. Failures are reported in the field `unreadable`; all other data is
/// returned.
///
/// # Errors
/// Returns an error if sysfs cannot be read.
pub(super) fn read_contents(target: &ProbeTarget, roots: &ProbeRoots, users: &DeviceUsers) -> Result<DeviceContents> {
    let mut kernel = read_kernel_partitions(&roots.sys.join("block").join(target.name.as_str()), users)?;
    let mut contents = DeviceContents::default();
    let mut doubts = Vec::new();
    match BlkidProbe::open(&device_node(roots, target.name), None, target.sector_bytes) {
        Ok(mut probe) => {
            let found = probe.read_table().unwrap_or_else(|error| {
                doubts.push(format!("{}: partition table: {error}", target.device));
                None
            });
            contents.signatures = collect_signatures(target.device, probe.read_signatures(), &mut doubts);
            let found =
                found.filter(|found| contents.signatures.is_empty() || !OBSOLETE_TABLES.contains(&found.kind.as_str()));
            contents.table = found.map(|found| build_table(target, found, &mut kernel, roots, &mut doubts));
        }
        Err(error) => doubts.push(format!("{}: {error}", target.device)),
    }
    for left in kernel {
        if contents.table.is_some() {
            let partition = left.name;
            tracing::warn!(%partition, "the kernel has a partition that is not in the partition table of {disk}", disk = target.device);
        }
        contents.uses.extend(left.uses);
    }
    if contents.table.is_none() && contents.signatures.is_empty() && contents.uses.is_empty() && doubts.is_empty() {
        let all = DeviceArea { start_bytes: 0, size_bytes: target.size_bytes };
        contents.blank = is_area_blank(&device_node(roots, target.name), all).unwrap_or_else(|error| {
            doubts.push(format!("{}: {error}", target.device));
            false
        });
    }
    if !doubts.is_empty() {
        let text = without_os_error_numbers(&doubts.join("; ")).into_owned();
        tracing::warn!("{device}: cannot determine all contents: {text}", device = target.name);
        contents.unreadable = Some(text);
    }
    Ok(contents)
}

/// Partition registered with the kernel.
struct ProbedPartition {
    name: KernelName,
    number: u32,
    start_bytes: u64,
    size_bytes: u64,
    uses: Vec<DeviceUse>,
}

impl ProbedPartition {
    /// Returns whether this partition is the same as `found`, a partition of the table on the disk. The sizes of
    /// extended partitions are not compared, because the kernel's device for them contains only two sectors, for a boot
    /// loader (block/partitions/msdos.c).
    fn is_same_partition(&self, found: &BlkidPartition) -> bool {
        self.number == found.number
            && self.start_bytes == found.start_bytes
            && (self.size_bytes == found.size_bytes || found.extended)
    }
}

fn read_kernel_partitions(disk: &Path, users: &DeviceUsers) -> Result<Vec<ProbedPartition>> {
    let mut partitions = Vec::new();
    for name in list_names(disk)? {
        let dir = disk.join(&name);
        let at = |attribute_name: &str| read_attribute(&dir.join(attribute_name));
        let Ok(number) = at("partition").parse() else { continue };
        let (Some(start_bytes), Some(size_bytes)) = (parse_sectors(&at("start")), parse_sectors(&at("size"))) else {
            continue;
        };
        let name = KernelName::from(name);
        let uses = users.find_uses(&dir, &name.device_path())?;
        partitions.push(ProbedPartition { name, number, start_bytes, size_bytes, uses });
    }
    Ok(partitions)
}

/// Returns the table with the contents of each partition. Removes the partitions of the table from `kernel`.
fn build_table(
    target: &ProbeTarget,
    found: BlkidTable,
    kernel: &mut Vec<ProbedPartition>,
    roots: &ProbeRoots,
    doubts: &mut Vec<String>,
) -> DiskTable {
    let (partitions, outside): (Vec<_>, Vec<_>) = found.partitions.into_iter().partition(|found| {
        let end = found.start_bytes.checked_add(found.size_bytes);
        found.size_bytes > 0 && end.is_some_and(|end| end <= target.size_bytes)
    });
    // Partitions outside the device cannot be read. libblkid would treat a partition of size 0 as the whole disk.
    let said = |found: &BlkidPartition| {
        format!(
            "{device}: partition {number} extends beyond the end of the device",
            device = target.device,
            number = found.number
        )
    };
    match target.may_be_cut_off {
        true => outside.iter().for_each(|found| tracing::warn!("{}", said(found))),
        false => doubts.extend(outside.iter().map(said)),
    }
    let partitions = partitions.into_iter().map(|found| {
        let known = kernel
            .iter()
            .position(|partition| partition.is_same_partition(&found))
            .map(|index| kernel.swap_remove(index));
        let device = target.device.partition_path(found.number);
        let own = known.as_ref().map(|partition| device_node(roots, &partition.name));
        let uses = known.map(|partition| partition.uses).unwrap_or_default();
        let inside = read_partition_contents(target, &found, own, uses.is_empty(), roots);
        let (found_signatures, blank) = inside.unwrap_or_else(|error| (error.into(), false));
        let signatures = collect_signatures(&device, found_signatures, doubts);
        DiskPartition {
            number: found.number,
            device,
            start_bytes: found.start_bytes,
            size_bytes: found.size_bytes,
            kind: found.kind,
            // Parsing fails for a DOS partition, whose ID is not a UUID.
            guid: found.guid.parse().ok(),
            label: found.name,
            signatures,
            uses,
            blank,
        }
    });
    let mut partitions: Vec<DiskPartition> = partitions.collect();
    partitions.sort_by_key(|partition| partition.number);
    DiskTable { kind: found.kind, guid: found.id.parse().ok(), partitions }
}

/// Returns the signatures in a partition, and whether the partition is blank. A partition registered with the kernel is
/// read through its own device node, because recently written data may exist only in the page cache of this node. Other
/// partitions are read through the device node of the disk.
fn read_partition_contents(
    target: &ProbeTarget,
    found: &BlkidPartition,
    own: Option<PathBuf>,
    free: bool,
    roots: &ProbeRoots,
) -> io::Result<(FoundSignatures, bool)> {
    if found.extended {
        return Ok((FoundSignatures::default(), false));
    }
    let BlkidPartition { start_bytes, size_bytes, .. } = *found;
    let (path, area, probed) = match own.filter(|node| node.exists()) {
        Some(node) => (node, DeviceArea { start_bytes: 0, size_bytes }, None),
        None => {
            let area = DeviceArea { start_bytes, size_bytes };
            (device_node(roots, target.name), area, Some(area))
        }
    };
    let found = BlkidProbe::open(&path, probed, target.sector_bytes)?.read_signatures();
    let is_empty = found.signatures.is_empty() && found.error.is_none();
    let blank = free && is_empty && is_area_blank(&path, area)?;
    Ok((found, blank))
}

/// Returns the signatures of a device, and adds a message to `doubts` if the signatures are unreadable or damaged.
fn collect_signatures(device: &DevicePath, found: FoundSignatures, doubts: &mut Vec<String>) -> Vec<DeviceSignature> {
    doubts.extend(found.error.map(|error| format!("{device}: {error}")));
    let found = found.signatures;
    let damaged = found.iter().filter(|found| found.damaged);
    doubts.extend(
        damaged
            .map(|found| format!("{device}: {signature} with an invalid checksum", signature = found.signature.kind)),
    );
    found.into_iter().map(|found| found.signature).collect()
}

/// Returns the path of the device node for a kernel name.
pub(super) fn device_node(roots: &ProbeRoots, name: &KernelName) -> PathBuf {
    roots.dev.join(name.device_path().as_str().trim_start_matches("/dev/"))
}

#[cfg(test)]
mod tests;
