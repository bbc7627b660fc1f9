//! Thread that sends events to the control plane, from a queue that drops excess events, and the console log in between.

use crate::console::Said;
use crate::control::Control;
use crate::facts::{Event, EventName};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::thread;
use std::time::{Duration, Instant};

/// Capacity of the event queue. If it is full, the control plane is unreachable, and further events are worthless.
const QUEUE: usize = 256;

/// Interval of keepalives. metal-stack considers a machine dead that is silent for longer.
const ALIVE: Duration = Duration::from_secs(60);

/// Minimum interval between parts of the log.
const LOG_PAUSE: Duration = Duration::from_secs(2);
/// Delay after a part that could not be sent.
const LOG_AGAIN: Duration = Duration::from_secs(10);

/// Size of a part of the log, in bytes.
const LOG_PART: usize = 16 << 10;
/// Number of parts that cover the whole log buffer.
const LOG_PARTS: usize = 32;

/// Item of the queue.
enum Load {
    Event(Event),
    /// Request to send the whole log.
    Log,
}

/// Sender of events and the log.
pub struct Sender {
    queue: SyncSender<Load>,
    /// Number of items that are queued or being sent.
    waiting: Arc<AtomicUsize>,
}

impl Sender {
    pub fn new(control: Arc<dyn Control>, said: &'static Said) -> Sender {
        let (queue, loads) = sync_channel(QUEUE);
        let waiting = Arc::new(AtomicUsize::new(0));
        let left = waiting.clone();
        thread::spawn(move || carry(&*control, &loads, &left, Log::new(said)));
        Sender { queue, waiting }
    }

    /// Queues an event, or drops it if the queue is full.
    pub fn send(&self, event: Event) {
        self.put(Load::Event(event));
    }

    fn put(&self, load: Load) {
        self.waiting.fetch_add(1, Ordering::SeqCst);
        if self.queue.try_send(load).is_err() {
            self.waiting.fetch_sub(1, Ordering::SeqCst);
        }
    }

    /// Waits until all queued events and the log are sent, or for at most `patience`.
    pub fn flush(&self, patience: Duration) {
        let end = Instant::now() + patience;
        self.put(Load::Log);
        while self.waiting.load(Ordering::SeqCst) > 0 && Instant::now() < end {
            thread::sleep(Duration::from_millis(5));
        }
    }
}

fn carry(control: &dyn Control, loads: &Receiver<Load>, waiting: &AtomicUsize, mut log: Log) {
    let mut heard = Instant::now();
    loop {
        match loads.recv_timeout(LOG_PAUSE) {
            Ok(load) => {
                match load {
                    Load::Event(event) => deliver(control, &event),
                    Load::Log => log.carry_all(control),
                }
                waiting.fetch_sub(1, Ordering::SeqCst);
                heard = Instant::now();
            }
            Err(RecvTimeoutError::Timeout) if heard.elapsed() >= ALIVE => {
                deliver(control, &alive());
                heard = Instant::now();
            }
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => return,
        }
        log.carry(control);
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

/// Upload state of the log.
struct Log {
    said: &'static Said,
    carried: u64,
    /// Earliest time for sending the next part.
    due: Instant,
    /// Whether the control plane does not store logs.
    is_over: bool,
}

impl Log {
    fn new(said: &'static Said) -> Log {
        Log { said, carried: 0, due: Instant::now() + LOG_PAUSE, is_over: false }
    }

    /// Sends the next part if it is due.
    fn carry(&mut self, control: &dyn Control) {
        if Instant::now() >= self.due {
            self.part(control);
        }
    }

    fn carry_all(&mut self, control: &dyn Control) {
        for _ in 0..LOG_PARTS {
            if !self.part(control) {
                return;
            }
        }
    }

    /// Sends the next part. Returns whether there was one and it was delivered.
    fn part(&mut self, control: &dyn Control) -> bool {
        let (start, text) = self.said.since(self.carried, LOG_PART);
        if self.is_over || text.is_empty() {
            return false;
        }
        let sent = control.log(start, &text);
        let pause = if sent.is_ok() { LOG_PAUSE } else { LOG_AGAIN };
        self.due = Instant::now() + pause;
        match sent {
            Ok(true) => {
                self.carried = start + text.len() as u64;
                true
            }
            Ok(false) => {
                self.is_over = true;
                false
            }
            Err(error) => {
                tracing::debug!(%error, "log part lost");
                false
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::control::FakeControl;

    fn said() -> &'static Said {
        Box::leak(Box::new(Said::new()))
    }

    #[test]
    fn the_log_arrives_whole_in_parts_and_once() {
        let (control, said) = (Arc::new(FakeControl { keeps_log: true, ..FakeControl::default() }), said());
        let line = "x".repeat(99);
        (0..500).for_each(|_| said.note(&line));
        let sender = Sender::new(control.clone(), said);
        sender.flush(Duration::from_secs(10));
        said.note("the last one");
        sender.flush(Duration::from_secs(10));
        sender.flush(Duration::from_secs(10));
        let parts = control.log.lock().unwrap();
        assert!(parts.iter().all(|(_, text)| text.len() <= LOG_PART && text.ends_with('\n')));
        let mut at = 0;
        for (start, text) in parts.iter() {
            assert_eq!(*start, at);
            at += text.len() as u64;
        }
        assert_eq!(at, 500 * 100 + 13);
    }

    #[test]
    fn a_part_that_does_not_arrive_comes_again_with_the_next_flush() {
        let (control, said) = (FakeControl { keeps_log: true, ..FakeControl::default() }, said());
        said.note("one");
        let mut log = Log::new(said);
        control.refuses.store(true, Ordering::Relaxed);
        log.carry_all(&control);
        assert!(log.due > Instant::now() + LOG_PAUSE, "a server that is away is left alone");
        control.refuses.store(false, Ordering::Relaxed);
        log.carry(&control);
        assert!(control.log.lock().unwrap().is_empty());
        said.note("two");
        log.carry_all(&control);
        assert_eq!(*control.log.lock().unwrap(), [(0, "one\ntwo\n".to_owned())]);
    }

    #[test]
    fn who_keeps_no_log_is_asked_once() {
        let (control, said) = (FakeControl::default(), said());
        said.note("one");
        let mut log = Log::new(said);
        log.carry_all(&control);
        log.carry_all(&control);
        assert_eq!(control.log.lock().unwrap().len(), 1);
    }
}
