//! Brings into order again what several threads have decoded, and sends it on.

use super::Format;
use super::barren::Barren;
use super::lz4_blocks::{Promise, Sum};
use crate::image::flow::ring::{Chunk, Filling, Sender};
use crate::image::flow::stages::Clock;
use std::collections::BTreeMap;
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError, TryLockError};

/// What the stream consists of; each item has a number, given out without gaps.
pub enum Item {
    Content(Chunk),
    /// An lz4 frame begins, over the content of which a checksum is taken. What comes with it is free when this is sent.
    Begins(Sum, Filling),
    /// The lz4 frame ends, at this byte of the compressed stream.
    Ends(Promise, u64),
    End(io::Result<()>),
}

pub struct Outlet {
    order: Mutex<Order>,
    stopped: AtomicBool,
}

struct Order {
    /// Until the end, or until nobody listens any more.
    sender: Option<Sender>,
    next: u64,
    /// Those whose turn has not come.
    early: BTreeMap<u64, Item>,
    sum: Option<Sum>,
    barren: Arc<Barren>,
}

impl Outlet {
    pub fn new(sender: Sender, barren: Arc<Barren>) -> Outlet {
        let order = Order { sender: Some(sender), next: 0, early: BTreeMap::new(), sum: None, barren };
        Outlet { order: Mutex::new(order), stopped: AtomicBool::new(false) }
    }

    /// Nothing more is sent: an error has ended the stream, or nobody listens any more.
    pub fn stopped(&self) -> bool {
        self.stopped.load(Ordering::Relaxed)
    }

    /// Sends the item if it is the next one, and those that waited for it. Who comes meanwhile waits: the stage behind is
    /// slower then, and there is nothing to gain.
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

    /// A thread has panicked: the stage behind is told so, and nobody waits for its part.
    pub fn abandon(&self) {
        self.stop(&mut self.order.lock().unwrap_or_else(PoisonError::into_inner));
    }

    fn stop(&self, order: &mut Order) {
        order.sender = None;
        // Their buffers are what the others may wait for.
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
