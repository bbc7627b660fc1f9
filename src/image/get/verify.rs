//! What feeds the flow from servers and files. Where there is a chunk manifest, each piece of the image is proven by it before it is
//! handed on, and a bad one is fetched again.

use super::Part;
use super::fetch::Fetch;
use super::manifest::Manifest;
use super::retry::Pace;
use crate::image::flow::Feed;
use reqwest::blocking::Client;
use sha2::{Digest, Sha256};
use std::collections::BTreeSet;
use std::io::{self, Read};
use std::sync::Arc;

/// How often a bad piece is fetched again.
const REFETCHES: u32 = 3;

/// The bytes of one image: verified where it has a manifest, else as they come. Nothing is asked for before they are read.
/// That a manifest agrees with itself and is of this image was seen when it was read.
pub fn feed(client: &Client, image: &Part, pace: &Pace) -> Box<dyn Feed> {
    let fetch = Fetch::new(client, image, pace);
    match image.manifest.clone() {
        Some(manifest) => Box::new(Verified { fetch, manifest, chunk: Vec::new(), given: 0, next: 0 }),
        None => Box::new(fetch),
    }
}

/// The body of one image that has a manifest.
struct Verified {
    fetch: Fetch,
    manifest: Arc<Manifest>,
    /// The piece that is being handed on, and how much of it was.
    chunk: Vec<u8>,
    given: usize,
    /// Index of the next piece.
    next: usize,
}

impl Verified {
    /// Fills `chunk` with the next piece; leaves it empty after the last one.
    fn advance(&mut self) -> io::Result<()> {
        self.given = 0;
        let manifest = &*self.manifest;
        let Some(expected) = manifest.chunks.get(self.next) else {
            self.chunk.clear();
            // Nothing may follow: the fetch says so itself.
            return self.fetch.read(&mut [0]).map(|_| ());
        };
        let start = self.next as u64 * u64::from(manifest.chunk_bytes);
        let length = (manifest.size_bytes - start).min(manifest.chunk_bytes.into());
        let what = format!("chunk {} (bytes {start} to {})", self.next, start + length - 1);
        let mut places = BTreeSet::new();
        for _ in 0..=REFETCHES {
            self.chunk.resize(length as usize, 0);
            self.fetch.read_exact(&mut self.chunk)?;
            if Sha256::digest(&self.chunk)[..] == expected[..] {
                self.next += 1;
                return Ok(());
            }
            let place = self.fetch.place().to_owned();
            tracing::warn!("image: {what} from {place} is not what the manifest says");
            places.insert(place);
            self.fetch.go_back(start);
        }
        let places: Vec<String> = places.into_iter().collect();
        let text = format!("{what} is not what the manifest says, fetched {} times from", REFETCHES + 1);
        Err(io::Error::other(format!("{text} {}", places.join(", "))))
    }
}

impl Feed for Verified {
    fn resumed(&self) -> u32 {
        self.fetch.resumed()
    }

    fn start_over(&self) -> Option<&str> {
        self.fetch.start_over()
    }
}

impl Read for Verified {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        if self.given == self.chunk.len() {
            self.advance()?;
        }
        let got = (&self.chunk[self.given..]).read(buf)?;
        self.given += got;
        Ok(got)
    }
}

#[cfg(test)]
mod tests;
