//! References to images in registries: `oci://HOST[:PORT]/REPOSITORY:TAG` or `…@sha256:HEX`.

use crate::pipeline::{Digest, DigestKind};
use reqwest::Url;

/// Host name of Docker Hub in image references, and host name of Docker Hub's registry API.
const DOCKER: (&str, &str) = ("docker.io", "registry-1.docker.io");

/// Image in a registry.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ImageReference {
    /// Reference as specified by the user.
    pub url: String,
    /// Base URL of all requests: `https://HOST/v2/REPOSITORY`.
    pub base: String,
    pub repository: String,
    /// Tag; ignored if there is a digest.
    tag: String,
    pub digest: Option<Digest>,
}

impl ImageReference {
    /// Parses a reference; returns `None` if the scheme is neither `oci` nor `oci+http`.
    pub(crate) fn parse(url: &str) -> Option<Result<ImageReference, String>> {
        let (rest, plain) = match url.strip_prefix("oci+http://") {
            Some(rest) => (rest, true),
            None => (url.strip_prefix("oci://")?, false),
        };
        Some(parse_reference(url, rest, plain).map_err(|why| format!("the image URL `{url}`: {why}")))
    }

    /// Returns the identifier with which the manifest is requested from the registry: the digest or, if the reference
    /// has none, the tag.
    pub(crate) fn manifest_name(&self) -> String {
        self.digest.as_ref().map_or(self.tag.clone(), Digest::to_string)
    }
}

impl ImageReference {
    /// Returns `HOST/REPOSITORY`, the form used by container tools.
    pub(crate) fn without_tag(&self) -> String {
        let host = self.url.split("://").nth(1).and_then(|rest| rest.split('/').next()).unwrap_or_default();
        format!("{host}/{}", self.repository)
    }

    /// Returns whether requests to the registry are sent unencrypted over the network. Returns `false` if the host of
    /// the registry is a loopback address.
    pub(crate) fn is_unencrypted(&self) -> bool {
        let host = self.base.strip_prefix("http://").and_then(|rest| rest.split('/').next());
        host.is_some_and(|host| !is_loopback(host))
    }
}

fn parse_reference(url: &str, rest: &str, plain: bool) -> Result<ImageReference, String> {
    let (host, path) = rest.split_once('/').ok_or("the repository is missing; use oci://HOST/REPOSITORY:TAG")?;
    let (path, digest) = match path.split_once('@') {
        Some((path, digest)) => (path, Some(digest.parse::<Digest>()?)),
        None => (path, None),
    };
    if digest.as_ref().is_some_and(|digest| digest.kind == DigestKind::Md5) {
        return Err("md5 digests are not supported, because registries use sha256".to_owned());
    }
    let (repository, tag) = path.rsplit_once(':').unwrap_or((path, ""));
    if tag.is_empty() && digest.is_none() {
        return Err("the tag or digest is missing; use oci://HOST/REPOSITORY:TAG".to_owned());
    }
    let is_word = |word: &str, more: &str| {
        word.starts_with(|first: char| first.is_ascii_alphanumeric() || first == '_')
            && word.chars().all(|c| c.is_ascii_alphanumeric() || more.contains(c))
    };
    if !repository.split('/').all(|word| is_word(word, "._-") && !word.contains(char::is_uppercase)) {
        return Err(format!(
            "the repository name `{repository}` is invalid; use lower-case letters, digits, . _ - \
                            and /"
        ));
    }
    if !tag.is_empty() && (tag.len() > 128 || !is_word(tag, "._-")) {
        return Err(format!("the tag `{tag}` is invalid; use letters, digits, . _ and -"));
    }
    let scheme = if plain || is_loopback(host) { "http" } else { "https" };
    let address = if host == DOCKER.0 { DOCKER.1 } else { host };
    let base = format!("{scheme}://{address}/v2/{repository}");
    let parsed = Url::parse(&base).map_err(|why| format!("the host `{host}` is invalid: {why}"))?;
    if !parsed.username().is_empty() || parsed.password().is_some() {
        return Err("a user name in the URL is not supported; put the credentials into a pull secret".to_owned());
    }
    if parsed.path() != format!("/v2/{repository}") {
        return Err(format!("the host `{host}` is invalid"));
    }
    let (repository, tag) = (repository.to_owned(), tag.to_owned());
    Ok(ImageReference { url: url.to_owned(), base, repository, tag, digest })
}

/// Returns whether the host is a loopback address. Registries at loopback addresses are accessed over plain HTTP.
fn is_loopback(host: &str) -> bool {
    Url::parse(&format!("http://{host}/")).is_ok_and(|url| match url.host_str() {
        Some("localhost" | "[::1]") => true,
        Some(other) => other.parse::<std::net::Ipv4Addr>().is_ok_and(|address| address.is_loopback()),
        None => false,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn image_references_become_registry_urls() {
        let hex = "0a".repeat(32);
        let cases = [
            ("oci://r.example/debian:12", "https://r.example/v2/debian", "12"),
            ("oci://r.example:5000/os/debian_x.y-z:12.0_A", "https://r.example:5000/v2/os/debian_x.y-z", "12.0_A"),
            ("oci://docker.io/library/debian:12", "https://registry-1.docker.io/v2/library/debian", "12"),
            ("oci://localhost:5000/debian:12", "http://localhost:5000/v2/debian", "12"),
            ("oci://127.0.0.9/debian:12", "http://127.0.0.9/v2/debian", "12"),
            ("oci://[::1]:5000/debian:12", "http://[::1]:5000/v2/debian", "12"),
            ("oci+http://10.0.0.1:5000/debian:12", "http://10.0.0.1:5000/v2/debian", "12"),
            (&format!("oci://r.example/debian@sha256:{hex}"), "https://r.example/v2/debian", &format!("sha256:{hex}")),
            (
                &format!("oci://r.example/debian:12@sha256:{hex}"),
                "https://r.example/v2/debian",
                &format!("sha256:{hex}"),
            ),
        ];
        for (url, base, name) in cases {
            let reference = ImageReference::parse(url).unwrap().unwrap();
            assert_eq!((reference.base.as_str(), reference.manifest_name().as_str()), (base, name), "{url}");
        }
        assert_eq!(ImageReference::parse("http://r.example/debian:12"), None);
    }

    #[test]
    fn refuses_invalid_image_references() {
        for (url, says) in [
            ("oci://r.example", "the repository is missing"),
            ("oci://r.example/debian", "the tag or digest is missing"),
            ("oci://r.example/debian:", "the tag or digest is missing"),
            ("oci:///debian:12", "the host `` is invalid"),
            ("oci://r.example?x=/debian:12", "the host `r.example?x=` is invalid"),
            ("oci://r.example:70000/debian:12", "the host `r.example:70000` is invalid"),
            ("oci://me:secret@r.example/debian:12", "a user name in the URL is not supported"),
            ("oci://r.example/Debian:12", "` is invalid; use lower-case letters"),
            ("oci://r.example/../debian:12", "` is invalid; use lower-case letters"),
            ("oci://r.example//debian:12", "` is invalid; use lower-case letters"),
            ("oci://r.example/debian?x=:12", "` is invalid; use lower-case letters"),
            ("oci://r.example/debian:1/2", "` is invalid; use letters, digits, . _ and -"),
            ("oci://r.example/debian:1%2f", "` is invalid; use letters, digits, . _ and -"),
            ("oci://r.example/debian@sha256:12", "has 2 digits"),
            ("oci://r.example/debian@md5:0123456789abcdef0123456789abcdef", "md5 digests are not supported"),
        ] {
            let error = ImageReference::parse(url).unwrap().unwrap_err();
            assert!(error.contains(says) && error.contains(url), "{url}: {error}");
        }
    }
}
