//! An image on its way to the target: connects the download to the pipeline, and its output to a directory or a disk.
//! This file has what both have in common: the start, and the limit on restarts.

mod disk;
mod qcow2;
mod tree;

use super::flow::{Arriving, Hold, Plain, Reader};
use super::get::{Pace, Part, Reached, feed};
use super::tree::{Conflicts, begins};
use crate::error::{Context, Error, Phase, Result};
use crate::facts::{BurnFigures, Hidden, Progress, Share};
use crate::http;
use reqwest::blocking::Client;
use std::io;
use std::time::Duration;

/// Maximum number of starts. An image may change during the download once or twice, but not forever.
const MOST_STARTS: u32 = 3;

/// Results of a burn.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Burned {
    /// Bytes as served.
    pub bytes: u64,
    /// Decompressed size of the tar or the disk image.
    pub tar_bytes: u64,
    pub entries: u64,
    /// Number of times that the connection was resumed.
    pub resumed: u32,
    /// One for each mount point in [`super::Beneath::hidden`].
    pub hidden: Vec<Hidden>,
    pub conflicts: Conflicts,
    /// Load of each stage.
    pub shares: Vec<Share>,
}

impl Burned {
    /// Returns the figures for the report.
    pub fn figures(&self, took: Duration) -> BurnFigures {
        BurnFigures { bytes: self.bytes, seconds: took.as_secs_f64(), shares: self.shares.clone() }
    }
}

/// An image being downloaded: from its creation on, its first bytes are fetched until the buffers are full.
pub struct Incoming {
    pub(super) reached: Reached,
    pub(super) client: Client,
    pub(super) pace: Pace,
    pub(super) plain: Plain,
    /// Download of the first part, until it is burned.
    pub(super) first: Option<Arriving>,
    /// Whether the content below the root belongs to another owner.
    pub(super) among_others: bool,
}

type Watch<'a> = &'a (dyn Fn(Progress) + Sync);

enum End {
    Whole(Burned),
    StartOver { why: String, resumed: u32 },
}

impl Incoming {
    /// Starts the download. `plain` is the expected content: a tree of files, or a disk.
    ///
    /// # Errors
    /// Returns an error if TLS cannot be set up, or the worker cannot be started.
    pub fn start(reached: Reached, plain: Plain) -> Result<Incoming> {
        Incoming::at_pace(reached, plain, Pace::default())
    }

    pub(super) fn at_pace(reached: Reached, plain: Plain, pace: Pace) -> Result<Incoming> {
        let client = http::streaming_client(pace.stall)?;
        let mut incoming = Incoming { reached, client, pace, plain, first: None, among_others: false };
        incoming.first = incoming.reached.parts.first().map(|part| incoming.arriving(part, None)).transpose()?;
        Ok(incoming)
    }

    fn arriving(&self, part: &Part, held_in: Option<Hold>) -> Result<Arriving> {
        let feed = feed(&self.client, part, &self.pace);
        let arriving = Arriving::start(feed, &part.digest, self.plain, held_in);
        arriving.context(Phase::Image, || format!("start the worker that decodes {}", part.url))
    }

    /// Rejects a raw disk image if a tree of files is expected, by the first bytes of the image and before anything is
    /// written. Waits for those bytes.
    ///
    /// # Errors
    /// Returns an error if the image has another type, or its beginning cannot be fetched.
    pub fn require_tree(&mut self) -> Result<()> {
        self.look(&begins)
    }

    /// Checks the beginning of the image; `check` returns why the image is rejected.
    fn look(&mut self, check: &dyn Fn(&mut Reader) -> io::Result<Result<(), String>>) -> Result<()> {
        let mut start = 1;
        loop {
            let (Some(first), Some(part)) = (&mut self.first, self.reached.parts.first()) else { return Ok(()) };
            let checked = check(&mut first.reader);
            match (checked, first.told.start_over()) {
                (Ok(checked), _) => {
                    let refused = |why: String| Error::refusal(Phase::Image, format!("{}: {why}", part.url));
                    return checked.map_err(refused);
                }
                // The image has changed during the check.
                (Err(_), Some(why)) => {
                    start = self.next_start(start, &why)?;
                    self.first = Some(self.arriving(part, None)?);
                }
                (Err(error), None) => {
                    return Err(error).context(Phase::Image, || format!("check the beginning of {}", part.url));
                }
            }
        }
    }

    /// Returns the number of the next start, if another one is allowed.
    fn next_start(&self, start: u32, why: &str) -> Result<u32> {
        let url = &self.reached.url;
        if start == MOST_STARTS {
            let text = format!("the image {url} changed or could not be resumed in {MOST_STARTS} starts: {why}");
            return Err(Error::new(Phase::Image, text));
        }
        tracing::warn!("image {url}: {why}; starting over (start {} of {MOST_STARTS})", start + 1);
        Ok(start + 1)
    }
}
