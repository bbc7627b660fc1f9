//! Asks whether an image is there, how large, and what its digest is. Writes nothing.

use super::digest::{Digest, Kind};
use super::retry::Pace;
use super::{Part, Reached, Source, trust};
use crate::error::{Context, Error, Phase, Result};
use reqwest::blocking::{Client, Response};
use reqwest::header::{CONTENT_LENGTH, CONTENT_RANGE, ETAG, HeaderName, RANGE};
use reqwest::{StatusCode, Url};
use std::io::Read;

/// More than any `md5sum` output.
const MD5_FILE_BYTES: u64 = 4096;

/// See [`super::reach`].
pub fn reach(client: &Client, source: &Source, pace: &Pace) -> Result<Reached> {
    let url = Url::parse(&source.url).context(Phase::Image, || format!("the image's URL `{}`", source.url))?;
    if !matches!(url.scheme(), "http" | "https") {
        return Err(Error::new(Phase::Image, format!("the image's URL `{url}` is neither http nor https")));
    }
    let given = source.digest.as_deref().filter(|digest| !digest.trim().is_empty());
    let given = given.map(|digest| parse_digest(digest, &url)).transpose()?;
    let (size_bytes, etag) = look(client, &url, pace)?;
    let asked = trust::Asked { url: &source.url, digest: given.as_ref(), size_bytes };
    let verified = trust::verified(&|url| fetch_small(client, url, pace), &source.keys, &asked)?;
    let (digest, manifest, signed_by) = match (verified, given) {
        (Some(verified), _) => (verified.digest, verified.manifest, verified.signed_by),
        (None, Some(digest)) => (digest, None, None),
        (None, None) => (digest_beside(client, &url, pace)?, None, None),
    };
    let (url, digest) = (source.url.clone(), digest.to_string());
    let part = Part { url: url.clone(), size_bytes, etag, digest: digest.clone(), manifest, ..Part::default() };
    Ok(Reached { url, digest, parts: vec![part], signed_by, ..Reached::default() })
}

fn parse_digest(text: &str, url: &Url) -> Result<Digest> {
    let digest: Digest = text.parse().map_err(|why: String| Error::new(Phase::Image, format!("{url}: {why}")))?;
    if digest.kind == Kind::Md5 {
        return Err(Error::new(Phase::Image, format!("{url}: md5 is not taken from an allocation: give its sha256")));
    }
    Ok(digest)
}

/// Size and ETag, by HEAD or, where that is refused, by asking for the first byte.
fn look(client: &Client, url: &Url, pace: &Pace) -> Result<(Option<u64>, Option<String>)> {
    let what = format!("ask for the image {url}");
    let head = pace.ask(&what, || client.head(url.clone()))?;
    if head.status() == StatusCode::OK {
        return Ok((length(&head), header(&head, ETAG)));
    }
    // A presigned URL is good for one method only, and refuses the other with 403.
    let refusals = [StatusCode::METHOD_NOT_ALLOWED, StatusCode::NOT_IMPLEMENTED, StatusCode::FORBIDDEN];
    if !refusals.contains(&head.status()) {
        return Err(refused(url, head.status()));
    }
    let first = pace.ask(&what, || client.get(url.clone()).header(RANGE, "bytes=0-0"))?;
    let size = match first.status() {
        StatusCode::OK => length(&first),
        StatusCode::PARTIAL_CONTENT => {
            header(&first, CONTENT_RANGE).and_then(|range| range.rsplit_once('/')?.1.parse().ok())
        }
        status => return Err(refused(url, status)),
    };
    Ok((size, header(&first, ETAG)))
}

/// metal-stack's images have the output of `md5sum` beside them.
fn digest_beside(client: &Client, image: &Url, pace: &Pace) -> Result<Digest> {
    let mut url = image.clone();
    url.set_path(&format!("{}.md5", image.path()));
    let missing = |why: String| {
        let hint = "give the image's digest as sha256:HEX in the allocation";
        Error::new(Phase::Image, format!("no digest for {image}: none is given, and {url} {why}; {hint}"))
    };
    let response = pace.ask(&format!("ask for {url}"), || client.get(url.clone()))?;
    if response.status() != StatusCode::OK {
        return Err(missing(format!("answers {}", response.status())));
    }
    let mut text = String::new();
    let read = response.take(MD5_FILE_BYTES).read_to_string(&mut text);
    read.map_err(|error| missing(format!("cannot be read: {error}")))?;
    let first = text.split_ascii_whitespace().next().unwrap_or_default();
    let digest = format!("md5:{first}").parse().map_err(|why: String| missing(format!("holds no md5: {why}")))?;
    tracing::warn!("{image}: only its md5 is known, which finds damage but no forgery");
    Ok(digest)
}

/// A document beside an image; `None` where there is none. Stores that keep their listing to themselves say 403 to that.
fn fetch_small(client: &Client, url: &str, pace: &Pace) -> Result<Option<Vec<u8>>> {
    let parsed = Url::parse(url).context(Phase::Image, || format!("the URL `{url}`"))?;
    let response = pace.ask(&format!("ask for {url}"), || client.get(parsed.clone()))?;
    match response.status() {
        StatusCode::OK => {}
        StatusCode::NOT_FOUND | StatusCode::FORBIDDEN | StatusCode::GONE => return Ok(None),
        status => return Err(Error::new(Phase::Image, format!("{url} cannot be had: the server answers {status}"))),
    }
    let mut text = Vec::new();
    let read = response.take(trust::DOCUMENT_BYTES + 1).read_to_end(&mut text);
    read.context(Phase::Image, || format!("read {url}"))?;
    if text.len() as u64 > trust::DOCUMENT_BYTES {
        return Err(Error::new(Phase::Image, format!("{url} has more than {} bytes", trust::DOCUMENT_BYTES)));
    }
    Ok(Some(text))
}

fn refused(url: &Url, status: StatusCode) -> Error {
    Error::new(Phase::Image, format!("the image {url} cannot be had: the server answers {status}"))
}

/// Of the header: a HEAD has no body to ask.
fn length(response: &Response) -> Option<u64> {
    header(response, CONTENT_LENGTH)?.parse().ok()
}

fn header(response: &Response, name: HeaderName) -> Option<String> {
    response.headers().get(name).and_then(|value| value.to_str().ok()).map(str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::super::testing::{Act, Server, pace};
    use super::*;
    use crate::http;

    fn reach_at(server: &Server, digest: Option<&str>) -> Result<Reached> {
        let source =
            Source { url: server.url("os/img.tar.zst?a=b"), digest: digest.map(str::to_owned), ..Source::default() };
        reach(&http::client()?, &source, &pace())
    }

    fn sha256() -> String {
        format!("sha256:{}", "0a".repeat(32))
    }

    #[test]
    fn size_and_etag_by_head() {
        let server = Server::start(vec![0; 1234], |_| Act::default());
        let reached = reach_at(&server, Some(&sha256())).unwrap();
        assert_eq!(reached.url, server.url("os/img.tar.zst?a=b"));
        assert_eq!((reached.size_bytes(), reached.parts[0].etag.as_deref()), (Some(1234), Some("\"one\"")));
        assert_eq!(reached.digest, sha256());
        let asked: Vec<_> = server.requests().into_iter().map(|request| (request.method, request.path)).collect();
        let pair = |method: &str, path: &str| (method.to_owned(), path.to_owned());
        assert_eq!(asked, [pair("HEAD", "/os/img.tar.zst?a=b"), pair("GET", "/os/img.tar.zst.manifest?a=b")]);
    }

    #[test]
    fn by_the_first_byte_where_head_is_refused() {
        for refusal in [405, 501, 403] {
            let server = Server::start(vec![0; 1234], move |request| {
                if request.method == "HEAD" { Act::status(refusal) } else { Act::default() }
            });
            assert_eq!(reach_at(&server, Some(&sha256())).unwrap().size_bytes(), Some(1234));
            assert_eq!(server.requests()[1].range.as_deref(), Some("bytes=0-0"));
        }
        let server = Server::start(vec![0; 1234], |request| match request.method.as_str() {
            "HEAD" => Act::status(405),
            _ => Act { ranges: false, ..Act::default() },
        });
        assert_eq!(reach_at(&server, Some(&sha256())).unwrap().size_bytes(), Some(1234));
    }

    #[test]
    fn the_md5_beside_it_is_the_last_resort() {
        let md5 = "0123456789abcdef0123456789ABCDEF";
        let server = Server::start(vec![0; 1234], move |request| {
            let beside = request.path == "/os/img.tar.zst.md5?a=b";
            Act { body: beside.then(|| format!("{md5}  img.tar.lz4\n").into_bytes()), ..Act::default() }
        });
        for digest in [None, Some(""), Some(" ")] {
            assert_eq!(reach_at(&server, digest).unwrap().digest, format!("md5:{}", md5.to_lowercase()));
        }
        assert_eq!(reach_at(&server, Some(&sha256())).unwrap().digest, sha256());
    }

    #[test]
    fn no_digest_is_refused() {
        let no_file = Server::start(vec![0; 10], |request| match request.method.as_str() {
            "HEAD" => Act::default(),
            _ => Act::status(404),
        });
        let error = reach_at(&no_file, None).unwrap_err().to_string();
        assert!(error.contains("no digest for") && error.contains(".md5?a=b answers 404"), "{error}");
        assert!(error.contains("give the image's digest as sha256:HEX"), "{error}");

        for body in ["", "<html>not found</html>", "0123 img"] {
            let server = Server::start(vec![0; 10], |_| Act { body: Some(body.as_bytes().to_vec()), ..Act::default() });
            let error = reach_at(&server, None).unwrap_err().to_string();
            assert!(error.contains("holds no md5"), "{error}");
        }
    }

    #[test]
    fn what_cannot_be_asked_for_is_refused_at_once() {
        let server = Server::start(Vec::new(), |_| Act::default());
        for (digest, says) in [
            ("sha256:12", "has 2 digits"),
            ("12", "is not a digest"),
            ("md5:0123456789abcdef0123456789abcdef", "give its sha256"),
        ] {
            let error = reach_at(&server, Some(digest)).unwrap_err().to_string();
            assert!(error.contains(says), "{error}");
        }
        for (url, says) in [("img.tar.zst", "the image's URL `img.tar.zst`"), ("ftp://x/y", "neither http nor https")] {
            let source = Source { url: url.to_owned(), digest: Some(sha256()), ..Source::default() };
            let error = reach(&http::client().unwrap(), &source, &pace()).unwrap_err().to_string();
            assert!(error.contains(says), "{error}");
        }
        assert!(server.requests().is_empty());
    }

    #[test]
    fn a_missing_image_is_named_without_retries() {
        for status in [404, 410, 401] {
            let server = Server::start(Vec::new(), move |_| Act::status(status));
            let error = reach_at(&server, Some(&sha256())).unwrap_err().to_string();
            assert!(error.contains("/os/img.tar.zst?a=b cannot be had: the server answers"), "{error}");
            assert!(error.contains(&status.to_string()), "{error}");
            assert_eq!(server.requests().len(), 1);
        }
    }

    #[test]
    fn a_server_in_trouble_gets_bounded_retries() {
        let server = Server::start(vec![0; 9], |request| match request.nth {
            0 | 1 => Act::status(500),
            _ => Act::default(),
        });
        assert_eq!(reach_at(&server, Some(&sha256())).unwrap().size_bytes(), Some(9));
        let server = Server::start(vec![0; 9], |_| Act::status(503));
        let error = reach_at(&server, Some(&sha256())).unwrap_err().to_string();
        assert!(error.contains("503") && error.contains("(4 attempts)"), "{error}");
        assert_eq!(server.requests().len(), 4);
    }

    #[test]
    fn a_server_that_is_gone_is_given_up() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}/image", listener.local_addr().unwrap());
        drop(listener);
        let source = Source { url, digest: Some(sha256()), ..Source::default() };
        let error = reach(&http::client().unwrap(), &source, &pace()).unwrap_err().to_string();
        assert!(error.contains("refused") && error.contains("(4 attempts)"), "{error}");
    }
}
