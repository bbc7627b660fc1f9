//! Holds the buffers that the other process (agent or worker) uses, until that process releases them.

use super::buffer_pipe::BufferChunk;
use super::shared_memory::SharedRegion;
use common::sync::lock_mutex;
use std::collections::BTreeMap;
use std::sync::Mutex;

#[derive(Default)]
pub(crate) struct PeerHeldBuffers(Mutex<BTreeMap<(SharedRegion, usize), BufferChunk>>);

impl PeerHeldBuffers {
    /// Adds a chunk. `place` is the region that contains the chunk's buffer, and the offset of the buffer in the
    /// region.
    pub(crate) fn add(&self, place: (SharedRegion, usize), chunk: BufferChunk) {
        let before = lock_mutex(&self.0).insert(place, chunk);
        // The previous chunk is dropped after the lock was released, because dropping a chunk returns its buffer to the
        // pool.
        drop(before);
    }

    pub(crate) fn release(&self, place: (SharedRegion, usize)) {
        let chunk = lock_mutex(&self.0).remove(&place);
        drop(chunk);
    }
}
