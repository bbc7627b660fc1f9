//! Download of images from servers, registries and files: resolving an image and its signature, then fetching its bytes
//! with retries.
//!
//! It uses no other module of `image` but `flow`, which it feeds.
//!
//! It provides [`reach`], which resolves an image and writes nothing; [`feed`], the bytes of one part of a resolved
//! image; and their parameters: [`Source`], [`Keys`], [`Minimum`] and [`Pace`]. [`Manifest`] is for creating images.

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
