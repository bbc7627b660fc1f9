//! Reads an image from a server or file and passes its bytes to the pipeline. If the image has a chunk manifest, each
//! chunk is verified before it is passed on, and a chunk that does not match is fetched again.

use super::ImagePart;
use super::chunk_manifest::ImageManifest;
use super::resumable_download::ResumableDownload;
use super::retry::FetchRetryPolicy;
use crate::pipeline::StreamSource;
use reqwest::blocking::Client;
use sha2::{Digest, Sha256};
use std::collections::BTreeSet;
use std::io::{self, Read};
use std::sync::Arc;

/// Number of times that a chunk is fetched again if the chunk does not match the manifest.
const REFETCHES: u32 = 3;

/// Returns a reader of the bytes of one image. The bytes are verified if the image has a manifest. Nothing is requested
/// before the first read. The caller has already verified that the manifest is consistent and belongs to the image.
pub(crate) fn open_source(client: &Client, image: &ImagePart, pace: &FetchRetryPolicy) -> Box<dyn StreamSource> {
    let fetch = ResumableDownload::new(client, image, pace);
    match image.manifest.clone() {
        Some(manifest) => Box::new(VerifiedDownload { fetch, manifest, chunk: Vec::new(), given: 0, next: 0 }),
        None => Box::new(fetch),
    }
}

/// Reader of an image that has a manifest.
struct VerifiedDownload {
    fetch: ResumableDownload,
    manifest: Arc<ImageManifest>,
    /// Current chunk. `given` is the number of bytes of this chunk that were passed on.
    chunk: Vec<u8>,
    given: usize,
    /// Index, in the manifest, of the next chunk to read.
    next: usize,
}

impl VerifiedDownload {
    /// Reads the next chunk of the image into `chunk`. After the last chunk of the image, empties `chunk`.
    fn advance_chunk(&mut self) -> io::Result<()> {
        self.given = 0;
        let manifest = &*self.manifest;
        let Some(expected) = manifest.chunks.get(self.next) else {
            self.chunk.clear();
            // The download is read once more after the last chunk: this read returns an error if more data follows.
            return self.fetch.read(&mut [0]).map(|_| ());
        };
        let start = self.next as u64 * u64::from(manifest.chunk_bytes);
        let length = (manifest.size_bytes - start).min(manifest.chunk_bytes.into());
        let what = format!("chunk {number} (bytes {start} to {last})", number = self.next, last = start + length - 1);
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
        let text = format!(
            "{what} does not match the manifest, although the chunk was fetched {times} times from",
            times = REFETCHES + 1
        );
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
