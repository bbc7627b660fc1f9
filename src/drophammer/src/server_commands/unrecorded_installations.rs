//! `drophammer machine adopt`: lists machines whose install markers describe installations without a record on the
//! server, and records the installations that the operator accepts.

use super::per_machine_requests::send_for_each;
use super::subcommand_options::AdoptOptions;
use super::{OperatorClient, print_json};
use api::operator_api::MachineSummary;
use common::command_outcome::CommandOutcome;
use common::error::Result;
use common::format;
use common::output::print_text;
use reqwest::Method;

pub(crate) fn adopt_machines(
    server: &OperatorClient,
    all: &[MachineSummary],
    adopt_options: &AdoptOptions,
    json: bool,
) -> Result<CommandOutcome> {
    if adopt_options.waiting {
        let waiting: Vec<&MachineSummary> = all.iter().filter(|machine| machine.waits.is_some()).collect();
        return match json {
            true => print_json(&waiting),
            false => print_text(&format_waiting(&waiting)).map(|()| CommandOutcome::Good),
        };
    }
    let describe = (!json).then_some(&describe_adopted as &dyn Fn(&_, &_) -> _);
    let build = |machine: &MachineSummary| server.request(Method::POST, &format!("/v1/machine/{}/adopt", machine.id));
    let (adopted, outcome) = send_for_each(server, all, &adopt_options.machines, &build, describe)?;
    match &adopted[..] {
        [] => {}
        _ if !json => {}
        [one] if adopt_options.machines.len() == 1 => drop(print_json(one)?),
        several => drop(print_json(&several)?),
    }
    Ok(outcome)
}

fn describe_adopted(before: &MachineSummary, now: &MachineSummary) -> String {
    format!(
        "Allocation {allocation} of {machine} is recorded as installed. At its next boot over PXE, the machine boots its disks and reports the installation.\n",
        allocation = now.allocation.as_deref().unwrap_or_default(),
        machine =
            format::terminal_escaping::escape_line(if before.name.is_empty() { &before.id } else { &before.name })
    )
}

/// Lists the waiting machines with their markers, and prints the command that adopts exactly these machines, by their
/// ids.
fn format_waiting(waiting: &[&MachineSummary]) -> String {
    if waiting.is_empty() {
        return "No machine has an install marker that can be adopted. Machines report their install markers when they boot over PXE.\n".to_owned();
    }
    let mut rows = vec![["name", "id", "allocation", "marker: image", "marker: time"].map(str::to_owned)];
    rows.extend(waiting.iter().map(|machine| {
        let marker = machine.waits.clone().unwrap_or_default();
        let allocation = machine.allocation.clone().unwrap_or_default();
        [
            machine.name.clone(),
            machine.id.clone(),
            allocation,
            format::replace_hidden(&marker.image),
            format::replace_hidden(&marker.time),
        ]
    }));
    let ids: Vec<&str> = waiting.iter().map(|machine| machine.id.as_str()).collect();
    format!(
        "{}\nThe disks of each machine have an install marker of its allocation, but the server has no record of that installation.\n\
         Markers can be forged: adopt only machines that you know were installed.\n  \
         drophammer machine adopt {}\n",
        format::format_columns(&rows),
        ids.join(" ")
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use api::operator_api::WaitingMarker;

    #[test]
    fn waiting_machines_are_listed_with_the_adopt_command() {
        let machine = |id: &str, image: &str| MachineSummary {
            id: id.to_owned(),
            name: format!("storage-{id}"),
            allocation: Some("a1".to_owned()),
            waits: Some(WaitingMarker { image: image.to_owned(), time: "2026-01-01T00:00:00Z".to_owned() }),
            ..MachineSummary::default()
        };
        let (one, two) = (machine("4c-1", "debian-12"), machine("4c-2", "deb\u{1b}[2J"));
        let text = format_waiting(&[&one, &two]);
        assert!(text.ends_with("drophammer machine adopt 4c-1 4c-2\n"), "{text}");
        let rows: Vec<Vec<&str>> = text.lines().map(|line| line.split_whitespace().collect()).collect();
        assert_eq!(rows[1], ["storage-4c-1", "4c-1", "a1", "debian-12", "2026-01-01T00:00:00Z"]);
        assert!(!text.contains('\u{1b}'), "{text:?}");
        assert!(format_waiting(&[]).starts_with("No machine has an install marker"));
    }
}
