//! Images, streams and helper functions for tests.

pub(crate) use ::testing::images::*;

use super::fetch::{FetchRetryPolicy, LaneRules};
use super::pipeline::{BufferPool, PipelineReader, StageClock, create_pipe};
use std::sync::Arc;
use std::thread;
use std::time::Duration;

/// Returns a policy with short pauses. The stall timeout is long enough for a busy machine; tests of stalls shorten it.
pub(crate) fn pace() -> FetchRetryPolicy {
    FetchRetryPolicy {
        stall: Duration::from_secs(10),
        attempts: 4,
        first_pause: Duration::from_millis(1),
        longest_pause: Duration::from_millis(5),
        lanes: LaneRules::default(),
    }
}

/// Returns a reader of these bytes from a previous stage, in buffers of `cut` bytes. There are only three buffers, so a
/// consumer that holds more of them waits forever.
pub(crate) fn reader(bytes: &[u8], cut: usize) -> PipelineReader {
    let (sender, receiver) = create_pipe(1);
    let bytes = bytes.to_vec();
    thread::spawn(move || {
        let (pool, clock) = (BufferPool::new(3, cut), StageClock::default());
        for piece in bytes.chunks(cut) {
            let mut filling = pool.take_buffer(&clock);
            filling[..piece.len()].copy_from_slice(piece);
            if sender.send(filling.into_chunk(piece.len()), &clock).is_err() {
                return;
            }
        }
        sender.end();
    });
    PipelineReader::new(receiver, Arc::default())
}

/// Returns a reader of a stage that sends these bytes, and then the end or the error `end`.
pub(crate) fn source(bytes: &[u8], buffer_bytes: usize, end: std::io::Result<()>) -> PipelineReader {
    let count = bytes.len().div_ceil(buffer_bytes);
    let (pool, clock) = (BufferPool::new(count, buffer_bytes), StageClock::default());
    let (sender, receiver) = create_pipe(count + 1);
    for piece in bytes.chunks(buffer_bytes) {
        let mut filling = pool.take_buffer(&clock);
        filling[..piece.len()].copy_from_slice(piece);
        sender.send(filling.into_chunk(piece.len()), &clock).unwrap();
    }
    match end {
        Ok(()) => sender.end(),
        Err(error) => sender.fail(error),
    }
    PipelineReader::new(receiver, Arc::default())
}
