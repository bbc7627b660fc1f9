//! Digests of images, and a reader that computes the digest of a stream while it is read.

use common::encoding::encode_hex;
use md5::Md5;
use serde::{Deserialize, Serialize};
use sha2::digest::DynDigest;
use sha2::{Digest as _, Sha256, Sha512};
use std::fmt;
use std::io::{self, Read};
use std::str::FromStr;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DigestKind {
    Sha256,
    Sha512,
    /// MD5, which detects corruption but not tampering. Used only if an image does not have a better digest.
    Md5,
}

const DIGEST_ALGORITHMS: [(DigestKind, &str, usize); 3] =
    [(DigestKind::Sha256, "sha256", 64), (DigestKind::Sha512, "sha512", 128), (DigestKind::Md5, "md5", 32)];

/// Digest in the form `sha256:HEX`. Upper-case hexadecimal digits are converted to lower case.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Digest {
    pub kind: DigestKind,
    hex: String,
}

impl FromStr for Digest {
    type Err = String;

    fn from_str(text: &str) -> Result<Digest, String> {
        let text = text.trim();
        let (name, hex) =
            text.split_once(':').ok_or_else(|| format!("`{text}` is not a digest; write it as sha256:HEX"))?;
        let known = DIGEST_ALGORITHMS.iter().find(|(_, known, _)| known.eq_ignore_ascii_case(name));
        let &(kind, _, digits) = known.ok_or_else(|| format!("`{name}` is not a supported digest; use sha256"))?;
        if !hex.bytes().all(|byte| byte.is_ascii_hexdigit()) {
            return Err(format!("the digest `{text}` contains characters that are not hexadecimal digits"));
        }
        if hex.len() != digits {
            return Err(format!(
                "the digest `{text}` has {count} digits, but a {name} digest has {digits}",
                count = hex.len()
            ));
        }
        Ok(Digest { kind, hex: hex.to_ascii_lowercase() })
    }
}

impl TryFrom<String> for Digest {
    type Error = String;

    fn try_from(text: String) -> Result<Digest, String> {
        text.parse()
    }
}

impl From<Digest> for String {
    fn from(digest: Digest) -> String {
        digest.to_string()
    }
}

impl fmt::Display for Digest {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        let name = DIGEST_ALGORITHMS.iter().find(|(kind, _, _)| *kind == self.kind).map_or("", |(_, name, _)| name);
        write!(f, "{name}:{}", self.hex)
    }
}

impl Digest {
    /// Returns the SHA-256 digest of all data added to a hasher.
    pub(crate) fn from_sha256(of: Sha256) -> Digest {
        Digest { kind: DigestKind::Sha256, hex: encode_hex(of.finalize()) }
    }

    #[cfg(test)]
    pub(crate) fn of_bytes(bytes: &[u8]) -> Digest {
        Digest::from_sha256(Sha256::new_with_prefix(bytes))
    }
}

/// Default digest for tests that create a value with a digest but do not use it.
#[cfg(test)]
impl Default for Digest {
    fn default() -> Digest {
        Digest::of_bytes(b"")
    }
}

/// Reader that computes the digest of the bytes that it passes on.
pub struct DigestReader<R> {
    inner: R,
    kind: DigestKind,
    state: Box<dyn DynDigest>,
}

impl<R: Read> DigestReader<R> {
    pub fn new(inner: R, kind: DigestKind) -> Self {
        let state: Box<dyn DynDigest> = match kind {
            DigestKind::Sha256 => Box::new(Sha256::default()),
            DigestKind::Sha512 => Box::new(Sha512::default()),
            DigestKind::Md5 => Box::new(Md5::default()),
        };
        DigestReader { inner, kind, state }
    }

    /// Returns the digest of all bytes read.
    pub(crate) fn finish(self) -> Digest {
        Digest { kind: self.kind, hex: encode_hex(self.state.finalize()) }
    }
}

impl<R: Read> Read for DigestReader<R> {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        let got = self.inner.read(buf)?;
        self.state.update(&buf[..got]);
        Ok(got)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn digest_of(kind: DigestKind, text: &str) -> String {
        let mut digesting = DigestReader::new(text.as_bytes(), kind);
        io::copy(&mut digesting, &mut io::sink()).unwrap();
        digesting.finish().to_string()
    }

    #[test]
    fn digests_match_known_values() {
        assert_eq!(digest_of(DigestKind::Md5, "abc"), "md5:900150983cd24fb0d6963f7d28e17f72");
        assert_eq!(
            digest_of(DigestKind::Sha256, "abc"),
            "sha256:ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
        );
        assert!(digest_of(DigestKind::Sha512, "abc").starts_with("sha512:ddaf35a193617abacc417349ae204131"));
    }

    #[test]
    fn digest_needs_a_supported_name_and_correct_length() {
        let upper = format!("sha256:{}", "AB".repeat(32));
        assert_eq!(upper.parse::<Digest>().unwrap().to_string(), format!("sha256:{}", "ab".repeat(32)));
        for (bad, says) in [
            ("", "is not a digest"),
            ("0123", "is not a digest"),
            ("sha1:0123", "not a supported digest"),
            ("sha256:0123", "has 4 digits, but a sha256 digest has 64"),
            ("sha512:", "has 0 digits"),
            (&format!("sha256:{}", "zz".repeat(32)), "not hexadecimal digits"),
            (&format!("sha256:{} ", "ä".repeat(32)), "not hexadecimal digits"),
        ] {
            let error = bad.parse::<Digest>().unwrap_err();
            assert!(error.contains(says), "{bad}: {error}");
        }
    }
}
