//! Where an image comes from: as the allocation names it, and as it was found.

use super::manifest::Manifest;
use super::named::Minimum;
use super::trust::Keys;
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
    /// `sha256:HEX`, `sha512:HEX`, of an OCI image that of its manifest; without one what lies beside the image is looked for.
    pub digest: Option<String>,
    /// Who may have signed it. With any key a signature is required.
    pub keys: Keys,
    /// What is signed may be no older.
    pub minimum: Minimum,
}

/// An image that answered.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Reached {
    pub url: String,
    /// What stands for the whole: `sha256:HEX`, `sha512:HEX` or `md5:HEX`; of an OCI image that of its manifest.
    pub digest: String,
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
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Part {
    pub url: String,
    pub mirrors: Vec<String>,
    pub size_bytes: Option<u64>,
    pub etag: Option<String>,
    /// `sha256:HEX`, `sha512:HEX` or `md5:HEX` of the stream as it travels.
    pub digest: String,
    /// The value of the `Authorization` header, where there is one.
    pub authorization: Option<String>,
    /// Digests of its pieces: with them bytes are verified before they are handed on.
    pub manifest: Option<Arc<Manifest>>,
}

impl Reached {
    /// All parts together; unknown when one is.
    pub fn size_bytes(&self) -> Option<u64> {
        self.parts.iter().map(|part| part.size_bytes).sum()
    }
}
