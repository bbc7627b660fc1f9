//! Signatures made by minisign itself (`testdata/trust`), and all cases in which they are rejected.

use super::super::{ImageSource, ResolvedImage, resolve_image};
use super::*;
use crate::testing::pace;
use base64::prelude::{BASE64_STANDARD, Engine};
use linux::http;
use std::collections::BTreeMap;
use testing::http::{ResponseBehavior, Server};

const MANIFEST_TEXT: &[u8] = include_bytes!("../../../../../testdata/trust/img.tar.zst.manifest");
const SHA256_TEXT: &[u8] = include_bytes!("../../../../../testdata/trust/img.tar.zst.sha256");
const BY_ONE: &[u8] = include_bytes!("../../../../../testdata/trust/manifest.one.prehashed.minisig");
const BY_ONE_PLAIN: &[u8] = include_bytes!("../../../../../testdata/trust/manifest.one.plain.minisig");
const BY_TWO: &[u8] = include_bytes!("../../../../../testdata/trust/manifest.two.prehashed.minisig");
const SHA256_BY_ONE: &[u8] = include_bytes!("../../../../../testdata/trust/sha256.one.prehashed.minisig");
const ONE: &str = include_str!("../../../../../testdata/trust/one.pub");
const TWO: &str = include_str!("../../../../../testdata/trust/two.pub");
const ONE_ID: &str = "6C22FE75B6915BAB";
const TWO_ID: &str = "1D1052ED9DBCA100";

/// SHA-256 of the image, which consists of ten zeros.
const DIGEST: &str = "sha256:01d448afd928065458cf670b60f5a594d735af0172c8d67f22a81680132681ca";

const URL: &str = "http://images/os/img.tar.zst?a=b";

fn keys(texts: &[&str]) -> SignatureKeys {
    SignatureKeys(texts.iter().map(|text| text.parse().unwrap()).collect())
}

type Files<'a> = &'a [(&'a str, &'a [u8])];

/// Files next to the image, and part of the expected error message.
type Case<'a> = (Vec<(&'a str, &'a [u8])>, &'a str);

/// Verifies an image with these files next to it.
fn verified_with(
    files: Files,
    keys: &SignatureKeys,
    digest: Option<&str>,
    size_bytes: u64,
) -> Result<Option<VerifiedDocument>> {
    let files: BTreeMap<String, Vec<u8>> = files
        .iter()
        .map(|(suffix, text)| (format!("http://images/os/img.tar.zst{suffix}?a=b"), text.to_vec()))
        .collect();
    let digest: Option<Digest> = digest.map(|digest| digest.parse().unwrap());
    let minimum = &MinimumVersions::default();
    let known_image = KnownImage { url: URL, digest: digest.as_ref(), size_bytes: Some(size_bytes), id: None, minimum };
    verify_documents(&|url| Ok(files.get(url).cloned()), keys, &known_image)
}

#[test]
fn documents_signed_with_minisign_are_trusted() {
    let both = keys(&[TWO, ONE]);
    for (files, keys, by) in [
        ([(".manifest", MANIFEST_TEXT), (".manifest.minisig", BY_ONE)], keys(&[ONE]), ONE_ID),
        ([(".manifest", MANIFEST_TEXT), (".manifest.minisig", BY_ONE_PLAIN)], both.clone(), ONE_ID),
        ([(".manifest", MANIFEST_TEXT), (".manifest.minisig", BY_TWO)], both.clone(), TWO_ID),
        ([(".sha256", SHA256_TEXT), (".sha256.minisig", SHA256_BY_ONE)], both, ONE_ID),
    ] {
        for digest in [None, Some(DIGEST)] {
            let verified = verified_with(&files, &keys, digest, 10).unwrap().unwrap();
            assert_eq!((verified.digest.to_string().as_str(), verified.signed_by.as_deref()), (DIGEST, Some(by)));
            assert_eq!(verified.manifest.is_some(), files[0].0 == ".manifest");
        }
    }
}

#[test]
fn signed_manifest_takes_precedence_over_signed_digest() {
    let files: Files = &[
        (".manifest", MANIFEST_TEXT),
        (".manifest.minisig", BY_ONE),
        (".sha256", SHA256_TEXT),
        (".sha256.minisig", SHA256_BY_ONE),
    ];
    assert!(verified_with(files, &keys(&[ONE]), None, 10).unwrap().unwrap().manifest.is_some());
    // If the manifest is not signed, the signed checksum file is used.
    let files: Files = &[(".manifest", b"{}"), (".sha256", SHA256_TEXT), (".sha256.minisig", SHA256_BY_ONE)];
    assert!(verified_with(files, &keys(&[ONE]), None, 10).unwrap().unwrap().manifest.is_none());
}

/// Returns the signature with line `number`, counted from 1, replaced.
fn with_line(signature: &[u8], number: usize, line: &str) -> Vec<u8> {
    let text = std::str::from_utf8(signature).unwrap();
    let lines = text.lines().enumerate().map(|(index, old)| if index + 1 == number { line } else { old });
    lines.map(|line| format!("{line}\n")).collect::<String>().into_bytes()
}

fn base64(line: &str) -> Vec<u8> {
    BASE64_STANDARD.decode(line).unwrap()
}

#[test]
fn refuses_invalid_signatures_with_the_remedy() {
    let one_bit = |text: &[u8]| text.iter().map(|byte| if *byte == b'1' { b'3' } else { *byte }).collect::<Vec<u8>>();
    let other_comment = with_line(BY_ONE, 3, "trusted comment: timestamp:1800000000\tfile:img.tar.zst.manifest");
    let by_one = std::str::from_utf8(BY_ONE).unwrap().lines().nth(1).unwrap();
    // The signature does not cover the key id. If the id is replaced, the signature does not match the key of that id.
    let (mut bytes, two) = (base64(by_one), base64(TWO.lines().nth(1).unwrap()));
    bytes[2..10].copy_from_slice(&two[2..10]);
    let relabeled = with_line(BY_ONE, 2, &BASE64_STANDARD.encode(bytes));
    let swapped = with_line(BY_TWO, 2, by_one);
    let cut = &BY_ONE[..BY_ONE.len() / 2];
    let bad_kind = with_line(BY_ONE, 2, &format!("RV{}", &by_one[2..]));
    let (manifest, sha256) = (one_bit(MANIFEST_TEXT), one_bit(SHA256_TEXT));
    let does_not_fit = "does not match http://images/os/img.tar.zst.manifest?a=b: one of them is damaged or forged";
    let cases: Vec<Case> = vec![
        (vec![], "img.tar.zst?a=b is not signed: neither img.tar.zst.manifest.minisig nor img.tar.zst.sha256.minisig"),
        (vec![], "sign it with: sha256sum img.tar.zst > img.tar.zst.sha256 && minisign -S -m img.tar.zst.sha256"),
        (vec![(".manifest", MANIFEST_TEXT), (".sha256", SHA256_TEXT)], "is not signed"),
        (vec![(".manifest.minisig", BY_ONE)], "img.tar.zst.manifest?a=b does not exist, but its signature file exists"),
        (
            vec![(".manifest", MANIFEST_TEXT), (".manifest.minisig", BY_TWO)],
            "signed by key 1D1052ED9DBCA100, which is not trusted",
        ),
        (vec![(".manifest", MANIFEST_TEXT), (".manifest.minisig", BY_TWO)], "trusted keys: 6C22FE75B6915BAB"),
        (vec![(".manifest", &manifest), (".manifest.minisig", BY_ONE)], does_not_fit),
        (vec![(".manifest", &manifest), (".manifest.minisig", BY_ONE_PLAIN)], does_not_fit),
        (vec![(".manifest", SHA256_TEXT), (".manifest.minisig", BY_ONE)], does_not_fit),
        (vec![(".manifest", MANIFEST_TEXT), (".manifest.minisig", &other_comment)], does_not_fit),
        (vec![(".manifest", MANIFEST_TEXT), (".manifest.minisig", &swapped)], does_not_fit),
        (
            vec![(".manifest", MANIFEST_TEXT), (".manifest.minisig", &relabeled)],
            "signed by key 1D1052ED9DBCA100, which is not trusted",
        ),
        (vec![(".sha256", &sha256), (".sha256.minisig", SHA256_BY_ONE)], "damaged or forged"),
        (
            vec![(".manifest", MANIFEST_TEXT), (".manifest.minisig", b"")],
            "is not a minisign signature: the file has fewer",
        ),
        (
            vec![(".manifest", MANIFEST_TEXT), (".manifest.minisig", b"\xff\n\xff\n\n\n")],
            "second line must consist of 74 bytes",
        ),
        (vec![(".manifest", MANIFEST_TEXT), (".manifest.minisig", cut)], "is not a minisign signature"),
        (vec![(".manifest", MANIFEST_TEXT), (".manifest.minisig", &bad_kind)], "unsupported algorithm"),
    ];
    for (files, says) in cases {
        for digest in [None, Some(DIGEST)] {
            let error = verified_with(&files, &keys(&[ONE]), digest, 10).unwrap_err();
            assert!(error.to_string().contains(says), "{says}: {error}");
            assert_eq!(error.phase, Phase::Image);
        }
    }
    // The signature also does not match the key whose id was inserted.
    let files: Files = &[(".manifest", MANIFEST_TEXT), (".manifest.minisig", &relabeled)];
    let error = verified_with(files, &keys(&[ONE, TWO]), None, 10).unwrap_err().to_string();
    assert!(error.contains(does_not_fit), "{error}");
}

#[test]
fn signed_document_must_describe_the_image() {
    let manifest: Files = &[(".manifest", MANIFEST_TEXT), (".manifest.minisig", BY_ONE)];
    let sha256: Files = &[(".sha256", SHA256_TEXT), (".sha256.minisig", SHA256_BY_ONE)];
    let (other, sha512) = (format!("sha256:{}", "0a".repeat(32)), format!("sha512:{}", "0a".repeat(64)));
    for (files, digest, size, says) in [
        (manifest, None, 11, "the manifest is for an image of 10 bytes, but the server's image is 11 bytes"),
        (manifest, Some(other.as_str()), 10, "the specified digest sha256:0a0a"),
        (sha256, Some(&other), 10, "digest sha256:01d448"),
        (sha256, Some(&sha512), 10, "specify the sha256 digest"),
    ] {
        let error = verified_with(files, &keys(&[ONE]), digest, size).unwrap_err().to_string();
        assert!(error.contains(says), "{error}");
    }
}

#[test]
fn unsigned_document_is_used_without_keys_if_consistent() {
    let none = SignatureKeys::default();
    let other = format!("sha256:{}", "0a".repeat(32));
    let both: Files = &[(".manifest", MANIFEST_TEXT), (".sha256", SHA256_TEXT)];
    for digest in [None, Some(DIGEST)] {
        let verified = verified_with(both, &none, digest, 10).unwrap().unwrap();
        assert!(verified.manifest.is_some() && verified.signed_by.is_none());
        assert_eq!(verified.digest.to_string(), DIGEST);
    }
    let sha256: Files = &[(".manifest", b"{}"), (".sha256", SHA256_TEXT)];
    assert_eq!(verified_with(sha256, &none, None, 10).unwrap().unwrap().digest.to_string(), DIGEST);
    assert_eq!(verified_with(sha256, &none, Some(DIGEST), 10).unwrap(), None);
    assert_eq!(verified_with(both, &none, Some(&other), 10).unwrap(), None);
    assert_eq!(verified_with(&[(".manifest", MANIFEST_TEXT)], &none, None, 11).unwrap(), None);
    let broken = |_: &str| Err(Error::new(Phase::Image, "the server is in trouble"));
    let known_image =
        KnownImage { url: URL, digest: None, size_bytes: None, id: None, minimum: &MinimumVersions::default() };
    assert_eq!(verify_documents(&broken, &none, &known_image).unwrap(), None);
    assert!(verify_documents(&broken, &keys(&[ONE]), &known_image).is_err());
}

#[test]
fn sha256_file_line_matches_the_image_name() {
    let (one, two) = ("0a".repeat(32), "0b".repeat(32));
    for (text, expected) in [
        (format!("{one}  img"), Ok(&one)),
        (format!("{one} *dir/img\n"), Ok(&one)),
        (format!("{one}  renamed\n"), Ok(&one)),
        (format!("\n{one}\n"), Ok(&one)),
        (format!("\\{one}  back\\\\slash\n"), Ok(&one)),
        (format!("{two}  other\n{one}  ./img\n"), Ok(&one)),
        (format!("{two}  other\n{one}  another\n"), Err("found no line for img")),
        (String::new(), Err("found no line for img")),
        ("<html> not found".to_owned(), Err("not hexadecimal")),
        (format!("{}  img", "0a".repeat(16)), Err("has 32 digits")),
    ] {
        let found = parse_sha256_file(text.as_bytes(), "img");
        match expected {
            Ok(hex) => assert_eq!(found.unwrap().to_string(), format!("sha256:{hex}")),
            Err(says) => assert!(found.unwrap_err().contains(says), "{text}"),
        }
    }
}

#[test]
fn keys_come_from_the_command_line_and_the_ramdisk() {
    let line = |file: &str| file.lines().nth(1).unwrap().to_owned();
    let directory = tempfile::tempdir().unwrap();
    let there = directory.path().join("keys");
    assert_eq!(SignatureKeys::read(&[], &there).unwrap(), SignatureKeys::default());
    std::fs::create_dir(&there).unwrap();
    std::fs::write(there.join("two.pub"), TWO).unwrap();
    std::fs::write(there.join("bare.pub"), line(ONE)).unwrap();
    let read = SignatureKeys::read(&[line(TWO)], &there).unwrap();
    assert_eq!(read.list_ids(), format!("{ONE_ID}, {TWO_ID}"));
    std::fs::remove_file(there.join("two.pub")).unwrap();
    let read = SignatureKeys::read(&[line(TWO)], &there).unwrap();
    assert_eq!(read.list_ids(), ONE_ID, "the command line does not add trusted keys");
    std::fs::remove_file(there.join("bare.pub")).unwrap();
    assert_eq!(SignatureKeys::read(&[line(TWO)], &there).unwrap().list_ids(), TWO_ID);

    for (text, says) in [
        ("", "the key must consist of 42 bytes, encoded in base64"),
        ("RWSrW5G2df4ibM6Z", "the key must consist of 42 bytes, encoded in base64"),
        (&format!("RU{}", &line(ONE)[2..]), "unsupported algorithm"),
    ] {
        let error = SignatureKeys::read(&[text.to_owned()], Path::new("/no/such")).unwrap_err();
        assert!(error.to_string().contains(says) && error.to_string().contains("drophammer.key="), "{error}");
        assert_eq!(error.phase, Phase::Settings);
    }
    for (name, text, says) in [
        ("bad.pub", "ssh-ed25519 AAAA", "bad.pub: `ssh-ed25519 AAAA` is not a minisign public key"),
        ("empty.pub", "untrusted comment: x\n", "must contain exactly one key"),
        ("two-in-one.pub", &format!("{ONE}{TWO}"), "must contain exactly one key"),
        ("one.key", ONE, "only *.pub files"),
    ] {
        std::fs::write(there.join(name), text).unwrap();
        let error = SignatureKeys::read(&[], &there).unwrap_err().to_string();
        assert!(error.contains(says), "{error}");
        std::fs::remove_file(there.join(name)).unwrap();
    }
}

fn reach_with(
    files: Vec<(&'static str, &'static [u8])>,
    keys: SignatureKeys,
    digest: Option<&str>,
) -> (Result<ResolvedImage>, Server) {
    let server = Server::start(vec![0; 10], move |request| {
        let beside = files.iter().find(|(suffix, _)| request.path == format!("/img.tar.zst{suffix}"));
        match beside {
            Some((_, text)) => ResponseBehavior { body: Some(text.to_vec()), ..ResponseBehavior::default() },
            None if request.path == "/img.tar.zst" => ResponseBehavior::default(),
            None => ResponseBehavior::status(404),
        }
    });
    let digest = digest.map(|digest| digest.parse().unwrap());
    let source = ImageSource { url: server.url("img.tar.zst"), digest, keys, ..ImageSource::default() };
    (resolve_image(&http::new_client().unwrap(), &source, &pace()), server)
}

#[test]
fn image_is_resolved_only_with_a_valid_signature() {
    let signed = vec![(".manifest", MANIFEST_TEXT), (".manifest.minisig", BY_ONE)];
    let (reached, _) = reach_with(signed.clone(), keys(&[ONE]), Some(DIGEST));
    let reached = reached.unwrap();
    assert_eq!((reached.signed_by.as_deref(), reached.digest.to_string().as_str()), (Some(ONE_ID), DIGEST));
    assert_eq!(reached.parts[0].manifest.as_ref().unwrap().size_bytes, 10);
    let (refused, server) = reach_with(signed, keys(&[TWO]), None);
    assert!(refused.unwrap_err().to_string().contains("is signed by key 6C22FE75B6915BAB"));
    // The image was requested only with HEAD, not fetched.
    assert!(server.requests().iter().all(|request| request.path != "/img.tar.zst" || request.method == "HEAD"));
    let (refused, _) = reach_with(vec![], keys(&[ONE]), Some(DIGEST));
    assert!(refused.unwrap_err().to_string().contains("is not signed"));
}

#[test]
fn endless_document_is_not_read_to_its_end() {
    static ENDLESS: &[u8] = &[b' '; DOCUMENT_BYTES as usize + 1];
    let (refused, _) = reach_with(vec![(".manifest.minisig", ENDLESS)], keys(&[ONE]), None);
    let error = refused.unwrap_err().to_string();
    assert!(error.contains("longer than 8388608 bytes"), "{error}");
    let (reached, _) = reach_with(vec![(".manifest", ENDLESS)], SignatureKeys::default(), Some(DIGEST));
    assert_eq!(reached.unwrap().parts[0].manifest, None);
}
