//! `drophammer machine show`, `events`, `logs` and `history`: what the server knows about one machine.

mod sections;

use super::{OperatorClient, OperatorResponse, find_machine, print_json, print_refusal};
use ::api::machine_details::{ConsoleText, HistoryEntry, MachineDetails, StoredEvent};
use ::api::operator::MachineSummary;
use clap::Args;
use common::error::Result;
use common::exit_status::CommandOutcome;
use common::format::terminal_escaping::escape_hidden;
use common::format::{self, replace_hidden};
use common::output::{is_output_closed, print_text};
use reqwest::Method;
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::time::Duration;

/// Interval between two requests for new console output.
const POLL_INTERVAL: Duration = Duration::from_secs(1);

#[derive(Debug, Args)]
pub struct OneMachineOptions {
    /// Id or name of the machine.
    #[arg(value_name = "ID")]
    pub machine: String,
}

#[derive(Debug, Args)]
pub struct LogOptions {
    /// Id or name of the machine.
    #[arg(value_name = "ID")]
    pub machine: String,
    /// Print new output as it arrives, until the command is interrupted.
    #[arg(short, long)]
    pub follow: bool,
}

pub(super) fn show_machine(
    server: &OperatorClient,
    all: &[MachineSummary],
    name: &str,
    json: bool,
) -> Result<CommandOutcome> {
    print_answer(server, all, name, "details", json, |details: &MachineDetails| sections::format_details(details, all))
}

pub(super) fn show_events(
    server: &OperatorClient,
    all: &[MachineSummary],
    name: &str,
    json: bool,
) -> Result<CommandOutcome> {
    print_answer(server, all, name, "events", json, |events: &Vec<StoredEvent>| format_events(events))
}

pub(super) fn show_history(
    server: &OperatorClient,
    all: &[MachineSummary],
    name: &str,
    json: bool,
) -> Result<CommandOutcome> {
    print_answer(server, all, name, "history", json, |history: &Vec<HistoryEntry>| format_history(history))
}

/// Requests one part of what the server knows about the machine, and prints the response as JSON or as text.
fn print_answer<T: Serialize + DeserializeOwned>(
    server: &OperatorClient,
    all: &[MachineSummary],
    name: &str,
    part: &str,
    json: bool,
    format: impl FnOnce(&T) -> String,
) -> Result<CommandOutcome> {
    let machine = match find_machine(all, name) {
        Ok(machine) => machine,
        Err(why) => return Ok(print_refusal(&why)),
    };
    let request = server.request(Method::GET, &format!("/v1/machine/{}/{part}", machine.id));
    match server.send_json::<T>(request)? {
        OperatorResponse::Refused(why) => Ok(print_refusal(&why)),
        OperatorResponse::Good(answer) if json => print_json(&answer),
        OperatorResponse::Good(answer) => print_text(&format(&answer)).map(|()| CommandOutcome::Good),
    }
}

/// Prints the console log. With `--follow`, prints new output until the command is interrupted.
pub(super) fn show_logs(
    server: &OperatorClient,
    all: &[MachineSummary],
    asked: &LogOptions,
    json: bool,
) -> Result<CommandOutcome> {
    let machine = match find_machine(all, &asked.machine) {
        Ok(machine) => machine,
        Err(why) => return Ok(print_refusal(&why)),
    };
    let mut after = 0;
    loop {
        let request = server.request(Method::GET, &format!("/v1/machine/{}/log?after={after}", machine.id));
        let log: ConsoleText = match server.send_json(request)? {
            OperatorResponse::Refused(why) => return Ok(print_refusal(&why)),
            OperatorResponse::Good(log) => log,
        };
        match json {
            _ if log.text.is_empty() && asked.follow => {}
            true => drop(print_json(&log)?),
            false if log.text.is_empty() => print_text("The server has no console output of this machine.\n")?,
            false => print_text(&escape_hidden(&log.text))?,
        }
        if !asked.follow || is_output_closed() {
            return Ok(CommandOutcome::Good);
        }
        after = log.next;
        std::thread::sleep(POLL_INTERVAL);
    }
}

/// Formats a time as `2026-11-28 10:00:00`, in UTC.
fn format_time(time: &str) -> String {
    time.get(..19).map_or_else(|| replace_hidden(time), |second| replace_hidden(second).replace('T', " "))
}

fn format_events(events: &[StoredEvent]) -> String {
    if events.is_empty() {
        return "The server has no events of this machine.\n".to_owned();
    }
    let mut rows = vec![["time (UTC)", "event", "stage", "took", "message"].map(str::to_owned)];
    rows.extend(events.iter().map(|StoredEvent { time, event }| {
        [
            format_time(time),
            event.event.to_string(),
            event.stage.as_deref().map_or_else(|| "-".to_owned(), replace_hidden),
            event.seconds.map_or_else(|| "-".to_owned(), format::format_seconds),
            replace_hidden(event.message.lines().next().unwrap_or_default()),
        ]
    }));
    format::format_columns(&rows)
}

fn format_history(history: &[HistoryEntry]) -> String {
    if history.is_empty() {
        return "The server has no record of an order or an ended installation of this machine.\n".to_owned();
    }
    let mut rows = vec![["time (UTC)", "what", "image", "took", "result"].map(str::to_owned)];
    rows.extend(history.iter().map(|entry| {
        let stage = entry.stage.as_deref().map(|stage| format!("{stage}: ")).unwrap_or_default();
        let message = entry.message.lines().next().unwrap_or_default();
        [
            format_time(&entry.time),
            entry.kind.as_str().to_owned(),
            entry.image.as_deref().map_or_else(|| "-".to_owned(), replace_hidden),
            entry.seconds.map_or_else(|| "-".to_owned(), format::format_seconds),
            replace_hidden(&format!("{stage}{message}")),
        ]
    }));
    format::format_columns(&rows)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn events_and_history_are_tables() {
        let event = json!({"time": "2026-11-28T10:00:00.5Z", "event": "Installing", "step": "storage.wipe",
            "seconds": 1.5, "message": "took\u{1b}[2J 1.5 s"});
        let events: Vec<StoredEvent> = serde_json::from_value(json!([event])).unwrap();
        let text = format_events(&events);
        assert!(
            text.lines().nth(1).unwrap().starts_with("2026-11-28 10:00:00  Installing  storage.wipe  1.5 s"),
            "{text}"
        );
        assert!(!text.contains('\u{1b}'), "{text}");
        let entries = json!([
            {"time": "2026-11-28T10:00:00Z", "kind": "ordered", "image": "debian-13", "order": "o"},
            {"time": "2026-11-28T10:05:00Z", "kind": "failed", "image": "debian-13", "order": "o",
             "stage": "storage.format", "message": "mkfs.ext4: no\nmore", "seconds": 61.0},
        ]);
        let history: Vec<HistoryEntry> = serde_json::from_value(entries).unwrap();
        let text = format_history(&history);
        let rows: Vec<Vec<&str>> = text
            .lines()
            .map(|line| line.split("  ").filter(|cell| !cell.is_empty()).map(str::trim).collect())
            .collect();
        assert_eq!(rows[1][..4], ["2026-11-28 10:00:00", "ordered", "debian-13", "-"]);
        assert_eq!(rows[2][1..], ["failed", "debian-13", "1 min 1 s", "storage.format: mkfs.ext4: no"]);
        assert!(format_events(&[]).contains("no events") && format_history(&[]).contains("no record"));
    }
}
