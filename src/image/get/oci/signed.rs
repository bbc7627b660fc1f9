//! Signatures of images in registries, by cosign. They are stored next to the image in its repository, under a tag
//! derived from its digest.

use super::registry::Registry;
use crate::error::{Error, Phase, Result};
use crate::image::flow::Digest;
use crate::image::get::Source;
use crate::image::get::cosign::{self, Payload, PublicKey, Signature};
use crate::image::get::named;

/// Result of a verified signature.
#[derive(Debug, PartialEq, Eq)]
pub struct Signed {
    pub by: String,
    /// Id of the image, if the signature covers one.
    pub named: Option<String>,
}

/// Verifies that a trusted key has signed one of the `digests`: the index, if there is one, or the manifest for this
/// machine. Returns `None` if no keys are configured.
///
/// # Errors
/// Returns an error if keys are configured and there is no valid signature, or it is for another image.
pub fn signed(registry: &mut Registry, source: &Source, digests: &[&Digest]) -> Result<Option<Signed>> {
    if source.keys.0.is_empty() {
        return Ok(None);
    }
    let keys: Vec<&PublicKey> = source.keys.cosign().collect();
    let ids: Vec<&str> = keys.iter().map(|key| key.id.as_str()).collect();
    let (url, ids) = (registry.reference.url.clone(), ids.join(", "));
    let mut reasons = Vec::new();
    for digest in digests {
        let tag = cosign::tag_of(digest);
        let Some(manifest) = registry.tagged(&tag)? else { continue };
        let signatures = cosign::signatures(&manifest).map_err(|why| refused(format!("{url}: {tag}: {why}")))?;
        for signature in &signatures {
            let payload = payload(registry, signature)?;
            let Some(key) = keys.iter().find(|key| key.fits(&payload, &signature.over_payload)) else { continue };
            match for_this(source, &payload, digests) {
                Ok(named) => return Ok(Some(Signed { by: key.id.clone(), named })),
                Err(why) => reasons.push(format!("{tag}, signed by {}: {why}", key.id)),
            }
        }
        if reasons.is_empty() {
            let count = signatures.len();
            reasons.push(format!("{tag}: signatures found: {count}, but none by a trusted key; trusted keys: {ids}"));
        }
    }
    if !reasons.is_empty() {
        return Err(refused(format!("{url}: {}", reasons.join("; "))));
    }
    let digest = digests.first().map(ToString::to_string).unwrap_or_default();
    let (repository, tag) = (registry.reference.without_tag(), digests.first().map(|digest| cosign::tag_of(digest)));
    Err(refused(format!(
        "the image {url} is not signed: it has no {} in its repository, and only images signed by {ids} are \
         allowed; sign it with: cosign sign --key cosign.key {repository}@{digest}",
        tag.unwrap_or_default()
    )))
}

fn payload(registry: &mut Registry, signature: &Signature) -> Result<Vec<u8>> {
    let digest =
        super::strong(&signature.payload).map_err(|why| refused(format!("{}: {why}", registry.reference.url)))?;
    registry.small_blob(&digest, signature.payload_bytes)
}

/// Returns the signed name. The payload is parsed only after its signature is verified.
fn for_this(source: &Source, payload: &[u8], digests: &[&Digest]) -> std::result::Result<Option<String>, String> {
    let Payload { digest, name } = Payload::parse(payload)?;
    if !digests.contains(&&digest) {
        return Err(format!("it is for another image, {digest}"));
    }
    named::check(name.as_deref(), source.id.as_deref(), &source.minimum)?;
    Ok(name)
}

fn refused(text: String) -> Error {
    Error::refusal(Phase::Image, text)
}
