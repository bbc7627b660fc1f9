//! `drophammer machine list`: columns of the list, and a sentence with the most important information about each
//! machine.

use super::watched_output::{WatchedListOptions, watch_responses};
use super::{OperatorClient, OperatorResponse, server_problems};
use crate::object_list::{ListCell, ListColumn, ObjectList, format_for_terminal, print_list};
use ::api::display_phase::{DisplayPhase, FILE_ERROR, ObjectFate};
use ::api::operator_api::{MachineSummary, ReinstallOrder, WaitingMarker};
use ::api::out_of_band::progress::OutOfBandProgress;
use common::command_outcome::CommandOutcome;
use common::encoding::percent_encode;
use common::error::Result;
use common::format;
use common::format::terminal_escaping::TextStyle;
use common::output::print_note;
use model::install_report::EventName;
use reqwest::Method;
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;

/// Fetches the machines for a list. The server applies the filters that it supports; a server of an earlier version
/// returns all machines. All machines are also requested if the list must contain the names of machines in a migration.
///
/// # Errors
/// Returns an error if the server cannot be reached, rejects the token, or fails.
pub(super) fn fetch_machines(
    server: &OperatorClient,
    list_options: &WatchedListOptions,
) -> Result<OperatorResponse<Vec<MachineSummary>>> {
    let query = filter_query(&list_options.list.filter);
    if !query.is_empty() {
        match server.send_json(server.request(Method::GET, &format!("/v1/machines{query}")))? {
            OperatorResponse::Good(selected) => {
                let selected: Vec<MachineSummary> = selected;
                if selected.iter().all(|machine| machine.moving.is_none()) {
                    return Ok(OperatorResponse::Good(selected));
                }
            }
            refused => return Ok(refused),
        }
    }
    server.send_json(server.request(Method::GET, "/v1/machines"))
}

/// Returns the query with the filters that the server can apply: one phase, and one image without `*`. This program
/// applies all filters again to the response.
fn filter_query(filters: &[String]) -> String {
    let mut query = String::new();
    for name in ["phase", "image"] {
        let values = filters.iter().filter_map(|filter| filter.split_once('='));
        let mut values = values.filter(|(key, _)| key.eq_ignore_ascii_case(name)).map(|(_, value)| value);
        if let (Some(value), None) = (values.next(), values.next())
            && !value.is_empty()
            && value != "-"
            && !value.contains(['*', ','])
        {
            let separator = if query.is_empty() { '?' } else { '&' };
            query += &format!("{separator}{name}={}", percent_encode(value, ""));
        }
    }
    query
}

/// Prints the machines, repeatedly with `--watch`.
pub(super) fn list_machines(
    server: &OperatorClient,
    all: &[MachineSummary],
    list_options: &WatchedListOptions,
    json: bool,
) -> Result<CommandOutcome> {
    let is_for_readers = list_options.list.is_for_readers(json)?;
    let output = list_options.list.output_format(json)?;
    if !list_options.watch.watch {
        if is_for_readers {
            server_problems::print_problems(server, output);
        }
        if is_for_readers && all.is_empty() && list_options.list.filter.is_empty() {
            print_note(
                "No machines. A machine is listed here after its first boot over PXE, or as soon as it has a machine file.",
            );
            return Ok(CommandOutcome::Good);
        }
        return print_list(&machine_columns(all, OffsetDateTime::now_utc()), all, &list_options.list, json);
    }
    let format = |all: &Vec<MachineSummary>| {
        let problems = if is_for_readers { server_problems::format_problems(server, output) } else { String::new() };
        let columns = machine_columns(all, OffsetDateTime::now_utc());
        format_for_terminal(&columns, all, &list_options.list, json).map(|list| problems + &list)
    };
    watch_responses(|| fetch_machines(server, list_options), format)
}

pub(super) fn machine_columns(all: &[MachineSummary], now: OffsetDateTime) -> ObjectList<'_, MachineSummary> {
    let columns = vec![
        ListColumn::new("name", |machine: &MachineSummary| name_or_id(machine).to_owned()),
        ListColumn::new("id", |machine: &MachineSummary| machine.id.clone()).only_wide(),
        ListColumn::new("phase", describe_phase),
        ListColumn::new("project", |machine: &MachineSummary| machine.project.clone().unwrap_or_default()).only_wide(),
        ListColumn::new("size", |machine: &MachineSummary| machine.size.clone().unwrap_or_default()).only_wide(),
        ListColumn::new("image", installed_image),
        ListColumn::new("wanted", |machine: &MachineSummary| machine.wanted.clone().unwrap_or_default()).only_wide(),
        ListColumn::new("layout", |machine: &MachineSummary| machine.layout.clone().unwrap_or_default()).only_wide(),
        ListColumn::new("address", |machine: &MachineSummary| machine.address.clone().unwrap_or_default()).only_wide(),
        ListColumn::new("seen", move |machine: &MachineSummary| describe_last_seen(machine, now)),
        ListColumn::new("message", |machine: &MachineSummary| describe_machine(machine, all)).with_prose(),
    ];
    ObjectList { command: "machine", noun: "machines", name: |machine| name_or_id(machine).to_owned(), columns }
}

/// Returns the name of a machine, or its id if it has no name.
pub(super) fn name_or_id(machine: &MachineSummary) -> &str {
    if machine.name.is_empty() { &machine.id } else { &machine.name }
}

fn describe_phase(machine: &MachineSummary) -> ListCell {
    let phase = DisplayPhase::of_machine(machine, machine.current_event());
    let style = match phase.kind {
        ObjectFate::Bad => Some(TextStyle::Red),
        ObjectFate::Busy => Some(TextStyle::Yellow),
        ObjectFate::Good => Some(TextStyle::Green),
        ObjectFate::Idle => None,
    };
    ListCell { style, ..ListCell::from(phase.word) }
}

/// Returns the time since the last request of the machine, such as `3 min ago`. The most recent request is sorted
/// first.
fn describe_last_seen(machine: &MachineSummary, now: OffsetDateTime) -> ListCell {
    let Some(time) = machine.last_seen.as_deref().filter(|time| !time.is_empty()) else { return ListCell::default() };
    let Ok(seen) = OffsetDateTime::parse(time, &Rfc3339) else { return ListCell::from(time) };
    let seconds = u64::try_from((now - seen).whole_seconds()).unwrap_or_default();
    ListCell { order: Some(seconds.to_string()), ..ListCell::from(format::format_age(seconds)) }
}

/// Returns the most important information about the machine: the error of its file, the reason for a failure, the stage
/// of a running installation, and the reinstall order or migration.
fn describe_machine(machine: &MachineSummary, all: &[MachineSummary]) -> String {
    if machine.new {
        return machine.address.as_deref().map(|address| format!("registered from {address}")).unwrap_or_default();
    }
    let file_error = machine.file_error.as_ref().map(|error| match machine.unusable {
        true => error.clone(),
        false => format!("{FILE_ERROR}: {error}"),
    });
    let state = describe_state(machine, all);
    file_error.into_iter().chain([state]).filter(|part| !part.is_empty()).collect::<Vec<_>>().join("; ")
}

/// Describes the failure, the running installation, and the reinstall order or migration.
fn describe_state(machine: &MachineSummary, all: &[MachineSummary]) -> String {
    let order = describe_order(machine, all);
    if let Some(failure) = &machine.failure {
        // The code precedes the reason, because the table may truncate a long reason.
        let code = failure.attempt.code.as_ref().map(|code| format!("{code}: ")).unwrap_or_default();
        let reason = code + &failure.attempt.to_string();
        return [reason, order].into_iter().filter(|part| !part.is_empty()).collect::<Vec<_>>().join("; ");
    }
    let phase = DisplayPhase::of_machine(machine, machine.current_event());
    let is_running = matches!(phase.word, "installing" | "failed");
    let event = machine.last_event.as_ref().filter(|_| is_running).map(|event| match &event.stage {
        Some(stage) if event.event != EventName::Crashed && !event.message.is_empty() => {
            format!("{stage}: {}", event.message)
        }
        Some(stage) if event.message.is_empty() => stage.clone(),
        _ => event.message.clone(),
    });
    let failure = machine.outcome.as_ref().filter(|outcome| !outcome.success).map(|outcome| {
        format!(
            "the reinstall with {image} has failed: {message}",
            image = outcome.image,
            message = outcome.message.lines().next().unwrap_or_default()
        )
    });
    let parts = event.into_iter().chain([order]).chain(failure).filter(|part| !part.is_empty());
    parts.collect::<Vec<_>>().join("; ")
}

pub(super) fn describe_order(machine: &MachineSummary, all: &[MachineSummary]) -> String {
    if let Some(moving) = &machine.moving {
        return moving.describe(machine_name(all, &moving.other));
    }
    if machine.new {
        return "new".to_owned();
    }
    match (&machine.order, &machine.locked) {
        (Some(order), _) if order.is_suspended() => format!("{} suspended", order.image),
        (Some(order), _) if order.given_up => format!("{} abandoned", order.image),
        _ if machine.out_of_band.is_some() => {
            machine.out_of_band.as_ref().map(OutOfBandProgress::describe).unwrap_or_default()
        }
        (order, _) if machine.needs_confirmation => describe_unconfirmed(order.as_ref(), machine.on_disk.as_ref()),
        (Some(order), _) if order.attempts == 0 => format!("{} at the next boot over PXE", order.image),
        (Some(order), _) => {
            let started = if order.started { ", started" } else { "" };
            let applied = if order.apply_allocation { ", applies the file" } else { "" };
            format!(
                "{image} attempt {attempt} of {attempts}{started}{applied}",
                image = order.image,
                attempt = order.attempts,
                attempts = machine.attempts
            )
        }
        (None, Some(why)) => format!("locked: {why}"),
        (None, None) if machine.not_clean => {
            "the system of the previous tenant may still run: boot the machine over PXE".to_owned()
        }
        (None, None) if machine.waits.is_some() => "waits with a marker".to_owned(),
        (None, None) => String::new(),
    }
}

/// Describes a machine that needs confirmation: its reinstall order, and the installation on its disks that the server
/// has not recorded.
fn describe_unconfirmed(order: Option<&ReinstallOrder>, on_disk: Option<&WaitingMarker>) -> String {
    let order = order.map(|order| format!("{} ", order.image)).unwrap_or_default();
    let on_disk =
        on_disk.map(|found| format!(", its disks have {}", format::replace_hidden(&found.image))).unwrap_or_default();
    format!("{order}needs confirmation{on_disk}")
}

/// Returns the name of the machine with this id, or the id if the machine has no name.
pub(super) fn machine_name<'a>(all: &'a [MachineSummary], id: &'a str) -> &'a str {
    let named = all.iter().find(|machine| machine.id == id && !machine.name.is_empty());
    named.map_or(id, |machine| machine.name.as_str())
}

/// Returns the installed image. The image is marked as `(claimed)` if it is known only from an install marker that the
/// operator has adopted. Filters match the image with and without this mark.
fn installed_image(machine: &MachineSummary) -> ListCell {
    let image = machine.image.clone().unwrap_or_default();
    match machine.claimed {
        true => ListCell { value: Some(image.clone()), ..ListCell::from(format!("{image} (claimed)")) },
        false => ListCell::from(image),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_server_applies_plain_filters_only() {
        for (filters, expected) in [
            (&[][..], ""),
            (&["phase=failed"][..], "?phase=failed"),
            (&["Phase=not installed", "image=debian-12"], "?phase=not%20installed&image=debian-12"),
            (&["image=a&b=c"], "?image=a%26b%3Dc"),
            (&["phase=inst*", "image=", "name=one"], ""),
            (&["image=-"], ""),
            (&["phase=failed,waiting", "image=debian-12"], "?image=debian-12"),
            (&["phase=failed", "phase=new"], ""),
        ] {
            let filters: Vec<String> = filters.iter().map(|filter| (*filter).to_owned()).collect();
            assert_eq!(filter_query(&filters), expected, "{filters:?}");
        }
    }
}
