//! Tokens of machines, and tokens in files. A machine's token is valid for one boot, and the server stores only its
//! hash. The operator's token and the token for metrics are stored in files.

use common::encoding::encode_hex;
use common::error::{Context, Error, Phase, Result};
use linux::atomic_file::replace_file;
use sha2::{Digest, Sha256};
use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

/// File with the operator's token, in the server's directory.
pub const OPERATOR_FILE: &str = "operator.token";
/// File with the token that authorizes only requests for metrics, in the server's directory.
pub const METRICS_FILE: &str = "metrics.token";

/// SHA-256 of a token. The token itself has 256 random bits, so neither a salt nor a slow hash is needed.
pub type TokenHash = [u8; 32];

/// Returns random bytes from the operating system.
///
/// # Errors
/// Returns an error if the operating system provides no random bytes.
pub(crate) fn random_bytes<const N: usize>() -> Result<[u8; N]> {
    let mut bytes = [0; N];
    getrandom::fill(&mut bytes).context(Phase::Serve, || "get random bytes for a token")?;
    Ok(bytes)
}

/// Returns a new token and its hash.
///
/// # Errors
/// Returns an error if the operating system provides no random bytes.
pub fn generate_token() -> Result<(String, TokenHash)> {
    let token = encode_hex(random_bytes::<32>()?);
    let hash = hash_token(&token);
    Ok((token, hash))
}

/// Returns the hash of the operator's token.
///
/// # Errors
/// Fails as [`token_file_hash`] does.
pub fn operator_token_hash(dir: &Path) -> Result<TokenHash> {
    token_file_hash(dir, OPERATOR_FILE)
}

/// Returns the hash of the token in a file. Creates a missing file with a new token, readable only by the owner.
///
/// # Errors
/// Returns an error if the file cannot be created or read, or does not contain a token.
pub fn token_file_hash(dir: &Path, name: &str) -> Result<TokenHash> {
    let path = dir.join(name);
    let what = || format!("token file {}", path.display());
    if !path.try_exists().context(Phase::Serve, what)? {
        // The file is written atomically: an empty file would lock the operator out.
        let new = dir.join(format!("{name}.new"));
        let (token, _) = generate_token()?;
        let content = format!("{token}\n");
        replace_file(&path, &new, content.as_bytes(), Permissions::from_mode(0o600)).context(Phase::Serve, what)?;
    }
    let text = fs::read_to_string(&path).context(Phase::Serve, what)?;
    match text.trim() {
        "" => Err(Error::new(
            Phase::Serve,
            format!("{file} is empty: remove the file to create a new token", file = what()),
        )),
        token => Ok(hash_token(token)),
    }
}

pub fn hash_token(token: &str) -> TokenHash {
    Sha256::digest(token.as_bytes()).into()
}

/// Compares two hashes in constant time.
pub fn hashes_equal(one: &TokenHash, other: &TokenHash) -> bool {
    one.iter().zip(other).fold(0, |difference, (a, b)| difference | (a ^ b)) == 0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn generated_tokens_are_unique_and_match_their_hash() {
        let (one, one_hash) = generate_token().unwrap();
        let (other, other_hash) = generate_token().unwrap();
        assert_eq!(one.len(), 64);
        assert_ne!(one, other);
        assert!(hashes_equal(&one_hash, &hash_token(&one)));
        assert!(!hashes_equal(&one_hash, &other_hash));
        assert!(!hashes_equal(&one_hash, &hash_token(&one[..63])));
    }

    #[test]
    fn operator_token_is_generated_once_and_then_read() {
        use std::os::unix::fs::PermissionsExt;
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join(OPERATOR_FILE);
        let made = operator_token_hash(dir.path()).unwrap();
        let text = fs::read_to_string(&path).unwrap();
        assert_eq!(made, hash_token(text.trim()));
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        assert_eq!(operator_token_hash(dir.path()).unwrap(), made);
        fs::write(&path, "mine\n").unwrap();
        assert_eq!(operator_token_hash(dir.path()).unwrap(), hash_token("mine"));
        fs::write(&path, " \n").unwrap();
        assert!(
            operator_token_hash(dir.path())
                .unwrap_err()
                .to_string()
                .contains("operator.token is empty: remove the file")
        );
    }
}
