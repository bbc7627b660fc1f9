//! Tar archives and compressed images for tests.

use std::io::Write;

/// Returns incompressible bytes that are the same in every run.
pub fn noise(length: usize) -> Vec<u8> {
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 32) as u8
    };
    (0..length).map(|_| next()).collect()
}

/// Compresses content with checksums, as the compression tools do by default.
pub fn compress(format: &str, content: &[u8]) -> Vec<u8> {
    compress_all(format, &[content])
}

/// Compresses several pieces of content into one stream.
pub fn compress_all(format: &str, pieces: &[&[u8]]) -> Vec<u8> {
    let write = |to: &mut dyn Write| pieces.iter().for_each(|piece| to.write_all(piece).unwrap());
    match format {
        "zstd" => {
            let mut encoder = zstd::Encoder::new(Vec::new(), 1).unwrap();
            encoder.include_checksum(true).unwrap();
            write(&mut encoder);
            encoder.finish().unwrap()
        }
        "lz4" => {
            let info = lz4_flex::frame::FrameInfo::new()
                .content_checksum(true)
                .block_size(lz4_flex::frame::BlockSize::Max64KB)
                .block_mode(lz4_flex::frame::BlockMode::Independent);
            let mut encoder = lz4_flex::frame::FrameEncoder::with_frame_info(info, Vec::new());
            write(&mut encoder);
            encoder.finish().unwrap()
        }
        "xz" => {
            let mut encoder = liblzma::write::XzEncoder::new(Vec::new(), 1);
            write(&mut encoder);
            encoder.finish().unwrap()
        }
        "plain" => pieces.concat(),
        _ => {
            let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
            write(&mut encoder);
            encoder.finish().unwrap()
        }
    }
}

/// Returns the peak resident memory of this process in KiB, without file mappings.
pub fn peak_kib() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let kib = |name: &str| -> u64 {
        let line = status.lines().find_map(|line| line.strip_prefix(name)).unwrap();
        line.trim().trim_end_matches(" kB").parse().unwrap()
    };
    // File mappings are subtracted, because the number of resident pages of the program file depends on the page cache.
    kib("VmHWM:").saturating_sub(kib("RssFile:"))
}

/// Builder of a tar archive, in which the user who runs the tests owns all members.
#[derive(Default)]
pub struct Tar(pub Vec<u8>);

impl Tar {
    pub fn new() -> Tar {
        Tar(Vec::new())
    }

    /// Adds a member, after `change` has modified its header.
    pub fn raw(mut self, path: &str, kind: u8, content: &[u8], change: impl Fn(&mut tar::Header)) -> Tar {
        // Some member types exist only in the GNU format.
        let is_gnu = matches!(kind, b'S' | b'L' | b'K');
        let mut header = if is_gnu { tar::Header::new_gnu() } else { tar::Header::new_ustar() };
        header.as_old_mut().name[..path.len()].copy_from_slice(path.as_bytes());
        header.set_entry_type(tar::EntryType::new(kind));
        header.set_size(content.len() as u64);
        header.set_mode(0o644);
        header.set_mtime(1_000_000_000);
        header.set_uid(nix::unistd::getuid().as_raw().into());
        header.set_gid(nix::unistd::getgid().as_raw().into());
        change(&mut header);
        header.set_cksum();
        self.0.extend(header.as_bytes());
        self.0.extend(content);
        self.0.resize(self.0.len().next_multiple_of(512), 0);
        self
    }

    pub fn file(self, path: &str, content: &[u8]) -> Tar {
        self.raw(path, b'0', content, |_| ())
    }

    pub fn directory(self, path: &str) -> Tar {
        self.raw(path, b'5', b"", |header| header.set_mode(0o755))
    }

    pub fn symlink(self, path: &str, target: &str) -> Tar {
        self.raw(path, b'2', b"", |header| header.set_link_name_literal(target).unwrap())
    }

    pub fn hard_link(self, path: &str, target: &str) -> Tar {
        self.raw(path, b'1', b"", |header| header.set_link_name_literal(target).unwrap())
    }

    /// Adds a PAX header with these records, such as `size=9`.
    pub fn pax(self, kind: u8, records: &[&[u8]]) -> Tar {
        let records: Vec<u8> = records.iter().flat_map(|record| pax_record(record)).collect();
        self.raw("pax", kind, &records, |_| ())
    }

    pub fn end(mut self) -> Vec<u8> {
        self.0.extend([0; 1024]);
        self.0
    }
}

/// Formats a PAX record, `LENGTH KEY=VALUE\n`. The length includes its own digits.
pub fn pax_record(pair: &[u8]) -> Vec<u8> {
    let digits = (1..).find(|digits| (digits + pair.len() + 2).to_string().len() == *digits).unwrap();
    [format!("{} ", digits + pair.len() + 2).as_bytes(), pair, b"\n"].concat()
}
