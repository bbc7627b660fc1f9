//! Completion of names of machines, images, layouts, rollouts, sizes, deploy templates, OS definitions, volumes,
//! users, tokens and contexts, and of filters. The completion scripts run the hidden command `complete` for each
//! completion. The server has a second to respond; all failures are silent, so that the command line is not
//! disturbed.
//!
//! The dynamic completion of `clap_complete` is not used, because it requires the feature `unstable-dynamic`.

#[cfg(test)]
mod tests;

use crate::cli::Cli;
use crate::client_config::ClientConfig;
use crate::server_commands::connection::find_config_path;
use crate::server_commands::filter_completion::complete_filter;
use crate::server_commands::{OperatorClient, OperatorResponse, ServerOptions};
use clap::{Arg, Command, CommandFactory};
use common::command_outcome::CommandOutcome;
use common::encoding::percent_encode;
use common::error::Result;
use common::output::print_text;
use reqwest::Method;
use serde_json::Value;
use std::path::PathBuf;
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

/// Time limit for the response of the server.
const RESPONSE_TIMEOUT: Duration = Duration::from_secs(1);

/// Types of objects whose names can be completed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum NamedObject {
    Machine,
    Image,
    Layout,
    Rollout,
    Size,
    Template,
    OsDefinition,
    Volume,
    User,
    /// Token of the user that an earlier argument names.
    Token,
    Context,
    /// Value of `--filter`.
    Filter,
}

/// Position in a command line at which a name is expected.
#[derive(Debug)]
struct NamePosition {
    object: NamedObject,
    /// First word of the command.
    noun: String,
    /// First positional argument; empty if there is none before the name.
    subject: String,
    /// Beginning of the name that was typed so far.
    prefix: String,
    /// Options of the command line that select the server.
    server: ServerOptions,
}

/// Prints the names that can complete a command line, one per line. Prints nothing if the command line does not expect
/// a name.
///
/// # Errors
/// Returns an error if standard output cannot be written.
pub fn print_names(line: &str) -> Result<CommandOutcome> {
    let Some(position) = find_position(line) else { return Ok(CommandOutcome::Good) };
    let (sender, receiver) = mpsc::channel();
    // If the server does not respond in time, the thread ends with the program.
    drop(thread::spawn(move || sender.send(find_names(&position).unwrap_or_default())));
    let names = receiver.recv_timeout(RESPONSE_TIMEOUT).unwrap_or_default();
    print_text(&names.iter().map(|name| format!("{name}\n")).collect::<String>()).map(|()| CommandOutcome::Good)
}

/// Returns the names that can complete a command line.
///
/// # Errors
/// Returns an error if the server cannot be reached.
pub fn complete_line(line: &str) -> Result<Vec<String>> {
    find_position(line).map_or(Ok(Vec::new()), |position| find_names(&position))
}

/// Determines which type of name is expected at the end of a command line.
fn find_position(line: &str) -> Option<NamePosition> {
    let mut words: Vec<&str> = line.split_whitespace().skip(1).collect();
    let prefix = if line.ends_with(char::is_whitespace) { "" } else { words.pop()? };
    let mut root = Cli::command();
    root.build();
    let (mut command, mut path, mut positionals) = (&root, Vec::new(), Vec::new());
    let (mut pending, mut server) = (None, ServerOptions::default());
    for word in words {
        if let Some(option) = pending.take() {
            select_server(&mut server, option, word);
        } else if let Some(name) = word.strip_prefix('-') {
            let (name, value) = name.split_once('=').map_or((name, None), |(name, value)| (name, Some(value)));
            let option = find_option(command, name).filter(|option| option.get_action().takes_values());
            match (option, value) {
                (Some(option), Some(value)) => select_server(&mut server, option, value),
                (option, _) => pending = option,
            }
        } else if let Some(below) = command.find_subcommand(word) {
            path.push(below.get_name());
            command = below;
            positionals.clear();
        } else {
            positionals.push(word);
        }
    }
    let argument = match pending {
        Some(option) => option,
        None if prefix.starts_with('-') => return None,
        None => find_positional(command, positionals.len())?,
    };
    Some(NamePosition {
        object: classify_argument(argument, &path)?,
        noun: (*path.first()?).to_owned(),
        subject: positionals.first().map(|word| (*word).to_owned()).unwrap_or_default(),
        prefix: prefix.to_owned(),
        server,
    })
}

/// Finds an option by its name without the first hyphen, such as `-server` or `o`.
fn find_option<'a>(command: &'a Command, name: &str) -> Option<&'a Arg> {
    command.get_arguments().find(|option| match name.strip_prefix('-') {
        Some(long) => option.get_long() == Some(long),
        None => option.get_short().is_some() && option.get_short() == name.chars().last(),
    })
}

/// Returns the positional argument with this index. The last argument may have several values.
fn find_positional(command: &Command, index: usize) -> Option<&Arg> {
    let last = command.get_positionals().last()?;
    let is_repeated = last.get_num_args().is_some_and(|values| values.max_values() > 1);
    command.get_positionals().nth(index).or_else(|| is_repeated.then_some(last))
}

fn select_server(server: &mut ServerOptions, option: &Arg, value: &str) {
    match option.get_long() {
        Some("server") => server.server = Some(value.to_owned()),
        Some("context") => server.context = Some(value.to_owned()),
        Some("token-file") => server.token_file = Some(PathBuf::from(value)),
        _ => {}
    }
}

/// Returns the type of object that an argument names. `path` contains the words of the command.
fn classify_argument(argument: &Arg, path: &[&str]) -> Option<NamedObject> {
    let (noun, verb) = (*path.first()?, *path.last()?);
    let has_list_columns = matches!(path, [_, "list"] | ["machine", "reinstall"]);
    // Only names of existing users are completed: `add` creates a user, and the argument `name` of `create` and
    // `revoke` is the name of a token.
    let is_existing_user = verb != "add" && (argument.get_id() == "user" || !["create", "revoke"].contains(&verb));
    let is_file = argument.get_value_names().is_some_and(|names| names.iter().any(|name| name.contains("FILE")));
    match (argument.get_id().as_str(), noun) {
        _ if is_file => None,
        ("machine" | "machines" | "to", "machine" | "volume" | "site" | "plan" | "audit") => Some(NamedObject::Machine),
        ("image", "machine" | "image" | "site" | "plan") => Some(NamedObject::Image),
        ("layout", "machine" | "site") | ("id", "layout") => Some(NamedObject::Layout),
        ("id", "rollout") => Some(NamedObject::Rollout),
        ("id", "size") => Some(NamedObject::Size),
        ("name", "template") => Some(NamedObject::Template),
        ("name", "os") => Some(NamedObject::OsDefinition),
        ("name", "volume") | ("volume", "volume") => Some(NamedObject::Volume),
        ("name", "user") if verb == "revoke" => Some(NamedObject::Token),
        ("filter", _) if has_list_columns => Some(NamedObject::Filter),
        ("name" | "user", "user") if is_existing_user => Some(NamedObject::User),
        ("context", _) | ("name", "config") => Some(NamedObject::Context),
        _ => None,
    }
}

fn find_names(position: &NamePosition) -> Result<Vec<String>> {
    let mut names = match position.object {
        NamedObject::Context => ClientConfig::read_file(&find_config_path()?)?.contexts.into_keys().collect(),
        NamedObject::Machine => fetch_names(&position.server, "/v1/machines", &["name", "id"])?,
        NamedObject::Image => fetch_names(&position.server, "/v1/image", &["id"])?,
        NamedObject::Rollout => fetch_names(&position.server, "/v1/rollouts", &["id"])?,
        NamedObject::Layout => fetch_names(&position.server, "/v1/filesystemlayout", &["id"])?,
        NamedObject::Size => fetch_names(&position.server, "/v1/size", &["id"])?,
        NamedObject::Template => fetch_names(&position.server, "/v1/deploy-templates", &["name"])?,
        NamedObject::OsDefinition => fetch_names(&position.server, "/v1/os", &["name"])?,
        NamedObject::Volume => fetch_names(&position.server, "/v1/volumes", &["name"])?,
        NamedObject::Token => {
            let path = format!("/v1/users/{}/tokens", percent_encode(&position.subject, ""));
            fetch_names(&position.server, &path, &["name"])?
        }
        NamedObject::Filter => complete_filter(&position.server, &position.noun, &position.prefix)?,
        NamedObject::User => fetch_names(&position.server, "/v1/users", &["name"])?,
    };
    let is_plain = |name: &str| match position.object {
        NamedObject::Filter => name.split(['=', ',']).all(is_plain_name),
        _ => is_plain_name(name),
    };
    names.retain(|name| name.starts_with(&position.prefix) && is_plain(name));
    Ok(names)
}

/// Returns whether a shell reads the name as one word without special characters. Other names are not offered as
/// completions, because the names come from the server, and shells insert completions without quotes.
fn is_plain_name(name: &str) -> bool {
    name.chars().all(|letter| letter.is_ascii_alphanumeric() || "._-+@/".contains(letter)) && !name.starts_with('-')
}

/// Requests a list of objects. Returns for each object the value of the first of these fields that is not empty.
fn fetch_names(server: &ServerOptions, path: &str, fields: &[&str]) -> Result<Vec<String>> {
    let client = OperatorClient::new(server)?;
    let response = client.send_json::<Value>(client.request(Method::GET, path).timeout(RESPONSE_TIMEOUT))?;
    let OperatorResponse::Good(mut listed) = response else { return Ok(Vec::new()) };
    // Most responses are lists, but the list of deploy templates is a field of an object.
    let is_nested = listed.is_object();
    let list = if is_nested { &mut listed["deploy-templates"] } else { &mut listed };
    let objects = list.as_array_mut().map(std::mem::take).unwrap_or_default();
    let read = |value: &Value| value.as_str().map(str::to_owned).or_else(|| value.as_i64().map(|id| id.to_string()));
    let name = |object: &Value| fields.iter().filter_map(|field| read(&object[*field])).find(|text| !text.is_empty());
    Ok(objects.iter().filter_map(name).collect())
}
