//! `drophammer audit`: prints the audit log of a server.

use super::connection::ServerOptions;
use super::machine_list::machine_name;
use super::message_rewording::reword_message;
use super::{OperatorClient, OperatorResponse, find_machine, print_refusal};
use crate::object_list::{ListCell, ListColumn, ListOptions, ObjectList, print_list_part};
use ::api::audit_log::{AuditChange, AuditEntry, PAGE};
use ::api::operator_api::MachineSummary;
use clap::Args;
use clap::builder::FalseyValueParser;
use common::command_outcome::{CommandOutcome, report_refusal};
use common::error::Result;
use common::format::machine_ids_as_names::replace_machine_ids;
use common::format::{format_count, join_few};
use common::output::{is_output_closed, print_note};
use reqwest::Method;
use serde_json::Value;
use std::time::Duration;
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;

/// Interval between two requests with `--follow`.
const FOLLOW_INTERVAL: Duration = Duration::from_secs(2);

#[derive(Debug, Args)]
pub struct AuditOptions {
    #[command(flatten)]
    pub of: ServerOptions,
    /// Print only requests of this user.
    #[arg(long, value_name = "USER")]
    pub who: Option<String>,
    /// Print only requests for the machine with this id or name, or for another object with this name.
    #[arg(long, value_name = "ID")]
    pub machine: Option<String>,
    /// Print only requests whose action contains this text, such as reinstall or DELETE.
    #[arg(long, value_name = "TEXT")]
    pub action: Option<String>,
    /// Print only entries since this time, such as 2026-11-28 or 2026-11-28T10:00:00Z, or of the last 30m, 2h or 7d.
    #[arg(long, value_name = "TIME", value_parser = parse_since)]
    pub since: Option<String>,
    /// Print at most this number of entries.
    #[arg(long, short = 'n', value_name = "NUMBER", default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..=i64::from(PAGE)))]
    pub limit: u32,
    /// Print new entries until the command is interrupted.
    #[arg(long, short)]
    pub follow: bool,
    #[command(flatten)]
    pub list: ListOptions,
    /// Print one JSON object per line, like `-o json`.
    #[arg(long, env = "DROPHAMMER_JSON", value_parser = FalseyValueParser::new())]
    pub json: bool,
}

/// Prints the entries that match the filters, the oldest first.
///
/// # Errors
/// Fails as [`super::run_machine_command`] does.
pub fn run_audit(options: &AuditOptions) -> Result<CommandOutcome> {
    let server = OperatorClient::new(&options.of)?;
    let machines = fetch_machine_names(&server)?;
    let (mut last, mut is_first) = (None, true);
    loop {
        let mut entries = match request_entries(&server, options, &machines, last)? {
            OperatorResponse::Refused(why) => return Ok(print_refusal(&why)),
            OperatorResponse::Good(entries) => entries,
        };
        if last.is_none() {
            entries.reverse();
        }
        let columns = entry_columns(&machines);
        match print_list_part(&columns, &entries, &options.list, options.json, is_first) {
            Ok(is_printed) => is_first &= !is_printed,
            Err(error) => return report_refusal(Err(error)),
        }
        if is_first && !options.follow && options.list.is_for_readers(options.json)? {
            print_note("No entries that match.");
        }
        if !options.follow || is_output_closed() {
            return Ok(CommandOutcome::Good);
        }
        last = Some(entries.last().map_or(last.unwrap_or_default(), |entry| entry.id));
        std::thread::sleep(FOLLOW_INTERVAL);
    }
}

/// Fetches the machines, whose names are printed in place of their ids. Returns no machines if the user may not list
/// them; ids are then printed.
fn fetch_machine_names(server: &OperatorClient) -> Result<Vec<MachineSummary>> {
    match server.send_json(server.request(Method::GET, "/v1/machines"))? {
        OperatorResponse::Good(machines) => Ok(machines),
        OperatorResponse::Refused(_) => Ok(Vec::new()),
    }
}

fn request_entries(
    server: &OperatorClient,
    options: &AuditOptions,
    machines: &[MachineSummary],
    after: Option<i64>,
) -> Result<OperatorResponse<Vec<AuditEntry>>> {
    let mut query = vec![("limit", options.limit.to_string())];
    // A name that no machine has is sent unchanged: the machine may have been removed, or another object may have this
    // name.
    let machine = options.machine.as_ref().map(|name| match find_machine(machines, name) {
        Ok(machine) => machine.id.clone(),
        Err(_) => name.clone(),
    });
    let filters =
        [("who", &options.who), ("machine", &machine), ("action", &options.action), ("since", &options.since)];
    query.extend(filters.into_iter().filter_map(|(name, value)| Some((name, value.clone()?))));
    query.extend(after.map(|after| ("after", after.to_string())));
    let encoded = query.iter().map(|(name, value)| format!("{name}={}", common::encoding::percent_encode(value, "")));
    let path = format!("/v1/audit?{}", encoded.collect::<Vec<_>>().join("&"));
    server.send_json(server.request(Method::GET, &path))
}

fn entry_columns(machines: &[MachineSummary]) -> ObjectList<'_, AuditEntry> {
    let columns = vec![
        ListColumn::new_time("time", |entry: &AuditEntry| entry.time.clone()),
        ListColumn::new("user", |entry: &AuditEntry| entry.user.clone()),
        ListColumn::new("token", |entry: &AuditEntry| entry.token.clone()).only_wide(),
        ListColumn::new("address", |entry: &AuditEntry| entry.address.clone()).only_wide(),
        ListColumn::new("request", |entry: &AuditEntry| entry.request.clone()).only_wide(),
        ListColumn::new("action", |entry: &AuditEntry| ListCell {
            value: Some(entry.action.clone()),
            ..ListCell::from(describe_action(&entry.action))
        }),
        ListColumn::new("object", |entry: &AuditEntry| ListCell {
            value: Some(entry.object.clone()),
            ..ListCell::from(describe_objects(entry, machines))
        }),
        ListColumn::new("status", |entry: &AuditEntry| {
            entry.status.map_or_else(String::new, |status| status.to_string())
        })
        .only_wide(),
        ListColumn::new("result", |entry: &AuditEntry| describe_result(entry, machines)).with_prose(),
        ListColumn::new("changes", |entry: &AuditEntry| {
            let changes = entry.changes.iter().map(format_change).collect::<Vec<_>>().join("; ");
            replace_machine_ids(&changes, |id| Some(machine_name(machines, id).to_owned()))
        })
        .only_wide(),
    ];
    ObjectList { command: "audit", noun: "entries", name: |entry| entry.id.to_string(), columns }
}

/// Returns the names of the machines that an entry concerns, or the name of another object.
fn describe_objects(entry: &AuditEntry, machines: &[MachineSummary]) -> String {
    let names: Vec<String> = entry.objects().map(|object| machine_name(machines, object).to_owned()).collect();
    join_few(&names, ", ")
}

/// Returns the outcome of a request, with the reason of a refusal in the product's own wording, and the number of
/// changes.
fn describe_result(entry: &AuditEntry, machines: &[MachineSummary]) -> String {
    let outcome = entry.outcome.as_str();
    if !entry.reason.is_empty() {
        return format!("{outcome}: {}", reword_message(&entry.reason, |id| machine_name(machines, id).to_owned()));
    }
    match entry.changes.len() {
        0 => outcome.to_owned(),
        count => format!("{outcome}, {}", format_count(count, "change", "changes")),
    }
}

/// Returns an action without the parts of the route that are the same for all objects: `POST machine reinstall` for
/// `POST /v1/machine/{id}/reinstall`.
fn describe_action(action: &str) -> String {
    let words = action.split([' ', '/']).filter(|word| !word.is_empty() && *word != "v1" && !word.starts_with('{'));
    words.map(|word| if word == "filesystemlayout" { "layout" } else { word }).collect::<Vec<_>>().join(" ")
}

/// Parses the time of `--since`: a date, a time in RFC 3339, or a duration before now, such as `30m`, `2h` or `7d`.
fn parse_since(text: &str) -> std::result::Result<String, String> {
    const EXAMPLES: &str =
        "must be a date, a time or a duration before now: 2026-11-28, 2026-11-28T10:00:00Z, 30m, 2h or 7d";
    let is_date = |text: &str| OffsetDateTime::parse(&format!("{text}T00:00:00Z"), &Rfc3339).is_ok();
    if is_date(text) || OffsetDateTime::parse(text, &Rfc3339).is_ok() {
        return Ok(text.to_owned());
    }
    let unit = text.chars().last().and_then(|unit| match unit {
        'm' => Some(60),
        'h' => Some(3_600),
        'd' => Some(86_400),
        _ => None,
    });
    let count = unit.and_then(|_| text[..text.len() - 1].parse::<u32>().ok());
    let (Some(unit), Some(count)) = (unit, count) else { return Err(EXAMPLES.to_owned()) };
    let since = OffsetDateTime::now_utc().checked_sub(time::Duration::seconds(unit * i64::from(count)));
    since.and_then(|since| since.format(&Rfc3339).ok()).ok_or_else(|| EXAMPLES.to_owned())
}

fn format_change(change: &AuditChange) -> String {
    let text = |value: &Option<Value>| value.as_ref().map_or("(none)".to_owned(), ToString::to_string);
    format!("{}: {} -> {}", change.path, text(&change.before), text(&change.after))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::object_list::format_wide;
    use ::api::audit_log::AuditOutcome;
    use serde_json::json;

    fn entry() -> AuditEntry {
        serde_json::from_value(json!({"id": 7, "time": "2026-11-28T10:00:00.123Z", "user": "ann",
            "token": "ci", "role": "operator", "address": "10.0.0.9", "request": "r1", "method": "POST",
            "path": format!("/v1/machine/{ID}/reinstall"), "action": "POST /v1/machine/{id}/reinstall", "object": ID,
            "outcome": "done", "status": 200, "committed": true,
            "changes": [{"path": format!("machine {ID}: /order"), "after": {"image": "debian\u{1b}[31m"}}]}))
        .unwrap()
    }

    const ID: &str = "4c4c4544-0051-3010-8052-b4c04f4d3132";

    #[test]
    fn entries_are_a_list_with_the_names_of_machines() {
        let machine = MachineSummary { id: ID.to_owned(), name: "storage-7".to_owned(), ..MachineSummary::default() };
        let machines = [machine];
        let text = format_wide(&entry_columns(&machines), &[entry()]);
        let row: Vec<&str> =
            text.lines().nth(1).unwrap().split("  ").map(str::trim).filter(|cell| !cell.is_empty()).collect();
        let expected =
            ["2026-11-28 10:00:00Z", "ann", "ci", "10.0.0.9", "r1", "POST machine reinstall", "storage-7", "200"];
        assert_eq!(row[..8], expected, "{text}");
        assert_eq!(row[8], "done, 1 change");
        assert!(row[9].starts_with("machine storage-7: /order: (none) -> "), "{text}");
        assert!(!text.contains('\u{1b}') && !text.contains(ID), "{text}");
    }

    #[test]
    fn several_machines_are_listed_by_name() {
        let machine = MachineSummary { id: ID.to_owned(), name: "storage-7".to_owned(), ..MachineSummary::default() };
        let entry = AuditEntry { object: format!("{ID}, 4c-2"), ..entry() };
        assert_eq!(describe_objects(&entry, &[machine]), "storage-7, 4c-2");
    }

    #[test]
    fn reasons_are_in_the_products_own_words() {
        let machine = MachineSummary { id: ID.to_owned(), name: "storage-7".to_owned(), ..MachineSummary::default() };
        let reason = format!("filesystemlayout default is in use by machines:[{ID}]");
        let refused = AuditEntry { reason, outcome: AuditOutcome::Refused, ..entry() };
        let expected = "refused: layout default is in use by 1 machine: storage-7";
        assert_eq!(describe_result(&refused, &[machine]), expected);
    }

    #[test]
    fn times_and_durations_are_accepted() {
        for text in ["2026-11-28", "2026-11-28T10:00:00Z", "2026-11-28T10:00:00.5+02:00"] {
            assert_eq!(parse_since(text).as_deref(), Ok(text));
        }
        let week = parse_since("7d").unwrap();
        assert!(OffsetDateTime::parse(&week, &Rfc3339).unwrap() < OffsetDateTime::now_utc(), "{week}");
        for bad in ["", "yesterday", "7", "d", "-7d", "2026-13-01", "7\u{e4}", "4294967296d"] {
            assert!(parse_since(bad).unwrap_err().contains("2026-11-28T10:00:00Z, 30m, 2h or 7d"), "{bad}");
        }
    }

    #[test]
    fn actions_are_described_without_their_objects() {
        for (action, expected) in [
            ("DELETE /v1/users/{name}/tokens/{token}", "DELETE users tokens"),
            ("POST /machines/{id}/cancel", "POST machines cancel"),
            ("POST /login", "POST login"),
            ("DELETE /v1/filesystemlayout/{id}", "DELETE layout"),
        ] {
            assert_eq!(describe_action(action), expected);
        }
    }
}
