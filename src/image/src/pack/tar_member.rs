//! Writes one member of a tar: a ustar header, preceded by a PAX header with the values that do not fit into the ustar
//! header. GNU tar, bsdtar and this program can read the result.

use super::seekable_zstd::FrameWriter;
use nix::errno::Errno;
use nix::unistd::{Whence, lseek};
use std::fs::{File, Metadata};
use std::io::{self, Read, Write};
use std::os::unix::fs::{FileExt, MetadataExt};
use tar::{Builder, EntryType, Header};

/// Length of the name fields in a ustar header, in bytes.
const NAME_BYTES: usize = 100;
const TAR_BLOCK_BYTES: usize = 512;

pub(crate) struct PackedMember<'a> {
    pub path: Vec<u8>,
    pub metadata: &'a Metadata,
    pub what: PackedKind,
    pub xattrs: Vec<(Vec<u8>, Vec<u8>)>,
    /// Upper limit of the modification time, in seconds since 1970. A later modification time is replaced by the limit.
    pub epoch: Option<i64>,
}

pub(crate) enum PackedKind {
    File(File),
    Directory,
    Symlink(Vec<u8>),
    /// Hard link to the earlier member with this path.
    HardLink(Vec<u8>),
    CharacterDevice,
    BlockDevice,
    Fifo,
}

/// Keys and values of a PAX header.
type PaxPairs = Vec<(String, Vec<u8>)>;

impl PackedMember<'_> {
    pub(crate) fn append_to<W: Write>(self, tar: &mut Builder<FrameWriter<W>>) -> io::Result<()> {
        let mut header = Header::new_ustar();
        header.set_mode(self.metadata.mode() & 0o7777);
        header.set_uid(self.metadata.uid().into());
        header.set_gid(self.metadata.gid().into());
        header.set_size(0);
        let mut records = PaxPairs::new();
        self.set_time(&mut header, &mut records);
        self.add_xattrs(&mut records)?;
        header.set_entry_type(self.what.entry_type());
        match &self.what {
            PackedKind::File(file) => return self.append_file(file, header, records, tar),
            PackedKind::Symlink(target) | PackedKind::HardLink(target) => {
                copy_name(&mut header.as_old_mut().linkname, target);
                if target.len() > NAME_BYTES {
                    records.push(("linkpath".to_owned(), target.clone()));
                }
            }
            PackedKind::CharacterDevice | PackedKind::BlockDevice => {
                let device = self.metadata.rdev();
                header.set_device_major(device_number(nix::sys::stat::major(device))?)?;
                header.set_device_minor(device_number(nix::sys::stat::minor(device))?)?;
            }
            PackedKind::Directory | PackedKind::Fifo => {}
        }
        self.set_name(&mut header, &mut records);
        write_member(tar, header, records, io::empty())
    }

    fn append_file<W: Write>(
        &self,
        file: &File,
        mut header: Header,
        mut records: PaxPairs,
        tar: &mut Builder<FrameWriter<W>>,
    ) -> io::Result<()> {
        let size = self.metadata.size();
        let pieces = data_segments(file, size)?;
        let data: u64 = pieces.iter().map(|(_, length)| length).sum();
        let content = SegmentReader { file, pieces: pieces.clone().into_iter(), offset: 0, left: 0 };
        if data == size {
            header.set_size(size);
            self.set_name(&mut header, &mut records);
            write_member(tar, header, records, content)?;
        } else {
            // In the format GNU sparse 1.0, the map of the file precedes its data.
            let map = format_sparse_map(&pieces, size);
            header.set_size(map.len() as u64 + data);
            let base = self.path.rsplit(|byte| *byte == b'/').next().unwrap_or_default();
            copy_name(&mut header.as_old_mut().name, &[b"GNUSparseFile.0/", base].concat());
            for (key, value) in [("major", "1"), ("minor", "0"), ("realsize", &size.to_string())] {
                records.push((format!("GNU.sparse.{key}"), value.as_bytes().to_owned()));
            }
            records.push(("GNU.sparse.name".to_owned(), self.path.clone()));
            write_member(tar, header, records, (&map[..]).chain(content))?;
        }
        let now = file.metadata()?;
        let same = |of: &Metadata| (of.size(), of.mtime(), of.mtime_nsec());
        if same(&now) != same(self.metadata) {
            return Err(io::Error::other("the file was modified while it was packed"));
        }
        Ok(())
    }

    fn set_name(&self, header: &mut Header, records: &mut PaxPairs) {
        copy_name(&mut header.as_old_mut().name, &self.path);
        if self.path.len() > NAME_BYTES {
            records.push(("path".to_owned(), self.path.clone()));
        }
    }

    fn set_time(&self, header: &mut Header, records: &mut PaxPairs) {
        let (mut seconds, mut nanoseconds) = (self.metadata.mtime(), self.metadata.mtime_nsec());
        if let Some(epoch) = self.epoch.filter(|epoch| (seconds, nanoseconds) > (*epoch, 0)) {
            (seconds, nanoseconds) = (epoch, 0);
        }
        header.set_mtime(u64::try_from(seconds).unwrap_or(0));
        if nanoseconds != 0 || seconds < 0 {
            records.push(("mtime".to_owned(), format_time(seconds, nanoseconds).into_bytes()));
        }
    }

    fn add_xattrs(&self, records: &mut PaxPairs) -> io::Result<()> {
        for (name, value) in &self.xattrs {
            let shown = String::from_utf8_lossy(name);
            let name = std::str::from_utf8(name).map_err(|_| {
                io::Error::other(format!("the name of the file's extended attribute {shown:?} is not UTF-8"))
            })?;
            // Encode `=` and `%` like GNU tar, because a `=` in the name would end the key.
            let name = name.replace('%', "%25").replace('=', "%3D");
            records.push((format!("SCHILY.xattr.{name}"), value.clone()));
        }
        Ok(())
    }
}

impl PackedKind {
    fn entry_type(&self) -> EntryType {
        match self {
            PackedKind::File(_) => EntryType::Regular,
            PackedKind::Directory => EntryType::Directory,
            PackedKind::Symlink(_) => EntryType::Symlink,
            PackedKind::HardLink(_) => EntryType::Link,
            PackedKind::CharacterDevice => EntryType::Char,
            PackedKind::BlockDevice => EntryType::Block,
            PackedKind::Fifo => EntryType::Fifo,
        }
    }
}

fn write_member<W: Write>(
    tar: &mut Builder<FrameWriter<W>>,
    mut header: Header,
    records: PaxPairs,
    content: impl Read,
) -> io::Result<()> {
    let names = ["path", "linkpath", "GNU.sparse.name"];
    let binary =
        |(key, value): &(String, Vec<u8>)| names.contains(&key.as_str()) && std::str::from_utf8(value).is_err();
    // Without this record, PAX names must be UTF-8, and bsdtar rejects other names.
    let charset = records.iter().any(binary).then_some(("hdrcharset", &b"BINARY"[..]));
    let pairs = records.iter().map(|(key, value)| (key.as_str(), value.as_slice()));
    tar.append_pax_extensions(charset.into_iter().chain(pairs))?;
    header.set_cksum();
    tar.append(&header, content)
}

/// Copies a name to its header field. A name that is longer than the field is truncated.
fn copy_name(field: &mut [u8; NAME_BYTES], name: &[u8]) {
    let length = name.len().min(NAME_BYTES);
    field[..length].copy_from_slice(&name[..length]);
}

fn device_number(device: u64) -> io::Result<u32> {
    u32::try_from(device).map_err(io::Error::other)
}

/// Formats a time for a PAX record as a decimal number of seconds. The nanoseconds are added to the seconds, so -2 s
/// and 500,000,000 ns give -1.5.
fn format_time(seconds: i64, nanoseconds: i64) -> String {
    match (seconds, nanoseconds) {
        (seconds, 0) => seconds.to_string(),
        (..0, _) => format!("-{}.{:09}", -(seconds + 1), 1_000_000_000 - nanoseconds),
        _ => format!("{seconds}.{nanoseconds:09}"),
    }
}

/// Returns offset and length of each data segment of a file.
fn data_segments(file: &File, size: u64) -> io::Result<Vec<(u64, u64)>> {
    let (mut pieces, mut end) = (Vec::new(), 0);
    let seek = |offset: u64, whence| -> io::Result<Option<u64>> {
        match lseek(file, i64::try_from(offset).map_err(io::Error::other)?, whence) {
            Ok(found) => Ok(u64::try_from(found).ok()),
            // ENXIO means that the rest of the file is a hole.
            Err(Errno::ENXIO) => Ok(None),
            Err(error) => Err(error.into()),
        }
    };
    while end < size {
        let Some(start) = seek(end, Whence::SeekData)?.filter(|start| *start < size) else { break };
        end = seek(start, Whence::SeekHole)?.unwrap_or(size).min(size);
        pieces.push((start, end - start));
    }
    Ok(pieces)
}

/// Formats a sparse map: decimal numbers, one per line, padded to a whole block.
fn format_sparse_map(pieces: &[(u64, u64)], size: u64) -> Vec<u8> {
    let mut pieces = pieces.to_vec();
    // If the file ends with a hole, an empty segment at the end of the map marks the length of the file.
    if pieces.last().is_none_or(|(offset, length)| offset + length < size) {
        pieces.push((size, 0));
    }
    let mut map = format!("{}\n", pieces.len());
    for (offset, length) in pieces {
        map += &format!("{offset}\n{length}\n");
    }
    let mut map = map.into_bytes();
    map.resize(map.len().next_multiple_of(TAR_BLOCK_BYTES), 0);
    map
}

/// Reader of the data segments of a file. Fails if the file has become shorter since its segments were determined.
struct SegmentReader<'a> {
    file: &'a File,
    pieces: std::vec::IntoIter<(u64, u64)>,
    offset: u64,
    /// Unread bytes of the current segment.
    left: u64,
}

impl Read for SegmentReader<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        while self.left == 0 {
            let Some((offset, length)) = self.pieces.next() else { return Ok(0) };
            (self.offset, self.left) = (offset, length);
        }
        let wanted = buffer.len().min(usize::try_from(self.left).unwrap_or(usize::MAX));
        let got = self.file.read_at(&mut buffer[..wanted], self.offset)?;
        if got == 0 && wanted > 0 {
            return Err(io::Error::other("the file was truncated while it was packed"));
        }
        (self.offset, self.left) = (self.offset + got as u64, self.left - got as u64);
        Ok(got)
    }
}
