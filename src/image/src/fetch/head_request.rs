//! Determines whether an image exists and how large it is, without downloading the image.

use super::local_file;
use super::retry::FetchRetryPolicy;
use common::error::{Context, Error, Phase, Result};
use linux::http::proxies::{ProxyScope, describe_proxy};
use model::secret_text::SecretText;
use reqwest::blocking::{Client, Response};
use reqwest::header::{AUTHORIZATION, CONTENT_LENGTH, CONTENT_RANGE, ETAG, HeaderName, RANGE};
use reqwest::{Method, StatusCode, Url};

/// Properties of an image that are known before the download.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct ImageHead {
    pub size_bytes: Option<u64>,
    pub etag: Option<String>,
}

/// Response of a server to the request for an image's properties.
pub(crate) enum HeadAnswer {
    Found(ImageHead),
    /// Response with an error status that a retry would not change, such as 401 or 404.
    Refused(Response),
}

/// Returns size and ETag of an image. Over HTTP, sends a HEAD request or, if the server rejects HEAD, a GET request for
/// the first byte.
///
/// # Errors
/// Returns an error if the image does not exist or the server does not respond.
pub(crate) fn fetch_head(client: &Client, url: &Url, pace: &FetchRetryPolicy) -> Result<ImageHead> {
    if url.scheme() == "file" {
        let (_, size) = local_file::open_at(url.as_str(), 0).context(Phase::Image, || describe_request(url))?;
        return Ok(ImageHead { size_bytes: Some(size), etag: None });
    }
    request_head(client, url, None, pace)?.into_head(url)
}

/// Requests the properties over HTTP. A rejection by the server is not an error: the caller handles the response.
///
/// # Errors
/// Returns an error if the server does not respond.
pub(crate) fn request_head(
    client: &Client,
    url: &Url,
    authorization: Option<&SecretText>,
    pace: &FetchRetryPolicy,
) -> Result<HeadAnswer> {
    let what = describe_request(url);
    let request = |method| {
        let request = client.request(method, url.clone());
        authorization.iter().fold(request, |request, value| request.header(AUTHORIZATION, value.reveal()))
    };
    let head = pace.send_request(&what, || request(Method::HEAD))?;
    if head.status() == StatusCode::OK {
        return Ok(HeadAnswer::Found(ImageHead { size_bytes: content_length(&head), etag: header_text(&head, ETAG) }));
    }
    // A presigned URL is valid for one method only; servers respond to other methods with 403.
    let refusals = [StatusCode::METHOD_NOT_ALLOWED, StatusCode::NOT_IMPLEMENTED, StatusCode::FORBIDDEN];
    if !refusals.contains(&head.status()) {
        return Ok(HeadAnswer::Refused(head));
    }
    let first = pace.send_request(&what, || request(Method::GET).header(RANGE, "bytes=0-0"))?;
    let size_bytes = match first.status() {
        StatusCode::OK => content_length(&first),
        StatusCode::PARTIAL_CONTENT => {
            header_text(&first, CONTENT_RANGE).and_then(|range| range.rsplit_once('/')?.1.parse().ok())
        }
        _ => return Ok(HeadAnswer::Refused(first)),
    };
    Ok(HeadAnswer::Found(ImageHead { size_bytes, etag: header_text(&first, ETAG) }))
}

impl HeadAnswer {
    /// Returns the properties of the image.
    ///
    /// # Errors
    /// Returns an error if the request was rejected.
    pub(crate) fn into_head(self, url: &Url) -> Result<ImageHead> {
        match self {
            HeadAnswer::Found(look) => Ok(look),
            HeadAnswer::Refused(response) => {
                let proxy = describe_proxy(url.as_str(), ProxyScope::All);
                let text = format!(
                    "cannot fetch the image {url}{proxy}: the server responded with {status}",
                    status = response.status()
                );
                Err(Error::new(Phase::Image, text))
            }
        }
    }
}

fn describe_request(url: &Url) -> String {
    format!("query the image {url}{proxy}", proxy = describe_proxy(url.as_str(), ProxyScope::All))
}

/// Returns the value of the Content-Length header. reqwest's `content_length` returns the length of the body, which is
/// absent in the response to a HEAD request.
fn content_length(response: &Response) -> Option<u64> {
    header_text(response, CONTENT_LENGTH)?.parse().ok()
}

/// Returns the value of a header; `None` if the header is missing or its value is not ASCII.
pub(crate) fn header_text(response: &Response, name: HeaderName) -> Option<String> {
    response.headers().get(name).and_then(|value| value.to_str().ok()).map(str::to_owned)
}
