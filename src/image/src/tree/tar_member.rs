//! Member of a tar archive: path, type and attributes.

use super::pax::PaxRecords;
use super::sparse::SparseMap;
use super::tar_header_ambiguity::parse_number;
use std::ffi::OsString;
use std::io;
use tar::Header;

/// Member of a tar archive, without its content.
#[derive(Debug)]
pub(crate) struct TarMember {
    /// Path as in the archive, not yet checked.
    pub path: Vec<u8>,
    pub kind: MemberKind,
    pub attributes: MemberAttributes,
}

#[derive(Debug, PartialEq)]
pub(crate) enum MemberKind {
    /// Regular file. In the stream of members, the content of the file follows the member.
    File {
        size: u64,
    },
    Sparse(SparseMap),
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

/// Attributes of a member.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct MemberAttributes {
    /// Mode: the permissions and the set-user-ID, set-group-ID and sticky bits, twelve bits in total.
    pub mode: u32,
    pub uid: u32,
    pub gid: u32,
    /// Modification time: seconds since 1970, and nanoseconds.
    pub mtime: (i64, u32),
    pub xattrs: Vec<(OsString, Vec<u8>)>,
}

impl MemberAttributes {
    /// Returns the approximate memory use of the xattrs, in bytes.
    pub(crate) fn memory_bytes(&self) -> usize {
        self.xattrs.iter().map(|(name, value)| name.len() + value.len() + 64).sum()
    }
    /// Reads the attributes from a header and the PAX records of the member.
    ///
    /// # Errors
    /// Returns an error if a value is malformed or not supported by Linux.
    pub(crate) fn from_header(header: &Header, records: &PaxRecords) -> io::Result<MemberAttributes> {
        let id = |name: &str, of_header: io::Result<u64>| {
            let id = records.parse_number(name)?.map_or(of_header, Ok)?;
            // The highest id is rejected: chown(2) interprets this value as "do not change".
            u32::try_from(id).ok().filter(|id| *id != u32::MAX).ok_or_else(|| {
                io::Error::new(
                    io::ErrorKind::InvalidData,
                    format!("the member's {name} {id} is larger than Linux supports"),
                )
            })
        };
        let fields = header.as_old();
        let mode = parse_number(&fields.mode)?;
        Ok(MemberAttributes {
            mode: u32::try_from(mode & 0o7777).unwrap_or_default(),
            uid: id("uid", parse_number(&fields.uid))?,
            gid: id("gid", parse_number(&fields.gid))?,
            mtime: match records.time_value("mtime")? {
                Some(time) => time,
                // The number is signed: times before 1970 are stored as negative numbers in base 256.
                None => (parse_number(&fields.mtime)?.cast_signed(), 0),
            },
            xattrs: records.xattrs()?,
        })
    }
}
