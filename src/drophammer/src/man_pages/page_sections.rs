//! The sections EXAMPLES, EXIT STATUS, ENVIRONMENT, FILES and SEE ALSO of the page about a command.

use crate::command_examples::help_examples;
use agent::cli::EXIT_CODES;
use clap::Command;
use clap_mangen::roff::{Inline, Roff, bold, roman};

/// Environment variables of all commands that contact a server.
const CLIENT_VARIABLES: [(&str, &str); 4] = [
    ("DROPHAMMER_SERVER", "Address of the server if neither --server nor --context is specified."),
    ("DROPHAMMER_CONTEXT", "Context that is used if no server is specified."),
    ("DROPHAMMER_TOKEN_FILE", "File with the operator's token if --token-file is not specified."),
    ("XDG_CONFIG_HOME", "Directory of the configuration, instead of ~/.config."),
];
/// Environment variables of all commands that print lists.
const LIST_VARIABLES: [(&str, &str); 2] = [
    ("DROPHAMMER_OUTPUT", "Output format if --output is not specified."),
    ("COLUMNS", "Width of tables, instead of the width of the terminal."),
];
const NO_COLOR: (&str, &str) = ("NO_COLOR", "If this variable is not empty, the output has no colors.");

/// Files of all commands that contact a server.
const CLIENT_FILES: [(&str, &str); 3] = [
    ("~/.config/drophammer/config.yaml", "Servers and tokens that drophammer-login(1) has stored."),
    ("operator.token", "Token of the operator, in the directory of the server."),
    ("/var/lib/drophammer/operator.token", "Token of the server that the package runs on this host."),
];
/// Files in the directory of a server.
const SITE_FILES: [(&str, &str); 5] = [
    ("DIR/machines/*.yaml", "Machines; see drophammer-machine(5)."),
    ("DIR/layouts/*.yaml", "Layouts; see drophammer-layout(5)."),
    ("DIR/images/*.yaml", "Images; see drophammer-image(5)."),
    ("DIR/approved/*.yaml", "Approved plans."),
    ("DIR/operator.token", "Token of the operator, which the server creates."),
];
const DOCUMENTATION: (&str, &str) = ("/usr/share/doc/drophammer/", "The manual.");

/// Returns the name of the page about a command. `path` contains the commands from `drophammer` to this command.
pub(super) fn page_name(path: &[&Command]) -> String {
    path.iter().map(|command| command.get_name()).collect::<Vec<_>>().join("-")
}

/// Returns the sections of the page about the last command in `path`.
pub(super) fn render_sections(path: &[&Command]) -> Roff {
    let mut roff = Roff::new();
    roff.control("SH", ["EXAMPLES"]);
    let examples = path.last().and_then(|command| help_examples(command)).unwrap_or_default();
    add_literal(&mut roff, &examples);
    roff.control("SH", ["EXIT STATUS"]);
    roff.text([roman(command_outcome(path))]);
    add_entries(&mut roff, "ENVIRONMENT", &variables(path));
    let files = files(path).into_iter().map(|(name, text)| (name.to_owned(), text.to_owned())).collect::<Vec<_>>();
    add_entries(&mut roff, "FILES", &files);
    add_references(&mut roff, path);
    roff
}

/// Adds lines that are printed verbatim.
pub(super) fn add_literal(roff: &mut Roff, text: &str) {
    roff.control("nf", []);
    for line in text.lines() {
        roff.text([roman(line)]);
    }
    roff.control("fi", []);
}

fn add_entries(roff: &mut Roff, title: &str, entries: &[(String, String)]) {
    roff.control("SH", [title]);
    for (name, text) in entries {
        add_entry(roff, [bold(name.as_str())], text);
    }
}

/// Adds a term and its description.
pub(super) fn add_entry<const N: usize>(roff: &mut Roff, term: [Inline; N], text: &str) {
    roff.control("TP", []);
    roff.text(term);
    roff.text([roman(text)]);
}

/// Returns the exit-status section in the help of the command or a parent command.
fn command_outcome(path: &[&Command]) -> String {
    let of_help = path.iter().rev().find_map(|command| {
        let help = command.get_after_help()?.to_string();
        let paragraphs = help.split("\n\n").filter(|paragraph| is_exit_status(paragraph)).map(join_lines);
        let text = paragraphs.collect::<Vec<_>>().join(" ");
        (!text.is_empty()).then_some(text)
    });
    let text = of_help.unwrap_or_else(|| join_lines(EXIT_CODES));
    text.trim_start_matches("Exit status: ").to_owned()
}

/// Returns whether a paragraph of a help text describes the exit status.
pub(crate) fn is_exit_status(paragraph: &str) -> bool {
    ["Exit status:", "With --detailed-exitcode:"].iter().any(|begin| paragraph.starts_with(begin))
}

fn join_lines(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// Returns whether a command or any of its subcommands has this option.
fn has_option(command: &Command, long: &str) -> bool {
    command.get_arguments().any(|option| option.get_long() == Some(long))
        || command.get_subcommands().any(|below| !below.is_hide_set() && has_option(below, long))
}

fn contacts_server(path: &[&Command]) -> bool {
    path.last().is_some_and(|command| has_option(command, "context")) || is_at(path, &["login", "config"])
}

/// Returns whether the command is one of the named commands, or a subcommand of one.
fn is_at(path: &[&Command], names: &[&str]) -> bool {
    path.get(1).is_some_and(|command| names.contains(&command.get_name()))
}

fn variables(path: &[&Command]) -> Vec<(String, String)> {
    let Some(command) = path.last() else { return Vec::new() };
    let of_option = |option: &clap::Arg| {
        let (name, long) = (option.get_env()?.to_string_lossy().into_owned(), option.get_long()?);
        Some((name, format!("Value of --{long} if the option is not specified.")))
    };
    let mut all: Vec<(String, String)> = command.get_arguments().filter_map(of_option).collect();
    let mut shared = Vec::new();
    if contacts_server(path) {
        shared.extend(CLIENT_VARIABLES);
    }
    if has_option(command, "no-headers") {
        shared.extend(LIST_VARIABLES);
    }
    if has_option(command, "bmc") {
        shared.push(("DROPHAMMER_BMC_PASSWORD", "Password at the management controller."));
    }
    if path.iter().any(|command| command.get_name() == "pack") {
        shared
            .push(("SOURCE_DATE_EPOCH", "Upper limit of the modification times in the image, in seconds since 1970."));
    }
    shared.push(NO_COLOR);
    all.extend(shared.into_iter().map(|(name, text)| (name.to_owned(), text.to_owned())));
    all
}

fn files(path: &[&Command]) -> Vec<(&'static str, &'static str)> {
    let mut all = Vec::new();
    if contacts_server(path) {
        all.extend(CLIENT_FILES);
    }
    if is_at(path, &["serve", "site", "check", "machine", "layout", "image"]) {
        all.extend(SITE_FILES);
    }
    all.push(DOCUMENTATION);
    all
}

/// Adds references to the pages about the parent command, the subcommands, and the file formats.
fn add_references(roff: &mut Roff, path: &[&Command]) {
    let Some((command, above)) = path.split_last() else { return };
    let mut names = vec![match above {
        [] => "drophammer-serve(1)".to_owned(),
        above => format!("{}(1)", page_name(above)),
    }];
    let below = command.get_subcommands().filter(|below| !below.is_hide_set());
    names.extend(below.map(|below| format!("{}-{}(1)", page_name(path), below.get_name())));
    names.extend(super::file_formats::PAGES.map(|name| format!("{name}(5)")));
    names.dedup();
    roff.control("SH", ["SEE ALSO"]);
    roff.text([roman(names.join(", "))]);
}
