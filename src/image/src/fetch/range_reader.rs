//! Reads single ranges of an image before the whole image is fetched.

use super::head_request::header_text;
use super::retry::FetchRetryPolicy;
use super::{ImagePart, local_file};
use common::bounded_read::read_prefix;
use common::error::{Context, Error, Phase, Result};
use reqwest::StatusCode;
use reqwest::blocking::Client;
use reqwest::header::{AUTHORIZATION, CONTENT_RANGE, RANGE};
use std::ops::Range;

/// Reads ranges from the first server of an image; mirrors are not used.
pub(crate) struct RangeReader {
    client: Client,
    image: ImagePart,
    pace: FetchRetryPolicy,
}

impl RangeReader {
    pub fn new(client: &Client, image: &ImagePart, pace: &FetchRetryPolicy) -> RangeReader {
        RangeReader { client: client.clone(), image: image.clone(), pace: pace.clone() }
    }

    /// Reads a range of bytes. Returns fewer bytes if the range exceeds the end of the image.
    ///
    /// # Errors
    /// Returns an error if the range cannot be read. If the server does not support ranges, the error is a refusal (see
    /// [`Error`]).
    pub fn read(&self, range: Range<u64>) -> Result<Vec<u8>> {
        let url = &self.image.url;
        let length = range.end - range.start;
        let what = format!("read bytes {start} to {end} of {url}", start = range.start, end = range.end);
        if url.starts_with("file:") {
            let read = local_file::open_at(url, range.start).and_then(|(file, _)| read_prefix(file, length));
            return read.context(Phase::Image, || what);
        }
        let requested_range = format!("bytes={}-{}", range.start, range.end.saturating_sub(1));
        let answered = self.pace.read_with(
            &what,
            || {
                let request = self.client.get(url).header(RANGE, &requested_range);
                let authorization = self.image.authorization.iter();
                authorization.fold(request, |request, value| request.header(AUTHORIZATION, value.reveal()))
            },
            |response| {
                let (status, says) = (response.status(), header_text(&response, CONTENT_RANGE).unwrap_or_default());
                let is_it =
                    status == StatusCode::PARTIAL_CONTENT && says.starts_with(&format!("bytes {}-", range.start));
                Ok(match is_it {
                    true => Ok(read_prefix(response, length)?),
                    false => Err(status),
                })
            },
        )?;
        answered.map_err(|status| {
            let why = format!("the server responded with {status} to a range request");
            Error::refusal(
                Phase::Image,
                format!(
                    "{what}: {why}; without range requests, the tables of a qcow2 image cannot be checked before the \
                     image is written. Convert the image to a raw image with `drophammer image pack`"
                ),
            )
        })
    }
}
