//! Features of filesystems. A kernel can mount a filesystem only if it supports the features of that filesystem. The
//! mkfs in the ramdisk may be newer than the kernel of the image, and may enable features that this kernel does not
//! support.

use model::boot_contents::{LinuxVersion, parse_linux_version};
use model::layout::FilesystemFormat;

/// Size of the area that contains the superblocks of xfs and ext, in bytes.
pub const SUPERBLOCK_AREA: usize = 4096;
/// Magic number at the start of an xfs superblock.
const XFS_MAGIC: &[u8] = b"XFSB";
/// Magic number in an ext superblock.
const EXT_MAGIC: [u8; 2] = [0x53, 0xef];
/// Offset of the ext superblock.
const EXT_SUPERBLOCK: usize = 1024;

/// Filesystem feature with the first version of Linux that supports it.
struct Feature {
    name: &'static str,
    /// Offset of the 32-bit field in [`SUPERBLOCK_AREA`], and the bit of the feature in this field.
    field: usize,
    bit: u32,
    since: LinuxVersion,
    /// Create option that disables the feature; empty if mkfs does not enable the feature by default.
    without: &'static str,
}

/// Features of xfs v5 (fs/xfs/libxfs/xfs_format.h); fields are big-endian. Older features are supported by every kernel
/// that an image may contain.
const XFS: [Feature; 8] = [
    Feature { name: "rmapbt", field: 212, bit: 2, since: (4, 8), without: "rmapbt=0" },
    Feature { name: "reflink", field: 212, bit: 4, since: (4, 9), without: "reflink=0" },
    Feature { name: "inobtcount", field: 212, bit: 8, since: (5, 10), without: "inobtcount=0" },
    Feature { name: "bigtime", field: 216, bit: 8, since: (5, 10), without: "bigtime=0" },
    Feature { name: "nrext64", field: 216, bit: 32, since: (5, 19), without: "" },
    Feature { name: "exchange", field: 216, bit: 64, since: (6, 10), without: "" },
    Feature { name: "parent", field: 216, bit: 128, since: (6, 10), without: "" },
    Feature { name: "metadir", field: 216, bit: 256, since: (6, 13), without: "" },
];

/// Features of ext3 and ext4 (fs/ext4/ext4.h); fields are little-endian.
const EXT: [Feature; 6] = [
    Feature { name: "encrypt", field: 1120, bit: 0x1_0000, since: (4, 1), without: "^encrypt" },
    Feature { name: "metadata_csum_seed", field: 1120, bit: 0x2000, since: (4, 4), without: "^metadata_csum_seed" },
    Feature { name: "project", field: 1124, bit: 0x2000, since: (4, 5), without: "^project" },
    Feature { name: "large_dir", field: 1120, bit: 0x4000, since: (4, 13), without: "^large_dir" },
    Feature { name: "casefold", field: 1120, bit: 0x2_0000, since: (5, 2), without: "^casefold" },
    Feature { name: "verity", field: 1124, bit: 0x8000, since: (5, 4), without: "^verity" },
];

/// Returns whether the features of filesystems with this format are known.
pub fn is_checked(format: FilesystemFormat) -> bool {
    matches!(format, FilesystemFormat::Xfs | FilesystemFormat::Ext3 | FilesystemFormat::Ext4)
}

/// Returns the reason why a kernel of the image with this version cannot mount the filesystem at this path; `None` if
/// the kernel can mount the filesystem.
pub fn explain_unsupported(
    superblock: &[u8; SUPERBLOCK_AREA],
    format: FilesystemFormat,
    path: &str,
    kernel: &str,
) -> Option<String> {
    let unsupported = find_unsupported(superblock, parse_linux_version(kernel)?);
    (!unsupported.is_empty()).then(|| describe_unsupported(format, path, kernel, &unsupported))
}

fn describe_unsupported(format: FilesystemFormat, path: &str, kernel: &str, unsupported: &[&Feature]) -> String {
    let names: Vec<&str> = unsupported.iter().map(|feature| feature.name).collect();
    let since = unsupported.iter().map(|feature| feature.since).max().unwrap_or_default();
    let without: Vec<&str> = unsupported.iter().map(|feature| feature.without).filter(|it| !it.is_empty()).collect();
    let option = if format == FilesystemFormat::Xfs { "-m" } else { "-O" };
    let remedy = match without.is_empty() {
        true => String::new(),
        false => format!(", or create the filesystem with createoptions: [\"{option}\", \"{}\"]", without.join(",")),
    };
    format!(
        "the kernel {kernel} of the image cannot mount {} ({}): this kernel does not support {}; use an image with Linux {}.{} or later{remedy}",
        path,
        format,
        names.join(", "),
        since.0,
        since.1
    )
}

fn find_unsupported(superblock: &[u8; SUPERBLOCK_AREA], kernel: LinuxVersion) -> Vec<&'static Feature> {
    let word = |at: usize| [superblock[at], superblock[at + 1], superblock[at + 2], superblock[at + 3]];
    let is_ext = superblock[EXT_SUPERBLOCK + 56..EXT_SUPERBLOCK + 58] == EXT_MAGIC;
    type ReadWord = fn([u8; 4]) -> u32;
    let (features, read): (&[Feature], ReadWord) = match superblock.starts_with(XFS_MAGIC) {
        // The low bits of the version number are 5; earlier versions do not have the feature fields.
        true if superblock[101] & 0xf == 5 => (&XFS, u32::from_be_bytes),
        false if is_ext => (&EXT, u32::from_le_bytes),
        _ => return Vec::new(),
    };
    features.iter().filter(|feature| kernel < feature.since && read(word(feature.field)) & feature.bit != 0).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::process::ToolCommand;
    use std::os::unix::fs::FileExt;

    fn names(superblock: &[u8; SUPERBLOCK_AREA], kernel: LinuxVersion) -> Vec<&'static str> {
        find_unsupported(superblock, kernel).iter().map(|feature| feature.name).collect()
    }

    fn xfs(read_only_compatible: u32, incompatible: u32) -> [u8; SUPERBLOCK_AREA] {
        let mut area = [0; SUPERBLOCK_AREA];
        area[..4].copy_from_slice(XFS_MAGIC);
        area[100..102].copy_from_slice(&[0xb4, 0xb5]);
        area[212..216].copy_from_slice(&read_only_compatible.to_be_bytes());
        area[216..220].copy_from_slice(&incompatible.to_be_bytes());
        area
    }

    #[test]
    fn features_are_compared_with_the_kernel() {
        let default = xfs(0b1101, 0b1011);
        for (kernel, expected) in [
            ((3, 10), &["reflink", "inobtcount", "bigtime"][..]),
            ((4, 18), &["inobtcount", "bigtime"]),
            ((5, 4), &["inobtcount", "bigtime"]),
            ((5, 10), &[]),
            ((6, 1), &[]),
        ] {
            assert_eq!(names(&default, kernel), expected, "{kernel:?}");
        }
        assert_eq!(names(&xfs(0b0001, 0b0011), (3, 10)), [""; 0]);
        assert_eq!(names(&xfs(0b1101, 32), (5, 14)), ["nrext64"]);
        let mut old = default;
        old[101] = 0xb4;
        assert_eq!(names(&old, (3, 10)), [""; 0]);
        let mut ext = [0; SUPERBLOCK_AREA];
        ext[1080..1082].copy_from_slice(&EXT_MAGIC);
        ext[1120..1124].copy_from_slice(&0x2000_u32.to_le_bytes());
        assert_eq!(names(&ext, (3, 10)), ["metadata_csum_seed"]);
        assert_eq!(names(&ext, (4, 4)), [""; 0]);
        assert_eq!(names(&[0; SUPERBLOCK_AREA], (3, 10)), [""; 0]);
    }

    #[test]
    fn the_refusal_contains_both_remedies() {
        let default = xfs(0b1101, 0b1011);
        let found = find_unsupported(&default, (3, 10));
        assert_eq!(
            describe_unsupported(FilesystemFormat::Xfs, "/srv", "3.10.0-1160.el7.x86_64", &found),
            "the kernel 3.10.0-1160.el7.x86_64 of the image cannot mount /srv (xfs): this kernel does not support reflink, inobtcount, bigtime; use an image with Linux 5.10 or later, or create the filesystem with createoptions: [\"-m\", \"reflink=0,inobtcount=0,bigtime=0\"]"
        );
        let nrext = xfs(0, 32);
        let found = find_unsupported(&nrext, (5, 14));
        let message = describe_unsupported(FilesystemFormat::Xfs, "/srv", "5.14.0", &found);
        assert!(message.ends_with("use an image with Linux 5.19 or later"), "{message}");
    }

    #[test]
    #[ignore = "needs mkfs.xfs and mkfs.ext4"]
    fn loop_superblocks_of_the_tools_are_read() {
        for (tool, options, kernel, expected) in [
            ("mkfs.xfs", &["-q"][..], (3, 10), &["reflink", "inobtcount", "bigtime"][..]),
            ("mkfs.xfs", &["-q", "-m", "reflink=0,inobtcount=0,bigtime=0"], (3, 10), &[]),
            ("mkfs.xfs", &["-q", "-m", "inobtcount=0,bigtime=0"], (4, 18), &[]),
            (
                "mkfs.ext4",
                &["-q", "-F", "-O", "metadata_csum_seed,project"],
                (3, 10),
                &["metadata_csum_seed", "project"],
            ),
            ("mkfs.ext4", &["-q", "-F"], (4, 4), &[]),
        ] {
            let file = tempfile::NamedTempFile::new().unwrap();
            file.as_file().set_len(400 << 20).unwrap();
            ToolCommand::new(tool).args(options).arg(file.path()).run().unwrap();
            let mut area = [0; SUPERBLOCK_AREA];
            file.as_file().read_exact_at(&mut area, 0).unwrap();
            assert_eq!(names(&area, kernel), expected, "{tool} {options:?}");
        }
    }
}
