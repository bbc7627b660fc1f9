//! Source of the pipeline for servers and files. If there is a chunk manifest, each piece of the image is verified
//! before it is passed on, and a bad one is fetched again.

use super::ImagePart;
use super::manifest::ImageManifest;
use super::resumable::ResumableDownload;
use super::retry::FetchRetryPolicy;
use crate::pipeline::StreamSource;
use reqwest::blocking::Client;
use sha2::{Digest, Sha256};
use std::collections::BTreeSet;
use std::io::{self, Read};
use std::sync::Arc;

/// Number of times that a bad piece is fetched again.
const REFETCHES: u32 = 3;

/// Returns the bytes of one image: verified if it has a manifest, otherwise unverified. Nothing is requested before the
/// first read. That the manifest is consistent and belongs to the image was checked when it was parsed.
pub(crate) fn open_source(client: &Client, image: &ImagePart, pace: &FetchRetryPolicy) -> Box<dyn StreamSource> {
    let fetch = ResumableDownload::new(client, image, pace);
    match image.manifest.clone() {
        Some(manifest) => Box::new(VerifiedDownload { fetch, manifest, chunk: Vec::new(), given: 0, next: 0 }),
        None => Box::new(fetch),
    }
}

/// Body of an image that has a manifest.
struct VerifiedDownload {
    fetch: ResumableDownload,
    manifest: Arc<ImageManifest>,
    /// The current piece, and the number of its bytes that were passed on.
    chunk: Vec<u8>,
    given: usize,
    /// Index of the next piece.
    next: usize,
}

impl VerifiedDownload {
    /// Fills `chunk` with the next piece; leaves it empty after the last one.
    fn advance_chunk(&mut self) -> io::Result<()> {
        self.given = 0;
        let manifest = &*self.manifest;
        let Some(expected) = manifest.chunks.get(self.next) else {
            self.chunk.clear();
            // Nothing may follow: the download itself reports that.
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
            let place = self.fetch.current_url().to_owned();
            tracing::warn!("image: {what} from {place} does not match the manifest");
            places.insert(place);
            self.fetch.rewind_to(start);
        }
        let places: Vec<String> = places.into_iter().collect();
        let text = format!("{what} does not match the manifest, fetched {} times from", REFETCHES + 1);
        Err(io::Error::other(format!("{text} {}", places.join(", "))))
    }
}

impl StreamSource for VerifiedDownload {
    fn resumed(&self) -> u32 {
        self.fetch.resumed()
    }

    fn start_over(&self) -> Option<&str> {
        self.fetch.start_over()
    }
}

impl Read for VerifiedDownload {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        if self.given == self.chunk.len() {
            self.advance_chunk()?;
        }
        let got = (&self.chunk[self.given..]).read(buf)?;
        self.given += got;
        Ok(got)
    }
}

#[cfg(test)]
mod tests;
