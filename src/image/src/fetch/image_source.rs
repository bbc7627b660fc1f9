//! Source of an image: as requested by the allocation ([`ImageSource`]), and as resolved ([`ResolvedImage`]).

use super::chunk_manifest::ImageManifest;
use super::sidecar_verification::SignatureKeys;
use super::signed_image_id::MinimumVersions;
use crate::pipeline::{Digest, DigestKind};
use common::error::{Error, Phase, Result};
use model::image_boot_contents::BootContents;
use model::registry_auth::PullSecret;
use model::secret_text::SecretText;
use std::sync::Arc;

/// Image as requested by the allocation.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ImageSource {
    /// URL of the image, with the scheme `http`, `https` or `file`; for an OCI image, `oci://HOST/REPOSITORY:TAG`.
    pub url: String,
    /// Image id that the allocation specifies. An image that is signed with another id is rejected.
    pub id: Option<String>,
    /// URLs of mirrors that serve the same bytes, in the order in which they are tried.
    pub mirrors: Vec<String>,
    /// Digest of the image as served or, for an OCI image, of its manifest. If `None`, the digest is read from the
    /// files next to the image. See [`parse_given_digest`].
    pub digest: Option<Digest>,
    /// Credentials for registries.
    pub pull_secrets: Vec<PullSecret>,
    /// Trusted signature keys. If there is at least one, the image must be signed.
    pub keys: SignatureKeys,
    /// Oldest permitted version of each operating system, compared with the version in the signed image id.
    pub minimum: MinimumVersions,
}

/// Parses the digest that an allocation or the command line specifies for the image at `url`: `sha256:HEX` or
/// `sha512:HEX`. Returns `None` for a blank string.
///
/// # Errors
/// Returns an error if the text is not a digest, or is an md5 digest.
pub fn parse_given_digest(text: Option<&str>, url: &str) -> Result<Option<Digest>> {
    let refused = |why: String| Error::refusal(Phase::Image, format!("{url}: {why}"));
    let Some(text) = text.filter(|text| !text.trim().is_empty()) else { return Ok(None) };
    let digest: Digest = text.parse().map_err(refused)?;
    match digest.kind {
        DigestKind::Md5 => Err(refused(
            "md5 digests are not supported, because they can be forged; specify the sha256 digest".to_owned(),
        )),
        DigestKind::Sha256 | DigestKind::Sha512 => Ok(Some(digest)),
    }
}

/// Image whose size, digest and signature were checked, and which can be fetched.
#[derive(Debug, Clone, PartialEq, Eq)]
#[cfg_attr(test, derive(Default))]
pub struct ResolvedImage {
    pub url: String,
    /// Digest of the whole image or, for an OCI image, of its manifest.
    pub digest: Digest,
    /// Streams of the image. An OCI image has one stream for each layer, the lowest layer first; any other image has
    /// one stream.
    pub parts: Vec<ImagePart>,
    /// Whether the parts are OCI layers, in which whiteouts remove files of lower layers.
    pub layered: bool,
    /// Id of the key whose signature was verified; `None` if no signature was required.
    pub signed_by: Option<String>,
    /// Image id that the signature covers, if any.
    pub signed_as: Option<String>,
}

/// Part of an image that is fetched as one stream of bytes.
#[derive(Debug, Clone, PartialEq, Eq)]
#[cfg_attr(test, derive(Default))]
pub struct ImagePart {
    pub url: String,
    pub mirrors: Vec<String>,
    pub size_bytes: Option<u64>,
    pub etag: Option<String>,
    /// Digest of the stream as served.
    pub digest: Digest,
    /// Value of the `Authorization` header, if one is required.
    pub authorization: Option<SecretText>,
    /// Credentials to get a new `authorization` when the current one has expired.
    pub pull_secret: Option<PullSecret>,
    /// Chunk manifest, with which data is verified before it is passed on.
    pub manifest: Option<Arc<ImageManifest>>,
}

impl ResolvedImage {
    /// Returns the boot-related contents listed in the manifest.
    pub fn contents(&self) -> Option<&BootContents> {
        self.parts.first()?.manifest.as_ref()?.contents.as_ref()
    }

    /// Returns the total size of all parts; `None` if the size of any part is unknown.
    pub fn size_bytes(&self) -> Option<u64> {
        self.parts.iter().map(|part| part.size_bytes).sum()
    }
}
