//! Reads and writes of disks that were opened with O_DIRECT. The page cache of a disk is not coherent with the page
//! caches of its partitions, and a page of the disk may contain sectors of a partition in use.

use super::aligned_buffer::AlignedBuffer;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

/// Reads a range that need not be aligned to sectors.
pub(super) fn read_direct(disk: &File, bytes: &mut [u8], offset: u64, sector: u64) -> io::Result<()> {
    let start = offset / sector * sector;
    let end = offset.checked_add(bytes.len() as u64).ok_or(io::ErrorKind::InvalidInput)?.next_multiple_of(sector);
    let mut buffer = AlignedBuffer::new((end - start) as usize);
    disk.read_exact_at(&mut buffer, start)?;
    let skipped = (offset - start) as usize;
    bytes.copy_from_slice(&buffer[skipped..skipped + bytes.len()]);
    Ok(())
}

/// Writes whole sectors.
pub(super) fn write_aligned(disk: &File, bytes: &[u8], offset: u64) -> io::Result<()> {
    let mut buffer = AlignedBuffer::new(bytes.len());
    buffer.copy_from_slice(bytes);
    disk.write_all_at(&buffer, offset)
}
