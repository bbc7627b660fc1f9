//! Switches a download between one stream and several parallel ranges.

use super::{DownloadStream, ResumableDownload};
use crate::fetch::parallel_ranges::{ParallelRanges, RangeRequest};
use std::io;

impl ResumableDownload {
    /// Starts parallel ranges at the current position; returns `None` if one stream will be used.
    pub(super) fn start_lanes(&mut self) -> Option<DownloadStream> {
        let lanes = Some(self.choice.lanes()).filter(|lanes| *lanes > 1)?;
        let Some(range_request) = self.range_request() else {
            // The download has switched to another mirror, from which ranges cannot be fetched. The number of lanes was
            // chosen for the previous mirror, so the download continues with one stream.
            self.choice.fall_back_to_one_lane();
            return None;
        };
        match ParallelRanges::start(range_request, lanes, self.choice.memory_bytes()) {
            Ok(lanes) => Some(DownloadStream::Lanes(lanes)),
            Err(error) => {
                self.fall_back_to_stream(&error);
                None
            }
        }
    }

    /// Returns whether the image can be fetched in ranges from the current mirror. Fetching in ranges requires a strong
    /// ETag or a chunk manifest, to detect that the image has changed. Resuming has the same requirement.
    fn is_divisible(&self) -> bool {
        let here = self.mirrors.current();
        let is_known = self.total.is_some() && here.answered.is_some() && !here.url.starts_with("file:");
        is_known && (self.is_verified() || here.strong_etag().is_some())
    }

    /// Returns the parameters of the lanes' requests; `None` if the image cannot be fetched in ranges. The lanes use
    /// the current registry token. If this token expires, the lanes fail, and the single stream that replaces them
    /// obtains a new token.
    fn range_request(&self) -> Option<RangeRequest> {
        let here = self.mirrors.current();
        Some(RangeRequest {
            client: self.client.clone(),
            url: here.url.clone(),
            authorization: self.authorization().cloned(),
            etag: here.strong_etag().filter(|_| !self.is_verified()).map(str::to_owned),
            start: self.position,
            total: self.total.filter(|_| self.is_divisible())?,
            stall: self.pace.stall,
        })
    }

    /// Decides whether the rest of the image is fetched with more or fewer ranges. Called whenever data was received.
    pub(super) fn reconsider_lanes(&mut self) {
        let running = match &self.stream {
            Some(DownloadStream::Http(_)) if self.is_divisible() => 1,
            Some(DownloadStream::Lanes(lanes)) if lanes.is_round_over() => lanes.count(),
            _ => return,
        };
        let left_bytes = self.total.unwrap_or_default().saturating_sub(self.position);
        // While lanes are being stopped, the number of running lanes is not the chosen one. Nothing is decided then.
        if running != self.choice.lanes() || !self.choice.update_choice(left_bytes) {
            return;
        }
        match &self.stream {
            Some(DownloadStream::Lanes(lanes)) => lanes.wind_down(),
            _ => self.stream = None,
        }
    }

    /// Continues with one stream after an error of a lane. The error is not counted as a failure of the mirror.
    pub(super) fn fall_back_to_stream(&mut self, error: &io::Error) {
        tracing::warn!(
            "image: a parallel range request failed: {error}; continuing with one stream at byte {position}",
            position = self.position
        );
        self.stream = None;
        self.resumed += 1;
        self.choice.fall_back_to_one_lane();
    }
}
