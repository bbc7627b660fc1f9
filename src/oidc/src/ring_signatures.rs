//! Verification of the signatures of ID tokens with ring. `jsonwebtoken` calls cryptographic libraries through a
//! provider, which can be installed only once per process.

use jsonwebtoken::crypto::{CryptoProvider, JwtVerifier, KeyUtils};
use jsonwebtoken::errors::{Error, ErrorKind, Result};
use jsonwebtoken::signature::{self, Verifier};
use jsonwebtoken::{Algorithm, DecodingKey, DecodingKeyKind};
use ring::signature as verification;
use ring::signature::{RsaPublicKeyComponents, UnparsedPublicKey};

/// Provider without signers, because this program does not issue tokens.
static PROVIDER: CryptoProvider = CryptoProvider {
    signer_factory: |_, _| Err(Error::from(ErrorKind::UnsupportedAlgorithm)),
    verifier_factory: new_verifier,
    key_utils: KeyUtils::new_unimplemented(),
};

/// Installs ring as the library with which `jsonwebtoken` verifies signatures.
pub(crate) fn install_provider() {
    // An error is ignored: it means that an earlier call has already installed the provider.
    let _ = PROVIDER.install_default();
}

/// Verifier for one algorithm and key.
struct RingVerifier {
    algorithm: Algorithm,
    key: DecodingKey,
}

fn new_verifier(algorithm: &Algorithm, key: &DecodingKey) -> Result<Box<dyn JwtVerifier>> {
    let is_supported = matches!(algorithm, Algorithm::RS256 | Algorithm::PS256 | Algorithm::ES256 | Algorithm::EdDSA);
    match is_supported && algorithm.family() == key.family() {
        true => Ok(Box::new(RingVerifier { algorithm: *algorithm, key: key.clone() })),
        false => Err(ErrorKind::UnsupportedAlgorithm.into()),
    }
}

impl Verifier<Vec<u8>> for RingVerifier {
    fn verify(&self, message: &[u8], given: &Vec<u8>) -> std::result::Result<(), signature::Error> {
        let verified = match (self.algorithm, self.key.kind()) {
            (Algorithm::RS256 | Algorithm::PS256, DecodingKeyKind::RsaModulusExponent { n, e }) => {
                let parameters = match self.algorithm {
                    Algorithm::RS256 => &verification::RSA_PKCS1_2048_8192_SHA256,
                    _ => &verification::RSA_PSS_2048_8192_SHA256,
                };
                // Leading zeros of the modulus are removed: some providers encode them, and ring rejects them.
                let [n, e] = [n, e].map(|number| {
                    let zeros = number.iter().take_while(|byte| **byte == 0).count();
                    &number[zeros..]
                });
                RsaPublicKeyComponents { n, e }.verify(parameters, message, given)
            }
            (Algorithm::ES256, DecodingKeyKind::SecretOrDer(point)) => {
                UnparsedPublicKey::new(&verification::ECDSA_P256_SHA256_FIXED, point).verify(message, given)
            }
            (Algorithm::EdDSA, DecodingKeyKind::SecretOrDer(point)) => {
                UnparsedPublicKey::new(&verification::ED25519, point).verify(message, given)
            }
            _ => return Err(signature::Error::new()),
        };
        verified.map_err(|_| signature::Error::new())
    }
}

impl JwtVerifier for RingVerifier {
    fn algorithm(&self) -> Algorithm {
        self.algorithm
    }
}
