//! Images in OCI registries: a reference becomes a manifest for this architecture, and that the layers to unpack in order.
//! See the OCI distribution and image specifications.

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

/// Asks for manifest and layers, and who has signed them. The source's digest is that of the manifest, or of the index that it was
/// found in.
///
/// # Errors
/// The registry does not answer, wants a password that nobody has given, or has no such image for this architecture; the image is not
/// one to unpack, or nobody whose key is here has signed it; a digest or a size is not what was promised.
pub fn reach(client: &Client, reference: &Reference, source: &Source, pace: &Pace) -> Result<Reached> {
    let fail = |why: String| Error::new(Phase::Image, format!("{}: {why}", reference.url));
    let secret = pull::for_url(&source.pull_secrets, &reference.url);
    if secret.is_some() && reference.is_in_the_clear() {
        let why = "a pull secret goes over https alone: everybody on the way could read it";
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
                Document::Index(_) => return Err(fail("its index holds another index".to_owned())),
            }
        }
    };
    if let Some(given) = source.digest.as_ref().filter(|given| ![&named.digest, &digest].contains(given)) {
        let index = if digest == named.digest { String::new() } else { format!(" in the index {}", named.digest) };
        let text = format!("its manifest has the digest {digest}{index}, and the digest that was given is {given}");
        return Err(fail(text));
    }
    let mut digests = vec![&named.digest, &digest];
    digests.dedup();
    let signed = signed(&mut registry, source, &digests)?;
    let parts = layers(&mut registry, &manifest, fail)?;
    let (signed_by, signed_as) = signed.map(|signed| (Some(signed.by), signed.named)).unwrap_or_default();
    Ok(Reached { url: reference.url.clone(), digest, parts, layered: true, signed_by, signed_as })
}

/// A registry's digests are what proves an image: an md5 proves nothing.
fn strong(text: &str) -> std::result::Result<Digest, String> {
    let digest: Digest = text.parse()?;
    match digest.kind {
        Kind::Md5 => Err(format!("it names {digest}: an md5 can be forged, a registry's digests are sha256")),
        Kind::Sha256 | Kind::Sha512 => Ok(digest),
    }
}

/// One part for each layer. Each is asked for, so that one that is missing is known before anything is written.
fn layers(registry: &mut Registry, manifest: &Layers, fail: impl Fn(String) -> Error) -> Result<Vec<Part>> {
    let mut parts = Vec::new();
    for layer in manifest.in_order().map_err(&fail)? {
        let digest = strong(&layer.digest).map_err(&fail)?;
        let url = format!("{}/blobs/{digest}", registry.reference.base);
        let parsed = Url::parse(&url).context(Phase::Image, || url.clone())?;
        let look = registry.blob(&parsed)?;
        match look.size_bytes {
            Some(size) if size != layer.size => {
                return Err(fail(format!("the layer {digest} has {size} bytes, its manifest says {}", layer.size)));
            }
            _ => {}
        }
        let (authorization, pull_secret) = (registry.authorization.clone(), registry.secret.cloned());
        let (size_bytes, etag, mirrors) = (Some(layer.size), look.etag, Vec::new());
        parts.push(Part { url, mirrors, size_bytes, etag, digest, authorization, pull_secret, manifest: None });
    }
    Ok(parts)
}
