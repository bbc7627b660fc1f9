//! `drophammer volume`: Kubernetes volumes of a server's machines.

use super::options::{VolumeCommand, VolumeOptions};
use super::{OperatorClient, OperatorResponse, encode_segment, find_machine, print_json, print_refusal};
use crate::commands::read_text;
use common::error::Result;
use common::exit_status::CommandOutcome;
use common::format::{format_bytes, format_columns, replace_hidden};
use common::output::print_text;
use reqwest::Method;
use server::metal_api::volumes::VolumeResponse;
use server::operator::MachineSummary;
use site::operator_files::parse_resources;

/// Performs the command and prints the result.
///
/// # Errors
/// Fails as [`super::run_machine_command`] does, or if a file cannot be read.
pub fn run_volume_command(options: &VolumeOptions) -> Result<CommandOutcome> {
    let server = OperatorClient::new(&options.of)?;
    if let VolumeCommand::List { manifests: true } = options.command {
        return match server.send_text(server.request(Method::GET, "/v1/volumes/manifests"))? {
            OperatorResponse::Refused(why) => Ok(print_refusal(&why)),
            OperatorResponse::Good(text) => print_text(&text).map(|()| CommandOutcome::Good),
        };
    }
    let machines: Vec<MachineSummary> = match server.send_json(server.request(Method::GET, "/v1/machines"))? {
        OperatorResponse::Good(all) => all,
        OperatorResponse::Refused(why) => return Ok(print_refusal(&why)),
    };
    let request = match &options.command {
        VolumeCommand::List { .. } => server.request(Method::GET, "/v1/volumes"),
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
        VolumeCommand::Rm { machine, volume, persistent_volume } => {
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
        OperatorResponse::Good(all) if options.json => print_json(&all),
        OperatorResponse::Good(all) => print_text(&format_volumes(&all, &machines)).map(|()| CommandOutcome::Good),
    }
}

fn format_volumes(all: &[VolumeResponse], machines: &[MachineSummary]) -> String {
    let name = |id: &str| {
        let listed = machines.iter().find(|machine| machine.id == id && !machine.name.is_empty());
        replace_hidden(listed.map_or(id, |machine| machine.name.as_str()))
    };
    let mut rows = vec![["machine", "volume", "kind", "state", "size", "path", ""].map(str::to_owned)];
    rows.extend(all.iter().map(|volume| {
        let or_dash = |text: String| if text.is_empty() { "-".to_owned() } else { text };
        [
            name(&volume.machine),
            replace_hidden(&volume.name),
            or_dash(replace_hidden(&volume.kind)),
            volume.state.to_string(),
            volume.size_bytes.map_or_else(|| "-".to_owned(), format_bytes),
            or_dash(replace_hidden(&volume.path)),
            replace_hidden(&volume.message),
        ]
    }));
    format_columns(&rows)
}
