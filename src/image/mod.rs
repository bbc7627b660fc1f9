//! From the image's URL to the files below the target's root, as one stream in constant memory.

mod attributes;
mod beneath;
mod copy;
mod decode;
mod digest;
mod fetch;
mod members;
mod pax;
mod place;
mod progress;
mod reach;
mod retry;
mod sparse;
#[cfg(test)]
mod testing;
#[cfg(test)]
mod tests;
mod untar;
mod walk;

pub use beneath::{Beneath, Conflicts};

use crate::control::wire::{Hidden, Progress};
use crate::error::{Context, Error, Phase, Result};
use crate::http;
use beneath::Counter;
use decode::Decoder;
use digest::{Digest, Digesting};
use fetch::Fetch;
use place::Root;
use progress::Meter;
use reqwest::blocking::Client;
use retry::Pace;
use std::path::Path;
use untar::{Unpacked, untar};

/// An image that changes under us may do so once or twice, not for ever.
const MOST_STARTS: u32 = 3;

/// An image as the allocation names it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Source {
    pub url: String,
    /// `sha256:HEX`, `sha512:HEX`; without one the metal-stack `.md5` beside the image is looked for.
    pub digest: Option<String>,
}

/// An image that answered.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Reached {
    pub url: String,
    pub size_bytes: Option<u64>,
    pub etag: Option<String>,
    /// `sha256:HEX`, `sha512:HEX` or `md5:HEX`.
    pub digest: String,
}

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
}

/// Asks the image's server for size, ETag and digest; writes nothing.
///
/// # Errors
/// The server does not answer, has no such image, or no digest can be had.
pub fn reach(source: &Source) -> Result<Reached> {
    reach::reach(&http::client()?, source, &Pace::default())
}

/// Streams the image below `root`, which stays incomplete when this fails. `watch` is told a few times a second.
///
/// Succeeds only when the server's length, the compression's end mark, the tar's end blocks and the digest all agree.
/// Nothing is synced: errors of the disk may still come with the umount.
///
/// On a merged filesystem the image's files win over files and symlinks of the same name, directories stay with what is in
/// them, and nothing is touched that the image does not name. An image that changes on the way and starts over may leave
/// files of its first state there.
///
/// # Errors
/// The first of fetch, decoder, tar, write and digest that is not content, by name.
pub fn burn(image: &Reached, root: &Path, beneath: &Beneath, watch: Watch) -> Result<Burned> {
    burn_at_pace(image, root, beneath, watch, &Pace::default())
}

type Watch<'a> = &'a (dyn Fn(Progress) + Sync);

fn burn_at_pace(image: &Reached, root: &Path, beneath: &Beneath, watch: Watch, pace: &Pace) -> Result<Burned> {
    let client = http::streaming_client(pace.stall)?;
    let merged = beneath::relative(beneath.merged);
    let below = Root::open(root, merged).context(Phase::Image, || format!("open {}", root.display()))?;
    let mut resumed = 0;
    for start in 1..=MOST_STARTS {
        match burn_once(&client, image, &below, beneath, watch, pace)? {
            End::Whole(burned) => return Ok(Burned { resumed: burned.resumed + resumed, ..burned }),
            End::StartOver { why, resumed: before } => {
                tracing::warn!("image {}: {why}; starting over (start {start} of {MOST_STARTS})", image.url);
                resumed += before + 1;
            }
        }
        below.clear().context(Phase::Image, || format!("clear {} to start over", root.display()))?;
    }
    let why = format!("the image {} changed or could not be resumed in {MOST_STARTS} starts", image.url);
    Err(Error::new(Phase::Image, why))
}

enum End {
    Whole(Burned),
    StartOver { why: String, resumed: u32 },
}

/// The pipeline: each stage reads from the one before it.
fn burn_once(
    client: &Client,
    image: &Reached,
    root: &Root,
    beneath: &Beneath,
    watch: Watch,
    pace: &Pace,
) -> Result<End> {
    let expected: Digest = image.digest.parse().map_err(|why: String| Error::new(Phase::Image, why))?;
    let mut fetch = Fetch::new(client, image, pace);
    let mut meter = Meter::new(&mut fetch, image.size_bytes, watch);
    let mut digesting = Digesting::new(&mut meter, expected.kind);
    let mut counter = Counter::new(*beneath);
    let unpacked = untar(Decoder::new(&mut digesting), root, &mut counter);

    let digest = digesting.finish();
    let bytes = meter.finish();
    let resumed = fetch.resumed();
    if let Some(why) = fetch.start_over() {
        return Ok(End::StartOver { why: why.to_owned(), resumed });
    }
    let unpacked = unpacked.context(Phase::Image, || format!("unpack {}", image.url))?;
    if digest != expected {
        let text = format!("digest of {}: {expected} was expected, {digest} came", image.url);
        return Err(Error::new(Phase::Image, text));
    }
    let Unpacked { entries, tar_bytes, conflicts } = unpacked;
    Ok(End::Whole(Burned { bytes, tar_bytes, entries, resumed, hidden: counter.finish(), conflicts }))
}
