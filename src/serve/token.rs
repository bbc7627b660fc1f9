//! The token of one machine and one boot: made here, kept only as a hash.

use crate::error::{Context, Phase, Result};
use sha2::{Digest, Sha256};

/// SHA-256 of a token; the token itself has 256 random bits, so no salt and no slow hash is needed.
pub type Hash = [u8; 32];

/// A fresh token for a kernel command line, and its hash for the database.
///
/// # Errors
/// The system gives no random bytes.
pub fn fresh() -> Result<(String, Hash)> {
    let mut bytes = [0; 32];
    getrandom::fill(&mut bytes).context(Phase::Serve, || "get random bytes for a machine's token")?;
    let token: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
    let hash = hash(&token);
    Ok((token, hash))
}

pub fn hash(token: &str) -> Hash {
    Sha256::digest(token.as_bytes()).into()
}

/// Are they the same, in a time that does not depend on where they differ?
pub fn same(one: &Hash, other: &Hash) -> bool {
    one.iter().zip(other).fold(0, |difference, (a, b)| difference | (a ^ b)) == 0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_are_new_and_known_by_their_hash() {
        let (one, one_hash) = fresh().unwrap();
        let (other, other_hash) = fresh().unwrap();
        assert_eq!(one.len(), 64);
        assert_ne!(one, other);
        assert!(same(&one_hash, &hash(&one)));
        assert!(!same(&one_hash, &other_hash));
        assert!(!same(&one_hash, &hash(&one[..63])));
    }
}
