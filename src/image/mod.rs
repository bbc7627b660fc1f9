//! From the image's URL to the files below the target's root, as one stream in constant memory. Each stage is a thread; what
//! is between them is in `ring`:
//!
//! ```text
//! fetch ─┬─> digest
//!        └─> decode ──> untar ──> writers
//! ```
//!
//! A raw disk image goes onto a disk instead: see `raw`.

mod acl;
mod arriving;
mod attributes;
mod beneath;
mod beside;
mod copy;
mod decode;
mod digest;
mod fetch;
mod file;
mod fresh;
#[cfg(test)]
mod fuzzing;
mod lanes;
mod look;
mod manifest;
mod members;
mod minisign;
mod named;
mod names;
mod oci;
mod pax;
mod place;
mod progress;
pub mod raw;
mod reach;
mod retry;
mod ring;
mod source;
mod space;
mod sparse;
mod stages;
mod sweep;
#[cfg(test)]
pub(crate) mod testing;
#[cfg(test)]
pub(crate) mod tests;
mod trust;
mod untar;
mod verify;
mod walk;
mod whiteout;
mod writers;

pub use beneath::{Beneath, Conflicts};
pub use decode::{Format, Plain};
pub use manifest::Manifest;
pub use named::{IN_COMMENT as NAME_IN_COMMENT, Minimum};
pub use source::{Part, Reached, Source};
pub use trust::{DIRECTORY as KEY_DIRECTORY, Keys, PublicKey};

use crate::control::wire::{BurnFigures, Hidden, Progress, Share};
use crate::error::{Context, Error, Phase, Result};
use crate::http;
use arriving::Arriving;
use beneath::Counter;
use digest::Digest;
use place::Root;
use progress::Meter;
use reqwest::blocking::Client;
use retry::Pace;
use ring::Reader;
use stages::{Average, Stages};
use std::io::{self, BufRead};
use std::path::Path;
use std::time::{Duration, Instant};
use untar::{Unpacked, untar};

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
    /// One for each of [`Beneath::hidden`].
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

/// Asks the image's server for size, ETag and digest; writes nothing.
///
/// # Errors
/// The server does not answer, has no such image, or no digest can be had.
pub fn reach(source: &Source) -> Result<Reached> {
    reach::reach(&http::client()?, source, &Pace::default())
}

/// An image on its way: its first bytes are fetched from the moment this exists, until the ring is full.
pub struct Incoming {
    reached: Reached,
    client: Client,
    pace: Pace,
    plain: Plain,
    /// The first part, until it is burned.
    first: Option<Arriving>,
    /// An image that changes on the way may start over so often, each time with the target cleared.
    starts: u32,
    /// Is what lies below the root already somebody's?
    among_others: bool,
}

type Watch<'a> = &'a (dyn Fn(Progress) + Sync);

impl Incoming {
    /// `plain` says what is wanted: a tree of files, or a disk.
    ///
    /// # Errors
    /// TLS cannot be set up, or the image has no digest that is known.
    pub fn start(reached: Reached, plain: Plain) -> Result<Incoming> {
        Incoming::at_pace(reached, plain, Pace::default())
    }

    fn at_pace(reached: Reached, plain: Plain, pace: Pace) -> Result<Incoming> {
        let client = http::streaming_client(pace.stall)?;
        let mut incoming =
            Incoming { reached, client, pace, plain, first: None, starts: MOST_STARTS, among_others: false };
        incoming.first = incoming.reached.parts.first().map(|part| incoming.arriving(part)).transpose()?;
        Ok(incoming)
    }

    fn arriving(&self, part: &Part) -> Result<Arriving> {
        Arriving::start(&self.client, part, &self.pace, self.plain)
    }

    /// What is below the root already is somebody's: an image that changes on the way fails then, since to start over
    /// would clear the root. A whiteout removes only what this burn has brought.
    pub fn among_others(self) -> Incoming {
        Incoming { starts: 1, among_others: true, ..self }
    }

    /// Streams the image below `root`, which stays incomplete when this fails. `watch` is told a few times a second.
    ///
    /// Succeeds only when the server's length, the compression's end mark, the tar's end blocks and the digest all agree.
    /// Nothing is synced: errors of the disk may still come with the umount.
    ///
    /// On a merged filesystem the image's files win over files and symlinks of the same name, directories stay with what is
    /// in them, and nothing is touched that the image does not name. What the image brought there cannot be told from what was
    /// there, so it starts over only where its pieces are verified one by one: then each start brings the same.
    ///
    /// # Errors
    /// The first of fetch, decoder, tar, write and digest that is not content, by name.
    pub fn burn(mut self, root: &Path, beneath: &Beneath, watch: Watch) -> Result<Burned> {
        let merged = beneath::relative(beneath.merged);
        let below = Root::open(root, merged).context(Phase::Image, || format!("open {}", root.display()))?;
        let below = if self.among_others { below.among_others() } else { below };
        let bound = !beneath.merged.is_empty() && !self.is_verified();
        let starts = if bound { 1 } else { self.starts };
        let fresh = if starts == 1 { Ok(Vec::new()) } else { below.fresh(&beneath::relative(beneath.fresh)) };
        let fresh = fresh.context(Phase::Image, || format!("look at what is below {}", root.display()))?;
        let mut resumed = 0;
        let mut start = 1;
        loop {
            let (why, before) = match self.burn_once(&below, beneath, watch)? {
                End::Whole(burned) => return Ok(Burned { resumed: burned.resumed + resumed, ..burned }),
                End::StartOver { why, resumed } => (why, resumed),
            };
            let url = &self.reached.url;
            if start == starts {
                let times = if starts == 1 { String::new() } else { format!(" in {starts} starts") };
                let bound = if bound { only_once(beneath.merged) } else { String::new() };
                let text = format!("the image {url} changed or could not be resumed{times}: {why}{bound}");
                return Err(Error::new(Phase::Image, text));
            }
            start += 1;
            tracing::warn!("image {url}: {why}; starting over (start {start} of {starts})");
            resumed += before + 1;
            below.clear(&fresh).context(Phase::Image, || format!("clear {} to start over", root.display()))?;
        }
    }

    /// Piece by piece, before anything is written: whoever sends them, each start brings the same.
    fn is_verified(&self) -> bool {
        self.reached.parts.iter().all(|part| part.manifest.is_some())
    }

    /// All parts, one after the other.
    fn burn_once(&mut self, root: &Root, beneath: &Beneath, watch: Watch) -> Result<End> {
        let mut counter = Counter::new(*beneath);
        let (mut sum, mut average) = (Burned::default(), Average::default());
        let mut meter = Meter::new(self.reached.size_bytes());
        let mut first = self.first.take();
        for part in &self.reached.parts {
            let arriving = first.take().map_or_else(|| self.arriving(part), Ok)?;
            let began = Instant::now();
            match burn_part(arriving, part, root, &mut counter, &mut meter, watch, self.reached.layered)? {
                End::Whole(burned) => {
                    average.add(&burned.shares, began.elapsed());
                    add(&mut sum, burned);
                }
                start_over => return Ok(start_over),
            }
        }
        (sum.hidden, sum.shares) = (counter.finish(), average.shares());
        Ok(End::Whole(sum))
    }
}

fn only_once(merged: &[String]) -> String {
    format!(
        "; it does not start over here: what it brought to {} cannot be told from what was there. With IMAGE.manifest beside \
         it, an image can be resumed at any server with Range, and starts over",
        merged.join(", ")
    )
}

fn add(sum: &mut Burned, part: Burned) {
    sum.bytes += part.bytes;
    sum.tar_bytes += part.tar_bytes;
    sum.entries += part.entries;
    sum.resumed += part.resumed;
    sum.conflicts.files += part.conflicts.files;
    sum.conflicts.first.extend(part.conflicts.first);
}

enum End {
    Whole(Burned),
    StartOver { why: String, resumed: u32 },
}

/// The pipeline of one stream.
fn burn_part(
    arriving: Arriving,
    part: &Part,
    root: &Root,
    counter: &mut Counter,
    meter: &mut Meter,
    watch: Watch,
    layered: bool,
) -> Result<End> {
    let expected: Digest = part.digest.parse().map_err(|why: String| Error::new(Phase::Image, why))?;
    let Arriving { reader, digest, told, stages } = arriving;
    stages.restart();
    let unpacked = meter.telling(&told, watch, || unpack(reader, root, counter, layered, &stages));
    if let Some(why) = told.start_over() {
        return Ok(End::StartOver { why, resumed: told.resumed() });
    }
    let unpacked = unpacked.context(Phase::Image, || format!("unpack {}", part.url))?;
    let digest = digest.join().context(Phase::Image, || format!("digest of {}", part.url))?;
    if digest != expected {
        let text = format!("digest of {}: {expected} was expected, {digest} came", part.url);
        return Err(Error::new(Phase::Image, text));
    }
    let Unpacked { entries, tar_bytes, conflicts } = unpacked;
    let (bytes, resumed, shares) = (told.bytes(), told.resumed(), stages.shares());
    Ok(End::Whole(Burned { bytes, tar_bytes, entries, resumed, conflicts, shares, ..Burned::default() }))
}

fn unpack(mut tar: Reader, root: &Root, counter: &mut Counter, layered: bool, stages: &Stages) -> io::Result<Unpacked> {
    if raw::is_disk_image(tar.fill_buf()?) {
        return Err(io::Error::new(io::ErrorKind::InvalidData, raw::DISK_FOR_TREE));
    }
    untar(tar, root, counter, layered, stages)
}
