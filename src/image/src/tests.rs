//! The whole pipeline, from a server in the test to the files, with valid and all types of invalid images.

use super::fetch::{self, FetchRetryPolicy, ImageManifest, ImagePart};
use super::pipeline::{Digest, DigestKind, DigestReader, DownloadState, StageClocks};
use super::testing::{Tar, compress, noise, pace, reader};
use super::tree::tests::names;
pub(crate) use super::tree::tests::{assert_same, look};
use super::tree::{HiddenFileCounter, UnpackRoot, members_of, untar};
use super::{BurnResult, ImageSource, IncomingImage, MountsBelow, PayloadKind, ResolvedImage};
use common::error::{Phase, Result};
use linux::http;
use model::install_report::HiddenFiles;
use std::collections::BTreeMap;
use std::fs;
use std::io::Read;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use tempfile::TempDir;
use testing::http::{ResponseBehavior, Server};

mod decompression_bombs;
mod file_types;
mod generated_trees;
mod malicious_servers;
mod mirror_and_file_sources;
mod preserved_filesystems;
mod work_limits;

pub(crate) use file_types::create_all_file_types;

fn digest(kind: DigestKind, bytes: &[u8]) -> Digest {
    let mut digesting = DigestReader::new(bytes, kind);
    std::io::copy(&mut digesting, &mut std::io::sink()).unwrap();
    digesting.finish()
}

/// Burns an image from a server, with the digest of `promised` as the expected digest.
fn burn_from(server: &Server, promised: &[u8], root: &Path) -> Result<BurnResult> {
    let source = ImageSource {
        url: server.url("img.tar.zst"),
        digest: Some(digest(DigestKind::Sha256, promised)),
        ..ImageSource::default()
    };
    let reached = fetch::resolve_image(&http::new_client()?, &source, &pace())?;
    IncomingImage::start_at_pace(reached, PayloadKind::Tar, pace())?.burn_to_root(
        root,
        &MountsBelow::default(),
        &|_| (),
    )
}

fn small_tar() -> Vec<u8> {
    Tar::new().file("etc/hostname", b"server").file("data", &noise(200_000)).symlink("link", "data").end()
}

#[test]
fn image_in_each_format_is_unpacked_and_counted() {
    for format in ["zstd", "lz4", "gzip", "xz", "plain"] {
        let image = compress(format, &small_tar());
        let (size, total) = (image.len() as u64, small_tar().len() as u64);
        let server = Server::start(image.clone(), |_| ResponseBehavior::default());
        let root = tempfile::tempdir().unwrap();
        let told = Mutex::new(Vec::new());
        for kind in [DigestKind::Sha256, DigestKind::Sha512, DigestKind::Md5] {
            let part = ImagePart {
                url: server.url("x"),
                size_bytes: Some(size),
                etag: Some("\"one\"".into()),
                digest: digest(kind, &image),
                ..ImagePart::default()
            };
            let incoming =
                IncomingImage::start(ResolvedImage { parts: vec![part], ..ResolvedImage::default() }, PayloadKind::Tar)
                    .unwrap();
            let watch = |progress| told.lock().unwrap().push(progress);
            let burned = incoming.burn_to_root(root.path(), &MountsBelow::default(), &watch).unwrap();
            let stages: Vec<_> = burned.shares.iter().map(|share| share.stage.as_str()).collect();
            assert_eq!(stages, ["network", "digest", "decode", "untar", "write"]);
            let expected = BurnResult { bytes: size, tar_bytes: total, entries: 3, ..BurnResult::default() };
            assert_eq!(BurnResult { shares: Vec::new(), ..burned }, expected, "{format}");
        }
        assert_eq!(fs::read_to_string(root.path().join("etc/hostname")).unwrap(), "server");
        assert!(fs::read(root.path().join("link")).unwrap() == noise(200_000));
        let last = told.lock().unwrap().last().cloned().unwrap();
        assert_eq!((last.bytes, last.total_bytes, last.seconds_left), (size, Some(size), Some(0)));
    }
}

#[test]
fn every_invalid_image_is_refused_by_the_failed_check() {
    let tar = small_tar();
    let good = compress("zstd", &tar);
    let cut_tar = &tar[..tar.len() - 1024];
    let half_tar = &tar[..tar.len() / 2 / 512 * 512];
    let mut flipped = good.clone();
    flipped[100_000] ^= 1;
    let bare = [vec![0; 450], vec![0x83], vec![0; 59], vec![0x55, 0xaa], vec![0; 512]].concat();
    let disk = compress("zstd", &bare);
    let cases: Vec<(Vec<u8>, Vec<u8>, &str)> = vec![
        (good.clone(), b"another".to_vec(), "digest mismatch for"),
        (
            good[..good.len() / 2].to_vec(),
            good[..good.len() / 2].to_vec(),
            "zstd stream is truncated: it ends within a frame",
        ),
        (flipped.clone(), flipped, "zstd stream is damaged near byte"),
        ([&good[..], b"garbage"].concat(), good.clone(), "unexpected data after the end of the zstd stream"),
        (compress("zstd", cut_tar), compress("zstd", cut_tar), "the tar archive is truncated: it ends after byte"),
        (compress("lz4", half_tar), compress("lz4", half_tar), "the tar archive is truncated: it ends after byte"),
        (
            compress("gzip", &tar[..1000]),
            compress("gzip", &tar[..1000]),
            "the tar archive is truncated: it ends after byte",
        ),
        (compress("zstd", &[&tar[..], b"x"].concat()), good.clone(), "unexpected data after the end of the archive"),
        (compress("zstd", b"not a tar"), good.clone(), "the tar archive is truncated: it ends after byte 9,"),
        (compress("zstd", &noise(4096)), good.clone(), "wrong checksum"),
        (half_tar.to_vec(), half_tar.to_vec(), "the tar archive is truncated: it ends after byte"),
        (tar[1..].to_vec(), tar[1..].to_vec(), "unknown compression: the image begins with 74 63 2f"),
        (b"<!DOCTYPE html>".to_vec(), good.clone(), "unknown compression"),
        (Vec::new(), good.clone(), "the image is empty"),
        (disk.clone(), disk, "the image is a raw disk image; use a layout with image: true"),
        (bare.clone(), bare, "the image is a raw disk image; use a layout with image: true"),
    ];
    for (served, promised, says) in cases {
        let server = Server::start(served, |_| ResponseBehavior::default());
        let root = tempfile::tempdir().unwrap();
        let error = burn_from(&server, &promised, root.path()).unwrap_err();
        assert!(error.to_string().contains(says), "{says}: {error}");
        assert!(error.to_string().contains("/img.tar.zst"), "{error}");
        assert_eq!(error.phase, Phase::Image);
    }
}

#[test]
fn digest_mismatch_reports_both_digests() {
    let image = compress("zstd", &small_tar());
    let server = Server::start(image.clone(), |_| ResponseBehavior::default());
    let root = tempfile::tempdir().unwrap();
    let error = burn_from(&server, b"x", root.path()).unwrap_err().to_string();
    assert!(error.contains(&digest(DigestKind::Sha256, b"x").to_string()), "{error}");
    assert!(error.contains(&format!("got {}", digest(DigestKind::Sha256, &image))), "{error}");
}

#[test]
fn digest_mismatch_leaves_no_files_of_the_image() {
    let image = compress("zstd", &small_tar());
    let root = tempfile::tempdir().unwrap();
    fs::create_dir(root.path().join("lost+found")).unwrap();
    burn_from(&Server::start(image.clone(), |_| ResponseBehavior::default()), b"x", root.path()).unwrap_err();
    assert_eq!(names(root.path()), [Path::new("lost+found")]);
    // A truncated image also leaves no files.
    burn_from(&Server::start(image[..image.len() / 2].to_vec(), |_| ResponseBehavior::default()), b"x", root.path())
        .unwrap_err();
    assert_eq!(names(root.path()), [Path::new("lost+found")]);
}

/// Burns to a directory whose existing files belong to another owner.
fn burn_among_others(part: ImagePart, root: &Path) -> Result<BurnResult> {
    let reached = ResolvedImage { url: part.url.clone(), parts: vec![part], ..ResolvedImage::default() };
    IncomingImage::start_at_pace(reached, PayloadKind::Tar, pace())?.among_others().burn_to_root(
        root,
        &MountsBelow::default(),
        &|_| (),
    )
}

#[test]
fn foreign_directory_is_changed_only_after_digest_verification() {
    let image = compress("zstd", &Tar::new().file("mine", b"the image's").file("data", &noise(3 << 20)).end());
    let server = Server::start(image.clone(), |_| ResponseBehavior::default());
    let directory = tempfile::tempdir().unwrap();
    fs::write(directory.path().join("mine"), "mine").unwrap();
    let part = |promised: &[u8]| ImagePart {
        url: server.url("x"),
        size_bytes: Some(image.len() as u64),
        etag: Some("\"one\"".into()),
        digest: digest(DigestKind::Sha256, promised),
        ..ImagePart::default()
    };
    // The chunk digests of an unsigned manifest may belong to an image other than that of the expected digest.
    let manifest = ImageManifest::compute(&image[..], image.len() as u64).unwrap();
    let lying = ImageManifest { digest: digest(DigestKind::Sha256, b"x"), ..manifest };
    for manifest in [None, Some(Arc::new(lying))] {
        let error = burn_among_others(ImagePart { manifest, ..part(b"x") }, directory.path()).unwrap_err().to_string();
        assert!(error.contains("digest mismatch") && error.ends_with("nothing was unpacked"), "{error}");
        assert_eq!(fs::read_to_string(directory.path().join("mine")).unwrap(), "mine");
        assert_eq!(names(directory.path()), [Path::new("mine")]);
    }
    let burned = burn_among_others(part(&image), directory.path()).unwrap();
    assert_eq!((burned.bytes, burned.entries), (image.len() as u64, 2));
    let stages: Vec<_> = burned.shares.iter().map(|share| share.stage.as_str()).collect();
    assert_eq!(stages, ["network", "digest", "hold", "decode", "untar", "write"]);
    assert_eq!(fs::read_to_string(directory.path().join("mine")).unwrap(), "the image's");
    assert_eq!(names(directory.path()), [Path::new("data"), Path::new("mine")]);
    // If there are no files to replace, the image is streamed.
    let directory = tempfile::tempdir().unwrap();
    fs::create_dir(directory.path().join("lost+found")).unwrap();
    let stages = burn_among_others(part(&image), directory.path()).unwrap().shares;
    assert!(stages.iter().all(|share| share.stage != "hold"), "{stages:?}");
    burn_among_others(part(b"x"), directory.path()).unwrap_err();
}

#[test]
fn missing_image_or_server_error_is_reported() {
    for (status, says) in [(404, "404 Not Found"), (500, "500 Internal Server Error (4 attempts")] {
        let server = Server::start(compress("zstd", &small_tar()), move |request| match request.method.as_str() {
            "HEAD" => ResponseBehavior::default(),
            _ => ResponseBehavior::status(status),
        });
        let root = tempfile::tempdir().unwrap();
        let error = burn_from(&server, b"", root.path()).unwrap_err().to_string();
        assert!(error.contains(says), "{error}");
    }
}

#[test]
fn interrupted_download_is_resumed_and_counted() {
    let image = compress("zstd", &small_tar());
    let server = Server::start(image.clone(), |request| match (request.method.as_str(), request.nth) {
        ("GET", 0) => ResponseBehavior::cut_after(70_000),
        ("GET", 1) => ResponseBehavior::status(502),
        _ => ResponseBehavior::default(),
    });
    let root = tempfile::tempdir().unwrap();
    let burned = burn_from(&server, &image, root.path()).unwrap();
    assert_eq!((burned.resumed, burned.bytes), (2, image.len() as u64));
}

#[test]
fn changed_image_restarts_in_an_empty_root() {
    let old = compress("zstd", &Tar::new().file("old/file", b"old").file("data", &noise(200_000)).end());
    let new = compress("zstd", &Tar::new().file("new", b"new").file("data", &noise(150_000)).end());
    let (promised, changed) = (new.clone(), new);
    let server = Server::start(old, move |request| match (request.method.as_str(), request.nth) {
        ("HEAD", _) => ResponseBehavior::default(),
        ("GET", 0) => ResponseBehavior::cut_after(100_000),
        _ => ResponseBehavior {
            etag: Some("\"two\"".into()),
            body: Some(changed.clone()),
            ..ResponseBehavior::default()
        },
    });
    let root = tempfile::tempdir().unwrap();
    fs::create_dir(root.path().join("lost+found")).unwrap();
    let burned = burn_from(&server, &promised, root.path()).unwrap();
    assert_eq!((burned.resumed, burned.bytes), (2, promised.len() as u64));
    let mut names: Vec<_> = fs::read_dir(root.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    names.sort();
    assert_eq!(names, ["data", "lost+found", "new"]);
}

#[test]
fn number_of_restarts_is_limited() {
    let image = compress("zstd", &small_tar());
    let server = Server::start(image.clone(), |request| match request.method.as_str() {
        "HEAD" => ResponseBehavior::default(),
        _ => ResponseBehavior { ranges: false, ..ResponseBehavior::cut_after(100_000) },
    });
    let root = tempfile::tempdir().unwrap();
    let error = burn_from(&server, &image, root.path()).unwrap_err().to_string();
    assert!(
        error.contains(
            "in 3 attempts: it changed during the download, or the download could not be resumed. Last reason: "
        ),
        "{error}"
    );
    assert!(names(root.path()).is_empty(), "files of the image remain");
}

#[test]
fn existing_files_are_not_removed_for_a_restart() {
    let image = compress("zstd", &small_tar());
    let server = Server::start(image.clone(), |request| match request.method.as_str() {
        "HEAD" => ResponseBehavior::default(),
        _ => ResponseBehavior { ranges: false, ..ResponseBehavior::cut_after(100_000) },
    });
    let root = tempfile::tempdir().unwrap();
    fs::write(root.path().join("mine"), "content").unwrap();
    let source = ImageSource {
        url: server.url("image"),
        digest: Some(digest(DigestKind::Sha256, &image)),
        ..ImageSource::default()
    };
    let reached = fetch::resolve_image(&http::new_client().unwrap(), &source, &pace()).unwrap();
    let incoming = IncomingImage::start_at_pace(reached, PayloadKind::Tar, pace()).unwrap().among_others();
    let error = incoming.burn_to_root(root.path(), &MountsBelow::default(), &|_| ()).unwrap_err().to_string();
    assert!(
        error.contains("it changed during the download, or the download could not be resumed. Last reason: "),
        "{error}"
    );
    assert_eq!(fs::read_to_string(root.path().join("mine")).unwrap(), "content");
}

#[test]
fn missing_root_is_named() {
    let part =
        ImagePart { url: "http://127.0.0.1:1/".into(), digest: digest(DigestKind::Md5, b""), ..ImagePart::default() };
    let incoming =
        IncomingImage::start(ResolvedImage { parts: vec![part], ..ResolvedImage::default() }, PayloadKind::Tar)
            .unwrap();
    let error =
        incoming.burn_to_root(Path::new("/no/such/root"), &MountsBelow::default(), &|_| ()).unwrap_err().to_string();
    assert!(error.contains("open /no/such/root"), "{error}");
}
fn burn_tar(tar: &[u8], format: &str) -> TempDir {
    let image = compress(format, tar);
    let server = Server::start(image.clone(), |_| ResponseBehavior::default());
    let root = tempfile::tempdir().unwrap();
    burn_from(&server, &image, root.path()).unwrap();
    root
}
