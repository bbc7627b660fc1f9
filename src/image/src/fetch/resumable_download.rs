//! Download of one image that tolerates dropped connections and failing mirrors. After an interruption, the download
//! resumes with a Range request: from the same mirror if an ETag or chunk manifest proves that its image is unchanged,
//! otherwise from the next mirror. If no mirror can continue, the download reports that it must start over.
//!
//! The image must have the same length on all mirrors. Its content is verified with the chunk manifest as data arrives
//! (`chunk_verifier`), or with the digest at the end. If a single stream does not use the capacity of the link,
//! `parallel_ranges` replaces it until an error occurs.

mod mirrors;
mod parallel_switch;

use super::head_request::header_text;
use super::oci::renew_authorization;
use super::parallel_ranges::{LaneChooser, ParallelRanges};
use super::retry::{FetchRetryPolicy, is_hopeless};
use super::{ImagePart, local_file};
use crate::pipeline::StreamSource;
use common::error::{Error, Phase};
use linux::http::is_retryable;
use mirrors::{MirrorExclusion, MirrorList, OpenFailure, OpenResult, fail_for_good, fail_for_this_start};
use model::secret_text::SecretText;
use reqwest::StatusCode;
use reqwest::blocking::{Client, Response};
use reqwest::header::{AUTHORIZATION, CONTENT_LENGTH, CONTENT_RANGE, ETAG, IF_RANGE, RANGE};
use std::fs::File;
use std::io::{self, Read};
use std::time::{Duration, Instant};

/// Number of received bytes after which the counter of failures is reset. If one byte were enough, a server that drops
/// each connection after one byte would be retried forever.
const PROGRESS_BYTES: u64 = 64 * 1024;

const NO_STRONG_ETAG: &str = "the transfer cannot be resumed: the server did not send a strong ETag";

/// Download of one image, which is read as one stream of bytes.
pub(crate) struct ResumableDownload {
    client: Client,
    image: ImagePart,
    pace: FetchRetryPolicy,
    mirrors: MirrorList,
    stream: Option<DownloadStream>,
    /// Position in the image at which `stream` began, in bytes.
    opened_at: u64,
    /// Number of bytes that were passed on to the reader so far.
    position: u64,
    total: Option<u64>,
    authorization: Option<SecretText>,
    /// Number of consecutive rounds in which all mirrors failed.
    failures: u32,
    /// Number of mirrors that have failed in the current round.
    tried: usize,
    /// Position at which the counter of failures was last reset.
    counted_from: u64,
    resumed: u32,
    start_over: Option<String>,
    choice: LaneChooser,
    /// Time spent waiting for the network since the last check of the rate, and the number of bytes received since that
    /// check.
    slow: (Duration, u64),
}

enum DownloadStream {
    Http(Response),
    File(File),
    Lanes(ParallelRanges),
}

impl ResumableDownload {
    /// Creates a download. `client` must have a read timeout, like clients created by
    /// [`linux::http::new_streaming_client`].
    pub fn new(client: &Client, image: &ImagePart, pace: &FetchRetryPolicy) -> Self {
        ResumableDownload {
            client: client.clone(),
            image: image.clone(),
            pace: pace.clone(),
            mirrors: MirrorList::of_image(image),
            stream: None,
            opened_at: 0,
            position: 0,
            total: image.manifest.as_ref().map(|manifest| manifest.size_bytes).or(image.size_bytes),
            authorization: image.authorization.clone(),
            failures: 0,
            tried: 0,
            counted_from: 0,
            resumed: 0,
            start_over: None,
            choice: LaneChooser::new(pace.lanes.clone()),
            slow: (Duration::ZERO, 0),
        }
    }

    /// Returns the URL of the current mirror.
    pub(crate) fn current_url(&self) -> &str {
        &self.mirrors.current().url
    }

    /// Discards the data from `position` on, because the data does not match its digest. Fetches this data again, from
    /// the next mirror if there are several mirrors.
    pub(crate) fn rewind_to(&mut self, position: u64) {
        if let Some(DownloadStream::Lanes(_)) = self.stream {
            self.choice.fall_back_to_one_lane();
        }
        self.stream = None;
        self.position = position;
        self.counted_from = self.counted_from.min(position);
        self.resumed += 1;
        self.mirrors.switch_to_next();
    }

    /// Returns whether each chunk is verified with a manifest. If so, the chunks can be fetched from any mirror.
    fn is_verified(&self) -> bool {
        self.image.manifest.is_some()
    }

    fn connect(&mut self) -> io::Result<()> {
        let opened = self.start_lanes().map_or_else(|| self.open_stream(), Ok);
        match opened {
            Ok(stream) => {
                (self.stream, self.opened_at) = (Some(stream), self.position);
                self.choice.restart_measurement();
                self.slow = (Duration::ZERO, 0);
                Ok(())
            }
            Err(OpenFailure::Transient(why)) => self.handle_drop(&why, false),
            Err(OpenFailure::Lost(lost, why)) => self.exclude_mirror(lost, why),
        }
    }

    /// Opens the stream at the current mirror and position.
    fn open_stream(&mut self) -> OpenResult<DownloadStream> {
        let url = self.mirrors.current().url.clone();
        if url.starts_with("file:") {
            let (file, size) =
                local_file::open_at(&url, self.position).map_err(|error| fail_for_good(error.to_string()))?;
            self.agree_on_size(Some(size))?;
            self.mirrors.current_mut().answered = Some(None);
            return Ok(DownloadStream::File(file));
        }
        let mut response = self.send_request(&url)?;
        if let (StatusCode::UNAUTHORIZED, Some(_)) = (response.status(), self.authorization()) {
            let renewed =
                renew_authorization(&self.client, &url, &response, self.image.pull_secret.as_ref(), &self.pace);
            self.authorization = Some(renewed.map_err(|error| fail_for_good(error.to_string()))?);
            response = self.send_request(&url)?;
        }
        self.accept_response(&response)?;
        Ok(DownloadStream::Http(response))
    }

    /// Returns the `Authorization` header. Only the first mirror receives it.
    fn authorization(&self) -> Option<&SecretText> {
        self.authorization.as_ref().filter(|_| self.mirrors.is_first())
    }

    /// Requests the image from the current position to its end.
    fn send_request(&self, url: &str) -> OpenResult<Response> {
        let mut request = self.client.get(url);
        if let Some(authorization) = self.authorization() {
            request = request.header(AUTHORIZATION, authorization.reveal());
        }
        if self.position > 0 {
            request = request.header(RANGE, format!("bytes={}-", self.position));
            // The ETag of a mirror that has not sent data yet is unknown. The digest is verified at the end.
            if !self.is_verified() && self.mirrors.current().answered.is_some() {
                let etag = self.mirrors.current().strong_etag().ok_or_else(|| fail_for_this_start(NO_STRONG_ETAG))?;
                request = request.header(IF_RANGE, etag);
            }
        }
        match request.send() {
            Ok(response) if is_retryable(response.status()) => {
                Err(OpenFailure::Transient(format!("the server responded with {status}", status = response.status())))
            }
            Ok(response) => Ok(response),
            Err(error) => {
                let hopeless = is_hopeless(&error);
                let why = Error::with_source(Phase::Image, "no answer", error.without_url()).to_string();
                Err(if hopeless { fail_for_good(why) } else { OpenFailure::Transient(why) })
            }
        }
    }

    /// Checks that the response contains the same image, from the current position to the end.
    fn accept_response(&mut self, response: &Response) -> OpenResult<()> {
        let etag = header_text(response, ETAG);
        let before = self.mirrors.current().answered.clone();
        match (self.position, response.status()) {
            (0, StatusCode::OK) => {
                self.agree_on_size(header_text(response, CONTENT_LENGTH).and_then(|text| text.parse().ok()))?;
                if self.mirrors.is_first() && etag != self.image.etag {
                    let url = &self.image.url;
                    tracing::warn!(
                        "{url}: the image has changed on the server since its check; the new image is accepted only if its digest matches"
                    );
                }
            }
            (0, status) => return Err(fail_for_good(format!("the server responded with {status}"))),
            (_, StatusCode::PARTIAL_CONTENT) => {
                let range = header_text(response, CONTENT_RANGE).unwrap_or_default();
                if !self.is_verified() && before.as_ref().is_some_and(|before| *before != etag) {
                    return Err(fail_for_this_start("the image now has another ETag"));
                }
                if !self.continues_position(&range, before.is_some()) {
                    return Err(fail_for_this_start(&format!("the server resumed with a different range: `{range}`")));
                }
            }
            (_, StatusCode::OK) => return Err(fail_for_this_start("the server resent the image from its beginning")),
            (_, StatusCode::RANGE_NOT_SATISFIABLE) => {
                return Err(fail_for_this_start("the image is now shorter than the received data"));
            }
            (_, status) => {
                let why = format!("the server responded with {status} to the request for the remaining bytes");
                return Err(fail_for_good(why));
            }
        }
        self.mirrors.current_mut().answered = Some(before.unwrap_or(etag));
        Ok(())
    }

    /// Compares the size of the image at the current mirror with the expected size, and records the size. All mirrors
    /// must have the same size. If there is only one server, a different size is accepted at the beginning of the
    /// download, because the digest is verified at the end.
    fn agree_on_size(&mut self, says: Option<u64>) -> OpenResult<()> {
        let alone = self.mirrors.is_alone() && self.position == 0 && !self.is_verified();
        match (says, self.total) {
            (Some(says), Some(total)) if says != total && !alone => {
                Err(fail_for_good(format!("the image is {says} bytes on this server, but {total} bytes were expected")))
            }
            _ => {
                self.total = says.or(self.total);
                Ok(())
            }
        }
    }

    /// Returns whether a Content-Range (`bytes START-END/TOTAL`) begins at the current position, with the expected
    /// image size as `TOTAL`. `TOTAL` may be `*` only if the mirror has already sent data of the image (`known`).
    fn continues_position(&self, range: &str, known: bool) -> bool {
        let Some((span, total)) = range.strip_prefix("bytes ").and_then(|rest| rest.split_once('/')) else {
            return false;
        };
        let start = span.split_once('-').and_then(|(start, _)| start.parse().ok());
        let same_total = (total == "*" && known) || self.total.is_none() || total.parse().ok() == self.total;
        start == Some(self.position) && same_total
    }

    /// Handles a temporary failure: switches to the next mirror, and pauses if all mirrors have failed. If `stay` is
    /// set because the connection made progress, pauses and resumes at the same mirror.
    fn handle_drop(&mut self, why: &str, stay: bool) -> io::Result<()> {
        self.stream = None;
        if self.position - self.counted_from >= PROGRESS_BYTES {
            (self.failures, self.tried, self.counted_from) = (0, 0, self.position);
        }
        self.mirrors.current_mut().why = why.to_owned();
        self.resumed += 1;
        if !stay && self.switch_mirror(why) {
            self.tried += 1;
            if self.tried < self.mirrors.count_usable() {
                return Ok(());
            }
            self.tried = 0;
        }
        self.failures += 1;
        if self.failures >= self.pace.attempts {
            return Err(self.build_final_error(&format!("{why} ({} attempts without progress)", self.failures)));
        }
        let pause = self.pace.pause_after(self.failures);
        tracing::warn!(
            "image: {why} at byte {position} of {total}; resuming in {pause:.1} s (attempt {attempt} of {attempts})",
            position = self.position,
            total = self.total.map_or("unknown".to_owned(), |total| total.to_string()),
            pause = pause.as_secs_f32(),
            attempt = self.failures + 1,
            attempts = self.pace.attempts
        );
        std::thread::sleep(pause);
        Ok(())
    }

    /// Excludes the current mirror and switches to the next one. Fails if no mirror is left.
    fn exclude_mirror(&mut self, lost: MirrorExclusion, why: String) -> io::Result<()> {
        self.stream = None;
        self.mirrors.exclude_current(lost);
        self.mirrors.current_mut().why.clone_from(&why);
        if self.switch_mirror(&why) {
            self.resumed += 1;
            return Ok(());
        }
        Err(self.build_final_error(&why))
    }

    /// Returns the final error of the download. If a mirror that was excluded can still serve the whole image, this
    /// function also records that the download can start over from the first byte.
    fn build_final_error(&mut self, why: &str) -> io::Error {
        if self.mirrors.can_restart() {
            self.start_over = Some(format!("{why}, at byte {}", self.position));
        }
        self.mirrors.final_error(why, self.position)
    }

    /// Switches to the next usable mirror; returns `false` if no other mirror is usable.
    fn switch_mirror(&mut self, why: &str) -> bool {
        let before = self.mirrors.switch_to_next();
        if let Some(before) = &before {
            tracing::warn!("image: {before}: {why}, at byte {}; continuing with {}", self.position, self.current_url());
        }
        before.is_some()
    }

    /// Returns whether the connection is too slow, because it has delivered fewer than [`PROGRESS_BYTES`] in twice the
    /// stall timeout. A server that occasionally sends a byte never triggers a timeout, although another mirror or a
    /// new connection may be fast.
    fn is_too_slow(&mut self, got: usize, waited: Duration) -> bool {
        let (time, bytes) = (self.slow.0 + waited, self.slow.1 + got as u64);
        let is_over = time >= 2 * self.pace.stall;
        self.slow = if is_over { (Duration::ZERO, 0) } else { (time, bytes) };
        is_over && bytes < PROGRESS_BYTES && self.total != Some(self.position)
    }

    /// Handles a stream that ended before the end of the image.
    fn handle_early_end(&mut self, why: String, stalled: bool) -> io::Result<()> {
        if matches!(self.stream, Some(DownloadStream::File(_))) {
            return self.exclude_mirror(MirrorExclusion::Permanently, why);
        }
        if self.position > 0 && !self.is_verified() && self.mirrors.current().strong_etag().is_none() {
            return self.exclude_mirror(MirrorExclusion::UntilRestart, format!("{why}; {NO_STRONG_ETAG}"));
        }
        let brought = self.position - self.opened_at >= PROGRESS_BYTES;
        self.handle_drop(&why, brought && !stalled)
    }
}

impl StreamSource for ResumableDownload {
    fn resumed(&self) -> u32 {
        self.resumed
    }

    fn start_over(&self) -> Option<&str> {
        self.start_over.as_deref()
    }
}

impl Read for ResumableDownload {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        if buf.is_empty() {
            return Ok(0);
        }
        loop {
            let Some(stream) = &mut self.stream else {
                self.connect()?;
                continue;
            };
            let complete = self.total == Some(self.position);
            let began = Instant::now();
            match stream.read(buf) {
                Ok(0) if complete || self.total.is_none() => return Ok(0),
                // The parallel ranges were stopped, and the download continues with another number of ranges.
                Ok(0) if matches!(stream, DownloadStream::Lanes(_)) => self.stream = None,
                Ok(0) => self.handle_early_end("the connection ended early".to_owned(), false)?,
                Ok(got) => {
                    self.position += got as u64;
                    if self.total.is_some_and(|total| self.position > total) {
                        let more = "the server sent more data than the Content-Length of the image".to_owned();
                        self.mirrors.current_mut().why.clone_from(&more);
                        return Err(self.mirrors.final_error(&more, self.position));
                    }
                    let waited = began.elapsed();
                    self.choice.record_received(got, waited);
                    self.reconsider_lanes();
                    if self.is_too_slow(got, waited) {
                        self.handle_early_end("the connection is too slow".to_owned(), true)?;
                    }
                    return Ok(got);
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                // The image is complete, so an error at the end of the connection is ignored.
                Err(_) if complete => return Ok(0),
                Err(error) if matches!(stream, DownloadStream::Lanes(_)) => self.fall_back_to_stream(&error),
                Err(error) => {
                    let inner = error.get_ref().and_then(|inner| inner.downcast_ref());
                    let stalled = inner.is_some_and(reqwest::Error::is_timeout);
                    let why = Error::with_source(Phase::Image, "the connection dropped", error).to_string();
                    self.handle_early_end(why, stalled)?;
                }
            }
        }
    }
}

impl Read for DownloadStream {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        match self {
            DownloadStream::Http(response) => response.read(buf),
            DownloadStream::File(file) => file.read(buf),
            DownloadStream::Lanes(lanes) => lanes.read(buf),
        }
    }
}

#[cfg(test)]
mod tests;
