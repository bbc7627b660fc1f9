//! Queue between the senders of log lines and the thread that writes the lines. If the output is read too slowly, lines
//! are dropped and counted. Lines about requests have a limit of their own, so that a client that sends many requests
//! cannot displace other lines.

use super::{LogLine, LogMessage};
use common::error_code::ErrorCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, SyncSender};
use std::time::{Duration, Instant};

/// Maximum number of pending lines about requests.
pub(super) const REQUEST_BACKLOG: usize = 1024;
/// Number of pending lines for which there is always space, however many requests are pending.
pub(super) const MESSAGE_BACKLOG: usize = 4096;
/// Minimum interval between two lines that report dropped lines.
const REPORT_INTERVAL: Duration = Duration::from_secs(10);

/// Counters that the senders and the receiver share.
#[derive(Debug, Default)]
struct QueueCounts {
    pending_requests: AtomicUsize,
    dropped_requests: AtomicU64,
    /// Number of dropped lines that were not about requests.
    dropped_messages: AtomicU64,
}

/// Sending end of the queue. Cheap to clone.
#[derive(Clone)]
pub(super) struct LineSender {
    lines: SyncSender<LogLine>,
    counts: Arc<QueueCounts>,
}

/// Receiving end of the queue.
pub(super) struct LineReceiver {
    lines: Receiver<LogLine>,
    counts: Arc<QueueCounts>,
    /// Time of the last line that reported dropped lines.
    reported: Option<Instant>,
}

pub(super) fn open_queue() -> (LineSender, LineReceiver) {
    let (lines, received) = mpsc::sync_channel(REQUEST_BACKLOG + MESSAGE_BACKLOG);
    let counts = Arc::new(QueueCounts::default());
    (LineSender { lines, counts: counts.clone() }, LineReceiver { lines: received, counts, reported: None })
}

impl LineSender {
    /// Adds a line to the queue, or drops and counts the line. Never blocks.
    pub(super) fn send_line(&self, line: LogLine) {
        let QueueCounts { pending_requests, dropped_requests, dropped_messages } = &*self.counts;
        if !is_about_request(&line) {
            if self.lines.try_send(line).is_err() {
                dropped_messages.fetch_add(1, Ordering::Relaxed);
            }
            return;
        }
        let has_space = pending_requests.fetch_add(1, Ordering::Relaxed) < REQUEST_BACKLOG;
        if !has_space || self.lines.try_send(line).is_err() {
            pending_requests.fetch_sub(1, Ordering::Relaxed);
            dropped_requests.fetch_add(1, Ordering::Relaxed);
        }
    }
}

impl LineReceiver {
    /// Waits for the next line. Returns `None` once all senders have been dropped, and the queue is empty.
    pub(super) fn next_line(&mut self) -> Option<LogLine> {
        loop {
            let is_due = self.reported.is_none_or(|reported| reported.elapsed() >= REPORT_INTERVAL);
            if let Some(report) = is_due.then(|| self.report_dropped_lines()).flatten() {
                return Some(report);
            }
            match self.lines.recv_timeout(REPORT_INTERVAL) {
                Ok(line) => {
                    if is_about_request(&line) {
                        self.counts.pending_requests.fetch_sub(1, Ordering::Relaxed);
                    }
                    return Some(line);
                }
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return self.report_dropped_lines(),
            }
        }
    }

    /// Returns a line with the numbers of lines that were dropped since the last report; `None` if no lines were
    /// dropped.
    fn report_dropped_lines(&mut self) -> Option<LogLine> {
        let QueueCounts { dropped_requests, dropped_messages, .. } = &*self.counts;
        let [requests, others] = [dropped_requests, dropped_messages].map(|count| count.swap(0, Ordering::Relaxed));
        if requests + others == 0 {
            return None;
        }
        self.reported = Some(Instant::now());
        let text = format!(
            "lines of this log were dropped, because its output is read too slowly: {requests} about requests, \
             {others} others"
        );
        Some(LogLine { request: None, message: LogMessage::Problem(ErrorCode::ServerProblem.annotate_uncoded(text)) })
    }
}

fn is_about_request(line: &LogLine) -> bool {
    matches!(line.message, LogMessage::Answered(_))
}

#[cfg(test)]
mod tests {
    use super::super::AnsweredRequest;
    use super::*;
    use axum::http::{Method, StatusCode};

    fn request() -> LogLine {
        let (from, method, path) = ("10.0.0.7".parse().unwrap(), Method::GET, "/".to_owned());
        let answered = AnsweredRequest { from, method, path, status: StatusCode::OK, took: Duration::ZERO };
        LogLine { request: None, message: LogMessage::Answered(answered) }
    }

    fn note() -> LogLine {
        LogLine { request: None, message: LogMessage::Note("n".to_owned()) }
    }

    fn reported_text(line: Option<LogLine>) -> String {
        match line {
            Some(LogLine { message: LogMessage::Problem(text), .. }) => text,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn requests_do_not_displace_other_lines() {
        let (sender, mut receiver) = open_queue();
        (0..REQUEST_BACKLOG + MESSAGE_BACKLOG).for_each(|_| sender.send_line(request()));
        (0..MESSAGE_BACKLOG).for_each(|_| sender.send_line(note()));
        drop(sender);
        let report = reported_text(receiver.next_line());
        assert!(report.contains(&format!("{MESSAGE_BACKLOG} about requests, 0 others")), "{report}");
        let rest: Vec<LogLine> = std::iter::from_fn(|| receiver.next_line()).collect();
        let (requests, others): (Vec<_>, Vec<_>) = rest.iter().partition(|line| is_about_request(line));
        assert_eq!((requests.len(), others.len()), (REQUEST_BACKLOG, MESSAGE_BACKLOG));
    }

    #[test]
    fn dropped_lines_are_counted_and_reported_at_intervals() {
        let (sender, mut receiver) = open_queue();
        let capacity = REQUEST_BACKLOG + MESSAGE_BACKLOG;
        (0..capacity + 5).for_each(|_| sender.send_line(note()));
        sender.send_line(request());
        assert!(reported_text(receiver.next_line()).contains("1 about requests, 5 others"));
        sender.send_line(note());
        assert!(!matches!(receiver.next_line().unwrap().message, LogMessage::Problem(_)), "a report was just sent");
        drop(sender);
        let rest: Vec<LogLine> = std::iter::from_fn(|| receiver.next_line()).collect();
        assert_eq!(rest.len(), capacity);
        assert!(reported_text(rest.into_iter().last()).contains("0 about requests, 1 others"));
    }
}
