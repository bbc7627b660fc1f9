//! Filter for the events that are sent to metal-stack.
//!
//! metal-stack's server stores the phase of a machine, and interprets a repeated phase as a crash loop. Therefore each
//! phase is sent at most once per boot. All other events are sent as keepalives, at most once per minute.

use model::install_report::{EventName, ProgressEvent};
use std::time::{Duration, Instant};

/// Minimum interval between keepalives. The server expects a message each minute, and considers a machine dead after a
/// few minutes without a message.
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(60);

/// Maximum length of a message, in characters. The limit is low, because the server shows messages in a table.
const MAXIMUM_MESSAGE_CHARACTERS: usize = 500;

/// Record of the events that were sent in this boot.
#[derive(Debug, Default)]
pub(crate) struct EventFilter {
    phases: Vec<EventName>,
    /// Time of the last message to the server.
    last: Option<Instant>,
}

impl EventFilter {
    /// Returns the name and the message of the event to send; `None` if nothing must be sent.
    pub(crate) fn filter_event(&mut self, event: &ProgressEvent, now: Instant) -> Option<(EventName, String)> {
        let is_phase = event.event != EventName::Alive && !self.phases.contains(&event.event);
        if is_phase {
            self.phases.push(event.event);
        } else if self.last.is_some_and(|last| now.duration_since(last) < KEEPALIVE_INTERVAL) {
            return None;
        }
        self.last = Some(now);
        let name = if is_phase { event.event } else { EventName::Alive };
        Some((name, describe_event(event, is_phase)))
    }
}

fn describe_event(event: &ProgressEvent, is_phase: bool) -> String {
    let message = shorten_message(&event.message);
    match &event.stage {
        Some(stage) if !is_phase => format!("{stage}: {message}"),
        _ => message,
    }
}

/// Joins the first two nonempty lines of a message: the summary, and the first reason if there is one.
fn shorten_message(message: &str) -> String {
    let lines: Vec<&str> = message.lines().map(str::trim).filter(|line| !line.is_empty()).take(2).collect();
    let text = lines.join(" ");
    match text.char_indices().nth(MAXIMUM_MESSAGE_CHARACTERS) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn event(event: EventName, stage: Option<&str>, message: &str) -> ProgressEvent {
        let stage = stage.map(str::to_owned);
        ProgressEvent { event, message: message.to_owned(), stage, seconds: None, progress: None }
    }

    /// Events of an installation, each with the second in which it occurs.
    #[test]
    fn each_phase_is_sent_once_and_progress_becomes_alive() {
        use EventName::{Alive, BootingNewKernel, Crashed, Installing, PlannedReboot, Preparing, Registering, Waiting};
        let began = Instant::now();
        let mut told = EventFilter::default();
        let mut heard = Vec::new();
        for (second, name, stage, message) in [
            (0, Preparing, None, "drophammer"),
            (1, Registering, None, "m"),
            (2, Registering, Some("storage.wipe"), "begins"),
            (70, Registering, Some("storage.wipe"), "took 68 s"),
            (71, Waiting, None, "for an allocation"),
            (131, Alive, None, "still here"),
            (132, Installing, None, "debian-12"),
            (133, Installing, Some("image.burn"), "begins"),
            (193, Installing, Some("image.burn"), "40 MB of 90 MB"),
            (194, Installing, Some("image.burn"), "41 MB of 90 MB"),
            (195, BootingNewKernel, None, "leaving"),
            (196, BootingNewKernel, None, "leaving"),
            (197, Crashed, None, "plan: the layout cannot be used:\n  disks[0]: is missing\n  disks[1]: is missing"),
            (198, PlannedReboot, None, "again"),
        ] {
            let now = began + Duration::from_secs(second);
            heard.extend(
                told.filter_event(&event(name, stage, message), now).map(|(name, words)| (second, name, words)),
            );
        }
        let heard: Vec<_> = heard.iter().map(|(second, name, words)| (*second, *name, words.as_str())).collect();
        assert_eq!(
            heard,
            [
                (0, Preparing, "drophammer"),
                (1, Registering, "m"),
                (70, Alive, "storage.wipe: took 68 s"),
                (71, Waiting, "for an allocation"),
                (131, Alive, "still here"),
                (132, Installing, "debian-12"),
                (193, Alive, "image.burn: 40 MB of 90 MB"),
                (195, BootingNewKernel, "leaving"),
                (197, Crashed, "plan: the layout cannot be used: disks[0]: is missing"),
                (198, PlannedReboot, "again"),
            ]
        );
    }

    #[test]
    fn event_messages_are_truncated() {
        let (_, words) = EventFilter::default()
            .filter_event(&event(EventName::Crashed, None, &"ä".repeat(9000)), Instant::now())
            .unwrap();
        assert_eq!(words.chars().count(), MAXIMUM_MESSAGE_CHARACTERS + 1);
    }
}
