//! Writes a tree of files: unpacks the parts of the image in order below the root, and removes the unpacked files after
//! a failure.

use super::{BurnOutcome, BurnResult, IncomingImage, MAXIMUM_STARTS, WatchProgress};
use crate::fetch::ImagePart;
use crate::pipeline::{Download, HoldFile, LoadAverage, ProgressMeter};
use crate::tree::{HiddenFileCounter, MemberReceiver, MountsBelow, UnpackResult, UnpackRoot, relative_paths, untar};
use common::error::{Context, Error, Phase, Result};
use common::error_code::ErrorCode;
use std::path::Path;
use std::time::Instant;

impl IncomingImage {
    /// Declares that the files below the root belong to another owner. Files of the image may replace these files, but
    /// nothing else removes them: whiteouts remove only files of this image, and if the image changes during the
    /// download, unpacking fails instead of clearing the root and starting over.
    pub fn among_others(self) -> IncomingImage {
        IncomingImage { among_others: true, ..self }
    }

    /// Streams the image to files below `root`. After a failure, the unpacked files are removed from the filesystems
    /// that this installation has created. `watch` is called a few times per second.
    ///
    /// Succeeds only if the download has the length that the server declared, the compressed stream and the tar are
    /// complete, and the digest matches. The data is not synced, so a disk error may still occur when the filesystem is
    /// unmounted.
    ///
    /// On the filesystems in [`MountsBelow::merged`], files of the image replace files and symlinks of the same name.
    /// Existing directories keep their content, and nothing else is changed.
    ///
    /// An image that would replace existing files, or files of a lower layer, is verified before it is unpacked.
    /// Unverified data is written only to filesystems that this installation has created, which are not booted before
    /// the installation is complete.
    ///
    /// # Errors
    /// Returns the first error of the download, the decoder, the tar, the write or the digest check.
    pub fn burn_to_root(mut self, root: &Path, beneath: &MountsBelow, watch: WatchProgress) -> Result<BurnResult> {
        let merged = relative_paths(beneath.merged);
        let below = UnpackRoot::open(root, merged).context(Phase::Image, || format!("open {}", root.display()))?;
        let looked = || format!("read {}", root.display());
        let is_others = self.among_others && !below.is_empty().context(Phase::Image, looked)?;
        let below = if self.among_others { below.among_others() } else { below };
        let starts = if is_others { 1 } else { MAXIMUM_STARTS };
        let fresh = match is_others {
            true => Vec::new(),
            false => below.record_snapshots(&relative_paths(beneath.fresh)).context(Phase::Image, looked)?,
        };
        let replaces = is_others || !beneath.merged.is_empty();
        let mut resumed = 0;
        let mut start = 1;
        loop {
            let burned = self.burn_parts(&below, beneath, replaces, watch);
            let url = &self.reached.url;
            let error = match burned {
                Ok(BurnOutcome::Whole(burned)) => {
                    return Ok(BurnResult { resumed: burned.resumed + resumed, ..burned });
                }
                Ok(BurnOutcome::StartOver { why, resumed: before }) if start < starts => {
                    start += 1;
                    tracing::warn!(
                        "image {url}: {why}; starting again from the beginning (attempt {start} of {starts})"
                    );
                    resumed += before + 1;
                    let emptied = || format!("empty {folder} before another attempt", folder = root.display());
                    below.restore_snapshots(&fresh).context(Phase::Image, emptied)?;
                    continue;
                }
                Ok(BurnOutcome::StartOver { why, .. }) => {
                    let times = if starts == 1 { String::new() } else { format!(", in {starts} attempts") };
                    let text = format!(
                        "the image {url} could not be downloaded{times}: it changed during the download, or the \
                        download could not be resumed. Last reason: {why}"
                    );
                    Error::new(Phase::Image, text)
                }
                Err(error) => error,
            };
            // Verified lower layers are also removed: without the layers above them, they would look like a
            // complete image.
            if let Err(why) = below.restore_snapshots(&fresh) {
                tracing::warn!("cannot remove the incomplete image from {folder}: {why}", folder = root.display());
            }
            return Err(error);
        }
    }

    /// Returns whether each chunk is verified with a signed manifest before it is written. An unsigned manifest does
    /// not suffice, because its chunk digests may belong to an image other than that of the expected digest.
    fn is_verified_by_piece(&self, part: &ImagePart) -> bool {
        self.reached.signed_by.is_some() && part.manifest.is_some()
    }

    /// Unpacks all parts in order. If `replaces` is true, the first part may replace existing files.
    fn burn_parts(
        &mut self,
        root: &UnpackRoot,
        beneath: &MountsBelow,
        mut replaces: bool,
        watch: WatchProgress,
    ) -> Result<BurnOutcome> {
        let mut counter = HiddenFileCounter::new(*beneath);
        let (mut sum, mut average) = (BurnResult::default(), LoadAverage::default());
        let mut meter = ProgressMeter::new(self.reached.size_bytes());
        let mut first = self.first.take();
        for part in &self.reached.parts {
            let held_in = match replaces && !self.is_verified_by_piece(part) {
                true => {
                    let file =
                        root.nameless_file().context(Phase::Image, || "create a temporary file for the image")?;
                    Some(HoldFile { file, size_bytes: part.size_bytes })
                }
                false => None,
            };
            // A part that must be verified before it is unpacked is first stored in a file. The download of this part
            // starts from the beginning, and the data that was fetched to check the image is discarded.
            let arriving = match first.take().filter(|_| held_in.is_none()) {
                Some(first) => first,
                None => self.start_download(part, held_in)?,
            };
            let began = Instant::now();
            match download_part(arriving, part, root, &mut counter, &mut meter, watch, self.reached.layered)? {
                BurnOutcome::Whole(burned) => {
                    average.add(&burned.shares, began.elapsed());
                    add_result(&mut sum, burned);
                }
                start_over => return Ok(start_over),
            }
            // From the second part on, files of earlier parts may be replaced.
            replaces = true;
        }
        (sum.hidden, sum.shares) = (counter.finish(), average.shares());
        Ok(BurnOutcome::Whole(sum))
    }
}

fn add_result(sum: &mut BurnResult, part: BurnResult) {
    sum.bytes += part.bytes;
    sum.tar_bytes += part.tar_bytes;
    sum.entries += part.entries;
    sum.resumed += part.resumed;
    sum.conflicts.files += part.conflicts.files;
    sum.conflicts.first.extend(part.conflicts.first);
}

/// Downloads and unpacks one part, and verifies its digest.
fn download_part(
    arriving: Download,
    part: &ImagePart,
    root: &UnpackRoot,
    counter: &mut HiddenFileCounter,
    meter: &mut ProgressMeter,
    watch: WatchProgress,
    layered: bool,
) -> Result<BurnOutcome> {
    arriving.restart();
    let Download { reader, line, digest, download, stages } = arriving;
    let members = MemberReceiver::new(reader, Box::new(move |answer| line.answer(answer)));
    let unpacked = meter.report_while(&download, watch, || untar(members, root, counter, layered, &download, &stages));
    if let Some(why) = download.start_over() {
        return Ok(BurnOutcome::StartOver { why, resumed: download.resumed() });
    }
    let unpacked = unpacked.context(Phase::Image, || format!("unpack {}", part.url))?;
    let digest = digest.join().context(Phase::Image, || format!("digest of {}", part.url))?;
    if digest != part.digest {
        let text = format!(
            "digest mismatch for {url}: expected {expected}, got {digest}",
            url = part.url,
            expected = part.digest
        );
        return Err(Error::new(Phase::Image, text).with_code(ErrorCode::DigestMismatch));
    }
    let UnpackResult { entries, tar_bytes, conflicts } = unpacked;
    let (bytes, resumed, shares) = (download.bytes(), download.resumed(), stages.shares());
    Ok(BurnOutcome::Whole(BurnResult {
        bytes,
        tar_bytes,
        entries,
        resumed,
        conflicts,
        shares,
        ..BurnResult::default()
    }))
}
