//! Images in OCI registries: a reference is resolved to the manifest for this architecture, and the manifest is
//! resolved to the layers, which are unpacked in order. See the OCI distribution and image specifications.

mod manifest;
mod reference;
mod registry;
mod registry_authentication;
mod signature;
#[cfg(test)]
mod tests;

pub(crate) use reference::ImageReference;
pub(crate) use registry_authentication::renew_authorization;

use super::retry::FetchRetryPolicy;
use super::{ImagePart, ImageSource, ResolvedImage};
use crate::pipeline::{Digest, DigestKind};
use common::error::{Context, Error, Phase, Result};
use manifest::{OciDescriptor, OciDocument, OciLayers, check_config_platform};
use model::registry_auth;
use registry::RegistryRepository;
use reqwest::Url;
use reqwest::blocking::Client;
use signature::verify_signature;

/// Resolves a reference to its manifest and layers, and verifies the signature. If the digest of the image is
/// specified, it must be the digest of the manifest, or of the index that lists the manifest.
///
/// # Errors
/// Returns an error if the registry does not respond, requires credentials that are not configured, or does not have
/// the image for this architecture. Also returns an error if the image cannot be unpacked, lacks a signature by a
/// trusted key, or a digest or size does not match.
pub(crate) fn resolve_reference(
    client: &Client,
    reference: &ImageReference,
    source: &ImageSource,
    pace: &FetchRetryPolicy,
) -> Result<ResolvedImage> {
    let fail = |why: String| Error::new(Phase::Image, format!("{}: {why}", reference.url));
    let secret = registry_auth::find_for_url(&source.pull_secrets, &reference.url);
    if secret.is_some() && reference.is_unencrypted() {
        let why = "registry credentials are only sent over https, but this registry is accessed over http";
        return Err(Error::refusal(Phase::Image, format!("{}: {why}", reference.url)));
    }
    let mut registry = RegistryRepository::new(client, reference, secret, pace);
    let named = registry.fetch_manifest(&reference.manifest_name(), reference.digest.as_ref(), None)?;
    let (manifest, digest, declares_platform) = match OciDocument::parse(&named.bytes).map_err(fail)? {
        OciDocument::Manifest(layers) => (layers, named.digest.clone(), false),
        OciDocument::Index(index) => {
            let entry = index.select_platform().map_err(fail)?;
            let OciDescriptor { digest, size, .. } = entry;
            let digest = parse_strong_digest(digest).map_err(fail)?;
            let inner = registry.fetch_manifest(&digest.to_string(), Some(&digest), Some(*size))?;
            match OciDocument::parse(&inner.bytes).map_err(fail)? {
                OciDocument::Manifest(layers) => (layers, inner.digest, entry.declares_platform()),
                OciDocument::Index(_) => return Err(fail("the index contains another index".to_owned())),
            }
        }
    };
    if let Some(given) = source.digest.as_ref().filter(|given| ![&named.digest, &digest].contains(given)) {
        let index = if digest == named.digest {
            String::new()
        } else {
            format!(" (the index has the digest {index_digest})", index_digest = named.digest)
        };
        let text = format!("the image's manifest has the digest {digest}{index}, but {given} is specified");
        return Err(fail(text));
    }
    let mut digests = vec![&named.digest, &digest];
    digests.dedup();
    let signed = verify_signature(&mut registry, source, &digests)?;
    if !declares_platform {
        check_platform(&mut registry, &manifest)
            .map_err(|why| Error::refusal(Phase::Image, format!("{}: {why}", reference.url)))?;
    }
    let parts = resolve_layers(&mut registry, &manifest, fail)?;
    let (signed_by, signed_as) = signed.map(|signed| (Some(signed.by), signed.named)).unwrap_or_default();
    Ok(ResolvedImage { url: reference.url.clone(), digest, parts, layered: true, signed_by, signed_as })
}

/// Checks the platform that the image's configuration declares. The configuration is not required for unpacking, so an
/// image without a configuration is accepted.
fn check_platform(registry: &mut RegistryRepository, manifest: &OciLayers) -> std::result::Result<(), String> {
    let Some(config) = manifest.image_config() else { return Ok(()) };
    match registry.fetch_small_blob(&parse_strong_digest(&config.digest)?, config.size) {
        Ok(config) => check_config_platform(&config),
        Err(error) => {
            tracing::warn!("the image's platform is not checked: {error}");
            Ok(())
        }
    }
}

/// Parses a digest received from a registry. Rejects md5, which can be forged, because the image is authenticated by
/// this digest.
fn parse_strong_digest(text: &str) -> std::result::Result<Digest, String> {
    let digest: Digest = text.parse()?;
    match digest.kind {
        DigestKind::Md5 => {
            Err(format!("unsupported digest {digest}: md5 digests can be forged, and registries use sha256"))
        }
        DigestKind::Sha256 | DigestKind::Sha512 => Ok(digest),
    }
}

/// Returns one part for each layer. Sends a HEAD request for each layer, so that a missing layer is detected before
/// anything is written.
fn resolve_layers(
    registry: &mut RegistryRepository,
    manifest: &OciLayers,
    fail: impl Fn(String) -> Error,
) -> Result<Vec<ImagePart>> {
    let mut parts = Vec::new();
    for layer in manifest.checked_layers().map_err(&fail)? {
        let digest = parse_strong_digest(&layer.digest).map_err(&fail)?;
        let url = format!("{}/blobs/{digest}", registry.reference.base);
        let parsed = Url::parse(&url).context(Phase::Image, || url.clone())?;
        let look = registry.head_blob(&parsed)?;
        match look.size_bytes {
            Some(size) if size != layer.size => {
                return Err(fail(format!(
                    "the layer {digest} is {size} bytes, but the manifest specifies {expected} bytes",
                    expected = layer.size
                )));
            }
            _ => {}
        }
        let (authorization, pull_secret) = (registry.authorization.clone(), registry.secret.cloned());
        let (size_bytes, etag, mirrors) = (Some(layer.size), look.etag, Vec::new());
        parts.push(ImagePart { url, mirrors, size_bytes, etag, digest, authorization, pull_secret, manifest: None });
    }
    Ok(parts)
}
