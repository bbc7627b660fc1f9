//! Parses the members of a tar stream, and verifies that the archive is complete.
//!
//! Single headers are decoded by the tar crate. The iterator of that crate is not used, because it treats the end of
//! the input as the end of the archive, reads extended headers of any size into memory, and misreads PAX values that
//! contain a newline (see [`super::pax`]).

mod member_kind;

use super::acl;
use super::capacity_limit::too_long_message;
use super::header_block_limit::too_much_message;
use super::pax::PaxRecords;
use super::tar_header_ambiguity::{MemberClaims, ambiguous_number, global_disagreement, is_plain_number, parse_number};
use super::tar_member::{MemberAttributes, TarMember};
use crate::pipeline::{BufferChunk, PipelineReader};
use std::io::{self, Read};
use tar::{EntryType, Header};

const TAR_BLOCK_BYTES: usize = 512;

/// Maximum length of one extended header (long name or PAX records), in bytes. An xattr is at most 64 KiB.
const EXTENSION_BYTES: u64 = 1 << 20;

/// Maximum size of all global PAX records together, in bytes. The size is limited because the global records are
/// searched for each member.
const GLOBAL_BYTES: usize = 64 * 1024;

/// Function that returns the current limits: the maximum length of the tar in bytes, and the maximum number of header
/// blocks.
type QueryLimits<'a> = Box<dyn FnMut() -> io::Result<[u64; 2]> + 'a>;

/// Parser of a tar. Reading from the parser, or calling [`Self::next_chunk`], returns the content of the current
/// member.
pub(crate) struct TarParser<'a> {
    stream: PipelineReader,
    /// Function that returns the current limits. It is called when a limit is exceeded, because the limit may have been
    /// raised since the last call.
    asks: QueryLimits<'a>,
    /// Maximum length of the tar, in bytes. A longer tar is treated as a decompression bomb.
    longest: u64,
    /// Unread content of the current member, in bytes.
    left: u64,
    padding: u64,
    global: PaxRecords,
    /// Size of the global records in memory, in blocks. This size is added to the cost of each member, because the
    /// global records are searched for each member.
    global_blocks: u64,
    /// Number of header blocks so far, and the limit on this number (`most_blocks`).
    blocks: u64,
    most_blocks: u64,
    warned_of_acls: bool,
    /// Warning about the first ACL that is not restored; `None` before this ACL was found, and after the warning was
    /// sent.
    pub lost_acl: Option<String>,
}

/// Extended headers that precede a member.
#[derive(Default)]
struct ExtendedHeaders {
    records: Option<PaxRecords>,
    path: Option<Vec<u8>>,
    link: Option<Vec<u8>>,
}

impl ExtendedHeaders {
    fn is_empty(&self) -> bool {
        self.records.is_none() && self.path.is_none() && self.link.is_none()
    }
}

impl<'a> TarParser<'a> {
    #[cfg(test)]
    pub fn new(stream: PipelineReader) -> Self {
        TarParser::with_limits(stream, Box::new(|| Ok([u64::MAX; 2])))
    }

    pub(crate) fn with_limits(stream: PipelineReader, asks: QueryLimits<'a>) -> Self {
        TarParser {
            stream,
            asks,
            longest: 0,
            left: 0,
            padding: 0,
            global: PaxRecords::default(),
            global_blocks: 0,
            blocks: 0,
            most_blocks: 0,
            warned_of_acls: false,
            lost_acl: None,
        }
    }

    /// Returns whether more of the tar is available without waiting.
    pub(crate) fn is_ready(&mut self) -> bool {
        self.stream.is_ready()
    }

    /// Returns the number of bytes of the tar that were read so far.
    pub(crate) fn position(&self) -> u64 {
        self.stream.position()
    }

    /// Returns the number of header blocks so far, which is a measure of the cost of members without their content.
    /// Global records are counted for each member.
    pub(crate) fn header_blocks(&self) -> u64 {
        self.blocks
    }

    /// Returns the next part of the current member's content without a copy, at most `count` bytes.
    ///
    /// # Errors
    /// Returns the error of the stream, or an error if the tar is truncated or too long, or the member has no more
    /// content.
    pub(crate) fn next_chunk(&mut self, count: u64) -> io::Result<BufferChunk> {
        let count = usize::try_from(count.min(self.left)).unwrap_or(usize::MAX);
        let chunk = if count == 0 { None } else { self.stream.take_chunk(count)? };
        let chunk = chunk.ok_or_else(|| self.truncated_error())?;
        self.left -= chunk.len() as u64;
        self.check_length()?;
        Ok(chunk)
    }

    /// Returns the next member, or `None` at the end of the archive, after which only zeros may follow.
    ///
    /// # Errors
    /// Returns the error of the stream, or an error if the archive is malformed or truncated.
    pub(crate) fn next_member(&mut self) -> io::Result<Option<TarMember>> {
        self.skip_bytes(self.left + self.padding)?;
        (self.left, self.padding) = (0, 0);
        let mut extensions = ExtendedHeaders::default();
        loop {
            let Some(header) = self.read_header()? else {
                if !extensions.is_empty() {
                    return Err(self.malformed_error("an extended header is not followed by a member"));
                }
                self.expect_only_zeros()?;
                return Ok(None);
            };
            match header.entry_type() {
                EntryType::XGlobalHeader => {
                    self.count_blocks(self.global_blocks)?;
                    let records = PaxRecords::parse(&self.read_extension(&header)?)?;
                    if let Some(reason) = global_disagreement(&records) {
                        return Err(self.malformed_error(&reason));
                    }
                    self.global = records.override_global(&self.global);
                    self.global_blocks = self.global.memory_bytes().div_ceil(TAR_BLOCK_BYTES) as u64;
                    if self.global.memory_bytes() > GLOBAL_BYTES {
                        return Err(self.malformed_error("the global headers are larger than 64 KiB"));
                    }
                }
                EntryType::XHeader if extensions.records.is_none() => {
                    extensions.records = Some(PaxRecords::parse(&self.read_extension(&header)?)?);
                }
                EntryType::GNULongName if extensions.path.is_none() => {
                    extensions.path = Some(without_nul(self.read_extension(&header)?));
                }
                EntryType::GNULongLink if extensions.link.is_none() => {
                    extensions.link = Some(without_nul(self.read_extension(&header)?));
                }
                EntryType::XHeader | EntryType::GNULongName | EntryType::GNULongLink => {
                    return Err(self.malformed_error("a member has two extended headers of the same type"));
                }
                // A member of type `V` is the label of a volume (`tar --label`), which is not unpacked.
                kind if kind.as_byte() == b'V' && extensions.is_empty() && self.parse_size(&header)? == 0 => {}
                _ => return self.parse_member(&header, extensions).map(Some),
            }
        }
    }

    fn parse_member(&mut self, header: &Header, extensions: ExtendedHeaders) -> io::Result<TarMember> {
        self.count_blocks(self.global_blocks)?;
        let records = extensions.records.unwrap_or_default().override_global(&self.global);
        let text = |key: &str| records.get(key).map(<[u8]>::to_vec);
        let path = text("GNU.sparse.name").or_else(|| text("path")).or_else(|| extensions.path.clone());
        let path = path.unwrap_or_else(|| header.path_bytes().into_owned());
        let inside = |error: io::Error| with_member_path(&path, error);

        let header_size = self.parse_size(header).map_err(inside)?;
        let (long_name, long_link) = (extensions.path.as_deref(), extensions.link.as_deref());
        let claims = MemberClaims { header, records: &records, long_name, long_link, header_size };
        if let Some(reason) = claims.disagreement() {
            return Err(inside(self.malformed_error(&reason)));
        }
        let size = records.parse_number("size").map_err(inside)?.unwrap_or(header_size);
        if size > i64::MAX as u64 {
            return Err(inside(self.malformed_error("the member's size exceeds the maximum size of a file")));
        }
        self.left = size;
        self.padding = size.next_multiple_of(TAR_BLOCK_BYTES as u64) - size;
        let mut attributes = MemberAttributes::from_header(header, &records).map_err(inside)?;
        let link = || {
            text("linkpath")
                .or_else(|| extensions.link.clone())
                .or_else(|| header.link_name_bytes().map(|l| l.into_owned()))
                .unwrap_or_default()
        };
        let kind = self.read_kind(header, &records, (&path, size), link).map_err(inside)?;
        if let Some(lost) = acl::add_text_acls(&records, &mut attributes).first()
            && !self.warned_of_acls
        {
            self.warned_of_acls = true;
            let path = String::from_utf8_lossy(&path);
            self.lost_acl = Some(format!(
                "{path}: cannot restore an ACL: {lost}; further ACLs that cannot be restored are not reported"
            ));
        }
        Ok(TarMember { path, kind, attributes })
    }

    /// Reads a header block. Returns `None` for a block of zeros, which is the first block of the end-of-archive
    /// marker.
    fn read_header(&mut self) -> io::Result<Option<Header>> {
        self.count_blocks(1)?;
        let mut header = Header::new_old();
        self.read_block(header.as_mut_bytes())?;
        if header.as_bytes().iter().all(|byte| *byte == 0) {
            return Ok(None);
        }
        // The checksum is computed as if the eight bytes of the checksum field were spaces.
        let sum = header.as_bytes().iter().map(|byte| u32::from(*byte)).sum::<u32>();
        let own = header.as_bytes()[148..156].iter().map(|byte| u32::from(*byte)).sum::<u32>();
        if header.cksum().ok() != Some(sum - own + 8 * u32::from(b' ')) {
            return Err(self.malformed_error("a header has a wrong checksum"));
        }
        if let Some(field) = ambiguous_number(&header) {
            let what =
                format!("the field {field} in a header is ambiguous: tar readers parse this number in different ways");
            return Err(self.malformed_error(&what));
        }
        Ok(Some(header))
    }

    fn read_block(&mut self, block: &mut [u8; TAR_BLOCK_BYTES]) -> io::Result<()> {
        let mut filled = 0;
        while filled < TAR_BLOCK_BYTES {
            match self.read_stream(&mut block[filled..])? {
                0 => return Err(self.truncated_error()),
                got => filled += got,
            }
        }
        Ok(())
    }

    fn parse_size(&self, header: &Header) -> io::Result<u64> {
        let size = header.as_old().size;
        if size[0] & 0x80 != 0 && size[..4] != [0x80, 0, 0, 0] {
            return Err(self.malformed_error("the member's size exceeds the maximum size of a file"));
        }
        if !is_plain_number(&size) {
            return Err(
                self.malformed_error("the member's size is ambiguous: tar readers parse this number in different ways")
            );
        }
        parse_number(&size)
    }

    fn read_extension(&mut self, header: &Header) -> io::Result<Vec<u8>> {
        let size = self.parse_size(header)?;
        if size > EXTENSION_BYTES {
            return Err(
                self.malformed_error(&format!("an extended header is {size} bytes, but at most 1 MiB is supported"))
            );
        }
        self.count_blocks(size.div_ceil(TAR_BLOCK_BYTES as u64))?;
        self.left = size;
        self.padding = size.next_multiple_of(TAR_BLOCK_BYTES as u64) - size;
        let mut content = Vec::new();
        self.read_to_end(&mut content)?;
        self.skip_bytes(self.padding)?;
        self.padding = 0;
        Ok(content)
    }

    /// Checks the end of the archive. The first block of zeros must be followed by a second block of zeros. After that,
    /// only zeros may follow, because tars are padded with zeros to a whole record.
    fn expect_only_zeros(&mut self) -> io::Result<()> {
        let mut zeros = TAR_BLOCK_BYTES as u64;
        let mut buffer = [0; 8192];
        loop {
            let got = self.read_stream(&mut buffer)?;
            if buffer[..got].iter().any(|byte| *byte != 0) {
                return Err(self.malformed_error("unexpected data after the end of the archive"));
            }
            if got == 0 && zeros < 2 * TAR_BLOCK_BYTES as u64 {
                return Err(self.truncated_error());
            }
            if got == 0 {
                return Ok(());
            }
            zeros += got as u64;
        }
    }

    fn count_blocks(&mut self, blocks: u64) -> io::Result<()> {
        self.blocks += blocks;
        if self.blocks > self.most_blocks {
            [self.longest, self.most_blocks] = (self.asks)()?;
        }
        if self.blocks <= self.most_blocks {
            return Ok(());
        }
        Err(io::Error::new(io::ErrorKind::InvalidData, too_much_message(self.most_blocks)))
    }

    fn skip_bytes(&mut self, mut count: u64) -> io::Result<()> {
        while count > 0 {
            let skipped = self.stream.take_chunk(usize::try_from(count).unwrap_or(usize::MAX))?;
            count -= skipped.ok_or_else(|| self.truncated_error())?.len() as u64;
            self.check_length()?;
        }
        Ok(())
    }

    fn read_stream(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        let got = self.stream.read(buf)?;
        self.check_length()?;
        Ok(got)
    }

    fn check_length(&mut self) -> io::Result<()> {
        if self.position() > self.longest {
            [self.longest, self.most_blocks] = (self.asks)()?;
        }
        if self.position() <= self.longest {
            return Ok(());
        }
        Err(io::Error::new(io::ErrorKind::InvalidData, too_long_message(self.longest)))
    }

    fn truncated_error(&self) -> io::Error {
        let text = format!(
            "the tar archive is truncated: it ends after byte {position}, without end-of-archive blocks",
            position = self.position()
        );
        io::Error::new(io::ErrorKind::InvalidData, text)
    }

    fn malformed_error(&self, what: &str) -> io::Error {
        io::Error::new(
            io::ErrorKind::InvalidData,
            format!("the tar archive is malformed before byte {position}: {what}", position = self.position()),
        )
    }
}

impl Read for TarParser<'_> {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        let want = buf.len().min(usize::try_from(self.left).unwrap_or(usize::MAX));
        if want == 0 {
            return Ok(0);
        }
        match self.read_stream(&mut buf[..want])? {
            0 => Err(self.truncated_error()),
            got => {
                self.left -= got as u64;
                Ok(got)
            }
        }
    }
}

fn with_member_path(path: &[u8], error: io::Error) -> io::Error {
    io::Error::new(error.kind(), format!("{}: {error}", String::from_utf8_lossy(path)))
}

/// Removes the NUL byte with which GNU tar terminates long names.
fn without_nul(mut name: Vec<u8>) -> Vec<u8> {
    if name.last() == Some(&0) {
        name.pop();
    }
    name
}

#[cfg(test)]
mod tests;
