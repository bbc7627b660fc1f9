//! Parser of initramfs contents: concatenated cpio archives, each of which may be compressed
//! (Documentation/driver-api/early-userspace/buffer-format.rst of Linux).

use common::encoding::join_hex;
use std::collections::BTreeSet;
use std::io::{self, BufRead, BufReader, Read};

/// Maximum size of the unpacked contents in bytes; the kernel could not unpack a larger initramfs.
const MAXIMUM_UNPACKED_BYTES: u64 = 4 << 30;
const MAXIMUM_NAME_BYTES: u64 = 4096;
const MAXIMUM_CONF_BYTES: u64 = 1 << 20;

/// Size of a header, including the magic.
const HEADER_BYTES: usize = 110;
const TRAILER_NAME: &str = "TRAILER!!!";

/// Contents of an initramfs that determine whether the machine can boot with it.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct InitramfsContent {
    /// Names of kernel modules, with underscores.
    pub modules: BTreeSet<String>,
    /// Names of files in program directories.
    pub programs: BTreeSet<String>,
    pub mdadm_conf: Option<String>,
    pub is_dracut: bool,
}

/// Magic numbers of compressed data: gzip, zstd, xz, lz4, bzip2, lzma, and lzo. Linux supports all of them.
const COMPRESSED: [&[u8]; 7] =
    [b"\x1f\x8b", b"\x28\xb5\x2f\xfd", b"\xfd7zXZ\0", b"\x02\x21\x4c\x18", b"BZh", b"\x5d\0\0", b"\x89LZO"];

/// Parses an initramfs.
///
/// # Errors
/// Returns an error if the initramfs is damaged, or its compression is not supported.
pub(crate) fn read_initramfs(file: impl Read) -> io::Result<InitramfsContent> {
    let mut content = InitramfsContent::default();
    let mut from = BufReader::with_capacity(1 << 20, file.take(MAXIMUM_UNPACKED_BYTES));
    let mut unpacked_bytes = MAXIMUM_UNPACKED_BYTES;
    read_archives(&mut from, Some(&mut unpacked_bytes), &mut content)?;
    Ok(content)
}

/// Parses archives up to the end of `from`. `unpacked_bytes` is the maximum total size of the decompressed contents; if
/// it is `None`, compressed archives are rejected.
fn read_archives(
    from: &mut impl BufRead,
    mut unpacked_bytes: Option<&mut u64>,
    content: &mut InitramfsContent,
) -> io::Result<()> {
    let mut is_unpacked = false;
    loop {
        // Skips the zero bytes with which the space between archives is padded.
        let zeros = from.fill_buf()?.iter().take_while(|byte| **byte == 0).count();
        if zeros > 0 {
            from.consume(zeros);
            continue;
        }
        let mut start = [0; 6];
        if !fill_buffer(from, &mut start)? {
            return Ok(());
        }
        match (start, &mut unpacked_bytes) {
            ([b'0', b'7', b'0', b'7', b'0', b'1' | b'2'], _) => read_archive(from, content)?,
            // Compressed archives may be followed by other data, such as a boot configuration, which is ignored.
            _ if is_unpacked && !COMPRESSED.iter().any(|magic| start.starts_with(magic)) => return Ok(()),
            (_, Some(most)) => {
                read_compressed(start, from, most, content)?;
                is_unpacked = true;
            }
            (_, None) => return Err(unknown_format(&start)),
        }
    }
}

/// Parses one compressed stream, and subtracts the size of its decompressed contents from the remaining budget `most`.
fn read_compressed(
    start: [u8; 6],
    from: &mut impl BufRead,
    most: &mut u64,
    content: &mut InitramfsContent,
) -> io::Result<()> {
    let whole = (&start[..]).chain(from);
    let plain: Box<dyn Read + '_> = match start {
        [0x1f, 0x8b, ..] => Box::new(flate2::bufread::GzDecoder::new(whole)),
        [0x28, 0xb5, 0x2f, 0xfd, ..] => Box::new(zstd::stream::read::Decoder::with_buffer(whole)?.single_frame()),
        [0xfd, b'7', b'z', b'X', b'Z', 0] => Box::new(liblzma::bufread::XzDecoder::new(whole)),
        _ => return Err(unknown_format(&start)),
    };
    let mut plain = BufReader::with_capacity(1 << 20, plain.take(*most));
    read_archives(&mut plain, None, content)?;
    *most = plain.get_ref().limit();
    Ok(())
}

fn unknown_format(start: &[u8]) -> io::Error {
    io::Error::other(format!(
        "unsupported format; supported formats: cpio, gzip, zstd and xz; the file begins with {start}",
        start = join_hex(start, " ")
    ))
}

/// Fills the buffer; returns `false` at the end of the initramfs.
fn fill_buffer(from: &mut impl Read, into: &mut [u8]) -> io::Result<bool> {
    let got = from.read(&mut into[..1])?;
    if got == 0 {
        return Ok(false);
    }
    from.read_exact(&mut into[1..]).map(|()| true)
}

/// Parses an archive after its first magic number was read.
fn read_archive(from: &mut impl BufRead, content: &mut InitramfsContent) -> io::Result<()> {
    let mut magic_is_read = true;
    loop {
        let mut header = [b'0'; HEADER_BYTES];
        let begin = if magic_is_read { 6 } else { 0 };
        from.read_exact(&mut header[begin..])?;
        magic_is_read = false;
        let (size, name_size) = (parse_field(&header, 6)?, parse_field(&header, 11)?);
        if name_size == 0 || name_size > MAXIMUM_NAME_BYTES {
            return Err(io::Error::other("the length of a member's name in the cpio archive is invalid"));
        }
        let mut name = vec![0; name_size as usize];
        from.read_exact(&mut name)?;
        skip_bytes(from, padding_bytes(HEADER_BYTES as u64 + name_size))?;
        let name = String::from_utf8_lossy(&name);
        let name = name.trim_end_matches('\0');
        if name == TRAILER_NAME {
            return Ok(());
        }
        let mut rest = size + padding_bytes(size);
        if is_mdadm_conf(name) && size <= MAXIMUM_CONF_BYTES {
            let mut text = Vec::new();
            rest -= from.by_ref().take(size).read_to_end(&mut text)? as u64;
            content.mdadm_conf = Some(String::from_utf8_lossy(&text).into_owned());
        }
        content.record_path(name);
        skip_bytes(from, rest)?;
    }
}

/// Parses one of the eight-digit fields after the magic.
fn parse_field(header: &[u8; HEADER_BYTES], number: usize) -> io::Result<u64> {
    let digits = &header[6 + number * 8..][..8];
    let value = std::str::from_utf8(digits).ok().and_then(|digits| u64::from_str_radix(digits, 16).ok());
    value.ok_or_else(|| io::Error::other("damaged header"))
}

fn padding_bytes(size: u64) -> u64 {
    (4 - size % 4) % 4
}

fn skip_bytes(from: &mut impl BufRead, bytes: u64) -> io::Result<()> {
    let skipped = io::copy(&mut from.take(bytes), &mut io::sink())?;
    if skipped == bytes { Ok(()) } else { Err(io::ErrorKind::UnexpectedEof.into()) }
}

fn is_mdadm_conf(name: &str) -> bool {
    matches!(name.trim_start_matches("./"), "etc/mdadm.conf" | "etc/mdadm/mdadm.conf")
}

impl InitramfsContent {
    fn record_path(&mut self, path: &str) {
        let path = path.trim_start_matches("./");
        let (dir, name) = path.rsplit_once('/').unwrap_or(("", path));
        if let Some((module, "" | ".xz" | ".zst" | ".gz")) = name.split_once(".ko") {
            self.modules.insert(module.replace('-', "_"));
        } else if dir.ends_with("bin") {
            self.programs.insert(name.to_owned());
        }
        self.is_dracut |= dir.ends_with("lib/dracut");
    }
}

#[cfg(test)]
pub(in super::super) mod tests {
    use super::*;
    use std::io::Write;

    /// Returns an archive with these files.
    pub(crate) fn cpio(files: &[(&str, &str)]) -> Vec<u8> {
        let mut bytes = Vec::new();
        for (name, text) in files.iter().chain(&[(TRAILER_NAME, "")]) {
            let mut fields = [0; 13];
            (fields[6], fields[11]) = (text.len(), name.len() + 1);
            bytes.extend(b"070701");
            bytes.extend(fields.iter().flat_map(|field| format!("{field:08x}").into_bytes()));
            bytes.extend(name.bytes().chain([0]));
            bytes.resize(bytes.len().next_multiple_of(4), 0);
            bytes.extend(text.bytes());
            bytes.resize(bytes.len().next_multiple_of(4), 0);
        }
        bytes
    }

    fn gzip(bytes: &[u8]) -> Vec<u8> {
        let mut writer = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
        writer.write_all(bytes).unwrap();
        writer.finish().unwrap()
    }

    #[test]
    fn modules_programs_and_arrays_are_found_in_every_compression() {
        let files = [
            ("usr/lib/modules/6.1/kernel/fs/ext4/ext4.ko", "x"),
            ("usr/lib/modules/6.1/kernel/drivers/md/dm-mod.ko.zst", "xx"),
            ("usr/sbin/mdadm", "xxx"),
            ("etc/mdadm/mdadm.conf", "ARRAY /dev/md0 UUID=1\n"),
            ("usr/lib/dracut/hooks", ""),
        ];
        let main = cpio(&files);
        let early = [cpio(&[("kernel/x86/microcode/GenuineIntel.bin", "xxxxx")]), vec![0; 512]].concat();
        let xz = {
            let mut writer = liblzma::write::XzEncoder::new(Vec::new(), 1);
            writer.write_all(&main).unwrap();
            writer.finish().unwrap()
        };
        let zstd = zstd::stream::encode_all(&main[..], 1).unwrap();
        for (what, main) in [("plain", main.clone()), ("gzip", gzip(&main)), ("zstd", zstd), ("xz", xz)] {
            let content = read_initramfs(&[&early[..], &main, &[0; 3]].concat()[..]).unwrap();
            assert_eq!(content.modules.iter().map(String::as_str).collect::<Vec<_>>(), ["dm_mod", "ext4"], "{what}");
            assert!(content.programs.contains("mdadm") && content.is_dracut, "{what}");
            assert_eq!(content.mdadm_conf.as_deref(), Some("ARRAY /dev/md0 UUID=1\n"), "{what}");
        }
    }

    /// Linux unpacks consecutive compressed archives, and ignores other data after them.
    #[test]
    fn all_concatenated_archives_are_parsed() {
        let first = cpio(&[("lib/modules/6.1/ext4.ko", "x")]);
        let second = cpio(&[("sbin/mdadm", "x")]);
        let zstd = |bytes: &[u8]| zstd::stream::encode_all(bytes, 1).unwrap();
        let xz = |bytes: &[u8]| {
            let mut writer = liblzma::write::XzEncoder::new(Vec::new(), 1);
            writer.write_all(bytes).unwrap();
            writer.finish().unwrap()
        };
        let config = b"kernel.panic = 1\n\0\0\x11\0\0\0\x55\x05\0\0#BOOTCONFIG\n".to_vec();
        for (what, parts) in [
            ("gzip", [gzip(&first), gzip(&second), vec![]]),
            ("padded gzip", [gzip(&first), vec![0; 509], gzip(&second)]),
            ("zstd", [zstd(&first), zstd(&second), vec![]]),
            ("xz", [xz(&first), vec![0; 4], xz(&second)]),
            ("several formats", [gzip(&first), zstd(&second), vec![]]),
            ("compressed, then plain", [gzip(&first), second.clone(), vec![]]),
            ("a boot configuration", [gzip(&first), gzip(&second), config]),
        ] {
            let content = read_initramfs(&parts.concat()[..]).unwrap();
            assert!(content.modules.contains("ext4") && content.programs.contains("mdadm"), "{what}: {content:?}");
        }
        for unsupported in [&b"\x02\x21\x4c\x18 lz4"[..], b"BZh91AY&SY", b"\x5d\0\0\x80\0\xff"] {
            assert!(read_initramfs(&[&gzip(&first), unsupported].concat()[..]).is_err(), "{unsupported:?}");
        }
    }

    #[test]
    fn damaged_initramfs_is_an_error() {
        let good = cpio(&[("a", "b")]);
        let mut impossible = good.clone();
        impossible[6 + 11 * 8..][..8].copy_from_slice(b"ffffffff");
        let mut no_number = good.clone();
        no_number[6 + 6 * 8..][..8].copy_from_slice(b"zzzzzzzz");
        for bytes in [
            &b"\x02\x21\x4c\x18 lz4"[..],
            b"070701",
            &good[..good.len() - 20],
            &impossible,
            &no_number,
            &gzip(b"text that is none"),
        ] {
            assert!(read_initramfs(bytes).is_err(), "{bytes:?}");
        }
        assert_eq!(read_initramfs(&b""[..]).unwrap(), InitramfsContent::default());
    }
}
