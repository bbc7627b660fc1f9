//! `drophammer machine adopt`: lists machines whose install markers describe installations without a record on the
//! server, and records the installations that the operator accepts.

use super::machine_list::name_or_id;
use super::per_machine_requests::send_for_each;
use super::subcommand_options::AdoptOptions;
use super::{OperatorClient, find_machine, print_json, print_refusal};
use api::operator_api::{MachineSummary, NO_MARKER, SHORT_DIGEST_DIGITS};
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
    if let Some(why) = explain_other_markers(all, adopt_options) {
        return Ok(print_refusal(&why));
    }
    let describe = (!json).then_some(&describe_adopted as &dyn Fn(&_, &_) -> _);
    let build = |machine: &MachineSummary| server.request(Method::POST, &adoption_path(machine));
    let (adopted, outcome) = send_for_each(server, all, &adopt_options.machines, &build, describe)?;
    match &adopted[..] {
        [] => {}
        _ if !json => {}
        [one] if adopt_options.machines.len() == 1 => drop(print_json(one)?),
        several => drop(print_json(&several)?),
    }
    Ok(outcome)
}

/// Returns the path of the request that adopts the machine with the listed marker. If the machine reports another
/// marker before the request arrives, the server refuses the request.
fn adoption_path(machine: &MachineSummary) -> String {
    let marker = machine.waits.as_ref().map_or(NO_MARKER, |marker| marker.digest.as_str());
    let query = if marker.is_empty() { String::new() } else { format!("?marker={marker}") };
    format!("/v1/machine/{id}/adopt{query}", id = machine.id)
}

/// Returns the reason why nothing is adopted: the marker of a machine is none of those that the operator has confirmed.
/// Without `--marker`, returns `None`. Unknown machines are refused when the requests are sent.
fn explain_other_markers(all: &[MachineSummary], adopt_options: &AdoptOptions) -> Option<String> {
    let confirmed = &adopt_options.markers;
    if confirmed.is_empty() {
        return None;
    }
    if let Some(short) =
        confirmed.iter().find(|digest| digest.trim_start_matches("sha256:").len() < SHORT_DIGEST_DIGITS)
    {
        return Some(format!("--marker {short}: must have at least {SHORT_DIGEST_DIGITS} hexadecimal digits"));
    }
    let machines = adopt_options.machines.iter().filter_map(|name| find_machine(all, name).ok());
    let is_confirmed = |machine: &&MachineSummary| match &machine.waits {
        Some(marker) => {
            let digest = marker.digest.trim_start_matches("sha256:");
            confirmed.iter().any(|confirmed| digest.starts_with(confirmed.trim_start_matches("sha256:")))
        }
        // The repetition of an adoption is accepted.
        None => machine.adopted,
    };
    let other: Vec<String> = machines.filter(|machine| !is_confirmed(machine)).map(describe_present_marker).collect();
    (!other.is_empty()).then(|| {
        format!(
            "nothing was adopted, because markers have changed since they were listed: {machines}. Compare them with the \
             disks, then run `drophammer machine adopt --waiting` again",
            machines = other.join("; ")
        )
    })
}

/// Describes the marker that the machine has now.
fn describe_present_marker(machine: &MachineSummary) -> String {
    let name = format::terminal_escaping::escape_line(name_or_id(machine));
    match &machine.waits {
        Some(marker) => format!("machine {name} now has the marker of {marker}"),
        None => format!("machine {name} no longer waits with an install marker"),
    }
}

fn describe_adopted(before: &MachineSummary, now: &MachineSummary) -> String {
    let marker = before.waits.as_ref().map(|marker| format!(", with the install marker of {marker}"));
    format!(
        "Allocation {allocation} of {machine} is recorded as installed{marker}. At its next boot over PXE, the machine boots its disks and reports the installation.\n",
        allocation = now.allocation.as_deref().unwrap_or_default(),
        machine = format::terminal_escaping::escape_line(name_or_id(before)),
        marker = marker.unwrap_or_default()
    )
}

/// Lists the waiting machines with their markers, and prints the command that adopts exactly these machines with
/// exactly these markers.
fn format_waiting(waiting: &[&MachineSummary]) -> String {
    if waiting.is_empty() {
        return "No machine has an install marker that can be adopted. Machines report their install markers when they boot over PXE.\n".to_owned();
    }
    let mut rows = vec![
        ["name", "id", "allocation", "marker: image", "marker: time", "marker: disks", "marker: digest"]
            .map(str::to_owned),
    ];
    rows.extend(waiting.iter().map(|machine| {
        let marker = machine.waits.clone().unwrap_or_default();
        let allocation = machine.allocation.clone().unwrap_or_default();
        [
            machine.name.clone(),
            machine.id.clone(),
            allocation,
            format::replace_hidden(&marker.image),
            format::replace_hidden(&marker.time),
            format::replace_hidden(&marker.disks.join(",")),
            marker.short_digest().unwrap_or_default().to_owned(),
        ]
    }));
    let ids: Vec<&str> = waiting.iter().map(|machine| machine.id.as_str()).collect();
    let markers: String = waiting
        .iter()
        .filter_map(|machine| machine.waits.as_ref()?.short_digest())
        .map(|digest| format!(" --marker {digest}"))
        .collect();
    format!(
        "{}\nThe disks of each machine have an install marker of its allocation, but the server has no record of that installation.\n\
         Markers can be forged: adopt only machines that you know were installed.\n  \
         drophammer machine adopt {}{markers}\n",
        format::format_columns(&rows),
        ids.join(" ")
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use api::operator_api::WaitingMarker;

    fn machine(id: &str, image: &str, digit: char) -> MachineSummary {
        let marker = WaitingMarker {
            image: image.to_owned(),
            time: "2026-01-01T00:00:00Z".to_owned(),
            disks: vec!["S1".to_owned(), "S2".to_owned()],
            digest: format!("sha256:{}", digit.to_string().repeat(64)),
        };
        MachineSummary {
            id: id.to_owned(),
            name: format!("storage-{id}"),
            allocation: Some("a1".to_owned()),
            waits: Some(marker),
            ..MachineSummary::default()
        }
    }

    #[test]
    fn waiting_machines_are_listed_with_the_adopt_command() {
        let (one, two) = (machine("4c-1", "debian-12", 'a'), machine("4c-2", "deb\u{1b}[2J", 'b'));
        let text = format_waiting(&[&one, &two]);
        let command = "drophammer machine adopt 4c-1 4c-2 --marker aaaaaaaaaaaaaaaa --marker bbbbbbbbbbbbbbbb\n";
        assert!(text.ends_with(command), "{text}");
        let rows: Vec<Vec<&str>> = text.lines().map(|line| line.split_whitespace().collect()).collect();
        let expected = ["storage-4c-1", "4c-1", "a1", "debian-12", "2026-01-01T00:00:00Z", "S1,S2", "aaaaaaaaaaaaaaaa"];
        assert_eq!(rows[1], expected);
        assert!(!text.contains('\u{1b}'), "{text:?}");
        assert!(format_waiting(&[]).starts_with("No machine has an install marker"));
    }

    #[test]
    fn only_confirmed_markers_are_adopted() {
        let all = [machine("4c-1", "debian-12", 'a'), machine("4c-2", "debian-13", 'b')];
        let explain = |markers: &[&str]| {
            let options = AdoptOptions {
                machines: vec!["4c-1".to_owned(), "storage-4c-2".to_owned()],
                waiting: false,
                markers: markers.iter().map(|marker| (*marker).to_owned()).collect(),
            };
            explain_other_markers(&all, &options)
        };
        assert_eq!(explain(&[]), None);
        assert_eq!(explain(&["bbbbbbbbbbbbbbbb", "sha256:aaaaaaaaaaaaaaaa"]), None);
        let why = explain(&["aaaaaaaaaaaaaaaa", "cccccccccccccccc"]).unwrap();
        assert!(why.contains("storage-4c-2 now has the marker of image debian-13") && !why.contains("4c-1"), "{why}");
        assert!(explain(&["aaaa"]).unwrap().contains("at least 16 hexadecimal digits"));
    }

    #[test]
    fn request_names_the_listed_marker() {
        let listed = machine("4c-1", "debian-12", 'a');
        assert!(adoption_path(&listed).starts_with("/v1/machine/4c-1/adopt?marker=sha256:aaaa"));
        let silent = MachineSummary { waits: None, ..listed.clone() };
        assert_eq!(adoption_path(&silent), "/v1/machine/4c-1/adopt?marker=none");
        let of_earlier_server = MachineSummary { waits: Some(WaitingMarker::default()), ..listed };
        assert_eq!(adoption_path(&of_earlier_server), "/v1/machine/4c-1/adopt");
    }
}
