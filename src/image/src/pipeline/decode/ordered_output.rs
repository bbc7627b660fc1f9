//! Restores the output of the decoder threads to stream order.

use super::CompressionFormat;
use super::empty_input_limit::EmptyInputLimit;
use super::lz4_frames::{ContentSum, ContentTrailer};
use crate::pipeline::buffer_pipe::{BufferChunk, PipeSender, WritableBuffer};
use crate::pipeline::stage_clock::StageClock;
use common::sync::lock_mutex;
use std::collections::BTreeMap;
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, TryLockError};

/// Item of the output. Items are numbered consecutively.
pub(crate) enum DecodedItem {
    Content(BufferChunk),
    /// Start of an lz4 frame, with the counter for its content. The item also holds an empty buffer until the item is
    /// sent. The number of buffers therefore limits the number of pending frames.
    FrameStart(ContentSum, WritableBuffer),
    /// End of an lz4 frame, with the content length and checksum that the frame declares, and the offset of this end in
    /// the compressed stream.
    FrameEnd(ContentTrailer, u64),
    End(io::Result<()>),
}

pub(crate) struct OrderedOutput {
    order: Mutex<PendingItems>,
    stopped: AtomicBool,
}

struct PendingItems {
    /// `None` once the output is closed: the end of the stream or an error was sent, or the receiver was dropped.
    sender: Option<PipeSender>,
    next: u64,
    /// Items that arrived early and wait for items with lower numbers.
    early: BTreeMap<u64, DecodedItem>,
    sum: Option<ContentSum>,
    empty_input_limit: Arc<EmptyInputLimit>,
}

impl OrderedOutput {
    pub fn new(sender: PipeSender, empty_input_limit: Arc<EmptyInputLimit>) -> OrderedOutput {
        let order =
            PendingItems { sender: Some(sender), next: 0, early: BTreeMap::new(), sum: None, empty_input_limit };
        OrderedOutput { order: Mutex::new(order), stopped: AtomicBool::new(false) }
    }

    /// Returns whether the output is closed: after its end, after an error, or after the receiver was dropped.
    pub(crate) fn is_stopped(&self) -> bool {
        self.stopped.load(Ordering::Relaxed)
    }

    /// Adds an item. If this item is the next one in stream order, sends this item and the items that waited for it.
    /// While items are sent, other threads that add an item must wait. Their wait does not reduce the throughput,
    /// because sending takes long only if the next stage is slower than the decoder.
    pub(crate) fn put_item(&self, number: u64, item: DecodedItem, clock: &StageClock) {
        let mut order = match self.order.try_lock() {
            Ok(order) => order,
            Err(TryLockError::WouldBlock) => clock.time_wait(|| lock_mutex(&self.order)),
            Err(TryLockError::Poisoned(order)) => order.into_inner(),
        };
        order.early.insert(number, item);
        loop {
            let next = order.next;
            let Some(item) = order.early.remove(&next) else { break };
            order.next += 1;
            order.send_item(item, clock);
        }
        if order.sender.is_none() {
            self.close(&mut order);
        }
    }

    /// Stops the output after a panic, so that the next stage gets an error, and no thread waits for the missing item.
    pub(crate) fn abandon(&self) {
        self.close(&mut lock_mutex(&self.order));
    }

    fn close(&self, order: &mut PendingItems) {
        order.sender = None;
        // The items that arrived early are dropped, because other threads may be waiting for their buffers.
        order.early.clear();
        self.stopped.store(true, Ordering::Relaxed);
    }
}

impl PendingItems {
    fn send_item(&mut self, item: DecodedItem, clock: &StageClock) {
        let Some(sender) = &self.sender else { return };
        let end = match item {
            DecodedItem::Content(chunk) => {
                if let Some(sum) = &mut self.sum {
                    sum.add(&chunk);
                }
                self.empty_input_limit.add_output(chunk.len());
                if !chunk.is_empty() && sender.send(chunk, clock).is_err() {
                    self.sender = None;
                }
                return;
            }
            DecodedItem::FrameStart(sum, permit) => {
                drop(permit);
                self.sum = Some(sum);
                return;
            }
            DecodedItem::FrameEnd(promise, position) => {
                let checked = self.sum.take().map_or(Ok(()), |sum| sum.check(&promise));
                let Err(fault) = checked else { return };
                Err(fault.into_io_error(CompressionFormat::Lz4, position))
            }
            DecodedItem::End(end) => end,
        };
        match (self.sender.take(), end) {
            (Some(sender), Ok(())) => sender.end(),
            (Some(sender), Err(error)) => sender.fail(error),
            (None, _) => {}
        }
    }
}
