//! Raw images from a server: complete, changed during the download, or damaged.

use super::*;
use common::error::Phase;

/// Burns `served` to a file, with the digest of `promised` as the expected digest.
fn burn(served: &[u8], promised: &[u8], disk: &NamedTempFile) -> common::error::Result<crate::BurnResult> {
    let server = Server::start(served.to_vec(), |_| ResponseBehavior::default());
    burn_from(&server, promised, disk)
}

fn burn_from(server: &Server, promised: &[u8], disk: &NamedTempFile) -> common::error::Result<crate::BurnResult> {
    let source = ImageSource {
        url: server.url("disk.raw.zst"),
        digest: Some(Digest::of_bytes(promised)),
        ..ImageSource::default()
    };
    let reached = resolve_image(&linux::http::new_client()?, &source, &pace())?;
    IncomingImage::start_at_pace(reached, PayloadKind::AnyBytes, pace())?.burn_to_disk(
        &open(disk),
        &partitioned(),
        &|_| (),
    )
}

#[test]
fn image_is_downloaded_onto_the_disk() {
    let image = [image(3 * MIB), vec![0; 5 * MIB], noise(MIB)].concat();
    for format in ["zstd", "lz4", "gzip", "xz", "plain"] {
        let (disk, packed) = (file(10 * MIB), compress(format, &image));
        let burned = burn(&packed, &packed, &disk).unwrap();
        assert_eq!((burned.bytes, burned.tar_bytes), (packed.len() as u64, image.len() as u64));
        let stages: Vec<_> = burned.shares.iter().map(|share| share.stage.as_str()).collect();
        assert_eq!(stages, ["network", "digest", "decode", "write"]);
        assert_written(&fs::read(disk.path()).unwrap(), &image, 512);
    }
}

#[test]
fn changed_image_is_written_again_from_its_start() {
    // The old image is compressed with gzip, because nothing would be written of a truncated zstd frame.
    let (old, new) = (compress("gzip", &image(5 * MIB)), compress("zstd", &image(2 * MIB)));
    let changed = new.clone();
    let server = Server::start(old, move |request| match (request.method.as_str(), request.nth) {
        ("HEAD", _) => ResponseBehavior::default(),
        ("GET", 0) => ResponseBehavior::cut_after(4 * MIB),
        _ => ResponseBehavior {
            etag: Some("\"two\"".into()),
            body: Some(changed.clone()),
            ..ResponseBehavior::default()
        },
    });
    let disk = file(10 * MIB);
    let burned = burn_from(&server, &new, &disk).unwrap();
    assert_eq!(burned.resumed, 2);
    let written = fs::read(disk.path()).unwrap();
    assert!(written[..2 * MIB] == image(2 * MIB));
    // After the end of the new image, the disk contains zeros or its original content, but no data of the old image.
    let (is, first) = (written[2 * MIB..].chunks(4096), image(5 * MIB));
    let first: Vec<&[u8]> = first[2 * MIB..].chunks(4096).collect();
    let zeros = is.clone().filter(|block| block.iter().all(|byte| *byte == 0)).count();
    let left = is.clone().filter(|block| first.contains(block)).count();
    assert_eq!((zeros > 0, left), (true, 0));
}

#[test]
fn repeatedly_changing_image_is_an_error_with_the_reason() {
    let body = compress("gzip", &image(3 * MIB));
    let changed = body.clone();
    let server = Server::start(body.clone(), move |request| {
        let etag = Some(format!("\"{}\"", request.nth));
        match request.method.as_str() {
            "HEAD" => ResponseBehavior::default(),
            _ => ResponseBehavior { etag, body: Some(changed.clone()), ..ResponseBehavior::cut_after(2 * MIB) },
        }
    });
    let disk = file(10 * MIB);
    let error = burn_from(&server, &body, &disk).unwrap_err().to_string();
    assert!(
        error.contains(
            "in 3 attempts: it changed during the download, or the download could not be resumed. Last reason: "
        ),
        "{error}"
    );
    assert!(error.contains("the server resent the image from its beginning"), "{error}");
    assert!(fs::read(disk.path()).unwrap()[..MIB].iter().all(|byte| *byte == 0));
}

#[test]
fn unverified_image_does_not_get_its_first_mib() {
    let good = compress("zstd", &image(3 * MIB));
    let mut flipped = good.clone();
    flipped[2 * MIB] ^= 1;
    let mut followed = good.clone();
    followed.extend(b"garbage");
    let half = good[..good.len() / 2].to_vec();
    // Whether data is decoded before a damaged frame is detected depends on the number of cores.
    let cases = [
        (good.clone(), b"another".to_vec(), "digest mismatch", true),
        (followed.clone(), followed, "unexpected data after the end", true),
        (flipped.clone(), flipped, "zstd stream is damaged", false),
        (half.clone(), half, "it ends within a frame", false),
    ];
    for (served, promised, says, arrives) in cases {
        let disk = file(3 * MIB);
        let before = fs::read(disk.path()).unwrap();
        let error = burn(&served, &promised, &disk).unwrap_err();
        assert!(error.to_string().contains(says), "{error}");
        assert_eq!(error.phase, Phase::Image);
        let now = fs::read(disk.path()).unwrap();
        if !arrives && now == before {
            continue;
        }
        let last = 3 * MIB - 512;
        assert!(now[..MIB].iter().chain(&now[last..]).all(|byte| *byte == 0), "{says}");
        assert!(!arrives || now[MIB..last] == image(3 * MIB)[MIB..last], "{says}: the image was not written");
    }
}

#[test]
fn tar_archive_is_not_written_to_a_disk() {
    let tar = compress("zstd", &Tar::new().file("etc/hostname", b"server").end());
    let disk = file(10 * MIB);
    let error = burn(&tar, &tar, &disk).unwrap_err().to_string();
    assert!(error.contains("the image is a tar archive"), "{error}");
    assert!(fs::read(disk.path()).unwrap().iter().all(|byte| *byte == 0xaa));
}

#[test]
#[ignore = "needs root and loop devices"]
fn loop_wrong_digest_leaves_the_first_mib_zero() {
    let disk = TestLoopDevice::new(8 * MIB as u64, 512);
    fs::write(disk.path(), vec![0xaa; 8 * MIB]).unwrap();
    let packed = compress("zstd", &image(3 * MIB));
    let server = Server::start(packed, |_| ResponseBehavior::default());
    let source =
        ImageSource { url: server.url("x"), digest: Some(Digest::of_bytes(b"another")), ..ImageSource::default() };
    let burn = || {
        let reached = resolve_image(&linux::http::new_client().unwrap(), &source, &pace()).unwrap();
        let incoming = IncomingImage::start_at_pace(reached, PayloadKind::AnyBytes, pace()).unwrap();
        let target = RawTarget::open(disk.path());
        target.and_then(|target| incoming.burn_to_disk(&target, &partitioned(), &|_| ())).unwrap_err().to_string()
    };
    let error = burn();
    assert!(error.contains(&format!("the first 1 MiB of {} remain zero", disk.path())), "{error}");
    let found = fs::read(disk.image()).unwrap();
    assert!(found[..MIB].iter().all(|byte| *byte == 0));
    assert!(found[MIB..3 * MIB] == image(3 * MIB)[MIB..]);

    linux::process::ToolCommand::new("mkfs.ext4").args(["-q", disk.path().as_str()]).run().unwrap();
    let point = tempfile::tempdir().unwrap();
    let mount = sys_mount::Mount::builder()
        .fstype("ext4")
        .mount_autodrop(disk.path(), point.path(), sys_mount::UnmountFlags::empty())
        .unwrap();
    let error = burn();
    assert!(error.contains(&format!("is mounted at {}", point.path().display())), "{error}");
    drop(mount);
}
