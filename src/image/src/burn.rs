//! Connects the download of an image to the pipeline, and the output of the pipeline to a directory (`tree`) or a disk
//! (`disk`). This file contains the code that both modules share: the start of the download, and the limit on restarts.

mod disk;
mod qcow2;
mod tree;

use super::fetch::{FetchRetryPolicy, ImagePart, ResolvedImage, open_source};
use super::pipeline::{Download, HoldFile, PayloadKind, PipelineReader};
use super::tree::{FileConflicts, check_beginning};
use common::error::{Context, Error, Phase, Result};
use linux::http;
use model::install_report::{HiddenFiles, ImageTransferFigures, StageShare, TransferProgress};
use reqwest::blocking::Client;
use std::io;
use std::time::Duration;

/// Maximum number of attempts to write an image. If the image changes during the download, writing starts over with the
/// next attempt.
const MAXIMUM_STARTS: u32 = 3;

/// Result of writing an image to its target.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct BurnResult {
    /// Number of downloaded bytes, before decompression.
    pub bytes: u64,
    /// Decompressed size of the tar or the disk image, in bytes.
    pub tar_bytes: u64,
    pub entries: u64,
    /// Number of times that the download was resumed.
    pub resumed: u32,
    /// Number of hidden files for each mount point in [`super::MountsBelow::hidden`], in the order of that list.
    pub hidden: Vec<HiddenFiles>,
    pub conflicts: FileConflicts,
    /// Load of each stage of the pipeline.
    pub shares: Vec<StageShare>,
}

impl BurnResult {
    /// Returns the statistics for the install report. `took` is the duration of writing the image.
    pub fn to_figures(&self, took: Duration) -> ImageTransferFigures {
        ImageTransferFigures { bytes: self.bytes, seconds: took.as_secs_f64(), shares: self.shares.clone() }
    }
}

/// Image with a download in progress. As soon as this value is created, bytes are fetched until the buffers are full.
pub struct IncomingImage {
    pub(super) reached: ResolvedImage,
    pub(super) client: Client,
    pub(super) pace: FetchRetryPolicy,
    pub(super) plain: PayloadKind,
    /// Download of the first part; `None` after the first attempt to write the image has taken over the download.
    pub(super) first: Option<Download>,
    /// Whether the root directory already contains files that do not come from this image; see [`Self::among_others`].
    pub(super) among_others: bool,
}

type WatchProgress<'a> = &'a (dyn Fn(TransferProgress) + Sync);

enum BurnOutcome {
    Whole(BurnResult),
    StartOver { why: String, resumed: u32 },
}

impl IncomingImage {
    /// Starts the download. `plain` is the expected content: a tree of files, or a disk.
    ///
    /// # Errors
    /// Returns an error if TLS cannot be set up, or the worker cannot be started.
    pub fn start(reached: ResolvedImage, plain: PayloadKind) -> Result<IncomingImage> {
        IncomingImage::start_at_pace(reached, plain, FetchRetryPolicy::default())
    }

    pub(super) fn start_at_pace(
        reached: ResolvedImage,
        plain: PayloadKind,
        pace: FetchRetryPolicy,
    ) -> Result<IncomingImage> {
        let client = http::new_download_client(Some(pace.stall))?;
        let mut incoming = IncomingImage { reached, client, pace, plain, first: None, among_others: false };
        incoming.first = incoming.reached.parts.first().map(|part| incoming.start_download(part, None)).transpose()?;
        Ok(incoming)
    }

    fn start_download(&self, part: &ImagePart, held_in: Option<HoldFile>) -> Result<Download> {
        let feed = open_source(&self.client, part, &self.pace);
        let arriving = Download::start(feed, &part.digest, self.plain, held_in);
        arriving.context(Phase::Image, || format!("start the worker process that decodes {url}", url = part.url))
    }

    /// Waits for the first bytes of the image, and rejects an image that is not a tree of files, before anything is
    /// written.
    ///
    /// # Errors
    /// Returns an error if the image has another type, or its beginning cannot be fetched.
    pub fn require_tree(&mut self) -> Result<()> {
        self.check_beginning(&check_beginning)
    }

    /// Checks the beginning of the image with `check`. The inner error of `check` is the reason for rejecting the
    /// image.
    fn check_beginning(&mut self, check: &dyn Fn(&mut PipelineReader) -> io::Result<Result<(), String>>) -> Result<()> {
        let mut start = 1;
        loop {
            let (Some(first), Some(part)) = (&mut self.first, self.reached.parts.first()) else { return Ok(()) };
            let checked = check(&mut first.reader);
            match (checked, first.download.start_over()) {
                (Ok(checked), _) => {
                    let refused = |why: String| Error::refusal(Phase::Image, format!("{}: {why}", part.url));
                    return checked.map_err(refused);
                }
                // The image has changed on the server during the check, so the download starts over.
                (Err(_), Some(why)) => {
                    start = self.next_start(start, &why)?;
                    self.first = Some(self.start_download(part, None)?);
                }
                (Err(error), None) => {
                    return Err(error)
                        .context(Phase::Image, || format!("check the beginning of {url}", url = part.url));
                }
            }
        }
    }

    /// Returns the number of the next attempt. Fails if `start` was the last attempt allowed.
    fn next_start(&self, start: u32, why: &str) -> Result<u32> {
        let url = &self.reached.url;
        if start == MAXIMUM_STARTS {
            let text = format!(
                "the image {url} could not be downloaded in {MAXIMUM_STARTS} attempts: it changed during the \
                download, or the download could not be resumed. Last reason: {why}"
            );
            return Err(Error::new(Phase::Image, text));
        }
        tracing::warn!(
            "image {url}: {why}; starting again from the beginning (attempt {attempt} of {MAXIMUM_STARTS})",
            attempt = start + 1
        );
        Ok(start + 1)
    }
}
