//! First half of the pipeline: the download thread, the digest thread, and the worker process that decodes the stream.

use super::buffer_pipe::{BufferPool, PipeReceiver, PipeSender, ReceiverGone, WritableBuffer, create_pipe};
use super::decode::PayloadKind;
use super::digest::{Digest, DigestReader};
use super::pipe_reader::PipelineReader;
use super::stage_clock::{StageClock, StageClocks};
use super::verification_spool::{HoldFile, hold_until_verified};
use super::worker_client::{DecodeWorker, WorkerConnection};
use super::{BUFFER_BYTES, BUFFERS};
use common::sync::lock_mutex;
use std::io::{self, Read};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::thread::{self, JoinHandle};

/// Source of the compressed bytes of one stream.
pub(crate) trait StreamSource: Read + Send {
    /// Returns the number of times that the download was resumed so far.
    fn resumed(&self) -> u32;

    /// Returns the reason why the stream must start over, if it ended because it cannot be resumed.
    fn start_over(&self) -> Option<&str>;
}

/// Stream that is being downloaded and decoded.
pub(crate) struct Download {
    /// Output of the worker: the decompressed stream.
    pub reader: PipelineReader,
    /// Connection to the worker.
    pub line: WorkerConnection,
    pub digest: DigestThread,
    pub download: Arc<DownloadState>,
    pub stages: StageClocks,
}

/// State of the download, updated by its thread.
#[derive(Debug, Default)]
pub(crate) struct DownloadState {
    bytes: AtomicU64,
    resumed: AtomicU32,
    start_over: Mutex<Option<String>>,
    beginning: OnceLock<Vec<u8>>,
}

/// Number of bytes at the start of a stream that are kept, as served.
const BEGINNING_BYTES: usize = 8;

impl DownloadState {
    /// Returns the first [`BEGINNING_BYTES`] of the stream as served, before decompression; empty before any data was
    /// fetched.
    pub(crate) fn beginning(&self) -> &[u8] {
        self.beginning.get().map(Vec::as_slice).unwrap_or_default()
    }

    /// Returns the number of bytes fetched so far.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }

    /// Adds `bytes` to the number of fetched bytes.
    pub(crate) fn add_fetched(&self, bytes: u64) {
        self.bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    /// Returns the number of times that the download was resumed.
    pub(crate) fn resumed(&self) -> u32 {
        self.resumed.load(Ordering::Relaxed)
    }

    /// Returns the reason why the stream must start over, if it ended because it cannot be resumed.
    pub(crate) fn start_over(&self) -> Option<String> {
        lock_mutex(&self.start_over).clone()
    }
}

/// Thread that computes the digest of a stream.
pub(crate) struct DigestThread(pub JoinHandle<io::Result<Digest>>);

impl DigestThread {
    /// Waits for the end of the stream and returns the digest of the stream.
    ///
    /// # Errors
    /// Returns an error if the stream did not end successfully.
    pub(crate) fn join(self) -> io::Result<Digest> {
        // The release build aborts on a panic, so this error occurs only in development and tests.
        self.0.join().unwrap_or_else(|_| {
            Err(io::Error::other(
                "the digest thread panicked; see the console for its \
                                                               message",
            ))
        })
    }
}

impl Download {
    /// Starts the worker and the threads of the pipeline. If `held_in` is specified, the stream is held in that file,
    /// and is passed to the worker only after the stream's digest matches `promised`.
    ///
    /// # Errors
    /// Returns an error if the worker process cannot be started.
    pub fn start(
        feed: Box<dyn StreamSource>,
        promised: &Digest,
        plain: PayloadKind,
        held_in: Option<HoldFile>,
    ) -> io::Result<Download> {
        let (stages, download) = (StageClocks::start(), Arc::new(DownloadState::default()));
        let worker = DecodeWorker::start(plain, &stages)?;
        // A stream that is held back in a file is not sent to the worker yet, so it uses its own buffers instead of the
        // worker's.
        let (pool, to_decode, held) = match held_in {
            None => (worker.pool(), worker.sender(), None),
            Some(held_in) => {
                let (to_hold, receiver) = create_pipe(BUFFERS);
                (BufferPool::new(BUFFERS, BUFFER_BYTES), to_hold, Some((held_in, receiver)))
            }
        };
        let (to_digest, of_fetch) = create_pipe(BUFFERS);
        let (clock, tell) = (stages.add_clock("network"), download.clone());
        thread::spawn(move || fetch_all(feed, &tell, &clock, &pool, to_digest, to_decode));
        let source = PipelineReader::new(of_fetch, stages.add_clock("digest"));
        let kind = promised.kind;
        let digest = DigestThread(thread::spawn(move || {
            let mut digesting = DigestReader::new(source, kind);
            io::copy(&mut digesting, &mut io::sink())?;
            Ok(digesting.finish())
        }));
        let digest = match held {
            None => digest,
            Some((held_in, receiver)) => {
                let reader = PipelineReader::new(receiver, stages.add_clock("hold"));
                hold_until_verified(held_in, reader, digest, promised.clone(), worker.pool(), worker.sender())
            }
        };
        stages.add_external_stage("decode");
        let (line, clock) =
            (worker.line(), stages.add_clock(if plain == PayloadKind::Tar { "untar" } else { "write" }));
        let reader = PipelineReader::new(PipeReceiver::from_source(Box::new(worker)), clock);
        Ok(Download { reader, line, digest, download, stages })
    }

    /// Restarts the time measurement in this process and in the worker.
    pub(crate) fn restart(&self) {
        self.stages.restart();
        self.line.restart();
    }
}

/// Fetches the stream and sends it to the digest thread and the decoder. Stops early if either of these receivers has
/// ended.
fn fetch_all(
    mut feed: Box<dyn StreamSource>,
    download: &DownloadState,
    clock: &StageClock,
    pool: &BufferPool,
    to_digest: PipeSender,
    to_decode: PipeSender,
) {
    loop {
        let mut filling = pool.take_buffer(clock);
        let (got, end) = fill_buffer(&mut feed, &mut filling);
        download.add_fetched(got as u64);
        download.resumed.store(feed.resumed(), Ordering::Relaxed);
        download.beginning.get_or_init(|| filling[..got.min(BEGINNING_BYTES)].to_vec());
        if got > 0 {
            let chunk = filling.into_chunk(got);
            let sent = to_digest.send(chunk.clone(), clock).and_then(|()| to_decode.send(chunk, clock));
            if let Err(ReceiverGone) = sent {
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
                *lock_mutex(&download.start_over) = feed.start_over().map(str::to_owned);
                to_digest.fail(io::Error::new(error.kind(), error.to_string()));
                return to_decode.fail(error);
            }
        }
    }
}

/// Fills the buffer and returns the number of bytes. The second value is `None` if the buffer is full; otherwise the
/// stream has ended, and the value is `Ok` or the error of the stream.
fn fill_buffer(feed: &mut impl Read, filling: &mut WritableBuffer) -> (usize, Option<io::Result<()>>) {
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
    use crate::testing::{compress, noise};

    /// Source whose bytes are available immediately.
    struct ImmediateSource(io::Cursor<Vec<u8>>);

    impl Read for ImmediateSource {
        fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
            self.0.read(buf)
        }
    }

    impl StreamSource for ImmediateSource {
        fn resumed(&self) -> u32 {
            7
        }

        fn start_over(&self) -> Option<&str> {
            None
        }
    }

    #[test]
    fn any_byte_source_can_be_downloaded_and_decoded() {
        let packed = compress("zstd", &noise(3_000_000));
        let (feed, digest) = (Box::new(ImmediateSource(io::Cursor::new(packed.clone()))), Digest::of_bytes(&packed));
        let mut arriving = Download::start(feed, &digest, PayloadKind::AnyBytes, None).unwrap();
        let mut bytes = Vec::new();
        arriving.reader.read_to_end(&mut bytes).unwrap();
        assert!(bytes == noise(3_000_000));
        assert_eq!(arriving.digest.join().unwrap(), digest);
        assert_eq!((arriving.download.bytes(), arriving.download.resumed()), (packed.len() as u64, 7));
    }
}
