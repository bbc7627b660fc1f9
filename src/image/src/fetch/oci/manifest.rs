//! Manifests and indexes of registries, in the formats of OCI and Docker.

use serde::de::DeserializeOwned;
use serde::{Deserialize, Deserializer};
use serde_json::Value;

/// Maximum number of layers, far more than an image of an operating system has.
const MAXIMUM_LAYERS: usize = 512;

const INDEXES: [&str; 2] =
    ["application/vnd.oci.image.index.v1+json", "application/vnd.docker.distribution.manifest.list.v2+json"];

const MANIFESTS: [&str; 2] =
    ["application/vnd.oci.image.manifest.v1+json", "application/vnd.docker.distribution.manifest.v2+json"];

const CONFIGS: [&str; 2] =
    ["application/vnd.oci.image.config.v1+json", "application/vnd.docker.container.image.v1+json"];

/// Maximum size of a configuration, in bytes.
const CONFIG_BYTES: u64 = 4 << 20;

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

/// Variant that every processor of this machine's architecture supports, under the name that containerd uses. An index
/// entry without a variant has this variant.
const VARIANT: &str = if cfg!(target_arch = "aarch64") { "v8" } else { "v1" };

/// Returns the value of an `Accept` header with all supported document types.
pub(crate) fn accepted_types() -> String {
    [INDEXES, MANIFESTS].concat().join(", ")
}

/// Document to which a reference points.
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
pub(crate) struct OciLayers {
    layers: Vec<OciDescriptor>,
    /// Configuration of the image, which declares its platform.
    config: Option<OciDescriptor>,
}

#[derive(Deserialize)]
struct RawDocument {
    #[serde(rename = "mediaType", default, deserialize_with = "null_as_default")]
    media_type: String,
    manifests: Option<Vec<OciDescriptor>>,
    layers: Option<Vec<OciDescriptor>>,
    #[serde(default, deserialize_with = "null_as_default")]
    config: Option<OciDescriptor>,
}

/// Reference to a blob or another document.
#[derive(Debug, Deserialize)]
pub(crate) struct OciDescriptor {
    #[serde(rename = "mediaType", default, deserialize_with = "null_as_default")]
    media_type: String,
    /// Digest of the blob or document; empty if the descriptor does not contain a digest. Digest and size are required
    /// only in descriptors that are used.
    #[serde(default, deserialize_with = "null_as_default")]
    pub digest: String,
    #[serde(default, deserialize_with = "null_as_default")]
    pub size: u64,
    #[serde(default, deserialize_with = "invalid_as_none")]
    platform: Option<OciPlatform>,
}

/// Reads the JSON value `null` as the default value of the field's type, as Go does.
fn null_as_default<'de, D: Deserializer<'de>, T: Deserialize<'de> + Default>(from: D) -> Result<T, D::Error> {
    Ok(Option::deserialize(from)?.unwrap_or_default())
}

/// Reads a value of an unexpected type as `None`, so that an unusual entry for another platform does not make the whole
/// index unreadable.
fn invalid_as_none<'de, D: Deserializer<'de>, T: DeserializeOwned>(from: D) -> Result<Option<T>, D::Error> {
    Ok(serde_json::from_value(Value::deserialize(from)?).ok())
}

/// Platform of an index entry or image. Index entries of attestations and other documents do not declare a platform.
#[derive(Debug, Default, Deserialize)]
struct OciPlatform {
    os: Option<String>,
    architecture: Option<String>,
    variant: Option<String>,
}

impl OciPlatform {
    /// Returns operating system, architecture and variant, with the names that containerd uses; `None` if the operating
    /// system or the architecture is missing. An empty variant means the default variant.
    fn names(&self) -> Option<[String; 3]> {
        let name = |text: &Option<String>| text.as_deref().unwrap_or_default().to_lowercase();
        let (os, architecture, variant) = (name(&self.os), name(&self.architecture), name(&self.variant));
        let architecture = match architecture.as_str() {
            "x86_64" | "x86-64" => "amd64".to_owned(),
            "aarch64" => "arm64".to_owned(),
            _ => architecture,
        };
        let is_default = architecture == ARCHITECTURE && variant == VARIANT;
        let variant = if is_default { String::new() } else { variant };
        (!os.is_empty() && !architecture.is_empty()).then_some([os, architecture, variant])
    }

    fn is_own(&self) -> bool {
        self.names().is_some_and(|names| names == ["linux", ARCHITECTURE, ""])
    }
}

/// Returns a platform as `os/architecture/variant`, with each name cut to 20 characters.
fn format_platform(names: &[String; 3]) -> String {
    let shown = names.iter().filter(|name| !name.is_empty()).map(|name| format!("{name:.20}"));
    shown.collect::<Vec<_>>().join("/")
}

impl OciDocument {
    /// Parses a document.
    ///
    /// # Errors
    /// Returns an error if the document is neither an index nor a manifest, or contains the fields of both.
    pub(crate) fn parse(bytes: &[u8]) -> Result<OciDocument, String> {
        let raw: RawDocument =
            serde_json::from_slice(bytes).map_err(|why| format!("cannot parse the manifest: {why}"))?;
        let is = |known: [&str; 2]| raw.media_type.is_empty() || known.contains(&raw.media_type.as_str());
        match (raw.manifests, raw.layers) {
            (Some(manifests), None) if is(INDEXES) => Ok(OciDocument::Index(OciIndex(manifests))),
            (None, Some(layers)) if is(MANIFESTS) => {
                Ok(OciDocument::Manifest(OciLayers { layers, config: raw.config }))
            }
            // A document that is both an index and a manifest is rejected, because another program could interpret it
            // differently than this one.
            (Some(_), Some(_)) => Err("the document is both a manifest and an index".to_owned()),
            _ => Err(format!("unsupported manifest type: `{:.100}`", raw.media_type)),
        }
    }
}

impl OciIndex {
    /// Returns the manifest for this machine.
    ///
    /// # Errors
    /// Returns an error that lists the available platforms if none of them is this machine's platform.
    pub(crate) fn select_platform(&self) -> Result<&OciDescriptor, String> {
        let is_own = |descriptor: &&OciDescriptor| descriptor.platform.as_ref().is_some_and(OciPlatform::is_own);
        if let Some(found) = self.0.iter().find(is_own) {
            return Ok(found);
        }
        // If the only entry does not declare a platform, the entry is selected. The platform that the image's
        // configuration declares is checked later.
        if let [only] = self.0.as_slice()
            && !only.declares_platform()
        {
            return Ok(only);
        }
        let platforms = self.0.iter().filter_map(|descriptor| descriptor.platform.as_ref()?.names());
        let others: Vec<String> = platforms.take(20).map(|names| format_platform(&names)).collect();
        Err(match others.as_slice() {
            [] => format!(
                "cannot select an image for linux/{ARCHITECTURE}: the entries of the index do not declare their platforms"
            ),
            others => format!(
                "found no image for linux/{ARCHITECTURE}, only images for: {others}",
                others = others.join(", ")
            ),
        })
    }
}

impl OciDescriptor {
    /// Returns whether the entry declares operating system and architecture.
    pub(crate) fn declares_platform(&self) -> bool {
        self.platform.as_ref().is_some_and(|platform| platform.names().is_some())
    }
}

/// Checks that the platform in an image's configuration is this machine's platform. An image that does not declare its
/// platform is accepted.
///
/// # Errors
/// Returns an error with the image's platform if this machine has another platform.
pub(crate) fn check_config_platform(config: &[u8]) -> Result<(), String> {
    let platform: OciPlatform = serde_json::from_slice(config).unwrap_or_default();
    match platform.names() {
        // The variant is not checked: this function is called only if the image was not selected by a platform in an
        // index, so the operator has chosen the image explicitly.
        Some(names) if names[..2] != ["linux", ARCHITECTURE] => Err(format!(
            "found no image for linux/{ARCHITECTURE}, only images for: {others}",
            others = format_platform(&names)
        )),
        _ => Ok(()),
    }
}

impl OciLayers {
    /// Returns the configuration of the image; `None` if the image has no configuration, or if the configuration is of
    /// an unknown type or larger than [`CONFIG_BYTES`].
    pub(crate) fn image_config(&self) -> Option<&OciDescriptor> {
        let is_config =
            |config: &&OciDescriptor| CONFIGS.contains(&config.media_type.as_str()) && config.size <= CONFIG_BYTES;
        self.config.as_ref().filter(is_config)
    }

    /// Returns the layers, lowest first.
    ///
    /// # Errors
    /// Returns an error if there are no layers or too many, or if the type of a layer is not supported.
    pub(crate) fn checked_layers(&self) -> Result<&[OciDescriptor], String> {
        if self.layers.is_empty() || self.layers.len() > MAXIMUM_LAYERS {
            return Err(format!(
                "the manifest lists {layers} layers; 1 to {MAXIMUM_LAYERS} are supported",
                layers = self.layers.len()
            ));
        }
        for OciDescriptor { media_type, digest, .. } in &self.layers {
            if media_type.contains("nondistributable") || media_type.contains("foreign") {
                return Err(format!(
                    "the layer {digest:.80} cannot be fetched: layers of type `{media_type:.100}` are not stored in the registry"
                ));
            }
            if !LAYERS.contains(&media_type.as_str()) {
                return Err(format!("the layer {digest:.80} is not a tar archive: its type is `{media_type:.100}`"));
            }
        }
        let sum = self.layers.iter().try_fold(0_u64, |sum, layer| sum.checked_add(layer.size));
        sum.map(|_| &self.layers[..]).ok_or_else(|| "the sum of the layer sizes overflows".to_owned())
    }
}
