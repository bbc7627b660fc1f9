//! Streams an image from its URL to files below the target's root, or to a disk, in constant memory. Each stage of this
//! diagram is a thread:
//!
//! ```text
//!  fetch            pipeline                     tree                  raw
//! download ─┬─> digest
//!           └─> decode ─> parse tar ─ ─ ─ ─ ─> untar ──> writers, or  write
//!                         or qcow2
//! ```
//!
//! A sandboxed process (`worker`) decodes the image and parses the tar. The agent computes the digest and writes to
//! files or the disk.
//!
//! `pipeline` does not depend on the other modules. `fetch` supplies the input of `pipeline`, and `tree` and `raw` read
//! its output. These three modules do not use each other. `burn` connects all of them. This file exports the
//! interface for other crates.

mod burn;
mod fetch;
mod foreign_format;
mod image_format;
pub mod image_import;
pub mod pack;
mod pipeline;
pub(crate) mod qcow2;
pub mod raw;
#[cfg(test)]
mod testing;
#[cfg(test)]
pub(crate) mod tests;
mod tree;
pub mod worker;

pub use burn::{BurnResult, IncomingImage};
pub use fetch::{
    DIRECTORY as KEY_DIRECTORY, IN_COMMENT as NAME_IN_COMMENT, ImageManifest, ImagePart, ImageSource, MINIMUM_FILE,
    MinimumVersions, ResolvedImage, SignatureKey, SignatureKeys, parse_given_digest, signature_url,
};
pub use image_format::{ImageFormat, StatedFormat};
pub use pipeline::{CompressionFormat, Digest, PayloadKind};
pub use tree::{FileConflicts, MountsBelow};

use common::error::Result;
use linux::http;

/// Resolves size, ETag and digest of an image, and verifies its signature if keys are configured. Writes nothing.
///
/// # Errors
/// Returns an error if the server does not respond or does not have the image, if no digest is available, or if a
/// required signature is missing or invalid.
pub fn resolve_image(source: &ImageSource) -> Result<ResolvedImage> {
    fetch::resolve_image(&http::new_download_client(None)?, source, &fetch::FetchRetryPolicy::default())
}

#[cfg(test)]
::testing::workers!(linux::process::worker_process::WORKER => crate::worker::run_image_worker);
