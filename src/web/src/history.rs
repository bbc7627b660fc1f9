//! History of a machine: its last installation, its events, and its console log.

use super::page_frame::{reword_message, show_time};
use api::{AppState, access, console_log};
use common::format::{format_bytes, format_seconds};
use control::api_types::InstallReport;
use http_server::api_error::ApiError;
use maud::{Markup, html};
use model::install_report::{PreservationProof, ProgressEvent, StageTime};
use std::collections::BTreeSet;

/// Maximum length of the console log on a page, in bytes.
const LOG_BYTES: usize = 64 << 10;

/// Shows the report of the last installation.
pub(crate) fn show_report(report: &InstallReport) -> Markup {
    let failed = report.step.as_deref().map(|step| format!("Failed at {step}")).unwrap_or_else(|| "Failed".to_owned());
    html! {
        h2 { "Last installation" }
        p.words.problem[!report.success] {
            strong { (if report.success { "Installed" } else { &failed }) ": " } (access::visible_message(report.reason()))
            @if report.untouched { " All disks are unchanged." }
        }
        @if !report.timings.is_empty() { (show_timings(&report.timings)) }
        @if let Some(burn) = &report.burn { p { "Image: " (burn) } }
        @if let Some(peak) = report.peak_rss_bytes { p.faint { "Peak memory of the agent: " (format_bytes(peak)) } }
        @if !report.plan.is_empty() {
            h3 { "Plan, as printed" }
            pre tabindex="0" { (report.plan) }
        }
        @if !report.erased.is_empty() {
            h3 { "Erased disks" }
            div.scroll tabindex="0" { table {
                tr { th { "Disk" } th { "Serial" } th { "Proof" } th.number { "Took" } }
                @for disk in &report.erased {
                    tr { td { code { (disk.device) } } td { (disk.serial) } td { (disk.proof) } td.number { (format_seconds(disk.seconds)) } }
                }
            } }
        }
        @if !report.kept.is_empty() { h3 { "Proofs that preserved objects are unchanged" } (show_preserved(&report.kept)) }
    }
}

/// Shows the durations of the stages as a bar and a table.
fn show_timings(timings: &[StageTime]) -> Markup {
    let known = |time: &StageTime| if time.seconds.is_finite() { time.seconds.max(0.0) } else { 0.0 };
    let sum: f64 = timings.iter().map(known).sum::<f64>().max(0.001);
    let mut left = 0.0;
    let parts = timings.iter().enumerate().map(|(index, time)| {
        let width = known(time) / sum * 100.0;
        let part = (format!("{left:.2}%"), format!("{width:.2}%"), format!("c{}", index % 8), time);
        left += width;
        part
    });
    let parts: Vec<_> = parts.collect();
    html! {
        h3 { "Duration by step: " (format_seconds(sum)) }
        svg.bar role="img" aria-label="Duration by step, as in the table below" {
            @for (left, width, colour, time) in &parts {
                rect class=(colour) x=(left) y="0" width=(width) height="28" {
                    title { (time.stage) " " (format_seconds(time.seconds)) }
                }
            }
        }
        table {
            @for (_, _, colour, time) in &parts {
                tr {
                    td { svg.key { rect class=(colour) width="100%" height="100%" {} } (time.stage) }
                    td.number { (format_seconds(time.seconds)) }
                    td.number { (format!("{:.0} %", known(time) / sum * 100.0)) }
                }
            }
        }
    }
}

/// Shows the identifying properties of each preserved object, read before the first stage and after the last stage.
fn show_preserved(kept: &[PreservationProof]) -> Markup {
    html! {
        div.scroll tabindex="0" { table {
            tr { th { "Object" } th { "Identified by" } th { "Before" } th { "After" } th { "Result" } }
            @for proof in kept {
                @let names: BTreeSet<&String> = proof.before.keys().chain(proof.after.keys()).collect();
                @for (index, name) in names.into_iter().enumerate() {
                    @let (before, after) = (proof.before.get(name), proof.after.get(name));
                    tr {
                        td { @if index == 0 { (proof.object) } }
                        td { (name) }
                        td.mono { (before.map(String::as_str).unwrap_or("-")) }
                        td.mono { (after.map(String::as_str).unwrap_or("-")) }
                        @if before == after { td.good { span.word { "same" } } } @else { td.bad { span.word { "CHANGED" } } }
                    }
                }
            }
        } }
    }
}

/// Console log as shown on a page.
#[derive(Default)]
pub(crate) struct PageLog {
    id: String,
    /// Text of the log, or only the end of the text if the log is long.
    text: String,
    /// True if `text` contains only the end of the log.
    is_cut: bool,
}

impl PageLog {
    /// Reads the log of a machine.
    ///
    /// # Errors
    /// Returns an error if the database fails.
    pub(crate) async fn read_log(app: &AppState, id: &str) -> Result<PageLog, ApiError> {
        let whole = console_log::format_log(&app.state.read_log(id).await?);
        let from = whole.len().saturating_sub(LOG_BYTES);
        let from = if from == 0 {
            0
        } else {
            whole.as_bytes()[from..].iter().position(|byte| *byte == b'\n').map_or(from, |at| from + at + 1)
        };
        Ok(PageLog { id: id.to_owned(), text: whole.get(from..).unwrap_or_default().to_owned(), is_cut: from > 0 })
    }
}

/// Shows the stored events with their times, and the console log. Events that this version cannot parse are skipped.
pub(crate) fn show_events(events: &[(String, String)], log: &PageLog) -> Markup {
    let parsed =
        events.iter().filter_map(|(time, text)| Some((time, serde_json::from_str::<ProgressEvent>(text).ok()?)));
    let parsed: Vec<(&String, ProgressEvent)> = parsed.collect();
    // Of consecutive events with the same name, the table shows only the first one and those with a duration.
    let mut before = None;
    let steps: Vec<&(&String, ProgressEvent)> = parsed
        .iter()
        .filter(|(_, event)| before.replace(event.event) != Some(event.event) || event.seconds.is_some())
        .collect();
    html! {
        h2 { "Events" }
        @if steps.is_empty() { p.faint { "none so far" } } @else {
            div.scroll.log tabindex="0" role="region" aria-label="Events" { table {
                tr { th { "Time (UTC)" } th { "Event" } th { "Step" } th.number { "Took" } th { "Message" } }
                @for (at, event) in steps.iter().rev() {
                    tr {
                        td { (show_time(at)) } td { (event.event) } td { (event.stage.as_deref().unwrap_or_default()) }
                        td.number { @if let Some(took) = event.seconds { (format_seconds(took)) } }
                        td { (reword_message(event.message.lines().next().unwrap_or_default())) }
                    }
                }
            } }
        }
        (show_log(&parsed, log))
    }
}

/// Shows the console log. If the log is empty, shows all events instead.
fn show_log(events: &[(&String, ProgressEvent)], log: &PageLog) -> Markup {
    html! {
        @if !log.text.is_empty() {
            h2 { "Log" }
            p.faint {
                "Console output of the ramdisk and the agent"
                @if log.is_cut { ", last part only" }
                ". " a href={ "/machines/" (log.id) "/log" } { "Full text" }
            }
            pre.log tabindex="0" { (log.text) }
        } @else if !events.is_empty() {
            h2 { "Log" }
            p.faint { "The agent did not send console output. These are its events." }
            pre.log tabindex="0" {
                @for (time, event) in events {
                    (time.get(..19).unwrap_or(time)) "  " (event.event)
                    @if let Some(stage) = &event.stage { "  " (stage) }
                    @if let Some(took) = event.seconds { "  " (format_seconds(took)) }
                    @if !event.message.is_empty() { "  " (access::visible_message(&event.message)) }
                    "\n"
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn changed_preservation_proof_is_marked() {
        let map = |value: &str| [("uuid".to_owned(), value.to_owned())].into();
        let proof = PreservationProof { object: "disk /dev/sdb".to_owned(), before: map("1"), after: map("2") };
        let same = PreservationProof { after: map("1"), ..proof.clone() };
        assert!(show_preserved(&[proof]).0.contains("CHANGED"));
        let shown = show_preserved(&[same]).0;
        assert!(!shown.contains("CHANGED") && shown.contains("same"));
    }

    #[test]
    fn invalid_durations_draw_no_bar() {
        let time = |seconds| StageTime { stage: "s".to_owned(), seconds };
        let text = show_timings(&[time(f64::NAN), time(f64::INFINITY), time(-1.0), time(3.0)]).0;
        assert!(text.contains("width=\"100.00%\"") && !text.contains("width=\"NaN"), "{text}");
    }
}
