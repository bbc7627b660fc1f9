//! Where an image comes from: as the allocation names it, and as it was found.

use super::manifest::Manifest;
use super::named::Minimum;
use super::trust::Keys;
use crate::contents::Contents;
use crate::error::{Error, Phase, Result};
use crate::image::flow::{Digest, Kind};
use crate::pull::{PullSecret, Secret};
use std::sync::Arc;

/// An image as the allocation names it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Source {
    /// `http://`, `https://`, `file://` or `oci://HOST/REPOSITORY:TAG`.
    pub url: String,
    /// Its id, as the allocation has it: nothing that is signed as another image is taken.
    pub id: Option<String>,
    /// Other places with the same bytes, in the order in which they are tried.
    pub mirrors: Vec<String>,
    /// Of an OCI image that of its manifest; without one what lies beside the image is looked for. See [`given_digest`].
    pub digest: Option<Digest>,
    /// What opens the registries that want a password.
    pub pull_secrets: Vec<PullSecret>,
    /// Who may have signed it. With any key a signature is required.
    pub keys: Keys,
    /// What is signed may be no older.
    pub minimum: Minimum,
}

/// The digest of the image at `url`, as an allocation or a person gives it: `sha256:HEX` or `sha512:HEX`. A blank one is none.
///
/// # Errors
/// It is no digest, or one that proves nothing.
pub fn given_digest(text: Option<&str>, url: &str) -> Result<Option<Digest>> {
    let refused = |why: String| Error::refusal(Phase::Image, format!("{url}: {why}"));
    let Some(text) = text.filter(|text| !text.trim().is_empty()) else { return Ok(None) };
    let digest: Digest = text.parse().map_err(refused)?;
    match digest.kind {
        Kind::Md5 => Err(refused("md5 proves nothing and is not taken: give the sha256".to_owned())),
        Kind::Sha256 | Kind::Sha512 => Ok(Some(digest)),
    }
}

/// An image that answered.
#[derive(Debug, Clone, PartialEq, Eq)]
#[cfg_attr(test, derive(Default))]
pub struct Reached {
    pub url: String,
    /// What stands for the whole; of an OCI image that of its manifest.
    pub digest: Digest,
    /// One, or the layers of an OCI image, lowest first.
    pub parts: Vec<Part>,
    /// Whiteouts of a part remove what earlier parts brought.
    pub layered: bool,
    /// Id of the key whose signature was good.
    pub signed_by: Option<String>,
    /// Id of the image, where what that key has signed names one.
    pub signed_as: Option<String>,
}

/// One stream of bytes.
#[derive(Debug, Clone, PartialEq, Eq)]
#[cfg_attr(test, derive(Default))]
pub struct Part {
    pub url: String,
    pub mirrors: Vec<String>,
    pub size_bytes: Option<u64>,
    pub etag: Option<String>,
    /// Of the stream as it travels.
    pub digest: Digest,
    /// The value of the `Authorization` header, where there is one.
    pub authorization: Option<Secret>,
    /// What another such value is had with, when this one has expired.
    pub pull_secret: Option<PullSecret>,
    /// Digests of its pieces: with them bytes are verified before they are handed on.
    pub manifest: Option<Arc<Manifest>>,
}

impl Reached {
    /// What its manifest tells of the tree.
    pub fn contents(&self) -> Option<&Contents> {
        self.parts.first()?.manifest.as_ref()?.contents.as_ref()
    }

    /// All parts together; unknown when one is.
    pub fn size_bytes(&self) -> Option<u64> {
        self.parts.iter().map(|part| part.size_bytes).sum()
    }
}
