//! The output is independent of the division into frames, blocks and fetched pieces, and of the number of threads.

use super::*;
use proptest::prelude::*;

/// Returns contents that alternate between noise and repeated single bytes.
fn any_content() -> impl Strategy<Value = Vec<u8>> {
    let run = (any::<bool>(), any::<u8>(), 0..60_000_usize);
    prop::collection::vec(run, 0..6).prop_map(|runs| {
        let run = |(noisy, byte, length): &(bool, u8, usize)| match noisy {
            true => noise(length + usize::from(*byte)).split_off(usize::from(*byte)),
            false => vec![*byte; *length],
        };
        runs.iter().flat_map(run).collect()
    })
}

#[derive(Debug, Clone, Copy)]
struct Shape {
    level: i32,
    checksum: bool,
    sized: bool,
    linked: bool,
    block: usize,
    /// Number of bytes after which the encoder is flushed, which ends a block.
    flush: usize,
    skippable: bool,
}

fn any_shape() -> impl Strategy<Value = Shape> {
    (1..8, any::<[bool; 4]>(), 0..4_usize, 1..50_000_usize).prop_map(
        |(level, [checksum, sized, linked, skippable], block, flush)| Shape {
            level,
            checksum,
            sized,
            linked,
            block,
            flush,
            skippable,
        },
    )
}

fn frame(format: &str, content: &[u8], shape: Shape) -> Vec<u8> {
    fn write(to: &mut impl Write, content: &[u8], shape: Shape) {
        for piece in content.chunks(shape.flush) {
            to.write_all(piece).unwrap();
            to.flush().unwrap();
        }
    }
    let packed = match format {
        "zstd" => {
            let mut encoder = zstd::Encoder::new(Vec::new(), shape.level).unwrap();
            encoder.include_checksum(shape.checksum).unwrap();
            if shape.sized {
                encoder.set_pledged_src_size(Some(content.len() as u64)).unwrap();
            }
            write(&mut encoder, content, shape);
            encoder.finish().unwrap()
        }
        "lz4" => {
            use lz4_flex::frame::{BlockMode, BlockSize, FrameEncoder, FrameInfo};
            let sizes = [BlockSize::Max64KB, BlockSize::Max256KB, BlockSize::Max1MB, BlockSize::Max4MB];
            let info = FrameInfo::new()
                .block_size(sizes[shape.block])
                .block_mode(if shape.linked { BlockMode::Linked } else { BlockMode::Independent })
                .block_checksums(shape.level % 2 == 0)
                .content_checksum(shape.checksum)
                .content_size(shape.sized.then_some(content.len() as u64));
            let mut encoder = FrameEncoder::with_frame_info(info, Vec::new());
            write(&mut encoder, content, shape);
            encoder.finish().unwrap()
        }
        _ => compress(format, content),
    };
    if shape.skippable && matches!(format, "zstd" | "lz4") {
        [skippable(&content[..content.len().min(99)]), packed].concat()
    } else {
        packed
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn any_content_decodes_to_the_same_bytes(
        format in prop::sample::select(&FORMATS[..]),
        content in any_content(),
        cuts in prop::collection::vec(any::<prop::sample::Index>(), 0..12),
        shapes in prop::collection::vec(any_shape(), 12),
        threads in 1..5_usize,
        buffer_bytes in prop_oneof![1..100_usize, 1000..600_000_usize],
    ) {
        let mut cuts: Vec<usize> = cuts.iter().map(|cut| cut.index(content.len() + 1)).collect();
        cuts.extend([0, content.len()]);
        cuts.sort_unstable();
        let frames = cuts.windows(2).zip(shapes.iter().cycle());
        let packed: Vec<u8> = frames.flat_map(|(cut, shape)| frame(format, &content[cut[0]..cut[1]], *shape)).collect();
        let how = DecodeParameters { threads, buffer_bytes, plain: PayloadKind::Tar };
        prop_assert!(decoded(&packed, how).unwrap() == content);
    }
}
