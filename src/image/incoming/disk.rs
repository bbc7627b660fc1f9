//! The whole way of a raw image: from its server onto the disk, with what makes it trusted in between.

use super::{Burned, End, Incoming, Watch};
use crate::error::{Context, Error, Phase, Result};
use crate::image::flow::{Arriving, Reader, telling};
use crate::image::get::{Part, Reached};
use crate::image::raw::{self, Disk, Expected, HEAD_BYTES, Target};

impl Incoming {
    /// Refuses what is no raw image for this disk and layout, as far as the image's first MiB tells: that is known before
    /// anything is written. Waits for those bytes.
    ///
    /// # Errors
    /// It is not what is wanted, or its beginning cannot be had.
    pub fn require_disk(&mut self, disk: &Disk, expected: &Expected) -> Result<()> {
        self.only_part()?;
        self.look_for_qcow2()?;
        self.look(&|stream: &mut Reader| {
            // A copy: the worker could change it while it is looked at.
            let head = stream.look_ahead(HEAD_BYTES)?.to_vec();
            Ok(raw::check(&head, disk, expected).map_err(|why| why.to_string()))
        })
    }

    /// A raw image is one stream.
    pub(super) fn only_part(&self) -> Result<&Part> {
        let Reached { url, parts, .. } = &self.reached;
        match parts.as_slice() {
            [part] => Ok(part),
            parts => {
                let what = format!("{url} has {} layers of files and is no raw disk image", parts.len());
                Err(Error::refusal(Phase::Image, what))
            }
        }
    }

    /// Streams the image onto a whole disk. Until it is known to be good the disk's first MiB and its last sector are zero.
    ///
    /// # Errors
    /// The first of fetch, decoder, write and digest; it is no image for this disk. The disk is not bootable then.
    pub fn burn_raw(mut self, target: &Target, expected: &Expected, watch: Watch) -> Result<Burned> {
        let (mut start, mut resumed) = (1, 0);
        loop {
            let first = self.first.take();
            let part = self.only_part()?;
            let arriving = first.map_or_else(|| self.arriving(part, None), Ok)?;
            let (why, before) = match burn_once(arriving, part, target, expected, watch)? {
                End::Whole(burned) => return Ok(Burned { resumed: burned.resumed + resumed, ..burned }),
                End::StartOver { why, resumed } => (why, resumed),
            };
            start = self.next_start(start, &why)?;
            resumed += before + 1;
        }
    }
}

fn burn_once(arriving: Arriving, part: &Part, target: &Target, expected: &Expected, watch: Watch) -> Result<End> {
    arriving.restart();
    let Arriving { reader, digest, told, stages, .. } = arriving;
    let held_back = telling(&told, part.size_bytes, watch, || raw::write(reader, target, expected));
    if let Some(why) = told.start_over() {
        return Ok(End::StartOver { why, resumed: told.resumed() });
    }
    let onto = || format!("write {} onto {}", part.url, target.disk.name);
    let held_back = held_back.context(Phase::Image, onto)?;
    let digest = digest.join().context(Phase::Image, || format!("digest of {}", part.url))?;
    if digest != part.digest {
        let (Part { url, digest: promised, .. }, first) = (part, HEAD_BYTES >> 20);
        let text = format!(
            "digest of {url}: {promised} was expected, {digest} came; the first {first} MiB of {} stays zero",
            target.disk.name
        );
        return Err(Error::new(Phase::Image, text));
    }
    let tar_bytes = held_back.bytes;
    held_back.release().context(Phase::Image, onto)?;
    let (bytes, resumed, shares) = (told.bytes(), told.resumed(), stages.shares());
    Ok(End::Whole(Burned { bytes, tar_bytes, resumed, shares, ..Burned::default() }))
}
