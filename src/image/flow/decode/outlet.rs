//! Output of the decoder threads, restored to stream order.

use super::Format;
use super::barren::Barren;
use super::lz4_blocks::{Promise, Sum};
use crate::image::flow::ring::{Chunk, Filling, Sender};
use crate::image::flow::stages::Clock;
use std::collections::BTreeMap;
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError, TryLockError};

/// Item of the output. Items are numbered consecutively.
pub enum Item {
    Content(Chunk),
    /// Start of an lz4 frame whose content is checksummed. The buffer is a slot that is released when this item is
    /// sent.
    Begins(Sum, Filling),
    /// End of an lz4 frame, at this offset of the compressed stream.
    Ends(Promise, u64),
    End(io::Result<()>),
}

pub struct Outlet {
    order: Mutex<Order>,
    stopped: AtomicBool,
}

struct Order {
    /// `None` after the end, or after the receiver was dropped.
    sender: Option<Sender>,
    next: u64,
    /// Items whose turn has not come.
    early: BTreeMap<u64, Item>,
    sum: Option<Sum>,
    barren: Arc<Barren>,
}

impl Outlet {
    pub fn new(sender: Sender, barren: Arc<Barren>) -> Outlet {
        let order = Order { sender: Some(sender), next: 0, early: BTreeMap::new(), sum: None, barren };
        Outlet { order: Mutex::new(order), stopped: AtomicBool::new(false) }
    }

    /// Returns whether nothing more is sent, after an error or after the receiver was dropped.
    pub fn stopped(&self) -> bool {
        self.stopped.load(Ordering::Relaxed)
    }

    /// Sends the item if it is the next one, and those that waited for it. A thread that comes meanwhile waits: the
    /// next stage is the slower one then, so there is nothing to gain.
    pub fn put(&self, number: u64, item: Item, clock: &Clock) {
        let mut order = match self.order.try_lock() {
            Ok(order) => order,
            Err(TryLockError::WouldBlock) => {
                clock.waiting(|| self.order.lock().unwrap_or_else(PoisonError::into_inner))
            }
            Err(TryLockError::Poisoned(order)) => order.into_inner(),
        };
        order.early.insert(number, item);
        loop {
            let next = order.next;
            let Some(item) = order.early.remove(&next) else { break };
            order.next += 1;
            order.send(item, clock);
        }
        if order.sender.is_none() {
            self.stop(&mut order);
        }
    }

    /// Stops the output after a panic, so that the next stage gets an error and no thread waits for the missing part.
    pub fn abandon(&self) {
        self.stop(&mut self.order.lock().unwrap_or_else(PoisonError::into_inner));
    }

    fn stop(&self, order: &mut Order) {
        order.sender = None;
        // Other threads may be waiting for the buffers of these items.
        order.early.clear();
        self.stopped.store(true, Ordering::Relaxed);
    }
}

impl Order {
    fn send(&mut self, item: Item, clock: &Clock) {
        let Some(sender) = &self.sender else { return };
        let end = match item {
            Item::Content(chunk) => {
                if let Some(sum) = &mut self.sum {
                    sum.add(&chunk);
                }
                self.barren.made(chunk.len());
                if !chunk.is_empty() && sender.send(chunk, clock).is_err() {
                    self.sender = None;
                }
                return;
            }
            Item::Begins(sum, turn) => {
                drop(turn);
                self.sum = Some(sum);
                return;
            }
            Item::Ends(promise, position) => {
                let checked = self.sum.take().map_or(Ok(()), |sum| sum.check(&promise));
                let Err(fault) = checked else { return };
                Err(fault.explain(Format::Lz4, position))
            }
            Item::End(end) => end,
        };
        match (self.sender.take(), end) {
            (Some(sender), Ok(())) => sender.end(),
            (Some(sender), Err(error)) => sender.fail(error),
            (None, _) => {}
        }
    }
}
