//! Images in OCI registries: a reference resolves to a manifest for this architecture, and that to the layers to unpack
//! in order. See the OCI distribution and image specifications.

mod document;
mod reference;
mod registry;
mod signed;
#[cfg(test)]
mod tests;
mod token;

pub use reference::Reference;
pub use token::renewed;

use super::retry::Pace;
use super::{Part, Reached, Source};
use crate::error::{Context, Error, Phase, Result};
use crate::image::flow::{Digest, Kind};
use crate::pull;
use document::{Descriptor, Document, Layers};
use registry::Registry;
use reqwest::Url;
use reqwest::blocking::Client;
use signed::signed;

/// Resolves manifest and layers, and verifies the signature. The digest of the source is that of the manifest, or of
/// the index that lists it.
///
/// # Errors
/// Returns an error if the registry does not answer, requires credentials that are missing, or has no such image for
/// this architecture; if the image cannot be unpacked or has no signature by a trusted key; or if a digest or size does
/// not match.
pub fn reach(client: &Client, reference: &Reference, source: &Source, pace: &Pace) -> Result<Reached> {
    let fail = |why: String| Error::new(Phase::Image, format!("{}: {why}", reference.url));
    let secret = pull::for_url(&source.pull_secrets, &reference.url);
    if secret.is_some() && reference.is_in_the_clear() {
        let why = "registry credentials are only sent over https, where they cannot be intercepted";
        return Err(Error::refusal(Phase::Image, format!("{}: {why}", reference.url)));
    }
    let mut registry = Registry::new(client, reference, secret, pace);
    let named = registry.manifest(&reference.name(), reference.digest.as_ref(), None)?;
    let (manifest, digest) = match Document::read(&named.bytes).map_err(fail)? {
        Document::Manifest(layers) => (layers, named.digest.clone()),
        Document::Index(index) => {
            let Descriptor { digest, size, .. } = index.for_this_machine().map_err(fail)?;
            let digest = strong(digest).map_err(fail)?;
            let inner = registry.manifest(&digest.to_string(), Some(&digest), Some(*size))?;
            match Document::read(&inner.bytes).map_err(fail)? {
                Document::Manifest(layers) => (layers, inner.digest),
                Document::Index(_) => return Err(fail("the index contains another index".to_owned())),
            }
        }
    };
    if let Some(given) = source.digest.as_ref().filter(|given| ![&named.digest, &digest].contains(given)) {
        let index = if digest == named.digest { String::new() } else { format!(" in the index {}", named.digest) };
        let text = format!("its manifest has the digest {digest}{index}, but the specified digest is {given}");
        return Err(fail(text));
    }
    let mut digests = vec![&named.digest, &digest];
    digests.dedup();
    let signed = signed(&mut registry, source, &digests)?;
    let parts = layers(&mut registry, &manifest, fail)?;
    let (signed_by, signed_as) = signed.map(|signed| (Some(signed.by), signed.named)).unwrap_or_default();
    Ok(Reached { url: reference.url.clone(), digest, parts, layered: true, signed_by, signed_as })
}

/// Parses a digest of a registry. It proves the image, so md5 is rejected.
fn strong(text: &str) -> std::result::Result<Digest, String> {
    let digest: Digest = text.parse()?;
    match digest.kind {
        Kind::Md5 => Err(format!("unsupported digest {digest}: md5 can be forged, registries use sha256")),
        Kind::Sha256 | Kind::Sha512 => Ok(digest),
    }
}

/// Returns one part for each layer. Each layer is requested, so that a missing one is detected before anything is
/// written.
fn layers(registry: &mut Registry, manifest: &Layers, fail: impl Fn(String) -> Error) -> Result<Vec<Part>> {
    let mut parts = Vec::new();
    for layer in manifest.in_order().map_err(&fail)? {
        let digest = strong(&layer.digest).map_err(&fail)?;
        let url = format!("{}/blobs/{digest}", registry.reference.base);
        let parsed = Url::parse(&url).context(Phase::Image, || url.clone())?;
        let look = registry.blob(&parsed)?;
        match look.size_bytes {
            Some(size) if size != layer.size => {
                return Err(fail(format!(
                    "the layer {digest} has {size} bytes, but the manifest lists {}",
                    layer.size
                )));
            }
            _ => {}
        }
        let (authorization, pull_secret) = (registry.authorization.clone(), registry.secret.cloned());
        let (size_bytes, etag, mirrors) = (Some(layer.size), look.etag, Vec::new());
        parts.push(Part { url, mirrors, size_bytes, etag, digest, authorization, pull_secret, manifest: None });
    }
    Ok(parts)
}
