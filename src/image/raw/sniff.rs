//! What the first MiB of an image says: is it a disk, and one that fits onto this one?

use super::{Disk, unique};
use crate::device::DevicePath;
use crate::gpt::{PROTECTIVE, SECTORS_BYTES, claimed_end};
use crate::image::qcow2::MAGIC;
use crate::plan::AddedPartition;
use crate::storage::fit;
use std::collections::BTreeMap;
use std::io;

/// What the layout wants of a raw image.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Expected {
    /// Numbers of those that its filesystems lie on. Without any, the image need not have partitions.
    pub partitions: Vec<u32>,
    /// Number of the one that grows.
    pub grow: Option<u32>,
    /// UUIDs that are on other disks, in lower case, and the device that has each.
    pub taken: BTreeMap<String, DevicePath>,
    /// What comes behind all that the image has.
    pub added: Option<AddedPartition>,
}

/// How much tells a disk from a tree of files: the first two sectors, however large they are.
pub const KIND_BYTES: usize = 2 * 4096;

/// Refuses what cannot be the beginning of a tree of files.
///
/// # Errors
/// It begins as a disk does.
pub fn require_tree(head: &[u8]) -> io::Result<()> {
    if head.starts_with(&MAGIC) {
        return Err(refused(QCOW2_FOR_TREE.to_owned()));
    }
    if is_disk_image(head) { Err(refused(DISK_FOR_TREE.to_owned())) } else { Ok(()) }
}

/// Said of a qcow2 that is to be unpacked.
const QCOW2_FOR_TREE: &str =
    "it is a qcow2: that needs a layout with image: true for the disk that takes it, or a disk and --overwrite";

/// Said of a raw image that is to be unpacked.
const DISK_FOR_TREE: &str = "it is a raw disk image: that needs a layout with image: true for the disk that takes it, or a disk and --overwrite";

fn tar_for_disk(name: &str) -> String {
    format!(
        "the image is a tar archive, and the layout says image: true for {name}: give it a raw disk image, or a layout that makes partitions and filesystems"
    )
}

/// Is this how a partitioned disk begins? A tar may hold anything, but says what it is.
pub(super) fn is_disk_image(head: &[u8]) -> bool {
    !is_tar(head) && (SECTORS_BYTES.iter().any(|sector| claimed_end(head, *sector).is_some()) || mbr(head).is_some())
}

/// Refuses what cannot be meant for this disk, by as much of the image's first MiB as there is.
///
/// # Errors
/// Why it cannot.
pub fn check(head: &[u8], disk: &Disk, expected: &Expected) -> io::Result<()> {
    let name = &disk.name;
    // Whoever sends it has not made a disk of it.
    if head.starts_with(&MAGIC) {
        return Err(refused("the image is a qcow2 and would be written as it lies".to_owned()));
    }
    if is_tar(head) {
        return Err(refused(tar_for_disk(name.as_str())));
    }
    let sector = u64::from(disk.sector_bytes);
    if let Some(end) = claimed_end(head, sector) {
        return if end > disk.size_bytes { Err(too_long(disk, Some(end))) } else { check_gpt(head, disk, expected) };
    }
    if let Some(other) = SECTORS_BYTES.into_iter().find(|other| claimed_end(head, *other).is_some()) {
        return Err(refused(format!(
            "the image's partition table is for disks with sectors of {other} bytes, those of {name} have {sector}"
        )));
    }
    match mbr(head) {
        Some(entries) if entries.iter().any(|entry| entry.kind == PROTECTIVE) => {
            Err(refused("the image says that it has a GPT, and there is none: it is damaged".to_owned()))
        }
        Some(entries) => {
            // Its sectors are those of the disk that it is on (UEFI specification 5.2.1).
            let end = entries.iter().map(|entry| entry.end * sector).max().unwrap_or_default();
            if end > disk.size_bytes { Err(too_long(disk, Some(end))) } else { check_mbr(&entries, disk, expected) }
        }
        None if !expected.partitions.is_empty() => Err(refused(format!(
            "the image is no disk image: it begins with neither GPT nor MBR, and the layout has filesystems on partitions of {name}"
        ))),
        None => expected.added.as_ref().map_or(Ok(()), |added| Err(refused(fit::only_gpt_gets(added)))),
    }
}

/// All that would be refused when the table is fitted to the disk.
fn check_gpt(head: &[u8], disk: &Disk, expected: &Expected) -> io::Result<()> {
    let Disk { name, size_bytes, sector_bytes } = disk;
    let fitted = fit::check(head, *sector_bytes, *size_bytes, expected.grow, expected.added.as_ref());
    let found = fitted.map_err(|error| refused(format!("the image's partition table does not fit {name}: {error}")))?;
    let Some(table) = found else { return Ok(()) };
    let numbers: Vec<u32> = table.partitions.iter().map(|partition| partition.number).collect();
    has_partitions(&numbers, disk, expected, |_| false)?;
    unique::check(&table, name, &expected.taken)
}

fn check_mbr(entries: &[MbrEntry], disk: &Disk, expected: &Expected) -> io::Result<()> {
    if let Some(number) = expected.grow {
        return Err(refused(fit::only_gpt_grows(number)));
    }
    if let Some(added) = &expected.added {
        return Err(refused(fit::only_gpt_gets(added)));
    }
    let numbers: Vec<u32> = entries.iter().map(|entry| entry.number).collect();
    // Logical partitions begin anywhere on the disk.
    let has_logical = entries.iter().any(|entry| EXTENDED.contains(&entry.kind));
    has_partitions(&numbers, disk, expected, |number| number > 4 && has_logical)
}

fn has_partitions(there: &[u32], disk: &Disk, expected: &Expected, unseen: impl Fn(u32) -> bool) -> io::Result<()> {
    match expected.partitions.iter().find(|number| !there.contains(number) && !unseen(**number)) {
        Some(number) => {
            let there: Vec<String> = there.iter().map(u32::to_string).collect();
            let (device, there) = (disk.name.partition(*number), there.join(", "));
            Err(refused(format!(
                "the layout has a filesystem on {device}, and the image no partition {number}: it has {there}"
            )))
        }
        None => Ok(()),
    }
}

pub(super) fn refused(why: String) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, why)
}

/// `needed` is what the image's partition table says.
pub(super) fn too_long(disk: &Disk, needed: Option<u64>) -> io::Error {
    let Disk { name, size_bytes, .. } = disk;
    let needed = needed.map(|bytes| format!(" (its partition table is for one of {bytes})")).unwrap_or_default();
    refused(format!("the image is longer than the disk{needed}: {name} has {size_bytes} bytes"))
}

/// tar(5): the magic of ustar, of POSIX and of GNU.
fn is_tar(head: &[u8]) -> bool {
    head.get(257..262) == Some(b"ustar")
}

/// Types of partitions that others lie in.
const EXTENDED: [u8; 3] = [0x05, 0x0f, 0x85];

struct MbrEntry {
    number: u32,
    kind: u8,
    /// Sector behind its last one.
    end: u64,
}

/// The partitions of an MBR in use; `None` when there is none. A boot sector of FAT ends as an MBR does.
fn mbr(head: &[u8]) -> Option<Vec<MbrEntry>> {
    let table = head.get(446..512)?.strip_suffix(&[0x55, 0xaa])?;
    let (entries, _) = table.as_chunks::<16>();
    if entries.iter().any(|entry| !matches!(entry[0], 0 | 0x80)) {
        return None;
    }
    let word = |at: &[u8]| at.try_into().map(u32::from_le_bytes).map(u64::from).unwrap_or_default();
    let used = entries.iter().zip(1..).filter(|(entry, _)| entry[4] != 0);
    let used = used.map(|(entry, number)| {
        let end = word(&entry[8..12]) + word(&entry[12..16]);
        MbrEntry { number, kind: entry[4], end }
    });
    Some(used.collect()).filter(|used: &Vec<_>| !used.is_empty())
}
