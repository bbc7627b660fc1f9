//! The first half of the pipeline: fetch, digest and decode, each in threads of its own, from the network into the rings.

use super::Part;
use super::decode::{self, Plain};
use super::digest::{Digest, Digesting};
use super::held::hold;
use super::retry::Pace;
use super::ring::{Filling, Gone, Pool, Reader, Sender, pipe};
use super::stages::{Clock, Stages};
use super::verify::{self, Verified};
use crate::error::{Error, Phase, Result};
use reqwest::blocking::Client;
use std::fs::File;
use std::io::{self, Read};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};

/// 16 MiB of compressed stream: a head start while the disks are made, and patience with a decoder that is slow for a moment.
pub const BUFFERS: usize = 32;
pub const BUFFER_BYTES: usize = 512 * 1024;

/// Between decoder and the last stage: 24 MiB.
const PLAIN_BUFFERS: usize = 24;
const PLAIN_BUFFER_BYTES: usize = 1 << 20;

/// A stream that is being fetched.
pub struct Arriving {
    /// Decompressed.
    pub reader: Reader,
    pub digest: Digested,
    pub told: Arc<Told>,
    pub stages: Stages,
}

/// What the fetching thread says about itself.
#[derive(Debug, Default)]
pub struct Told {
    bytes: AtomicU64,
    resumed: AtomicU32,
    start_over: Mutex<Option<String>>,
}

impl Told {
    /// Fetched so far.
    pub fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }

    /// So many bytes more.
    pub fn fetched(&self, bytes: u64) {
        self.bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    /// How often the connection was taken up again.
    pub fn resumed(&self) -> u32 {
        self.resumed.load(Ordering::Relaxed)
    }

    /// Why what came so far cannot be continued, when that is what ended the stream.
    pub fn start_over(&self) -> Option<String> {
        self.start_over.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

/// The digest of a stream, once it has ended.
pub struct Digested(pub JoinHandle<io::Result<Digest>>);

impl Digested {
    /// # Errors
    /// The stream did not end well.
    pub fn join(self) -> io::Result<Digest> {
        // The release aborts when a thread panics: this is for development and tests.
        self.0.join().unwrap_or_else(|_| Err(io::Error::other("the thread panicked; its words are on the console")))
    }
}

impl Arriving {
    /// With a file to be held in, nothing comes before all of it is proven.
    ///
    /// # Errors
    /// The part's digest is of no kind that is known, or its manifest does not fit it.
    pub fn start(client: &Client, part: &Part, pace: &Pace, plain: Plain, held_in: Option<File>) -> Result<Arriving> {
        let expected: Digest = part.digest.parse().map_err(|why: String| Error::new(Phase::Image, why))?;
        part.manifest.as_ref().map_or(Ok(()), |manifest| verify::check(manifest, part))?;
        let (stages, told) = (Stages::start(), Arc::new(Told::default()));
        let (to_digest, of_fetch) = pipe(BUFFERS);
        let (to_decode, receiver) = pipe(BUFFERS);
        let (client, part, pace, size_bytes) = (client.clone(), part.clone(), pace.clone(), part.size_bytes);
        let (clock, tell) = (stages.clock("network"), told.clone());
        thread::spawn(move || fetch_all(Verified::new(&client, &part, &pace), &tell, &clock, to_digest, to_decode));
        let source = Reader::new(of_fetch, stages.clock("digest"));
        let kind = expected.kind;
        let digest = Digested(thread::spawn(move || {
            let mut digesting = Digesting::new(source, kind);
            io::copy(&mut digesting, &mut io::sink())?;
            Ok(digesting.finish())
        }));
        let (receiver, digest) = match held_in {
            None => (receiver, digest),
            Some(file) => hold(file, size_bytes, Reader::new(receiver, stages.clock("hold")), digest, expected),
        };
        let compressed = Reader::new(receiver, stages.clock("decode"));
        let (to_last, of_decode) = pipe(PLAIN_BUFFERS);
        let (pool, counted) = (Pool::new(PLAIN_BUFFERS, PLAIN_BUFFER_BYTES), stages.clone());
        thread::spawn(move || decode::decode(compressed, plain, &pool, &counted, to_last));
        let reader = Reader::new(of_decode, stages.clock(if plain == Plain::Tar { "untar" } else { "write" }));
        Ok(Arriving { reader, digest, told, stages })
    }
}

/// Sends all that comes to both; ends early when nobody decodes any more.
fn fetch_all(mut image: Verified, told: &Told, clock: &Clock, to_digest: Sender, to_decode: Sender) {
    let pool = Pool::new(BUFFERS, BUFFER_BYTES);
    loop {
        let mut filling = pool.take(clock);
        let (got, end) = fill(&mut image, &mut filling);
        told.fetched(got as u64);
        told.resumed.store(image.fetch.resumed(), Ordering::Relaxed);
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
                *told.start_over.lock().unwrap_or_else(PoisonError::into_inner) =
                    image.fetch.start_over().map(str::to_owned);
                to_digest.fail(io::Error::new(error.kind(), error.to_string()));
                return to_decode.fail(error);
            }
        }
    }
}

/// Fills the buffer; with fewer bytes also says how the stream ended.
fn fill(image: &mut Verified, filling: &mut Filling) -> (usize, Option<io::Result<()>>) {
    let mut filled = 0;
    while filled < filling.len() {
        match image.read(&mut filling[filled..]) {
            Ok(0) => return (filled, Some(Ok(()))),
            Ok(got) => filled += got,
            Err(error) => return (filled, Some(Err(error))),
        }
    }
    (filled, None)
}
