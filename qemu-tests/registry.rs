//! Registry with one image, which the proxy serves: manifest, layers, and anonymous tokens. It behaves like public
//! registries: each request requires a token, ranges of layers can be requested, and the digest is the ETag.

use serde_json::json;
use sha2::{Digest as _, Sha256};
use std::collections::BTreeMap;
use uuid::Uuid;

pub const REPOSITORY: &str = "tiny/os";
const MANIFEST: &str = "application/vnd.oci.image.manifest.v1+json";

/// OCI registry with one image.
pub struct Registry {
    token: String,
    manifest: Vec<u8>,
    /// Media types and bytes of all objects below `/v2/REPOSITORY/`, by path.
    contents: BTreeMap<String, (&'static str, Vec<u8>)>,
}

impl Registry {
    /// Creates a registry with an image of these layers, which are pairs of media type and bytes, starting with the
    /// lowest layer.
    pub fn new(tag: &str, layers: Vec<(&'static str, Vec<u8>)>) -> Registry {
        let mut contents = BTreeMap::new();
        let mut blob = |kind: &'static str, bytes: Vec<u8>| {
            let (digest, size) = (compute_digest(&bytes), bytes.len());
            contents.insert(format!("blobs/{digest}"), (kind, bytes));
            json!({"mediaType": kind, "digest": digest, "size": size})
        };
        let config = blob("application/vnd.oci.image.config.v1+json", b"{}".to_vec());
        let layers: Vec<_> = layers.into_iter().map(|(kind, bytes)| blob(kind, bytes)).collect();
        let manifest = json!({"schemaVersion": 2, "mediaType": MANIFEST, "config": config, "layers": layers});
        let manifest = manifest.to_string().into_bytes();
        for name in [tag.to_owned(), compute_digest(&manifest)] {
            contents.insert(format!("manifests/{name}"), (MANIFEST, manifest.clone()));
        }
        Registry { token: Uuid::new_v4().to_string(), manifest, contents }
    }

    pub fn manifest(&self) -> &[u8] {
        &self.manifest
    }

    /// Returns the complete response to a request with this head; `None` if the request is not for a registry.
    pub fn respond_to(&self, head: &[String]) -> Option<Vec<u8>> {
        let mut words = head.first()?.split(' ');
        let (method, target) = (words.next()?, words.next()?);
        let header = |name: &str| {
            let lines = head.iter().filter_map(|line| line.split_once(':'));
            lines.filter(|(key, _)| key.eq_ignore_ascii_case(name)).map(|(_, value)| value.trim()).next()
        };
        let (path, query) = target.split_once('?').unwrap_or((target, ""));
        if path == "/token" {
            let asks = query.replace("%3A", ":").replace("%2F", "/").contains(&format!("scope={}", token_scope()));
            let body = json!({"token": self.token}).to_string();
            return Some(if asks {
                build_response("200 OK", &[], body.as_bytes(), method)
            } else {
                refuse_request("400 Bad Request")
            });
        }
        let name = path.strip_prefix("/v2/")?;
        if header("authorization") != Some(&format!("Bearer {}", self.token)) {
            let realm = format!("http://{}/token", header("host").unwrap_or_default());
            let challenge = format!("Bearer realm=\"{realm}\",service=\"harness\",scope=\"{}\"", token_scope());
            return Some(build_response("401 Unauthorized", &[("WWW-Authenticate", &challenge)], b"", method));
        }
        let name = name.strip_prefix(REPOSITORY).unwrap_or_default().trim_start_matches('/');
        let Some((kind, bytes)) = self.contents.get(name) else { return Some(refuse_request("404 Not Found")) };
        let headers = [("Content-Type", *kind), ("ETag", &format!("\"{}\"", compute_digest(bytes)))];
        let first = header("range").and_then(|range| range.strip_prefix("bytes=")?.strip_suffix('-')?.parse().ok());
        Some(match first.filter(|first| *first < bytes.len()) {
            None => build_response("200 OK", &headers, bytes, method),
            Some(first) => {
                let range = format!("bytes {first}-{}/{}", bytes.len() - 1, bytes.len());
                let headers = [&headers[..], &[("Content-Range", &range)]].concat();
                build_response("206 Partial Content", &headers, &bytes[first..], method)
            }
        })
    }
}

fn token_scope() -> String {
    format!("repository:{REPOSITORY}:pull")
}

fn refuse_request(status: &str) -> Vec<u8> {
    build_response(status, &[], b"", "GET")
}

fn build_response(status: &str, headers: &[(&str, &str)], body: &[u8], method: &str) -> Vec<u8> {
    let mut text = format!("HTTP/1.1 {status}\r\nConnection: close\r\nContent-Length: {}\r\n", body.len());
    headers.iter().for_each(|(name, value)| text += &format!("{name}: {value}\r\n"));
    let body = if method == "HEAD" { b"" } else { body };
    [text.as_bytes(), b"\r\n", body].concat()
}

fn compute_digest(bytes: &[u8]) -> String {
    format!("sha256:{:x}", Sha256::digest(bytes))
}

/// Tests that a client obtains a token, the manifest with this token, and complete and partial layers by the digests in
/// the manifest.
pub fn self_test() {
    let registry = Registry::new("1.0", vec![("application/vnd.oci.image.layer.v1.tar", b"0123456789".to_vec())]);
    let ask = |method: &str, target: &str, more: &[&str]| {
        let head = [&[format!("{method} {target} HTTP/1.1").as_str(), "host: h:1"], more].concat().join("\n");
        let head: Vec<String> = head.lines().map(str::to_owned).collect();
        registry.respond_to(&head).map(|answer| String::from_utf8_lossy(&answer).into_owned())
    };
    assert_eq!(ask("GET", "/images/x", &[]), None);
    let refused = ask("GET", "/v2/tiny/os/manifests/1.0", &["Authorization: Bearer other"]).expect("an answer");
    assert!(refused.starts_with("HTTP/1.1 401 ") && refused.contains("realm=\"http://h:1/token\""), "{refused}");
    assert!(ask("GET", "/token?scope=repository%3Aother%3Apull", &[]).expect("an answer").contains(" 400 "));
    let token = ask("GET", "/token?service=harness&scope=repository%3Atiny%2Fos%3Apull", &[]).expect("an answer");
    assert!(token.contains(&registry.token), "{token}");
    let authorization = format!("authorization: Bearer {}", registry.token);
    let with_token = |method: &str, path: &str, range: &str| {
        ask(method, &format!("/v2/tiny/os/{path}"), &[&authorization, range]).expect("an answer")
    };
    let blob = format!("blobs/{}", compute_digest(b"0123456789"));
    assert!(with_token("GET", "manifests/1.0", "").contains(&compute_digest(b"0123456789")));
    assert!(with_token("GET", &blob, "").ends_with("\r\n\r\n0123456789"));
    let whole = with_token("HEAD", &blob, "");
    assert!(whole.contains("Content-Length: 10\r\n") && whole.ends_with("\r\n\r\n"), "{whole}");
    let rest = with_token("GET", &blob, "Range: bytes=7-");
    assert!(rest.contains(" 206 ") && rest.contains("bytes 7-9/10") && rest.ends_with("\r\n\r\n789"), "{rest}");
    assert!(with_token("GET", "blobs/sha256:00", "").contains(" 404 "));
}
