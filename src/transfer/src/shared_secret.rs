//! Secret that sender and receiver share, and signatures that are made with this secret in Ganeti's format: HMAC-SHA1
//! of a salt and a message.

use common::encoding::{decode_hex, encode_hex};
use common::error::{Error, Phase, Result};
use ring::hmac;
use ring::rand::{SecureRandom, SystemRandom};
use std::fmt;
use std::str::FromStr;

/// Number of random bytes in a secret, as in Ganeti.
const SECRET_BYTES: usize = 20;

/// Number of random bytes in a salt, as in Ganeti.
const SALT_BYTES: usize = 8;

/// Secret that sender and receiver share. Its `Debug` output is redacted.
#[derive(Clone)]
pub(crate) struct SharedSecret(hmac::Key);

impl fmt::Debug for SharedSecret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(…)")
    }
}

impl SharedSecret {
    /// Parses the content of Ganeti's file `cluster-domain-secret`, a single line.
    ///
    /// # Errors
    /// Fails if the text is empty or has several lines.
    pub(crate) fn parse_secret(text: &str) -> Result<SharedSecret, String> {
        let mut lines = text.lines().map(str::trim).filter(|line| !line.is_empty());
        match (lines.next(), lines.next()) {
            (Some(secret), None) => {
                Ok(SharedSecret(hmac::Key::new(hmac::HMAC_SHA1_FOR_LEGACY_USE_ONLY, secret.as_bytes())))
            }
            _ => Err("the secret must be exactly one line".to_owned()),
        }
    }

    /// Signs a message. The salt must be alphanumeric.
    pub(crate) fn sign_text(&self, salt: &str, text: &str) -> HmacSignature {
        let digest = hmac::sign(&self.0, &[salt.as_bytes(), text.as_bytes()].concat());
        HmacSignature { salt: salt.to_owned(), digest: digest.as_ref().to_vec() }
    }

    /// Returns whether the signature was made with this secret, for this text.
    pub(crate) fn verifies(&self, signature: &HmacSignature, text: &str) -> bool {
        let signed = [signature.salt.as_bytes(), text.as_bytes()].concat();
        hmac::verify(&self.0, &signed, &signature.digest).is_ok()
    }
}

/// Signature with its salt. Its text form is `SALT/HEX`, as in Ganeti's certificates.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HmacSignature {
    pub(crate) salt: String,
    digest: Vec<u8>,
}

impl FromStr for HmacSignature {
    type Err = String;

    fn from_str(text: &str) -> Result<HmacSignature, String> {
        let expected = "the signature must consist of an alphanumeric salt, a slash and hexadecimal digits";
        let (salt, hex) = text.split_once('/').ok_or(expected)?;
        let is_salt = !salt.is_empty() && salt.bytes().all(|byte| byte.is_ascii_alphanumeric());
        let digest = decode_hex(hex).filter(|digest| is_salt && !digest.is_empty()).ok_or(expected)?;
        Ok(HmacSignature { salt: salt.to_owned(), digest })
    }
}

impl fmt::Display for HmacSignature {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.salt, encode_hex(&self.digest))
    }
}

/// Returns a new secret, in hexadecimal digits.
///
/// # Errors
/// Fails if no random numbers are available.
pub(crate) fn generate_secret() -> Result<String> {
    generate_random_hex::<SECRET_BYTES>()
}

/// Returns a new salt, in hexadecimal digits.
///
/// # Errors
/// Fails if no random numbers are available.
pub(crate) fn generate_salt() -> Result<String> {
    generate_random_hex::<SALT_BYTES>()
}

fn generate_random_hex<const BYTES: usize>() -> Result<String> {
    let mut bytes = [0; BYTES];
    let filled = SystemRandom::new().fill(&mut bytes);
    filled.map_err(|_| Error::new(Phase::Move, "the kernel does not provide random numbers"))?;
    Ok(encode_hex(bytes))
}
