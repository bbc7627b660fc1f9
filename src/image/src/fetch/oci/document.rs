//! Manifests and indexes of registries, in the formats of OCI and Docker.

use serde::Deserialize;

/// Maximum number of layers, far more than an image of an operating system has.
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

/// Name of this machine's architecture in manifests, which use Go's names (GOARCH).
const ARCHITECTURE: &str = if cfg!(target_arch = "x86_64") {
    "amd64"
} else if cfg!(target_arch = "aarch64") {
    "arm64"
} else {
    std::env::consts::ARCH
};

/// Returns the value of an `Accept` header with all supported document types.
pub(crate) fn accepted_types() -> String {
    [INDEXES, MANIFESTS].concat().join(", ")
}

/// Document that a reference points to.
#[derive(Debug)]
pub(crate) enum OciDocument {
    Index(OciIndex),
    Manifest(OciLayers),
}

/// Index, which lists the manifests of one image for several platforms.
#[derive(Debug)]
pub(crate) struct OciIndex(Vec<OciDescriptor>);

/// Layers of a manifest, not yet checked; see [`Self::checked_layers`].
#[derive(Debug)]
pub(crate) struct OciLayers(Vec<OciDescriptor>);

#[derive(Deserialize)]
struct RawDocument {
    #[serde(rename = "mediaType", default)]
    media_type: String,
    manifests: Option<Vec<OciDescriptor>>,
    layers: Option<Vec<OciDescriptor>>,
}

/// Reference to a blob or another document.
#[derive(Debug, Deserialize)]
pub(crate) struct OciDescriptor {
    #[serde(rename = "mediaType", default)]
    media_type: String,
    pub digest: String,
    pub size: u64,
    platform: Option<OciPlatform>,
}

#[derive(Debug, Deserialize)]
struct OciPlatform {
    os: String,
    architecture: String,
}

impl OciDocument {
    /// Parses a document.
    ///
    /// # Errors
    /// Returns an error if the document is neither an index nor a manifest, or is both.
    pub(crate) fn parse(bytes: &[u8]) -> Result<OciDocument, String> {
        let raw: RawDocument =
            serde_json::from_slice(bytes).map_err(|why| format!("cannot parse the manifest: {why}"))?;
        let is = |known: [&str; 2]| raw.media_type.is_empty() || known.contains(&raw.media_type.as_str());
        match (raw.manifests, raw.layers) {
            (Some(manifests), None) if is(INDEXES) => Ok(OciDocument::Index(OciIndex(manifests))),
            (None, Some(layers)) if is(MANIFESTS) => Ok(OciDocument::Manifest(OciLayers(layers))),
            // One program could read a document that is both as an index, and another program as a manifest.
            (Some(_), Some(_)) => Err("the manifest is also an index".to_owned()),
            _ => Err(format!("unsupported manifest type: `{:.100}`", raw.media_type)),
        }
    }
}

impl OciIndex {
    /// Returns the manifest for this machine.
    ///
    /// # Errors
    /// Returns an error that lists the available platforms if there is no manifest for this one.
    pub(crate) fn select_platform(&self) -> Result<&OciDescriptor, String> {
        let fits = |platform: &OciPlatform| platform.os == "linux" && platform.architecture == ARCHITECTURE;
        let found = self.0.iter().find(|descriptor| descriptor.platform.as_ref().is_some_and(fits));
        found.ok_or_else(|| {
            let platforms = self.0.iter().filter_map(|descriptor| descriptor.platform.as_ref());
            let name = |platform: &OciPlatform| format!("{:.20}/{:.20}", platform.os, platform.architecture);
            let others: Vec<String> = platforms.take(20).map(name).collect();
            format!("no image for linux/{ARCHITECTURE}, only for: {}", others.join(", "))
        })
    }
}

impl OciLayers {
    /// Returns the layers, lowest first.
    ///
    /// # Errors
    /// Returns an error if there are no layers or too many, or if the type of a layer is not supported.
    pub(crate) fn checked_layers(&self) -> Result<&[OciDescriptor], String> {
        if self.0.is_empty() || self.0.len() > MOST_LAYERS {
            return Err(format!("the manifest lists {} layers; 1 to {MOST_LAYERS} are supported", self.0.len()));
        }
        for OciDescriptor { media_type, digest, .. } in &self.0 {
            if media_type.contains("nondistributable") || media_type.contains("foreign") {
                return Err(format!(
                    "the layer {digest:.80} cannot be fetched from a registry: its type is {media_type:.100}"
                ));
            }
            if !LAYERS.contains(&media_type.as_str()) {
                return Err(format!("the layer {digest:.80} is not a tar: `{media_type:.100}`"));
            }
        }
        let sum = self.0.iter().try_fold(0_u64, |sum, layer| sum.checked_add(layer.size));
        sum.map(|_| &self.0[..]).ok_or_else(|| "the sum of the layer sizes overflows".to_owned())
    }
}
