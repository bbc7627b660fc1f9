//! Detects disk images by their first MiB, and checks whether an image fits a disk.

use super::{TargetDisk, duplicate_uuids};
use crate::foreign_format::ForeignFormat;
use crate::qcow2::MAGIC;
use linux::gpt::{PROTECTIVE, SECTORS_BYTES, read_claimed_disk_size};
use linux::storage::image_table_adaptation;
use model::device_name::DevicePath;
use operations::AddedPartition;
use std::collections::BTreeMap;
use std::io;

/// Requirements of the layout on a raw image.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ImageRequirements {
    /// Numbers of the partitions that the image must contain, because the layout has filesystems on them. If
    /// empty, the image need not have a partition table.
    pub partitions: Vec<u32>,
    /// Number of the partition that is enlarged to the end of the disk.
    pub grow: Option<u32>,
    /// UUIDs on preserved disks, in lower case, each with its device. The image must not contain any of these UUIDs.
    pub taken: BTreeMap<String, DevicePath>,
    /// Partition that is added after the partitions of the image.
    pub added: Option<AddedPartition>,
}

/// Number of bytes that are needed to distinguish a disk image from a tree of files: two sectors of 4096 bytes, the
/// largest supported sector size.
pub const DETECTION_BYTES: usize = 2 * 4096;

/// Minimum size of a disk image in bytes: one sector.
const MINIMUM_BYTES: usize = 512;

/// Rejects data that cannot be the beginning of a tree of files.
///
/// # Errors
/// Returns an error if the data begins like a disk image or a qcow2.
pub fn require_tree(head: &[u8]) -> io::Result<()> {
    if head.starts_with(&MAGIC) {
        return Err(rejection(QCOW2_FOR_TREE.to_owned()));
    }
    if is_disk_image(head) { Err(rejection(DISK_FOR_TREE.to_owned())) } else { Ok(()) }
}

/// Message for a qcow2 if a tree of files is expected.
const QCOW2_FOR_TREE: &str = "the image is a qcow2; use a layout with image: true on the target disk, or write the image to a disk with `image burn --overwrite`";

/// Message for a raw disk image if a tree of files is expected.
const DISK_FOR_TREE: &str = "the image is a raw disk image; use a layout with image: true on the target disk, or write the \
                             image to a disk with `image burn --overwrite`";

fn tar_for_disk(name: &str) -> String {
    format!(
        "the image is a tar archive, but the layout has image: true for {name}; provide a raw disk image, or use a \
         layout with partitions and filesystems"
    )
}

/// Returns whether these are the first bytes of a partitioned disk. A tar is recognized by its magic number and
/// excluded, because the first header of a tar may look like an MBR.
pub(crate) fn is_disk_image(head: &[u8]) -> bool {
    !is_tar(head)
        && (SECTORS_BYTES.iter().any(|sector| read_claimed_disk_size(head, *sector).is_some())
            || parse_mbr(head).is_some())
}

/// Rejects an image that is not a disk image, or does not fit this disk and the layout. `head` is the first MiB of the
/// image, or less if the image is shorter.
///
/// # Errors
/// Returns the reason why the image does not fit.
pub fn check_disk_image(head: &[u8], disk: &TargetDisk, expected: &ImageRequirements) -> io::Result<()> {
    let name = &disk.name;
    // A qcow2 is unexpected here, because the worker converts a qcow2 to a raw disk image.
    if head.starts_with(&MAGIC) {
        return Err(rejection("the image is a qcow2 that was not converted to a raw disk image".to_owned()));
    }
    if is_tar(head) {
        return Err(rejection(tar_for_disk(name.as_str())));
    }
    if let Some(foreign) = ForeignFormat::detect_magic(head) {
        return Err(rejection(foreign.refusal()));
    }
    let sector = u64::from(disk.sector_bytes);
    if let Some(end) = read_claimed_disk_size(head, sector) {
        return if end > disk.size_bytes {
            Err(too_long_error(disk, Some(end)))
        } else {
            check_gpt(head, disk, expected)
        };
    }
    if let Some(other) = SECTORS_BYTES.into_iter().find(|other| read_claimed_disk_size(head, *other).is_some()) {
        return Err(rejection(format!(
            "the image's partition table is for disks with a sector size of {other} bytes, but {name} has a sector \
             size of {sector} bytes"
        )));
    }
    match parse_mbr(head) {
        Some(entries) if entries.iter().any(|entry| entry.kind == PROTECTIVE) => {
            Err(rejection("the image has a protective MBR but no GPT: it is damaged".to_owned()))
        }
        Some(entries) => {
            // The sector numbers in an MBR are in units of the disk's sector size (UEFI specification 5.2.1).
            let end = entries.iter().map(|entry| entry.end * sector).max().unwrap_or_default();
            if end > disk.size_bytes {
                Err(too_long_error(disk, Some(end)))
            } else {
                check_mbr(&entries, disk, expected)
            }
        }
        None if !expected.partitions.is_empty() => Err(rejection(format!(
            "the image does not begin with a GPT or MBR, but the layout has filesystems on partitions of {name}"
        ))),
        None => match &expected.added {
            Some(added) => Err(rejection(image_table_adaptation::cannot_add_without_gpt(added))),
            None => check_bare_data(head),
        },
    }
}

/// Rejects data that has no partition table and cannot be a filesystem.
fn check_bare_data(head: &[u8]) -> io::Result<()> {
    if let Some(foreign) = ForeignFormat::detect(head) {
        return Err(rejection(foreign.refusal()));
    }
    if head.len() < MINIMUM_BYTES {
        let length = head.len();
        return Err(rejection(format!("the image is not a disk image: it is only {length} bytes; check its URL")));
    }
    Ok(())
}

/// Checks the GPT of an image before the image is written. The GPT must fit the disk, contain the required partitions,
/// and not contain UUIDs of other disks.
fn check_gpt(head: &[u8], disk: &TargetDisk, expected: &ImageRequirements) -> io::Result<()> {
    let TargetDisk { name, size_bytes, sector_bytes } = disk;
    let fitted = image_table_adaptation::check_image_table(
        head,
        *sector_bytes,
        *size_bytes,
        expected.grow,
        expected.added.as_ref(),
    );
    let found =
        fitted.map_err(|error| rejection(format!("the image's partition table does not fit {name}: {error}")))?;
    let Some(table) = found else { return Ok(()) };
    let numbers: Vec<u32> = table.partitions.iter().map(|partition| partition.number).collect();
    require_partitions(&numbers, disk, expected, |_| false)?;
    duplicate_uuids::check_duplicate_uuids(&table, name, &expected.taken)
}

fn check_mbr(entries: &[MbrEntry], disk: &TargetDisk, expected: &ImageRequirements) -> io::Result<()> {
    if let Some(number) = expected.grow {
        return Err(rejection(image_table_adaptation::cannot_grow_without_gpt(number)));
    }
    if let Some(added) = &expected.added {
        return Err(rejection(image_table_adaptation::cannot_add_without_gpt(added)));
    }
    let numbers: Vec<u32> = entries.iter().map(|entry| entry.number).collect();
    // Logical partitions are not checked, because their tables may be anywhere on the disk.
    let has_logical = entries.iter().any(|entry| EXTENDED.contains(&entry.kind));
    require_partitions(&numbers, disk, expected, |number| number > 4 && has_logical)
}

fn require_partitions(
    there: &[u32],
    disk: &TargetDisk,
    expected: &ImageRequirements,
    unseen: impl Fn(u32) -> bool,
) -> io::Result<()> {
    match expected.partitions.iter().find(|number| !there.contains(number) && !unseen(**number)) {
        Some(number) => {
            let there: Vec<String> = there.iter().map(u32::to_string).collect();
            let (device, there) = (disk.name.partition_path(*number), there.join(", "));
            Err(rejection(format!(
                "the layout has a filesystem on {device}, but the image does not contain partition {number}; it \
                 contains only {there}"
            )))
        }
        None => Ok(()),
    }
}

pub(super) fn rejection(why: String) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, why)
}

/// Returns the error for an image that is longer than the disk. `needed` is the disk size for which the image's
/// partition table was created, in bytes.
pub(super) fn too_long_error(disk: &TargetDisk, needed: Option<u64>) -> io::Error {
    let TargetDisk { name, size_bytes, .. } = disk;
    let needed = needed
        .map(|bytes| format!(" (according to its partition table, it requires {bytes} bytes)"))
        .unwrap_or_default();
    rejection(format!("the image is larger than the disk{needed}: {name} is {size_bytes} bytes"))
}

/// Returns whether the bytes begin with a tar header, according to the magic number of ustar, which the POSIX and GNU
/// formats share (tar(5)).
fn is_tar(head: &[u8]) -> bool {
    head.get(257..262) == Some(b"ustar")
}

/// Types of extended partitions, which contain logical partitions.
const EXTENDED: [u8; 3] = [0x05, 0x0f, 0x85];

struct MbrEntry {
    number: u32,
    kind: u8,
    /// Number of the first sector after the partition.
    end: u64,
}

/// Returns the used entries of an MBR; `None` if the bytes are not an MBR, or no entry is used. The boot sector of a
/// FAT filesystem has the same signature as an MBR, but contains code at the offsets of the boot flags. These code
/// bytes rarely have valid values of boot flags.
fn parse_mbr(head: &[u8]) -> Option<Vec<MbrEntry>> {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_disk_images_are_written_to_a_disk() {
        let disk = TargetDisk { name: "/dev/sda".into(), size_bytes: 1 << 30, sector_bytes: 512 };
        let check = |start: &[u8], length: usize| {
            let mut head = start.to_vec();
            head.resize(length, 0);
            check_disk_image(&head, &disk, &ImageRequirements::default()).map_err(|error| error.to_string())
        };
        for (start, length, reason) in [
            (&b"KDMV\x01"[..], 1 << 20, "the image is a VMDK"),
            (b"conectix", 1 << 20, "the image is a VHD,"),
            (b"vhdxfile", 1 << 20, "the image is a VHDX"),
            (b"BZh91AY&SY", 1 << 20, "compressed with bzip2"),
            (&[0x02, 0x21, 0x4c, 0x18], 1 << 20, "compressed with legacy lz4"),
            (&[0x1f, 0x8b, 8], 1 << 20, "compressed with gzip twice"),
            (b"PK\x03\x04", 1 << 20, "a zip archive"),
            (b"PK", 2, "not a disk image"),
            (b"\0", 511, "it is only 511 bytes"),
            (b"<!DOCTYPE html><html></html>", 28, "HTML page"),
        ] {
            let error = check(start, length).unwrap_err();
            assert!(error.contains(reason), "{error}");
        }
        for filesystem in [&b"\xeb\x3c\x90mkfs.fat"[..], b"XFSB", &[0; 512]] {
            assert_eq!(check(filesystem, 1 << 20), Ok(()));
        }
    }
}
