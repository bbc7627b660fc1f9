//! cosign's public keys and signatures, of key pairs: their texts, and whether one is for an image.
//! <https://github.com/sigstore/cosign/blob/main/specs/SIGNATURE_SPEC.md>

use crate::image::flow::Digest;
use base64::prelude::{BASE64_STANDARD, Engine};
use ring::signature::{ECDSA_P256_SHA256_ASN1, ED25519, UnparsedPublicKey, VerificationAlgorithm};
use serde::Deserialize;
use sha2::{Digest as _, Sha256};
use std::collections::BTreeMap;

/// A SubjectPublicKeyInfo (RFC 5480) before the point, which is not compressed.
const P256: &[u8] =
    b"\x30\x59\x30\x13\x06\x07\x2a\x86\x48\xce\x3d\x02\x01\x06\x08\x2a\x86\x48\xce\x3d\x03\x01\x07\x03\x42\x00";
/// The same of Ed25519 (RFC 8410).
const ED: &[u8] = b"\x30\x2a\x30\x05\x06\x03\x2b\x65\x70\x03\x21\x00";

const PEM: &str = "PUBLIC KEY";

const PAYLOAD: &str = "application/vnd.dev.cosign.simplesigning.v1+json";
const SIGNATURE: &str = "dev.cosignproject.cosign/signature";
const TYPE: &str = "cosign container image signature";

/// In what is signed, before the image's id: `cosign sign -a image=OS-VERSION`.
const NAME: &str = "image";

/// Nobody signs an image more often, and each costs a request.
const MOST_SIGNATURES: usize = 16;
/// With any number of annotations.
pub const PAYLOAD_BYTES: u64 = 64 << 10;

/// Of ECDSA on P-256, which `cosign generate-key-pair` makes, or of Ed25519.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PublicKey {
    /// The beginning of the SHA-256 of the key as DER.
    pub id: String,
    is_p256: bool,
    point: Vec<u8>,
}

/// What stands between the first and the last line; `None` where the text is no PEM.
///
/// # Errors
/// It is one of something else.
pub fn body_of_pem(text: &str) -> Result<Option<String>, String> {
    let Some(rest) = text.trim().strip_prefix("-----BEGIN ") else { return Ok(None) };
    let (label, rest) = rest.split_once("-----").unwrap_or((rest, ""));
    // What is given by mistake may be a secret: it goes to consoles and logs.
    if label.contains("PRIVATE") {
        return Err("this is a secret key, and the public one is wanted, which lies in cosign.pub".to_owned());
    }
    if label != PEM {
        return Err(format!("it is a PEM file, and not of a public key: {label:.40}"));
    }
    let (body, after) = rest.split_once("-----END PUBLIC KEY-----").ok_or("it does not end as a PEM file does")?;
    match after.trim().is_empty() {
        true => Ok(Some(body.split_whitespace().collect())),
        false => Err("it does not have exactly one key".to_owned()),
    }
}

/// minisign's keys begin otherwise.
pub fn is_base64_of_one(text: &str) -> bool {
    BASE64_STANDARD.decode(text.trim()).is_ok_and(|der| der.first() == Some(&P256[0]))
}

impl PublicKey {
    /// # Errors
    /// It is not, or of another kind.
    pub fn of_base64(text: &str) -> Result<PublicKey, String> {
        let der = BASE64_STANDARD.decode(text.trim()).map_err(|_| "it is not base64 between its lines".to_owned())?;
        let hash = Sha256::digest(&der);
        let id = format!("cosign:{}", hash[..8].iter().map(|byte| format!("{byte:02x}")).collect::<String>());
        match (der.strip_prefix(P256), der.strip_prefix(ED)) {
            (Some(point), _) if point.len() == 65 && point[0] == 4 => {
                Ok(PublicKey { id, is_p256: true, point: point.to_owned() })
            }
            (_, Some(point)) if point.len() == 32 => Ok(PublicKey { id, is_p256: false, point: point.to_owned() }),
            _ => Err("the key is neither of ECDSA on P-256 nor of Ed25519".to_owned()),
        }
    }

    /// Whether this key has signed this text.
    pub fn fits(&self, text: &[u8], signature: &[u8]) -> bool {
        let algorithm: &dyn VerificationAlgorithm = if self.is_p256 { &ECDSA_P256_SHA256_ASN1 } else { &ED25519 };
        UnparsedPublicKey::new(algorithm, &self.point).verify(text, signature).is_ok()
    }
}

/// One signature, and where what it is over lies.
#[derive(Debug, PartialEq, Eq)]
pub struct Signature {
    pub payload: String,
    pub payload_bytes: u64,
    pub over_payload: Vec<u8>,
}

#[derive(Deserialize)]
struct Manifest {
    #[serde(default)]
    layers: Vec<Layer>,
}

#[derive(Deserialize)]
struct Layer {
    #[serde(rename = "mediaType", default)]
    media_type: String,
    digest: String,
    size: u64,
    #[serde(default)]
    annotations: BTreeMap<String, String>,
}

/// Where the signatures of an image lie, beside it in its repository.
pub fn tag_of(digest: &Digest) -> String {
    format!("{}.sig", digest.to_string().replace(':', "-"))
}

/// The signatures in the manifest with that tag.
///
/// # Errors
/// There is none, or it is no such manifest.
pub fn signatures(manifest: &[u8]) -> Result<Vec<Signature>, String> {
    let manifest: Manifest =
        serde_json::from_slice(manifest).map_err(|why| format!("its manifest cannot be read: {why}"))?;
    let layers = manifest.layers.into_iter().filter(|layer| layer.media_type == PAYLOAD);
    let signatures: Vec<Signature> = layers
        .filter_map(|layer| {
            let over_payload = BASE64_STANDARD.decode(layer.annotations.get(SIGNATURE)?).ok()?;
            let (payload, payload_bytes) = (layer.digest, layer.size);
            (payload_bytes <= PAYLOAD_BYTES).then_some(Signature { payload, payload_bytes, over_payload })
        })
        .collect();
    match signatures.len() {
        0 => Err("it has no signature as `cosign sign --key` makes them".to_owned()),
        1..=MOST_SIGNATURES => Ok(signatures),
        many => Err(format!("it has {many} signatures, more than {MOST_SIGNATURES} are not looked at")),
    }
}

/// What is signed.
#[derive(Debug, PartialEq, Eq)]
pub struct Payload {
    /// Of the image's manifest or index.
    pub digest: Digest,
    /// Id of the image, where the signer has named it.
    pub name: Option<String>,
}

#[derive(Deserialize)]
struct Signed {
    critical: Critical,
    optional: Option<BTreeMap<String, serde_json::Value>>,
}

#[derive(Deserialize)]
struct Critical {
    image: SignedImage,
    #[serde(rename = "type")]
    kind: String,
}

#[derive(Deserialize)]
struct SignedImage {
    #[serde(rename = "docker-manifest-digest")]
    digest: String,
}

impl Payload {
    /// # Errors
    /// It is about something else than an image.
    pub fn parse(text: &[u8]) -> Result<Payload, String> {
        let signed: Signed =
            serde_json::from_slice(text).map_err(|why| format!("what is signed cannot be read: {why}"))?;
        if signed.critical.kind != TYPE {
            return Err(format!("what is signed is no image but `{:.60}`", signed.critical.kind));
        }
        let digest = signed.critical.image.digest.parse()?;
        let name = signed.optional.unwrap_or_default().get(NAME).and_then(|name| name.as_str().map(str::to_owned));
        Ok(Payload { digest, name: name.filter(|name| !name.is_empty()) })
    }
}
