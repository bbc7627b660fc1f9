//! Order and failures of parts that are decoded by several threads.

use super::super::error::DecodeResult;
use super::super::lz4_frames::Lz4Frame;
use super::*;
use crate::pipeline::buffer_pipe::create_pipe;
use crate::pipeline::pipe_reader::PipelineReader;
use crate::testing::source;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

/// Returns the largest number of parts that the task being assembled had at any time.
fn most_parts(
    stream: &[u8],
    mut feed: impl FnMut(&mut DecoderPool, &mut CompressedInput) -> DecodeResult<bool>,
) -> usize {
    let (sender, receiver) = create_pipe(4);
    let (shared, stages, pool) = (
        DecoderState::new(sender, Arc::new(EmptyInputLimit::with_limit(u64::MAX))),
        StageClocks::start(),
        BufferPool::new(4, 100),
    );
    thread::scope(|scope| {
        scope.spawn(|| io::copy(&mut PipelineReader::new(receiver, Arc::default()), &mut io::sink()).unwrap());
        let mut input = CompressedInput::new(source(stream, 1 << 19, Ok(())));
        let mut crew = DecoderPool::new(scope, &shared, &stages, &pool, 3, input.clock());
        let mut most = 0;
        while feed(&mut crew, &mut input)
            .unwrap_or_else(|fault| panic!("{}", fault.into_io_error(CompressionFormat::Lz4, 0)))
        {
            most = most.max(crew.parts.len());
        }
        crew.send_in_order(&mut input, DecodedItem::End(Ok(()))).unwrap();
        most
    })
}

#[test]
fn number_of_tiny_frames_in_a_task_is_limited() {
    let empty = [0x28, 0xb5, 0x2f, 0xfd, 0x20, 0, 1, 0, 0];
    let frames = most_parts(&empty.repeat(100_000), |crew, input| {
        let Some(whole) = crew.measure(input)? else { return Ok(false) };
        let part = DecodePart::ZstdFrame(input.cut_off(whole.compressed_bytes)?);
        crew.add_part(input, part, whole.most_bytes, 0)?;
        Ok(true)
    });
    assert_eq!(frames, MAXIMUM_TASK_PARTS - 1);

    for block in [&[0, 0, 0, 0x80][..], &[1, 0, 0, 0x80, b'x']] {
        let head = [0x04, 0x22, 0x4d, 0x18, 0x60, 0x40, 0x82];
        let stream = [&head[..], &block.repeat(10_000), &[0; 4]].concat();
        let mut frame = None;
        let blocks = most_parts(&stream, |crew, input| {
            let frame = match &mut frame {
                None => frame.insert(Lz4Frame::read_descriptor(input)?),
                Some(frame) => frame,
            };
            let Ok(block) = frame.next_block(input)? else { return Ok(false) };
            let most_bytes = block.most_bytes;
            crew.add_part(input, DecodePart::Lz4Block(block), most_bytes, 0)?;
            Ok(true)
        });
        assert_eq!(blocks, MAXIMUM_TASK_PARTS - 1, "{block:?}");
    }
}

#[test]
fn empty_frames_wait_for_their_turn() {
    let empty = [0x04, 0x22, 0x4d, 0x18, 0x60, 0x40, 0x82, 0, 0, 0, 0];
    let (sender, receiver) = create_pipe(4);
    let (shared, stages, pool) = (
        DecoderState::new(sender, Arc::new(EmptyInputLimit::with_limit(u64::MAX))),
        StageClocks::start(),
        BufferPool::new(4, 100),
    );
    let started = AtomicUsize::new(0);
    thread::scope(|scope| {
        scope.spawn(|| io::copy(&mut PipelineReader::new(receiver, Arc::default()), &mut io::sink()).unwrap());
        let mut input = CompressedInput::new(source(&empty.repeat(10 * MAXIMUM_PENDING_FRAMES), 1 << 19, Ok(())));
        let mut crew = DecoderPool::new(scope, &shared, &stages, &pool, 3, input.clock());
        // A part that another thread is still decoding.
        let number = crew.next_number().unwrap();
        let (started, shared) = (&started, &shared);
        scope.spawn(move || {
            while started.load(Ordering::SeqCst) < MAXIMUM_PENDING_FRAMES {
                thread::yield_now();
            }
            thread::sleep(Duration::from_millis(50));
            let most = started.load(Ordering::SeqCst);
            let part = BufferPool::new(1, 1).take_buffer(&StageClock::default()).into_chunk(0);
            shared.outlet.put_item(number, DecodedItem::Content(part), &StageClock::default());
            assert_eq!(most, MAXIMUM_PENDING_FRAMES);
        });
        for _ in 0..10 * MAXIMUM_PENDING_FRAMES {
            let frame = Lz4Frame::read_descriptor(&mut input).ok().unwrap();
            crew.begin_frame(&mut input, frame.start_sum()).unwrap();
            let Ok(Err(promise)) = frame.next_block(&mut input) else { panic!("it has a block") };
            crew.send_in_order(&mut input, DecodedItem::FrameEnd(promise, 0)).unwrap();
            started.fetch_add(1, Ordering::SeqCst);
        }
        crew.send_in_order(&mut input, DecodedItem::End(Ok(()))).unwrap();
    });
}

/// The download waits for a free buffer, and the scan waits for the download: if the scan held all buffers, both would
/// wait forever.
#[test]
fn scan_leaves_a_buffer_for_the_download() {
    const BLOCK_BYTES: usize = 128 << 10;
    let window_and_content = [0x68, 0, 0, 0x80, 0];
    let block = [&[0, 0, 0x10][..], &[b'x'; BLOCK_BYTES]].concat();
    let frame = [&[0x28, 0xb5, 0x2f, 0xfd, 0x80][..], &window_and_content, &block.repeat(130)].concat();
    for consumed in [0, 1 << 19, (1 << 20) - 1] {
        let stream = [&vec![0; consumed][..], &frame].concat();
        let mut input = CompressedInput::new(source(&stream, 1 << 20, Ok(())));
        input.cut_off(consumed).unwrap();
        assert!(zstd_frames::scan_frame(&mut input, MAXIMUM_PART_BYTES, MAXIMUM_HELD_BUFFERS).unwrap().is_none());
        assert!(input.held() < crate::pipeline::BUFFERS, "{consumed}: {} buffers", input.held());
    }
}
