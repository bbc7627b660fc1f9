//! Signatures of packed images: verification with the public key, and comparison of the signed image id.

use super::*;

#[test]
fn signed_image_is_burned_only_with_its_key() {
    http::new_client().unwrap();
    let (tree, out) = (small_tree(&NAMES), tempfile::tempdir().unwrap());
    let image = out.path().join("image.tar.zst");
    pack_image(&with_key(options(tree.path(), &image), "one.key")).unwrap();
    let (server, root) = (serve(out.path()), tempfile::tempdir().unwrap());
    assert_eq!(burn(&server, "one.pub", root.path()).unwrap().as_deref(), Some("6C22FE75B6915BAB"));
    assert_same(&look(tree.path(), true), &look(root.path(), true), "burned");

    let empty = tempfile::tempdir().unwrap();
    let error = burn(&server, "two.pub", empty.path()).unwrap_err().to_string();
    assert!(
        error.contains("signed by key 6C22FE75B6915BAB, which is not trusted; trusted keys: 1D1052ED9DBCA100"),
        "{error}"
    );
    // The image is replaced by an unsigned one.
    pack_image(&options(tree.path(), &image)).unwrap();
    assert!(burn(&server, "one.pub", empty.path()).unwrap_err().to_string().contains("is not signed"));
    assert_eq!(fs::read_dir(empty.path()).unwrap().count(), 0);
}

/// Resolves the image as requested with the image id `id`, and with `oldest` as minimum versions. Returns the signed
/// id.
fn reach_as(server: &Server, id: &str, oldest: &[&str]) -> Result<Option<String>> {
    let key = fs::read_to_string(Path::new(TRUSTED_KEYS_DIRECTORY).join("one.pub"))
        .unwrap()
        .lines()
        .nth(1)
        .unwrap()
        .to_owned();
    let keys = SignatureKeys::read(&[key], Path::new("/no/such/directory"))?;
    let oldest: Vec<String> = oldest.iter().map(|id| (*id).to_owned()).collect();
    let minimum = crate::MinimumVersions::read(&oldest, Path::new("/no/such/file"), &keys)?;
    let (url, id) = (server.url("image.tar.zst"), Some(id.to_owned()));
    Ok(crate::resolve_image(&crate::ImageSource { url, id, keys, minimum, ..crate::ImageSource::default() })?.signed_as)
}

#[test]
fn signature_applies_to_the_named_image() {
    http::new_client().unwrap();
    let (tree, out) = (small_tree(&NAMES), tempfile::tempdir().unwrap());
    let image = out.path().join("image.tar.zst");
    let named = "ubuntu-24.04.20240101";
    let signed = with_id(with_key(options(tree.path(), &image), "one.key"), named);
    let line = pack_image(&signed).unwrap().format_line();
    assert!(line.contains("(signed by 6C22FE75B6915BAB as ubuntu-24.04.20240101)"), "{line}");
    let server = serve(out.path());
    // The id is read from the manifest or, if the manifest's signature was removed, from the signature of the checksum.
    for taken_away in [None, Some(".manifest.minisig")] {
        if let Some(suffix) = taken_away {
            fs::remove_file(with_suffix(&image, suffix)).unwrap();
        }
        for (id, oldest) in [(named, &[][..]), ("ubuntu-24.04", &[]), (named, &[named]), (named, &["debian-12"])] {
            assert_eq!(reach_as(&server, id, oldest).unwrap().as_deref(), Some(named));
        }
        for (id, oldest, says) in [
            (
                "ubuntu-24.04.20240202",
                &[][..],
                "signed as ubuntu-24.04.20240101, but ubuntu-24.04.20240202 is requested",
            ),
            ("debian-12.0.20261101", &[], "signed as ubuntu-24.04.20240101, but debian-12.0.20261101 is requested"),
            (named, &["debian-12", "ubuntu-24.04.20240202"], "is older than ubuntu-24.04.20240202, the oldest version"),
        ] {
            let error = reach_as(&server, id, oldest).unwrap_err();
            assert!(error.is_refusal() && error.to_string().contains(says), "{error}");
        }
    }
    // Signed without an id.
    pack_image(&with_key(options(tree.path(), &image), "one.key")).unwrap();
    assert_eq!(reach_as(&server, named, &[]).unwrap(), None);
    let error = reach_as(&server, named, &["debian-12"]).unwrap_err();
    assert!(error.is_refusal() && error.to_string().contains("the signature does not contain an image id"), "{error}");
}
