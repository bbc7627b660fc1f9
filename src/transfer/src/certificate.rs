//! Certificates of sender and receiver, and Ganeti's signature over them. The signature proves that the creator of a certificate knows the
//! secret that both clusters share, and thus is not a man in the middle.

use super::x509_parser::{self, CertificateFields};
use common::encoding::{decode_hex, encode_hex};
use linux::pem;
use ring::hmac;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use std::fmt;

/// Size limit of a certificate file, in bytes.
pub(crate) const FILE_BYTES: u64 = 64 << 10;

/// Name of the header with the signature, which precedes the certificate in PEM (ganeti's
/// constants.X509_CERT_SIGNATURE_HEADER).
const HEADER: &str = "X-Ganeti-Signature";

/// Tolerated clock skew between two machines, in seconds (ganeti's constants.NODE_MAX_CLOCK_SKEW). A certificate is accepted this long
/// before its validity period starts, but not after it ends.
const SKEW_SECONDS: i64 = 150;

/// X.509 certificate in DER, with its parsed fields.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct PeerCertificate {
    pub der: CertificateDer<'static>,
    pub fields: CertificateFields,
}

/// Secret that both clusters share. Its `Debug` output is redacted.
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
            _ => Err("a secret must be exactly one line".to_owned()),
        }
    }
}

impl PeerCertificate {
    /// Parses the first certificate in a PEM text, ignoring text before it.
    ///
    /// # Errors
    /// Fails if the text contains no certificate.
    pub(crate) fn parse_pem(text: &str) -> Result<PeerCertificate, String> {
        let der = CertificateDer::from_pem_slice(text.as_bytes())
            .map_err(|why| format!("the text contains no PEM certificate: {why}"))?;
        PeerCertificate::from_der(der).ok_or_else(|| "not an X.509 certificate".to_owned())
    }

    /// Parses a certificate that must be signed with the secret.
    ///
    /// # Errors
    /// Fails if the certificate or the signature is missing, or the signature does not match.
    pub(crate) fn parse_signed_pem(text: &str, secret: &SharedSecret) -> Result<PeerCertificate, String> {
        let (salt, signature) =
            parse_signature(text).ok_or_else(|| format!("certificate is not signed: header {HEADER} is missing"))?;
        let certificate = PeerCertificate::parse_pem(text)?;
        let signed = [salt.as_bytes(), certificate.to_pem().as_bytes()].concat();
        let wrong = "signature does not match: it was made with another secret or for another certificate";
        hmac::verify(&secret.0, &signed, &signature).map_err(|_| wrong.to_owned())?;
        Ok(certificate)
    }

    /// Parses a DER certificate; returns `None` if it is malformed.
    pub(crate) fn from_der(der: CertificateDer<'static>) -> Option<PeerCertificate> {
        let fields = x509_parser::parse_certificate(&der)?;
        Some(PeerCertificate { der, fields })
    }

    /// Returns the certificate in PEM, formatted like OpenSSL's output. The signature covers exactly these bytes.
    pub(crate) fn to_pem(&self) -> String {
        pem::encode_pem("CERTIFICATE", &self.der)
    }

    /// Signs the certificate with the secret. Returns the signature header, followed by the certificate in PEM. The
    /// salt must be alphanumeric.
    pub(crate) fn to_signed_pem(&self, secret: &SharedSecret, salt: &str) -> String {
        let pem = self.to_pem();
        let signature = hmac::sign(&secret.0, &[salt.as_bytes(), pem.as_bytes()].concat());
        format!("{HEADER}: {salt}/{}\n\n{pem}", encode_hex(signature))
    }

    /// Checks the validity period at a time in seconds since 1970.
    ///
    /// # Errors
    /// Fails if the certificate has expired or is not yet valid.
    pub(crate) fn check_validity(&self, now: i64) -> Result<(), String> {
        let CertificateFields { not_before, not_after, .. } = &self.fields;
        match now {
            _ if now > *not_after => Err(format!("certificate expired {} s ago", now - not_after)),
            _ if now + SKEW_SECONDS < *not_before => {
                Err(format!("certificate becomes valid in {} s", not_before - now))
            }
            _ => Ok(()),
        }
    }
}

/// Parses salt and signature like Ganeti: from a header line before the first line that begins with `---`.
fn parse_signature(text: &str) -> Option<(&str, Vec<u8>)> {
    let headers = text.lines().take_while(|line| !line.starts_with("---"));
    headers.map(str::trim).find_map(|line| {
        let (name, value) = line.split_once(':')?;
        let (salt, hex) = value.trim_start().split_once('/')?;
        let is_salt = !salt.is_empty() && salt.bytes().all(|byte| byte.is_ascii_alphanumeric());
        if !name.eq_ignore_ascii_case(HEADER) || !is_salt || hex.is_empty() {
            return None;
        }
        Some((salt, decode_hex(hex)?))
    })
}

#[cfg(test)]
mod tests;
