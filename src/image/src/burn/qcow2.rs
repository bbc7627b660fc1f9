//! Writes a qcow2 to a disk: the worker converts the qcow2 to a raw disk image during the download. Before anything is
//! written, the agent checks that the qcow2 can be converted while it is streamed.

use super::IncomingImage;
use crate::fetch::{ImagePart, RangeReader};
use crate::pipeline::{Download, PayloadKind, StreamSource};
use crate::qcow2::{HEAD_BYTES, MAGIC};
use common::bounded_read::read_prefix;
use common::error::{Context, Error, Phase, Result};
use std::cell::Cell;
use std::collections::VecDeque;
use std::io::{self, Cursor, Read};
use std::ops::{Range, RangeInclusive};

/// Maximum length of the list of tables that the worker returns, in bytes. The list comes from an untrusted process.
/// The agent uses the list only to select the ranges of the image that it fetches.
const MAXIMUM_LIST_BYTES: u64 = 64 << 10;
/// Supported lengths of a table, in bytes.
const TABLE_BYTES: RangeInclusive<u64> = 512..=2 << 20;

impl IncomingImage {
    /// If the image is a qcow2, checks that it can be converted while it is streamed, and restarts the download with
    /// conversion.
    pub(super) fn detect_qcow2(&mut self) -> Result<()> {
        let found = Cell::new(false);
        self.check_beginning(&|stream| {
            found.set(stream.peek_bytes(MAGIC.len())? == MAGIC);
            Ok(Ok(()))
        })?;
        if !found.get() {
            return Ok(());
        }
        let part = self.single_part()?.clone();
        let is_packed = self.first.take().is_some_and(|first| !first.download.beginning().starts_with(&MAGIC));
        if is_packed {
            let why = "the image is a compressed qcow2 file; provide the uncompressed qcow2 file, or convert it to a \
                       raw image with `drophammer image pack`";
            return Err(Error::refusal(Phase::Image, format!("{}: {why}", part.url)));
        }
        self.reject_unordered(&part)?;
        self.plain = PayloadKind::Qcow2;
        self.first = Some(self.start_download(&part, None)?);
        Ok(())
    }

    fn reject_unordered(&self, part: &ImagePart) -> Result<()> {
        let ranges = RangeReader::new(&self.client, part, &self.pace);
        let head = ranges.read(0..HEAD_BYTES as u64)?;
        let list = self.query_worker(part, PayloadKind::Qcow2Head, RangeSource::new(head.clone(), None))?;
        let length = (head.len() as u64).to_be_bytes();
        let pieces = RangeSource::new([&length[..], &head].concat(), Some((ranges, parse_table_list(&list)?)));
        self.query_worker(part, PayloadKind::Qcow2Tables, pieces).map(drop)
    }

    /// Sends the data to a new worker, which processes the data as content of the type `plain`. Returns the worker's
    /// output.
    fn query_worker(&self, part: &ImagePart, plain: PayloadKind, pieces: RangeSource) -> Result<Vec<u8>> {
        let looking = || format!("check the qcow2 tables of {url}", url = part.url);
        let arriving = Download::start(Box::new(pieces), &part.digest, plain, None).context(Phase::Image, looking)?;
        match read_prefix(arriving.reader, MAXIMUM_LIST_BYTES) {
            Ok(answer) => Ok(answer),
            Err(error) if error.kind() == io::ErrorKind::InvalidData => {
                Err(Error::refusal(Phase::Image, format!("{}: {error}", part.url)))
            }
            Err(error) => Err(error).context(Phase::Image, looking),
        }
    }
}

/// Parses the worker's list: the length of every table, followed by the offset of each table. Returns the range of each
/// table in the image.
fn parse_table_list(list: &[u8]) -> Result<VecDeque<Range<u64>>> {
    let mut numbers = list.as_chunks::<8>().0.iter().map(|number| u64::from_be_bytes(*number));
    let length = numbers.next().filter(|length| TABLE_BYTES.contains(length));
    let length = length.ok_or_else(|| Error::new(Phase::Image, "the worker returned an invalid list of tables"))?;
    Ok(numbers.map(|at| at..at.saturating_add(length)).collect())
}

/// Stream that consists of bytes in memory, followed by ranges of the image.
struct RangeSource {
    current: Cursor<Vec<u8>>,
    left: Option<(RangeReader, VecDeque<Range<u64>>)>,
}

impl RangeSource {
    fn new(first: Vec<u8>, left: Option<(RangeReader, VecDeque<Range<u64>>)>) -> RangeSource {
        RangeSource { current: Cursor::new(first), left }
    }
}

impl Read for RangeSource {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        loop {
            let got = self.current.read(buf)?;
            if got > 0 || buf.is_empty() {
                return Ok(got);
            }
            let Some((ranges, left)) = &mut self.left else { return Ok(0) };
            let Some(range) = left.pop_front() else { return Ok(0) };
            self.current = Cursor::new(ranges.read(range).map_err(io::Error::other)?);
        }
    }
}

impl StreamSource for RangeSource {
    fn resumed(&self) -> u32 {
        0
    }

    fn start_over(&self) -> Option<&str> {
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fetch::{ImageSource, resolve_image};
    use crate::qcow2::tests::small;
    use crate::raw::{ImageRequirements, RawTarget};
    use crate::testing::{compress, noise, pace};
    use crate::{BurnResult, Digest};
    use linux::http;
    use std::fs;
    use std::path::Path;
    use testing::http::{ResponseBehavior, Server};

    fn burn(url: String, promised: &[u8], disk: &Path) -> Result<BurnResult> {
        let source = ImageSource { url, digest: Some(Digest::of_bytes(promised)), ..ImageSource::default() };
        let reached = resolve_image(&http::new_client()?, &source, &pace())?;
        let mut incoming = IncomingImage::start_at_pace(reached, PayloadKind::AnyBytes, pace())?;
        let (target, expected) = (RawTarget::open(&disk.to_str().unwrap().into())?, ImageRequirements::default());
        incoming.require_disk(&target.disk, &expected)?;
        incoming.burn_to_disk(&target, &expected, &|_| ())
    }

    /// Creates a file of 4 MiB of noise that takes the place of a disk, and returns the path of the file.
    fn disk(directory: &Path) -> std::path::PathBuf {
        fs::write(directory.join("disk"), noise(4 << 20)).unwrap();
        directory.join("disk")
    }

    #[test]
    fn qcow2_is_written_as_its_disk() {
        let (image, expected) = small();
        let directory = tempfile::tempdir().unwrap();
        let served = Server::start(image.clone(), |_| ResponseBehavior::default());
        fs::write(directory.path().join("i.qcow2"), &image).unwrap();
        for url in [served.url("i.qcow2"), format!("file://{}/i.qcow2", directory.path().display())] {
            let disk = disk(directory.path());
            let burned = burn(url, &image, &disk).unwrap();
            assert_eq!((burned.bytes, burned.tar_bytes), (image.len() as u64, expected.len() as u64));
            assert!(fs::read(&disk).unwrap()[..expected.len()] == expected);
        }
        let disk = disk(directory.path());
        let error = burn(served.url("i"), b"another", &disk).unwrap_err();
        assert!(!error.is_refusal() && error.to_string().contains("digest mismatch"), "{error}");
        assert!(fs::read(&disk).unwrap()[..1 << 20].iter().all(|byte| *byte == 0));
    }

    #[test]
    fn refuses_unsuitable_qcow2_and_leaves_the_disk_unchanged() {
        let (image, _) = small();
        let with = |at: usize, bytes: &[u8]| {
            let mut image = image.clone();
            image[at..at + bytes.len()].copy_from_slice(bytes);
            image
        };
        let directory = tempfile::tempdir().unwrap();
        for (image, ranges, says) in [
            (with(8192, &4096_u64.to_be_bytes()), true, "are not in disk order"),
            (with(40, &(1_u64 << 40).to_be_bytes()), true, "`drophammer image pack`"),
            (with(35, &[1]), true, "is encrypted"),
            (with(4096, &[0xff; 8]), true, "invalid table entry"),
            (compress("zstd", &image), true, "is a compressed qcow2 file"),
            (image.clone(), false, "responded with 200 OK to a range request; without range requests"),
        ] {
            let server =
                Server::start(image.clone(), move |_| ResponseBehavior { ranges, ..ResponseBehavior::default() });
            let disk = disk(directory.path());
            let error = burn(server.url("i.qcow2"), &image, &disk).unwrap_err();
            assert!(error.is_refusal() && error.to_string().contains(says), "{says}: {error}");
            assert!(fs::read(&disk).unwrap() == noise(4 << 20), "{says}");
        }
    }

    #[test]
    fn qcow2_is_not_a_tree_of_files() {
        let (image, _) = small();
        let server = Server::start(image.clone(), |_| ResponseBehavior::default());
        let source =
            ImageSource { url: server.url("i"), digest: Some(Digest::of_bytes(&image)), ..ImageSource::default() };
        let reached = resolve_image(&http::new_client().unwrap(), &source, &pace()).unwrap();
        let error =
            IncomingImage::start_at_pace(reached, PayloadKind::Tar, pace()).unwrap().require_tree().unwrap_err();
        assert!(error.to_string().contains("the image is a qcow2; use a layout with image: true"), "{error}");
    }
}
