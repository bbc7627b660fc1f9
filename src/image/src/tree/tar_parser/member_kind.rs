//! Parses the type of a member and, for a sparse file, its map.

use super::super::pax::PaxRecords;
use super::super::sparse::{self, SparseMap};
use super::super::tar_member::MemberKind;
use super::{TarParser, is_plain_number, parse_number};
use std::io;
use tar::{EntryType, GnuExtSparseHeader, Header};

impl TarParser<'_> {
    /// Returns the type of a member with this path and content size. For a sparse file, also reads its map. `link`
    /// returns the target of a link.
    pub(super) fn read_kind(
        &mut self,
        header: &Header,
        records: &PaxRecords,
        (path, size): (&[u8], u64),
        link: impl Fn() -> Vec<u8>,
    ) -> io::Result<MemberKind> {
        let entry_type = header.entry_type();
        let kind = match entry_type {
            EntryType::Regular | EntryType::Continuous if path.ends_with(b"/") => MemberKind::Directory,
            EntryType::Regular | EntryType::Continuous => self.file_kind(records, size)?,
            EntryType::GNUSparse => self.old_sparse_kind(header, size)?,
            EntryType::Directory => MemberKind::Directory,
            EntryType::Symlink => MemberKind::Symlink(link()),
            EntryType::Link => MemberKind::HardLink(link()),
            EntryType::Fifo => MemberKind::Fifo,
            EntryType::Char | EntryType::Block => {
                let (major, minor) = self.parse_device_number(header)?;
                match entry_type {
                    EntryType::Char => MemberKind::CharacterDevice { major, minor },
                    _ => MemberKind::BlockDevice { major, minor },
                }
            }
            other => {
                let shown = other.as_byte() as char;
                return Err(self.malformed_error(&format!("the member's type {shown:?} is not supported")));
            }
        };
        let has_content = matches!(kind, MemberKind::File { .. } | MemberKind::Sparse(_));
        if !has_content && size > 0 {
            // Tar readers disagree on whether content or the next header follows, so the archive is ambiguous.
            return Err(
                self.malformed_error(&format!("the member is not a regular file, but has {size} bytes of content"))
            );
        }
        Ok(kind)
    }

    /// Returns the major and minor number of a device. Headers in the oldest format do not contain these numbers.
    fn parse_device_number(&self, header: &Header) -> io::Result<(u32, u32)> {
        let (major, minor) = match (header.as_ustar(), header.as_gnu()) {
            (Some(ustar), _) => (ustar.dev_major, ustar.dev_minor),
            (None, Some(gnu)) => (gnu.dev_major, gnu.dev_minor),
            (None, None) => return Ok((0, 0)),
        };
        let parse = |field: &[u8]| u32::try_from(parse_number(field)?).map_err(io::Error::other);
        match (parse(&major), parse(&minor)) {
            (Ok(major), Ok(minor)) => Ok((major, minor)),
            _ => Err(self.malformed_error("the device number is larger than Linux supports")),
        }
    }

    /// Returns the type of a regular file: plain, or sparse in one of the PAX formats.
    fn file_kind(&mut self, records: &PaxRecords, size: u64) -> io::Result<MemberKind> {
        let version = (records.parse_number("GNU.sparse.major")?, records.parse_number("GNU.sparse.minor")?);
        let real_size = records
            .parse_number("GNU.sparse.realsize")?
            .map_or_else(|| records.parse_number("GNU.sparse.size"), |s| Ok(Some(s)))?;
        match (version, real_size) {
            ((Some(1), Some(0)), Some(real_size)) => {
                Ok(MemberKind::Sparse(SparseMap::read_lines(self, real_size, size)?))
            }
            ((None, None), Some(real_size)) => {
                SparseMap::from_records(records, real_size, size).map(MemberKind::Sparse)
            }
            ((None, None), None) => Ok(MemberKind::File { size }),
            _ => Err(self.malformed_error("the member's sparse format is not supported")),
        }
    }

    /// Reads the map of a sparse file in the old GNU format: from the header and, if it has more than four segments,
    /// from extension blocks.
    fn old_sparse_kind(&mut self, header: &Header, size: u64) -> io::Result<MemberKind> {
        let gnu = header
            .as_gnu()
            .ok_or_else(|| self.malformed_error("the member is sparse, but its header is not in GNU format"))?;
        let mut segments = Vec::new();
        let mut more = gnu.is_extended();
        sparse::add_segments(&mut segments, &gnu.sparse, !more)?;
        while more {
            self.count_blocks(1)?;
            let mut extension = GnuExtSparseHeader::new();
            self.read_block(extension.as_mut_bytes())?;
            more = extension.is_extended();
            sparse::add_segments(&mut segments, extension.sparse(), !more)?;
        }
        if !is_plain_number(&gnu.realsize) {
            return Err(self.malformed_error(
                "the length of the sparse file is ambiguous: tar readers parse this number in different ways",
            ));
        }
        SparseMap::new(segments, parse_number(&gnu.realsize)?, size).map(MemberKind::Sparse)
    }
}
