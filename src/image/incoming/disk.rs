//! Burning a raw image: from its server to the disk, with the verification in between.

use super::{Burned, End, Incoming, Watch};
use crate::error::{Context, Error, Phase, Result};
use crate::image::flow::{Arriving, Reader, telling};
use crate::image::get::{Part, Reached};
use crate::image::raw::{self, Disk, Expected, HEAD_BYTES, Target};

impl Incoming {
    /// Rejects an image that is not a raw image for this disk and layout, by its first MiB and before anything is
    /// written. Waits for those bytes.
    ///
    /// # Errors
    /// Returns an error if the image does not fit, or its beginning cannot be fetched.
    pub fn require_disk(&mut self, disk: &Disk, expected: &Expected) -> Result<()> {
        self.only_part()?;
        self.look_for_qcow2()?;
        self.look(&|stream: &mut Reader| {
            // A copy: the worker could change the shared memory during the check.
            let head = stream.look_ahead(HEAD_BYTES)?.to_vec();
            Ok(raw::check(&head, disk, expected).map_err(|why| why.to_string()))
        })
    }

    /// Returns the only part of the image: a raw image is one stream.
    pub(super) fn only_part(&self) -> Result<&Part> {
        let Reached { url, parts, .. } = &self.reached;
        match parts.as_slice() {
            [part] => Ok(part),
            parts => {
                let what = format!("{url} has {} layers of files and is not a raw disk image", parts.len());
                Err(Error::refusal(Phase::Image, what))
            }
        }
    }

    /// Streams the image to a whole disk. Until the image is verified, the disk's first MiB and last sector are zero.
    ///
    /// # Errors
    /// Returns the first error of download, decoder, write and digest, or an error if the image does not fit the disk.
    /// The disk is not bootable then.
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
    let onto = || format!("write {} to {}", part.url, target.disk.name);
    let held_back = held_back.context(Phase::Image, onto)?;
    let digest = digest.join().context(Phase::Image, || format!("digest of {}", part.url))?;
    if digest != part.digest {
        let (Part { url, digest: promised, .. }, first) = (part, HEAD_BYTES >> 20);
        let text = format!(
            "digest mismatch for {url}: expected {promised}, got {digest}; the first {first} MiB of {} remain zero",
            target.disk.name
        );
        return Err(Error::new(Phase::Image, text));
    }
    let tar_bytes = held_back.bytes;
    held_back.release().context(Phase::Image, onto)?;
    let (bytes, resumed, shares) = (told.bytes(), told.resumed(), stages.shares());
    Ok(End::Whole(Burned { bytes, tar_bytes, resumed, shares, ..Burned::default() }))
}
