//! What a registry's manifests and indexes say, in OCI's words and in Docker's.

use serde::Deserialize;

/// More than any image needs that somebody means to start a machine with.
const MOST_LAYERS: usize = 512;

const INDEXES: [&str; 2] =
    ["application/vnd.oci.image.index.v1+json", "application/vnd.docker.distribution.manifest.list.v2+json"];

const MANIFESTS: [&str; 2] =
    ["application/vnd.oci.image.manifest.v1+json", "application/vnd.docker.distribution.manifest.v2+json"];

const LAYERS: [&str; 6] = [
    "application/vnd.oci.image.layer.v1.tar",
    "application/vnd.oci.image.layer.v1.tar+gzip",
    "application/vnd.oci.image.layer.v1.tar+zstd",
    "application/vnd.docker.image.rootfs.diff.tar",
    "application/vnd.docker.image.rootfs.diff.tar.gzip",
    "application/vnd.docker.image.rootfs.diff.tar.zstd",
];

/// As registries and Docker call it.
const ARCHITECTURE: &str = if cfg!(target_arch = "x86_64") {
    "amd64"
} else if cfg!(target_arch = "aarch64") {
    "arm64"
} else {
    std::env::consts::ARCH
};

/// The value of an `Accept` header that names all that can be read here.
pub fn accepted() -> String {
    [INDEXES, MANIFESTS].concat().join(", ")
}

/// A reference leads to one of the two.
#[derive(Debug)]
pub enum Document {
    Index(Index),
    Manifest(Layers),
}

/// The same image for several architectures.
#[derive(Debug)]
pub struct Index(Vec<Descriptor>);

/// The layers of a manifest, not yet looked at.
#[derive(Debug)]
pub struct Layers(Vec<Descriptor>);

#[derive(Deserialize)]
struct Raw {
    #[serde(rename = "mediaType", default)]
    media_type: String,
    manifests: Option<Vec<Descriptor>>,
    layers: Option<Vec<Descriptor>>,
}

/// Refers to a blob or another document.
#[derive(Debug, Deserialize)]
pub struct Descriptor {
    #[serde(rename = "mediaType", default)]
    media_type: String,
    pub digest: String,
    pub size: u64,
    platform: Option<Platform>,
}

#[derive(Debug, Deserialize)]
struct Platform {
    os: String,
    architecture: String,
}

impl Document {
    /// # Errors
    /// It is neither, or both.
    pub fn read(bytes: &[u8]) -> Result<Document, String> {
        let raw: Raw = serde_json::from_slice(bytes).map_err(|why| format!("its manifest cannot be read: {why}"))?;
        let is = |known: [&str; 2]| raw.media_type.is_empty() || known.contains(&raw.media_type.as_str());
        match (raw.manifests, raw.layers) {
            (Some(manifests), None) if is(INDEXES) => Ok(Document::Index(Index(manifests))),
            (None, Some(layers)) if is(MANIFESTS) => Ok(Document::Manifest(Layers(layers))),
            // What is both is read in two ways by two programs.
            (Some(_), Some(_)) => Err("its manifest is an index too".to_owned()),
            _ => Err(format!("its manifest is of a kind that is not known here: `{:.100}`", raw.media_type)),
        }
    }
}

impl Index {
    /// # Errors
    /// There is none; names those that there are.
    pub fn for_this_machine(&self) -> Result<&Descriptor, String> {
        let fits = |platform: &Platform| platform.os == "linux" && platform.architecture == ARCHITECTURE;
        let found = self.0.iter().find(|descriptor| descriptor.platform.as_ref().is_some_and(fits));
        found.ok_or_else(|| {
            let platforms = self.0.iter().filter_map(|descriptor| descriptor.platform.as_ref());
            let name = |platform: &Platform| format!("{:.20}/{:.20}", platform.os, platform.architecture);
            let others: Vec<String> = platforms.take(20).map(name).collect();
            format!("it has no image for linux/{ARCHITECTURE}, only for: {}", others.join(", "))
        })
    }
}

impl Layers {
    /// Lowest first.
    ///
    /// # Errors
    /// There are none or too many, or one cannot be unpacked.
    pub fn in_order(&self) -> Result<&[Descriptor], String> {
        if self.0.is_empty() || self.0.len() > MOST_LAYERS {
            return Err(format!("it has {} layers; 1 to {MOST_LAYERS} can be unpacked", self.0.len()));
        }
        for Descriptor { media_type, digest, .. } in &self.0 {
            if media_type.contains("nondistributable") || media_type.contains("foreign") {
                return Err(format!("its layer {digest:.80} is not to be had from registries: {media_type:.100}"));
            }
            if !LAYERS.contains(&media_type.as_str()) {
                return Err(format!("its layer {digest:.80} is no tar of files: `{media_type:.100}`"));
            }
        }
        let sum = self.0.iter().try_fold(0_u64, |sum, layer| sum.checked_add(layer.size));
        sum.map(|_| &self.0[..]).ok_or_else(|| "its layers are larger than anything can be".to_owned())
    }
}
