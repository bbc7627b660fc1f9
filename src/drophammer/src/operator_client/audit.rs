//! `drophammer audit`: prints the audit log of a server.

use super::options::ServerOptions;
use super::{OperatorClient, OperatorResponse, print_refusal};
use ::api::audit_log::{AuditChange, AuditEntry, PAGE};
use clap::{Args, ValueEnum};
use common::error::{Context, Phase, Result};
use common::exit_status::CommandOutcome;
use common::format::terminal_escaping::escape_line;
use common::output::{is_output_closed, print_text};
use common::timestamp::shorten_time;
use reqwest::Method;
use serde_json::Value;
use std::time::Duration;

/// Interval between two requests of `--follow`.
const FOLLOW_EVERY: Duration = Duration::from_secs(2);

#[derive(Debug, Args)]
pub struct AuditOptions {
    #[command(flatten)]
    pub of: ServerOptions,
    /// Only requests of this user.
    #[arg(long, value_name = "USER")]
    pub who: Option<String>,
    /// Only requests for the machine with this id, or for another object with this name.
    #[arg(long, value_name = "ID")]
    pub machine: Option<String>,
    /// Only actions that contain this text, such as reinstall or DELETE.
    #[arg(long, value_name = "TEXT")]
    pub action: Option<String>,
    /// Only entries since this time, such as 2026-11-28 or 2026-11-28T10:00:00Z.
    #[arg(long, value_name = "TIME")]
    pub since: Option<String>,
    /// Maximum number of entries.
    #[arg(long, short = 'n', value_name = "NUMBER", default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..=i64::from(PAGE)))]
    pub limit: u32,
    /// Print new entries until the command is interrupted.
    #[arg(long, short)]
    pub follow: bool,
    /// Output format: text, or one JSON object per line.
    #[arg(long, short, value_enum, value_name = "FORMAT", default_value = "text")]
    pub output: AuditFormat,
}

/// Output format of the audit log.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum AuditFormat {
    Text,
    Json,
}

/// Prints the entries that match the filters, the oldest first.
///
/// # Errors
/// Fails as [`super::run_machine_command`] does.
pub fn run_audit(options: &AuditOptions) -> Result<CommandOutcome> {
    let server = OperatorClient::new(&options.of)?;
    let mut last = None;
    loop {
        let mut entries = match request_entries(&server, options, last)? {
            OperatorResponse::Refused(why) => return Ok(print_refusal(&why)),
            OperatorResponse::Good(entries) => entries,
        };
        if last.is_none() {
            entries.reverse();
        }
        for entry in &entries {
            print_text(&format_entry(entry, options.output)?)?;
        }
        if !options.follow || is_output_closed() {
            return Ok(CommandOutcome::Good);
        }
        last = Some(entries.last().map_or(last.unwrap_or_default(), |entry| entry.id));
        std::thread::sleep(FOLLOW_EVERY);
    }
}

fn request_entries(
    server: &OperatorClient,
    options: &AuditOptions,
    after: Option<i64>,
) -> Result<OperatorResponse<Vec<AuditEntry>>> {
    let mut query = vec![("limit", options.limit.to_string())];
    let filters =
        [("who", &options.who), ("machine", &options.machine), ("action", &options.action), ("since", &options.since)];
    query.extend(filters.into_iter().filter_map(|(name, value)| Some((name, value.clone()?))));
    query.extend(after.map(|after| ("after", after.to_string())));
    let encoded = query.iter().map(|(name, value)| format!("{name}={}", common::encoding::percent_encode(value, "")));
    let path = format!("/v1/audit?{}", encoded.collect::<Vec<_>>().join("&"));
    server.send_json(server.request(Method::GET, &path))
}

fn format_entry(entry: &AuditEntry, format: AuditFormat) -> Result<String> {
    if format == AuditFormat::Json {
        let line = serde_json::to_string(entry).context(Phase::Control, || "encode an entry as JSON")?;
        return Ok(line + "\n");
    }
    let user = if entry.user.is_empty() { "-" } else { &entry.user };
    let status = entry.status.map(|status| format!(" {status}")).unwrap_or_default();
    let reason = if entry.reason.is_empty() { String::new() } else { format!(": {}", entry.reason) };
    let line = format!(
        "{} {user}/{} {} {} {} {}{status}{reason}",
        shorten_time(&entry.time),
        entry.token,
        entry.address,
        entry.method,
        entry.path,
        entry.outcome.as_str()
    );
    let changes = entry.changes.iter().map(|change| format!("    {}\n", escape_line(&format_change(change))));
    Ok(format!("{}\n{}", escape_line(&line), changes.collect::<String>()))
}

fn format_change(change: &AuditChange) -> String {
    let text = |value: &Option<Value>| value.as_ref().map_or("(none)".to_owned(), ToString::to_string);
    format!("{}: {} -> {}", change.path, text(&change.before), text(&change.after))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn entries_are_printed_as_text_and_as_json_lines() {
        let entry: AuditEntry =
            serde_json::from_value(json!({"id": 7, "time": "2026-11-28T10:00:00.123Z", "user": "ann",
            "token": "ci", "role": "operator", "address": "10.0.0.9", "request": "r1", "method": "POST",
            "path": "/v1/machine/x/reinstall", "action": "POST /v1/machine/{id}/reinstall", "object": "x",
            "outcome": "done", "status": 200, "committed": true,
            "changes": [{"path": "machine x: /order", "after": {"image": "debian\u{1b}[31m"}}]}))
            .unwrap();
        let text = format_entry(&entry, AuditFormat::Text).unwrap();
        assert!(text.starts_with("2026-11-28 10:00:00Z ann/ci 10.0.0.9 POST /v1/machine/x/reinstall done 200\n    machine x: /order: (none) -> "), "{text}");
        assert!(!text.contains('\u{1b}'), "{text}");
        let line = format_entry(&entry, AuditFormat::Json).unwrap();
        assert!(line.ends_with("}\n") && line.lines().count() == 1);
        assert_eq!(serde_json::from_str::<AuditEntry>(&line).unwrap(), entry);
    }
}
