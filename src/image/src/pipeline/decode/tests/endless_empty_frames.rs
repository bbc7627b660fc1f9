//! Endless streams that produce no output.

use super::*;
use crate::pipeline::stage_clock::StageClock;

/// Limit on input without output. Like the buffers, it is smaller than in production.
const LIMIT: u64 = 1 << 20;
const BUFFER_BYTES: usize = 1 << 13;

/// Decodes `head` followed by many repetitions of `piece`, and returns the error message.
fn on_and_on(head: &[u8], piece: &[u8], threads: usize) -> String {
    let (sender, receiver) = create_pipe(1);
    let head = head.to_vec();
    // The buffers contain whole pieces.
    let piece = piece.repeat(BUFFER_BYTES.div_ceil(piece.len()));
    thread::spawn(move || {
        let (pool, clock) = (BufferPool::new(32, BUFFER_BYTES), StageClock::default());
        let mut sent = 0;
        let pieces = std::iter::once(&head).chain(std::iter::repeat(&piece));
        for bytes in pieces.flat_map(|bytes| bytes.chunks(BUFFER_BYTES)) {
            if sent > 3 * LIMIT {
                break;
            }
            sent += bytes.len() as u64;
            let mut filling = pool.take_buffer(&clock);
            filling[..bytes.len()].copy_from_slice(bytes);
            if sender.send(filling.into_chunk(bytes.len()), &clock).is_err() {
                return;
            }
        }
        sender.fail(io::Error::other("it goes on"));
    });
    let input = CompressedInput::bounded(PipelineReader::new(receiver, std::sync::Arc::default()), LIMIT);
    let how = DecodeParameters { threads, buffer_bytes: BUFFER_BYTES, plain: PayloadKind::AnyBytes };
    through_input(input, how, all).unwrap_err().to_string()
}

#[test]
fn endless_empty_data_end_in_one_error() {
    let lz4_head = |linked: bool| {
        let frame: [u8; 7] =
            if linked { [4, 0x22, 0x4d, 0x18, 0x40, 0x40, 0xc0] } else { [4, 0x22, 0x4d, 0x18, 0x60, 0x40, 0x82] };
        frame.to_vec()
    };
    let huge = [&[0x50, 0x2a, 0x4d, 0x18][..], &[0xff; 4]].concat();
    let zstd_head = [0x28, 0xb5, 0x2f, 0xfd, 0, 0];
    let cases: Vec<(&str, Vec<u8>, Vec<u8>)> = vec![
        ("skippable frames first", vec![], skippable(&[1; 1000])),
        ("one huge frame", huge, vec![1; 1000]),
        ("skippable frames after zstd", compress("zstd", &content()), skippable(b"")),
        ("skippable frames after lz4", compress("lz4", &content()), skippable(&[1; 100_000])),
        ("padding of xz", compress("xz", &content()), vec![0; 4096]),
        ("empty frames of zstd", vec![], compress("zstd", b"")),
        ("empty frames of lz4", vec![], compress("lz4", b"")),
        ("empty members of gzip", vec![], compress("gzip", b"")),
        ("empty streams of xz", vec![], compress("xz", b"")),
        ("empty blocks of zstd", zstd_head.to_vec(), vec![0; 3]),
        ("empty blocks of lz4", lz4_head(false), vec![0, 0, 0, 0x80]),
        ("empty blocks of lz4, linked", lz4_head(true), vec![0, 0, 0, 0x80]),
        ("a byte now and then", vec![], [skippable(&[1; 10_000]), compress("zstd", b"x")].concat()),
    ];
    for (name, head, piece) in &cases {
        for threads in [1, 3] {
            let error = on_and_on(head, piece, threads);
            assert!(
                error.starts_with("more than 1 MiB of consecutive compressed data decompress to"),
                "{name}: {error}"
            );
        }
    }
}

#[test]
fn small_frames_do_not_exceed_the_empty_input_limit() {
    // Frames of few bytes, each preceded by a skippable frame as in pzstd, and uncompressed data.
    for (format, bytes) in [("zstd", 3), ("zstd", 1), ("lz4", 2), ("gzip", 1), ("xz", 4), ("plain", 4096)] {
        let skipped = if ["zstd", "lz4"].contains(&format) { skippable(&[1; 4]) } else { Vec::new() };
        let piece = [skipped, compress(format, &[0; 4096][..bytes])].concat();
        for threads in [1, 3] {
            assert_eq!(on_and_on(&[], &piece, threads), "it goes on", "{format} {bytes}");
        }
    }
    // The skippable frame has the size of the seek table of a large image.
    let whole = [&compress("zstd", &content())[..], &skippable(&vec![1; 40 << 20])].concat();
    assert!(EACH.iter().take(2).all(|how| decoded(&whole, *how).unwrap() == content()));
}
