//! The file of a disk image: raw as it is, or qcow2, which qemu-img makes raw.

use super::Source;
use super::frames::Frames;
use crate::command::{Command, missing};
use crate::error::{Context, Error, Phase, Result};
use crate::image::Format;
use std::fs::File;
use std::io::{self, Read, Write};
use std::path::Path;
use std::time::Duration;

/// For terabytes on a slow disk.
const CONVERT: Duration = Duration::from_secs(12 * 3600);

const QCOW2: &[u8] = b"QFI\xfb";

/// No image is compressed with it.
const BZIP2: &[u8] = b"BZh";

/// By the first bytes.
pub fn kind(source: &Path) -> Result<Source> {
    let mut head = Vec::new();
    let read = File::open(source).and_then(|file| file.take(104).read_to_end(&mut head));
    read.context(Phase::Image, || format!("read {}", source.display()))?;
    let refused = |why: &str| Err(Error::refusal(Phase::Image, format!("{}: {why}", source.display())));
    if head.is_empty() {
        return refused("the file is empty");
    }
    let bzip2 = head.starts_with(BZIP2).then(|| "bzip2".to_owned());
    if let Some(name) = Format::of(&head).map(|format| format.to_string()).or(bzip2) {
        return refused(&format!("the file is compressed with {name} already: unpack it first"));
    }
    if !head.starts_with(QCOW2) {
        return Ok(Source::Raw);
    }
    // https://gitlab.com/qemu-project/qemu/-/blob/master/docs/interop/qcow2.rst: the offset of the backing file's name, and
    // the bit that says that the data is in another file.
    let backing = head.get(8..16).is_some_and(|offset| offset.iter().any(|byte| *byte != 0));
    let version_3 = head.get(4..8) == Some(&[0, 0, 0, 3]);
    let elsewhere = version_3 && head.get(79).is_some_and(|features| features & 4 != 0);
    if backing || elsewhere {
        // Its header can name any file of this machine, which would become part of the image.
        return refused("the qcow2 takes data from another file: make one file of it with `qemu-img convert -O qcow2`");
    }
    Ok(Source::Qcow2)
}

/// The file as it is, from its first byte to its last.
pub fn pack<W: Write>(source: &Path, mut frames: Frames<W>) -> Result<Frames<W>> {
    let packed = File::open(source).and_then(|mut file| io::copy(&mut file, &mut frames));
    packed.context(Phase::Image, || format!("pack {}", source.display()))?;
    Ok(frames)
}

pub fn from_qcow2(source: &Path, raw: &Path) -> Result<()> {
    if !missing(&["qemu-img"]).is_empty() {
        let why = format!("{} is a qcow2, and qemu-img is not installed here (package qemu-utils)", source.display());
        return Err(Error::new(Phase::Image, why));
    }
    let convert = Command::new("qemu-img").args(["convert", "-f", "qcow2", "-O", "raw", "--"]).arg(source).arg(raw);
    convert.deadline(CONVERT).run().context(Phase::Image, || format!("make {} raw", source.display()))?;
    Ok(())
}
