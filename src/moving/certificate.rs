//! Certificates of the two ends of a move, and Ganeti's signature over them, which says that who made one knows the secret of both
//! clusters. Whoever carries it from one to the other does not.

use super::der::{self, Fields};
use crate::pem;
use ring::hmac;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use std::fmt;

/// A file with more than this is no certificate.
pub const FILE_BYTES: u64 = 64 << 10;

/// What stands before a certificate that is signed (ganeti's constants.X509_CERT_SIGNATURE_HEADER).
const HEADER: &str = "X-Ganeti-Signature";

/// Clocks of two machines differ by as much (ganeti's constants.NODE_MAX_CLOCK_SKEW). It begins so much earlier, and ends in time.
const SKEW_SECONDS: i64 = 150;

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Certificate {
    pub der: CertificateDer<'static>,
    pub fields: Fields,
}

/// What both clusters know, and nobody else. It is printed nowhere.
#[derive(Clone)]
pub struct Secret(hmac::Key);

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(…)")
    }
}

impl Secret {
    /// The text of Ganeti's `cluster-domain-secret`: one line.
    ///
    /// # Errors
    /// In one sentence: it has none, or several.
    pub fn read(text: &str) -> Result<Secret, String> {
        let mut lines = text.lines().map(str::trim).filter(|line| !line.is_empty());
        match (lines.next(), lines.next()) {
            (Some(secret), None) => Ok(Secret(hmac::Key::new(hmac::HMAC_SHA1_FOR_LEGACY_USE_ONLY, secret.as_bytes()))),
            _ => Err("a secret is one line".to_owned()),
        }
    }
}

impl Certificate {
    /// The first certificate in a PEM text, whatever stands before it.
    ///
    /// # Errors
    /// In words: there is none.
    pub fn read(text: &str) -> Result<Certificate, String> {
        let der =
            CertificateDer::from_pem_slice(text.as_bytes()).map_err(|why| format!("no certificate in PEM: {why}"))?;
        Certificate::of(der).ok_or_else(|| "no certificate of X.509".to_owned())
    }

    /// The same where it must be signed with the secret.
    ///
    /// # Errors
    /// In words: there is no certificate, no signature, or a wrong one.
    pub fn read_signed(text: &str, secret: &Secret) -> Result<Certificate, String> {
        let (salt, signature) = signature(text).ok_or_else(|| format!("it is not signed: there is no {HEADER}"))?;
        let certificate = Certificate::read(text)?;
        let signed = [salt.as_bytes(), certificate.pem().as_bytes()].concat();
        let wrong = "its signature is not made with this secret, or the certificate is not the one that was signed";
        hmac::verify(&secret.0, &signed, &signature).map_err(|_| wrong.to_owned())?;
        Ok(certificate)
    }

    pub fn of(der: CertificateDer<'static>) -> Option<Certificate> {
        let fields = der::fields(&der)?;
        Some(Certificate { der, fields })
    }

    /// As OpenSSL writes it: the signature is over these bytes.
    pub fn pem(&self) -> String {
        pem::armored("CERTIFICATE", &self.der)
    }

    /// With its signature. The salt is letters and digits.
    pub fn signed(&self, secret: &Secret, salt: &str) -> String {
        let pem = self.pem();
        let signature = hmac::sign(&secret.0, &[salt.as_bytes(), pem.as_bytes()].concat());
        let hex: String = signature.as_ref().iter().map(|byte| format!("{byte:02x}")).collect();
        format!("{HEADER}: {salt}/{hex}\n\n{pem}")
    }

    /// # Errors
    /// In words, at that second since 1970: it is no longer good, or not yet.
    pub fn good_at(&self, now: i64) -> Result<(), String> {
        let Fields { not_before, not_after, .. } = &self.fields;
        match now {
            _ if now > *not_after => Err(format!("it has expired {} s ago", now - not_after)),
            _ if now + SKEW_SECONDS < *not_before => Err(format!("it is good only in {} s", not_before - now)),
            _ => Ok(()),
        }
    }
}

/// Salt and signature, as Ganeti finds them: in a line before the first that begins with `---`.
fn signature(text: &str) -> Option<(&str, Vec<u8>)> {
    let headers = text.lines().take_while(|line| !line.starts_with("---"));
    headers.map(str::trim).find_map(|line| {
        let (name, value) = line.split_once(':')?;
        let (salt, hex) = value.trim_start().split_once('/')?;
        let is_salt = !salt.is_empty() && salt.bytes().all(|byte| byte.is_ascii_alphanumeric());
        if !name.eq_ignore_ascii_case(HEADER) || !is_salt || hex.is_empty() || hex.len() % 2 != 0 {
            return None;
        }
        let pairs = hex.as_bytes().chunks(2).map(|pair| std::str::from_utf8(pair).ok());
        let bytes = pairs.map(|pair| u8::from_str_radix(pair.filter(|pair| !pair.starts_with('+'))?, 16).ok());
        Some((salt, bytes.collect::<Option<_>>()?))
    })
}

#[cfg(test)]
mod tests;
