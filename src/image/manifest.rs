//! The digests of an image's pieces, so that bytes are verified before they are written.

use serde::{Deserialize, Serialize};

/// The document beside an image, `IMAGE.manifest`. All is about the image as it travels, compressed.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Manifest {
    /// 1.
    pub version: u32,
    pub size_bytes: u64,
    /// `sha256:HEX` of the whole.
    pub digest: String,
    /// Length of each piece but the last.
    pub chunk_bytes: u32,
    /// SHA-256 of each piece, hexadecimal, in order.
    pub chunks: Vec<String>,
}
