//! Reads the disk image to pack: raw, or qcow2, which is converted to a raw disk image.

use super::PackSource;
use super::seekable_zstd::FrameWriter;
use crate::CompressionFormat;
use crate::foreign_format::ForeignFormat;
use crate::qcow2::{self, HEADER_BYTES, MAGIC, Qcow2Header};
use common::bounded_read::read_prefix;
use common::error::{Context, Error, Phase, Result};
use std::fs::File;
use std::io::{self, Write};
use std::path::Path;

/// Detects the type of a disk image by its first bytes.
pub(crate) fn detect_source(source: &Path) -> Result<PackSource> {
    let head = File::open(source).and_then(|file| read_prefix(file, HEADER_BYTES as u64));
    let head = head.context(Phase::Image, || format!("read {}", source.display()))?;
    let refused = |why: &str| Err(Error::refusal(Phase::Image, format!("{}: {why}", source.display())));
    if head.is_empty() {
        return refused("the file is empty");
    }
    if let Some(name) = CompressionFormat::detect(&head) {
        return refused(&format!("the file is already compressed with {name}; decompress it first"));
    }
    if let Some(foreign) = ForeignFormat::detect_magic(&head) {
        return refused(&foreign.refusal());
    }
    if !head.starts_with(&MAGIC) {
        return Ok(PackSource::Raw);
    }
    let header = Qcow2Header::parse(&head).map(drop);
    match header {
        Ok(()) => Ok(PackSource::Qcow2),
        Err(why) => refused(&why.to_string()),
    }
}

/// Packs a raw disk image unchanged.
pub(crate) fn pack_raw<W: Write>(source: &Path, mut frames: FrameWriter<W>) -> Result<FrameWriter<W>> {
    let packed = File::open(source).and_then(|mut file| io::copy(&mut file, &mut frames));
    packed.context(Phase::Image, || format!("pack {}", source.display()))?;
    Ok(frames)
}

/// Converts a qcow2 to a raw disk image and packs it.
pub(crate) fn pack_qcow2<W: Write>(source: &Path, mut frames: FrameWriter<W>) -> Result<FrameWriter<W>> {
    let packed = File::open(source).and_then(|file| qcow2::unpack_file(&file, &mut frames));
    packed.context(Phase::Image, || format!("pack {}", source.display()))?;
    Ok(frames)
}
