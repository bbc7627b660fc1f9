//! Whether a stream is there, and how large it is, without reading it.

use super::file;
use super::retry::Pace;
use crate::error::{Context, Error, Phase, Result};
use crate::pull::Secret;
use reqwest::blocking::{Client, Response};
use reqwest::header::{AUTHORIZATION, CONTENT_LENGTH, CONTENT_RANGE, ETAG, HeaderName, RANGE};
use reqwest::{Method, StatusCode, Url};

/// What is known about a stream before it comes.
#[derive(Debug, PartialEq, Eq)]
pub struct Look {
    pub size_bytes: Option<u64>,
    pub etag: Option<String>,
}

/// What a server says when it is asked for a stream.
pub enum Seen {
    There(Look),
    /// With a status that will not change by asking again.
    Refused(Response),
}

/// Of a file as it lies there; of HTTP by HEAD or, where that is refused, by asking for the first byte.
///
/// # Errors
/// It is not there, or nobody answers.
pub fn look(client: &Client, url: &Url, pace: &Pace) -> Result<Look> {
    if url.scheme() == "file" {
        let (_, size) = file::open(url.as_str(), 0).context(Phase::Image, || asking(url))?;
        return Ok(Look { size_bytes: Some(size), etag: None });
    }
    see(client, url, None, pace)?.there(url)
}

/// The same over HTTP only, for those who can do something about a refusal.
///
/// # Errors
/// Nobody answers.
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
    // A presigned URL is good for one method only, and refuses the other with 403.
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
    /// # Errors
    /// It was refused.
    pub fn there(self, url: &Url) -> Result<Look> {
        match self {
            Seen::There(look) => Ok(look),
            Seen::Refused(response) => {
                let text = format!("the image {url} cannot be had: the server answers {}", response.status());
                Err(Error::new(Phase::Image, text))
            }
        }
    }
}

fn asking(url: &Url) -> String {
    format!("ask for the image {url}")
}

/// Of the header: a HEAD has no body to ask.
fn length(response: &Response) -> Option<u64> {
    header(response, CONTENT_LENGTH)?.parse().ok()
}

/// A header in plain text.
pub fn header(response: &Response, name: HeaderName) -> Option<String> {
    response.headers().get(name).and_then(|value| value.to_str().ok()).map(str::to_owned)
}
