//! Existence and size of an image, without downloading it.

use super::file;
use super::retry::Pace;
use crate::error::{Context, Error, Phase, Result};
use crate::pull::Secret;
use reqwest::blocking::{Client, Response};
use reqwest::header::{AUTHORIZATION, CONTENT_LENGTH, CONTENT_RANGE, ETAG, HeaderName, RANGE};
use reqwest::{Method, StatusCode, Url};

/// Properties of an image known before it is downloaded.
#[derive(Debug, PartialEq, Eq)]
pub struct Look {
    pub size_bytes: Option<u64>,
    pub etag: Option<String>,
}

/// Answer of a server to the request.
pub enum Seen {
    There(Look),
    /// A status that a retry does not change.
    Refused(Response),
}

/// Returns size and ETag. Over HTTP they are requested with HEAD or, if that is rejected, with a request for the first
/// byte.
///
/// # Errors
/// Returns an error if the image does not exist or the server does not answer.
pub fn look(client: &Client, url: &Url, pace: &Pace) -> Result<Look> {
    if url.scheme() == "file" {
        let (_, size) = file::open(url.as_str(), 0).context(Phase::Image, || asking(url))?;
        return Ok(Look { size_bytes: Some(size), etag: None });
    }
    see(client, url, None, pace)?.there(url)
}

/// Returns the answer over HTTP, for callers that can handle a rejection.
///
/// # Errors
/// Returns an error if the server does not answer.
pub fn see(client: &Client, url: &Url, authorization: Option<&Secret>, pace: &Pace) -> Result<Seen> {
    let what = asking(url);
    let request = |method| {
        let request = client.request(method, url.clone());
        authorization.iter().fold(request, |request, value| request.header(AUTHORIZATION, value.reveal()))
    };
    let head = pace.ask(&what, || request(Method::HEAD))?;
    if head.status() == StatusCode::OK {
        return Ok(Seen::There(Look { size_bytes: length(&head), etag: header(&head, ETAG) }));
    }
    // A presigned URL is valid for one method only, and other methods are answered with 403.
    let refusals = [StatusCode::METHOD_NOT_ALLOWED, StatusCode::NOT_IMPLEMENTED, StatusCode::FORBIDDEN];
    if !refusals.contains(&head.status()) {
        return Ok(Seen::Refused(head));
    }
    let first = pace.ask(&what, || request(Method::GET).header(RANGE, "bytes=0-0"))?;
    let size_bytes = match first.status() {
        StatusCode::OK => length(&first),
        StatusCode::PARTIAL_CONTENT => {
            header(&first, CONTENT_RANGE).and_then(|range| range.rsplit_once('/')?.1.parse().ok())
        }
        _ => return Ok(Seen::Refused(first)),
    };
    Ok(Seen::There(Look { size_bytes, etag: header(&first, ETAG) }))
}

impl Seen {
    /// Returns the properties.
    ///
    /// # Errors
    /// Returns an error if the request was rejected.
    pub fn there(self, url: &Url) -> Result<Look> {
        match self {
            Seen::There(look) => Ok(look),
            Seen::Refused(response) => {
                let text = format!("cannot fetch the image {url}: the server answers {}", response.status());
                Err(Error::new(Phase::Image, text))
            }
        }
    }
}

fn asking(url: &Url) -> String {
    format!("request the image {url}")
}

/// Returns the value of the header, since the response to a HEAD request has no body.
fn length(response: &Response) -> Option<u64> {
    header(response, CONTENT_LENGTH)?.parse().ok()
}

/// Returns a header as text.
pub fn header(response: &Response, name: HeaderName) -> Option<String> {
    response.headers().get(name).and_then(|value| value.to_str().ok()).map(str::to_owned)
}
