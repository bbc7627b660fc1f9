//! One thread that carries events to the control plane, from a queue that drops what does not fit.

use crate::control::Control;
use crate::facts::{Event, EventName};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::thread;
use std::time::{Duration, Instant};

/// Events that wait at most; more means that the control plane is away, and events are worth little by then.
const QUEUE: usize = 256;

/// metal-stack takes a machine for dead that is silent for longer.
const ALIVE: Duration = Duration::from_secs(60);

pub struct Sender {
    queue: SyncSender<Event>,
    /// Events in the queue or under way.
    waiting: Arc<AtomicUsize>,
}

impl Sender {
    pub fn new(control: Arc<dyn Control>) -> Sender {
        let (queue, events) = sync_channel(QUEUE);
        let waiting = Arc::new(AtomicUsize::new(0));
        let left = waiting.clone();
        thread::spawn(move || carry(&*control, &events, &left));
        Sender { queue, waiting }
    }

    /// Queues the event, or drops it when the queue is full.
    pub fn send(&self, event: Event) {
        self.waiting.fetch_add(1, Ordering::SeqCst);
        if self.queue.try_send(event).is_err() {
            self.waiting.fetch_sub(1, Ordering::SeqCst);
        }
    }

    /// Waits until all that is queued has been carried, for `patience` at most.
    pub fn flush(&self, patience: Duration) {
        let end = Instant::now() + patience;
        while self.waiting.load(Ordering::SeqCst) > 0 && Instant::now() < end {
            thread::sleep(Duration::from_millis(5));
        }
    }
}

fn carry(control: &dyn Control, events: &Receiver<Event>, waiting: &AtomicUsize) {
    loop {
        match events.recv_timeout(ALIVE) {
            Ok(event) => {
                deliver(control, &event);
                waiting.fetch_sub(1, Ordering::SeqCst);
            }
            Err(RecvTimeoutError::Timeout) => deliver(control, &alive()),
            Err(RecvTimeoutError::Disconnected) => return,
        }
    }
}

fn deliver(control: &dyn Control, event: &Event) {
    if let Err(error) = control.event(event) {
        tracing::debug!(%error, "event lost");
    }
}

fn alive() -> Event {
    let message = "still here".to_owned();
    Event { event: EventName::Alive, message, stage: None, seconds: None, progress: None }
}
