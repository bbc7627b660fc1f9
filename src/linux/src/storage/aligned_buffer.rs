//! Memory buffer for direct I/O.

use std::ops::{Deref, DerefMut};

/// Alignment of memory buffers for direct I/O that every disk accepts, in bytes.
const ALIGNMENT_BYTES: usize = 4096;

/// Memory buffer that is aligned for direct I/O. A new buffer contains zeros.
pub struct AlignedBuffer {
    bytes: Vec<u8>,
    start: usize,
    length: usize,
}

impl AlignedBuffer {
    pub fn new(length: usize) -> AlignedBuffer {
        let bytes = vec![0; length + ALIGNMENT_BYTES];
        let start = bytes.as_ptr().align_offset(ALIGNMENT_BYTES);
        AlignedBuffer { bytes, start, length }
    }
}

impl Deref for AlignedBuffer {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.bytes[self.start..self.start + self.length]
    }
}

impl DerefMut for AlignedBuffer {
    fn deref_mut(&mut self) -> &mut [u8] {
        &mut self.bytes[self.start..self.start + self.length]
    }
}
