//! Image formats other than tar and raw disk image. If an image in one of these formats were written unchanged, the
//! disk would be unbootable. The formats are recognized by the first bytes of the image.

use crate::pipeline::CompressionFormat;

/// Magic numbers of image formats, each with its offset in the image.
const MAGICS: [(usize, &[u8], ForeignFormat); 42] = [
    (0, b"KDMV", ForeignFormat::Disk("VMDK")),
    (0, b"COWD", ForeignFormat::Disk("VMDK")),
    (0, b"# Disk DescriptorFile", ForeignFormat::Disk("VMDK")),
    (0, b"conectix", ForeignFormat::Disk("VHD")),
    (0, b"vhdxfile", ForeignFormat::Disk("VHDX")),
    (0x40, &[0x7f, 0x10, 0xda, 0xbe], ForeignFormat::Disk("VDI")),
    (0, b"QED\0", ForeignFormat::Disk("QED")),
    (0, b"WithoutFreeSpace", ForeignFormat::Disk("Parallels")),
    (0, b"WithouFreSpacExt", ForeignFormat::Disk("Parallels")),
    (0, b"Bochs Virtual HD Image", ForeignFormat::Disk("Bochs")),
    (0, &[0x3a, 0xff, 0x26, 0xed], ForeignFormat::Other("Android sparse image")),
    (0, b"partclone-image", ForeignFormat::Other("partclone image")),
    (0, b"\0ntfsclone-image", ForeignFormat::Other("ntfsclone image")),
    (0, b"PaRtImAgE-VoLuMe", ForeignFormat::Other("Partimage image")),
    (0, b"EVF\x09\x0d\x0a\xff\0", ForeignFormat::Other("EnCase image (E01)")),
    (0, b"AFF10\r\n\0", ForeignFormat::Other("AFF image")),
    (0, b"FsArCh_", ForeignFormat::Other("FSArchiver archive")),
    (0, b"MSWIM\0\0\0", ForeignFormat::Other("WIM image")),
    (0, b"PK\x03\x04", ForeignFormat::Archive("zip")),
    (0, b"PK\x05\x06", ForeignFormat::Archive("zip")),
    (0, b"PK\x07\x08", ForeignFormat::Archive("zip")),
    (0, b"7z\xbc\xaf\x27\x1c", ForeignFormat::Archive("7z")),
    (0, b"Rar!\x1a\x07", ForeignFormat::Archive("RAR")),
    (0, b"xar!", ForeignFormat::Archive("xar")),
    (0, b"!<arch>\n", ForeignFormat::Archive("ar")),
    (0, b"070701", ForeignFormat::Archive("cpio")),
    (0, b"070702", ForeignFormat::Archive("cpio")),
    (0, b"070707", ForeignFormat::Archive("cpio")),
    (0, &[0xed, 0xab, 0xee, 0xdb], ForeignFormat::Archive("RPM")),
    (0, b"LRZI", ForeignFormat::Compressed("lrzip")),
    (0, b"7kSt", ForeignFormat::Compressed("zpaq")),
    (0, b"LZIP", ForeignFormat::Compressed("lzip")),
    (0, b"\x89LZO\0\r\n\x1a\n", ForeignFormat::Compressed("lzop")),
    (0, &[0x02, 0x21, 0x4c, 0x18], ForeignFormat::Compressed("legacy lz4")),
    (0, &[0x1f, 0x9d], ForeignFormat::Compressed("compress")),
    (0, &[0x1f, 0xa0], ForeignFormat::Compressed("compress")),
    (0, b"\xff\x06\0\0sNaPpY", ForeignFormat::Compressed("snappy")),
    (0, b"MSCF\0\0\0\0", ForeignFormat::Archive("cabinet")),
    (0, b"age-encryption.org/", ForeignFormat::Other("age-encrypted file")),
    (0, b"Salted__", ForeignFormat::Other("OpenSSL-encrypted file")),
    (0, b"-----BEGIN PGP", ForeignFormat::Other("PGP message")),
    (0, b"%PDF-", ForeignFormat::Other("PDF document")),
];

/// Number of bytes that are examined to detect the type of a text file.
const TEXT_BYTES: usize = 512;

/// Format of an image that must be converted before it can be installed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ForeignFormat {
    /// Container of a virtual disk.
    Disk(&'static str),
    Compressed(&'static str),
    Archive(&'static str),
    Other(&'static str),
}

impl ForeignFormat {
    /// Returns the format of data that begins with a known magic number; `None` if no magic number matches.
    pub(crate) fn detect_magic(head: &[u8]) -> Option<ForeignFormat> {
        let named = MAGICS.iter().find(|(at, magic, _)| head.get(*at..).is_some_and(|rest| rest.starts_with(magic)));
        let is_bzip2 = head.starts_with(b"BZh")
            && matches!(head.get(3), Some(b'1'..=b'9'))
            && head.get(4..10).is_none_or(|magic| magic == b"1AY&SY");
        named.map(|(_, _, format)| *format).or(is_bzip2.then_some(ForeignFormat::Compressed("bzip2")))
    }

    /// Returns the format of data without a partition table. The caller must have checked that the data does not
    /// contain a partition table, because some formats cannot be distinguished from a partition table.
    pub(crate) fn detect(head: &[u8]) -> Option<ForeignFormat> {
        let compressed = || nested_compression(head).map(ForeignFormat::Compressed);
        ForeignFormat::detect_magic(head).or_else(compressed).or_else(|| detect_text(head).map(ForeignFormat::Other))
    }

    /// Returns the error message for an image in this format, with a remedy.
    pub(crate) fn refusal(self) -> String {
        match self {
            ForeignFormat::Disk(name) => format!(
                "the image is a {name}, which is not supported; convert it with `qemu-img convert -O qcow2`, then pack it with \
                 `drophammer image pack`"
            ),
            ForeignFormat::Compressed(name) => format!(
                "the image is compressed with {name}, which is not supported; decompress it, then pack it with \
                 `drophammer image pack`"
            ),
            ForeignFormat::Archive(name) => {
                format!(
                    "the image is a {name} archive; extract the disk image, then pack it with `drophammer image pack`"
                )
            }
            ForeignFormat::Other(name) => {
                format!("the image is not a disk image; detected type: {name}; check its URL")
            }
        }
    }
}

/// Returns the name of the compression format if data is still compressed after decompression.
fn nested_compression(head: &[u8]) -> Option<&'static str> {
    match CompressionFormat::detect(head) {
        Some(CompressionFormat::Zstd) => Some("zstd twice"),
        Some(CompressionFormat::Gzip) => Some("gzip twice"),
        Some(CompressionFormat::Xz) => Some("xz twice"),
        Some(CompressionFormat::Lz4) => Some("lz4 twice"),
        Some(CompressionFormat::Plain) | None => is_lzma(head).then_some("lzma"),
    }
}

/// Returns whether data begins with the header of xz's `.lzma` format. The header has no magic number, and consists of
/// properties, dictionary size, and uncompressed size.
fn is_lzma(head: &[u8]) -> bool {
    let Some((header, rest)) = head.split_first_chunk::<13>() else { return false };
    let number =
        |range: std::ops::Range<usize>| header[range].iter().rfold(0_u64, |sum, byte| sum << 8 | u64::from(*byte));
    let (properties, dictionary, size) = (header[0], number(1..5), number(5..13));
    let is_usual = dictionary.is_power_of_two() || (dictionary / 3).is_power_of_two();
    let has_size = size == u64::MAX || (1..1 << 40).contains(&size);
    properties == 0x5d && dictionary >= 4096 && is_usual && has_size && rest.first() == Some(&0)
}

/// Returns the type of a text file, such as the error page of a web server.
fn detect_text(head: &[u8]) -> Option<&'static str> {
    let start = &head[..head.len().min(TEXT_BYTES)];
    let start = start.strip_prefix(b"\xef\xbb\xbf").unwrap_or(start);
    let is_text = |byte: &u8| byte.is_ascii_graphic() || byte.is_ascii_whitespace() || *byte >= 0x80;
    if start.is_empty()
        || !start.iter().all(is_text)
        || start.iter().filter(|byte| byte.is_ascii()).count() * 2 < start.len()
    {
        return None;
    }
    let text = start.trim_ascii_start().to_ascii_lowercase();
    Some(match text.as_slice() {
        [b'<', b'!' | b'h' | b'b', ..] => "HTML page",
        [b'<', b'?', ..] => "XML document",
        [b'{' | b'[', ..] => "JSON document",
        _ if text.starts_with(b"version https://git-lfs") => "Git LFS pointer",
        _ => "text",
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn padded(start: &[u8]) -> Vec<u8> {
        let mut bytes = start.to_vec();
        bytes.resize(8192, 0);
        bytes
    }

    #[test]
    fn foreign_formats_are_named() {
        let vdi = [&[b'<'; 0x40][..], &[0x7f, 0x10, 0xda, 0xbe]].concat();
        let lzma = [0x5d, 0, 0, 0x80, 0, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0, 1];
        for (start, name) in [
            (&b"KDMV\x01\0\0\0"[..], "VMDK"),
            (b"# Disk DescriptorFile\nversion=1\n", "VMDK"),
            (b"conectix\0", "VHD,"),
            (b"vhdxfile", "VHDX"),
            (&vdi, "VDI"),
            (b"BZh91AY&SY", "bzip2"),
            (b"PK\x03\x04\x14\0", "zip archive"),
            (&lzma, "lzma"),
            (&[0x02, 0x21, 0x4c, 0x18, 1, 2], "legacy lz4"),
            (&[0x28, 0xb5, 0x2f, 0xfd, 4], "zstd twice"),
            (&[0x1f, 0x8b, 8, 0], "gzip twice"),
            (&[0x89, b'L', b'Z', b'O', 0, 13, 10, 26, 10], "lzop"),
            (b"7z\xbc\xaf\x27\x1c", "7z archive"),
            (b"\0ntfsclone-image\x0a\0", "ntfsclone"),
            (b"PaRtImAgE-VoLuMe\0", "Partimage"),
            (b"EVF\x09\x0d\x0a\xff\0\x01", "E01"),
            (b"LRZI\0\x06", "lrzip"),
        ] {
            let format = ForeignFormat::detect(&padded(start)).map(ForeignFormat::refusal).unwrap_or_default();
            assert!(format.contains(name), "{name}: {format}");
        }
        for (text, name) in [
            ("<!DOCTYPE html>\n<html>", ": HTML page"),
            ("  <html><body>404 Not Found", ": HTML page"),
            ("<?xml version=\"1.0\"?><Error/>", ": XML document"),
            ("{\"errors\": []}", ": JSON document"),
            ("version https://git-lfs.github.com/spec/v1\noid sha256:1\n", ": Git LFS pointer"),
            ("404 page not found\n", ": text"),
        ] {
            let refusal = ForeignFormat::detect(text.as_bytes()).unwrap().refusal();
            assert!(refusal.contains(name), "{refusal}");
        }
    }

    #[test]
    fn boot_sectors_and_filesystems_are_not_foreign() {
        let grub = [0xeb, 0x63, 0x90, 0x10, 0x8e, 0xd0, 0xbc, 0x00];
        let fat = b"\xeb\x3c\x90mkfs.fat\0\x02\x04";
        let luks = b"LUKS\xba\xbe\0\x02";
        for start in [
            &grub[..],
            fat,
            luks,
            b"XFSB\0\0\x10\0",
            b"hsqs\x01\0\0\0",
            b"\x5d\0\0\0\0",
            b"",
            b"BZh is no magic",
            &[0; 16],
        ] {
            assert_eq!(ForeignFormat::detect(&padded(start)), None, "{start:?}");
        }
    }

    /// Detects images that were written by the tools of each format.
    #[test]
    fn images_written_by_other_tools_are_named() {
        let dir = tempfile::tempdir().unwrap();
        let path = |name: &str| dir.path().join(name).display().to_string();
        let run = |program: &str, args: &[&str]| {
            let status = std::process::Command::new(program).args(args).stdout(std::process::Stdio::null()).status();
            assert!(status.is_ok_and(|status| status.success()), "{program} {args:?}");
        };
        let disk: Vec<u8> = (0..1 << 20).map(|at: u32| (at >> 9) as u8).collect();
        std::fs::write(path("raw"), disk).unwrap();
        for (format, name) in [
            ("vmdk", "VMDK"),
            ("vpc", "VHD"),
            ("vhdx", "VHDX"),
            ("vdi", "VDI"),
            ("qed", "QED"),
            ("parallels", "Parallels"),
        ] {
            run("qemu-img", &["convert", "-f", "raw", "-O", format, &path("raw"), &path(format)]);
            let head = std::fs::read(path(format)).unwrap();
            assert_eq!(ForeignFormat::detect(&head), Some(ForeignFormat::Disk(name)));
        }
        run("bzip2", &["-k", &path("raw")]);
        run("xz", &["-k", "--format=lzma", &path("raw")]);
        for (ending, name) in [("bz2", "bzip2"), ("lzma", "lzma")] {
            let head = std::fs::read(path(&format!("raw.{ending}"))).unwrap();
            assert_eq!(ForeignFormat::detect(&head), Some(ForeignFormat::Compressed(name)));
        }
        assert_eq!(ForeignFormat::detect(&std::fs::read(path("raw")).unwrap()), None);
    }
}
