//! `drophammer volume`: Kubernetes volumes of a server's machines.

use super::options::{VolumeCommand, VolumeOptions};
use super::{Answer, Server, find, print_json, refused, step};
use crate::error::{Context, Phase, Result};
use crate::exit::Exit;
use crate::serve::operator::Listed;
use crate::serve::v1::volumes::{VolumeShown, written};
use crate::stdout::print;
use crate::text::{bytes, clean, columns};
use reqwest::Method;

/// Performs the command and prints the result.
///
/// # Errors
/// As [`super::run`], or a file cannot be read.
pub fn run(options: &VolumeOptions) -> Result<Exit> {
    let server = Server::new(&options.of)?;
    if let VolumeCommand::List { manifests: true } = options.command {
        return match server.text(server.request(Method::GET, "/v1/volumes/manifests"))? {
            Answer::Refused(why) => Ok(refused(&why)),
            Answer::Good(text) => print(&text).map(|()| Exit::Good),
        };
    }
    let machines: Vec<Listed> = match server.ask(server.request(Method::GET, "/v1/machines"))? {
        Answer::Good(all) => all,
        Answer::Refused(why) => return Ok(refused(&why)),
    };
    let request = match &options.command {
        VolumeCommand::List { .. } => server.request(Method::GET, "/v1/volumes"),
        VolumeCommand::Add { machine, file } => {
            let machine = match find(&machines, machine) {
                Ok(machine) => machine,
                Err(why) => return Ok(refused(&why)),
            };
            let text = std::fs::read_to_string(file).context(Phase::Settings, || format!("read {}", file.display()))?;
            match written(&text) {
                Ok(list) => server.request(Method::POST, &format!("/v1/machine/{}/volumes", machine.id)).json(&list),
                Err(why) => return Ok(refused(&format!("{}:{why}", file.display()))),
            }
        }
        VolumeCommand::Rm { machine, volume, persistent_volume } => {
            let machine = match find(&machines, machine) {
                Ok(machine) => machine,
                Err(why) => return Ok(refused(&why)),
            };
            let phase = step(persistent_volume);
            let phase = phase.trim_start_matches('/');
            let path = format!("/v1/machine/{}/volumes{}?persistent_volume={phase}", machine.id, step(volume));
            server.request(Method::DELETE, &path)
        }
    };
    match server.ask::<Vec<VolumeShown>>(request)? {
        Answer::Refused(why) => Ok(refused(&why)),
        Answer::Good(all) if options.json => print_json(&all),
        Answer::Good(all) => print(&table(&all, &machines)).map(|()| Exit::Good),
    }
}

fn table(all: &[VolumeShown], machines: &[Listed]) -> String {
    let name = |id: &str| {
        let listed = machines.iter().find(|machine| machine.id == id && !machine.name.is_empty());
        clean(listed.map_or(id, |machine| machine.name.as_str()))
    };
    let mut rows = vec![["machine", "volume", "kind", "state", "size", "path", ""].map(str::to_owned)];
    rows.extend(all.iter().map(|volume| {
        let or_dash = |text: String| if text.is_empty() { "-".to_owned() } else { text };
        [
            name(&volume.machine),
            clean(&volume.name),
            or_dash(clean(&volume.kind)),
            volume.state.to_string(),
            volume.size_bytes.map_or_else(|| "-".to_owned(), bytes),
            or_dash(clean(&volume.path)),
            clean(&volume.message),
        ]
    }));
    columns(&rows)
}
