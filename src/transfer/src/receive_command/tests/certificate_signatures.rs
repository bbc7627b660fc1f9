//! Signatures of certificates and of the receiver's address, and the destruction of keys.

use super::*;

const OPENSSL_SECRET: &str = "0f0e0d0c0b0a09080706050403020100ffeeddcc\n";

/// Returns a directory with signed certificates of A and B, and the file with the secret.
fn signed_room() -> (CertificateDirectory, PathBuf) {
    let directory = CertificateDirectory(tempfile::tempdir().unwrap());
    let file = directory.file("secret", OPENSSL_SECRET.as_bytes());
    let secret = crate::read_secret(&file).unwrap();
    for who in ["a", "b"] {
        let (key, certificate) = (directory.path(&format!("{who}.key")), directory.path(&format!("{who}.pem")));
        key_generation::write_files(&key, &certificate, 1, Some(&secret)).unwrap();
    }
    (directory, file)
}

fn with_secret(common: CommonOptions, secret: &Path) -> CommonOptions {
    let signing = SigningOptions { secret: Some(secret.to_owned()), unsigned: false };
    CommonOptions { signing, keep_key: false, ..common }
}

#[test]
fn created_secret_signs_and_is_not_overwritten() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("secret");
    key_generation::write_secret(&file).unwrap();
    let text = fs::read_to_string(&file).unwrap();
    assert!(text.trim_end().len() == 40 && text.trim_end().bytes().all(|byte| byte.is_ascii_hexdigit()), "{text}");
    assert_eq!(std::os::unix::fs::PermissionsExt::mode(&fs::metadata(&file).unwrap().permissions()) & 0o777, 0o600);
    let error = key_generation::write_secret(&file).unwrap_err().to_string();
    assert!(error.contains("secret") && fs::read_to_string(&file).unwrap() == text, "{error}");
}

#[test]
fn signatures_are_mandatory_unless_they_are_disabled() {
    let directory = CertificateDirectory::new();
    let (secret, unsigned) =
        (directory.file("secret", OPENSSL_SECRET.as_bytes()), SigningOptions { secret: None, unsigned: true });
    assert!(crate::load_secret(&unsigned).unwrap().is_none());
    let neither = crate::load_secret(&SigningOptions { secret: None, unsigned: false }).unwrap_err();
    assert!(neither.is_refusal() && neither.to_string().contains("--unsigned"), "{neither}");
    let common = with_secret(directory.common("b", "a"), &secret);
    let secret = crate::load_secret(&common.signing).unwrap();
    let error = crate::load_endpoints(&common, secret.as_ref()).unwrap_err();
    assert!(error.is_refusal() && error.to_string().contains("certificate is not signed"), "{error}");
}

#[test]
fn short_rsa_key_is_refused_by_its_size() {
    let directory = CertificateDirectory::new();
    let short = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../../testdata/moving/rsa1024.pem"));
    for common in [
        CommonOptions { peer: short.to_owned(), ..directory.common("b", "a") },
        CommonOptions { cert: short.to_owned(), ..directory.common("b", "a") },
    ] {
        let error = crate::load_endpoints(&common, None).unwrap_err();
        let words = "rsa1024.pem: certificate has an RSA key of 1024 bits, but at least 2048 bits are required";
        assert!(error.is_refusal() && error.to_string().contains(words), "{error}");
    }
}

/// Before it connects, the sender refuses an unsigned address, and an address that is signed for other disks.
#[test]
fn refuses_unsigned_destination_address() {
    let (directory, secret) = signed_room();
    let a = directory.file("a", &disk(MIB));
    let send = |change: &dyn Fn(&mut SendOptions)| {
        let mut send = directory.send(&[path(&a)]);
        (send.to, send.common) = ("127.0.0.1:9".to_owned(), with_secret(send.common, &secret));
        change(&mut send);
        send_command::run_send(&send).unwrap_err()
    };
    let unsigned = send(&|_| ());
    assert!(unsigned.is_refusal() && unsigned.to_string().contains("--signature"), "{unsigned}");
    let wrong = send(&|send| send.signature = Some(format!("0123456789abcdef/{}", "00".repeat(20)).parse().unwrap()));
    assert!(wrong.is_refusal() && wrong.to_string().contains("127.0.0.1:9 does not match"), "{wrong}");
    let refused_by_the_port = send(&|send| send.unsigned_address = true);
    assert!(!refused_by_the_port.is_refusal(), "{refused_by_the_port}");
    assert!(directory.path("a.key").exists(), "the key remains after a failure");
}

#[test]
fn signed_address_is_the_announced_one() {
    let (directory, secret) = signed_room();
    let secret = crate::read_secret(&secret).unwrap();
    let b = directory.file("b", &[7; 512]);
    let sign = |bound: &str, announce: Option<&str>| {
        let receive = ReceiveOptions { announce: announce.map(str::to_owned), ..directory.receive(&[path(&b)]) };
        sign_destination(&receive, bound, &secret)
    };
    for (bound, announce, address) in [
        ("192.0.2.7:7700", None, "192.0.2.7:7700"),
        ("0.0.0.0:7700", Some("b.example"), "b.example:7700"),
        ("[::]:7700", Some("2001:db8::7"), "[2001:db8::7]:7700"),
        ("[::]:7700", Some("[2001:db8::7]"), "[2001:db8::7]:7700"),
        ("[::1]:7700", None, "[::1]:7700"),
    ] {
        let line = sign(bound, announce).unwrap();
        let words: Vec<&str> = line.split_whitespace().collect();
        let [.., printed, "--signature", signature] = words[..] else { panic!("{line}") };
        assert_eq!(printed, address);
        let destination = Destination { address: printed, disks: &["0".to_owned()], magic: "" };
        destination.verify(&secret, &signature.parse().unwrap()).unwrap();
    }
    for bound in ["0.0.0.0:7700", "[::]:7700"] {
        let error = sign(bound, None).unwrap_err();
        assert!(error.is_refusal() && error.to_string().contains("--announce"), "{error}");
    }
}

#[test]
fn keys_are_destroyed_after_the_last_disk_unless_kept() {
    for keep in [false, true] {
        let (directory, secret) = signed_room();
        let (a, b) = (directory.file("a1", &disk(MIB)), directory.file("b1", &[7; MIB]));
        let mut send = directory.send(&[path(&a)]);
        send.common = CommonOptions { keep_key: keep, ..with_secret(send.common, &secret) };
        send.unsigned_address = true;
        let receive = directory.receive(&[path(&b)]);
        let (sent, received) = directory.moved(send, &receive);
        received.unwrap();
        sent.unwrap();
        assert_eq!([directory.path("a.key").exists(), directory.path("a.pem").exists()], [keep; 2]);
        let own = CommonOptions { keep_key: keep, ..directory.common("b", "a") };
        crate::destroy_key(&own);
        assert_eq!([directory.path("b.key").exists(), directory.path("b.pem").exists()], [keep; 2]);
    }
}

#[test]
fn keys_of_other_programs_are_preserved() {
    let (directory, _) = signed_room();
    let pem = fs::read_to_string(directory.path("a.key")).unwrap();
    let (_, plain) = pem.split_once("\n\n").unwrap();
    let key = directory.file("other.key", plain.as_bytes());
    key_generation::destroy_files(&key, &directory.path("a.pem"));
    assert!(key.exists() && directory.path("a.pem").exists());
}
