//! Buffers lent to the other process, held here until it releases them.

use super::buffer_pipe::BufferChunk;
use super::shm::SharedRegion;
use common::sync::lock_mutex;
use std::collections::BTreeMap;
use std::sync::Mutex;

#[derive(Default)]
pub(crate) struct LentBuffers(Mutex<BTreeMap<(SharedRegion, usize), BufferChunk>>);

impl LentBuffers {
    /// Adds a chunk by the region and offset of its buffer.
    pub(crate) fn add(&self, place: (SharedRegion, usize), chunk: BufferChunk) {
        let before = lock_mutex(&self.0).insert(place, chunk);
        // Drop it outside of the lock: the buffer returns to its pool.
        drop(before);
    }

    pub(crate) fn release(&self, place: (SharedRegion, usize)) {
        let chunk = lock_mutex(&self.0).remove(&place);
        drop(chunk);
    }
}
