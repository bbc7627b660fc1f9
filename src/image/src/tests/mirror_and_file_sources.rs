//! Complete burns from mirrors and files, and with verified chunks.

use super::*;
use sha2::{Digest as _, Sha256};

fn burn(part: ImagePart, root: &Path) -> Result<BurnResult> {
    let reached = ResolvedImage { url: part.url.clone(), parts: vec![part], ..ResolvedImage::default() };
    IncomingImage::start_at_pace(reached, PayloadKind::Tar, pace())?.burn_to_root(
        root,
        &MountsBelow::default(),
        &|_| (),
    )
}

fn part(image: &[u8], urls: &[String]) -> ImagePart {
    let digest = digest(DigestKind::Sha256, image);
    let (url, mirrors, size_bytes) = (urls[0].clone(), urls[1..].to_vec(), Some(image.len() as u64));
    ImagePart { url, mirrors, size_bytes, digest, ..ImagePart::default() }
}

fn manifest(image: &[u8]) -> Option<Arc<ImageManifest>> {
    let sum = |chunk: &[u8]| Sha256::digest(chunk).into();
    let (size_bytes, chunks) = (image.len() as u64, image.chunks(10_000).map(sum).collect());
    Some(Arc::new(ImageManifest { version: 1, size_bytes, chunk_bytes: 10_000, chunks, ..ImageManifest::default() }))
}

fn arrived(root: &Path) -> bool {
    fs::read(root.join("data")).is_ok_and(|data| data == noise(200_000))
}

#[test]
fn mirrors_complete_an_image_unless_forged() {
    let image = compress("zstd", &small_tar());
    let cut =
        || Server::start(image.clone(), |_| ResponseBehavior { etag: None, ..ResponseBehavior::cut_after(100_000) });
    let mut forged = image.clone();
    forged[150_000] ^= 1;
    let (first, good, bad) = (
        cut(),
        Server::start(image.clone(), |_| ResponseBehavior::default()),
        Server::start(forged.clone(), |_| ResponseBehavior::default()),
    );
    let urls = [&first, &bad, &good].map(|server| server.url("image"));

    let root = tempfile::tempdir().unwrap();
    let burned = burn(part(&image, &[urls[0].clone(), urls[2].clone()]), root.path()).unwrap();
    assert_eq!((burned.bytes, burned.resumed), (image.len() as u64, 1));
    assert!(arrived(root.path()));

    // Either the decoder or the digest detects the change first.
    let root = tempfile::tempdir().unwrap();
    let error = burn(part(&image, &urls[..2]), root.path()).unwrap_err().to_string();
    assert!(error.contains("zstd stream is damaged") || error.contains("digest mismatch for"), "{error}");

    let root = tempfile::tempdir().unwrap();
    let verified = ImagePart { manifest: manifest(&image), ..part(&image, &urls) };
    assert_eq!(burn(verified, root.path()).unwrap().bytes, image.len() as u64);
    assert!(arrived(root.path()));

    let verified = ImagePart { manifest: manifest(&image), ..part(&image, &urls[1..2]) };
    let error = burn(verified, tempfile::tempdir().unwrap().path()).unwrap_err().to_string();
    assert!(error.contains("chunk 15 (bytes 150000 to 159999) does not match the manifest"), "{error}");
}

#[test]
fn server_without_etag_is_restarted_from_the_beginning() {
    let image = compress("zstd", &small_tar());
    let first = Server::start(image.clone(), |request| match request.nth {
        0 => ResponseBehavior { etag: None, ..ResponseBehavior::cut_after(100_000) },
        _ => ResponseBehavior { etag: None, ..ResponseBehavior::default() },
    });
    let gone = Server::start(Vec::new(), |_| ResponseBehavior::status(404));
    let root = tempfile::tempdir().unwrap();
    let burned = burn(part(&image, &[first.url("image"), gone.url("image")]), root.path()).unwrap();
    assert_eq!((burned.bytes, first.requests().len()), (image.len() as u64, 2));
    assert!(arrived(root.path()));
}

#[test]
fn image_in_a_file_is_burned() {
    let (dir, root) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let image = compress("gzip", &small_tar());
    fs::write(dir.path().join("img.tar.gz"), &image).unwrap();
    let url = format!("file://{}/img.tar.gz", dir.path().display());
    let sum = digest(DigestKind::Sha256, &image).to_string().replace("sha256:", "");
    fs::write(dir.path().join("img.tar.gz.sha256"), format!("{sum}  img.tar.gz\n")).unwrap();
    let reached =
        fetch::resolve_image(&http::new_client().unwrap(), &ImageSource { url, ..ImageSource::default() }, &pace())
            .unwrap();
    IncomingImage::start_at_pace(reached, PayloadKind::Tar, pace())
        .unwrap()
        .burn_to_root(root.path(), &MountsBelow::default(), &|_| ())
        .unwrap();
    assert!(arrived(root.path()));
}
