//! Files next to an image: its digest, and other documents named after it.

use super::file;
use super::retry::{Answer, Pace, at_most};
use super::trust::{self, DOCUMENT_BYTES};
use crate::error::{Context, Error, Phase, Result};
use crate::image::flow::Digest;
use reqwest::Url;
use reqwest::blocking::Client;
use std::io;

/// Maximum length of a digest file, in bytes. The output of `sha256sum` or `md5sum` for one file is shorter.
const DIGEST_FILE_BYTES: u64 = 4096;

/// Result of looking for a file next to an image.
#[derive(Debug, PartialEq, Eq)]
pub enum Beside {
    There(Vec<u8>),
    /// The file does not exist, with the answer of the server.
    Not(String),
}

/// Reads a file next to an image, from a server or a disk.
///
/// # Errors
/// Returns an error if the server does not answer, or the file is longer than `most_bytes`.
pub fn read(client: &Client, url: &Url, most_bytes: u64, pace: &Pace) -> Result<Beside> {
    let what = format!("read {url}");
    if url.scheme() != "file" {
        return Ok(match pace.read(&what, most_bytes, || client.get(url.clone()))? {
            Answer::Document(bytes) => Beside::There(bytes),
            Answer::Other(response) => Beside::Not(format!("{url} answers {}", response.status())),
        });
    }
    match file::open(url.as_str(), 0).and_then(|(file, _)| at_most(file, most_bytes)) {
        Ok(bytes) if bytes.len() as u64 > most_bytes => {
            Err(Error::new(Phase::Image, format!("{what}: longer than {most_bytes} bytes")))
        }
        Ok(bytes) => Ok(Beside::There(bytes)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Beside::Not(format!("{url} does not exist"))),
        Err(error) => Err(Error::with_source(Phase::Image, what, error)),
    }
}

/// Returns the document at this URL; `None` if there is none.
///
/// # Errors
/// Returns the same errors as [`read`].
pub fn document(client: &Client, url: &str, pace: &Pace) -> Result<Option<Vec<u8>>> {
    let url = Url::parse(url).context(Phase::Image, || format!("the URL `{url}`"))?;
    match read(client, &url, DOCUMENT_BYTES, pace)? {
        Beside::There(bytes) => Ok(Some(bytes)),
        Beside::Not(_) => Ok(None),
    }
}

/// Returns the digest from the `.sha256` file next to the image, or else from the `.md5` file that metal-stack's images
/// have.
///
/// # Errors
/// Returns an error if there is no such file, or the first one found has another content.
pub fn digest(client: &Client, image: &Url, pace: &Pace) -> Result<Digest> {
    let mut missing = Vec::new();
    for kind in ["sha256", "md5"] {
        let url = beside(image, &format!(".{kind}"));
        match read(client, &url, DIGEST_FILE_BYTES, pace)? {
            Beside::Not(why) => missing.push(why),
            Beside::There(bytes) => {
                let text = String::from_utf8_lossy(&bytes);
                let name = image.path_segments().and_then(Iterator::last).unwrap_or_default();
                // The content is shortened, since it may be anything.
                let digest = trust::sum_of(&text, name).and_then(|sum| format!("{kind}:{sum:.130}").parse());
                if kind == "md5" {
                    tracing::warn!("{image}: only an md5 digest is available, which detects damage but no forgery");
                }
                return digest.map_err(|why: String| no_digest(image, &format!("{url} has no {kind} digest: {why}")));
            }
        }
    }
    Err(no_digest(image, &missing.join(", ")))
}

fn no_digest(image: &Url, why: &str) -> Error {
    let name = image.path_segments().and_then(Iterator::last).unwrap_or_default();
    let hint = format!("specify its digest as sha256:HEX, or provide {name}.sha256 next to it");
    Error::refusal(Phase::Image, format!("no digest for {image}: none is specified, and {why}; {hint}"))
}

/// Appends `suffix` to the path of a URL. A query stays at the end.
fn beside(image: &Url, suffix: &str) -> Url {
    let mut url = image.clone();
    url.set_path(&format!("{}{suffix}", image.path()));
    url
}
