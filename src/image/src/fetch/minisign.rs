//! Parses minisign's public keys and signatures, and verifies the signatures. <https://jedisct1.github.io/minisign/>

use base64::prelude::{BASE64_STANDARD, Engine};
use blake2::{Blake2b512, Digest};
use ring::signature::{ED25519, UnparsedPublicKey};
use std::fmt;
use std::str::FromStr;

/// Algorithm identifier of keys, and of signatures over the text itself.
const PLAIN: [u8; 2] = *b"Ed";
/// Algorithm identifier of signatures over the BLAKE2b hash of the text.
const PREHASHED: [u8; 2] = *b"ED";

const TRUSTED: &str = "trusted comment: ";

/// Id of a key, which minisign prints as 16 hexadecimal digits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MinisignKeyId([u8; 8]);

impl fmt::Display for MinisignKeyId {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        write!(f, "{:016X}", u64::from_le_bytes(self.0))
    }
}

/// Length of a secret key after base64 decoding, in bytes.
const SECRET_BYTES: usize = 158;

/// Public key, parsed from the base64 line of its `.pub` file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MinisignPublicKey {
    pub id: MinisignKeyId,
    ed25519: [u8; 32],
}

impl FromStr for MinisignPublicKey {
    type Err = String;

    fn from_str(text: &str) -> Result<MinisignPublicKey, String> {
        // The text is not printed completely: it may be a secret that was specified by mistake, and errors appear on
        // consoles and in logs.
        if BASE64_STANDARD.decode(text.trim()).is_ok_and(|bytes| bytes.len() == SECRET_BYTES) {
            return Err("the key is a secret key; specify the public key from the .pub file".to_owned());
        }
        let not_one = |why: &str| format!("`{text:.24}` is not a minisign public key: {why}");
        match decode_labeled::<42, 32>(text.trim()) {
            None => Err(not_one("the key must consist of 42 bytes, encoded in base64")),
            Some((PLAIN, id, ed25519)) => Ok(MinisignPublicKey { id, ed25519 }),
            Some(_) => Err(not_one("unsupported algorithm")),
        }
    }
}

/// Parsed `.minisig` file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MinisignSignature {
    pub key: MinisignKeyId,
    prehashed: bool,
    over_text: [u8; 64],
    /// Trusted comment, which the signature also covers. By default it contains the time of the signature and the name
    /// of the signed file.
    pub comment: String,
    over_comment: [u8; 64],
}

impl FromStr for MinisignSignature {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<MinisignSignature, &'static str> {
        let mut lines = text.lines();
        let mut next = || lines.next().ok_or("the file has fewer than four lines");
        next()?;
        let (kind, key, over_text) =
            decode_labeled::<74, 64>(next()?).ok_or("the second line must consist of 74 bytes, encoded in base64")?;
        let comment = next()?.strip_prefix(TRUSTED).ok_or("the third line must be a trusted comment")?.to_owned();
        let over_comment =
            decode_base64(next()?).ok_or("the fourth line must consist of 64 bytes, encoded in base64")?;
        let prehashed = match kind {
            PLAIN => false,
            PREHASHED => true,
            _ => return Err("unsupported algorithm"),
        };
        Ok(MinisignSignature { key, prehashed, over_text, comment, over_comment })
    }
}

impl MinisignSignature {
    /// Returns whether this key has signed this text and the trusted comment.
    pub(crate) fn verify(&self, key: &MinisignPublicKey, text: &[u8]) -> bool {
        let ed25519 = UnparsedPublicKey::new(&ED25519, &key.ed25519);
        let text_fits = match self.prehashed {
            true => ed25519.verify(&Blake2b512::digest(text), &self.over_text),
            false => ed25519.verify(text, &self.over_text),
        };
        let with_comment = [&self.over_text[..], self.comment.as_bytes()].concat();
        text_fits.is_ok() && ed25519.verify(&with_comment, &self.over_comment).is_ok()
    }
}

/// Decodes a base64 string that encodes exactly `ALL` bytes, and splits the bytes into the algorithm, the key id and
/// the remaining `REST` bytes. Returns `None` if the text is invalid.
fn decode_labeled<const ALL: usize, const REST: usize>(base64: &str) -> Option<([u8; 2], MinisignKeyId, [u8; REST])> {
    let bytes: [u8; ALL] = decode_base64(base64)?;
    let (kind, bytes) = bytes.split_first_chunk::<2>()?;
    let (id, rest) = bytes.split_first_chunk::<8>()?;
    Some((*kind, MinisignKeyId(*id), rest.try_into().ok()?))
}

fn decode_base64<const N: usize>(base64: &str) -> Option<[u8; N]> {
    BASE64_STANDARD.decode(base64).ok()?.try_into().ok()
}
