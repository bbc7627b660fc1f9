//! Certificates and keys that are refused at the start.

use super::*;

/// Returns the path of a file in `testdata/tls`.
fn file(name: &str) -> PathBuf {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../..")).join("testdata/tls").join(name)
}

#[test]
fn unusable_certificate_or_key_is_refused_with_reason() {
    assert!(ServerTls::load_certificate(&file("server.pem"), &file("server.key")).is_ok());
    let dir = tempfile::tempdir().unwrap();
    let damaged = dir.path().join("damaged.pem");
    fs::write(&damaged, "-----BEGIN CERTIFICATE-----\n!!!\n-----END CERTIFICATE-----\n").unwrap();
    let nonsense = dir.path().join("nonsense.pem");
    fs::write(&nonsense, "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n").unwrap();
    for (certificates, key, words) in [
        (file("none.pem"), file("server.key"), ["read the certificate of --tls-cert", "none.pem: No such file"]),
        (file("server.pem"), file("none.key"), ["read the key of --tls-key", "none.key: No such file"]),
        (
            file("server.key"),
            file("server.key"),
            ["server.key: the file does not contain a certificate", "BEGIN CERTIFICATE"],
        ),
        (
            file("server.pem"),
            file("server.pem"),
            ["server.pem: the file does not contain a readable private key", "without a passphrase"],
        ),
        (
            file("server.pem"),
            file("stranger.key"),
            ["stranger.key: the key does not match the first certificate", "server.pem"],
        ),
        (damaged, file("server.key"), ["damaged.pem: ", "invalid PEM"]),
        (nonsense, file("server.key"), ["nonsense.pem: ", "cannot be used"]),
    ] {
        let error =
            ServerTls::load_certificate(&certificates, &key).err().expect("the certificate is refused").to_string();
        assert!(words.iter().all(|words| error.contains(words)), "{words:?}: {error}");
    }
}

#[test]
fn certificate_covers_only_its_host_names() {
    let tls = ServerTls::load_certificate(&file("server.pem"), &file("server.key")).unwrap();
    for (host, is_for) in [
        ("127.0.0.1", true),
        ("127.0.0.1:8443", true),
        ("localhost:1", true),
        ("127.0.0.2", false),
        ("[::1]:8443", false),
        ("install.rack", false),
        ("", false),
    ] {
        assert_eq!(tls.covers_host(host), is_for, "{host}");
    }
}
