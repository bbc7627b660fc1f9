//! Writes a raw disk image to a disk, and verifies the image before the disk becomes bootable.

use super::{BurnOutcome, BurnResult, IncomingImage, WatchProgress};
use crate::fetch::{ImagePart, ResolvedImage};
use crate::pipeline::{Download, PipelineReader, report_progress};
use crate::raw::{self, HEAD_BYTES, ImageRequirements, RawTarget, TargetDisk};
use common::error::{Context, Error, Phase, Result};
use common::error_code::ErrorCode;

impl IncomingImage {
    /// Waits for the first MiB of the image. Rejects the image before anything is written if it is not a raw image for
    /// this disk and layout.
    ///
    /// # Errors
    /// Returns an error if the image is rejected, or its beginning cannot be fetched.
    pub fn require_disk(&mut self, disk: &TargetDisk, expected: &ImageRequirements) -> Result<()> {
        self.single_part()?;
        self.detect_qcow2()?;
        self.check_beginning(&|stream: &mut PipelineReader| {
            // The check uses a copy of the data, because the worker could change the shared memory during the check.
            let head = stream.peek_bytes(HEAD_BYTES)?.to_vec();
            Ok(raw::check_disk_image(&head, disk, expected).map_err(|why| why.to_string()))
        })
    }

    /// Returns the only part of the image. Fails if there are several parts, since a raw image is one stream.
    pub(super) fn single_part(&self) -> Result<&ImagePart> {
        let ResolvedImage { url, parts, .. } = &self.reached;
        match parts.as_slice() {
            [part] => Ok(part),
            parts => {
                let what = format!("{url} is not a raw disk image: it consists of {count} layers", count = parts.len());
                Err(Error::refusal(Phase::Image, what))
            }
        }
    }

    /// Streams the image to a whole disk. The disk's first MiB and last sector are zero until the image is verified.
    ///
    /// # Errors
    /// Returns the first error of the download, the decoder, the write or the digest check, or an error if the image
    /// does not fit the disk. After an error, the disk is not bootable.
    pub fn burn_to_disk(
        mut self,
        target: &RawTarget,
        expected: &ImageRequirements,
        watch: WatchProgress,
    ) -> Result<BurnResult> {
        let (mut start, mut resumed) = (1, 0);
        loop {
            let first = self.first.take();
            let part = self.single_part()?;
            let arriving = first.map_or_else(|| self.start_download(part, None), Ok)?;
            let (why, before) = match burn_disk_once(arriving, part, target, expected, watch)? {
                BurnOutcome::Whole(burned) => return Ok(BurnResult { resumed: burned.resumed + resumed, ..burned }),
                BurnOutcome::StartOver { why, resumed } => (why, resumed),
            };
            start = self.next_start(start, &why)?;
            resumed += before + 1;
        }
    }
}

fn burn_disk_once(
    arriving: Download,
    part: &ImagePart,
    target: &RawTarget,
    expected: &ImageRequirements,
    watch: WatchProgress,
) -> Result<BurnOutcome> {
    arriving.restart();
    let Download { reader, digest, download, stages, .. } = arriving;
    let held_back = report_progress(&download, part.size_bytes, watch, || raw::write_image(reader, target, expected));
    if let Some(why) = download.start_over() {
        return Ok(BurnOutcome::StartOver { why, resumed: download.resumed() });
    }
    let onto = || format!("write {} to {}", part.url, target.disk.name);
    let held_back = held_back.context(Phase::Image, onto)?;
    let digest = digest.join().context(Phase::Image, || format!("digest of {}", part.url))?;
    if digest != part.digest {
        let (ImagePart { url, digest: promised, .. }, first) = (part, HEAD_BYTES >> 20);
        let text = format!(
            "digest mismatch for {url}: expected {promised}, got {digest}; the first {first} MiB of {disk} remain zero",
            disk = target.disk.name
        );
        return Err(Error::new(Phase::Image, text).with_code(ErrorCode::DigestMismatch));
    }
    let tar_bytes = held_back.bytes;
    held_back.release().context(Phase::Image, onto)?;
    let (bytes, resumed, shares) = (download.bytes(), download.resumed(), stages.shares());
    Ok(BurnOutcome::Whole(BurnResult { bytes, tar_bytes, resumed, shares, ..BurnResult::default() }))
}
