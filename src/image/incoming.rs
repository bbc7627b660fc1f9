//! An image on its way: what was reached feeds the flow, and what comes out of it goes below a root or onto a disk. Here is what both
//! have in common: its beginning, and how often it may begin.

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

/// An image that changes under us may do so once or twice, not for ever.
const MOST_STARTS: u32 = 3;

/// What arrived.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Burned {
    /// As it travelled.
    pub bytes: u64,
    /// Decompressed: of the tar, or of the disk that a raw image is of.
    pub tar_bytes: u64,
    pub entries: u64,
    /// How often the connection was taken up again.
    pub resumed: u32,
    /// One for each of [`super::Beneath::hidden`].
    pub hidden: Vec<Hidden>,
    pub conflicts: Conflicts,
    /// How busy each stage was.
    pub shares: Vec<Share>,
}

impl Burned {
    /// For the report.
    pub fn figures(&self, took: Duration) -> BurnFigures {
        BurnFigures { bytes: self.bytes, seconds: took.as_secs_f64(), shares: self.shares.clone() }
    }
}

/// Its first bytes are fetched from the moment this exists, until the ring is full.
pub struct Incoming {
    pub(super) reached: Reached,
    pub(super) client: Client,
    pub(super) pace: Pace,
    pub(super) plain: Plain,
    /// The first part, until it is burned.
    pub(super) first: Option<Arriving>,
    /// Is what lies below the root already somebody's?
    pub(super) among_others: bool,
}

type Watch<'a> = &'a (dyn Fn(Progress) + Sync);

enum End {
    Whole(Burned),
    StartOver { why: String, resumed: u32 },
}

impl Incoming {
    /// `plain` says what is wanted: a tree of files, or a disk.
    ///
    /// # Errors
    /// TLS cannot be set up, or the worker cannot be started.
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

    /// Refuses a raw disk image where a tree of files is wanted, by the image's first bytes: that is known before anything is
    /// written. Waits for those bytes.
    ///
    /// # Errors
    /// It is not what is wanted, or its beginning cannot be had.
    pub fn require_tree(&mut self) -> Result<()> {
        self.look(&begins)
    }

    /// `check` says why the image is refused.
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
                // It changes while we look.
                (Err(_), Some(why)) => {
                    start = self.next_start(start, &why)?;
                    self.first = Some(self.arriving(part, None)?);
                }
                (Err(error), None) => {
                    return Err(error).context(Phase::Image, || format!("look at the beginning of {}", part.url));
                }
            }
        }
    }

    /// The number of the start after this one, if there may be another.
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
