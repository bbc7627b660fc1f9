//! `drophammer machine events` and `history`: lists of what has happened to one machine.

use super::POLL_INTERVAL;
use crate::object_list::{ListCell, ListColumn, ListOptions, ObjectList, print_list, print_list_part};
use crate::server_commands::watched_output::{WatchedListOptions, print_watched_list};
use crate::server_commands::{OperatorClient, OperatorResponse, find_machine, print_refusal};
use ::api::machine_details::{HistoryEntry, StoredEvent};
use ::api::operator_api::MachineSummary;
use clap::Args;
use common::command_outcome::{CommandOutcome, report_refusal};
use common::error::Result;
use common::format::format_seconds;
use common::output::is_output_closed;
use reqwest::Method;
use serde::de::DeserializeOwned;

#[derive(Debug, Args)]
pub struct EventOptions {
    /// Id or name of the machine.
    #[arg(value_name = "ID")]
    pub machine: String,
    /// Print new events as they arrive, until the command is interrupted.
    #[arg(short, long)]
    pub follow: bool,
    #[command(flatten)]
    pub list: ListOptions,
}

#[derive(Debug, Args)]
pub struct HistoryOptions {
    /// Id or name of the machine.
    #[arg(value_name = "ID")]
    pub machine: String,
    #[command(flatten)]
    pub list: WatchedListOptions,
}

/// Prints the events. With `--follow`, then prints new events until the command is interrupted.
pub(in crate::server_commands) fn show_events(
    server: &OperatorClient,
    all: &[MachineSummary],
    event_options: &EventOptions,
    json: bool,
) -> Result<CommandOutcome> {
    let (mut last, mut is_first) = (None, true);
    loop {
        let events: Vec<StoredEvent> = match request_list(server, all, &event_options.machine, "events")? {
            OperatorResponse::Refused(why) => return Ok(print_refusal(&why)),
            OperatorResponse::Good(events) => events,
        };
        if !event_options.follow {
            return print_list(&event_columns(), &events, &event_options.list, json);
        }
        let new = find_new_events(&events, last.as_ref());
        match print_list_part(&event_columns(), new, &event_options.list, json, is_first) {
            Ok(is_printed) => is_first &= !is_printed,
            Err(error) => return report_refusal(Err(error)),
        }
        if is_output_closed() {
            return Ok(CommandOutcome::Good);
        }
        last = events.last().cloned().or(last);
        std::thread::sleep(POLL_INTERVAL);
    }
}

/// Returns the events after the last printed one, or all events if the server has deleted the last printed one.
fn find_new_events<'a>(events: &'a [StoredEvent], last: Option<&StoredEvent>) -> &'a [StoredEvent] {
    let printed = last.and_then(|last| events.iter().rposition(|event| event == last));
    &events[printed.map_or(0, |printed| printed + 1)..]
}

/// Prints the orders and ended installations.
pub(in crate::server_commands) fn show_history(
    server: &OperatorClient,
    all: &[MachineSummary],
    history_options: &HistoryOptions,
    json: bool,
) -> Result<CommandOutcome> {
    let fetch = || request_list(server, all, &history_options.machine, "history");
    print_watched_list(&history_columns(), &history_options.list, json, fetch)
}

/// Requests a list with the records of one machine.
fn request_list<T: DeserializeOwned>(
    server: &OperatorClient,
    all: &[MachineSummary],
    name: &str,
    list: &str,
) -> Result<OperatorResponse<Vec<T>>> {
    match find_machine(all, name) {
        Ok(machine) => server.send_json(server.request(Method::GET, &format!("/v1/machine/{}/{list}", machine.id))),
        Err(why) => Ok(OperatorResponse::Refused(why)),
    }
}

fn event_columns() -> ObjectList<'static, StoredEvent> {
    let columns = vec![
        ListColumn::new_time("time", |stored: &StoredEvent| stored.time.clone()),
        ListColumn::new("event", |stored: &StoredEvent| stored.event.event.to_string()),
        ListColumn::new("stage", |stored: &StoredEvent| stored.event.stage.clone().unwrap_or_default()).only_wide(),
        // The message at the end of a stage contains the duration.
        ListColumn::new("took", |stored: &StoredEvent| duration_cell(stored.event.seconds)).only_wide(),
        ListColumn::new("message", |stored: &StoredEvent| {
            describe_stage(stored.event.stage.as_deref(), &stored.event.message)
        })
        .with_prose(),
    ];
    ObjectList { command: "machine", noun: "events", name: |stored| stored.time.clone(), columns }
}

fn history_columns() -> ObjectList<'static, HistoryEntry> {
    let columns = vec![
        ListColumn::new_time("time", |entry: &HistoryEntry| entry.time.clone()),
        ListColumn::new("what", |entry: &HistoryEntry| entry.kind.as_str()),
        ListColumn::new("image", |entry: &HistoryEntry| entry.image.clone().unwrap_or_default()),
        ListColumn::new("order", |entry: &HistoryEntry| entry.order.clone().unwrap_or_default()).only_wide(),
        ListColumn::new("took", |entry: &HistoryEntry| duration_cell(entry.seconds)),
        ListColumn::new("result", |entry: &HistoryEntry| describe_stage(entry.stage.as_deref(), &entry.message))
            .with_prose(),
    ];
    ObjectList { command: "machine", noun: "orders or ended installations", name: |entry| entry.time.clone(), columns }
}

fn duration_cell(seconds: Option<f64>) -> ListCell {
    let order = seconds.map(|seconds| format!("{:.0}", seconds * 1e3));
    ListCell { order, ..ListCell::from(seconds.map(format_seconds).unwrap_or_default()) }
}

/// Returns the first line of a message, preceded by the stage to which the message belongs.
fn describe_stage(stage: Option<&str>, message: &str) -> String {
    let stage = stage.map(|stage| format!("{stage}: ")).unwrap_or_default();
    stage + message.lines().next().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::object_list::format_wide;
    use serde_json::json;

    fn rows(text: &str) -> Vec<Vec<&str>> {
        text.lines().map(|line| line.split("  ").filter(|cell| !cell.is_empty()).map(str::trim).collect()).collect()
    }

    fn event(time: &str, stage: &str) -> StoredEvent {
        serde_json::from_value(json!({"time": time, "event": "Installing", "step": stage, "seconds": 1.5,
            "message": "took\u{1b}[2J 1.5 s"}))
        .unwrap()
    }

    #[test]
    fn events_and_history_are_lists() {
        // The first event is the older one, although its text is greater.
        let events =
            [event("2026-11-28T10:00:00Z", "storage.wipe"), event("2026-11-28T10:00:00.5Z", "storage.partition")];
        let text = format_wide(&event_columns(), &events);
        let all = rows(&text);
        assert_eq!(all[0], ["TIME", "EVENT", "STAGE", "TOOK", "MESSAGE"]);
        assert_eq!(all[1][..4], ["2026-11-28 10:00:00Z", "Installing", "storage.wipe", "1.5 s"]);
        assert!(all[2][2] == "storage.partition" && all[2][4].starts_with("storage.partition: took"), "{text}");
        assert!(!text.contains('\u{1b}'), "{text}");
        let entries = json!([
            {"time": "2026-11-28T10:00:00Z", "kind": "ordered", "image": "debian-13", "order": "o"},
            {"time": "2026-11-28T10:05:00Z", "kind": "failed", "image": "debian-13", "order": "o",
             "stage": "storage.format", "message": "mkfs.ext4: no\nmore", "seconds": 61.0},
        ]);
        let history: Vec<HistoryEntry> = serde_json::from_value(entries).unwrap();
        let text = format_wide(&history_columns(), &history);
        let all = rows(&text);
        assert_eq!(all[1], ["2026-11-28 10:00:00Z", "ordered", "debian-13", "o", "-", "-"]);
        assert_eq!(all[2][1..], ["failed", "debian-13", "o", "1 min 1 s", "storage.format: mkfs.ext4: no"]);
    }

    #[test]
    fn followed_events_are_printed_once() {
        let [one, two] = ["10:00:00", "10:00:01"].map(|clock| event(&format!("2026-11-28T{clock}Z"), "storage.wipe"));
        let events = [one.clone(), two.clone()];
        assert_eq!(find_new_events(&events, None).len(), 2);
        assert_eq!(find_new_events(&events, Some(&one)), std::slice::from_ref(&two));
        assert!(find_new_events(&events, Some(&two)).is_empty());
        assert_eq!(find_new_events(&events, Some(&event("2026-11-27T10:00:00Z", "x"))).len(), 2);
    }
}
