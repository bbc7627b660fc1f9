//! Certificates and signatures created by Ganeti (testdata/moving), unchanged and manipulated.

use super::*;
use ring::hmac;
use std::fs;
use std::path::Path;

fn file(name: &str) -> String {
    fs::read_to_string(Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../..")).join("testdata/moving").join(name))
        .unwrap()
}

fn secret() -> SharedSecret {
    SharedSecret::parse_secret(&file("secret")).unwrap()
}

#[test]
fn version_1_certificate_of_ganeti_is_parsed() {
    let certificate = PeerCertificate::parse_pem(&file("ganeti.pem")).unwrap();
    let CertificateFields { not_before, not_after, public_key } = &certificate.fields;
    assert_eq!(not_after - not_before, 24 * 60 * 60);
    // RSA with 2048 bits.
    assert!((290..300).contains(&public_key.len()), "{}", public_key.len());
    certificate.check_key_size().unwrap();
    assert!(file("ganeti.pem").contains(&certificate.to_pem()));
}

#[test]
fn certificate_signature_of_ganeti_is_valid_and_reproducible() {
    let text = file("ganeti.pem");
    let certificate = PeerCertificate::parse_signed_pem(&text, &secret()).unwrap();
    let HmacSignature { salt, .. } = parse_signature(&text).unwrap();
    assert_eq!(certificate.to_signed_pem(&secret(), &salt), text);
}

#[test]
fn modified_signed_certificates_are_refused() {
    let text = file("ganeti.pem");
    let (head, pem) = text.split_once("\n\n").unwrap();
    let (salt, hex) = head.strip_prefix("X-Ganeti-Signature: ").unwrap().split_once('/').unwrap();
    let of = |name: &str, salt: &str, hex: &str, pem: &str| format!("{name}: {salt}/{hex}\n\n{pem}");
    let flipped = |text: &str| {
        let other = if text.starts_with('a') { "b" } else { "a" };
        format!("{other}{}", &text[1..])
    };
    let name = "X-Ganeti-Signature";
    // Ganeti also accepts these certificates, because it ignores case, blanks, and the length of PEM lines.
    let long_lines = {
        let body: String = pem.lines().filter(|line| !line.starts_with('-')).collect();
        let lines: Vec<&str> = body.as_bytes().chunks(76).map(|line| std::str::from_utf8(line).unwrap()).collect();
        format!("-----BEGIN CERTIFICATE-----\n{}\n-----END CERTIFICATE-----\n", lines.join("\n"))
    };
    for good in [
        of(name, salt, hex, pem),
        of("x-ganeti-signature", salt, &hex.to_uppercase(), pem),
        of(name, salt, hex, &long_lines),
        format!("Subject: x\n{}", of(name, salt, hex, pem)),
    ] {
        PeerCertificate::parse_signed_pem(&good, &secret()).unwrap_or_else(|why| panic!("{why}: {good}"));
    }
    let inside = pem.lines().nth(5).unwrap();
    for bad in [
        of(name, &flipped(salt), hex, pem),
        of(name, salt, &flipped(hex), pem),
        of(name, salt, &hex[2..], pem),
        of(name, salt, hex, &pem.replacen(inside, &flipped(inside), 1)),
        of(name, "", hex, pem),
        of(name, "a-b", hex, pem),
        of(name, salt, "", pem),
        of("X-Other", salt, hex, pem),
        // The header must precede the certificate.
        format!("{pem}{}", of(name, salt, hex, pem)),
        pem.to_owned(),
    ] {
        assert!(PeerCertificate::parse_signed_pem(&bad, &secret()).is_err(), "{bad}");
    }
    let other = SharedSecret::parse_secret("0123456789abcdef").unwrap();
    assert!(PeerCertificate::parse_signed_pem(&text, &other).unwrap_err().contains("was made with another secret"));
    // This signature covers a PEM with long lines. A valid signature covers the PEM as OpenSSL formats it.
    let key = hmac::Key::new(hmac::HMAC_SHA1_FOR_LEGACY_USE_ONLY, file("secret").trim().as_bytes());
    let signed = hmac::sign(&key, format!("{salt}{long_lines}").as_bytes());
    let hex: String = signed.as_ref().iter().map(|byte| format!("{byte:02x}")).collect();
    assert!(PeerCertificate::parse_signed_pem(&of(name, salt, &hex, &long_lines), &secret()).is_err());
}

#[test]
fn certificate_is_valid_only_within_its_dates() {
    let certificate = PeerCertificate::parse_pem(&file("ganeti.pem")).unwrap();
    let CertificateFields { not_before, not_after, .. } = certificate.fields;
    for (now, good) in [
        (not_before, true),
        (not_before - SKEW_SECONDS, true),
        (not_before - SKEW_SECONDS - 1, false),
        (not_after, true),
        (not_after + 1, false),
    ] {
        assert_eq!(certificate.check_validity(now).is_ok(), good, "{now}");
    }
}

#[test]
fn truncated_or_garbled_certificate_is_refused() {
    let certificate = PeerCertificate::parse_pem(&file("ganeti.pem")).unwrap();
    let der = certificate.der.to_vec();
    for length in 0..der.len() {
        assert!(PeerCertificate::from_der(der[..length].to_vec().into()).is_none(), "{length}");
    }
    // No malformed certificate causes a panic.
    for at in 0..der.len() {
        for value in [0, 0x30, 0x80, 0x83, 0xff] {
            let mut changed = der.clone();
            changed[at] = value;
            drop(PeerCertificate::from_der(changed.into()).map(|certificate| certificate.check_key_size()));
        }
    }
    for text in ["", "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n", "garbage"] {
        assert!(PeerCertificate::parse_pem(text).is_err(), "{text}");
    }
}

#[test]
fn secret_is_one_line_and_is_not_printed() {
    assert!(
        SharedSecret::parse_secret("").is_err()
            && SharedSecret::parse_secret("\n \n").is_err()
            && SharedSecret::parse_secret("a\nb\n").is_err()
    );
    let secret = SharedSecret::parse_secret("0123abcd\n").unwrap();
    assert!(!format!("{secret:?}").contains("0123"), "{secret:?}");
}
