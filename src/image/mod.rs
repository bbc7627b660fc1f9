//! From the image's URL to the files below the target's root, as one stream in constant memory. Each stage is a thread; what
//! is between them is in `ring`:
//!
//!     fetch ─┬─> digest
//!            └─> decode ──> untar
//!
//! A raw disk image goes onto a disk instead: see `raw`.

mod arriving;
mod attributes;
mod beneath;
mod copy;
mod decode;
mod digest;
mod fetch;
mod manifest;
mod members;
mod pax;
mod place;
mod progress;
pub mod raw;
mod reach;
mod retry;
mod ring;
mod source;
mod sparse;
mod stages;
#[cfg(test)]
mod testing;
#[cfg(test)]
mod tests;
mod trust;
mod untar;
mod walk;

pub use beneath::{Beneath, Conflicts};
pub use manifest::Manifest;
pub use source::{Part, Reached, Source};
pub use trust::{Keys, PublicKey};

use crate::control::wire::{Hidden, Progress};
use crate::error::{Context, Error, Phase, Result};
use crate::http;
use arriving::Arriving;
use beneath::Counter;
use digest::Digest;
use place::Root;
use reqwest::blocking::Client;
use retry::Pace;
use ring::{Pool, Reader, pipe};
use stages::{Share, Stages};
use std::io::{self, BufRead};
use std::path::Path;
use std::thread;
use untar::{Unpacked, untar};

/// An image that changes under us may do so once or twice, not for ever.
const MOST_STARTS: u32 = 3;

/// Between decoder and tar: 24 MiB.
const TAR_BUFFERS: usize = 24;
const TAR_BUFFER_BYTES: usize = 1 << 20;

/// What arrived.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Burned {
    /// As it travelled.
    pub bytes: u64,
    /// Unpacked tar stream.
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
    /// The first part, until it is burned.
    first: Option<Arriving>,
}

type Watch<'a> = &'a (dyn Fn(Progress) + Sync);

impl Incoming {
    /// # Errors
    /// TLS cannot be set up, or the image has no digest that is known.
    pub fn start(reached: Reached) -> Result<Incoming> {
        Incoming::at_pace(reached, Pace::default())
    }

    fn at_pace(reached: Reached, pace: Pace) -> Result<Incoming> {
        let client = http::streaming_client(pace.stall)?;
        let first = reached.parts.first().map(|part| Arriving::start(&client, part, &pace)).transpose()?;
        Ok(Incoming { reached, client, pace, first })
    }

    /// Streams the image below `root`, which stays incomplete when this fails. `watch` is told a few times a second.
    ///
    /// Succeeds only when the server's length, the compression's end mark, the tar's end blocks and the digest all agree.
    /// Nothing is synced: errors of the disk may still come with the umount.
    ///
    /// On a merged filesystem the image's files win over files and symlinks of the same name, directories stay with what is
    /// in them, and nothing is touched that the image does not name. An image that changes on the way and starts over may
    /// leave files of its first state there.
    ///
    /// # Errors
    /// The first of fetch, decoder, tar, write and digest that is not content, by name.
    pub fn burn(mut self, root: &Path, beneath: &Beneath, watch: Watch) -> Result<Burned> {
        let merged = beneath::relative(beneath.merged);
        let below = Root::open(root, merged).context(Phase::Image, || format!("open {}", root.display()))?;
        let mut resumed = 0;
        for start in 1..=MOST_STARTS {
            match self.burn_once(&below, beneath, watch)? {
                End::Whole(burned) => return Ok(Burned { resumed: burned.resumed + resumed, ..burned }),
                End::StartOver { why, resumed: before } => {
                    tracing::warn!("image {}: {why}; starting over (start {start} of {MOST_STARTS})", self.reached.url);
                    resumed += before + 1;
                }
            }
            below.clear().context(Phase::Image, || format!("clear {} to start over", root.display()))?;
        }
        let url = &self.reached.url;
        let why = format!("the image {url} changed or could not be resumed in {MOST_STARTS} starts");
        Err(Error::new(Phase::Image, why))
    }

    /// All parts, one after the other.
    fn burn_once(&mut self, root: &Root, beneath: &Beneath, watch: Watch) -> Result<End> {
        let mut counter = Counter::new(*beneath);
        let mut sum = Burned::default();
        for part in &self.reached.parts {
            let arriving = match self.first.take() {
                Some(arriving) => arriving,
                None => Arriving::start(&self.client, part, &self.pace)?,
            };
            match burn_part(arriving, part, root, &mut counter, watch)? {
                End::Whole(burned) => add(&mut sum, burned),
                start_over => return Ok(start_over),
            }
        }
        sum.hidden = counter.finish();
        Ok(End::Whole(sum))
    }
}

fn add(sum: &mut Burned, part: Burned) {
    sum.bytes += part.bytes;
    sum.tar_bytes += part.tar_bytes;
    sum.entries += part.entries;
    sum.resumed += part.resumed;
    sum.conflicts.files += part.conflicts.files;
    sum.conflicts.first.extend(part.conflicts.first);
    sum.shares = part.shares;
}

enum End {
    Whole(Burned),
    StartOver { why: String, resumed: u32 },
}

/// The pipeline of one stream.
fn burn_part(arriving: Arriving, part: &Part, root: &Root, counter: &mut Counter, watch: Watch) -> Result<End> {
    let expected: Digest = part.digest.parse().map_err(|why: String| Error::new(Phase::Image, why))?;
    let Arriving { reader, digest, told, stages } = arriving;
    let unpacked = progress::telling(&told, part.size_bytes, watch, || unpack(reader, root, counter, &stages));
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

fn unpack(reader: Reader, root: &Root, counter: &mut Counter, stages: &Stages) -> io::Result<Unpacked> {
    let (sender, receiver) = pipe(TAR_BUFFERS);
    let pool = Pool::new(TAR_BUFFERS, TAR_BUFFER_BYTES);
    thread::scope(|scope| {
        scope.spawn(|| decode::decode(reader, &pool, sender));
        let mut tar = Reader::new(receiver, stages.clock("untar"));
        if raw::is_disk_image(tar.fill_buf()?) {
            return Err(io::Error::new(io::ErrorKind::InvalidData, raw::DISK_FOR_TREE));
        }
        untar(tar, root, counter)
    })
}
