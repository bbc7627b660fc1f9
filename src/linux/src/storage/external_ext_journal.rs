//! Location of the journal of an ext3 or ext4 filesystem.

use common::error::{Context, Phase, Result};
use model::device_name::DevicePath;
use std::fs::File;
use std::os::unix::fs::FileExt;

/// Offset of the superblock (fs/ext4/ext4.h).
const SUPERBLOCK: u64 = 1024;
const COMPATIBLE_FEATURES: usize = 0x5c;
const HAS_JOURNAL: u32 = 4;
const JOURNAL_INODE: usize = 0xe0;

/// Returns whether the journal of the filesystem is on another device. The superblock contains the device number of
/// such a journal. The kernel would therefore write to the real journal device even if the filesystem were mounted from
/// a snapshot.
///
/// # Errors
/// Returns an error if the device cannot be read.
pub(crate) fn has_external_journal(device: &DevicePath) -> Result<bool> {
    let mut superblock = [0; 1024];
    let read = File::open(device).and_then(|file| file.read_exact_at(&mut superblock, SUPERBLOCK));
    read.context(Phase::Storage, || format!("read the superblock of {device}"))?;
    let number = |at: usize| {
        let bytes = [superblock[at], superblock[at + 1], superblock[at + 2], superblock[at + 3]];
        u32::from_le_bytes(bytes)
    };
    Ok(number(COMPATIBLE_FEATURES) & HAS_JOURNAL != 0 && number(JOURNAL_INODE) == 0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::process::ToolCommand;

    #[test]
    fn external_journal_is_detected() {
        let dir = tempfile::tempdir().unwrap();
        let path = |name: &str| DevicePath::from(dir.path().join(name).to_str().unwrap());
        for (name, options, expected) in
            [("own", "", false), ("none", "-O ^has_journal", false), ("dev", "-O journal_dev", false)]
        {
            File::create(path(name)).unwrap().set_len(16 << 20).unwrap();
            let options = options.split_whitespace();
            ToolCommand::new("mkfs.ext4").args(["-q", "-F"]).args(options).arg(path(name)).run().unwrap();
            assert_eq!(has_external_journal(&path(name)).unwrap(), expected, "{name}");
        }
        // mkfs accepts only a block device as an external journal, so the test itself writes the fields that mkfs would
        // write.
        let file = std::fs::OpenOptions::new().write(true).open(path("own")).unwrap();
        file.write_all_at(&[0; 4], SUPERBLOCK + JOURNAL_INODE as u64).unwrap();
        assert!(has_external_journal(&path("own")).unwrap());
    }
}
