//! Timeline of a machine's last installation, with a bar for each stage, and the machine's history of orders and
//! installations.

use super::page_frame::{reword_message, show_age, show_time_of_day};
use api::install_timeline::{TimelineEntry, TimelineState};
use common::format::format_seconds;
use maud::{Markup, html};
use store::HistoryEntry;
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;

/// Shows the phases of the boot and the stages of the plan, each with a bar. Shows nothing if there are no entries.
pub(crate) fn show_timeline(entries: &[TimelineEntry]) -> Markup {
    let bars = place_bars(entries, OffsetDateTime::now_utc());
    html! {
        @if !entries.is_empty() {
            h2 { "Timeline of the last installation" }
            div.scroll tabindex="0" { table.timeline {
                tr { th { "Phase or stage" } th.number { "Started (UTC)" } th.number { "Took" } th { "Time axis" } th { "Message" } }
                @for (entry, (left, width)) in entries.iter().zip(bars) {
                    tr class=(css_class(entry.state)) {
                        td { span.word { (entry.name) } }
                        td.number { (show_time_of_day(&entry.started)) }
                        td.number {
                            @match (entry.seconds, entry.state) {
                                (Some(seconds), _) => { (format_seconds(seconds)) }
                                (None, TimelineState::Running) => { "running" }
                                (None, _) => {}
                            }
                        }
                        td.drawn { svg.span aria-hidden="true" {
                            rect x={ (format!("{left:.2}%")) } y="2" width={ (format!("{width:.2}%")) } height="10" {}
                        } }
                        td { (reword_message(&entry.message)) }
                    }
                }
            } }
        }
    }
}

fn css_class(state: TimelineState) -> &'static str {
    match state {
        TimelineState::Running => "busy",
        TimelineState::Done => "good",
        TimelineState::Failed => "bad",
    }
}

/// Returns the left end and the width of each bar, in percent of the whole timeline. The bar of a running entry ends at
/// `now`. If the time of an entry cannot be parsed, its bar is empty.
fn place_bars(entries: &[TimelineEntry], now: OffsetDateTime) -> Vec<(f64, f64)> {
    let start = |entry: &TimelineEntry| OffsetDateTime::parse(&entry.started, &Rfc3339).ok();
    let Some(first) = entries.iter().filter_map(start).min() else { return vec![(0.0, 0.0); entries.len()] };
    let spans = entries.iter().map(|entry| {
        let Some(start) = start(entry) else { return (0.0, 0.0) };
        let running = || (entry.state == TimelineState::Running).then(|| (now - start).as_seconds_f64());
        let seconds = entry.seconds.or_else(running).filter(|seconds| seconds.is_finite()).unwrap_or_default();
        ((start - first).as_seconds_f64(), seconds.max(0.0))
    });
    let spans: Vec<(f64, f64)> = spans.collect();
    let total = spans.iter().map(|(start, seconds)| start + seconds).fold(0.001, f64::max);
    spans.into_iter().map(|(start, seconds)| (start / total * 100.0, seconds / total * 100.0)).collect()
}

/// Shows the orders and the finished installations of a machine, successful or failed, the newest first. Shows nothing
/// if the machine has neither.
pub(crate) fn show_history(entries: &[HistoryEntry]) -> Markup {
    html! {
        @if !entries.is_empty() {
            h2 { "History" }
            div.scroll tabindex="0" { table {
                tr { th { "When" } th { "Event" } th { "Image" } th { "Stage" } th.number { "Took" } th { "Message" } }
                @for entry in entries.iter().rev() {
                    tr {
                        td { (show_age(&entry.time)) }
                        td { (entry.kind.as_str()) }
                        td { (entry.image.as_deref().unwrap_or_default()) }
                        td { (entry.stage.as_deref().unwrap_or_default()) }
                        td.number { @if let Some(seconds) = entry.seconds { (format_seconds(seconds)) } }
                        td.words { (reword_message(&entry.message)) }
                    }
                }
            } }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(name: &str, started: &str, seconds: Option<f64>, state: TimelineState) -> TimelineEntry {
        TimelineEntry { name: name.to_owned(), started: started.to_owned(), seconds, state, message: String::new() }
    }

    #[test]
    fn timeline_bars_show_start_and_duration() {
        let entries = [
            entry("Preparing", "2026-11-28T10:00:00Z", Some(10.0), TimelineState::Done),
            entry("storage.wipe", "2026-11-28T10:00:10Z", Some(20.0), TimelineState::Done),
            entry("image.burn", "2026-11-28T10:00:30Z", None, TimelineState::Running),
        ];
        let now = OffsetDateTime::parse("2026-11-28T10:00:40Z", &Rfc3339).unwrap();
        assert_eq!(place_bars(&entries, now), [(0.0, 25.0), (25.0, 50.0), (75.0, 25.0)]);
        let shown = show_timeline(&entries).0;
        for words in ["<tr class=\"busy\"><td><span class=\"word\">image.burn", "running", "20.0 s", "10:00:30"] {
            assert!(shown.contains(words), "{words}: {shown}");
        }
        assert_eq!(show_timeline(&[]).0, "");
    }

    #[test]
    fn impossible_times_and_durations_draw_no_bar() {
        let now = OffsetDateTime::parse("2026-11-28T10:00:00Z", &Rfc3339).unwrap();
        let entries = [
            entry("a", "yesterday", Some(5.0), TimelineState::Done),
            entry("b", "2026-11-28T10:00:10Z", Some(f64::NAN), TimelineState::Failed),
            entry("c", "2026-11-28T10:00:10Z", Some(-1.0), TimelineState::Done),
            entry("d", "2026-11-28T10:00:10Z", None, TimelineState::Running),
        ];
        assert_eq!(place_bars(&entries, now), [(0.0, 0.0); 4]);
        assert_eq!(place_bars(&entries[..1], now), [(0.0, 0.0)]);
    }
}
