//! Image of a run in a scenario file. `docs/scenario-events.md` describes each field; `image_creation.rs` creates it.

use serde::Deserialize;
use std::collections::BTreeMap;
use std::path::PathBuf;

/// Offered image: a file, its modifications, and how the server offers it.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct OfferedImage {
    /// System in the image, which prints the facts when it is up.
    #[serde(default)]
    pub system: TestSystem,
    /// Path of the image file, next to the scenario or among the artifacts; `None` for the tiny OS.
    pub file: Option<PathBuf>,
    /// Length to which the tar is truncated before it is compressed.
    pub cut_tar_at: Option<u64>,
    /// Compression that replaces the original one: `zstd`, `lz4`, `gzip` or `bzip2`.
    pub compress: Option<String>,
    pub truncate_at: Option<u64>,
    pub flip_byte_at: Option<u64>,
    pub append: Option<String>,
    /// True if the allocation names a file that the server does not have.
    #[serde(default)]
    pub missing: bool,
    #[serde(default)]
    pub digest: DeclaredDigest,
    /// Lengths after which responses with the image are cut: the first response after the first length, and so on.
    #[serde(default)]
    pub cut_connection_at: Vec<u64>,
    /// True if the last length applies to all further responses.
    #[serde(default)]
    pub cut_for_ever: bool,
    /// Fault of each response with the image or its description. The file itself is intact.
    #[serde(rename = "lie")]
    pub fault: Option<ResponseFault>,
    /// Members that are added at the end of the tar, in this order.
    #[serde(default)]
    pub members: Vec<TarMember>,
    /// True if `drophammer image pack` makes the image, and its manifest, from the raw disk image in `file`.
    #[serde(default)]
    pub packed: bool,
    /// Key that signs the files next to the image.
    pub signed: Option<ImageSigner>,
    /// Layers of a registry image above the tar, which is the lowest layer. Each layer maps paths to file contents.
    #[serde(default)]
    pub layers: Vec<BTreeMap<String, String>>,
}

/// Operating system of an image.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum TestSystem {
    /// Tiny OS based on busybox, which starts within seconds.
    #[default]
    Tiny,
    /// Debian with systemd and udev. It is used for tests of their effect on arrays and groups at the first boot.
    Debian,
}

impl TestSystem {
    /// Returns the name of the system in the facts, and in the paths of the artifacts.
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
    /// No digest is declared, but there is a metal-stack `.md5` file next to the image.
    Md5,
}

/// Fault of the responses with an image.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ResponseFault {
    /// The response has no length.
    Chunked,
    /// One bit in the middle of the image is flipped, in each response.
    OneBit,
    /// Each response has another ETag.
    ChangingEtag,
    /// Each response contains the whole image, even if only a range was requested.
    NoRange,
}

/// Member of a tar, written exactly as specified. Exactly one of the fields for its type must be set.
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
