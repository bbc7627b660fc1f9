//! The small files beside an image: its digest, and whatever else is called like it.

use super::file;
use super::retry::{Answer, Pace, at_most};
use super::trust::{self, DOCUMENT_BYTES};
use crate::error::{Context, Error, Phase, Result};
use crate::image::flow::Digest;
use reqwest::Url;
use reqwest::blocking::Client;
use std::io;

/// More than the output of `sha256sum` or `md5sum` for one file.
const DIGEST_FILE_BYTES: u64 = 4096;

/// What there is beside an image under one name.
#[derive(Debug, PartialEq, Eq)]
pub enum Beside {
    There(Vec<u8>),
    /// With the server's words.
    Not(String),
}

/// Reads a file beside an image, on a server or on a disk.
///
/// # Errors
/// The server does not answer, or there are more than `most_bytes`.
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
            Err(Error::new(Phase::Image, format!("{what}: it is longer than {most_bytes} bytes")))
        }
        Ok(bytes) => Ok(Beside::There(bytes)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Beside::Not(format!("{url} is not there"))),
        Err(error) => Err(Error::with_source(Phase::Image, what, error)),
    }
}

/// What lies at this URL; `None` where there is nothing.
///
/// # Errors
/// As [`read`].
pub fn document(client: &Client, url: &str, pace: &Pace) -> Result<Option<Vec<u8>>> {
    let url = Url::parse(url).context(Phase::Image, || format!("the URL `{url}`"))?;
    match read(client, &url, DOCUMENT_BYTES, pace)? {
        Beside::There(bytes) => Ok(Some(bytes)),
        Beside::Not(_) => Ok(None),
    }
}

/// The digest in the `.sha256` beside the image, else in the `.md5` that metal-stack's images have.
///
/// # Errors
/// There is none, or the first there is holds something else.
pub fn digest(client: &Client, image: &Url, pace: &Pace) -> Result<Digest> {
    let mut missing = Vec::new();
    for kind in ["sha256", "md5"] {
        let url = beside(image, &format!(".{kind}"));
        match read(client, &url, DIGEST_FILE_BYTES, pace)? {
            Beside::Not(why) => missing.push(why),
            Beside::There(bytes) => {
                let text = String::from_utf8_lossy(&bytes);
                let name = image.path_segments().and_then(Iterator::last).unwrap_or_default();
                // Whatever else it is, it is not said in full.
                let digest = trust::sum_of(&text, name).and_then(|sum| format!("{kind}:{sum:.130}").parse());
                if kind == "md5" {
                    tracing::warn!("{image}: only its md5 is known, which finds damage but no forgery");
                }
                return digest.map_err(|why: String| no_digest(image, &format!("{url} holds no {kind}: {why}")));
            }
        }
    }
    Err(no_digest(image, &missing.join(", ")))
}

fn no_digest(image: &Url, why: &str) -> Error {
    let name = image.path_segments().and_then(Iterator::last).unwrap_or_default();
    let hint = format!("give its digest as sha256:HEX, or lay {name}.sha256 beside it");
    Error::refusal(Phase::Image, format!("no digest for {image}: none is given, and {why}; {hint}"))
}

/// The URL of IMAGE followed by `suffix`. A query stays at the end.
fn beside(image: &Url, suffix: &str) -> Url {
    let mut url = image.clone();
    url.set_path(&format!("{}{suffix}", image.path()));
    url
}
