//! From the image's URL to the files below the target's root, as one stream in constant memory.

mod decode;
mod digest;
mod fetch;
mod progress;
mod retry;
#[cfg(test)]
mod testing;

use crate::control::wire::Progress;
use crate::error::{Error, Phase, Result};
use std::path::Path;

/// An image as the allocation names it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Source {
    pub url: String,
    /// `sha256:HEX`, `sha512:HEX`; without one the metal-stack `.md5` beside the image is looked for.
    pub digest: Option<String>,
}

/// An image that answered.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Reached {
    pub url: String,
    pub size_bytes: Option<u64>,
    pub etag: Option<String>,
    /// `sha256:HEX`, `sha512:HEX` or `md5:HEX`.
    pub digest: String,
}

/// What arrived.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Burned {
    /// As it travelled.
    pub bytes: u64,
    /// Unpacked tar stream.
    pub tar_bytes: u64,
    pub entries: u64,
    /// How often the connection was taken up again.
    pub resumed: u32,
}

/// Asks the image's server for size, ETag and digest; writes nothing.
///
/// # Errors
/// The server does not answer, has no such image, or no digest can be had.
pub fn reach(_source: &Source) -> Result<Reached> {
    Err(Error::new(Phase::Image, "not written yet"))
}

/// Streams the image below `root`, which stays incomplete when this fails.
///
/// # Errors
/// The first of fetch, digest, decoder and tar that is not content, by name.
pub fn burn(_image: &Reached, _root: &Path, _watch: &(dyn Fn(Progress) + Sync)) -> Result<Burned> {
    Err(Error::new(Phase::Image, "not written yet"))
}
