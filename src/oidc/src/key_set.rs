//! Keys of the identity provider, from its JSON Web Key Set.

use jsonwebtoken::jwk::{AlgorithmParameters, EllipticCurve, Jwk, KeyOperations, PublicKeyUse};
use jsonwebtoken::{Algorithm, DecodingKey};
use serde::Deserialize;
use serde_json::Value;

/// Maximum number of keys in a set.
const MAXIMUM_KEYS: usize = 100;

/// Public keys that can verify ID tokens.
#[derive(Debug, Clone, Default)]
pub struct ProviderKeys(Vec<ProviderKey>);

#[derive(Debug, Clone)]
struct ProviderKey {
    id: Option<String>,
    algorithms: Vec<Algorithm>,
    key: DecodingKey,
}

#[derive(Deserialize)]
struct KeyDocument {
    keys: Vec<Value>,
}

impl ProviderKeys {
    /// Parses a key set. Ignores keys that this server does not support, and keys that are not for signatures.
    ///
    /// # Errors
    /// Returns a message if the document is not a key set, or contains too many keys.
    pub fn parse_document(json: &[u8]) -> Result<ProviderKeys, String> {
        let document: KeyDocument = serde_json::from_slice(json).map_err(|error| error.to_string())?;
        if document.keys.len() > MAXIMUM_KEYS {
            return Err(format!("{} keys found; at most {MAXIMUM_KEYS} are supported", document.keys.len()));
        }
        let keys = document.keys.into_iter().filter_map(|key| serde_json::from_value::<Jwk>(key).ok());
        Ok(ProviderKeys(keys.filter_map(|key| read_key(&key)).collect()))
    }

    /// Returns the key for a token with this algorithm and key id. If the token has no key id, returns a key only if it
    /// is the only one for this algorithm.
    pub(crate) fn find_key(&self, algorithm: Algorithm, id: Option<&str>) -> Option<&DecodingKey> {
        let mut suitable = self.0.iter().filter(|key| key.algorithms.contains(&algorithm));
        match id {
            Some(id) => suitable.find(|key| key.id.as_deref() == Some(id)).map(|key| &key.key),
            None => suitable.next().filter(|_| suitable.next().is_none()).map(|key| &key.key),
        }
    }
}

fn read_key(key: &Jwk) -> Option<ProviderKey> {
    let serves_signatures = key.common.public_key_use.as_ref().is_none_or(|named| *named == PublicKeyUse::Signature)
        && key.common.key_operations.as_ref().is_none_or(|all| all.contains(&KeyOperations::Verify));
    // The key's type determines its algorithms, so that a public key is never used as the secret of HS256.
    let of_type: &[Algorithm] = match &key.algorithm {
        AlgorithmParameters::RSA(_) => &[Algorithm::RS256, Algorithm::PS256],
        AlgorithmParameters::EllipticCurve(named) if named.curve == EllipticCurve::P256 => &[Algorithm::ES256],
        AlgorithmParameters::OctetKeyPair(named) if named.curve == EllipticCurve::Ed25519 => &[Algorithm::EdDSA],
        _ => &[],
    };
    let algorithms: Vec<Algorithm> = match key.common.key_algorithm {
        Some(named) => {
            let named = Algorithm::try_from(named).ok()?;
            of_type.iter().copied().filter(|algorithm| *algorithm == named).collect()
        }
        None => of_type.to_vec(),
    };
    if !serves_signatures || algorithms.is_empty() {
        return None;
    }
    Some(ProviderKey { id: key.common.key_id.clone(), algorithms, key: DecodingKey::from_jwk(key).ok()? })
}
