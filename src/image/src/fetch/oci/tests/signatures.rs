//! Signatures made by cosign itself (`testdata/cosign`), and images without a valid signature.

use super::*;
use crate::{MinimumVersions, SignatureKey, SignatureKeys};
use base64::prelude::{BASE64_STANDARD, Engine};
use ring::rand::SystemRandom;
use ring::signature::{ECDSA_P256_SHA256_ASN1_SIGNING, EcdsaKeyPair, Ed25519KeyPair, KeyPair};
use std::path::Path;

const DIGEST: &str = "sha256:e50956073afe95371755b3f3091d1ba8a152f9a156bf513184b84903ac82047d";
const NAME: &str = "debian-12.0.20261101";
const ONE: &str = include_str!("../../../../../../testdata/cosign/one.pub");
const TWO: &str = include_str!("../../../../../../testdata/cosign/two.pub");
const MINISIGN: &str = "RWSrW5G2df4ibM6Z/TrFXWSUPCeEn03zajmuZvLkO989EEiX+0k//xd8";

fn file(name: &str) -> Vec<u8> {
    fs::read(Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../..")).join("testdata/cosign").join(name)).unwrap()
}

fn tag() -> String {
    format!("{}.sig", DIGEST.replace(':', "-"))
}

/// Registry with the unsigned image.
fn unsigned() -> Contents {
    let mut contents = Contents::default();
    contents.blob(&file("layer.tar.zst"));
    let manifest = file("manifest.json");
    assert_eq!(sha256(&manifest), DIGEST);
    contents.0.insert("manifests/12".to_owned(), manifest.clone());
    contents.0.insert(format!("manifests/{DIGEST}"), manifest);
    contents
}

/// Registry with the image and a signature, as stored by cosign.
fn signed(how: &str) -> Contents {
    let mut contents = unsigned();
    contents.0.insert(format!("manifests/{}", tag()), file(&format!("{how}.sig.json")));
    contents.blob(&file(&format!("{how}.payload.json")));
    contents
}

fn keys(texts: &[&str]) -> SignatureKeys {
    SignatureKeys(texts.iter().map(|text| text.parse().unwrap()).collect())
}

fn minimum(ids: &[&str]) -> MinimumVersions {
    let ids: Vec<String> = ids.iter().map(|id| (*id).to_owned()).collect();
    MinimumVersions::read(&ids, Path::new("/no/such/file"), &keys(&[ONE])).unwrap()
}

fn reach_signed(contents: Contents, source: ImageSource) -> Result<ResolvedImage> {
    let server = contents.serve();
    resolve_image(&http::new_client()?, &ImageSource { url: url(&server, ":12"), ..source }, &pace())
}

fn with_keys(keys: SignatureKeys) -> ImageSource {
    ImageSource { keys, ..ImageSource::default() }
}

#[test]
fn images_signed_with_cosign_are_trusted_and_installed() {
    for (how, named) in [("named", Some(NAME)), ("unnamed", None)] {
        for trusted in [keys(&[ONE]), keys(&[MINISIGN, TWO, ONE])] {
            let server = signed(how).serve();
            let source = ImageSource { url: url(&server, ":12"), keys: trusted, ..ImageSource::default() };
            let reached = resolve_image(&http::new_client().unwrap(), &source, &pace()).unwrap();
            assert_eq!(reached.signed_by.as_deref(), Some("cosign:a785e5fffc75deed"));
            assert_eq!((reached.signed_as.as_deref(), reached.digest.to_string().as_str()), (named, DIGEST));
            let root = tempfile::tempdir().unwrap();
            let incoming = IncomingImage::start_at_pace(reached, PayloadKind::Tar, pace()).unwrap();
            incoming.burn_to_root(root.path(), &Default::default(), &|_| ()).unwrap();
            assert_eq!(fs::read_to_string(root.path().join("etc/hostname")).unwrap(), "server");
        }
    }
    // Without a key, no signature is requested.
    let server = unsigned().serve();
    let reached = reach_at(url(&server, ":12"), None).unwrap();
    assert_eq!((reached.signed_by, reached.signed_as), (None, None));
    assert!(server.requests().iter().all(|request| !request.path.ends_with(".sig")));
}

#[test]
fn signature_applies_to_the_named_image() {
    for (how, id, oldest, says) in [
        ("named", NAME, &[][..], ""),
        ("named", "debian-12", &["debian-12.0.20261101"], ""),
        ("named", "debian-12.0.20261102", &[], "signed as debian-12.0.20261101, but debian-12.0.20261102 is requested"),
        ("named", NAME, &["debian-12.0.20261102"], "is older than debian-12.0.20261102"),
        ("unnamed", NAME, &[], ""),
        ("unnamed", NAME, &["debian-12"], "the signature does not contain an image id"),
    ] {
        let source = ImageSource { id: Some(id.to_owned()), minimum: minimum(oldest), ..with_keys(keys(&[ONE])) };
        match reach_signed(signed(how), source) {
            Ok(_) => assert_eq!(says, "", "{how} {id} {oldest:?}"),
            Err(error) => {
                assert!(!says.is_empty() && error.is_refusal() && error.to_string().contains(says), "{error}")
            }
        }
    }
}

/// Signer that creates signatures like cosign.
enum Signer {
    P256(EcdsaKeyPair),
    Ed(Ed25519KeyPair),
}

impl Signer {
    fn p256() -> Signer {
        let (random, kind) = (SystemRandom::new(), &ECDSA_P256_SHA256_ASN1_SIGNING);
        let document = EcdsaKeyPair::generate_pkcs8(kind, &random).unwrap();
        Signer::P256(EcdsaKeyPair::from_pkcs8(kind, document.as_ref(), &random).unwrap())
    }

    fn public(&self) -> SignatureKey {
        let (before, point) = match self {
            Signer::P256(pair) => ("3059301306072a8648ce3d020106082a8648ce3d030107034200", pair.public_key().as_ref()),
            Signer::Ed(pair) => ("302a300506032b6570032100", pair.public_key().as_ref()),
        };
        let der = [&common::encoding::decode_hex(before).unwrap()[..], point].concat();
        BASE64_STANDARD.encode(der).parse().unwrap()
    }

    fn sign(&self, payload: &[u8]) -> String {
        BASE64_STANDARD.encode(match self {
            Signer::P256(pair) => pair.sign(&SystemRandom::new(), payload).unwrap().as_ref().to_vec(),
            Signer::Ed(pair) => pair.sign(payload).as_ref().to_vec(),
        })
    }
}

fn payload(digest: &str, kind: &str) -> Vec<u8> {
    let critical =
        json!({"identity": {"docker-reference": "r"}, "image": {"docker-manifest-digest": digest}, "type": kind});
    json!({"critical": critical, "optional": null}).to_string().into_bytes()
}

const KIND: &str = "cosign container image signature";
const MEDIA: &str = "application/vnd.dev.cosign.simplesigning.v1+json";

/// Registry with the image and these payloads and signatures.
fn beside(signatures: &[(Vec<u8>, String)]) -> Contents {
    beside_of(unsigned(), DIGEST, signatures)
}

fn beside_of(mut contents: Contents, digest: &str, signatures: &[(Vec<u8>, String)]) -> Contents {
    let layers: Vec<Value> = signatures
        .iter()
        .map(|(payload, signature)| {
            let mut layer = contents.layer(MEDIA, payload);
            layer["annotations"] = json!({"dev.cosignproject.cosign/signature": signature});
            layer
        })
        .collect();
    contents.manifest(&format!("{}.sig", digest.replace(':', "-")), &json!({"mediaType": MANIFEST, "layers": layers}));
    contents
}

#[test]
fn ed25519_is_supported_and_one_valid_signature_suffices() {
    let (ours, other) = (Signer::Ed(Ed25519KeyPair::from_seed_unchecked(&[7; 32]).unwrap()), Signer::p256());
    let good = payload(DIGEST, KIND);
    let contents = beside(&[(good.clone(), other.sign(&good)), (good.clone(), ours.sign(&good))]);
    let reached = reach_signed(contents, with_keys(SignatureKeys(vec![ours.public()]))).unwrap();
    assert_eq!(reached.signed_by, Some(ours.public().to_string()));
}

#[test]
fn refuses_invalid_signatures_before_requesting_layers() {
    let (ours, other) = (Signer::p256(), Signer::p256());
    let (good, elsewhere) = (payload(DIGEST, KIND), payload(&sha256(b"another image"), KIND));
    let by = |payload: &[u8], signature: String| beside(&[(payload.to_vec(), signature)]);
    let id = ours.public().to_string();
    let mut forged = by(&good, ours.sign(&good));
    let blob = format!("blobs/{}", sha256(&good));
    forged.0.insert(blob.clone(), elsewhere.clone());
    let mut gone = by(&good, ours.sign(&good));
    gone.0.remove(&blob);
    let mut broken = unsigned();
    broken.0.insert(format!("manifests/{}", tag()), b"{".to_vec());
    let mut empty = unsigned();
    empty.manifest(&tag(), &json!({"layers": []}));
    let mut large = unsigned();
    let layer = json!({"mediaType": MEDIA, "digest": sha256(b""), "size": 1 << 20, "annotations": {"dev.cosignproject.cosign/signature": ""}});
    large.manifest(&tag(), &json!({"layers": [layer]}));
    let many = vec![(good.clone(), ours.sign(&good)); 17];
    let cases = [
        (unsigned(), format!("is not signed: its repository does not contain {}", tag()), true),
        (unsigned(), "cosign sign --key cosign.key 127.0.0.1:".to_owned(), true),
        (
            by(&good, other.sign(&good)),
            format!("signatures found: 1, but none of them was made by a trusted key; trusted keys: {id}"),
            true,
        ),
        (signed("named"), "none of them was made by a trusted key".to_owned(), true),
        (by(&good, ours.sign(&elsewhere)), "none of them was made by a trusted key".to_owned(), true),
        (
            by(&elsewhere, ours.sign(&elsewhere)),
            "the signed payload is for another image, with the digest sha256:".to_owned(),
            true,
        ),
        (by(&elsewhere, ours.sign(&elsewhere)), "the signed payload is for another image".to_owned(), true),
        (
            by(&payload(DIGEST, "attestation"), ours.sign(&payload(DIGEST, "attestation"))),
            "the type `attestation`".to_owned(),
            true,
        ),
        (by(b"{}", ours.sign(b"{}")), "cannot parse the signed payload".to_owned(), true),
        (by(&good, "?".to_owned()), "no signature made by `cosign sign --key`".to_owned(), true),
        (empty, "no signature made by `cosign sign --key`".to_owned(), true),
        (large, "no signature made by `cosign sign --key`".to_owned(), true),
        (broken, "cannot parse the manifest".to_owned(), true),
        (beside(&many), "17 signatures found, but at most 16".to_owned(), true),
        (forged, "has the digest sha256:".to_owned(), false),
        (gone, "cannot be fetched: the registry responded with 404".to_owned(), false),
    ];
    for (contents, says, is_refusal) in cases {
        let server = contents.serve();
        let source = ImageSource { url: url(&server, ":12"), ..with_keys(SignatureKeys(vec![ours.public()])) };
        let error = resolve_image(&http::new_client().unwrap(), &source, &pace()).unwrap_err();
        assert!(error.to_string().contains(&says) && error.is_refusal() == is_refusal, "{says}: {error}");
        let layer = format!("/blobs/{}", sha256(&file("layer.tar.zst")));
        assert!(server.requests().iter().all(|request| !request.path.ends_with(&layer)), "{says}");
    }
}

#[test]
fn index_signature_covers_the_image_for_this_machine() {
    let ours = Signer::p256();
    let architecture = if cfg!(target_arch = "x86_64") { "amd64" } else { "arm64" };
    let mut contents = unsigned();
    let platform = json!({"os": "linux", "architecture": architecture});
    let manifests =
        json!([{"mediaType": MANIFEST, "digest": DIGEST, "size": file("manifest.json").len(), "platform": platform}]);
    let index = contents.manifest("12", &json!({"mediaType": INDEX, "manifests": manifests}));
    let index = index["digest"].as_str().unwrap().to_owned();
    let source = || with_keys(SignatureKeys(vec![ours.public()]));
    let error = reach_signed(contents.clone(), source()).unwrap_err().to_string();
    assert!(error.contains("is not signed"), "{error}");
    for digest in [index.as_str(), DIGEST] {
        let text = payload(digest, KIND);
        let contents = beside_of(contents.clone(), digest, &[(text.clone(), ours.sign(&text))]);
        let reached = reach_signed(contents, source()).unwrap();
        assert_eq!(reached.signed_by, Some(ours.public().to_string()));
    }
    // The signature is stored under the tag of the image, but covers another image.
    let text = payload(&sha256(b"x"), KIND);
    let contents = beside_of(contents, &index, &[(text.clone(), ours.sign(&text))]);
    assert!(
        reach_signed(contents, source()).unwrap_err().to_string().contains("the signed payload is for another image")
    );
}
