//! Keys with which the provider signs tokens.

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use ring::rand::SystemRandom;
use ring::signature::{
    ECDSA_P256_SHA256_FIXED_SIGNING, EcdsaKeyPair, Ed25519KeyPair, KeyPair, RSA_PKCS1_SHA256, RSA_PSS_SHA256,
    RsaEncoding, RsaKeyPair, RsaPublicKeyComponents,
};
use rustls::pki_types::PrivatePkcs8KeyDer;
use rustls::pki_types::pem::PemObject;
use serde_json::{Value, json};
use std::path::Path;
use std::sync::Arc;

/// Private key with its id and algorithm.
#[derive(Clone)]
pub struct SigningKey {
    pub id: String,
    pub algorithm: &'static str,
    pair: KeyMaterial,
}

#[derive(Clone)]
enum KeyMaterial {
    Rsa(Arc<RsaKeyPair>),
    Ecdsa(Arc<EcdsaKeyPair>),
    Ed25519(Arc<Ed25519KeyPair>),
}

impl SigningKey {
    /// Reads the RSA key `name` (`provider` or `foreign`) from `testdata/oidc`.
    pub fn rsa(id: &str, name: &str) -> SigningKey {
        let folder = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../../testdata/oidc"));
        let der = PrivatePkcs8KeyDer::from_pem_file(folder.join(format!("{name}.key"))).unwrap();
        let pair = RsaKeyPair::from_pkcs8(der.secret_pkcs8_der()).unwrap();
        SigningKey { id: id.to_owned(), algorithm: "RS256", pair: KeyMaterial::Rsa(Arc::new(pair)) }
    }

    /// Generates an ECDSA key on P-256.
    pub fn ecdsa(id: &str) -> SigningKey {
        let (random, algorithm) = (SystemRandom::new(), &ECDSA_P256_SHA256_FIXED_SIGNING);
        let der = EcdsaKeyPair::generate_pkcs8(algorithm, &random).unwrap();
        let pair = EcdsaKeyPair::from_pkcs8(algorithm, der.as_ref(), &random).unwrap();
        SigningKey { id: id.to_owned(), algorithm: "ES256", pair: KeyMaterial::Ecdsa(Arc::new(pair)) }
    }

    /// Generates an Ed25519 key.
    pub fn ed25519(id: &str) -> SigningKey {
        let der = Ed25519KeyPair::generate_pkcs8(&SystemRandom::new()).unwrap();
        let pair = Ed25519KeyPair::from_pkcs8(der.as_ref()).unwrap();
        SigningKey { id: id.to_owned(), algorithm: "EdDSA", pair: KeyMaterial::Ed25519(Arc::new(pair)) }
    }

    /// Returns the same key for another algorithm.
    pub fn with_algorithm(self, algorithm: &'static str) -> SigningKey {
        SigningKey { algorithm, ..self }
    }

    pub(super) fn sign(&self, message: &[u8]) -> Vec<u8> {
        let random = SystemRandom::new();
        match &self.pair {
            KeyMaterial::Rsa(pair) => {
                let padding: &dyn RsaEncoding =
                    if self.algorithm == "PS256" { &RSA_PSS_SHA256 } else { &RSA_PKCS1_SHA256 };
                let mut signature = vec![0; pair.public().modulus_len()];
                pair.sign(padding, &random, message, &mut signature).unwrap();
                signature
            }
            KeyMaterial::Ecdsa(pair) => pair.sign(&random, message).unwrap().as_ref().to_vec(),
            KeyMaterial::Ed25519(pair) => pair.sign(message).as_ref().to_vec(),
        }
    }

    /// Returns the public key as a JSON Web Key.
    pub fn public_key(&self) -> Value {
        let encode = |bytes: &[u8]| URL_SAFE_NO_PAD.encode(bytes);
        match &self.pair {
            KeyMaterial::Rsa(pair) => {
                let RsaPublicKeyComponents { n, e } = RsaPublicKeyComponents::<Vec<u8>>::from(pair.public());
                json!({"kty": "RSA", "kid": self.id, "use": "sig", "n": encode(&n), "e": encode(&e)})
            }
            KeyMaterial::Ecdsa(pair) => {
                let (x, y) = pair.public_key().as_ref()[1..].split_at(32);
                json!({"kty": "EC", "crv": "P-256", "kid": self.id, "alg": "ES256", "x": encode(x), "y": encode(y)})
            }
            KeyMaterial::Ed25519(pair) => {
                json!({"kty": "OKP", "crv": "Ed25519", "kid": self.id, "x": encode(pair.public_key().as_ref())})
            }
        }
    }
}
