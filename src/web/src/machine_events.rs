//! Events and console log of a machine.

use super::page_frame::{reword_message, show_time};
use api::{AppState, access, console_log};
use common::format::format_seconds;
use http_server::api_error::ApiError;
use maud::{Markup, html};
use model::install_report::ProgressEvent;

/// Maximum length of the console log on a page, in bytes.
const LOG_BYTES: usize = 64 << 10;

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
