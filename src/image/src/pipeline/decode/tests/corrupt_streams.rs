//! Manipulated streams: each single bit flipped, truncation at each offset, decompression bombs, and wrong headers.

use super::*;

/// Returns small streams that use all features of each format.
pub(in crate::pipeline::decode) fn specimens() -> Vec<(&'static str, Vec<u8>)> {
    use lz4_flex::frame::{BlockMode, BlockSize, FrameEncoder, FrameInfo};
    let content = [&b"some text, some text, some text; "[..], &noise(40), &[9; 300]].concat();
    let zstd = |checksum: bool, sized: bool| {
        let mut encoder = zstd::Encoder::new(Vec::new(), 3).unwrap();
        encoder.include_checksum(checksum).unwrap();
        encoder.set_pledged_src_size(sized.then_some(content.len() as u64)).unwrap();
        encoder.write_all(&content).unwrap();
        encoder.finish().unwrap()
    };
    let lz4 = |mode: BlockMode, sums: bool| {
        let info = FrameInfo::new()
            .block_size(BlockSize::Max64KB)
            .block_mode(mode)
            .block_checksums(sums)
            .content_checksum(sums)
            .content_size(sums.then_some(2 * content.len() as u64));
        let mut encoder = FrameEncoder::with_frame_info(info, Vec::new());
        for _ in 0..2 {
            encoder.write_all(&content).unwrap();
            encoder.flush().unwrap();
        }
        encoder.finish().unwrap()
    };
    vec![
        ("zstd", [zstd(true, true), skippable(b"abc"), zstd(true, false)].concat()),
        ("zstd, no checksum", [zstd(false, true), zstd(false, false)].concat()),
        ("lz4", [lz4(BlockMode::Independent, true), skippable(b"abc"), lz4(BlockMode::Linked, true)].concat()),
        ("lz4, no checksum", [lz4(BlockMode::Independent, false), lz4(BlockMode::Linked, false)].concat()),
        ("gzip", [compress("gzip", &content), compress("gzip", b"x")].concat()),
        ("xz", [compress("xz", &content), vec![0; 4], compress("xz", b"x")].concat()),
        ("plain", Tar::new().file("a", b"b").end()),
    ]
}

/// With checksums, wrong content is never returned. Without checksums, the decoder must at least terminate.
#[test]
fn any_single_flipped_bit_is_detected_or_harmless() {
    for (name, stream) in specimens() {
        let good = decoded(&stream, ONE).unwrap();
        for (at, bit) in (0..stream.len()).flat_map(|at| (0..8).map(move |bit| (at, bit))) {
            let mut flipped = stream.clone();
            flipped[at] ^= 1 << bit;
            let one = decoded(&flipped, ONE);
            if bit == at % 8 {
                let several = decoded(&flipped, SEVERAL);
                assert_eq!(one.as_ref().ok(), several.as_ref().ok(), "{name}, byte {at} bit {bit}");
            }
            // A flipped bit in a skippable frame or in the header of gzip does not change the content.
            let checked = FORMATS.contains(&name);
            assert!(!checked || one.is_err() || one.is_ok_and(|made| made == good), "{name}, byte {at} bit {bit}");
        }
    }
}

#[test]
fn truncation_is_an_error_except_at_frame_ends() {
    for (name, stream) in specimens() {
        let whole = decoded(&stream, ONE).unwrap();
        let mut ends = 0;
        for length in 0..stream.len() {
            for how in EACH {
                match decoded(&stream[..length], how) {
                    Ok(part) => {
                        assert!(whole.starts_with(&part), "{name} {length}");
                        ends += 1;
                    }
                    Err(error) => {
                        assert!(!error.to_string().contains("ended unexpectedly"), "{name} {length}: {error}")
                    }
                }
            }
        }
        // A stream that is truncated after its first frame, after a skippable frame, or in its padding is still valid.
        // Truncation of a plain tar is detected when it is unpacked.
        assert!(name == "plain" || ends <= 2 * EACH.len(), "{name}: {ends}");
    }
}

/// Returns a zstd frame with these blocks, without a checksum.
fn zstd_frame(head: &[u8], blocks: &[(u32, u32, &[u8])]) -> Vec<u8> {
    let mut frame = [&[0x28, 0xb5, 0x2f, 0xfd][..], head].concat();
    for (at, (kind, size, bytes)) in blocks.iter().enumerate() {
        let last = u32::from(at + 1 == blocks.len());
        frame.extend(&(size << 3 | kind << 1 | last).to_le_bytes()[..3]);
        frame.extend(*bytes);
    }
    frame
}

/// Returns the header of a single-segment frame with a content size field of four bytes.
fn sized(size: u32) -> Vec<u8> {
    [&[0xa0][..], &size.to_le_bytes()].concat()
}

#[test]
fn false_zstd_headers_are_refused_with_several_threads() {
    let window_1k = [0x00, 0x00];
    let window_8m = [0x00, 0x68];
    for (frame, good) in [
        (zstd_frame(&sized(3), &[(0, 3, b"abc")]), true),
        (zstd_frame(&sized(3), &[(0, 0, b""), (0, 3, b"abc"), (0, 0, b"")]), true),
        (zstd_frame(&sized(3), &[(1, 3, b"a")]), true),
        (zstd_frame(&window_1k, &[(1, 1024, b"a"), (0, 2, b"bc")]), true),
        (zstd_frame(&window_8m, &[(1, 128 << 10, &b"a"[..]); 100]), true),
        // More or less content than declared.
        (zstd_frame(&sized(3), &[(1, 4, b"a")]), false),
        (zstd_frame(&sized(3), &[(0, 2, b"ab")]), false),
        (zstd_frame(&sized(1 << 20), &[(0, 2, b"ab")]), false),
        (zstd_frame(&sized(u32::MAX), &[(0, 2, b"ab")]), false),
        // Blocks that are larger than the window, larger than the maximum block, of the reserved type, or not
        // decodable.
        (zstd_frame(&window_1k, &[(1, 1025, b"a")]), false),
        (zstd_frame(&window_8m, &[(1, (128 << 10) + 1, b"a")]), false),
        (zstd_frame(&window_8m, &[(3, 3, b"abc")]), false),
        (zstd_frame(&window_8m, &[(2, 3, b"abc")]), false),
        // A frame with a dictionary, and one with a reserved bit.
        (zstd_frame(&[0x21, 7, 3], &[(0, 3, b"abc")]), false),
        (zstd_frame(&[0x28, 3], &[(0, 3, b"abc")]), false),
    ] {
        for how in EACH {
            let made = decoded(&frame, how);
            assert_eq!(made.is_ok(), good, "{how:?} {:02x?}: {made:?}", &frame[..frame.len().min(40)]);
            if let Err(error) = made {
                assert!(error.to_string().contains("the zstd stream is damaged near byte"), "{error}");
            }
        }
    }
}

#[test]
fn refuses_false_lz4_frames() {
    let frame = |flags: u8, size: u8, more: &[u8], rest: &[u8]| {
        let descriptor = [&[flags, size][..], more].concat();
        let sum = twox_hash::XxHash32::oneshot(0, &descriptor).to_le_bytes()[1];
        [&[0x04, 0x22, 0x4d, 0x18][..], &descriptor, &[sum], rest].concat()
    };
    let abc = [3, 0, 0, 0x80, b'a', b'b', b'c', 0, 0, 0, 0];
    assert_eq!(decoded(&frame(0x60, 0x40, b"", &abc), ONE).unwrap(), b"abc");
    assert_eq!(decoded(&frame(0x68, 0x40, &3_u64.to_le_bytes(), &abc), ONE).unwrap(), b"abc");
    for (stream, says) in [
        (frame(0x20, 0x40, b"", &abc), "the frame's version is not supported"),
        (frame(0x62, 0x40, b"", &abc), "the frame's version is not supported"),
        (frame(0x60, 0x41, b"", &abc), "the frame's version is not supported"),
        (frame(0x60, 0x30, b"", &abc), "unknown block size 3"),
        (frame(0x61, 0x40, &[1, 0, 0, 0], &abc), "requires a dictionary"),
        (frame(0x68, 0x40, &4_u64.to_le_bytes(), &abc), "a frame declares 4 bytes of content, but contains 3 bytes"),
        (
            frame(0x60, 0x40, b"", &[1, 0, 1, 0, 0, 0]),
            "a block is 65537 bytes, but the frame allows 65536 bytes per block",
        ),
        // The block refers to data before its beginning, which independent blocks must not do.
        (
            frame(0x60, 0x40, b"", &[&abc[..7], &[9, 0, 0, 0, 0x04, 1, 0, 0x50, 1, 2, 3, 4, 5, 0, 0, 0, 0]].concat()),
            "offset",
        ),
    ] {
        for how in EACH {
            let error = refused(&stream, how);
            assert!(error.contains("the lz4 stream is damaged near byte") && error.contains(says), "{says}: {error}");
        }
    }
    let linked =
        frame(0x40, 0x40, b"", &[&abc[..7], &[9, 0, 0, 0, 0x04, 1, 0, 0x50, 1, 2, 3, 4, 5, 0, 0, 0, 0]].concat());
    assert_eq!(decoded(&linked, SEVERAL).unwrap(), b"abccccccccc\x01\x02\x03\x04\x05");
}

/// Decompression bombs: they are read for a while in bounded memory, and then aborted.
#[test]
fn decompression_bombs_are_decoded_in_limited_memory() {
    let large = (1_u32, 128 << 10, &b"\0"[..]);
    let rle = |blocks| zstd_frame(&[0x00, 0x68], &vec![large; blocks]);
    let gzip = compress("gzip", &vec![0; 64 << 20]);
    let xz = compress("xz", &vec![0; 64 << 20]);
    let lz4 = compress("lz4", &vec![0; 64 << 20]);
    for (name, bomb) in [
        // Each of these two zstd streams decompresses to 1 TiB.
        ("one frame", rle(8 << 20)),
        ("many frames", rle(64).repeat(128 << 10)),
        ("gzip", gzip.repeat(40)),
        ("xz", xz.repeat(40)),
        ("lz4", lz4.repeat(40)),
    ] {
        for how in [ONE, SEVERAL] {
            let read = through(source(&bomb, how.buffer_bytes, Ok(())), how, |mut reader| {
                let mut read = 0;
                while read < 200 << 20 {
                    let chunk = reader.take_chunk(usize::MAX).unwrap().unwrap();
                    assert!(chunk.len() <= thread_pool::MAXIMUM_PART_BYTES, "{name}");
                    read += chunk.len();
                }
                read
            });
            assert!(read >= 200 << 20, "{name}");
        }
    }
}
