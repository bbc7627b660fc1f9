//! Tests of the targets, keys, registry credentials and summary of `image burn`.

use super::*;
use linux::gpt::testing::crowded_image;
use model::install_report::StageShare;
use testing::images::{Tar, compress};

fn burn() -> BurnOptions {
    let (url, target) = ("http://h/i".to_owned(), PathBuf::from("/mnt"));
    BurnOptions {
        url,
        target,
        digest: None,
        mirror: vec![],
        key: vec![],
        registry_config: None,
        overwrite: false,
        json: false,
    }
}

#[test]
fn target_is_a_directory_unless_overwrite_selects_a_disk() {
    let dir = tempfile::tempdir().unwrap();
    let real = fs::canonicalize(dir.path()).unwrap();
    let target = |path: &Path, overwrite| resolve_target(&BurnOptions { target: path.to_owned(), overwrite, ..burn() });
    assert_eq!(target(&dir.path().join("."), false).unwrap(), BurnTarget::Directory(real.clone()));
    let error = target(dir.path(), true).unwrap_err().to_string();
    assert!(error.contains("is a directory, but --overwrite is for disks"), "{error}");
    fs::write(dir.path().join("file"), "").unwrap();
    std::os::unix::fs::symlink("/", dir.path().join("root")).unwrap();
    for (path, says) in [
        (dir.path().join("missing"), "No such file"),
        (dir.path().join("file"), "to replace all data of the target with a raw disk image, add --overwrite"),
        ("/dev/null".into(), "is neither a directory nor a disk"),
        (dir.path().join("root"), "is the root directory of the running system"),
        ("/".into(), "the target / is the root directory of the running system"),
        ("/usr/..".into(), "is the root directory of the running system"),
    ] {
        let error = target(&path, false).unwrap_err().to_string();
        assert!(error.contains(says), "{error}");
    }
    assert_eq!(target(&dir.path().join("file"), true).unwrap(), BurnTarget::Disk(real.join("file")));
}

#[test]
fn key_is_given_as_text_or_file() {
    let trust = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../..")).join("testdata/trust");
    let file = trust.join("one.pub");
    let text = fs::read_to_string(&file).unwrap();
    let line = text.lines().last().unwrap();
    assert_eq!(read_public_key(line).unwrap(), read_public_key(file.to_str().unwrap()).unwrap());
    let secret = trust.join("one.key");
    let text = fs::read_to_string(&secret).unwrap();
    let line = text.lines().last().unwrap();
    for (given, words) in [
        ("no key", "is not a minisign public key"),
        (secret.to_str().unwrap(), "one.key: the key is a secret key; specify the public key"),
        (line, "the key is a secret key"),
        (&line[1..], "is not a minisign public key"),
    ] {
        let error = read_public_key(given).unwrap_err();
        let said = error.to_string();
        assert!(error.is_refusal() && said.contains(words), "{said}");
        assert!(!said.contains(&line[50..80]), "no part of the key is printed: {said}");
    }
}

#[test]
fn registry_credentials_come_from_the_docker_config() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("config.json");
    let burn = BurnOptions {
        url: "oci://r.example/debian:12".to_owned(),
        mirror: vec!["oci://m.example/debian:12".to_owned(), "oci://n.example/debian:12".to_owned()],
        registry_config: Some(file.clone()),
        ..burn()
    };
    fs::write(&file, r#"{"auths": {"r.example": {"auth": "dTpw"}, "m.example": {"auth": "djpx"}}}"#).unwrap();
    let found: Vec<String> =
        build_source(&burn).unwrap().pull_secrets.into_iter().map(|secret| secret.username).collect();
    assert_eq!(found, ["u", "v"]);
    fs::write(&file, r#"{"auths": {"r.example": {"auth": "hunter2"}}}"#).unwrap();
    let error = build_source(&burn).unwrap_err();
    let said = error.to_string();
    assert!(
        error.is_refusal() && said.contains("config.json: auth for r.example") && !said.contains("hunter2"),
        "{said}"
    );
}

#[test]
fn messages_do_not_mention_layouts() {
    let said = |what: &str| replace_layout_advice(Error::refusal(Phase::Image, what)).to_string();
    let tar = said("file:///i.tar: the image is a tar archive, but the layout has image: true for /dev/sdb; provide");
    assert_eq!(
        tar,
        "file:///i.tar: the image is a tar archive, but --overwrite is for raw disk images; specify a directory and omit --overwrite"
    );
    assert_eq!(said("anything else"), "anything else");
}

/// Creates an image file and its digest file. Returns the URL of the image.
fn image(path: &Path, bytes: &[u8]) -> String {
    fs::write(path, bytes).unwrap();
    let script = format!("sha256sum {0} > {0}.sha256", path.display());
    linux::process::ToolCommand::new("sh").args(["-c", &script]).run().unwrap();
    format!("file://{}", path.display())
}

#[test]
fn refusals_are_distinguished_from_failures() {
    let dir = tempfile::tempdir().unwrap();
    let (root, disk) = (dir.path().join("root"), dir.path().join("disk"));
    fs::create_dir(&root).unwrap();
    fs::write(&disk, vec![0xaa; 4 << 20]).unwrap();
    let tar = image(&dir.path().join("image.tar"), &Tar::new().file("etc/hostname", b"server").end());
    let raw = image(&dir.path().join("image.raw.zst"), &compress("zstd", &crowded_image(512, 4000)));
    let large = image(&dir.path().join("large.raw.zst"), &compress("zstd", &crowded_image(4096, 500)));
    let key = || vec!["RWSrW5G2df4ibM6Z/TrFXWSUPCeEn03zajmuZvLkO989EEiX+0k//xd8".to_owned()];
    let onto = |url: &str, target: &Path, overwrite| BurnOptions {
        url: url.to_owned(),
        target: target.to_owned(),
        overwrite,
        ..burn()
    };
    let refused = [
        onto(&tar, Path::new("/"), false),
        onto(&raw, &disk, false),
        onto(&tar, &root, true),
        onto(&raw, &root, false),
        onto(&tar, &disk, true),
        onto(&large, &disk, true),
        onto("ftp://h/i", &root, false),
        BurnOptions { key: key(), ..onto(&tar, &root, false) },
        BurnOptions { key: vec!["no key".to_owned()], ..onto(&tar, &root, false) },
        BurnOptions { digest: Some("sha256:0".to_owned()), ..onto(&tar, &root, false) },
        BurnOptions { key: key(), mirror: vec![raw.clone()], ..onto(&tar, &root, false) },
    ];
    for burn in &refused {
        assert_eq!(run(burn).unwrap(), CommandOutcome::Refused, "{burn:?}");
    }
    let failed = [
        onto(&tar, &dir.path().join("missing"), false),
        onto(&format!("{tar}.missing"), &root, false),
        BurnOptions { mirror: vec![format!("{tar}.missing")], ..onto(&format!("{tar}.gone"), &root, false) },
    ];
    for burn in &failed {
        run(burn).unwrap_err();
    }
    assert_eq!(fs::read_dir(&root).unwrap().count(), 0);
    assert!(fs::read(&disk).unwrap().iter().all(|byte| *byte == 0xaa));
    assert_eq!(run(&onto(&tar, &root, false)).unwrap(), CommandOutcome::Good);
    assert_eq!(run(&onto(&raw, &disk, true)).unwrap(), CommandOutcome::Good);
    assert!(fs::read(&disk).unwrap()[..4000 * 512] == crowded_image(512, 4000));
    // At this time, a part of the image has been written.
    run(&BurnOptions { digest: Some(format!("sha256:{:064}", 0)), ..onto(&raw, &disk, true) }).unwrap_err();
}

#[test]
fn burn_summary_is_formatted() {
    let shares =
        vec![StageShare { stage: "network".into(), percent: 97 }, StageShare { stage: "decode".into(), percent: 20 }];
    let burned =
        BurnResult { bytes: 387_000_000, tar_bytes: 1_478_000_000, entries: 31_114, shares, ..BurnResult::default() };
    let figures =
        BurnSummary::new("sha256:0a".to_owned(), &burned, Duration::from_millis(3100), Duration::from_millis(3180));
    let figures = BurnSummary { peak_rss_bytes: Some(45_000_000), ..figures };
    let expected = "sha256:0a\n\
        387 MB in 3.1 s, 125 MB/s: network 97 % (the bottleneck), decode 20 %\n\
        31114 files, 1.48 GB unpacked; synced to disk 0.08 s later, 3.18 s in total\n\
        connection resumed 0 times; peak memory 45.0 MB\n";
    assert_eq!(figures.format_lines(), expected);
}
