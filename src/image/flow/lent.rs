//! Buffers that the other process reads: held here until it says that it does not any more.

use super::ring::Chunk;
use super::shared::Region;
use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};

#[derive(Default)]
pub struct Lent(Mutex<BTreeMap<(Region, usize), Chunk>>);

impl Lent {
    /// By the place of its buffer.
    pub fn add(&self, place: (Region, usize), chunk: Chunk) {
        let before = self.0.lock().unwrap_or_else(PoisonError::into_inner).insert(place, chunk);
        // Not under the lock: it goes home.
        drop(before);
    }

    pub fn give_back(&self, place: (Region, usize)) {
        let chunk = self.0.lock().unwrap_or_else(PoisonError::into_inner).remove(&place);
        drop(chunk);
    }
}
