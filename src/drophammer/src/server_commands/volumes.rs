//! `drophammer volume`: manages the Kubernetes volumes of machines.

use super::machine_list::machine_name;
use super::subcommand_options::{VolumeCommand, VolumeOptions};
use super::watched_output::watch_responses;
use super::{OperatorClient, OperatorResponse, encode_segment, find_machine, print_refusal};
use crate::local_commands::read_text;
use crate::object_list::{
    ListCell, ListColumn, ListOptions, ObjectList, format_for_terminal, print_list, print_object,
};
use api::metal_api::volumes::{VolumeResponse, VolumeState};
use api::operator_api::MachineSummary;
use common::command_outcome::CommandOutcome;
use common::error::Result;
use common::format::format_bytes;
use common::format::terminal_escaping::TextStyle;
use common::output::print_text;
use reqwest::Method;
use site::operator_files::parse_resources;

/// Performs the command and prints the result.
///
/// # Errors
/// Fails as [`super::run_machine_command`] does, or if a file cannot be read.
pub fn run_volume_command(options: &VolumeOptions) -> Result<CommandOutcome> {
    let server = OperatorClient::new(&options.of)?;
    if let VolumeCommand::List { manifests: true, .. } = options.command {
        return match server.send_text(server.request(Method::GET, "/v1/volumes/manifests"))? {
            OperatorResponse::Refused(why) => Ok(print_refusal(&why)),
            OperatorResponse::Good(text) => print_text(&text).map(|()| CommandOutcome::Good),
        };
    }
    if let VolumeCommand::List { list, .. } = &options.command
        && list.watch.watch
    {
        return watch_volumes(&server, &list.list, options.json);
    }
    let machines: Vec<MachineSummary> = match server.send_json(server.request(Method::GET, "/v1/machines"))? {
        OperatorResponse::Good(all) => all,
        OperatorResponse::Refused(why) => return Ok(print_refusal(&why)),
    };
    let request = match &options.command {
        VolumeCommand::List { .. } | VolumeCommand::Show { .. } => server.request(Method::GET, "/v1/volumes"),
        VolumeCommand::Add { machine, file } => {
            let machine = match find_machine(&machines, machine) {
                Ok(machine) => machine,
                Err(why) => return Ok(print_refusal(&why)),
            };
            match parse_resources(&read_text(file)?) {
                Ok(list) => server.request(Method::POST, &format!("/v1/machine/{}/volumes", machine.id)).json(&list),
                Err(why) => {
                    let lines: Vec<String> = why.lines().map(|line| format!("{}:{line}", file.display())).collect();
                    return Ok(print_refusal(&lines.join("\n")));
                }
            }
        }
        VolumeCommand::Delete { machine, volume, persistent_volume } => {
            let machine = match find_machine(&machines, machine) {
                Ok(machine) => machine,
                Err(why) => return Ok(print_refusal(&why)),
            };
            let phase = encode_segment(persistent_volume);
            let phase = phase.trim_start_matches('/');
            let path =
                format!("/v1/machine/{}/volumes{}?persistent_volume={phase}", machine.id, encode_segment(volume));
            server.request(Method::DELETE, &path)
        }
    };
    match server.send_json::<Vec<VolumeResponse>>(request)? {
        OperatorResponse::Refused(why) => Ok(print_refusal(&why)),
        OperatorResponse::Good(all) => print_volumes(options, &machines, &all),
    }
}

/// Fetches all volumes, and the machines, whose names the list contains.
pub(super) fn fetch_volumes(
    server: &OperatorClient,
) -> Result<OperatorResponse<(Vec<MachineSummary>, Vec<VolumeResponse>)>> {
    let machines = match server.send_json(server.request(Method::GET, "/v1/machines"))? {
        OperatorResponse::Good(machines) => machines,
        OperatorResponse::Refused(why) => return Ok(OperatorResponse::Refused(why)),
    };
    let volumes = server.send_json(server.request(Method::GET, "/v1/volumes"))?;
    Ok(volumes.map(|volumes| (machines, volumes)))
}

/// Prints the list of volumes repeatedly.
fn watch_volumes(server: &OperatorClient, list: &ListOptions, json: bool) -> Result<CommandOutcome> {
    let format = |(machines, all): &(Vec<MachineSummary>, Vec<VolumeResponse>)| {
        format_for_terminal(&volume_columns(machines), all, list, json)
    };
    watch_responses(|| fetch_volumes(server), format)
}

fn print_volumes(
    options: &VolumeOptions,
    machines: &[MachineSummary],
    all: &[VolumeResponse],
) -> Result<CommandOutcome> {
    let columns = volume_columns(machines);
    match &options.command {
        VolumeCommand::Show { name, format } => print_object(&columns, all, name, format.show_format(options.json)?),
        VolumeCommand::List { list, .. } => print_list(&columns, all, &list.list, options.json),
        _ => print_list(&columns, all, &ListOptions::default(), options.json),
    }
}

pub(super) fn volume_columns(machines: &[MachineSummary]) -> ObjectList<'_, VolumeResponse> {
    let columns = vec![
        ListColumn::new("name", |volume: &VolumeResponse| volume.name.clone()),
        ListColumn::new("machine", |volume: &VolumeResponse| machine_name(machines, &volume.machine).to_owned()),
        ListColumn::new("kind", |volume: &VolumeResponse| volume.kind.clone()).only_wide(),
        ListColumn::new("state", |volume: &VolumeResponse| {
            let style = match volume.state {
                VolumeState::Failed => Some(TextStyle::Red),
                VolumeState::Pending | VolumeState::Terminating => Some(TextStyle::Yellow),
                VolumeState::Available => Some(TextStyle::Green),
            };
            ListCell { style, ..ListCell::from(volume.state.to_string()) }
        }),
        ListColumn::new("size", |volume: &VolumeResponse| ListCell {
            order: volume.size_bytes.map(|bytes| bytes.to_string()),
            ..ListCell::from(volume.size_bytes.map(format_bytes).unwrap_or_default())
        }),
        ListColumn::new("path", |volume: &VolumeResponse| volume.path.clone()),
        ListColumn::new("message", |volume: &VolumeResponse| volume.message.clone()).with_prose(),
    ];
    ObjectList { command: "volume", noun: "volumes", name: |volume| volume.name.clone(), columns }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::object_list::format_wide;

    #[test]
    fn volumes_are_listed_with_the_names_of_their_machines() {
        let machine = MachineSummary { id: "4c-1".to_owned(), name: "web-1".to_owned(), ..MachineSummary::default() };
        let volume = |name: &str, machine: &str, state, size_bytes| VolumeResponse {
            machine: machine.to_owned(),
            name: name.to_owned(),
            uid: String::new(),
            kind: "rawBlockDevice".to_owned(),
            state,
            message: "m\u{1b}[2J".to_owned(),
            path: String::new(),
            size_bytes,
        };
        let all = [
            volume("db-10", "4c-1", VolumeState::Available, Some(10_000_000_000)),
            volume("db-9", "4c-2", VolumeState::Failed, None),
        ];
        let machines = [machine];
        let mut sorted: Vec<&VolumeResponse> = all.iter().collect();
        volume_columns(&machines).sort(&mut sorted, Some("-size")).unwrap();
        assert_eq!(sorted[0].name, "db-10", "volumes without a size are last");
        let table = format_wide(&volume_columns(&machines), &all);
        let lines: Vec<&str> = table.lines().collect();
        assert_eq!(lines[0], "NAME   MACHINE  KIND            STATE      SIZE     PATH  MESSAGE");
        assert_eq!(lines[1], "db-9   4c-2     rawBlockDevice  Failed     -        -     m [2J");
        assert_eq!(lines[2], "db-10  web-1    rawBlockDevice  Available  10.0 GB  -     m [2J");
    }
}
