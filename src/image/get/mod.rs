//! Getting an image: whether it is there and whose it is, then its bytes, from servers, registries and files, with all that can go wrong
//! on the way.
//!
//! Of `image` it uses `flow` alone, which it feeds. It knows nothing of `tree` and `raw`.
//!
//! It gives [`reach`], which asks for an image and writes nothing; [`feed`], the bytes of one part of what was reached; and what both
//! are asked with: [`Source`], [`Keys`], [`Minimum`] and [`Pace`]. [`Manifest`] is for those who make images.

mod beside;
mod cosign;
mod fetch;
mod file;
mod key;
mod lanes;
mod look;
mod manifest;
mod minisign;
mod named;
mod oci;
mod ranges;
mod reach;
mod retry;
mod source;
mod trust;
mod verify;

pub use key::PublicKey;
#[cfg(test)]
pub use lanes::Rules;
pub use manifest::Manifest;
pub use named::{IN_COMMENT, MINIMUM_FILE, Minimum};
pub use ranges::Ranges;
pub use reach::reach;
pub use retry::Pace;
pub use source::{Part, Reached, Source, given_digest};
pub use trust::{DIRECTORY, Keys, signature_beside};
pub use verify::feed;
