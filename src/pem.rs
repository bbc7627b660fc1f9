//! PEM encoding of DER, exactly as OpenSSL writes it, with lines of 64 characters.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;

/// Returns the PEM text with a trailing line break. `label` is the text after BEGIN and END.
pub fn encode_pem(label: &str, der: &[u8]) -> String {
    let base64 = STANDARD.encode(der);
    let lines: Vec<&str> = base64.as_bytes().chunks(64).filter_map(|line| std::str::from_utf8(line).ok()).collect();
    format!("-----BEGIN {label}-----\n{}\n-----END {label}-----\n", lines.join("\n"))
}
