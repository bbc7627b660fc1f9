//! Each piece of the image is proven by the chunk manifest before it is handed on; a bad one is fetched again.

use super::Part;
use super::fetch::Fetch;
use super::manifest::Manifest;
use super::retry::Pace;
use crate::error::{Error, Phase, Result};
use reqwest::blocking::Client;
use sha2::{Digest, Sha256};
use std::collections::BTreeSet;
use std::io::{self, Read};

/// A piece is held whole in memory.
const MOST_CHUNK_BYTES: u32 = 4 << 20;

/// How often a bad piece is fetched again.
const REFETCHES: u32 = 3;

/// Whether the pieces are as many as the size says, and of this image.
///
/// # Errors
/// What does not agree.
pub fn check(manifest: &Manifest, image: &Part) -> Result<()> {
    let Manifest { size_bytes, chunk_bytes, chunks, .. } = manifest;
    let url = &image.url;
    let wrong = |why: String| Err(Error::new(Phase::Image, format!("the chunk manifest of {url} {why}")));
    if !(1..=MOST_CHUNK_BYTES).contains(chunk_bytes) {
        return wrong(format!("has chunks of {chunk_bytes} bytes; 1 to {MOST_CHUNK_BYTES} can be taken"));
    }
    let count = size_bytes.div_ceil(u64::from(*chunk_bytes));
    if chunks.len() as u64 != count {
        return wrong(format!("has {} chunks; {size_bytes} bytes are {count} of {chunk_bytes}", chunks.len()));
    }
    if let Some(number) = chunks.iter().position(|hex| hex.len() != 64 || !hex.bytes().all(|b| b.is_ascii_hexdigit())) {
        return wrong(format!("has no SHA-256 for chunk {number}: `{:.80}`", chunks[number]));
    }
    match image.size_bytes {
        Some(size) if size != *size_bytes => wrong(format!("is about {size_bytes} bytes, the image has {size}")),
        _ => Ok(()),
    }
}

/// The body of one image: verified where it has a manifest, else as it comes.
pub struct Verified<'a> {
    pub fetch: Fetch<'a>,
    manifest: Option<&'a Manifest>,
    /// The piece that is being handed on, and how much of it was.
    chunk: Vec<u8>,
    given: usize,
    /// Index of the next piece.
    next: usize,
}

impl<'a> Verified<'a> {
    pub fn new(client: &'a Client, image: &'a Part, pace: &'a Pace) -> Self {
        let manifest = image.manifest.as_deref();
        Verified { fetch: Fetch::new(client, image, pace), manifest, chunk: Vec::new(), given: 0, next: 0 }
    }

    /// Fills `chunk` with the next piece; leaves it empty after the last one.
    fn advance(&mut self, manifest: &Manifest) -> io::Result<()> {
        self.given = 0;
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
            if format!("{:x}", Sha256::digest(&self.chunk)).eq_ignore_ascii_case(expected) {
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

impl Read for Verified<'_> {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        let Some(manifest) = self.manifest else { return self.fetch.read(buf) };
        if self.given == self.chunk.len() {
            self.advance(manifest)?;
        }
        let got = (&self.chunk[self.given..]).read(buf)?;
        self.given += got;
        Ok(got)
    }
}

#[cfg(test)]
mod tests;
