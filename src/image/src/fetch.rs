//! Download of images from servers, registries and files. First the image and its signature are resolved; then the
//! bytes of the image are fetched, with retries.
//!
//! The only other module of `image` on which this module depends is `pipeline`, which reads the fetched bytes.
//!
//! This module provides [`resolve_image`], which resolves an image and writes nothing; [`open_source`], which returns
//! the bytes of one part of a resolved image; and the parameters of both functions: [`ImageSource`], [`SignatureKeys`],
//! [`MinimumVersions`] and [`FetchRetryPolicy`]. This module also provides [`ImageManifest`], which `pack` uses to
//! create manifests.

mod chunk_manifest;
mod chunk_verifier;
mod cosign;
mod head_request;
mod image_resolution;
mod image_source;
mod local_file;
mod minisign;
mod oci;
mod parallel_ranges;
mod range_reader;
mod resumable_download;
mod retry;
mod sidecar;
mod sidecar_verification;
mod signature_key;
mod signed_image_id;

pub use chunk_manifest::ImageManifest;
pub(crate) use chunk_verifier::open_source;
pub(crate) use image_resolution::resolve_image;
pub use image_source::{ImagePart, ImageSource, ResolvedImage, parse_given_digest};
pub(crate) use local_file::path_of_url;
#[cfg(test)]
pub(crate) use parallel_ranges::LaneRules;
pub(crate) use range_reader::RangeReader;
pub(crate) use retry::FetchRetryPolicy;
pub(crate) use sidecar::read_document;
pub use sidecar_verification::{DIRECTORY, SignatureKeys, signature_url};
pub use signature_key::SignatureKey;
pub use signed_image_id::{IN_COMMENT, MINIMUM_FILE, MinimumVersions};
