//! Image of a run in a scenario file. `docs/scenarios.md` describes each field; `image.rs` creates it.

use serde::Deserialize;
use std::collections::BTreeMap;
use std::path::PathBuf;

/// Offered image: a file, its modifications, and how it is served.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct OfferedImage {
    /// System of the image, which prints the facts when it is up.
    #[serde(default)]
    pub system: TestSystem,
    /// File of the image, next to the scenario or among the artifacts. By default, the tiny OS is served.
    pub file: Option<PathBuf>,
    /// Length at which the tar is cut before it is compressed.
    pub cut_tar_at: Option<u64>,
    /// `zstd`, `lz4`, `gzip` or `bzip2`: compression that replaces the original one.
    pub compress: Option<String>,
    pub truncate_at: Option<u64>,
    pub flip_byte_at: Option<u64>,
    pub append: Option<String>,
    /// True if the server lacks the file that the allocation names.
    #[serde(default)]
    pub missing: bool,
    #[serde(default)]
    pub digest: DeclaredDigest,
    /// Lengths at which responses with the image break off: the first response at the first length, and so on.
    #[serde(default)]
    pub cut_connection_at: Vec<u64>,
    /// True if the last length applies to all following responses.
    #[serde(default)]
    pub cut_for_ever: bool,
    /// Fault of every response that contains or describes the image; the file itself is intact.
    #[serde(rename = "lie")]
    pub fault: Option<ResponseFault>,
    /// Additional members at the end of the tar, in this order.
    #[serde(default)]
    pub members: Vec<TarMember>,
    /// True if `drophammer image pack` creates the image from the raw disk image in `file`, with its manifest.
    #[serde(default)]
    pub packed: bool,
    /// Signer of the files next to the image.
    pub signed: Option<ImageSigner>,
    /// Layers of a registry image on top of the tar, which is the lowest layer: file contents by path.
    #[serde(default)]
    pub layers: Vec<BTreeMap<String, String>>,
}

/// Operating system of an image.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum TestSystem {
    /// busybox: up in seconds.
    #[default]
    Tiny,
    /// Debian with systemd and udev: required to test their effect on arrays and groups at the first boot.
    Debian,
}

impl TestSystem {
    /// Name in the facts, and path among the artifacts.
    pub fn name(self) -> &'static str {
        match self {
            TestSystem::Tiny => "tiny",
            TestSystem::Debian => "debian",
        }
    }
}

/// Key that signs an image.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ImageSigner {
    /// `testdata/trust/one.key`.
    One,
    /// A key that is generated for this run.
    Stranger,
}

/// Digest that the server declares for an image.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum DeclaredDigest {
    /// Digest of the file as it is served.
    #[default]
    Right,
    /// Digest of the file before it was damaged.
    Original,
    Wrong,
    None,
    /// No digest in the allocation, but a metal-stack `.md5` next to the image.
    Md5,
}

/// Fault in the responses with an image.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ResponseFault {
    /// The response has no length.
    Chunked,
    /// One bit in the middle of the image is flipped in every response.
    OneBit,
    /// Every response has another ETag.
    ChangingEtag,
    /// Every response contains the whole image, even if a range was requested.
    NoRange,
}

/// Member of a tar, written exactly as specified. It has exactly one of the following types.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TarMember {
    pub path: String,
    /// Contents of a regular file.
    pub text: Option<String>,
    #[serde(default)]
    pub directory: bool,
    pub symlink: Option<String>,
    pub hard_link: Option<String>,
    /// `b MAJOR MINOR` or `c MAJOR MINOR`.
    pub device: Option<String>,
    /// Octal mode; default `0644`.
    pub mode: Option<String>,
    #[serde(default)]
    pub uid: u32,
    #[serde(default)]
    pub gid: u32,
}
