//! Order, errors and reuse of buffers.

use super::*;
use crate::pipeline::PipelineReader;
use std::io::Read;
use std::thread;
use std::time::Duration;

fn chunk(pool: &BufferPool, bytes: &[u8]) -> BufferChunk {
    let mut filling = pool.take_buffer(&StageClock::default());
    filling[..bytes.len()].copy_from_slice(bytes);
    filling.into_chunk(bytes.len())
}

#[test]
fn buffer_is_free_after_its_last_chunk_is_dropped() {
    // If the other thread requests the buffer only when the buffer is already free, that thread does not wait. The
    // attempt is then repeated with a longer pause.
    let waited = (1..1000).any(|milliseconds| {
        let pool = BufferPool::new(1, 8);
        let mut whole = chunk(&pool, b"abcdefgh");
        let front = whole.split_to(3);
        assert_eq!((&front[..], &whole[..]), (&b"abc"[..], &b"defgh"[..]));
        let (clock, other) = (StageClock::default(), pool.clone());
        thread::scope(|scope| {
            let taking = scope.spawn(|| other.take_buffer(&clock).len());
            drop(whole);
            thread::sleep(Duration::from_millis(milliseconds));
            assert!(!taking.is_finished());
            drop(front);
            assert_eq!(taking.join().unwrap(), 8);
        });
        !clock.waited().is_zero()
    });
    assert!(waited, "the wait for a buffer is not recorded");
}

#[test]
fn many_chunks_form_one_stream_with_few_buffers() {
    let (sender, receiver) = create_pipe(4);
    let stage = thread::spawn(move || {
        let (pool, clock) = (BufferPool::new(2, 10), StageClock::default());
        for number in 0..100u8 {
            sender.send(chunk(&pool, &[number; 10]), &clock).unwrap();
        }
        sender.end();
    });
    let mut reader = PipelineReader::new(receiver, Arc::default());
    let mut three = [9; 3];
    reader.read_exact(&mut three).unwrap();
    assert_eq!((three, reader.position()), ([0; 3], 3));
    assert_eq!(reader.take_chunk(100).unwrap().unwrap().len(), 7);
    assert_eq!(&reader.take_chunk(4).unwrap().unwrap()[..], [1; 4]);
    let mut rest = Vec::new();
    reader.read_to_end(&mut rest).unwrap();
    assert_eq!((rest.len(), rest.last(), reader.position()), (986, Some(&99), 1000));
    assert!(reader.take_chunk(1).unwrap().is_none());
    stage.join().unwrap();
}

#[test]
fn error_follows_sent_data_and_silence_fails() {
    let pool = BufferPool::new(2, 10);
    let (sender, receiver) = create_pipe(4);
    sender.send(chunk(&pool, b"x"), &StageClock::default()).unwrap();
    sender.fail(io::Error::other("cut"));
    let mut bytes = Vec::new();
    let error = PipelineReader::new(receiver, Arc::default()).read_to_end(&mut bytes).unwrap_err();
    assert_eq!((bytes, error.to_string()), (b"x".to_vec(), "cut".to_owned()));

    let (sender, receiver) = create_pipe(4);
    drop(sender);
    let error = PipelineReader::new(receiver, Arc::default()).read_to_end(&mut Vec::new()).unwrap_err();
    assert!(error.to_string().contains("ended unexpectedly"));
}

#[test]
fn sending_without_a_receiver_is_an_error() {
    let (sender, receiver) = create_pipe(1);
    drop(receiver);
    assert!(sender.send(chunk(&BufferPool::new(1, 4), b"x"), &StageClock::default()).is_err());
}
