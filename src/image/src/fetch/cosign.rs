//! Parses cosign's public keys, and verifies signatures that were made with a key pair. Keyless signatures are not
//! supported. <https://github.com/sigstore/cosign/blob/main/specs/SIGNATURE_SPEC.md>

use crate::pipeline::Digest;
use base64::prelude::{BASE64_STANDARD, Engine};
use common::encoding::encode_hex;
use ring::signature::{ECDSA_P256_SHA256_ASN1, ED25519, UnparsedPublicKey, VerificationAlgorithm};
use serde::Deserialize;
use sha2::{Digest as _, Sha256};
use std::collections::BTreeMap;

/// First bytes of every P-256 key in SubjectPublicKeyInfo form (RFC 5480); the uncompressed point follows.
const P256: &[u8] =
    b"\x30\x59\x30\x13\x06\x07\x2a\x86\x48\xce\x3d\x02\x01\x06\x08\x2a\x86\x48\xce\x3d\x03\x01\x07\x03\x42\x00";
/// First bytes of every Ed25519 key in SubjectPublicKeyInfo form (RFC 8410); the 32 bytes of the key follow.
const ED: &[u8] = b"\x30\x2a\x30\x05\x06\x03\x2b\x65\x70\x03\x21\x00";

const PEM: &str = "PUBLIC KEY";

const PAYLOAD: &str = "application/vnd.dev.cosign.simplesigning.v1+json";
const SIGNATURE: &str = "dev.cosignproject.cosign/signature";
const TYPE: &str = "cosign container image signature";

/// Name of the annotation that contains the image's id, as set by `cosign sign -a image=OS-VERSION`.
const NAME: &str = "image";

/// Maximum number of signatures of an image. Each signature is fetched with a separate request.
const MAXIMUM_SIGNATURES: usize = 16;
/// Maximum length of a signed payload including its annotations, in bytes.
pub(crate) const PAYLOAD_BYTES: u64 = 64 << 10;

/// Public key: ECDSA on P-256, as created by `cosign generate-key-pair`, or Ed25519.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CosignPublicKey {
    /// Id of the key: `cosign:`, followed by the first 8 bytes, in hexadecimal, of the SHA-256 of the key in DER form.
    pub id: String,
    is_p256: bool,
    point: Vec<u8>,
}

/// Returns the base64 body of a PEM public key; `None` if the text is not PEM.
///
/// # Errors
/// Returns an error if the text is PEM but does not contain exactly one public key.
pub(crate) fn extract_pem_body(text: &str) -> Result<Option<String>, String> {
    let Some(rest) = text.trim().strip_prefix("-----BEGIN ") else { return Ok(None) };
    let (label, rest) = rest.split_once("-----").unwrap_or((rest, ""));
    // The text is not printed completely: it may be a secret that was specified by mistake, and errors appear on
    // consoles and in logs.
    if label.contains("PRIVATE") {
        return Err("the key is a secret key; specify the public key, cosign.pub".to_owned());
    }
    if label != PEM {
        return Err(format!("the PEM data is not a public key: its type is {label:.40}"));
    }
    let (body, after) =
        rest.split_once("-----END PUBLIC KEY-----").ok_or("the END line of the PEM block is missing")?;
    match after.trim().is_empty() {
        true => Ok(Some(body.split_whitespace().collect())),
        false => Err("must contain exactly one key".to_owned()),
    }
}

/// Returns whether the text is a base64-encoded DER key, the format of cosign keys. A minisign key begins with a
/// different byte.
pub(crate) fn is_base64_of_key(text: &str) -> bool {
    BASE64_STANDARD.decode(text.trim()).is_ok_and(|der| der.first() == Some(&P256[0]))
}

impl CosignPublicKey {
    /// Parses a key in DER form, encoded in base64.
    ///
    /// # Errors
    /// Returns an error if the key is invalid, or is neither a P-256 nor an Ed25519 key.
    pub(crate) fn parse_base64(text: &str) -> Result<CosignPublicKey, String> {
        let der = BASE64_STANDARD.decode(text.trim()).map_err(|_| "the PEM body is not valid base64".to_owned())?;
        let hash = Sha256::digest(&der);
        let id = format!("cosign:{}", encode_hex(&hash[..8]));
        match (der.strip_prefix(P256), der.strip_prefix(ED)) {
            (Some(point), _) if point.len() == 65 && point[0] == 4 => {
                Ok(CosignPublicKey { id, is_p256: true, point: point.to_owned() })
            }
            (_, Some(point)) if point.len() == 32 => {
                Ok(CosignPublicKey { id, is_p256: false, point: point.to_owned() })
            }
            _ => Err("unsupported key type; use ECDSA on P-256 or Ed25519".to_owned()),
        }
    }

    /// Returns whether the signature over the text was made with this key.
    pub(crate) fn verifies(&self, text: &[u8], signature: &[u8]) -> bool {
        let algorithm: &dyn VerificationAlgorithm = if self.is_p256 { &ECDSA_P256_SHA256_ASN1 } else { &ED25519 };
        UnparsedPublicKey::new(algorithm, &self.point).verify(text, signature).is_ok()
    }
}

/// Signature, and the location of the payload that the signature covers.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct CosignSignature {
    pub payload: String,
    pub payload_bytes: u64,
    pub over_payload: Vec<u8>,
}

#[derive(Deserialize)]
struct SignatureManifest {
    #[serde(default)]
    layers: Vec<SignatureLayer>,
}

#[derive(Deserialize)]
struct SignatureLayer {
    #[serde(rename = "mediaType", default)]
    media_type: String,
    digest: String,
    size: u64,
    #[serde(default)]
    annotations: BTreeMap<String, String>,
}

/// Returns the tag under which a repository stores the signatures of the image with this digest.
pub(crate) fn signature_tag(digest: &Digest) -> String {
    format!("{}.sig", digest.to_string().replace(':', "-"))
}

/// Parses the manifest stored under [`signature_tag`].
///
/// # Errors
/// Returns an error if the manifest is invalid, or contains either no signatures or more than [`MAXIMUM_SIGNATURES`].
pub(crate) fn parse_signatures(manifest: &[u8]) -> Result<Vec<CosignSignature>, String> {
    let manifest: SignatureManifest =
        serde_json::from_slice(manifest).map_err(|why| format!("cannot parse the manifest: {why}"))?;
    let layers = manifest.layers.into_iter().filter(|layer| layer.media_type == PAYLOAD);
    let signatures: Vec<CosignSignature> = layers
        .filter_map(|layer| {
            let over_payload = BASE64_STANDARD.decode(layer.annotations.get(SIGNATURE)?).ok()?;
            let (payload, payload_bytes) = (layer.digest, layer.size);
            (payload_bytes <= PAYLOAD_BYTES).then_some(CosignSignature { payload, payload_bytes, over_payload })
        })
        .collect();
    match signatures.len() {
        0 => Err("found no signature made by `cosign sign --key`".to_owned()),
        1..=MAXIMUM_SIGNATURES => Ok(signatures),
        many => Err(format!("{many} signatures found, but at most {MAXIMUM_SIGNATURES} are supported")),
    }
}

/// Payload that a signature covers.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct CosignPayload {
    /// Digest of the image's manifest or index.
    pub digest: Digest,
    /// Id of the image; `None` if the signer has not set the annotation [`NAME`].
    pub name: Option<String>,
}

#[derive(Deserialize)]
struct SimpleSigning {
    critical: SimpleSigningCritical,
    optional: Option<BTreeMap<String, serde_json::Value>>,
}

#[derive(Deserialize)]
struct SimpleSigningCritical {
    image: SimpleSigningImage,
    #[serde(rename = "type")]
    kind: String,
}

#[derive(Deserialize)]
struct SimpleSigningImage {
    #[serde(rename = "docker-manifest-digest")]
    digest: String,
}

impl CosignPayload {
    /// Parses a payload.
    ///
    /// # Errors
    /// Returns an error if the payload is invalid, or its type is not that of an image signature.
    pub(crate) fn parse(text: &[u8]) -> Result<CosignPayload, String> {
        let signed: SimpleSigning =
            serde_json::from_slice(text).map_err(|why| format!("cannot parse the signed payload: {why}"))?;
        if signed.critical.kind != TYPE {
            return Err(format!(
                "the signed payload has the type `{payload_type:.60}`, which is not the type of an image signature",
                payload_type = signed.critical.kind
            ));
        }
        let digest = signed.critical.image.digest.parse()?;
        let name = signed.optional.unwrap_or_default().get(NAME).and_then(|name| name.as_str().map(str::to_owned));
        Ok(CosignPayload { digest, name: name.filter(|name| !name.is_empty()) })
    }
}
