//! Parallel range requests for one image, for links that a single stream does not saturate. Each lane is a thread with
//! its own connection. With two lanes, a lane fetches every second piece of the image; with four lanes, every fourth.
//! The pieces are read in order.
//!
//! ```text
//! lane 0: piece 0, piece 2, piece 4 … ─┐
//!                                      ├─> read, in turn
//! lane 1: piece 1, piece 3, piece 5 … ─┘
//! ```
//!
//! `resumable_download` starts the lanes if `lane_count` chooses more than one. If the lanes fail or are stopped,
//! `resumable_download` continues with one stream at the position reached. A lane accepts only a response with
//! exactly the requested range, and a piece is read only when it is complete. Deadlocks are impossible: a lane waits
//! only for the reader, and the reader waits only for the lane that fetches the next piece, at most until the stall
//! timeout.

mod lane_count;

pub(crate) use lane_count::{LaneChooser, LaneRules};

use super::head_request::header_text;
use common::error::{Error, Phase};
use model::secret_text::SecretText;
use reqwest::StatusCode;
use reqwest::blocking::{Client, Response};
use reqwest::header::{AUTHORIZATION, CONTENT_LENGTH, CONTENT_RANGE, ETAG, IF_RANGE, RANGE};
use std::io::{self, Read};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, SyncSender};
use std::thread;
use std::time::Duration;

/// Parameters of the requests that all lanes send.
pub(crate) struct RangeRequest {
    /// Client that uses HTTP/1. With HTTP/2, all requests would share one connection.
    pub client: Client,
    pub url: String,
    pub authorization: Option<SecretText>,
    /// Strong ETag that each response must have; `None` if a manifest verifies the data.
    pub etag: Option<String>,
    /// Position in the image at which the lanes start.
    pub start: u64,
    pub total: u64,
    /// Maximum time that the reader waits for a piece.
    pub stall: Duration,
}

/// Reader that combines several ranges into one stream. The stream ends after the last byte of the image, or earlier
/// after [`Self::wind_down`].
pub(crate) struct ParallelRanges {
    work: Arc<LaneShared>,
    lanes: Vec<Receiver<PieceResult>>,
    /// Number of the piece after the current one.
    next: u64,
    current: Vec<u8>,
    /// Number of bytes of the current piece that were read.
    given: usize,
}

/// Complete piece, or the message of the error at which the lane stopped.
type PieceResult = Result<Vec<u8>, String>;

/// State shared by the lanes.
struct LaneShared {
    request: RangeRequest,
    lanes: u64,
    piece_bytes: u64,
    /// Number of the first piece that will not be fetched.
    end: AtomicU64,
}

impl ParallelRanges {
    /// Starts the lanes. The pieces in memory take about `memory_bytes` bytes in total.
    ///
    /// # Errors
    /// Returns an error if a thread cannot be created.
    pub fn start(request: RangeRequest, lanes: u64, memory_bytes: u64) -> io::Result<ParallelRanges> {
        // The memory is divided by the maximum number of pieces: each lane has one piece in flight and one that waits
        // for the reader, and one more piece is being read.
        let piece_bytes = (memory_bytes / (2 * lanes + 1)).max(1);
        let work = Arc::new(LaneShared { request, lanes, piece_bytes, end: AtomicU64::new(u64::MAX) });
        let mut started = ParallelRanges { work, lanes: Vec::new(), next: 0, current: Vec::new(), given: 0 };
        for first in 0..lanes {
            let (to_reader, receiver) = mpsc::sync_channel(1);
            let work = started.work.clone();
            thread::Builder::new().spawn(move || work.run_lane(first, &to_reader))?;
            started.lanes.push(receiver);
        }
        Ok(started)
    }

    pub(crate) fn count(&self) -> u64 {
        self.work.lanes
    }

    /// Stops fetching new pieces. The stream ends after the pieces that are already being fetched, so there is no gap,
    /// and no fetched data is discarded.
    pub(crate) fn wind_down(&self) {
        // For each lane, two more pieces are still delivered: at most one piece is complete and waits for the reader,
        // and the lane is fetching the piece after it.
        self.work.end.fetch_min(self.next + 2 * self.work.lanes, Ordering::Relaxed);
    }

    /// Returns whether all lanes have delivered the same number of pieces. The rate is evaluated only at such times.
    pub(crate) fn is_round_over(&self) -> bool {
        self.given == self.current.len() && self.next.is_multiple_of(self.work.lanes)
    }

    /// Waits for the next piece. Returns an empty piece at the end of the stream.
    fn receive_piece(&self) -> PieceResult {
        if self.work.piece_span(self.next).is_none() {
            return Ok(Vec::new());
        }
        let lane = &self.lanes[(self.next % self.work.lanes) as usize];
        match lane.recv_timeout(self.work.request.stall) {
            Ok(arrived) => arrived,
            Err(RecvTimeoutError::Timeout) => {
                Err(format!("no data received for {seconds:.0} s", seconds = self.work.request.stall.as_secs_f32()))
            }
            Err(RecvTimeoutError::Disconnected) => Err("the thread of a range request ended unexpectedly".to_owned()),
        }
    }
}

impl Read for ParallelRanges {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        if self.given == self.current.len() {
            // The memory of the finished piece is freed before the wait for the next piece.
            (self.current, self.given) = (Vec::new(), 0);
            self.current = self.receive_piece().map_err(io::Error::other)?;
            self.next += u64::from(!self.current.is_empty());
        }
        let got = (&self.current[self.given..]).read(buf)?;
        self.given += got;
        Ok(got)
    }
}

impl Drop for ParallelRanges {
    /// Stops the lanes, but does not wait for their threads to end, because a stalled read would delay the writing of
    /// the image.
    fn drop(&mut self) {
        self.work.end.store(0, Ordering::Relaxed);
    }
}

impl LaneShared {
    /// Runs one lane: fetches piece `first` and every `lanes`-th piece after it, until the end or an error.
    fn run_lane(&self, first: u64, to_reader: &SyncSender<PieceResult>) {
        let mut piece = first;
        while let Some((first_byte, last_byte)) = self.piece_span(piece) {
            let arrived = self.fetch_piece(piece, first_byte, last_byte);
            let is_last = arrived.is_err();
            if to_reader.send(arrived).is_err() || is_last {
                return;
            }
            piece += self.lanes;
        }
    }

    /// Returns the offsets of the first and last byte of a piece; `None` if the piece will not be fetched.
    fn piece_span(&self, piece: u64) -> Option<(u64, u64)> {
        let first = self.request.start + piece * self.piece_bytes;
        let wanted = piece < self.end.load(Ordering::Relaxed) && first < self.request.total;
        wanted.then(|| (first, (first + self.piece_bytes).min(self.request.total) - 1))
    }

    fn fetch_piece(&self, piece: u64, first: u64, last: u64) -> PieceResult {
        let wanted = &self.request;
        let mut request = wanted.client.get(&wanted.url).header(RANGE, format!("bytes={first}-{last}"));
        let authorization = wanted.authorization.as_ref().map(SecretText::reveal);
        for (name, value) in [(AUTHORIZATION, authorization), (IF_RANGE, wanted.etag.as_deref())] {
            request = value.iter().fold(request, |request, value| request.header(name.clone(), *value));
        }
        let said =
            |error: reqwest::Error| Error::with_source(Phase::Image, "no answer", error.without_url()).to_string();
        let mut response = request.send().map_err(said)?;
        self.check_response(&response, first, last)?;
        let mut bytes = vec![0; (last - first + 1) as usize];
        let mut filled = 0;
        loop {
            // This check precedes every read: a lane that is no longer needed ends immediately and releases its memory.
            if self.piece_span(piece).is_none() {
                return Err("the download of this part of the image was canceled".to_owned());
            }
            // The response body is read until its end is reported. Otherwise the connection could not be reused for the
            // next piece.
            let whole = filled == bytes.len();
            let mut beyond = [0];
            match response.read(if whole { &mut beyond } else { &mut bytes[filled..] }) {
                Ok(0) if whole => return Ok(bytes),
                Ok(0) => return Err("the connection ended early".to_owned()),
                Ok(_) if whole => return Err("the server sent more data than was requested".to_owned()),
                Ok(got) => filled += got,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(Error::with_source(Phase::Image, "the connection dropped", error).to_string()),
            }
        }
    }

    /// Checks that the response is from the same image and has exactly the requested range.
    fn check_response(&self, response: &Response, first: u64, last: u64) -> Result<(), String> {
        if response.status() != StatusCode::PARTIAL_CONTENT {
            return Err(format!("the server responded with {status} to a range request", status = response.status()));
        }
        let etag = header_text(response, ETAG);
        if self.request.etag.is_some() && self.request.etag != etag {
            return Err("the image now has another ETag".to_owned());
        }
        let range = header_text(response, CONTENT_RANGE).unwrap_or_default();
        if range != format!("bytes {first}-{last}/{}", self.request.total) {
            return Err(format!("the server sent a range other than the requested one: `{range}`"));
        }
        match header_text(response, CONTENT_LENGTH) {
            Some(length) if length.parse() != Ok(last - first + 1) => {
                Err(format!("the server sent {length} bytes for the range `{range}`"))
            }
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests;
