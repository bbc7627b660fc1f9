//! Features of filesystems. A kernel can mount a filesystem only if it supports the features of that filesystem. The
//! mkfs in the ramdisk may be newer than the image's kernel, and may enable features that this kernel does not support.

use model::image_boot_contents::{LinuxVersion, parse_linux_version};
use model::layout::FilesystemFormat;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

/// Size of the area that contains a superblock, in bytes.
const SUPERBLOCK_AREA: usize = 4096;
/// Magic number at the start of an xfs superblock.
const XFS_MAGIC: &[u8] = b"XFSB";
/// Magic number in an ext superblock.
const EXT_MAGIC: [u8; 2] = [0x53, 0xef];
/// Offset of the ext superblock in its area.
const EXT_SUPERBLOCK: usize = 1024;
/// Magic number in a btrfs superblock.
const BTRFS_MAGIC: &[u8] = b"_BHRfS_M";
/// Offset of the btrfs superblock on its device.
const BTRFS_SUPERBLOCK: u64 = 64 << 10;

/// Filesystem feature with the first version of Linux that supports it.
struct Feature {
    name: &'static str,
    /// Offset of the 32-bit field in [`SUPERBLOCK_AREA`], and the bit of the feature in this field.
    field: usize,
    bit: u32,
    since: LinuxVersion,
    /// Create options that disable the feature, comma-separated; empty if mkfs does not enable the feature by default.
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

/// Features of btrfs (fs/btrfs/tree.h, include/uapi/linux/btrfs.h); fields are little-endian. A kernel that does not
/// support a feature of the field at offset 180 mounts the filesystem read-only. mkfs.btrfs 6.2 accepts only one option
/// `-O` and one option `-R`.
const BTRFS: [Feature; 9] = [
    Feature { name: "no-holes", field: 188, bit: 0x200, since: (3, 14), without: "^no-holes" },
    Feature { name: "free-space-tree", field: 180, bit: 1, since: (4, 5), without: "^free-space-tree" },
    Feature { name: "compress_zstd", field: 188, bit: 0x10, since: (4, 14), without: "" },
    Feature { name: "metadata_uuid", field: 188, bit: 0x400, since: (5, 0), without: "" },
    Feature { name: "raid1c34", field: 188, bit: 0x800, since: (5, 5), without: "" },
    Feature { name: "zoned", field: 188, bit: 0x1000, since: (5, 12), without: "" },
    Feature { name: "block-group-tree", field: 180, bit: 8, since: (6, 1), without: "" },
    Feature { name: "raid-stripe-tree", field: 188, bit: 0x4000, since: (6, 7), without: "" },
    Feature { name: "squota", field: 188, bit: 0x1_0000, since: (6, 7), without: "" },
];

/// Features of ext3 and ext4 that old releases of e2fsck do not support (e2fsprogs' lib/ext2fs/ext2fs.h and release
/// notes). The kernel of an image with such an e2fsck may nevertheless support the feature: for example, Linux has
/// supported metadata_csum since 3.5.
const E2FSCK: [Feature; 3] = [
    Feature { name: "64bit", field: 1120, bit: 0x80, since: (1, 42), without: "^64bit" },
    Feature { name: "metadata_csum", field: 1124, bit: 0x400, since: (1, 43), without: "^metadata_csum" },
    Feature { name: "orphan_file", field: 1116, bit: 0x1000, since: (1, 47), without: "^orphan_file" },
];

/// Superblock of a filesystem, with the fields of its features.
pub struct Superblock([u8; SUPERBLOCK_AREA]);

impl Superblock {
    /// Reads the superblock of a filesystem with this format; `None` if the features of the format are not known.
    ///
    /// # Errors
    /// Returns an error if the device cannot be read.
    pub fn read(device: &File, format: FilesystemFormat) -> io::Result<Option<Superblock>> {
        let offset = match format {
            FilesystemFormat::Xfs | FilesystemFormat::Ext3 | FilesystemFormat::Ext4 => 0,
            FilesystemFormat::Btrfs => BTRFS_SUPERBLOCK,
            _ => return Ok(None),
        };
        let mut area = [0; SUPERBLOCK_AREA];
        device.read_exact_at(&mut area, offset)?;
        Ok(Some(Superblock(area)))
    }

    /// Returns the reason why an image's kernel with the version `kernel` cannot mount the filesystem; `None` if it
    /// can, or if the version cannot be parsed. The text refers to the filesystem by `path`.
    pub fn explain_unsupported(&self, format: FilesystemFormat, path: &str, kernel: &str) -> Option<String> {
        let unsupported = self.find_unsupported(parse_linux_version(kernel)?);
        let remedy = describe_remedy(format, &unsupported)?;
        let (names, since) = describe_features(&unsupported);
        Some(format!(
            "the image's kernel {kernel} cannot mount {path} ({format}), because this kernel does not support {names}; use an image with Linux {since} or later{remedy}"
        ))
    }

    /// Returns the reason why this version of e2fsck cannot check the filesystem at this path; `None` if e2fsck can
    /// check it.
    pub fn explain_unchecked(
        &self,
        format: FilesystemFormat,
        path: &str,
        e2fsck: (&str, (u32, u32)),
    ) -> Option<String> {
        let (text, version) = e2fsck;
        let all = if self.is_ext() { &E2FSCK[..] } else { &[] };
        let unsupported = self.select_later(all, u32::from_le_bytes, version);
        let remedy = describe_remedy(format, &unsupported)?;
        let (names, since) = describe_features(&unsupported);
        Some(format!(
            "the image's e2fsck {text} cannot check {path} ({format}), because this version does not support {names}; use an image with e2fsck {since} or later{remedy}"
        ))
    }

    fn is_ext(&self) -> bool {
        self.0[EXT_SUPERBLOCK + 56..EXT_SUPERBLOCK + 58] == EXT_MAGIC
    }

    fn find_unsupported(&self, kernel: LinuxVersion) -> Vec<&'static Feature> {
        let (features, read): (&[Feature], ReadWord) = match &self.0 {
            // An xfs is checked only if the low bits of its version number are 5, because earlier versions do not have
            // the feature fields.
            area if area.starts_with(XFS_MAGIC) && area[101] & 0xf == 5 => (&XFS, u32::from_be_bytes),
            area if area[64..].starts_with(BTRFS_MAGIC) => (&BTRFS, u32::from_le_bytes),
            _ if self.is_ext() => (&EXT, u32::from_le_bytes),
            _ => return Vec::new(),
        };
        self.select_later(features, read, kernel)
    }

    /// Selects the features that the filesystem has but this version does not support.
    fn select_later<'a>(&self, features: &'a [Feature], read: ReadWord, version: (u32, u32)) -> Vec<&'a Feature> {
        let word = |at: usize| [self.0[at], self.0[at + 1], self.0[at + 2], self.0[at + 3]];
        let has = |feature: &Feature| read(word(feature.field)) & feature.bit != 0;
        features.iter().filter(|feature| version < feature.since && has(feature)).collect()
    }
}

type ReadWord = fn([u8; 4]) -> u32;

/// Returns the end of a message, which describes the remedy: the create options with which mkfs does not enable the
/// unsupported features. This text is empty if no options disable these features. Returns `None` if there are no
/// unsupported features.
fn describe_remedy(format: FilesystemFormat, unsupported: &[&Feature]) -> Option<String> {
    let without = unsupported.iter().map(|feature| feature.without).filter(|it| !it.is_empty());
    let (runtime, features): (Vec<&str>, Vec<&str>) = without.partition(|it| *it == "^free-space-tree");
    let option = if format == FilesystemFormat::Xfs { "-m" } else { "-O" };
    let options = [(option, features), ("-R", runtime)].into_iter().filter(|(_, values)| !values.is_empty());
    let options: Vec<String> =
        options.map(|(option, values)| format!("\"{option}\", \"{}\"", values.join(","))).collect();
    let remedy = match options.is_empty() {
        true => String::new(),
        false => format!(", or create the filesystem with createoptions: [{options}]", options = options.join(", ")),
    };
    (!unsupported.is_empty()).then_some(remedy)
}

/// Returns the names of the features, and the first version that supports all of them.
fn describe_features(unsupported: &[&Feature]) -> (String, String) {
    let names: Vec<&str> = unsupported.iter().map(|feature| feature.name).collect();
    let (major, minor) = unsupported.iter().map(|feature| feature.since).max().unwrap_or_default();
    (names.join(", "), format!("{major}.{minor}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::process::ToolCommand;

    fn names(superblock: &Superblock, kernel: LinuxVersion) -> Vec<&'static str> {
        superblock.find_unsupported(kernel).iter().map(|feature| feature.name).collect()
    }

    fn xfs(read_only_compatible: u32, incompatible: u32) -> Superblock {
        let mut area = [0; SUPERBLOCK_AREA];
        area[..4].copy_from_slice(XFS_MAGIC);
        area[100..102].copy_from_slice(&[0xb4, 0xb5]);
        area[212..216].copy_from_slice(&read_only_compatible.to_be_bytes());
        area[216..220].copy_from_slice(&incompatible.to_be_bytes());
        Superblock(area)
    }

    #[test]
    fn features_are_compared_with_the_kernel_version() {
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
        old.0[101] = 0xb4;
        assert_eq!(names(&old, (3, 10)), [""; 0]);
        let mut ext = [0; SUPERBLOCK_AREA];
        ext[1080..1082].copy_from_slice(&EXT_MAGIC);
        ext[1120..1124].copy_from_slice(&0x2000_u32.to_le_bytes());
        let ext = Superblock(ext);
        assert_eq!(names(&ext, (3, 10)), ["metadata_csum_seed"]);
        assert_eq!(names(&ext, (4, 4)), [""; 0]);
        assert_eq!(names(&Superblock([0; SUPERBLOCK_AREA]), (3, 10)), [""; 0]);
    }

    #[test]
    fn refusal_contains_both_remedies() {
        let explain = |superblock: &Superblock, kernel: &str| {
            superblock.explain_unsupported(FilesystemFormat::Xfs, "/srv", kernel).unwrap()
        };
        assert_eq!(
            explain(&xfs(0b1101, 0b1011), "3.10.0-1160.el7.x86_64"),
            "the image's kernel 3.10.0-1160.el7.x86_64 cannot mount /srv (xfs), because this kernel does not support reflink, inobtcount, bigtime; use an image with Linux 5.10 or later, or create the filesystem with createoptions: [\"-m\", \"reflink=0,inobtcount=0,bigtime=0\"]"
        );
        let message = explain(&xfs(0, 32), "5.14.0");
        assert!(message.ends_with("use an image with Linux 5.19 or later"), "{message}");
    }

    /// Creates a filesystem with the tool of this host, and reads its superblock.
    fn created(format: FilesystemFormat, options: &[&str]) -> Superblock {
        let file = tempfile::NamedTempFile::new().unwrap();
        file.as_file().set_len(400 << 20).unwrap();
        ToolCommand::new(format!("mkfs.{format}")).args(options).arg(file.path()).run().unwrap();
        Superblock::read(file.as_file(), format).unwrap().unwrap()
    }

    /// Extracts the value of `createoptions` from a message.
    fn remedy(message: &str) -> Vec<&str> {
        let (_, options) = message.split_once("createoptions: [").unwrap();
        options.trim_end_matches(']').split(", ").map(|option| option.trim_matches('"')).collect()
    }

    #[test]
    #[ignore = "needs mkfs.xfs, mkfs.ext4 and mkfs.btrfs"]
    fn loop_superblocks_of_mkfs_are_parsed() {
        use FilesystemFormat::{Btrfs, Ext4, Xfs};
        for (format, options, kernel, expected) in [
            (Xfs, &["-q"][..], (3, 10), &["reflink", "inobtcount", "bigtime"][..]),
            (Xfs, &["-q", "-m", "inobtcount=0,bigtime=0"], (4, 18), &[]),
            (Ext4, &["-q", "-F", "-O", "metadata_csum_seed,project"], (3, 10), &["metadata_csum_seed", "project"]),
            (Ext4, &["-q", "-F"], (4, 4), &[]),
            (Btrfs, &["-q"], (3, 10), &["no-holes", "free-space-tree"]),
            (Btrfs, &["-q"], (4, 5), &[]),
        ] {
            assert_eq!(names(&created(format, options), kernel), expected, "{format} {options:?}");
        }
    }

    #[test]
    #[ignore = "needs mkfs.xfs, mkfs.ext4 and mkfs.btrfs"]
    fn loop_remedies_are_accepted_by_mkfs_and_sufficient() {
        use FilesystemFormat::{Btrfs, Ext4, Xfs};
        for format in [Xfs, Btrfs] {
            let explain = |superblock: Superblock| superblock.explain_unsupported(format, "/srv", "3.10.0");
            let message = explain(created(format, &["-q"])).unwrap();
            assert_eq!(explain(created(format, &[&["-q"][..], &remedy(&message)].concat())), None, "{message}");
        }
        let explain = |superblock: Superblock| superblock.explain_unchecked(Ext4, "/", ("1.42.9", (1, 42)));
        let message = explain(created(Ext4, &["-q", "-F", "-O", "metadata_csum"])).unwrap();
        assert!(message.starts_with(
            "the image's e2fsck 1.42.9 cannot check / (ext4), because this version does not support metadata_csum"
        ));
        assert_eq!(explain(created(Ext4, &[&["-q", "-F"][..], &remedy(&message)].concat())), None, "{message}");
        let current = created(Ext4, &["-q", "-F", "-O", "metadata_csum"]);
        assert_eq!(current.explain_unchecked(Ext4, "/", ("1.43", (1, 43))), None);
    }
}
