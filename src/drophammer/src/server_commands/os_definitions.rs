//! `drophammer os`: the OS definitions of a server.

use super::connection::ServerOptions;
use super::subcommand_options::ParameterOptions;
use super::watched_output::{WatchedListOptions, print_watched_list};
use super::{OperatorClient, OperatorResponse, encode_segment, print_json, print_refusal};
use crate::object_list::{ListCell, ListColumn, ObjectList, RecordOptions, print_value};
use api::metal_api::os_definitions::{OsDefinitionResponse, OsMachineResponse};
use api::metal_api::os_parameters::{OsParameterChanges, StoredOsParameters};
use clap::builder::FalseyValueParser;
use clap::{Args, Subcommand};
use common::command_outcome::CommandOutcome;
use common::error::Result;
use common::format::terminal_escaping::TextStyle;
use common::format::{format_columns, replace_hidden};
use common::output::print_text;
use model::ganeti_os_definition::{parse_changes, split_changes};
use reqwest::Method;

#[derive(Debug, Args)]
pub struct OsOptions {
    #[command(subcommand)]
    pub command: OsCommand,
    #[command(flatten)]
    pub of: ServerOptions,
    /// Print the server's response as JSON.
    #[arg(long, global = true, env = "DROPHAMMER_JSON", value_parser = FalseyValueParser::new())]
    pub json: bool,
}

#[derive(Debug, Subcommand)]
pub enum OsCommand {
    /// List the OS definitions: os_version, image, variants, parameters, state.
    #[command(visible_alias = "ls")]
    List {
        /// Include hidden and blacklisted definitions.
        #[arg(long, env = "DROPHAMMER_ALL", value_parser = FalseyValueParser::new())]
        all: bool,
        #[command(flatten)]
        list: WatchedListOptions,
    },
    /// Show an OS definition: the descriptions of its parameters, and the machines that use the definition, each with
    /// the os_version from which it was installed.
    Show {
        /// Name of the OS definition.
        #[arg(value_name = "NAME")]
        name: String,
        #[command(flatten)]
        format: RecordOptions,
    },
    /// Change the parameters for all machines with a definition or a variant. Parameters of a definition that does
    /// not exist yet are stored unchecked.
    Modify {
        /// Name of the definition, or NAME+VARIANT.
        #[arg(value_name = "NAME")]
        name: String,
        #[command(flatten)]
        parameters: ParameterOptions,
    },
}

/// Performs the command and prints the result.
///
/// # Errors
/// Fails as [`super::run_machine_command`] does.
pub fn run_os_command(options: &OsOptions) -> Result<CommandOutcome> {
    let server = OperatorClient::new(&options.of)?;
    match &options.command {
        OsCommand::List { all, list } => {
            let path = format!("/v1/os?hidden={all}&blacklisted={all}");
            let fetch = || server.send_json(server.request(Method::GET, &path));
            print_watched_list(&definition_columns(), list, options.json, fetch)
        }
        OsCommand::Modify { name, parameters } => {
            let path = format!("/v1/os{}/parameters", encode_segment(name));
            change_parameters(&server, &path, parameters, options.json)
        }
        OsCommand::Show { name, format } => {
            let path = format!("/v1/os{}", encode_segment(name));
            match server.send_json::<OsDefinitionResponse>(server.request(Method::GET, &path))? {
                OperatorResponse::Refused(why) => Ok(print_refusal(&why)),
                OperatorResponse::Good(shown) => {
                    print_value(&shown, format.show_format(options.json)?, format_definition)
                }
            }
        }
    }
}

/// Changes the parameters at an endpoint of the server, and prints the names of the parameters that are set now.
///
/// # Errors
/// Fails as [`super::run_machine_command`] does.
pub(super) fn change_parameters(
    server: &OperatorClient,
    path: &str,
    parameter_options: &ParameterOptions,
    json: bool,
) -> Result<CommandOutcome> {
    let changes: Vec<String> = parameter_options.os_parameters.iter().flat_map(|text| split_changes(text)).collect();
    if changes.is_empty() {
        return Ok(print_refusal(
            "nothing to change: specify -O KEY=VALUE to set a parameter, or -O -KEY to delete one",
        ));
    }
    if let Err(why) = parse_changes(&changes) {
        return Ok(print_refusal(&format!("-O: {why}")));
    }
    let request = server.request(Method::POST, path).json(&OsParameterChanges { changes });
    match server.send_json::<StoredOsParameters>(request)? {
        OperatorResponse::Refused(why) => Ok(print_refusal(&why)),
        OperatorResponse::Good(stored) if json => print_json(&stored),
        OperatorResponse::Good(stored) => {
            let names = if stored.parameters.is_empty() { "none".to_owned() } else { stored.parameters.join(", ") };
            print_text(&format!("Stored parameters of {}: {}.\n", replace_hidden(&stored.os), replace_hidden(&names)))
                .map(|()| CommandOutcome::Good)
        }
    }
}

fn or_dash(text: &str) -> String {
    if text.is_empty() { "-".to_owned() } else { replace_hidden(text) }
}

fn format_source(shown: &OsDefinitionResponse) -> String {
    match (&shown.image, &shown.problem) {
        (Some(image), _) => format!("image {}", replace_hidden(image)),
        (None, None) => "create".to_owned(),
        (None, Some(_)) => String::new(),
    }
}

fn format_state(shown: &OsDefinitionResponse) -> String {
    let states = [(shown.hidden, "hidden"), (shown.blacklisted, "blacklisted"), (shown.problem.is_some(), "invalid")];
    states.into_iter().filter(|(is_set, _)| *is_set).map(|(_, name)| name).collect::<Vec<_>>().join(", ")
}

pub(super) fn definition_columns() -> ObjectList<'static, OsDefinitionResponse> {
    let columns = vec![
        ListColumn::new("name", |shown: &OsDefinitionResponse| shown.name.clone()),
        ListColumn::new("os_version", |shown: &OsDefinitionResponse| shown.os_version.clone().unwrap_or_default()),
        ListColumn::new("from", |shown: &OsDefinitionResponse| format_source(shown)),
        ListColumn::new("variants", |shown: &OsDefinitionResponse| shown.variants.join(", ")),
        ListColumn::new("parameters", |shown: &OsDefinitionResponse| {
            let names = shown.parameters.iter().map(|parameter| parameter.name.as_str());
            names.collect::<Vec<_>>().join(", ")
        }),
        ListColumn::new("state", |shown: &OsDefinitionResponse| ListCell {
            style: shown.problem.is_some().then_some(TextStyle::Red),
            ..ListCell::from(format_state(shown))
        }),
    ];
    ObjectList { command: "os", noun: "OS definitions", name: |shown| shown.name.clone(), columns }
}

fn format_definition(shown: &OsDefinitionResponse) -> String {
    let state = format_state(shown);
    let rows = [
        ("name", replace_hidden(&shown.name)),
        ("os_version", or_dash(shown.os_version.as_deref().unwrap_or_default())),
        ("interface", shown.api.map_or_else(|| "-".to_owned(), |api| api.to_string())),
        ("from", or_dash(&format_source(shown))),
        ("variants", or_dash(&shown.variants.join(", "))),
        ("state", if state.is_empty() { "listed".to_owned() } else { state }),
    ];
    let mut text = format_columns(&rows.map(|(name, value)| [name.to_owned(), value]));
    for problem in shown.problem.iter().flat_map(|problem| problem.lines()) {
        text += &format!("problem: {}\n", replace_hidden(problem));
    }
    if !shown.parameters.is_empty() {
        let mut rows = vec![["parameter", "description"].map(str::to_owned)];
        let row = |name: &str, description: &str| [replace_hidden(name), replace_hidden(description)];
        rows.extend(shown.parameters.iter().map(|parameter| row(&parameter.name, &parameter.description)));
        text += &format!("\n{}", format_columns(&rows));
    }
    for (os, names) in &shown.preset {
        text += &format!(
            "\nParameters that are set for all machines with OS definition {os}: {parameters}\n",
            os = replace_hidden(os),
            parameters = or_dash(&names.join(", "))
        );
    }
    let machines = shown.machines.as_deref().unwrap_or_default();
    if machines.is_empty() { text } else { text + "\n" + &format_machines(machines, shown.os_version.as_deref()) }
}

/// Formats the machines that use the definition. `now` is the definition's current `os_version`.
fn format_machines(machines: &[OsMachineResponse], now: Option<&str>) -> String {
    let mut rows = vec![["machine", "os", "installed", "os_version", ""].map(str::to_owned)];
    rows.extend(machines.iter().map(|machine| {
        let name = if machine.name.is_empty() { &machine.id } else { &machine.name };
        let is_old = machine.installed_os.is_some() && machine.installed_os_version.as_deref() != now;
        [
            replace_hidden(name),
            replace_hidden(&machine.os),
            or_dash(machine.installed_os.as_deref().unwrap_or_default()),
            or_dash(machine.installed_os_version.as_deref().unwrap_or_default()),
            if is_old { "differs".to_owned() } else { String::new() },
        ]
    }));
    format_columns(&rows)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::object_list::format_wide;
    use api::metal_api::os_definitions::OsParameterResponse;

    fn web() -> OsDefinitionResponse {
        let parameter = |name: &str, description: &str| OsParameterResponse {
            name: name.to_owned(),
            description: description.to_owned(),
        };
        let machine = |name: &str, version: Option<&str>| OsMachineResponse {
            id: format!("id-{name}"),
            name: name.to_owned(),
            os: "web".to_owned(),
            installed_os: version.map(|_| "web+small".to_owned()),
            installed_os_version: version.map(str::to_owned),
        };
        OsDefinitionResponse {
            name: "web".to_owned(),
            os_version: Some("3\u{1b}[2J".to_owned()),
            api: Some(20),
            image: Some("debian-12".to_owned()),
            variants: vec!["small".to_owned(), "large".to_owned()],
            parameters: vec![parameter("ns1", "the first name server"), parameter("proxy", "")],
            preset: [("web+large".to_owned(), vec!["ns1".to_owned()])].into(),
            hidden: true,
            machines: Some(vec![machine("web-1", Some("2")), machine("web-2", None)]),
            ..OsDefinitionResponse::default()
        }
    }

    #[test]
    fn definitions_are_listed() {
        let broken = OsDefinitionResponse {
            name: "broken".to_owned(),
            problem: Some("verify is missing".to_owned()),
            ..OsDefinitionResponse::default()
        };
        let table = format_wide(&definition_columns(), &[broken, web()]);
        let lines: Vec<&str> = table.lines().collect();
        assert_eq!(lines[1].split_whitespace().collect::<Vec<_>>(), ["broken", "-", "-", "-", "-", "invalid"]);
        assert!(lines[2].starts_with("web     3 [2J ") && lines[2].ends_with("ns1, proxy  hidden"), "{}", lines[2]);
    }

    #[test]
    fn a_definition_is_shown_with_its_parameters_and_machines() {
        let text = format_definition(&web());
        for expected in [
            "ns1        the first name server",
            "Parameters that are set for all machines with OS definition web+large: ns1",
            "web-1    web  web+small",
        ] {
            assert!(text.contains(expected), "{expected}\n{text}");
        }
        let line = |name: &str| text.lines().find(|line| line.starts_with(name)).unwrap().trim_end();
        assert!(line("web-1").ends_with("2           differs") && line("web-2").ends_with('-'), "{text}");
    }
}
