//! Valid and invalid certificates of the server and its clients.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair, KeyUsagePurpose, date_time_ymd};
use std::path::Path;

/// Creates two CAs. The first CA signs the certificates of the server and of two clients. The certificate of one client
/// has expired. The second CA signs the certificate of an unknown client.
pub(super) fn certificates(folder: &Path) {
    let write =
        |name: &str, kind: &str, text: String| std::fs::write(folder.join(format!("{name}.{kind}")), text).unwrap();
    let mut authority = CertificateParams::new(vec![]).unwrap();
    authority.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    authority.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::DigitalSignature];
    for (ca, names) in [("ca", &["server", "client", "expired"][..]), ("other", &["stranger"])] {
        let mut authority = authority.clone();
        authority.distinguished_name.push(rcgen::DnType::CommonName, ca);
        let key = KeyPair::generate().unwrap();
        write(ca, "pem", pem("CERTIFICATE", authority.self_signed(&key).unwrap().der()));
        let issuer = Issuer::new(authority, key);
        for name in names {
            let mut params = CertificateParams::new(vec!["localhost".to_owned()]).unwrap();
            if *name == "expired" {
                (params.not_before, params.not_after) = (date_time_ymd(2020, 1, 1), date_time_ymd(2021, 1, 1));
            }
            let key = KeyPair::generate().unwrap();
            write(name, "pem", pem("CERTIFICATE", params.signed_by(&key, &issuer).unwrap().der()));
            write(name, "key", pem("PRIVATE KEY", &key.serialize_der()));
        }
    }
}

fn pem(what: &str, der: &[u8]) -> String {
    let text = STANDARD.encode(der);
    let lines: Vec<&str> = text.as_bytes().chunks(64).map(|line| std::str::from_utf8(line).unwrap()).collect();
    format!("-----BEGIN {what}-----\n{}\n-----END {what}-----\n", lines.join("\n"))
}
