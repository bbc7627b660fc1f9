//! Resolution of an image before anything is written: checks its existence, and determines its size, digest and
//! signature.

use super::head_request::{ImageHead, fetch_head};
use super::oci::{self, ImageReference};
use super::retry::FetchRetryPolicy;
use super::{ImagePart, ImageSource, ResolvedImage, local_file, sidecar, sidecar_verification};
use common::error::{Error, Phase, Result};
use common::error_code::ErrorCode;
use reqwest::Url;
use reqwest::blocking::Client;

/// URL of an image, parsed according to its scheme.
enum ImageUrl {
    Stream(Url),
    Registry(ImageReference),
}

/// Resolves size, ETag and digest of an image. The first server that has the image is used; the other servers are used
/// as mirrors.
///
/// # Errors
/// Returns an error if none of the servers has the image, no digest is available, or a required signature is missing or
/// invalid.
pub fn resolve_image(client: &Client, source: &ImageSource, pace: &FetchRetryPolicy) -> Result<ResolvedImage> {
    let urls: Vec<&String> = std::iter::once(&source.url).chain(&source.mirrors).collect();
    let places = urls.iter().map(|url| parse_image_url(url)).collect::<Result<Vec<ImageUrl>>>()?;
    let in_registries = places.iter().filter(|place| matches!(place, ImageUrl::Registry(_))).count();
    if in_registries != 0 && in_registries != places.len() {
        let text = format!(
            "{url}: either the image and all its mirrors must be in registries, or none of them",
            url = source.url
        );
        return Err(Error::refusal(Phase::Image, text));
    }
    if in_registries != 0 && !source.keys.0.is_empty() && source.keys.cosign().next().is_none() {
        let text = "images in registries are signed by cosign, but no cosign key is configured; only signed images \
                    are allowed";
        return Err(Error::refusal(Phase::Image, format!("{}: {text}", source.url)));
    }
    if let [alone] = &places[..] {
        return resolve_at(client, alone, source, pace);
    }
    // In the first round, requests are not retried, so that an unavailable server does not delay the request to the
    // next one.
    let mut reasons = Vec::new();
    for pace in [&FetchRetryPolicy { attempts: 1, ..pace.clone() }, pace] {
        reasons.clear();
        for (index, place) in places.iter().enumerate() {
            match resolve_at(client, place, source, pace) {
                Ok(reached) => return Ok(with_mirrors(reached, &urls, index)),
                Err(error) => {
                    tracing::warn!("{error}; trying the next mirror");
                    reasons.push(error);
                }
            }
        }
    }
    let text: Vec<String> = reasons.iter().map(Error::to_string).collect();
    let text = format!("no server has the image: {reasons}", reasons = text.join("; "));
    let all_refused = reasons.iter().all(Error::is_refusal);
    let code = reasons.iter().find_map(Error::specific_code).unwrap_or(ErrorCode::ImageUnavailable);
    let error = if all_refused { Error::refusal(Phase::Image, text) } else { Error::new(Phase::Image, text) };
    Err(error.with_code(code))
}

fn parse_image_url(url: &str) -> Result<ImageUrl> {
    if let Some(reference) = ImageReference::parse(url) {
        return reference.map(ImageUrl::Registry).map_err(|why| Error::refusal(Phase::Image, why));
    }
    let parsed = Url::parse(url).map_err(|error| {
        Error::refusal(Phase::Image, format!("the image URL `{url}`: {error}")).with_code(ErrorCode::ImageUrl)
    })?;
    match parsed.scheme() {
        "http" | "https" => Ok(ImageUrl::Stream(parsed)),
        "file" if local_file::path_of_url(url).is_some() => Ok(ImageUrl::Stream(parsed)),
        "file" => Err(Error::refusal(
            Phase::Image,
            format!("the image URL `{url}` is invalid: a file URL needs an absolute path, such as file:///mnt/image"),
        )
        .with_code(ErrorCode::ImageUrl)),
        _ => Err(Error::refusal(
            Phase::Image,
            format!(
                "the image URL `{url}` has an unsupported scheme; use http, \
                                                       https, file or oci"
            ),
        )
        .with_code(ErrorCode::ImageUrl)),
    }
}

fn resolve_at(
    client: &Client,
    place: &ImageUrl,
    source: &ImageSource,
    pace: &FetchRetryPolicy,
) -> Result<ResolvedImage> {
    match place {
        ImageUrl::Stream(url) => resolve_stream(client, url, source, pace),
        ImageUrl::Registry(reference) => oci::resolve_reference(client, reference, source, pace),
    }
}

fn resolve_stream(client: &Client, url: &Url, source: &ImageSource, pace: &FetchRetryPolicy) -> Result<ResolvedImage> {
    let ImageHead { size_bytes, etag } = fetch_head(client, url, pace)?;
    let documents = |url: &str| sidecar::read_document(client, url, pace);
    let ImageSource { id, keys, minimum, digest: given, .. } = source;
    let known_image = sidecar_verification::KnownImage {
        url: url.as_str(),
        digest: given.as_ref(),
        size_bytes,
        id: id.as_deref(),
        minimum,
    };
    let verified = sidecar_verification::verify_documents(&documents, keys, &known_image)?;
    let (signed_by, signed_as) =
        verified.iter().map(|it| (it.signed_by.clone(), it.signed_as.clone())).next().unwrap_or_default();
    let (digest, manifest) = match (verified, given) {
        (Some(verified), _) => (verified.digest, verified.manifest),
        (None, Some(digest)) => (digest.clone(), None),
        (None, None) => (sidecar::read_digest(client, url, pace)?, None),
    };
    let url = url.to_string();
    let part = ImagePart {
        url: url.clone(),
        mirrors: Vec::new(),
        size_bytes,
        etag,
        digest: digest.clone(),
        authorization: None,
        pull_secret: None,
        manifest,
    };
    Ok(ResolvedImage { url, digest, parts: vec![part], layered: false, signed_by, signed_as })
}

/// Sets all other URLs as mirrors: first the URLs that follow the used URL in the list, then those that precede it.
/// Layers in a registry do not get mirrors, because another registry may require another token.
fn with_mirrors(mut reached: ResolvedImage, urls: &[&String], index: usize) -> ResolvedImage {
    if !reached.layered {
        let (before, rest) = urls.split_at(index);
        let others = rest.iter().skip(1).chain(before);
        reached.parts.iter_mut().for_each(|part| part.mirrors = others.clone().map(|url| (*url).clone()).collect());
    }
    reached
}

#[cfg(test)]
mod tests {
    use super::super::image_source::parse_given_digest;
    use super::super::sidecar_verification::SignatureKeys;
    use super::*;
    use crate::testing::pace;
    use linux::http;
    use testing::http::{ResponseBehavior, Server};

    fn ask(server: &Server, digest: Option<&str>) -> Result<ResolvedImage> {
        let url = server.url("os/img.tar.zst?a=b");
        let digest = parse_given_digest(digest, &url)?;
        let source = ImageSource { url, digest, ..ImageSource::default() };
        resolve_image(&http::new_client()?, &source, &pace())
    }

    fn sha256() -> String {
        format!("sha256:{}", "0a".repeat(32))
    }

    #[test]
    fn size_and_etag_come_from_head() {
        let server = Server::start(vec![0; 1234], |_| ResponseBehavior::default());
        let reached = ask(&server, Some(&sha256())).unwrap();
        assert_eq!(reached.url, server.url("os/img.tar.zst?a=b"));
        assert_eq!((reached.size_bytes(), reached.parts[0].etag.as_deref()), (Some(1234), Some("\"one\"")));
        assert_eq!(reached.digest.to_string(), sha256());
        // The second request is for the manifest.
        assert_eq!(server.requests().len(), 2);
    }

    #[test]
    fn first_byte_is_requested_if_head_is_refused() {
        for refusal in [405, 501, 403] {
            let server = Server::start(vec![0; 1234], move |request| {
                if request.method == "HEAD" { ResponseBehavior::status(refusal) } else { ResponseBehavior::default() }
            });
            assert_eq!(ask(&server, Some(&sha256())).unwrap().size_bytes(), Some(1234));
            assert_eq!(server.requests()[1].range.as_deref(), Some("bytes=0-0"));
        }
        let server = Server::start(vec![0; 1234], |request| match request.method.as_str() {
            "HEAD" => ResponseBehavior::status(405),
            _ => ResponseBehavior { ranges: false, ..ResponseBehavior::default() },
        });
        assert_eq!(ask(&server, Some(&sha256())).unwrap().size_bytes(), Some(1234));
    }

    #[test]
    fn digest_file_with_sha256_takes_precedence_over_md5() {
        let (sha256, md5) = ("0123456789ABCDEF".repeat(4), "0123456789abcdef".repeat(2));
        let beside = [("sha256", &sha256), ("md5", &md5)];
        for (number, (kind, hex)) in beside.into_iter().enumerate() {
            let (hex, known) = (hex.clone(), beside.map(|(kind, _)| format!("/os/img.tar.zst.{kind}?a=b")));
            let server = Server::start(vec![0; 1234], move |request| {
                match known.iter().position(|path| *path == request.path) {
                    Some(known_image) if known_image < number => ResponseBehavior::status(404),
                    Some(_) => ResponseBehavior {
                        body: Some(format!("{hex}  img.tar.lz4\n").into_bytes()),
                        ..ResponseBehavior::default()
                    },
                    None => ResponseBehavior::default(),
                }
            });
            for digest in [None, Some(""), Some(" ")] {
                let expected = format!("{kind}:{}", beside[number].1.to_lowercase());
                assert_eq!(ask(&server, digest).unwrap().digest.to_string(), expected);
            }
            let given = super::tests::sha256();
            assert_eq!(ask(&server, Some(&given)).unwrap().digest.to_string(), given);
        }
    }

    #[test]
    fn image_without_digest_is_refused() {
        let no_file = Server::start(vec![0; 10], |request| match request.method.as_str() {
            "HEAD" => ResponseBehavior::default(),
            _ => ResponseBehavior::status(404),
        });
        let error = ask(&no_file, None).unwrap_err().to_string();
        assert!(
            error.contains("is unknown: no digest is specified")
                && error.contains(".md5?a=b: the server responded with 404"),
            "{error}"
        );
        assert!(error.contains(".sha256?a=b: the server responded with 404"), "{error}");
        assert!(error.contains("specify the digest of the image as sha256:HEX, or provide"), "{error}");

        let long = "a".repeat(5000);
        for (body, says) in [
            ("", "does not contain a sha256 digest"),
            ("<html>not found</html>", "does not contain a sha256 digest"),
            ("0123 img", "does not contain a sha256 digest"),
            (&format!("{0}  other\n{0}  another\n", "0a".repeat(32)), "found no line for img.tar.zst"),
            (&long, "longer than 4096 bytes"),
        ] {
            let body = body.to_owned();
            let server = Server::start(vec![0; 10], move |_| ResponseBehavior {
                body: Some(body.clone().into_bytes()),
                ..ResponseBehavior::default()
            });
            let error = ask(&server, None).unwrap_err().to_string();
            assert!(error.contains(says), "{error}");
        }
    }

    #[test]
    fn unusable_digests_and_urls_are_refused_without_requests() {
        let server = Server::start(Vec::new(), |_| ResponseBehavior::default());
        for (digest, says) in [
            ("sha256:12", "has 2 digits"),
            ("12", "is not a digest"),
            (
                "md5:0123456789abcdef0123456789abcdef",
                "md5 digests are not supported, because they can be forged; specify the sha256 digest",
            ),
        ] {
            let error = ask(&server, Some(digest)).unwrap_err().to_string();
            assert!(error.contains(says), "{error}");
        }
        for (url, says) in
            [("img.tar.zst", "the image URL `img.tar.zst`"), ("ftp://x/y", "use http, https, file or oci")]
        {
            let source = ImageSource { url: url.to_owned(), digest: sha256().parse().ok(), ..ImageSource::default() };
            let error = resolve_image(&http::new_client().unwrap(), &source, &pace()).unwrap_err().to_string();
            assert!(error.contains(says), "{error}");
        }
        assert!(server.requests().is_empty());
    }

    #[test]
    fn missing_image_is_reported_without_retries() {
        for status in [404, 410, 401] {
            let server = Server::start(Vec::new(), move |_| ResponseBehavior::status(status));
            let error = ask(&server, Some(&sha256())).unwrap_err().to_string();
            assert!(error.contains("/os/img.tar.zst?a=b: the server responded with"), "{error}");
            assert!(error.contains(&status.to_string()), "{error}");
            assert_eq!(server.requests().len(), 1);
        }
    }

    #[test]
    fn server_errors_are_retried_a_limited_number_of_times() {
        let server = Server::start(vec![0; 9], |request| match request.nth {
            0 | 1 => ResponseBehavior::status(500),
            _ => ResponseBehavior::default(),
        });
        assert_eq!(ask(&server, Some(&sha256())).unwrap().size_bytes(), Some(9));
        let server = Server::start(vec![0; 9], |_| ResponseBehavior::status(503));
        let error = ask(&server, Some(&sha256())).unwrap_err().to_string();
        assert!(error.contains("503") && error.contains("(4 attempts)"), "{error}");
        assert_eq!(server.requests().len(), 4);
    }

    #[test]
    fn unreachable_server_is_reported_after_retries() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}/image", listener.local_addr().unwrap());
        drop(listener);
        let source = ImageSource { url, digest: sha256().parse().ok(), ..ImageSource::default() };
        let error = resolve_image(&http::new_client().unwrap(), &source, &pace()).unwrap_err().to_string();
        assert!(error.contains("refused") && error.contains("(4 attempts)"), "{error}");
    }

    fn reach_all(urls: &[&str], digest: Option<String>) -> Result<ResolvedImage> {
        let mut urls = urls.iter().map(|url| (*url).to_owned());
        let digest = digest.map(|digest| digest.parse().unwrap());
        let source =
            ImageSource { url: urls.next().unwrap(), mirrors: urls.collect(), digest, ..ImageSource::default() };
        resolve_image(&http::new_client()?, &source, &pace())
    }

    #[test]
    fn first_mirror_with_the_image_is_used() {
        let gone = Server::start(Vec::new(), |_| ResponseBehavior::status(404));
        let troubled = Server::start(Vec::new(), |_| ResponseBehavior::status(503));
        let (good, other) = (
            Server::start(vec![0; 9], |_| ResponseBehavior::default()),
            Server::start(vec![], |_| ResponseBehavior::default()),
        );
        let urls = [&gone, &troubled, &good, &other].map(|server| server.url("image"));
        let reached = reach_all(&[&urls[0], &urls[1], &urls[2], &urls[3]], Some(sha256())).unwrap();
        assert_eq!((&reached.url, &reached.parts[0].url), (&urls[2], &urls[2]));
        assert_eq!(reached.parts[0].mirrors, [&urls[3], &urls[0], &urls[1]].map(String::clone));
        assert_eq!((gone.requests().len(), troubled.requests().len(), other.requests().len()), (1, 1, 0));
    }

    #[test]
    fn recovered_mirror_is_used_and_all_failures_are_named() {
        let gone = Server::start(Vec::new(), |_| ResponseBehavior::status(404));
        let restarts = Server::start(vec![0; 9], |request| match request.nth {
            0 => ResponseBehavior::status(502),
            _ => ResponseBehavior::default(),
        });
        let urls = [&gone, &restarts].map(|server| server.url("image"));
        assert_eq!(reach_all(&[&urls[0], &urls[1]], Some(sha256())).unwrap().url, urls[1]);

        let troubled = Server::start(Vec::new(), |_| ResponseBehavior::status(503));
        let urls = [gone.url("image"), troubled.url("image"), "file:///no/such/image".to_owned()];
        let error = reach_all(&[&urls[0], &urls[1], &urls[2]], Some(sha256())).unwrap_err().to_string();
        assert!(urls.iter().all(|url| error.contains(url)), "{error}");
        assert!(["404 Not", "503 Service", "No such file"].iter().all(|says| error.contains(says)), "{error}");
    }

    #[test]
    fn image_file_with_digest_file_is_resolved() {
        let dir = tempfile::tempdir().unwrap();
        let url = format!("file://{}/img.tar", dir.path().display());
        std::fs::write(dir.path().join("img.tar"), [0; 77]).unwrap();
        let error = reach_all(&[&url], None).unwrap_err().to_string();
        assert!(
            error.contains("img.tar.sha256 does not exist") && error.contains("img.tar.md5 does not exist"),
            "{error}"
        );
        std::fs::write(dir.path().join("img.tar.sha256"), format!("{}  img.tar\n", "0a".repeat(32))).unwrap();
        let reached = reach_all(&[&url], None).unwrap();
        assert_eq!((reached.size_bytes(), reached.digest.to_string()), (Some(77), sha256()));
    }

    #[test]
    fn refuses_incompatible_urls() {
        for (urls, says) in [
            (["http://127.0.0.1:1/i", "oci://127.0.0.1:1/i:1"], "and all its mirrors must be in registries"),
            (["oci://127.0.0.1:1/i:1", "http://127.0.0.1:1/i"], "and all its mirrors must be in registries"),
            (["http://127.0.0.1:1/i", "image"], "the image URL `image`"),
            (["http://127.0.0.1:1/i", "oci://127.0.0.1:1/i"], "the tag or digest is missing"),
            (["http://127.0.0.1:1/i", "file://stick/i"], "a file URL needs an absolute path, such as file:///"),
        ] {
            let error = reach_all(&urls, Some(sha256())).unwrap_err().to_string();
            assert!(error.contains(says), "{error}");
        }
    }

    #[test]
    fn registries_are_refused_if_minisign_signatures_are_required() {
        for url in ["oci://127.0.0.1:1/i:1", "oci+http://127.0.0.1:1/i:1"] {
            let keys = SignatureKeys(vec!["RWSrW5G2df4ibM6Z/TrFXWSUPCeEn03zajmuZvLkO989EEiX+0k//xd8".parse().unwrap()]);
            let source = ImageSource { url: url.to_owned(), keys, ..ImageSource::default() };
            let error = resolve_image(&http::new_client().unwrap(), &source, &pace()).unwrap_err().to_string();
            assert!(error.contains("only signed images are allowed"), "{error}");
        }
    }
}
