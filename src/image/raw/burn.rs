//! The whole way of a raw image: from its server onto the disk, with what makes it trusted in between.

use super::sniff;
use super::{Expected, HEAD_BYTES, Target, write};
use crate::error::{Context, Error, Phase, Result};
use crate::image::arriving::Arriving;
use crate::image::digest::Digest;
use crate::image::{Burned, End, Incoming, Part, Watch, progress};
use std::io::BufRead;

impl Incoming {
    /// Refuses a raw disk image where a tree of files is wanted, and the other way round, by the image's first bytes: that is
    /// known before anything is written. Waits for those bytes.
    ///
    /// # Errors
    /// It is not what is wanted, or its beginning cannot be had.
    pub fn require(&mut self, disk: Option<&str>) -> Result<()> {
        let Some(first) = &mut self.first else { return Ok(()) };
        let what = || format!("look at the beginning of {}", self.reached.url);
        match first.reader.fill_buf() {
            Ok(head) => sniff::require(head, disk).context(Phase::Image, what),
            // It changes while we look: the burn begins anew.
            Err(_) if first.told.start_over().is_some() => {
                self.first = None;
                Ok(())
            }
            Err(error) => Err(error).context(Phase::Image, what),
        }
    }

    /// Streams the image onto a whole disk. Until it is known to be good the disk's first MiB is zero.
    ///
    /// # Errors
    /// The first of fetch, decoder, write and digest; it is no image for this disk. The disk is not bootable then.
    pub fn burn_raw(mut self, device: &str, expected: &Expected, watch: Watch) -> Result<Burned> {
        let [part] = self.reached.parts.as_slice() else {
            let layers = self.reached.parts.len();
            let what = format!("{} has {layers} layers of files and is no raw disk image", self.reached.url);
            return Err(Error::new(Phase::Image, what));
        };
        let target = Target::open(device)?;
        let (mut start, mut resumed) = (1, 0);
        loop {
            let arriving = self.first.take().map_or_else(|| self.arriving(part), Ok)?;
            let (why, before) = match burn_once(arriving, part, &target, expected, watch)? {
                End::Whole(burned) => return Ok(Burned { resumed: burned.resumed + resumed, ..burned }),
                End::StartOver { why, resumed } => (why, resumed),
            };
            start = self.next_start(start, &why)?;
            resumed += before + 1;
        }
    }
}

fn burn_once(arriving: Arriving, part: &Part, target: &Target, expected: &Expected, watch: Watch) -> Result<End> {
    let promised: Digest = part.digest.parse().map_err(|why: String| Error::new(Phase::Image, why))?;
    let Arriving { reader, digest, told, stages } = arriving;
    stages.restart();
    let held_back = progress::telling(&told, part.size_bytes, watch, || write(reader, target, expected));
    if let Some(why) = told.start_over() {
        return Ok(End::StartOver { why, resumed: told.resumed() });
    }
    let onto = || format!("write {} onto {}", part.url, target.name);
    let held_back = held_back.context(Phase::Image, onto)?;
    let digest = digest.join().context(Phase::Image, || format!("digest of {}", part.url))?;
    if digest != promised {
        let first = HEAD_BYTES >> 20;
        let text = format!(
            "digest of {}: {promised} was expected, {digest} came; the first {first} MiB of {} stays zero",
            part.url, target.name
        );
        return Err(Error::new(Phase::Image, text));
    }
    let tar_bytes = held_back.bytes;
    held_back.release().context(Phase::Image, onto)?;
    let (bytes, resumed, shares) = (told.bytes(), told.resumed(), stages.shares());
    Ok(End::Whole(Burned { bytes, tar_bytes, resumed, shares, ..Burned::default() }))
}
