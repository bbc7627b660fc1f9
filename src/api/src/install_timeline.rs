//! Timeline of a machine's last installation: the phases of the boot and the stages of the plan, with their times. The
//! module performs no I/O.

use super::machine_details::StoredEvent;
use model::install_report::{EventName, ProgressEvent};
use serde::{Deserialize, Serialize};
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;

/// Beginning of the agent's message about a failed stage.
const FAILED: &str = "failed";

/// State of a phase or stage.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum TimelineState {
    Running,
    Done,
    Failed,
}

/// Phase of the boot, or stage of the plan.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct TimelineEntry {
    /// Name of the stage such as `storage.wipe`, or of the phase such as `Registering`.
    pub name: String,
    /// Time at which the phase or stage started, as RFC 3339 in UTC.
    pub started: String,
    /// Duration; absent while the phase or stage is running.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub seconds: Option<f64>,
    pub state: TimelineState,
    /// Message of the phase, or progress of the running stage.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub message: String,
}

/// Builds the timeline from the events since the machine last booted over PXE. `live` is the last event, even if it
/// only reports progress; `events` does not contain progress events. `has_ended` is true if the machine has reported
/// the end of the installation.
pub(crate) fn build_timeline(
    events: &[StoredEvent],
    live: Option<&ProgressEvent>,
    has_ended: bool,
) -> Vec<TimelineEntry> {
    let mut entries: Vec<(TimelineEntry, bool)> = Vec::new();
    for StoredEvent { time, event } in &events[find_start(events)..] {
        match &event.stage {
            Some(stage) => add_stage_event(&mut entries, time, stage, event),
            None => {
                end_phase(&mut entries, time);
                entries.push((new_entry(&event.event.to_string(), time, &event.message, phase_state(event)), true));
            }
        }
    }
    let mut entries: Vec<TimelineEntry> = entries.into_iter().map(|(entry, _)| entry).collect();
    for entry in entries.iter_mut().filter(|entry| entry.state == TimelineState::Running) {
        let progress = live.filter(|live| live.stage.as_deref() == Some(&entry.name)).and_then(|live| live.progress);
        match progress {
            _ if has_ended => entry.state = TimelineState::Done,
            Some(progress) => entry.message = progress.to_string(),
            None => {}
        }
    }
    entries
}

/// Returns the index of the first event of the last boot.
fn find_start(events: &[StoredEvent]) -> usize {
    let is_start = |name: EventName| move |stored: &StoredEvent| stored.event.event == name;
    let boot = events.iter().rposition(is_start(EventName::PxeBooting));
    let boot = boot.or_else(|| events.iter().rposition(is_start(EventName::Preparing)));
    boot.unwrap_or_default()
}

fn new_entry(name: &str, time: &str, message: &str, state: TimelineState) -> TimelineEntry {
    let message = message.lines().next().unwrap_or_default().to_owned();
    TimelineEntry { name: name.to_owned(), started: time.to_owned(), seconds: None, state, message }
}

fn phase_state(event: &ProgressEvent) -> TimelineState {
    match event.event {
        EventName::Crashed => TimelineState::Failed,
        EventName::PhonedHome | EventName::Alive => TimelineState::Done,
        _ => TimelineState::Running,
    }
}

/// Ends the running phase at the given time. Stages end with their own events.
fn end_phase(entries: &mut [(TimelineEntry, bool)], time: &str) {
    let running = entries.iter_mut().rev().find(|(_, is_phase)| *is_phase).map(|(entry, _)| entry);
    let Some(phase) = running.filter(|phase| phase.state == TimelineState::Running) else { return };
    phase.state = TimelineState::Done;
    phase.seconds = seconds_between(&phase.started, time);
}

fn add_stage_event(entries: &mut Vec<(TimelineEntry, bool)>, time: &str, stage: &str, event: &ProgressEvent) {
    let Some(seconds) = event.seconds else {
        entries.push((new_entry(stage, time, "", TimelineState::Running), false));
        return;
    };
    let state = if event.message.starts_with(FAILED) { TimelineState::Failed } else { TimelineState::Done };
    let started = entries.iter_mut().rev().map(|(entry, _)| entry);
    match started.into_iter().find(|entry| entry.name == stage && entry.state == TimelineState::Running) {
        Some(entry) => (entry.seconds, entry.state) = (Some(seconds), state),
        // The event about the start of the stage was lost.
        None => {
            let started = subtract_seconds(time, seconds);
            entries.push((TimelineEntry { seconds: Some(seconds), ..new_entry(stage, &started, "", state) }, false));
        }
    }
}

fn seconds_between(start: &str, end: &str) -> Option<f64> {
    let parse = |time: &str| OffsetDateTime::parse(time, &Rfc3339).ok();
    Some((parse(end)? - parse(start)?).as_seconds_f64().max(0.0))
}

/// Returns the time that is `seconds` before `time`.
fn subtract_seconds(time: &str, seconds: f64) -> String {
    let seconds = if seconds.is_finite() { seconds.clamp(0.0, 1e9) } else { 0.0 };
    let started = OffsetDateTime::parse(time, &Rfc3339).map(|time| time - time::Duration::seconds_f64(seconds));
    started.ok().and_then(|started| started.format(&Rfc3339).ok()).unwrap_or_else(|| time.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use model::install_report::TransferProgress;

    fn stored(second: u32, event: EventName, stage: Option<&str>, seconds: Option<f64>, message: &str) -> StoredEvent {
        let (stage, message) = (stage.map(str::to_owned), message.to_owned());
        let event = ProgressEvent { event, message, stage, seconds, progress: None };
        StoredEvent { time: format!("2026-11-28T10:00:{second:02}Z"), event }
    }

    fn summary(entries: &[TimelineEntry]) -> Vec<(&str, Option<f64>, TimelineState)> {
        entries.iter().map(|entry| (entry.name.as_str(), entry.seconds, entry.state)).collect()
    }

    #[test]
    fn timeline_contains_durations_of_phases_and_stages() {
        use EventName::{Crashed, Installing, Preparing, PxeBooting, Registering};
        use TimelineState::{Done, Failed, Running};
        let mut events = vec![
            stored(0, Installing, Some("of.an.earlier.boot"), Some(1.0), "took 1.0 s"),
            stored(1, PxeBooting, None, None, "10.0.0.7"),
            stored(3, Preparing, None, None, ""),
            stored(4, Registering, None, None, ""),
            stored(5, Installing, None, None, "debian-12"),
            stored(9, Installing, Some("storage.wipe"), Some(2.0), "took 2.0 s"),
            stored(9, Installing, Some("image.burn"), None, "begins"),
        ];
        let progress = TransferProgress { bytes: 5, total_bytes: None, bytes_per_second: 1, seconds_left: None };
        let live = ProgressEvent { progress: Some(progress), ..events[6].event.clone() };
        let timeline = build_timeline(&events, Some(&live), false);
        let expected = [
            ("PXE Booting", Some(2.0), Done),
            ("Preparing", Some(1.0), Done),
            ("Registering", Some(1.0), Done),
            ("Installing", None, Running),
            ("storage.wipe", Some(2.0), Done),
            ("image.burn", None, Running),
        ];
        assert_eq!(summary(&timeline), expected);
        assert_eq!(
            (timeline[4].started.as_str(), timeline[5].message.as_str()),
            ("2026-11-28T10:00:07Z", "5 B, 1 B/s")
        );
        events.push(stored(20, Installing, Some("image.burn"), Some(11.0), "failed after 11 s"));
        events.push(stored(20, Crashed, None, None, "image.burn: no answer"));
        let timeline = build_timeline(&events, None, true);
        assert_eq!(summary(&timeline)[5..], [("image.burn", Some(11.0), Failed), ("Crashed", None, Failed)]);
        assert_eq!(timeline[3].state, Done);
    }

    #[test]
    fn impossible_times_and_durations_are_tolerated() {
        assert_eq!(build_timeline(&[], None, false), []);
        let mut event = stored(1, EventName::Installing, Some("s"), Some(f64::NAN), "");
        "yesterday".clone_into(&mut event.time);
        let timeline = build_timeline(&[event], None, false);
        assert_eq!(timeline[0].started, "yesterday");
        assert_eq!(seconds_between("yesterday", "2026-11-28T10:00:00Z"), None);
        assert_eq!(seconds_between("2026-11-28T10:00:05Z", "2026-11-28T10:00:00Z"), Some(0.0));
    }
}
