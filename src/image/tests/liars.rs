//! Servers that lie. Whatever one does, the image is there whole at the end, or nothing of it is.

use super::*;

/// What it does when it is asked for the image, and when it is asked for the rest.
fn lies(image: &[u8]) -> Vec<(&'static str, Act)> {
    let good = Act::default;
    let body = |body: Vec<u8>| Act { body: Some(body), ..Act::default() };
    let header = |name, value: &str| Act { headers: vec![(name, value.to_owned())], ..Act::default() };
    let range = |text: &str| Act { content_range: Some(text.to_owned()), ..Act::cut_after(90_000) };
    let mut forged = image.to_vec();
    forged[image.len() / 2] ^= 1;
    let other = compress("zstd", &Tar::new().file("evil", &noise(200_000)).end());
    let status = [204, 206, 301, 304, 400, 401, 404, 416, 500].map(|status| ("a status", Act::status(status)));
    let more = [
        ("nothing", Act::cut_after(0)),
        ("one byte each time", Act::cut_after(1)),
        ("a part each time", Act::cut_after(90_000)),
        ("a part without ranges", Act { ranges: false, ..Act::cut_after(90_000) }),
        ("a part without an ETag", Act { etag: None, ..Act::cut_after(90_000) }),
        ("a part with a weak ETag", Act { etag: Some("W/\"one\"".to_owned()), ..Act::cut_after(90_000) }),
        (
            "a part, whatever If-Range says",
            Act { trust_range: true, etag: Some("\"two\"".to_owned()), ..Act::cut_after(90_000) },
        ),
        ("more than it says", Act { more: true, ..good() }),
        ("no length", Act { length: false, ..good() }),
        ("no length, and a part", Act { length: false, ..Act::cut_after(90_000) }),
        ("no length, and more", Act { length: false, more: true, ..good() }),
        ("a range of nothing", range("bytes 0-0/1")),
        ("a range backwards", range("bytes 9-1/9")),
        ("a range that is none", range("bytes x-y/z")),
        ("a range beyond everything", range("bytes 18446744073709551615-18446744073709551616/18446744073709551617")),
        ("one bit", body(forged)),
        ("another image", body(other)),
        ("a shorter one", body(image[..image.len() / 2].to_vec())),
        ("a longer one", body([image, image].concat())),
        ("an empty one", body(Vec::new())),
        ("a page", body(b"<html>sign in first</html>".to_vec())),
        ("what it calls gzip", header("Content-Encoding", "gzip")),
        ("a place that is no URL", Act { headers: vec![("Location", "::".to_owned())], ..Act::status(302) }),
        ("itself, for ever", Act { headers: vec![("Location", "/img.tar.zst".to_owned())], ..Act::status(302) }),
        (
            "a file of the machine",
            Act { headers: vec![("Location", "file:///etc/passwd".to_owned())], ..Act::status(302) },
        ),
    ];
    status.into_iter().chain(more).collect()
}

#[test]
fn whatever_a_server_does_the_image_is_there_whole_or_not_at_all() {
    let image = compress("zstd", &small_tar());
    assert!(lies(&image).len() > 23);
    for with_head in [false, true] {
        for number in 0..lies(&image).len() {
            let (name, _) = lies(&image).swap_remove(number);
            let promised = image.clone();
            let server = Server::start(image.clone(), move |request| match request.method.as_str() {
                "HEAD" if !with_head => Act::default(),
                _ => lies(&promised).swap_remove(number).1,
            });
            let root = tempfile::tempdir().unwrap();
            let burned = burn_from(&server, &image, root.path());
            let whole = ["data", "etc", "etc/hostname", "link"].map(PathBuf::from);
            match &burned {
                Ok(_) => {
                    assert_eq!(names(root.path()), whole, "{name}");
                    assert!(fs::read(root.path().join("data")).unwrap() == noise(200_000), "{name}");
                }
                Err(_) => assert_eq!(names(root.path()), [] as [PathBuf; 0], "{name}"),
            }
            let requests = server.requests().len();
            assert!(requests < 100, "{name}: {requests} requests");
        }
    }
}
