//! From the compressed stream to the tar: zstd, lz4 or gzip, whichever its first bytes say. The end counts as an end
//! only when the last frame is whole and nothing follows it.

use super::ring::{Pool, Reader, Sender};
use flate2::bufread::GzDecoder;
use lz4_flex::frame::FrameDecoder;
use std::fmt;
use std::io::{self, BufRead, Read};
use std::mem;

/// Bytes of compressed stream held at a time.
const BUFFER_BYTES: usize = 128 * 1024;

/// What `zstd -d` takes without being asked, and what `--long` and `--ultra -22` produce: 128 MiB of window. It is the
/// most that a ramdisk with 512 MiB can spare. The window is allocated by the frame's need, so `-19` takes 8 MiB.
const ZSTD_WINDOW_LOG_MAX: u32 = 27;

const ZSTD: [u8; 4] = [0x28, 0xb5, 0x2f, 0xfd];
const LZ4: [u8; 4] = [0x04, 0x22, 0x4d, 0x18];
const GZIP: [u8; 2] = [0x1f, 0x8b];

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Format {
    Zstd,
    Lz4,
    Gzip,
}

impl Format {
    fn of(magic: &[u8]) -> Option<Format> {
        match magic {
            [a, b, c, d, ..] if [*a, *b, *c, *d] == ZSTD => Some(Format::Zstd),
            [a, b, c, d, ..] if [*a, *b, *c, *d] == LZ4 => Some(Format::Lz4),
            [a, b, ..] if [*a, *b] == GZIP => Some(Format::Gzip),
            _ => None,
        }
    }
}

impl fmt::Display for Format {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.write_str(match self {
            Format::Zstd => "zstd",
            Format::Lz4 => "lz4",
            Format::Gzip => "gzip",
        })
    }
}

/// Sends the decompressed stream on, to its end or its first error.
pub fn decode(compressed: Reader, pool: &Pool, sender: Sender) {
    let clock = compressed.clock();
    let mut decoder = Decoder::new(compressed);
    loop {
        let mut filling = pool.take(&clock);
        let mut filled = 0;
        let end = loop {
            match decoder.read(&mut filling[filled..]) {
                Ok(0) if filled < filling.len() => break Some(Ok(())),
                Ok(0) => break None,
                Ok(got) => filled += got,
                Err(error) => break Some(Err(error)),
            }
        };
        if filled > 0 && sender.send(filling.filled(filled), &clock).is_err() {
            return;
        }
        match end {
            None => {}
            Some(Ok(())) => return sender.end(),
            Some(Err(error)) => return sender.fail(error),
        }
    }
}

/// Reads the decompressed stream; several frames after each other are one stream.
pub struct Decoder<R: Read> {
    /// Of the frames so far: all are of one format.
    format: Option<Format>,
    state: State<R>,
}

enum State<R: Read> {
    Between(Input<R>),
    Zstd(zstd::Decoder<'static, Input<R>>),
    Lz4(Box<FrameDecoder<Input<R>>>),
    Gzip(Box<GzDecoder<Input<R>>>),
    Ended,
    Failed,
}

impl<R: Read> Decoder<R> {
    pub fn new(source: R) -> Self {
        Decoder { format: None, state: State::Between(Input::new(source)) }
    }

    /// Opens the frame that begins here, or finds the end of the stream.
    fn next_frame(&mut self, mut input: Input<R>) -> io::Result<State<R>> {
        input.skip_skippable_frames()?;
        let position = input.position;
        let magic = input.peek(4)?;
        let found = Format::of(magic);
        match (self.format, found) {
            (Some(_), None) if magic.is_empty() => return Ok(State::Ended),
            (Some(format), other) if other != Some(format) => {
                return Err(damaged(format!(
                    "something follows the end of the {format} stream at byte {position}: {}",
                    hex(magic)
                )));
            }
            (None, None) if magic.is_empty() => return Err(damaged("the image is empty")),
            (None, None) => {
                return Err(damaged(format!(
                    "unknown compression: the image begins with {}; zstd, lz4 (frame format) and gzip are known",
                    hex(magic)
                )));
            }
            _ => {}
        }
        self.format = found;
        Ok(match found {
            Some(Format::Zstd) => {
                let mut decoder = zstd::Decoder::with_buffer(input)?.single_frame();
                decoder.window_log_max(ZSTD_WINDOW_LOG_MAX)?;
                State::Zstd(decoder)
            }
            Some(Format::Lz4) => State::Lz4(Box::new(FrameDecoder::new(input))),
            Some(Format::Gzip) => State::Gzip(Box::new(GzDecoder::new(input))),
            None => State::Ended,
        })
    }

    /// Words for an error inside a frame. One of the source's own goes through as it is.
    fn explain(&self, error: io::Error) -> io::Error {
        let input = match &self.state {
            State::Zstd(decoder) => decoder.get_ref(),
            State::Lz4(decoder) => decoder.get_ref(),
            State::Gzip(decoder) => decoder.get_ref(),
            State::Between(_) | State::Ended | State::Failed => return error,
        };
        if input.failed || error.kind() == io::ErrorKind::Interrupted {
            return error;
        }
        let format = self.format.unwrap_or(Format::Zstd);
        if error.kind() == io::ErrorKind::UnexpectedEof {
            return cut(format, input.position);
        }
        let text = error.to_string();
        let hint = if text.contains("too much memory") {
            " (windows up to 128 MiB are taken: compress with --long=27 or less)"
        } else {
            ""
        };
        damaged(format!("the {format} stream is damaged near byte {}: {text}{hint}", input.position))
    }
}

impl<R: Read> Read for Decoder<R> {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        if buf.is_empty() {
            return Ok(0);
        }
        loop {
            let got = match &mut self.state {
                State::Zstd(decoder) => decoder.read(buf),
                State::Lz4(decoder) => decoder.read(buf),
                State::Gzip(decoder) => decoder.read(buf),
                State::Between(_) => Ok(0),
                State::Ended => return Ok(0),
                State::Failed => return Err(damaged("the decoder has failed before")),
            };
            match got {
                Ok(0) => {}
                Ok(got) => return Ok(got),
                Err(error) => return Err(self.explain(error)),
            }
            let input = match mem::replace(&mut self.state, State::Failed) {
                State::Between(input) => input,
                State::Zstd(decoder) => decoder.into_inner(),
                State::Gzip(decoder) => decoder.into_inner(),
                State::Lz4(decoder) => {
                    let input = decoder.into_inner();
                    // lz4_flex takes the end of its input between two blocks for the end of the frame. A real end
                    // mark is read without meeting the end of the input.
                    if input.met_end {
                        return Err(cut(Format::Lz4, input.position));
                    }
                    input
                }
                State::Ended | State::Failed => return Ok(0),
            };
            self.state = self.next_frame(input)?;
        }
    }
}

/// A buffer that can look ahead and remembers how its source ended.
struct Input<R> {
    source: R,
    buffer: Box<[u8]>,
    start: usize,
    end: usize,
    /// Bytes taken out of the buffer.
    position: u64,
    /// A read came upon the end of the source.
    met_end: bool,
    failed: bool,
}

impl<R: Read> Input<R> {
    fn new(source: R) -> Self {
        let buffer = vec![0; BUFFER_BYTES].into_boxed_slice();
        Input { source, buffer, start: 0, end: 0, position: 0, met_end: false, failed: false }
    }

    /// Up to `count` bytes ahead, fewer only at the end.
    fn peek(&mut self, count: usize) -> io::Result<&[u8]> {
        while self.end - self.start < count {
            if self.start > 0 {
                self.buffer.copy_within(self.start..self.end, 0);
                (self.start, self.end) = (0, self.end - self.start);
            }
            if self.fill()? == 0 {
                break;
            }
        }
        Ok(&self.buffer[self.start..self.end.min(self.start + count)])
    }

    fn fill(&mut self) -> io::Result<usize> {
        loop {
            match self.source.read(&mut self.buffer[self.end..]) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => {
                    self.failed = true;
                    return Err(error);
                }
                Ok(got) => {
                    self.end += got;
                    self.met_end |= got == 0;
                    return Ok(got);
                }
            }
        }
    }

    /// zstd and lz4 share them; pzstd puts one before each frame. They hold nothing of the image.
    fn skip_skippable_frames(&mut self) -> io::Result<()> {
        loop {
            let mut left = match self.peek(8)? {
                [0x50..=0x5f, 0x2a, 0x4d, 0x18, a, b, c, d] => 8 + u64::from(u32::from_le_bytes([*a, *b, *c, *d])),
                _ => return Ok(()),
            };
            while left > 0 {
                let got = self.fill_buf()?.len();
                if got == 0 {
                    return Err(damaged(format!(
                        "the image ends in a skippable frame, at byte {}: it was cut",
                        self.position
                    )));
                }
                let skipped = (got as u64).min(left);
                self.consume(skipped as usize);
                left -= skipped;
            }
        }
    }
}

impl<R: Read> BufRead for Input<R> {
    fn fill_buf(&mut self) -> io::Result<&[u8]> {
        if self.start == self.end {
            (self.start, self.end) = (0, 0);
            self.fill()?;
        }
        Ok(&self.buffer[self.start..self.end])
    }

    fn consume(&mut self, amount: usize) {
        self.start += amount;
        self.position += amount as u64;
    }
}

impl<R: Read> Read for Input<R> {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        let got = self.fill_buf()?.read(buf)?;
        self.consume(got);
        Ok(got)
    }
}

fn damaged(text: impl Into<String>) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, text.into())
}

fn cut(format: Format, position: u64) -> io::Error {
    damaged(format!("the {format} stream ends in the middle of a frame, after byte {position}: it was cut"))
}

fn hex(bytes: &[u8]) -> String {
    let bytes: Vec<_> = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
    bytes.join(" ")
}

#[cfg(test)]
mod tests {
    use super::super::testing::{compress, noise};
    use super::*;

    fn decode(bytes: &[u8]) -> io::Result<Vec<u8>> {
        let mut out = Vec::new();
        // Small reads, so that every border falls between two of them once.
        Decoder::new(OneByOne(bytes)).read_to_end(&mut out).map(|_| out)
    }

    struct OneByOne<'a>(&'a [u8]);

    impl Read for OneByOne<'_> {
        fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
            let count = buf.len().min(7);
            self.0.read(&mut buf[..count])
        }
    }

    fn content() -> Vec<u8> {
        [noise(200_000), vec![7; 300_000]].concat()
    }

    #[test]
    fn each_format_comes_back_as_it_was_and_frames_join() {
        for format in ["zstd", "lz4", "gzip"] {
            let one = compress(format, &content());
            assert!(decode(&one).unwrap() == content(), "{format}");
            let two = [one.clone(), compress(format, b"tail")].concat();
            assert!(decode(&two).unwrap() == [content(), b"tail".to_vec()].concat(), "{format}");
        }
    }

    #[test]
    fn skippable_frames_hold_nothing_of_the_image() {
        let skippable = [&[0x53, 0x2a, 0x4d, 0x18, 3, 0, 0, 0][..], b"abc"].concat();
        for format in ["zstd", "lz4"] {
            let frame = compress(format, b"image");
            let stream = [&skippable[..], &frame, &skippable, &frame, &skippable].concat();
            assert_eq!(decode(&stream).unwrap(), b"imageimage");
            let error = decode(&[&frame[..], &skippable[..9]].concat()).unwrap_err().to_string();
            assert!(error.contains("ends in a skippable frame"), "{error}");
        }
    }

    #[test]
    fn a_cut_anywhere_is_called_a_cut() {
        for format in ["zstd", "lz4", "gzip"] {
            let small = compress(format, b"some text, some text, some text");
            for length in 4..small.len() {
                let error = decode(&small[..length]).expect_err(format).to_string();
                assert!(error.contains("it was cut"), "{format} {length}/{}: {error}", small.len());
            }
            let large = compress(format, &content());
            for length in [large.len() / 2, large.len() - 4, large.len() - 1] {
                assert!(decode(&large[..length]).unwrap_err().to_string().contains("it was cut"), "{format} {length}");
            }
        }
    }

    /// lz4_flex alone takes this for a whole stream.
    #[test]
    fn an_lz4_stream_cut_between_two_blocks_is_cut() {
        let stream = compress("lz4", &content());
        let block_at = |at: usize| u32::from_le_bytes(stream[at..at + 4].try_into().unwrap()) & 0x7fff_ffff;
        let header = 7;
        let second = header + 4 + block_at(header) as usize;
        assert!(block_at(second) > 0, "the test needs two blocks");
        let error = decode(&stream[..second]).unwrap_err().to_string();
        assert!(error.contains("lz4 stream ends in the middle"), "{error}");
    }

    #[test]
    fn a_flipped_bit_is_found_by_the_checksum() {
        for format in ["zstd", "lz4", "gzip"] {
            let mut stream = compress(format, &content());
            let middle = stream.len() / 3;
            stream[middle] ^= 0x10;
            let error = decode(&stream).expect_err(format).to_string();
            assert!(error.contains(&format!("the {format} stream is damaged near byte")), "{error}");
            assert!(error.to_lowercase().contains("checksum"), "{error}");
        }
    }

    #[test]
    fn what_follows_the_end_is_an_error_of_its_own() {
        for format in ["zstd", "lz4", "gzip"] {
            let other = if format == "zstd" { "gzip" } else { "zstd" };
            for tail in [&b"\0"[..], b"\0\0\0\0\0", b"<html>", &compress(other, b"x")] {
                let error = decode(&[&compress(format, b"image")[..], tail].concat()).expect_err(format).to_string();
                assert!(error.contains(&format!("something follows the end of the {format} stream")), "{error}");
            }
        }
    }

    #[test]
    fn unknown_compression_is_named_by_its_first_bytes() {
        for (bytes, says) in [
            (&b"\xfd7zXZ\0"[..], "begins with fd 37 7a 58;"),
            (b"etc/hosts\0\0\0", "begins with 65 74 63 2f;"),
            (b"\x02\x21\x4c\x18", "begins with 02 21 4c 18;"),
            (b"\x1f", "begins with 1f;"),
            (b"", "the image is empty"),
        ] {
            let error = decode(bytes).unwrap_err().to_string();
            assert!(error.contains(says), "{error}");
        }
    }

    #[test]
    fn a_window_beyond_the_limit_is_refused() {
        let encode = |log| {
            let mut encoder = zstd::Encoder::new(Vec::new(), 1).unwrap();
            encoder.window_log(log).unwrap();
            io::copy(&mut &noise(1000)[..], &mut encoder).unwrap();
            encoder.finish().unwrap()
        };
        assert_eq!(decode(&encode(27)).unwrap(), noise(1000));
        let error = decode(&encode(28)).unwrap_err().to_string();
        assert!(error.contains("--long=27 or less"), "{error}");
    }

    #[test]
    fn an_error_of_the_source_goes_through_as_it_is() {
        struct Failing<'a>(&'a [u8]);
        impl Read for Failing<'_> {
            fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
                if self.0.is_empty() { Err(io::Error::other("the network is gone")) } else { self.0.read(buf) }
            }
        }
        for format in ["zstd", "lz4", "gzip"] {
            let stream = compress(format, &content());
            for length in [0, 3, 30, stream.len() / 2, stream.len()] {
                let error = Decoder::new(Failing(&stream[..length])).read_to_end(&mut Vec::new()).unwrap_err();
                assert_eq!(error.to_string(), "the network is gone", "{format} {length}");
            }
        }
    }
}
