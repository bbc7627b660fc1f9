//! Thread that sends events and the console log to the control plane. Events come from a queue that drops excess
//! events, and parts of the log are sent between events.

use control::ControlPlane;
use linux::console_log::ConsoleLog;
use model::install_report::{EventName, ProgressEvent};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::thread;
use std::time::{Duration, Instant};

/// Capacity of the event queue, in events. The queue becomes full only if the control plane is unreachable. Further
/// events are then dropped.
const QUEUE: usize = 256;

/// Interval between keepalives. metal-stack considers a machine dead after a few minutes of silence.
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(60);

/// Minimum interval between parts of the log.
const LOG_PAUSE: Duration = Duration::from_secs(2);
/// Delay before the next attempt to send a part of the log that could not be sent.
const LOG_AGAIN: Duration = Duration::from_secs(10);

/// Maximum size of a part of the log, in bytes.
const LOG_PART: usize = 16 << 10;
/// Number of parts that suffice to send the whole log buffer.
const LOG_PARTS: usize = 32;

/// Item of the event queue.
enum SenderItem {
    Event(ProgressEvent),
    /// Request to send the whole log.
    Log,
}

/// Sender of events and the log.
pub(crate) struct EventSender {
    queue: SyncSender<SenderItem>,
    /// Number of items that are queued or being sent.
    waiting: Arc<AtomicUsize>,
}

impl EventSender {
    pub(crate) fn new(control: Arc<dyn ControlPlane>, console_log: &'static ConsoleLog) -> EventSender {
        let (queue, loads) = sync_channel(QUEUE);
        let waiting = Arc::new(AtomicUsize::new(0));
        let left = waiting.clone();
        thread::spawn(move || send_loop(&*control, &loads, &left, LogUpload::new(console_log)));
        EventSender { queue, waiting }
    }

    /// Queues an event, or drops it if the queue is full.
    pub(crate) fn queue_event(&self, event: ProgressEvent) {
        self.queue_item(SenderItem::Event(event));
    }

    fn queue_item(&self, load: SenderItem) {
        self.waiting.fetch_add(1, Ordering::SeqCst);
        if self.queue.try_send(load).is_err() {
            self.waiting.fetch_sub(1, Ordering::SeqCst);
        }
    }

    /// Waits until all queued events and the log are sent. Returns after `patience` even if they are not sent.
    pub(crate) fn wait_until_sent(&self, patience: Duration) {
        let end = Instant::now() + patience;
        self.queue_item(SenderItem::Log);
        while self.waiting.load(Ordering::SeqCst) > 0 && Instant::now() < end {
            thread::sleep(Duration::from_millis(5));
        }
    }
}

fn send_loop(control: &dyn ControlPlane, loads: &Receiver<SenderItem>, waiting: &AtomicUsize, mut log: LogUpload) {
    let mut heard = Instant::now();
    loop {
        match loads.recv_timeout(LOG_PAUSE) {
            Ok(load) => {
                match load {
                    SenderItem::Event(event) => deliver_event(control, &event),
                    SenderItem::Log => log.send_all(control),
                }
                waiting.fetch_sub(1, Ordering::SeqCst);
                heard = Instant::now();
            }
            Err(RecvTimeoutError::Timeout) if heard.elapsed() >= KEEPALIVE_INTERVAL => {
                deliver_event(control, &keepalive_event());
                heard = Instant::now();
            }
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => return,
        }
        log.send_if_due(control);
    }
}

fn deliver_event(control: &dyn ControlPlane, event: &ProgressEvent) {
    if let Err(error) = control.send_event(event) {
        tracing::debug!(%error, "event lost");
    }
}

fn keepalive_event() -> ProgressEvent {
    let message = "still here".to_owned();
    ProgressEvent { event: EventName::Alive, message, stage: None, seconds: None, progress: None }
}

/// Upload state of the log.
struct LogUpload {
    console_log: &'static ConsoleLog,
    uploaded_bytes: u64,
    /// Earliest time for sending the next part of the log.
    due: Instant,
    /// True if the control plane does not store logs.
    is_over: bool,
}

impl LogUpload {
    fn new(console_log: &'static ConsoleLog) -> LogUpload {
        LogUpload { console_log, uploaded_bytes: 0, due: Instant::now() + LOG_PAUSE, is_over: false }
    }

    /// Sends the next part of the log if the part is due.
    fn send_if_due(&mut self, control: &dyn ControlPlane) {
        if Instant::now() >= self.due {
            self.send_part(control);
        }
    }

    fn send_all(&mut self, control: &dyn ControlPlane) {
        for _ in 0..LOG_PARTS {
            if !self.send_part(control) {
                return;
            }
        }
    }

    /// Sends the next part of the log. Returns false if there was nothing left to send, or if the part was not
    /// delivered.
    fn send_part(&mut self, control: &dyn ControlPlane) -> bool {
        let (start, text) = self.console_log.read_since(self.uploaded_bytes, LOG_PART);
        if self.is_over || text.is_empty() {
            return false;
        }
        let sent = control.upload_log(start, &text);
        let pause = if sent.is_ok() { LOG_PAUSE } else { LOG_AGAIN };
        self.due = Instant::now() + pause;
        match sent {
            Ok(true) => {
                self.uploaded_bytes = start + text.len() as u64;
                true
            }
            Ok(false) => {
                self.is_over = true;
                false
            }
            Err(error) => {
                tracing::debug!(%error, "a part of the log was not sent");
                false
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use control::fake_control_plane::FakeControl;

    fn new_console_log() -> &'static ConsoleLog {
        Box::leak(Box::new(ConsoleLog::new()))
    }

    #[test]
    fn log_is_uploaded_once_and_completely_in_chunks() {
        let (control, console_log) =
            (Arc::new(FakeControl { keeps_log: true, ..FakeControl::default() }), new_console_log());
        let line = "x".repeat(99);
        (0..500).for_each(|_| console_log.append(&line));
        let sender = EventSender::new(control.clone(), console_log);
        sender.wait_until_sent(Duration::from_secs(10));
        console_log.append("the last one");
        sender.wait_until_sent(Duration::from_secs(10));
        sender.wait_until_sent(Duration::from_secs(10));
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
    fn failed_log_upload_is_repeated_with_the_next_flush() {
        let (control, console_log) = (FakeControl { keeps_log: true, ..FakeControl::default() }, new_console_log());
        console_log.append("one");
        let mut log = LogUpload::new(console_log);
        control.refuses.store(true, Ordering::Relaxed);
        log.send_all(&control);
        assert!(log.due > Instant::now() + LOG_PAUSE, "the next request to an unreachable server waits");
        control.refuses.store(false, Ordering::Relaxed);
        log.send_if_due(&control);
        assert!(control.log.lock().unwrap().is_empty());
        console_log.append("two");
        log.send_all(&control);
        assert_eq!(*control.log.lock().unwrap(), [(0, "one\ntwo\n".to_owned())]);
    }

    #[test]
    fn control_plane_without_log_support_is_asked_once() {
        let (control, console_log) = (FakeControl::default(), new_console_log());
        console_log.append("one");
        let mut log = LogUpload::new(console_log);
        log.send_all(&control);
        log.send_all(&control);
        assert_eq!(control.log.lock().unwrap().len(), 1);
    }
}
