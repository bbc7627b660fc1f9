//! Decodes streams of each format, with one thread and with several threads: complete streams, streams of several
//! frames, truncated and damaged streams, and streams that are followed by other data.

mod corrupt_streams;
mod endless_empty_frames;
mod fuzz;
mod property;
mod tool_streams;

use super::*;
use crate::pipeline::buffer_pipe::{BufferChunk, create_pipe};
use crate::testing::{Tar, compress, noise, peak_kib, source};
use std::io::{self, Read, Write};

const FORMATS: [&str; 4] = ["zstd", "lz4", "gzip", "xz"];

/// Parameters of decoding.
#[derive(Debug, Clone, Copy)]
pub(super) struct DecodeParameters {
    pub threads: usize,
    /// Size of the fetched buffers, and of the buffers in the pool.
    pub buffer_bytes: usize,
    pub plain: PayloadKind,
}

pub(super) const ONE: DecodeParameters =
    DecodeParameters { threads: 1, buffer_bytes: 1 << 19, plain: PayloadKind::Tar };
pub(super) const SEVERAL: DecodeParameters = DecodeParameters { threads: 3, ..ONE };
/// Buffers so small that every structure of the stream is split across buffers.
const SMALL: DecodeParameters = DecodeParameters { buffer_bytes: 7, ..ONE };
const SMALL_SEVERAL: DecodeParameters = DecodeParameters { buffer_bytes: 7, ..SEVERAL };
const EACH: [DecodeParameters; 4] = [ONE, SEVERAL, SMALL, SMALL_SEVERAL];

/// Decodes the source, while `read` reads the output.
pub(super) fn through<T>(source: PipelineReader, how: DecodeParameters, read: impl FnOnce(PipelineReader) -> T) -> T {
    through_input(CompressedInput::new(source), how, read)
}

fn through_input<T>(input: CompressedInput, how: DecodeParameters, read: impl FnOnce(PipelineReader) -> T) -> T {
    let (sender, receiver) = create_pipe(4);
    let pool = BufferPool::new(4, how.buffer_bytes.max(100));
    let stages = StageClocks::start();
    thread::scope(|scope| {
        scope.spawn(|| decode_with(how.threads, input, how.plain, no_disk, &pool, &stages, sender));
        read(PipelineReader::new(receiver, std::sync::Arc::default()))
    })
}

/// Rejects a disk image, like a caller that expects a tree of files.
fn no_disk(start: &[u8]) -> io::Result<()> {
    if start.ends_with(&[0x55, 0xaa]) { Err(damaged_error("it is a disk")) } else { Ok(()) }
}

pub(super) fn decoded(bytes: &[u8], how: DecodeParameters) -> io::Result<Vec<u8>> {
    decoded_from(source(bytes, how.buffer_bytes, Ok(())), how)
}

fn decoded_from(source: PipelineReader, how: DecodeParameters) -> io::Result<Vec<u8>> {
    through(source, how, all)
}

fn all(mut reader: PipelineReader) -> io::Result<Vec<u8>> {
    let mut out = Vec::new();
    reader.read_to_end(&mut out).map(|_| out)
}

#[track_caller]
fn refused(bytes: &[u8], how: DecodeParameters) -> String {
    decoded(bytes, how).expect_err(&format!("{how:?}")).to_string()
}

fn content() -> Vec<u8> {
    [noise(200_000), vec![7; 300_000]].concat()
}

fn skippable(content: &[u8]) -> Vec<u8> {
    [&[0x53, 0x2a, 0x4d, 0x18][..], &(content.len() as u32).to_le_bytes(), content].concat()
}

#[test]
fn each_format_is_decoded_and_frames_are_concatenated() {
    for format in FORMATS {
        for how in EACH {
            let one = compress(format, &content());
            assert!(decoded(&one, how).unwrap() == content(), "{format} {how:?}");
            let two = [one.clone(), compress(format, b"tail")].concat();
            assert!(decoded(&two, how).unwrap() == [content(), b"tail".to_vec()].concat(), "{format} {how:?}");
            let small: Vec<u8> = (0..100_u8).flat_map(|number| compress(format, &[number; 3])).collect();
            assert!(decoded(&small, how).unwrap() == (0..100).flat_map(|number| [number; 3]).collect::<Vec<u8>>());
            let empty = [compress(format, b""), compress(format, b""), compress(format, b"x"), compress(format, b"")];
            assert_eq!(decoded(&empty.concat(), how).unwrap(), b"x", "{format} {how:?}");
        }
    }
}

#[test]
fn skippable_frames_contain_no_image_data() {
    for (format, how) in ["zstd", "lz4"].into_iter().flat_map(|format| EACH.map(|how| (format, how))) {
        let frame = compress(format, b"image");
        let (skip, empty) = (skippable(b"abc"), skippable(b""));
        let stream = [&skip[..], &empty, &frame, &skip, &skip, &frame, &empty, &skip].concat();
        assert_eq!(decoded(&stream, how).unwrap(), b"imageimage");
        for length in 8..skip.len() {
            let error = refused(&[&frame[..], &skip[..length]].concat(), how);
            assert!(error.contains("ends within a skippable frame"), "{error}");
        }
    }
}

#[test]
fn truncation_anywhere_is_reported_as_truncation() {
    for (format, how) in FORMATS.into_iter().flat_map(|format| EACH.map(|how| (format, how))) {
        let small = compress(format, b"some text, some text, some text");
        for length in 6..small.len() {
            let error = refused(&small[..length], how);
            assert!(error.contains("is truncated: "), "{format} {length}/{}: {error}", small.len());
            // A truncated frame after a complete one.
            let error = refused(&[&small, &small[..length]].concat(), how);
            assert!(error.contains("is truncated: "), "{format} {length}/{}: {error}", small.len());
            assert!(error.contains(&format!("after byte {}", small.len() + length)), "{format} {length}: {error}");
        }
    }
    for (format, how) in FORMATS.into_iter().flat_map(|format| [ONE, SEVERAL].map(|how| (format, how))) {
        let large = compress(format, &content());
        for length in [large.len() / 2, large.len() - 4, large.len() - 1] {
            assert!(refused(&large[..length], how).contains("is truncated: "), "{format} {length}");
        }
    }
}

#[test]
fn lz4_stream_truncated_between_blocks_is_truncated() {
    let stream = compress("lz4", &content());
    let block_at = |at: usize| u32::from_le_bytes(stream[at..at + 4].try_into().unwrap()) & 0x7fff_ffff;
    let header = 7;
    let second = header + 4 + block_at(header) as usize;
    assert!(block_at(second) > 0, "the test needs two blocks");
    for how in EACH {
        let error = refused(&stream[..second], how);
        assert!(error.contains("lz4 stream is truncated: it ends within a frame"), "{error}");
    }
}

#[test]
fn flipped_bit_is_detected_by_the_checksum() {
    for (format, how) in FORMATS.into_iter().flat_map(|format| EACH.map(|how| (format, how))) {
        let mut stream = compress(format, &content());
        let middle = stream.len() / 3;
        stream[middle] ^= 0x10;
        let error = refused(&stream, how);
        assert!(error.contains(&format!("the {format} stream is damaged near byte")), "{error}");
        assert!(error.to_lowercase().contains("checksum"), "{error}");
    }
}

#[test]
fn data_after_the_end_are_a_separate_error() {
    for (format, how) in FORMATS.into_iter().flat_map(|format| EACH.map(|how| (format, how))) {
        let other = if format == "zstd" { "gzip" } else { "zstd" };
        for tail in [&b"\0"[..], b"\0\0\0\0\0", b"<html>", &compress(other, b"x")] {
            let error = refused(&[&compress(format, b"image")[..], tail].concat(), how);
            assert!(error.contains(&format!("unexpected data after the end of the {format} stream")), "{error}");
        }
    }
}

#[test]
fn unknown_compression_is_reported_with_its_first_bytes() {
    for (bytes, says) in [
        (&b"BZh91AY&SY"[..], "begins with 42 5a 68 39;"),
        (b"etc/hosts\0\0\0", "begins with 65 74 63 2f;"),
        (b"\x02\x21\x4c\x18", "begins with 02 21 4c 18;"),
        (b"\xfd7zX", "begins with fd 37 7a 58;"),
        (b"\x1f", "begins with 1f;"),
        (&[0; 4096], "begins with 00 00 00 00;"),
        (b"", "the image is empty"),
    ] {
        for how in EACH {
            let error = refused(bytes, how);
            assert!(error.contains(says), "{error}");
        }
    }
}

#[test]
fn uncompressed_disk_is_reported_if_a_tree_is_expected() {
    // Only the first sector is checked: here the boot sector of GRUB with one partition.
    let disk = [&[0xeb, 0x63, 0x90][..], &[0; 447], &[0x83], &[0; 59], &[0x55, 0xaa], &[0; 4096]].concat();
    for how in EACH {
        let error = refused(&disk, how);
        assert!(error.contains("it is a disk"), "{error}");
    }
    assert!(decoded(&disk, DecodeParameters { plain: PayloadKind::AnyBytes, ..ONE }).unwrap() == disk);
}

#[test]
fn plain_tar_is_recognized_by_its_first_header() {
    let gnu = Tar::new().file("etc/hosts", b"localhost").end();
    let header = |change: fn(&mut tar::Header)| {
        let mut header = tar::Header::new_old();
        header.as_old_mut().name[0] = b'a';
        header.set_size(0);
        header.set_cksum();
        change(&mut header);
        [&header.as_bytes()[..], &[0; 1024]].concat()
    };
    let old = header(|_| ());
    for (tar, how) in [gnu, old].iter().flat_map(|tar| EACH.map(|how| (tar, how))) {
        assert!(decoded(tar, how).unwrap() == *tar, "{how:?}");
        assert!(refused(&tar[..511], how).contains("unknown compression"));
    }
    for other in
        [header(|header| header.as_old_mut().size[0] ^= 1), header(|header| header.as_old_mut().cksum = [0; 8])]
    {
        assert!(refused(&other, ONE).contains("unknown compression"));
    }
}

#[test]
fn uncompressed_bytes_are_passed_on_if_accepted() {
    for how in EACH.map(|how| DecodeParameters { plain: PayloadKind::AnyBytes, ..how }) {
        for bytes in [&noise(100_000)[..], &[0; 5000], b"x", &[0xfd, b'7', b'z', b'X', b'Z', 1], &[0x28, 0xb5, 0x2f]] {
            assert!(decoded(bytes, how).unwrap() == bytes, "{how:?}");
        }
        for format in FORMATS {
            assert!(decoded(&compress(format, &content()), how).unwrap() == content(), "{format} {how:?}");
            let error = refused(&[&compress(format, b"x")[..], b"plain"].concat(), how);
            assert!(error.contains("unexpected data after"), "{error}");
        }
        assert!(refused(b"", how).contains("the image is empty"));
        assert!(refused(&[&skippable(b"")[..], b"plain"].concat(), how).contains("unknown compression"));
    }
}

/// A frame of 100 bytes may declare a window of gigabytes.
#[test]
fn refuses_window_beyond_the_limit() {
    let encode = |log| {
        let mut encoder = zstd::Encoder::new(Vec::new(), 1).unwrap();
        encoder.window_log(log).unwrap();
        io::copy(&mut &noise(1000)[..], &mut encoder).unwrap();
        encoder.finish().unwrap()
    };
    let xz = |dictionary| {
        use liblzma::stream::{Check, Filters, LzmaOptions, Stream};
        let mut options = LzmaOptions::new_preset(0).unwrap();
        options.dict_size(dictionary);
        let stream = Stream::new_stream_encoder(Filters::new().lzma2(&options), Check::Crc32).unwrap();
        let mut encoder = liblzma::write::XzEncoder::new_stream(Vec::new(), stream);
        encoder.write_all(b"x").unwrap();
        encoder.finish().unwrap()
    };
    for how in [ONE, SEVERAL] {
        assert_eq!(decoded(&encode(27), how).unwrap(), noise(1000));
        let error = refused(&encode(28), how);
        assert!(error.contains("at most --long=27"), "{error}");
        assert_eq!(decoded(&xz(128 << 20), how).unwrap(), b"x");
        let error = refused(&xz(192 << 20), how);
        assert!(error.contains("the dictionary is larger than 128 MiB"), "{error}");
    }
}

#[test]
fn error_of_the_source_is_passed_on_unchanged() {
    for (format, how) in FORMATS.into_iter().flat_map(|format| EACH.map(|how| (format, how))) {
        let stream = compress(format, &content());
        for length in [0, 3, 30, stream.len() / 2, stream.len()] {
            let source = source(&stream[..length], how.buffer_bytes, Err(io::Error::other("the network is gone")));
            let error = decoded_from(source, how).unwrap_err();
            assert_eq!(error.to_string(), "the network is gone", "{format} {length}");
        }
    }
}

/// Data before the damage is decoded by another thread, but must precede the error.
#[test]
fn data_before_the_damage_are_decoded() {
    for how in [ONE, SEVERAL] {
        let frames: Vec<_> =
            (0..40).map(|number| compress("zstd", &[&noise(1 << 20)[..], &[number]].concat())).collect();
        let mut stream = frames.concat();
        let position = frames[..30].concat().len() + 1000;
        stream[position] ^= 1;
        let (got, error) = through(source(&stream, how.buffer_bytes, Ok(())), how, |mut reader| {
            let mut out = Vec::new();
            let error = reader.read_to_end(&mut out).unwrap_err();
            (out.len(), error.to_string())
        });
        assert!(error.contains("the zstd stream is damaged near byte"), "{error}");
        assert!(got >= 24 << 20, "{got}");
    }
}

/// If the reader is dropped before the end of the stream, the writer must not wait forever.
#[test]
fn dropped_reader_ends_the_decoding() {
    for (format, how) in FORMATS.into_iter().flat_map(|format| [ONE, SEVERAL].map(|how| (format, how))) {
        let frame = compress(format, &vec![0; 20 << 20]);
        let stream = std::iter::repeat_n(&frame[..], 20).collect::<Vec<_>>().concat();
        through(source(&stream, how.buffer_bytes, Ok(())), how, |mut reader| {
            let first: BufferChunk = reader.take_chunk(1000).unwrap().unwrap();
            assert_eq!(first[..], [0; 1000][..first.len()]);
        });
    }
}
