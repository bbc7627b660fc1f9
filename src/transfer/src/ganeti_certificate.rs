//! Certificates of sender and receiver, and signatures of these certificates in Ganeti's format. A signature proves
//! that the creator of the certificate knows the secret that sender and receiver share, and is not an attacker between
//! sender and receiver.

use super::shared_secret::{HmacSignature, SharedSecret};
use super::x509_parser::{self, CertificateFields};
use linux::pem_encoding;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;

/// Size limit of a certificate file, in bytes.
pub(crate) const FILE_BYTES: u64 = 64 << 10;

/// Name of the header that contains the signature (ganeti's constants.X509_CERT_SIGNATURE_HEADER). The header precedes
/// the certificate in PEM.
const SIGNATURE_HEADER_NAME: &str = "X-Ganeti-Signature";

/// Tolerated clock skew between two machines, in seconds (ganeti's constants.NODE_MAX_CLOCK_SKEW). A certificate is
/// accepted this long before its validity period starts, but not after the period ends.
const SKEW_SECONDS: i64 = 150;

/// Minimum size of an RSA key, in bits, as in Ganeti and in the crate `ring`, which verifies the handshake.
const RSA_BITS: usize = 2048;

/// X.509 certificate in DER, with its parsed fields.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct PeerCertificate {
    pub der: CertificateDer<'static>,
    pub fields: CertificateFields,
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
        let signature = parse_signature(text)
            .ok_or_else(|| format!("certificate is not signed: header {SIGNATURE_HEADER_NAME} is missing"))?;
        let certificate = PeerCertificate::parse_pem(text)?;
        if !secret.verifies(&signature, &certificate.to_pem()) {
            return Err(
                "signature does not match: it was made with another secret or for another certificate".to_owned()
            );
        }
        Ok(certificate)
    }

    /// Parses a DER certificate; returns `None` if it is malformed.
    pub(crate) fn from_der(der: CertificateDer<'static>) -> Option<PeerCertificate> {
        let fields = x509_parser::parse_certificate(&der)?;
        Some(PeerCertificate { der, fields })
    }

    /// Returns the certificate in PEM, formatted like OpenSSL's output. The signature covers exactly these bytes.
    pub(crate) fn to_pem(&self) -> String {
        pem_encoding::encode_pem("CERTIFICATE", &self.der)
    }

    /// Signs the certificate with the secret. Returns the signature header, followed by the certificate in PEM. The
    /// salt must be alphanumeric.
    pub(crate) fn to_signed_pem(&self, secret: &SharedSecret, salt: &str) -> String {
        let pem = self.to_pem();
        format!("{SIGNATURE_HEADER_NAME}: {}\n\n{pem}", secret.sign_text(salt, &pem))
    }

    /// Checks the size of an RSA key. The size of other keys is checked in the handshake.
    ///
    /// # Errors
    /// Fails if the key is too short.
    pub(crate) fn check_key_size(&self) -> Result<(), String> {
        match x509_parser::count_rsa_bits(&self.fields.public_key) {
            Some(bits @ ..RSA_BITS) => Err(format!(
                "certificate has an RSA key of {bits} bits, but at least {RSA_BITS} bits are required; create a new key"
            )),
            _ => Ok(()),
        }
    }

    /// Checks whether the certificate is valid at the time `now`, in seconds since 1970.
    ///
    /// # Errors
    /// Fails if the certificate has expired or is not yet valid.
    pub(crate) fn check_validity(&self, now: i64) -> Result<(), String> {
        let CertificateFields { not_before, not_after, .. } = &self.fields;
        match now {
            _ if now > *not_after => Err(format!("certificate expired {} s ago", now - not_after)),
            _ if now + SKEW_SECONDS < *not_before => Err(format!(
                "certificate is not valid yet: it becomes valid in {seconds} s",
                seconds = not_before - now
            )),
            _ => Ok(()),
        }
    }
}

/// Parses the signature like Ganeti: from a header line before the first line that begins with `---`.
fn parse_signature(text: &str) -> Option<HmacSignature> {
    let headers = text.lines().take_while(|line| !line.starts_with("---"));
    headers.map(str::trim).find_map(|line| {
        let (name, value) = line.split_once(':')?;
        name.eq_ignore_ascii_case(SIGNATURE_HEADER_NAME).then(|| value.trim_start().parse().ok())?
    })
}

#[cfg(test)]
mod tests;
