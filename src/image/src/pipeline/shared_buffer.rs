//! Buffers lent to the other process, held here until it releases them.

use super::buffer_pipe::BufferChunk;
use super::shm::SharedRegion;
use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};

#[derive(Default)]
pub struct LentBuffers(Mutex<BTreeMap<(SharedRegion, usize), BufferChunk>>);

impl LentBuffers {
    /// Adds a chunk by the region and offset of its buffer.
    pub fn add(&self, place: (SharedRegion, usize), chunk: BufferChunk) {
        let before = self.0.lock().unwrap_or_else(PoisonError::into_inner).insert(place, chunk);
        // Drop it outside of the lock: the buffer returns to its pool.
        drop(before);
    }

    pub fn release(&self, place: (SharedRegion, usize)) {
        let chunk = self.0.lock().unwrap_or_else(PoisonError::into_inner).remove(&place);
        drop(chunk);
    }
}
