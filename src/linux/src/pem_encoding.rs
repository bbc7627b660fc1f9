//! PEM encoding of DER data, exactly as OpenSSL writes it, with lines of 64 characters. Also computes fingerprints of
//! certificates.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use common::encoding::format_sha256;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;

/// Returns the PEM text with a trailing line break. `label` is the text after BEGIN and END.
pub fn encode_pem(label: &str, der: &[u8]) -> String {
    let base64 = STANDARD.encode(der);
    let lines: Vec<&str> = base64.as_bytes().chunks(64).filter_map(|line| std::str::from_utf8(line).ok()).collect();
    format!("-----BEGIN {label}-----\n{}\n-----END {label}-----\n", lines.join("\n"))
}

/// Returns the fingerprint of the first certificate in a PEM text: `sha256:` and the SHA-256 of its DER, as `openssl
/// x509 -fingerprint -sha256` computes it. Returns `None` if the text contains no certificate.
pub fn certificate_fingerprint(certificate: &str) -> Option<String> {
    let der = CertificateDer::from_pem_slice(certificate.as_bytes()).ok()?;
    Some(format_sha256(der))
}
