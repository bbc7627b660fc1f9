//! cosign signatures of images in registries. A signature is stored in the repository of the image, under a tag derived
//! from the image's digest.

use super::registry::RegistryRepository;
use crate::fetch::cosign::{self, CosignPayload, CosignPublicKey, CosignSignature};
use crate::fetch::{ImageSource, signed_image_id};
use crate::pipeline::Digest;
use common::error::{Error, Phase, Result};
use common::error_code::ErrorCode;

/// Signature that was verified with a trusted key.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct VerifiedSignature {
    /// Id of the key.
    pub by: String,
    /// Id of the image, if the signed payload contains one.
    pub named: Option<String>,
}

/// Verifies that one of the `digests` was signed with a trusted key. `digests` contains the digest of the manifest for
/// this machine and, if the image has an index, the digest of the index. Returns `None` if no keys are configured.
///
/// # Errors
/// Returns an error if keys are configured and the image has no valid signature by a trusted key, or if the signed
/// payload is for another image.
pub fn verify_signature(
    registry: &mut RegistryRepository,
    source: &ImageSource,
    digests: &[&Digest],
) -> Result<Option<VerifiedSignature>> {
    if source.keys.0.is_empty() {
        return Ok(None);
    }
    let keys: Vec<&CosignPublicKey> = source.keys.cosign().collect();
    let ids: Vec<&str> = keys.iter().map(|key| key.id.as_str()).collect();
    let (url, ids) = (registry.reference.url.clone(), ids.join(", "));
    let mut reasons = Vec::new();
    for digest in digests {
        let tag = cosign::signature_tag(digest);
        let Some(manifest) = registry.fetch_tagged(&tag)? else { continue };
        let signatures = cosign::parse_signatures(&manifest).map_err(|why| reject(format!("{url}: {tag}: {why}")))?;
        for signature in &signatures {
            let payload = fetch_payload(registry, signature)?;
            let Some(key) = keys.iter().find(|key| key.verifies(&payload, &signature.over_payload)) else { continue };
            match check_payload(source, &payload, digests) {
                Ok(named) => return Ok(Some(VerifiedSignature { by: key.id.clone(), named })),
                Err(why) => reasons.push(format!("{tag}, signed by {key}: {why}", key = key.id)),
            }
        }
        if reasons.is_empty() {
            let count = signatures.len();
            reasons.push(format!(
                "{tag}: signatures found: {count}, but none of them was made by a trusted key; trusted keys: {ids}"
            ));
        }
    }
    if !reasons.is_empty() {
        return Err(reject(format!("{url}: {}", reasons.join("; "))));
    }
    let digest = digests.first().map(ToString::to_string).unwrap_or_default();
    let (repository, tag) =
        (registry.reference.without_tag(), digests.first().map(|digest| cosign::signature_tag(digest)));
    Err(reject(format!(
        "the image {url} is not signed: its repository does not contain {}, and only images signed by {ids} are \
         allowed; sign it with: cosign sign --key cosign.key {repository}@{digest}",
        tag.unwrap_or_default()
    )))
}

fn fetch_payload(registry: &mut RegistryRepository, signature: &CosignSignature) -> Result<Vec<u8>> {
    let digest = super::parse_strong_digest(&signature.payload)
        .map_err(|why| reject(format!("{}: {why}", registry.reference.url)))?;
    registry.fetch_small_blob(&digest, signature.payload_bytes)
}

/// Checks that the payload is for one of the `digests`, and returns the image id that the payload contains. The caller
/// has verified the signature of the payload.
fn check_payload(
    source: &ImageSource,
    payload: &[u8],
    digests: &[&Digest],
) -> std::result::Result<Option<String>, String> {
    let CosignPayload { digest, name } = CosignPayload::parse(payload)?;
    if !digests.contains(&&digest) {
        return Err(format!("the signed payload is for another image, with the digest {digest}"));
    }
    signed_image_id::check_signed_name(name.as_deref(), source.id.as_deref(), &source.minimum)?;
    Ok(name)
}

fn reject(text: String) -> Error {
    Error::refusal(Phase::Image, text).with_code(ErrorCode::SignatureRejected)
}
