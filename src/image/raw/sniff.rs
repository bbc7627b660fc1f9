//! What the first MiB of an image says: is it a disk, and one that fits onto this one?

use super::Target;
use std::io;

/// What the layout wants of a raw image.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Expected {
    /// Its filesystems lie on partitions.
    pub partitions: bool,
}

/// Sizes of sector that GPTs are made for.
const SECTORS_BYTES: [usize; 2] = [512, 4096];

/// Is this the beginning of what is wanted: an image for this disk, or without one a tree of files?
pub(super) fn require(head: &[u8], disk: Option<&str>) -> io::Result<()> {
    let why = match disk {
        Some(name) if is_tar(head) => tar_for_disk(name),
        None if is_disk_image(head) => DISK_FOR_TREE.to_owned(),
        _ => return Ok(()),
    };
    Err(io::Error::new(io::ErrorKind::InvalidData, why))
}

/// Said of a raw image that is to be unpacked.
pub(in crate::image) const DISK_FOR_TREE: &str =
    "it is a raw disk image: that needs a layout with image: true for the disk that takes it";

fn tar_for_disk(name: &str) -> String {
    format!(
        "the image is a tar archive, and the layout says image: true for {name}: give it a raw disk image, or a layout that makes partitions and filesystems"
    )
}

/// Is this how a partitioned disk begins? A tar may hold anything, but says what it is.
pub fn is_disk_image(head: &[u8]) -> bool {
    !is_tar(head) && (SECTORS_BYTES.iter().any(|sector| gpt_end(head, *sector).is_some()) || mbr(head).is_some())
}

/// Refuses what cannot be meant for this disk, before anything is written.
pub(super) fn check(head: &[u8], target: &Target, expected: &Expected) -> io::Result<()> {
    let name = &target.name;
    let refuse = |why: String| Err(io::Error::new(io::ErrorKind::InvalidData, why));
    if is_tar(head) {
        return refuse(tar_for_disk(name));
    }
    let sector = target.sector_bytes as usize;
    if let Some(end) = gpt_end(head, sector) {
        return if end > target.size_bytes { Err(too_long(target, Some(end))) } else { Ok(()) };
    }
    if let Some(other) = SECTORS_BYTES.into_iter().find(|other| gpt_end(head, *other).is_some()) {
        return refuse(format!(
            "the image's partition table is for disks with sectors of {other} bytes, those of {name} have {sector}"
        ));
    }
    match mbr(head) {
        Some(entries) if entries.iter().any(|entry| entry.kind == PROTECTIVE) => {
            refuse("the image says that it has a GPT, and there is none: it is damaged".to_owned())
        }
        Some(entries) => {
            // Its sectors are those of the disk that it is on (UEFI specification 5.2.1).
            let end = entries.iter().map(|entry| entry.end * sector as u64).max().unwrap_or_default();
            if end > target.size_bytes { Err(too_long(target, Some(end))) } else { Ok(()) }
        }
        None if expected.partitions => refuse(format!(
            "the image is no disk image: it begins with neither GPT nor MBR, and the layout has filesystems on partitions of {name}"
        )),
        None => Ok(()),
    }
}

/// `needed` is what the image's partition table says.
pub(super) fn too_long(target: &Target, needed: Option<u64>) -> io::Error {
    let Target { name, size_bytes, .. } = target;
    let needed = needed.map(|bytes| format!(" (its partition table is for one of {bytes})")).unwrap_or_default();
    let why = format!("the image is longer than the disk{needed}: {name} has {size_bytes} bytes");
    io::Error::new(io::ErrorKind::InvalidData, why)
}

/// tar(5): the magic of ustar, of POSIX and of GNU.
fn is_tar(head: &[u8]) -> bool {
    head.get(257..262) == Some(b"ustar")
}

/// Where the disk ends that this image's GPT was made for (UEFI specification 5.3.2); `None` without a GPT.
fn gpt_end(head: &[u8], sector: usize) -> Option<u64> {
    let header = head.get(sector..2 * sector)?;
    let backup_lba = u64::from_le_bytes(header[32..40].try_into().ok()?);
    header.starts_with(b"EFI PART").then(|| backup_lba.saturating_add(1).saturating_mul(sector as u64))
}

/// Type of the partition that stands for a GPT.
const PROTECTIVE: u8 = 0xee;

struct MbrEntry {
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
    let used = entries.iter().filter(|entry| entry[4] != 0);
    let used = used.map(|entry| MbrEntry { kind: entry[4], end: word(&entry[8..12]) + word(&entry[12..16]) });
    Some(used.collect()).filter(|used: &Vec<_>| !used.is_empty())
}
