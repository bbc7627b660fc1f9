//! The whole way of a raw image: from its server onto the disk, with what makes it trusted in between.

use super::sniff;
use super::{Expected, HEAD_BYTES, HeldBack, Target, write};
use crate::error::{Context, Error, Phase, Result};
use crate::image::arriving::Arriving;
use crate::image::decode::Decoder;
use crate::image::digest::Digest;
use crate::image::ring::{Pool, Reader, pipe};
use crate::image::stages::Stages;
use crate::image::{Burned, Incoming, MOST_STARTS, Part, TAR_BUFFER_BYTES, TAR_BUFFERS, Watch, decode, progress};
use std::io::{self, BufRead, Read};
use std::thread;

enum End {
    Whole(Burned),
    StartOver { why: String, resumed: u32 },
}

impl Incoming {
    /// Refuses a raw disk image where a tree of files is wanted, and the other way round, by the image's first bytes: that is
    /// known before anything is written. What cannot be said yet is left to the burn. Waits for those bytes.
    ///
    /// # Errors
    /// It is not what is wanted.
    pub fn require(&mut self, disk: Option<&str>) -> Result<()> {
        let Some(Ok(compressed)) = self.first.as_mut().map(|first| first.reader.fill_buf()) else { return Ok(()) };
        let mut head = Vec::new();
        // A cut or damage shows again where it counts.
        let _ = Decoder::new(compressed).take(sniff::SEEN_BYTES).read_to_end(&mut head);
        let what = || format!("look at the beginning of {}", self.reached.url);
        sniff::require(&head, disk).context(Phase::Image, what)
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
        let mut resumed = 0;
        for start in 1..=MOST_STARTS {
            let arriving = match self.first.take() {
                Some(arriving) => arriving,
                None => Arriving::start(&self.client, part, &self.pace)?,
            };
            match burn_once(arriving, part, &target, expected, watch)? {
                End::Whole(burned) => return Ok(Burned { resumed: burned.resumed + resumed, ..burned }),
                End::StartOver { why, resumed: before } => {
                    tracing::warn!("image {}: {why}; starting over (start {start} of {MOST_STARTS})", part.url);
                    resumed += before + 1;
                }
            }
        }
        let why = format!("the image {} changed or could not be resumed in {MOST_STARTS} starts", part.url);
        Err(Error::new(Phase::Image, why))
    }
}

fn burn_once(arriving: Arriving, part: &Part, target: &Target, expected: &Expected, watch: Watch) -> Result<End> {
    let promised: Digest = part.digest.parse().map_err(|why: String| Error::new(Phase::Image, why))?;
    let Arriving { reader, digest, told, stages } = arriving;
    let held_back = progress::telling(&told, part.size_bytes, watch, || pour(reader, target, expected, &stages));
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

fn pour<'t>(reader: Reader, target: &'t Target, expected: &Expected, stages: &Stages) -> io::Result<HeldBack<'t>> {
    let (sender, receiver) = pipe(TAR_BUFFERS);
    let pool = Pool::new(TAR_BUFFERS, TAR_BUFFER_BYTES);
    thread::scope(|scope| {
        scope.spawn(|| decode::decode(reader, &pool, sender));
        write(Reader::new(receiver, stages.clock("write")), target, expected)
    })
}
