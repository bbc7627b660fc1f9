//! The whole way of a tree of files: part by part from its servers below the root, and what is done where it cannot be trusted.

use super::{Burned, End, Incoming, MOST_STARTS, Watch};
use crate::error::{Context, Error, Phase, Result};
use crate::image::flow::{Arriving, Average, Hold, Meter};
use crate::image::get::Part;
use crate::image::tree::{Announced, Beneath, Counter, Root, Unpacked, relative, untar};
use std::path::Path;
use std::time::Instant;

impl Incoming {
    /// What is below the root already is somebody's: an image that changes on the way fails then, since to start over
    /// would clear the root. A whiteout removes only what this burn has brought.
    pub fn among_others(self) -> Incoming {
        Incoming { among_others: true, ..self }
    }

    /// Streams the image below `root`. When this fails, nothing of it stays on what this run has made. `watch` is told a few times a
    /// second.
    ///
    /// Succeeds only when the server's length, the compression's end mark, the tar's end blocks and the digest all agree.
    /// Nothing is synced: errors of the disk may still come with the umount.
    ///
    /// On a merged filesystem the image's files win over files and symlinks of the same name, directories stay with what is
    /// in them, and nothing is touched that the image does not name.
    ///
    /// What would replace files is proven first, be they somebody's or those of a layer below. What is not proven yet comes only
    /// to what this run has made, where nothing boots before the end.
    ///
    /// # Errors
    /// The first of fetch, decoder, tar, write and digest that is not content, by name.
    pub fn burn(mut self, root: &Path, beneath: &Beneath, watch: Watch) -> Result<Burned> {
        let merged = relative(beneath.merged);
        let below = Root::open(root, merged).context(Phase::Image, || format!("open {}", root.display()))?;
        let looked = || format!("look at what is below {}", root.display());
        let is_others = self.among_others && !below.is_empty().context(Phase::Image, looked)?;
        let below = if self.among_others { below.among_others() } else { below };
        let (starts, fresh) = match is_others {
            true => (1, Vec::new()),
            false => (MOST_STARTS, below.fresh(&relative(beneath.fresh)).context(Phase::Image, looked)?),
        };
        let replaces = is_others || !beneath.merged.is_empty();
        let mut resumed = 0;
        let mut start = 1;
        loop {
            let burned = self.burn_once(&below, beneath, replaces, watch);
            let url = &self.reached.url;
            let end = match burned {
                Ok(End::Whole(burned)) => return Ok(Burned { resumed: burned.resumed + resumed, ..burned }),
                Ok(End::StartOver { why, resumed }) if start < starts => Ok((why, resumed)),
                Ok(End::StartOver { why, .. }) => {
                    let times = if starts == 1 { String::new() } else { format!(" in {starts} starts") };
                    let text = format!("the image {url} changed or could not be resumed{times}: {why}");
                    Err(Error::new(Phase::Image, text))
                }
                Err(error) => Err(error),
            };
            let (why, before) = match end {
                Ok(again) => again,
                Err(error) => {
                    // Proven layers without the one above them would look complete too.
                    if let Err(why) = below.clear(&fresh) {
                        tracing::warn!("what came of the image cannot be removed from {}: {why}", root.display());
                    }
                    return Err(error);
                }
            };
            start += 1;
            tracing::warn!("image {url}: {why}; starting over (start {start} of {starts})");
            resumed += before + 1;
            below.clear(&fresh).context(Phase::Image, || format!("clear {} to start over", root.display()))?;
        }
    }

    /// Piece by piece, before anything is written. A manifest that nobody has signed is as good as the server that it is from:
    /// its pieces may be others than those of the digest.
    fn is_proven_as_it_comes(&self, part: &Part) -> bool {
        self.reached.signed_by.is_some() && part.manifest.is_some()
    }

    /// All parts, one after the other.
    fn burn_once(&mut self, root: &Root, beneath: &Beneath, mut replaces: bool, watch: Watch) -> Result<End> {
        let mut counter = Counter::new(*beneath);
        let (mut sum, mut average) = (Burned::default(), Average::default());
        let mut meter = Meter::new(self.reached.size_bytes());
        let mut first = self.first.take();
        for part in &self.reached.parts {
            let held_in = match replaces && !self.is_proven_as_it_comes(part) {
                true => {
                    let file = root.nameless_file().context(Phase::Image, || "make a file to hold the image in")?;
                    Some(Hold { file, size_bytes: part.size_bytes })
                }
                false => None,
            };
            // What was fetched for a look at it is fetched again where all of it is held.
            let arriving = match first.take().filter(|_| held_in.is_none()) {
                Some(first) => first,
                None => self.arriving(part, held_in)?,
            };
            let began = Instant::now();
            match burn_part(arriving, part, root, &mut counter, &mut meter, watch, self.reached.layered)? {
                End::Whole(burned) => {
                    average.add(&burned.shares, began.elapsed());
                    add(&mut sum, burned);
                }
                start_over => return Ok(start_over),
            }
            // The next one replaces files of this one.
            replaces = true;
        }
        (sum.hidden, sum.shares) = (counter.finish(), average.shares());
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
    arriving.restart();
    let Arriving { reader, line, digest, told, stages } = arriving;
    let members = Announced::new(reader, Box::new(move |answer| line.answer(answer)));
    let unpacked = meter.telling(&told, watch, || untar(members, root, counter, layered, &told, &stages));
    if let Some(why) = told.start_over() {
        return Ok(End::StartOver { why, resumed: told.resumed() });
    }
    let unpacked = unpacked.context(Phase::Image, || format!("unpack {}", part.url))?;
    let digest = digest.join().context(Phase::Image, || format!("digest of {}", part.url))?;
    if digest != part.digest {
        let text = format!("digest of {}: {} was expected, {digest} came", part.url, part.digest);
        return Err(Error::new(Phase::Image, text));
    }
    let Unpacked { entries, tar_bytes, conflicts } = unpacked;
    let (bytes, resumed, shares) = (told.bytes(), told.resumed(), stages.shares());
    Ok(End::Whole(Burned { bytes, tar_bytes, entries, resumed, conflicts, shares, ..Burned::default() }))
}
