//! Public keys that verify signatures: minisign keys for files next to images, cosign keys for images in registries.

use super::{cosign, minisign};
use std::fmt;
use std::str::FromStr;

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SignatureKey {
    Minisign(minisign::MinisignPublicKey),
    Cosign(cosign::CosignPublicKey),
}

impl SignatureKey {
    pub(crate) fn minisign(&self) -> Option<&minisign::MinisignPublicKey> {
        match self {
            SignatureKey::Minisign(key) => Some(key),
            SignatureKey::Cosign(_) => None,
        }
    }

    pub(crate) fn cosign(&self) -> Option<&cosign::CosignPublicKey> {
        match self {
            SignatureKey::Minisign(_) => None,
            SignatureKey::Cosign(key) => Some(key),
        }
    }
}

impl fmt::Display for SignatureKey {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        match self {
            SignatureKey::Minisign(key) => key.id.fmt(f),
            SignatureKey::Cosign(key) => key.id.fmt(f),
        }
    }
}

impl FromStr for SignatureKey {
    type Err = String;

    /// Parses the text of a key file, or only the key: the base64 line of a minisign key, or the PEM body of a cosign
    /// key without line breaks.
    fn from_str(text: &str) -> Result<SignatureKey, String> {
        if let Some(body) = cosign::extract_pem_body(text)? {
            return cosign::CosignPublicKey::parse_base64(&body).map(SignatureKey::Cosign);
        }
        let mut lines = text.lines().filter(|line| !line.starts_with("untrusted comment:") && !line.trim().is_empty());
        let line = match (lines.next(), lines.next()) {
            (Some(line), None) => line,
            (None, _) if !text.contains('\n') => text,
            _ => return Err("must contain exactly one key".to_owned()),
        };
        match cosign::is_base64_of_key(line) {
            true => cosign::CosignPublicKey::parse_base64(line).map(SignatureKey::Cosign),
            false => line.parse().map(SignatureKey::Minisign),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MINISIGN: &str = "RWSrW5G2df4ibM6Z/TrFXWSUPCeEn03zajmuZvLkO989EEiX+0k//xd8";
    const COSIGN: &str = include_str!("../../../../testdata/cosign/one.pub");

    fn body() -> String {
        COSIGN.lines().filter(|line| !line.starts_with('-')).collect()
    }

    #[test]
    fn key_is_parsed_from_file_content_or_bare_text() {
        let of = |text: &str| text.parse::<SignatureKey>().unwrap();
        for text in [MINISIGN, &format!("  {MINISIGN}\n"), &format!("untrusted comment: x\n{MINISIGN}\n\n")] {
            assert_eq!(of(text).to_string(), "6C22FE75B6915BAB");
        }
        for text in [COSIGN, &COSIGN.replace('\n', "\r\n"), &format!("\n{COSIGN}\n"), &body()] {
            // openssl pkey -pubin -in one.pub -outform DER | sha256sum
            assert_eq!(of(text).to_string(), "cosign:a785e5fffc75deed", "{text}");
        }
        assert!(of(COSIGN).cosign().is_some() && of(COSIGN).minisign().is_none());
    }

    #[test]
    fn invalid_keys_are_refused_without_repeating_secrets() {
        let secret =
            "-----BEGIN ENCRYPTED SIGSTORE PRIVATE KEY-----\neyJrZGYi\n-----END ENCRYPTED SIGSTORE PRIVATE KEY-----\n";
        let body = body();
        for (text, says) in [
            (secret, "the key is a secret key"),
            (&secret.replace("ENCRYPTED SIGSTORE ", ""), "the key is a secret key"),
            (
                &secret.replace("ENCRYPTED SIGSTORE PRIVATE KEY", "CERTIFICATE"),
                "the PEM data is not a public key: its type is CERTIFICATE",
            ),
            ("-----BEGIN PUBLIC KEY-----\neyJrZGYi\n-----END PUBLIC KEY-----\n", "unsupported key type"),
            ("-----BEGIN PUBLIC KEY-----\neyJrZGYi\n", "the END line of the PEM block is missing"),
            ("-----BEGIN PUBLIC KEY-----\n?\n-----END PUBLIC KEY-----\n", "is not valid base64"),
            (&format!("{COSIGN}{COSIGN}"), "exactly one key"),
            (&format!("{body}\n{body}"), "exactly one key"),
            (&body[..100], "unsupported key type"),
            ("\n", "exactly one key"),
            ("", "is not a minisign public key"),
            ("x", "is not a minisign public key"),
        ] {
            let error = text.parse::<SignatureKey>().unwrap_err();
            assert!(error.contains(says) && !error.contains("eyJrZGYi"), "{text}: {error}");
        }
    }
}
