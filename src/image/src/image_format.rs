//! Recognition of the image formats that the agent supports, by the first bytes of an image.

use crate::foreign_format::ForeignFormat;
use crate::pipeline::CompressionFormat;
use crate::qcow2;
use crate::raw::is_disk_image;
use common::encoding::join_hex;
use std::fmt;

/// Number of bytes at the beginning of an image that suffice to recognize its format. The superblock of btrfs is at
/// 64 KiB.
pub(crate) const HEAD_BYTES: usize = 128 << 10;

/// Magic numbers of filesystems and other contents of unpartitioned disks, each with its offset.
const CONTENTS: [(usize, &[u8], &str); 15] = [
    (0x438, &[0x53, 0xef], "ext4"),
    (0, b"XFSB", "XFS"),
    (0x1_0040, b"_BHRfS_M", "btrfs"),
    (0, b"hsqs", "squashfs"),
    (0x36, b"FAT1", "FAT"),
    (0x52, b"FAT32", "FAT"),
    (3, b"EXFAT   ", "exFAT"),
    (3, b"NTFS    ", "NTFS"),
    (0x8001, b"CD001", "ISO 9660"),
    (0x400, &[0xe2, 0xe1, 0xf5, 0xe0], "EROFS"),
    (0x400, &[0x10, 0x20, 0xf5, 0xf2], "F2FS"),
    (0, b"LUKS\xba\xbe", "LUKS"),
    (0x218, b"LVM2 001", "LVM"),
    (0x1018, b"LVM2 001", "LVM"),
    (0xff6, b"SWAPSPACE2", "swap"),
];

/// Recognized format of an image.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ImageFormat {
    Tar,
    /// Compressed data, whose content is not recognized until it is decompressed.
    Compressed(CompressionFormat),
    Qcow2,
    /// Raw disk image with a partition table.
    PartitionedDisk,
    /// Raw disk image without a partition table, with a filesystem or similar content.
    UnpartitionedDisk(&'static str),
}

/// Format that the operator has stated.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StatedFormat {
    Tar,
    Raw,
    Qcow2,
}

impl ImageFormat {
    /// Returns the format of an image that begins with these bytes; `None` if no supported format is recognized.
    pub fn detect(head: &[u8]) -> Option<ImageFormat> {
        if head.starts_with(&qcow2::MAGIC) {
            return Some(ImageFormat::Qcow2);
        }
        match CompressionFormat::detect(head) {
            Some(CompressionFormat::Plain) => return Some(ImageFormat::Tar),
            Some(compression) => return Some(ImageFormat::Compressed(compression)),
            None => {}
        }
        if is_disk_image(head) {
            return Some(ImageFormat::PartitionedDisk);
        }
        let has_magic =
            |(at, magic, _): &&(usize, &[u8], _)| head.get(*at..).is_some_and(|rest| rest.starts_with(magic));
        CONTENTS.iter().find(has_magic).map(|(_, _, name)| ImageFormat::UnpartitionedDisk(name))
    }

    fn is_stated(self, stated: StatedFormat) -> bool {
        match self {
            ImageFormat::Compressed(_) => true,
            ImageFormat::Tar => stated == StatedFormat::Tar,
            ImageFormat::Qcow2 => stated == StatedFormat::Qcow2,
            ImageFormat::PartitionedDisk | ImageFormat::UnpartitionedDisk(_) => stated == StatedFormat::Raw,
        }
    }
}

impl fmt::Display for ImageFormat {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ImageFormat::Tar => f.write_str("tar"),
            ImageFormat::Compressed(compression) => write!(f, "compressed with {compression}"),
            ImageFormat::Qcow2 => f.write_str("qcow2"),
            ImageFormat::PartitionedDisk => f.write_str("raw disk image with a partition table"),
            ImageFormat::UnpartitionedDisk(content) => write!(f, "raw disk image with {content}"),
        }
    }
}

impl fmt::Display for StatedFormat {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            StatedFormat::Tar => "tar",
            StatedFormat::Raw => "raw",
            StatedFormat::Qcow2 => "qcow2",
        })
    }
}

/// Checks that the agent supports an image that begins with these bytes. A format that is not recognized is accepted
/// only if the operator has stated it. Returns the recognized format.
///
/// # Errors
/// Returns the reason why the image is refused, and the accepted formats.
pub(crate) fn check_format(head: &[u8], stated: Option<StatedFormat>) -> Result<Option<ImageFormat>, String> {
    if let Some(foreign) = ForeignFormat::detect_magic(head) {
        return Err(foreign.refusal());
    }
    match (ImageFormat::detect(head), stated) {
        (Some(found), Some(stated)) if !found.is_stated(stated) => {
            Err(format!("the detected format is {found}, but --format {stated} was specified"))
        }
        (Some(found), _) => Ok(Some(found)),
        (None, stated) => match (ForeignFormat::detect(head), stated) {
            (Some(foreign), _) => Err(foreign.refusal()),
            (None, Some(_)) => Ok(None),
            (None, None) => Err(describe_unknown(head)),
        },
    }
}

fn describe_unknown(head: &[u8]) -> String {
    let start = match head {
        [] => "the image is empty".to_owned(),
        [..] if head.iter().all(|byte| *byte == 0) => "the image begins with zeros".to_owned(),
        [..] => format!("the image begins with {}", join_hex(&head[..head.len().min(4)], " ")),
    };
    format!(
        "the format of the image is not recognized: {start}; accepted are a tar (also compressed with zstd, gzip, xz or lz4), a raw disk \
         image with a partition table or a filesystem, a qcow2, and an image in a registry (oci://REGISTRY/NAME:TAG); if the image has one \
         of these formats, state it with --format"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with_bytes(length: usize, pieces: &[(usize, &[u8])]) -> Vec<u8> {
        let mut head = vec![0; length];
        for (at, bytes) in pieces {
            head[*at..at + bytes.len()].copy_from_slice(bytes);
        }
        head
    }

    fn mbr() -> Vec<u8> {
        let entry = [0x80, 0, 2, 0, 0x83, 0, 0, 0, 0, 8, 0, 0, 0, 0, 1, 0];
        with_bytes(4096, &[(446, &entry), (510, &[0x55, 0xaa])])
    }

    #[test]
    fn supported_formats_are_recognized() {
        for (head, expected) in [
            (with_bytes(1024, &[(257, b"ustar")]), "tar"),
            (with_bytes(64, &[(0, &[0x28, 0xb5, 0x2f, 0xfd])]), "compressed with zstd"),
            (with_bytes(64, &[(0, &[0x1f, 0x8b, 8])]), "compressed with gzip"),
            (with_bytes(512, &[(0, b"QFI\xfb")]), "qcow2"),
            (mbr(), "raw disk image with a partition table"),
            (with_bytes(2048, &[(0x438, &[0x53, 0xef])]), "raw disk image with ext4"),
            (with_bytes(HEAD_BYTES, &[(0x1_0040, b"_BHRfS_M")]), "raw disk image with btrfs"),
            (with_bytes(512, &[(0x52, b"FAT32   "), (510, &[0x55, 0xaa])]), "raw disk image with FAT"),
        ] {
            let found = check_format(&head, None).map(|found| found.map(|found| found.to_string()));
            assert_eq!(found, Ok(Some(expected.to_owned())));
        }
    }

    #[test]
    fn refuses_other_content_unless_its_format_is_stated() {
        let random: Vec<u8> = (1..=200_u8).cycle().map(|byte| byte.wrapping_mul(97) ^ 0xa5).take(8192).collect();
        for (head, words) in [
            (&random[..], "begins with c4 67 86 21; accepted are a tar"),
            (&[0; 4096], "begins with zeros; accepted"),
            (b"", "the image is empty; accepted"),
        ] {
            let why = check_format(head, None).unwrap_err();
            assert!(why.contains(words) && why.contains("state it with --format"), "{why}");
            for stated in [StatedFormat::Tar, StatedFormat::Raw, StatedFormat::Qcow2] {
                assert_eq!(check_format(head, Some(stated)), Ok(None));
            }
        }
    }

    #[test]
    fn refuses_stated_format_that_contradicts_the_content() {
        let refused = |head: &[u8], stated| check_format(head, Some(stated)).unwrap_err();
        let why = refused(&mbr(), StatedFormat::Tar);
        assert_eq!(why, "the detected format is raw disk image with a partition table, but --format tar was specified");
        assert!(refused(b"<!DOCTYPE html><html></html>", StatedFormat::Raw).contains("HTML page"));
        assert!(refused(b"KDMV....", StatedFormat::Raw).contains("VMDK"));
        assert!(refused(b"404 page not found\n", StatedFormat::Tar).contains("detected type: text"));
        assert_eq!(check_format(&mbr(), Some(StatedFormat::Raw)), Ok(Some(ImageFormat::PartitionedDisk)));
    }
}
