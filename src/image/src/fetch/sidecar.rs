//! Files next to an image. The name of such a file is the name of the image with a suffix, such as `IMAGE.sha256`.

use super::local_file;
use super::retry::{DocumentAnswer, FetchRetryPolicy};
use super::sidecar_verification::{self, DOCUMENT_BYTES};
use crate::pipeline::Digest;
use common::bounded_read::read_whole;
use common::error::{Context, Error, Phase, Result};
use common::error_code::ErrorCode;
use reqwest::Url;
use reqwest::blocking::Client;
use std::io;

/// Maximum length of a digest file, in bytes. The output of `sha256sum` or `md5sum` for one file is shorter.
const DIGEST_FILE_BYTES: u64 = 4096;

/// Result of a request for a file next to an image.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum SidecarLookup {
    Found(Vec<u8>),
    /// The file does not exist. The text contains its URL and the response of the server.
    Missing(String),
}

/// Reads a file next to an image, from a server or a local file.
///
/// # Errors
/// Returns an error if the server does not respond, or the file cannot be read or is longer than `most_bytes`
/// bytes.
pub(crate) fn read_sidecar(
    client: &Client,
    url: &Url,
    most_bytes: u64,
    pace: &FetchRetryPolicy,
) -> Result<SidecarLookup> {
    let what = format!("read {url}");
    if url.scheme() != "file" {
        return Ok(match pace.read_document(&what, most_bytes, || client.get(url.clone()))? {
            DocumentAnswer::Document(bytes) => SidecarLookup::Found(bytes),
            DocumentAnswer::Other(response) => {
                SidecarLookup::Missing(format!("{url}: the server responded with {status}", status = response.status()))
            }
        });
    }
    match local_file::open_at(url.as_str(), 0).and_then(|(file, _)| read_whole(file, most_bytes)) {
        Ok(Some(bytes)) => Ok(SidecarLookup::Found(bytes)),
        Ok(None) => Err(Error::new(Phase::Image, format!("{what}: the file is longer than {most_bytes} bytes"))),
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            Ok(SidecarLookup::Missing(format!("{url} does not exist")))
        }
        Err(error) => Err(Error::with_source(Phase::Image, what, error)),
    }
}

/// Reads the document at this URL; returns `None` if the document does not exist. The document may be at most
/// [`DOCUMENT_BYTES`] long.
///
/// # Errors
/// Returns the same errors as [`read_sidecar`].
pub(crate) fn read_document(client: &Client, url: &str, pace: &FetchRetryPolicy) -> Result<Option<Vec<u8>>> {
    let url = Url::parse(url).context(Phase::Image, || format!("the URL `{url}`"))?;
    match read_sidecar(client, &url, DOCUMENT_BYTES, pace)? {
        SidecarLookup::Found(bytes) => Ok(Some(bytes)),
        SidecarLookup::Missing(_) => Ok(None),
    }
}

/// Returns the digest from the `.sha256` file next to the image or, if that file does not exist, from the `.md5` file,
/// which exists next to metal-stack's images.
///
/// # Errors
/// Returns an error if neither file exists, or the first one that exists does not contain the digest of the image.
pub(crate) fn read_digest(client: &Client, image: &Url, pace: &FetchRetryPolicy) -> Result<Digest> {
    let mut missing = Vec::new();
    for kind in ["sha256", "md5"] {
        let url = append_suffix(image, &format!(".{kind}"));
        match read_sidecar(client, &url, DIGEST_FILE_BYTES, pace)? {
            SidecarLookup::Missing(why) => missing.push(why),
            SidecarLookup::Found(bytes) => {
                let text = String::from_utf8_lossy(&bytes);
                let name = image.path_segments().and_then(Iterator::last).unwrap_or_default();
                // An error quotes the checksum, which may be arbitrary text. The checksum is therefore truncated before
                // it is parsed.
                let digest = sidecar_verification::find_checksum(&text, name)
                    .and_then(|sum| format!("{kind}:{sum:.130}").parse());
                if kind == "md5" {
                    tracing::warn!(
                        "{image}: only an md5 digest is available, which detects corruption but not tampering"
                    );
                }
                return digest.map_err(|why: String| {
                    missing_digest(image, &format!("{url} does not contain a {kind} digest: {why}"))
                });
            }
        }
    }
    Err(missing_digest(image, &missing.join(", ")))
}

fn missing_digest(image: &Url, why: &str) -> Error {
    let name = image.path_segments().and_then(Iterator::last).unwrap_or_default();
    let hint = format!("specify the digest of the image as sha256:HEX, or provide {name}.sha256 next to the image");
    Error::refusal(Phase::Image, format!("the digest of {image} is unknown: no digest is specified, and {why}; {hint}"))
        .with_code(ErrorCode::ImageUnavailable)
}

/// Appends `suffix` to the path of a URL, before its query.
fn append_suffix(image: &Url, suffix: &str) -> Url {
    let mut url = image.clone();
    url.set_path(&format!("{}{suffix}", image.path()));
    url
}
