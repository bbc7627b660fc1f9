//! From the image's URL to the files below the target's root, or onto a disk, as one stream in constant memory. Each stage is a
//! thread:
//!
//! ```text
//!  get           flow                        tree                  raw
//! fetch ─┬─> digest
//!        └─> decode ─> announce ─ ─ ─ ─ ─> untar ──> writers, or  write
//!                      or qcow2
//! ```
//!
//! What decodes, and what reads a tar, runs in a process of its own that has no power: `worker`. This one has the digest, the files and
//! the disk.
//!
//! `flow` knows none of the others: `get` feeds it, `tree` and `raw` take what comes out, and these three know nothing of each other.
//! `incoming` puts them together, and here is what other rooms use.

mod flow;
#[cfg(test)]
pub(crate) mod fuzzing;
mod get;
mod incoming;
pub mod qcow2;
pub mod raw;
#[cfg(test)]
pub(crate) mod testing;
#[cfg(test)]
pub(crate) mod tests;
mod tree;
pub mod worker;

pub use flow::{Digest, Format, Plain};
pub use get::{
    DIRECTORY as KEY_DIRECTORY, IN_COMMENT as NAME_IN_COMMENT, Keys, MINIMUM_FILE, Manifest, Minimum, Part, PublicKey,
    Reached, Source, given_digest, signature_beside,
};
pub use incoming::{Burned, Incoming};
pub use tree::{Beneath, Conflicts};

use crate::error::Result;
use crate::http;

/// Asks the image's server for size, ETag and digest; writes nothing.
///
/// # Errors
/// The server does not answer, has no such image, or no digest can be had.
pub fn reach(source: &Source) -> Result<Reached> {
    get::reach(&http::client()?, source, &get::Pace::default())
}
