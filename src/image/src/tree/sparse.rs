//! Maps of sparse files, in the old GNU format, which stores the map in headers, and in the three PAX formats (0.0,
//! 0.1, 1.0).
//!
//! <https://www.gnu.org/software/tar/manual/html_section/Sparse-Formats.html>

use super::pax::PaxRecords;
use super::tar_header_ambiguity::{is_plain_number, parse_number};
use std::io::{self, Read};
use tar::GnuSparseHeader;

/// Maximum number of segments of one file. This number of segments takes 4 MiB of memory. Files of OS images have far
/// fewer.
const MAXIMUM_SEGMENTS: usize = 1 << 18;

const TAR_BLOCK_BYTES: u64 = 512;

/// Data segments of a sparse file, in order. The rest of the file consists of holes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct SparseMap {
    /// Offset in the file and length of each segment, in bytes.
    pub segments: Vec<(u64, u64)>,
    /// Length of the file including its holes, in bytes.
    pub file_size: u64,
}

impl SparseMap {
    /// Creates a map. Checks that the segments are in order and inside the file, and that their total length is
    /// `data_size`, the length of the data in the archive.
    pub fn new(segments: Vec<(u64, u64)>, file_size: u64, data_size: u64) -> io::Result<SparseMap> {
        let (mut end, mut sum) = (0, 0_u64);
        for &(offset, length) in &segments {
            let next = offset.checked_add(length).filter(|next| offset >= end && *next <= file_size);
            end = next.ok_or_else(|| invalid_map("the segments of the sparse map overlap or are outside the file"))?;
            // The sum of the lengths cannot overflow, because the segments are disjoint.
            sum += length;
        }
        if sum != data_size {
            return Err(invalid_map(&format!(
                "the sparse map declares {sum} bytes of data, but the archive contains {data_size}"
            )));
        }
        if i64::try_from(file_size).is_err() {
            return Err(invalid_map("the file is too long for any filesystem"));
        }
        // GNU tar creates a file with the length of the map, other readers create a file with the length in the header.
        if end != file_size {
            return Err(invalid_map("the sparse map ends before the end of the file"));
        }
        // GNU tar reads each segment from a separate block, other readers read all segments contiguously.
        let with_data = || segments.iter().filter(|(_, length)| *length > 0);
        if with_data().rev().skip(1).any(|(_, length)| length % TAR_BLOCK_BYTES != 0) {
            return Err(invalid_map("a segment of the sparse map ends within a block, but is not the last segment"));
        }
        Ok(SparseMap { segments, file_size })
    }

    /// Parses a map in PAX records of format 0.0 or 0.1.
    ///
    /// # Errors
    /// Returns an error if the records contain no map, or the map is inconsistent.
    pub(crate) fn from_records(records: &PaxRecords, file_size: u64, data_size: u64) -> io::Result<SparseMap> {
        let numbers: Vec<u64> = match records.get("GNU.sparse.map") {
            Some(text) => text.split(|byte| *byte == b',').map(parse_decimal).collect::<io::Result<_>>()?,
            None => {
                let keys = [&b"GNU.sparse.offset"[..], b"GNU.sparse.numbytes"];
                let mut numbers = Vec::new();
                for (key, value) in records.iter().filter(|(key, _)| keys.contains(key)) {
                    // In the list of numbers, offsets and lengths alternate.
                    if key != keys[numbers.len() % 2] {
                        return Err(invalid_map("the sparse map has an offset without a length"));
                    }
                    numbers.push(parse_decimal(value)?);
                }
                numbers
            }
        };
        let count = records.parse_number("GNU.sparse.numblocks")?;
        if !numbers.len().is_multiple_of(2) || count.is_some_and(|count| count != numbers.len() as u64 / 2) {
            return Err(invalid_map("the sparse map does not have the declared number of segments"));
        }
        SparseMap::new(pair_segments(&numbers)?, file_size, data_size)
    }

    /// Reads a map of format 1.0, which precedes the data: decimal numbers, one per line, padded to a whole block.
    /// `data_size` includes the length of the map.
    ///
    /// # Errors
    /// Returns an error if the map is inconsistent or is not terminated.
    pub(crate) fn read_lines(stream: &mut impl Read, file_size: u64, data_size: u64) -> io::Result<SparseMap> {
        let mut lines = DecimalLines {
            stream,
            block: [0; TAR_BLOCK_BYTES as usize],
            at: TAR_BLOCK_BYTES as usize,
            read: 0,
            limit: data_size,
        };
        let count = usize::try_from(lines.next_number()?).ok().filter(|count| *count <= MAXIMUM_SEGMENTS);
        let count = count.ok_or_else(|| invalid_map("the sparse map has too many segments"))?;
        // No memory is reserved for the declared count, which is untrusted: the vector grows with the data that is
        // received.
        let mut segments = Vec::new();
        for _ in 0..count {
            segments.push((lines.next_number()?, lines.next_number()?));
        }
        let map_size = lines.read;
        SparseMap::new(segments, file_size, data_size - map_size)
    }
}

/// Adds the segments of an old GNU header or of one of its extension blocks. `is_last` means that no extension block
/// follows.
///
/// # Errors
/// Returns an error if a number is invalid, there are too many segments, or other segments follow an empty segment, at
/// which other tar readers stop.
pub(crate) fn add_segments(
    segments: &mut Vec<(u64, u64)>,
    pieces: &[GnuSparseHeader],
    is_last: bool,
) -> io::Result<()> {
    let count = pieces.iter().take_while(|piece| !piece.is_empty()).count();
    let (filled, rest) = pieces.split_at(count);
    let is_cut = (!is_last && !rest.is_empty()) || rest.iter().any(|piece| !piece.is_empty());
    if is_cut {
        return Err(invalid_map("the sparse map has further segments after the empty segment that ends the map"));
    }
    // The numbers of empty segments must also be valid, because Python parses them.
    if !pieces.iter().all(|piece| is_plain_number(&piece.offset) && is_plain_number(&piece.numbytes)) {
        return Err(invalid_map(
            "the sparse map contains an ambiguous number, which tar readers parse in different ways",
        ));
    }
    for piece in filled {
        segments.push((parse_number(&piece.offset)?, parse_number(&piece.numbytes)?));
    }
    if segments.len() > MAXIMUM_SEGMENTS { Err(invalid_map("the sparse map has too many segments")) } else { Ok(()) }
}

struct DecimalLines<'a, R> {
    stream: &'a mut R,
    block: [u8; TAR_BLOCK_BYTES as usize],
    at: usize,
    read: u64,
    limit: u64,
}

impl<R: Read> DecimalLines<'_, R> {
    fn next_number(&mut self) -> io::Result<u64> {
        let mut digits = Vec::new();
        loop {
            if self.at == self.block.len() {
                if self.read + TAR_BLOCK_BYTES > self.limit {
                    return Err(invalid_map("the sparse map does not end within the content of the member"));
                }
                self.stream.read_exact(&mut self.block)?;
                (self.at, self.read) = (0, self.read + TAR_BLOCK_BYTES);
            }
            let byte = self.block[self.at];
            self.at += 1;
            match byte {
                b'\n' => return parse_decimal(&digits),
                _ if digits.len() < 20 => digits.push(byte),
                _ => return Err(invalid_map("the sparse map contains a number that is too long")),
            }
        }
    }
}

fn pair_segments(numbers: &[u64]) -> io::Result<Vec<(u64, u64)>> {
    if numbers.len() / 2 > MAXIMUM_SEGMENTS {
        return Err(invalid_map("the sparse map has too many segments"));
    }
    Ok(numbers.chunks_exact(2).map(|pair| (pair[0], pair[1])).collect())
}

fn parse_decimal(text: &[u8]) -> io::Result<u64> {
    let digits = text.iter().all(u8::is_ascii_digit).then_some(text);
    let number = digits.and_then(|text| std::str::from_utf8(text).ok()).and_then(|text| text.parse().ok());
    number.ok_or_else(|| {
        invalid_map(&format!(
            "the sparse map contains {text:?} instead of a number",
            text = String::from_utf8_lossy(text)
        ))
    })
}

fn invalid_map(text: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, format!("the sparse file is malformed: {text}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::pax_record;

    fn padded(text: &str) -> Vec<u8> {
        let mut bytes = text.as_bytes().to_vec();
        bytes.resize(bytes.len().next_multiple_of(512), 0);
        bytes
    }

    #[test]
    fn sparse_map_before_the_data_is_parsed() {
        let text = padded("2\n0\n512\n4096\n20\n");
        let map = SparseMap::read_lines(&mut &text[..], 4116, 512 + 532).unwrap();
        assert_eq!(map, SparseMap { segments: vec![(0, 512), (4096, 20)], file_size: 4116 });
        let many: String = (0..200).map(|i| format!("{}\n512\n", i * 4096)).collect();
        let text = padded(&format!("200\n{many}"));
        assert_eq!(
            SparseMap::read_lines(&mut &text[..], 199 * 4096 + 512, text.len() as u64 + 200 * 512)
                .unwrap()
                .segments
                .len(),
            200
        );
    }

    #[test]
    fn refuses_impossible_sparse_maps() {
        for (text, says) in [
            ("1\n0\n31\n", "31 bytes of data, but the archive contains 30"),
            ("1\n9000\n30\n", "outside the file"),
            ("2\n100\n10\n0\n20\n", "overlap"),
            ("1\n18446744073709551615\n30\n", "outside"),
            ("2\n0\n10\n8980\n20\n", "ends within a block"),
            ("2\n0\n10\n8704\n20\n", "ends before the end of the file"),
            ("x\n", "instead of a number"),
            ("\n", "instead of a number"),
            ("-1\n", "instead of a number"),
            ("999999999\n", "too many segments"),
            ("3\n0\n10\n", "too long"),
            ("111111111111111111111111\n", "too long"),
        ] {
            let error = SparseMap::read_lines(&mut &padded(text)[..], 9000, 512 + 30).unwrap_err().to_string();
            assert!(error.contains(says), "{text:?}: {error}");
        }
        let endless = "1".repeat(600);
        assert!(SparseMap::read_lines(&mut endless.as_bytes(), 9000, 512).is_err());
        let split = padded(&format!("200\n{}", "0\n0\n".repeat(200)));
        assert!(SparseMap::read_lines(&mut &split[..512], 9000, 512).unwrap_err().to_string().contains("does not end"));
        assert!(SparseMap::new(Vec::new(), u64::MAX, 0).is_err());
    }

    #[test]
    fn sparse_map_in_pax_records_is_parsed() {
        let parse = |pairs: &[&str]| {
            let text: Vec<u8> = pairs.iter().flat_map(|pair| pax_record(pair.as_bytes())).collect();
            SparseMap::from_records(&PaxRecords::parse(&text).unwrap(), 4116, 532)
        };
        let map = SparseMap { segments: vec![(0, 512), (4096, 20)], file_size: 4116 };
        assert_eq!(parse(&["GNU.sparse.numblocks=2", "GNU.sparse.map=0,512,4096,20"]).unwrap(), map);
        let old = [
            "GNU.sparse.numblocks=2",
            "GNU.sparse.offset=0",
            "GNU.sparse.numbytes=512",
            "GNU.sparse.offset=4096",
            "GNU.sparse.numbytes=20",
        ];
        assert_eq!(parse(&old).unwrap(), map);
        assert!(parse(&old[..3]).is_err());
        for bad in ["GNU.sparse.map=0,10,4096", "GNU.sparse.map=0,,1", "GNU.sparse.numbytes=10", "GNU.sparse.offset=1"]
        {
            assert!(parse(&[bad]).is_err(), "{bad}");
        }
    }
}
