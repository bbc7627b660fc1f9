//! One member of an archive: its path, what it is, and what it has besides content.

use super::pax::Records;
use super::sparse::Map;
use std::ffi::OsString;
use std::io;
use tar::Header;

/// One member without its content.
#[derive(Debug)]
pub struct Member {
    /// As the archive has it.
    pub path: Vec<u8>,
    pub kind: Kind,
    pub attributes: Attributes,
}

#[derive(Debug, PartialEq)]
pub enum Kind {
    /// The content follows: so many bytes, or the pieces of the map.
    File {
        size: u64,
    },
    Sparse(Map),
    Directory,
    Symlink(Vec<u8>),
    HardLink(Vec<u8>),
    CharacterDevice {
        major: u32,
        minor: u32,
    },
    BlockDevice {
        major: u32,
        minor: u32,
    },
    Fifo,
}

/// What a member has besides content.
#[derive(Debug, Clone, PartialEq)]
pub struct Attributes {
    /// Twelve bits.
    pub mode: u32,
    pub uid: u32,
    pub gid: u32,
    /// Seconds since 1970, nanoseconds.
    pub mtime: (i64, u32),
    pub xattrs: Vec<(OsString, Vec<u8>)>,
}

impl Attributes {
    /// Memory that they hold, about.
    pub fn bytes(&self) -> usize {
        self.xattrs.iter().map(|(name, value)| name.len() + value.len() + 64).sum()
    }
    /// # Errors
    /// A value is none that Linux has.
    pub fn of(header: &Header, records: &Records) -> io::Result<Attributes> {
        let id = |name: &str, of_header: io::Result<u64>| {
            let id = records.number(name)?.map_or(of_header, Ok)?;
            // The highest one means "do not change" to chown(2).
            u32::try_from(id).ok().filter(|id| *id != u32::MAX).ok_or_else(|| {
                io::Error::new(io::ErrorKind::InvalidData, format!("its {name} {id} is beyond what Linux has"))
            })
        };
        Ok(Attributes {
            mode: header.mode()? & 0o7777,
            uid: id("uid", header.uid())?,
            gid: id("gid", header.gid())?,
            mtime: match records.time("mtime")? {
                Some(time) => time,
                // A time before 1970 is stored as a negative binary number.
                None => (header.mtime()?.cast_signed(), 0),
            },
            xattrs: records.xattrs()?,
        })
    }
}
