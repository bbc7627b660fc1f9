//! Reads and writes of disks that were opened with O_DIRECT. The page cache of a disk is not coherent with the page
//! caches of its partitions, and a page of the disk may contain sectors of a partition in use.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

/// Alignment of buffers for O_DIRECT, sufficient for sectors of any size.
const ALIGNMENT: usize = 4096;

/// Reads a range that need not be aligned to sectors.
pub(super) fn read_direct(disk: &File, bytes: &mut [u8], offset: u64, sector: u64) -> io::Result<()> {
    let start = offset / sector * sector;
    let end = offset.checked_add(bytes.len() as u64).ok_or(io::ErrorKind::InvalidInput)?.next_multiple_of(sector);
    let mut buffer = AlignedBuffer::new((end - start) as usize);
    disk.read_exact_at(buffer.as_mut_slice(), start)?;
    let skipped = (offset - start) as usize;
    bytes.copy_from_slice(&buffer.as_mut_slice()[skipped..skipped + bytes.len()]);
    Ok(())
}

/// Writes whole sectors.
pub(super) fn write_aligned(disk: &File, bytes: &[u8], offset: u64) -> io::Result<()> {
    let mut buffer = AlignedBuffer::new(bytes.len());
    buffer.as_mut_slice().copy_from_slice(bytes);
    disk.write_all_at(buffer.as_mut_slice(), offset)
}

/// Zeroed buffer for O_DIRECT.
struct AlignedBuffer {
    memory: Vec<u8>,
    length: usize,
}

impl AlignedBuffer {
    fn new(length: usize) -> AlignedBuffer {
        AlignedBuffer { memory: vec![0; length + ALIGNMENT], length }
    }

    fn as_mut_slice(&mut self) -> &mut [u8] {
        let first = self.memory.as_ptr().align_offset(ALIGNMENT);
        &mut self.memory[first..first + self.length]
    }
}
