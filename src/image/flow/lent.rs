//! Buffers lent to the other process, held here until it releases them.

use super::ring::Chunk;
use super::shared::Region;
use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};

#[derive(Default)]
pub struct Lent(Mutex<BTreeMap<(Region, usize), Chunk>>);

impl Lent {
    /// Adds a chunk by the region and offset of its buffer.
    pub fn add(&self, place: (Region, usize), chunk: Chunk) {
        let before = self.0.lock().unwrap_or_else(PoisonError::into_inner).insert(place, chunk);
        // Drop it outside of the lock: the buffer returns to its pool.
        drop(before);
    }

    pub fn give_back(&self, place: (Region, usize)) {
        let chunk = self.0.lock().unwrap_or_else(PoisonError::into_inner).remove(&place);
        drop(chunk);
    }
}
