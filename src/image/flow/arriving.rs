//! First half of the pipeline: download, digest and decoder, each in its own threads.

use super::decode::Plain;
use super::digest::{Digest, Digesting};
use super::held::{Hold, hold};
use super::reader::Reader;
use super::ring::{Filling, Gone, Pool, Receiver, Sender, pipe};
use super::stages::{Clock, Stages};
use super::worker::{Line, Worker};
use super::{BUFFER_BYTES, BUFFERS};
use std::io::{self, Read};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::thread::{self, JoinHandle};

/// Source of the bytes of one stream.
pub trait Feed: Read + Send {
    /// Returns how often the download was resumed.
    fn resumed(&self) -> u32;

    /// Returns why the stream cannot be continued and has to start over, if that is what ended it.
    fn start_over(&self) -> Option<&str>;
}

/// Stream that is being downloaded.
pub struct Arriving {
    /// Output of the worker: the decompressed stream.
    pub reader: Reader,
    /// Connection to the worker.
    pub line: Line,
    pub digest: Digested,
    pub told: Arc<Told>,
    pub stages: Stages,
}

/// State of the download, updated by its thread.
#[derive(Debug, Default)]
pub struct Told {
    bytes: AtomicU64,
    resumed: AtomicU32,
    start_over: Mutex<Option<String>>,
    beginning: OnceLock<Vec<u8>>,
}

/// Length of the recorded beginning of a stream, in bytes.
const BEGINNING_BYTES: usize = 8;

impl Told {
    /// Returns the first bytes as served, before decompression. Available once any byte was decoded.
    pub fn beginning(&self) -> &[u8] {
        self.beginning.get().map(Vec::as_slice).unwrap_or_default()
    }

    /// Returns the number of bytes fetched so far.
    pub fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }

    /// Adds to the number of fetched bytes.
    pub fn fetched(&self, bytes: u64) {
        self.bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    /// Returns how often the connection was resumed.
    pub fn resumed(&self) -> u32 {
        self.resumed.load(Ordering::Relaxed)
    }

    /// Returns why the stream cannot be continued and has to start over, if that is what ended it.
    pub fn start_over(&self) -> Option<String> {
        self.start_over.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

/// Thread that computes the digest of a stream.
pub struct Digested(pub JoinHandle<io::Result<Digest>>);

impl Digested {
    /// Waits for the end of the stream and returns its digest.
    ///
    /// # Errors
    /// Returns an error if the stream did not end successfully.
    pub fn join(self) -> io::Result<Digest> {
        // The release build aborts on a panic: this is for development and tests.
        self.0.join().unwrap_or_else(|_| {
            Err(io::Error::other(
                "the digest thread panicked; see the console for its \
                                                               message",
            ))
        })
    }
}

impl Arriving {
    /// Starts the threads of the pipeline. With `held_in`, nothing reaches the worker before the whole stream matches
    /// the expected digest.
    ///
    /// # Errors
    /// Returns an error if the worker process cannot be started.
    pub fn start(feed: Box<dyn Feed>, promised: &Digest, plain: Plain, held_in: Option<Hold>) -> io::Result<Arriving> {
        let (stages, told) = (Stages::start(), Arc::new(Told::default()));
        let worker = Worker::start(plain, &stages)?;
        // A stream that is held back does not use the worker's buffers yet.
        let (pool, to_decode, held) = match held_in {
            None => (worker.pool(), worker.sender(), None),
            Some(held_in) => {
                let (to_hold, receiver) = pipe(BUFFERS);
                (Pool::new(BUFFERS, BUFFER_BYTES), to_hold, Some((held_in, receiver)))
            }
        };
        let (to_digest, of_fetch) = pipe(BUFFERS);
        let (clock, tell) = (stages.clock("network"), told.clone());
        thread::spawn(move || fetch_all(feed, &tell, &clock, &pool, to_digest, to_decode));
        let source = Reader::new(of_fetch, stages.clock("digest"));
        let kind = promised.kind;
        let digest = Digested(thread::spawn(move || {
            let mut digesting = Digesting::new(source, kind);
            io::copy(&mut digesting, &mut io::sink())?;
            Ok(digesting.finish())
        }));
        let digest = match held {
            None => digest,
            Some((held_in, receiver)) => {
                let reader = Reader::new(receiver, stages.clock("hold"));
                hold(held_in, reader, digest, promised.clone(), worker.pool(), worker.sender())
            }
        };
        stages.of_another("decode");
        let (line, clock) = (worker.line(), stages.clock(if plain == Plain::Tar { "untar" } else { "write" }));
        let reader = Reader::new(Receiver::of(Box::new(worker)), clock);
        Ok(Arriving { reader, line, digest, told, stages })
    }

    /// Restarts the measurement of time.
    pub fn restart(&self) {
        self.stages.restart();
        self.line.restart();
    }
}

/// Sends all fetched bytes to digest and decoder; ends early if the decoder is gone.
fn fetch_all(mut feed: Box<dyn Feed>, told: &Told, clock: &Clock, pool: &Pool, to_digest: Sender, to_decode: Sender) {
    loop {
        let mut filling = pool.take(clock);
        let (got, end) = fill(&mut feed, &mut filling);
        told.fetched(got as u64);
        told.resumed.store(feed.resumed(), Ordering::Relaxed);
        told.beginning.get_or_init(|| filling[..got.min(BEGINNING_BYTES)].to_vec());
        if got > 0 {
            let chunk = filling.filled(got);
            let sent = to_digest.send(chunk.clone(), clock).and_then(|()| to_decode.send(chunk, clock));
            if let Err(Gone) = sent {
                return;
            }
        }
        match end {
            None => {}
            Some(Ok(())) => {
                to_digest.end();
                return to_decode.end();
            }
            Some(Err(error)) => {
                *told.start_over.lock().unwrap_or_else(PoisonError::into_inner) = feed.start_over().map(str::to_owned);
                to_digest.fail(io::Error::new(error.kind(), error.to_string()));
                return to_decode.fail(error);
            }
        }
    }
}

/// Fills the buffer. If the stream ends before the buffer is full, also returns how it ended.
fn fill(feed: &mut impl Read, filling: &mut Filling) -> (usize, Option<io::Result<()>>) {
    let mut filled = 0;
    while filled < filling.len() {
        match feed.read(&mut filling[filled..]) {
            Ok(0) => return (filled, Some(Ok(()))),
            Ok(got) => filled += got,
            Err(error) => return (filled, Some(Err(error))),
        }
    }
    (filled, None)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::image::testing::{compress, noise};

    /// Bytes that are here already.
    struct Here(io::Cursor<Vec<u8>>);

    impl Read for Here {
        fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
            self.0.read(buf)
        }
    }

    impl Feed for Here {
        fn resumed(&self) -> u32 {
            7
        }

        fn start_over(&self) -> Option<&str> {
            None
        }
    }

    #[test]
    fn whatever_gives_bytes_feeds_the_flow() {
        let packed = compress("zstd", &noise(3_000_000));
        let (feed, digest) = (Box::new(Here(io::Cursor::new(packed.clone()))), Digest::of(&packed));
        let mut arriving = Arriving::start(feed, &digest, Plain::AnyBytes, None).unwrap();
        let mut bytes = Vec::new();
        arriving.reader.read_to_end(&mut bytes).unwrap();
        assert!(bytes == noise(3_000_000));
        assert_eq!(arriving.digest.join().unwrap(), digest);
        assert_eq!((arriving.told.bytes(), arriving.told.resumed()), (packed.len() as u64, 7));
    }
}
