//! Some bytes of an image here and there, before all of it is fetched.

use super::look::header;
use super::retry::{Pace, at_most};
use super::{Part, file};
use crate::error::{Context, Error, Phase, Result};
use reqwest::StatusCode;
use reqwest::blocking::Client;
use reqwest::header::{AUTHORIZATION, CONTENT_RANGE, RANGE};
use std::ops::Range;

/// The first place of an image.
pub struct Ranges {
    client: Client,
    image: Part,
    pace: Pace,
}

impl Ranges {
    pub fn new(client: &Client, image: &Part, pace: &Pace) -> Ranges {
        Ranges { client: client.clone(), image: image.clone(), pace: pace.clone() }
    }

    /// Fewer bytes where the image ends.
    ///
    /// # Errors
    /// It cannot be had; a server that sends other bytes than it is asked for is a refusal.
    pub fn read(&self, range: Range<u64>) -> Result<Vec<u8>> {
        let url = &self.image.url;
        let most = (range.end - range.start).saturating_sub(1);
        let what = format!("read bytes {} to {} of {url}", range.start, range.end);
        if url.starts_with("file:") {
            let read = file::open(url, range.start).and_then(|(file, _)| at_most(file, most));
            return read.context(Phase::Image, || what);
        }
        let asked = format!("bytes={}-{}", range.start, range.end.saturating_sub(1));
        let answered = self.pace.take(
            &what,
            || {
                let request = self.client.get(url).header(RANGE, &asked);
                let authorization = self.image.authorization.iter();
                authorization.fold(request, |request, value| request.header(AUTHORIZATION, value.reveal()))
            },
            |response| {
                let (status, says) = (response.status(), header(&response, CONTENT_RANGE).unwrap_or_default());
                let is_it =
                    status == StatusCode::PARTIAL_CONTENT && says.starts_with(&format!("bytes {}-", range.start));
                Ok(match is_it {
                    true => Ok(at_most(response, most)?),
                    false => Err(status),
                })
            },
        )?;
        answered.map_err(|status| {
            let why = format!("the server answers {status} when asked for a range");
            Error::refusal(
                Phase::Image,
                format!(
                    "{what}: {why}, and without ranges nobody can look at the tables of a qcow2 before it is written: make a raw \
                     image of it with `drophammer image pack`"
                ),
            )
        })
    }
}
