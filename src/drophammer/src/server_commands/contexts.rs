//! `drophammer config`: the contexts of the operator's configuration file.

use super::connection::{find_config_path, parse_server_url, read_environment};
use super::print_refusal;
use crate::client_config::{ClientConfig, ContextToken, ServerContext};
use crate::object_list::{ListColumn, ListOptions, ObjectList, print_list};
use clap::builder::FalseyValueParser;
use clap::{Args, Subcommand};
use common::command_outcome::CommandOutcome;
use common::error::Result;
use common::format::compare_natural;
use common::output::{print_note, print_text};
use serde::Serialize;
use std::path::{Path, PathBuf};

#[derive(Debug, Args)]
pub struct ConfigArgs {
    #[command(subcommand)]
    pub command: ConfigCommand,
}

#[derive(Debug, Subcommand)]
pub enum ConfigCommand {
    /// List the contexts: server, origin of the token, and which context is the current one.
    #[command(visible_alias = "ls")]
    List {
        #[command(flatten)]
        list: ListOptions,
        /// Print the contexts as JSON, without tokens.
        #[arg(long, env = "DROPHAMMER_JSON", value_parser = FalseyValueParser::new())]
        json: bool,
    },
    /// Make a context the current one, which applies to commands without --server and --context.
    Use {
        /// Name of the context.
        #[arg(value_name = "NAME")]
        name: String,
    },
    /// Create or change a context. `drophammer login` also creates a context, and stores the token in it.
    Set(SetContextOptions),
    /// Delete a context, with its token.
    #[command(visible_alias = "rm")]
    Delete {
        /// Name of the context.
        #[arg(value_name = "NAME")]
        name: String,
    },
}

#[derive(Debug, Args)]
pub struct SetContextOptions {
    /// Name of the context.
    #[arg(value_name = "NAME")]
    pub name: String,
    /// Address of the server. Required if the context does not exist yet. If the address changes, the stored token is
    /// removed.
    #[arg(long, value_name = "URL")]
    pub server: Option<String>,
    /// File from which commands read the operator's token.
    #[arg(long, value_name = "FILE")]
    pub token_file: Option<PathBuf>,
}

/// Context in the output of `drophammer config list`, without the text of its token.
#[derive(Debug, Serialize)]
struct ContextSummary {
    name: String,
    server: String,
    is_current: bool,
    /// `stored`, or the path of the token file.
    token: Option<String>,
}

/// Lists or changes the contexts.
///
/// # Errors
/// Returns an error if the configuration cannot be read or written.
pub fn run_config(options: &ConfigArgs) -> Result<CommandOutcome> {
    let outcome = change_contexts(&find_config_path()?, &options.command)?;
    if let (ConfigCommand::Use { .. }, CommandOutcome::Good) = (&options.command, outcome)
        && let Some(note) = describe_override(read_environment)
    {
        print_note(&note);
    }
    Ok(outcome)
}

/// Describes the environment variable that currently takes precedence over the current context; `None` if none is set.
fn describe_override(environment: impl Fn(&str) -> Option<String>) -> Option<String> {
    let variables = ["DROPHAMMER_SERVER", "DROPHAMMER_CONTEXT"];
    let (name, value) = variables.into_iter().find_map(|name| Some((name, environment(name)?)))?;
    Some(format!("{name}={value} takes precedence over the current context; unset {name} to use the context"))
}

/// Describes a stored context. If it is not the current context, the text contains the command that makes it the
/// current one.
fn describe_stored(config: &ClientConfig, name: &str) -> String {
    match config.current.as_deref() == Some(name) {
        true => format!("Context {name} is stored, and is the current one.\n"),
        false => format!("Context {name} is stored; `drophammer config use {name}` makes it the current one.\n"),
    }
}

fn change_contexts(path: &Path, command: &ConfigCommand) -> Result<CommandOutcome> {
    let mut config = ClientConfig::read_file(path)?;
    let done = match command {
        ConfigCommand::List { list, json } => {
            return print_list(&context_columns(), &summarize_contexts(&config), list, *json);
        }
        ConfigCommand::Use { name } => config.find_context(name).map(|_| ()).map(|()| {
            config.current = Some(name.clone());
            format!("{name} is the current context.\n")
        }),
        ConfigCommand::Set(set_context_options) => {
            set_context(&mut config, set_context_options).map(|()| describe_stored(&config, &set_context_options.name))
        }
        ConfigCommand::Delete { name } => config.find_context(name).map(|_| ()).map(|()| {
            config.contexts.remove(name);
            config.current = config.current.take().filter(|current| current != name);
            format!("Context {name} is deleted.\n")
        }),
    };
    match done {
        Ok(text) => {
            config.write_file(path)?;
            print_text(&text).map(|()| CommandOutcome::Good)
        }
        Err(why) => Ok(print_refusal(&why)),
    }
}

fn set_context(config: &mut ClientConfig, set_context_options: &SetContextOptions) -> std::result::Result<(), String> {
    let server = set_context_options.server.as_deref().map(parse_server_url).transpose()?;
    let known = config.contexts.get(&set_context_options.name);
    let Some(server) = server.or_else(|| known.map(|known| known.server.clone())) else {
        return Err(format!(
            "context {context:?} does not exist yet: add --server URL",
            context = set_context_options.name
        ));
    };
    let token_file = match &set_context_options.token_file {
        // The path is made absolute, because later commands may run in another working directory.
        Some(file) => {
            Some(std::path::absolute(file).map_err(|error| format!("--token-file {}: {error}", file.display()))?)
        }
        None => None,
    };
    // A token is sent only to the server for which it was stored.
    let kept = known.filter(|known| known.server == server).and_then(|known| known.token.clone());
    let token = token_file.map(ContextToken::File).or(kept);
    config.contexts.insert(set_context_options.name.clone(), ServerContext { server, token });
    Ok(())
}

/// Returns the contexts in natural order: rack2 precedes rack10.
fn summarize_contexts(config: &ClientConfig) -> Vec<ContextSummary> {
    let summarize = |(name, context): (&String, &ServerContext)| ContextSummary {
        name: name.clone(),
        server: context.server.clone(),
        is_current: config.current.as_ref() == Some(name),
        token: context.token.as_ref().map(|token| match token {
            ContextToken::Text(_) => "stored".to_owned(),
            ContextToken::File(file) => file.display().to_string(),
        }),
    };
    let mut contexts: Vec<ContextSummary> = config.contexts.iter().map(summarize).collect();
    contexts.sort_by(|one, other| compare_natural(&one.name, &other.name));
    contexts
}

fn context_columns() -> ObjectList<'static, ContextSummary> {
    let columns = vec![
        ListColumn::new("name", |context: &ContextSummary| context.name.clone()),
        ListColumn::new("current", |context: &ContextSummary| if context.is_current { "yes" } else { "" }),
        ListColumn::new("server", |context: &ContextSummary| context.server.clone()),
        ListColumn::new("token", |context: &ContextSummary| context.token.clone().unwrap_or_default()),
    ];
    ObjectList { command: "config", noun: "contexts", name: |context| context.name.clone(), columns }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::object_list::OutputFormat;
    use common::output_capture::recorded;

    #[test]
    fn a_variable_that_overrides_the_current_context_is_named() {
        let set = |name: &'static str| {
            move |set_context_options: &str| (set_context_options == name).then(|| "other".to_owned())
        };
        let note = describe_override(set("DROPHAMMER_CONTEXT")).unwrap();
        assert!(note.starts_with("DROPHAMMER_CONTEXT=other takes precedence over the current context"), "{note}");
        assert!(
            describe_override(set("DROPHAMMER_SERVER"))
                .unwrap()
                .ends_with("unset DROPHAMMER_SERVER to use the context")
        );
        assert_eq!(describe_override(|_: &str| None), None);
    }

    fn set(name: &str, server: Option<&str>, token_file: Option<&str>) -> ConfigCommand {
        let (name, server) = (name.to_owned(), server.map(str::to_owned));
        ConfigCommand::Set(SetContextOptions { name, server, token_file: token_file.map(PathBuf::from) })
    }

    #[test]
    fn contexts_are_set_used_listed_and_deleted() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("config.yaml");
        let run = |command: ConfigCommand| recorded(|| change_contexts(&path, &command));
        let list = || ConfigCommand::List { list: ListOptions::default(), json: false };
        let named = |name: &str| name.to_owned();
        assert_eq!(run(list()), "No contexts.\n");
        assert_eq!(
            run(set("rack", None, None)),
            "drophammer: context \"rack\" does not exist yet: add --server URL (DH-100)\n"
        );
        assert!(run(set("rack", Some("ftp://h"), None)).contains("the scheme must be http or https, not \"ftp\""));
        assert!(!path.exists());
        assert_eq!(
            run(set("rack", Some("install.rack:8443"), Some("/t"))),
            "Context rack is stored; `drophammer config use rack` makes it the current one.\n"
        );
        assert!(run(set("bench", Some("localhost"), None)).starts_with("Context bench is stored; "));
        assert_eq!(run(ConfigCommand::Use { name: named("rack") }), "rack is the current context.\n");
        assert!(
            run(ConfigCommand::Use { name: named("rock") })
                .ends_with("does not exist; contexts: bench, rack (DH-100)\n")
        );
        let expected = "NAME   CURRENT  SERVER                     TOKEN\n\
                        bench  -        http://localhost:8080      -\n\
                        rack   yes      https://install.rack:8443  /t\n";
        assert_eq!(run(list()), expected);
        for name in ["rack10", "rack2"] {
            run(set(name, Some("localhost"), None));
        }
        let all = |output| ConfigCommand::List {
            list: ListOptions { output: Some(output), ..ListOptions::default() },
            json: false,
        };
        assert_eq!(run(all(OutputFormat::Name)), "bench\nrack\nrack2\nrack10\n");
        let listed: serde_json::Value = serde_json::from_str(&run(all(OutputFormat::Json))).unwrap();
        let names: Vec<_> =
            listed.as_array().unwrap().iter().map(|context| context["name"].as_str().unwrap()).collect();
        assert_eq!(names, ["bench", "rack", "rack2", "rack10"]);
        assert!(
            run(ConfigCommand::Use { name: named("x") }).ends_with("contexts: bench, rack, rack2, rack10 (DH-100)\n")
        );
        assert_eq!(run(ConfigCommand::Delete { name: named("rack") }), "Context rack is deleted.\n");
        assert!(run(ConfigCommand::Delete { name: named("rack") }).contains("does not exist"));
        assert_eq!(ClientConfig::read_file(&path).unwrap().current, None);
    }

    #[test]
    fn changed_server_address_removes_the_stored_token() {
        let token = Some(ContextToken::Text(model::secret_text::SecretText::new("t")));
        let server = "http://h:8080".to_owned();
        let mut config = ClientConfig::default();
        config.contexts.insert("a".to_owned(), ServerContext { server, token: token.clone() });
        let set_context_options = |server: Option<&str>| SetContextOptions {
            name: "a".to_owned(),
            server: server.map(str::to_owned),
            token_file: None,
        };
        for (server, is_kept) in [(None, true), (Some("h"), true), (Some("other"), false)] {
            set_context(&mut config, &set_context_options(server)).unwrap();
            assert_eq!(config.contexts["a"].token == token, is_kept, "{server:?}");
        }
    }
}
