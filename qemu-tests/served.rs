//! The image of a run as it is written. `docs/scenarios.md` explains each field; `image.rs` makes it.

use serde::Deserialize;
use std::collections::BTreeMap;
use std::path::PathBuf;

/// The image that is offered: a file, what was done to it, and how it is handed out.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Image {
    /// What it brings, and who tells the facts when it is up.
    #[serde(default)]
    pub system: System,
    /// The image's file, beside the scenario or among the built artifacts. Without it the tiny OS is served.
    pub file: Option<PathBuf>,
    /// The tar is cut after so many bytes, then compressed as if nothing had happened.
    pub cut_tar_at: Option<u64>,
    /// `zstd`, `lz4`, `gzip` or `bzip2`: compress the tar anew.
    pub compress: Option<String>,
    pub truncate_at: Option<u64>,
    pub flip_byte_at: Option<u64>,
    pub append: Option<String>,
    /// The allocation names it, the server has no such file.
    #[serde(default)]
    pub missing: bool,
    #[serde(default)]
    pub digest: Digest,
    /// The first answer with the image breaks after so many bytes, the next one after the second number, …
    #[serde(default)]
    pub cut_connection_at: Vec<u64>,
    /// The last of these numbers holds for every answer that follows.
    #[serde(default)]
    pub cut_for_ever: bool,
    /// What is wrong with every answer that brings or describes the image, while the file is as it should be.
    pub lie: Option<Lie>,
    /// More members at the end of the tar, in this order.
    #[serde(default)]
    pub members: Vec<Member>,
    /// `drophammer image pack` makes it anew of the raw disk image in `file`, with its manifest.
    #[serde(default)]
    pub packed: bool,
    /// Who has signed the files beside the image.
    pub signed: Option<Signer>,
    /// It is in a registry: the tar is its lowest layer, and these lie on it, by path what a file has in it.
    #[serde(default)]
    pub layers: Vec<BTreeMap<String, String>>,
}

#[derive(Debug, Default, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum System {
    /// busybox: up in seconds.
    #[default]
    Tiny,
    /// Debian with systemd and udev: what they do to arrays and groups at the first boot is seen with it alone.
    Debian,
}

impl System {
    /// Its name in the facts, and where it is among what was built.
    pub fn name(self) -> &'static str {
        match self {
            System::Tiny => "tiny",
            System::Debian => "debian",
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Signer {
    /// `testdata/trust/one.key`.
    One,
    /// A key that is made for this run.
    Stranger,
}

#[derive(Debug, Default, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Digest {
    /// The digest of the file as it is served.
    #[default]
    Right,
    /// The digest of the file before it was damaged.
    Original,
    Wrong,
    None,
    /// No digest in the allocation, a metal-stack `.md5` beside the image.
    Md5,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Lie {
    /// The answer does not say how long it is.
    Chunked,
    /// One bit in the middle of the image arrives changed, each time.
    OneBit,
    /// Each answer has another ETag.
    ChangingEtag,
    /// Every answer is the whole image, whatever was asked for.
    NoRange,
}

/// A member of a tar. It is written exactly as the scenario says, however bad that is. It is one of the kinds below.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Member {
    pub path: String,
    /// A file with this in it.
    pub text: Option<String>,
    #[serde(default)]
    pub directory: bool,
    pub symlink: Option<String>,
    pub hard_link: Option<String>,
    /// `b MAJOR MINOR` or `c MAJOR MINOR`.
    pub device: Option<String>,
    /// Octal; `0644` if not said.
    pub mode: Option<String>,
    #[serde(default)]
    pub uid: u32,
    #[serde(default)]
    pub gid: u32,
}
