//! Suggestions in usage errors. The parser of the command line also suggests hidden commands and options, and words
//! that have little in common with the typed one.

use clap::builder::StyledStr;
use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{Arg, Command, Error};
use common::spelling_suggestions::find_mistyped;

/// Function that returns the replacement of a subcommand that a command does not have; `None` if no replacement is
/// known.
pub type MissingCommandExplanation = fn(&Command, &str) -> Option<String>;

/// Replaces the suggestions of a usage error by the replacement of a missing command, or by the visible command, option
/// or value that was probably mistyped, and removes them if there is none. `arguments` are the words of the command
/// line, without the name of the program.
pub(super) fn correct_suggestions(
    error: &mut Error,
    command: &Command,
    arguments: &[String],
    explain_missing: MissingCommandExplanation,
) {
    if let Some(word) = read_text(error, ContextKind::InvalidSubcommand) {
        suggest_command(error, find_command(command, arguments, &word), &word, explain_missing);
    }
    if let Some(word) = read_text(error, ContextKind::InvalidArg)
        && let Some(name) = word.strip_prefix("--")
        && error.kind() == ErrorKind::UnknownArgument
    {
        let used = find_command(command, arguments, &word);
        let visible = used.get_arguments().filter(|option| !option.is_hide_set());
        let known: Vec<&str> = visible.filter_map(Arg::get_long).collect();
        let suggested = find_mistyped(name, known).map(|name| ContextValue::String(format!("--{name}")));
        replace_context(error, ContextKind::SuggestedArg, suggested);
    } else if let Some(word) = read_text(error, ContextKind::InvalidArg)
        && error.kind() == ErrorKind::UnknownArgument
        && let Some(name) = find_single_dash_option(command, arguments, &word)
    {
        replace_context(error, ContextKind::SuggestedArg, Some(ContextValue::String(format!("--{name}"))));
    }
    if let Some(word) = read_text(error, ContextKind::InvalidValue)
        && let Some(ContextValue::Strings(valid)) = error.get(ContextKind::ValidValue)
    {
        let suggested = find_mistyped(&word, valid.iter().map(String::as_str));
        let suggested = suggested.map(|name| ContextValue::String(name.to_owned()));
        replace_context(error, ContextKind::SuggestedValue, suggested);
    }
}

/// Suggests the replacement of a subcommand that `command` does not have, or a subcommand that was probably mistyped.
fn suggest_command(error: &mut Error, command: &Command, word: &str, explain_missing: MissingCommandExplanation) {
    let explanation = explain_missing(command, word);
    let known: Vec<&str> = visible_subcommands(command).collect();
    let mistyped = find_mistyped(word, known).filter(|_| explanation.is_none());
    let suggested = mistyped.map(|name| ContextValue::Strings(vec![name.to_owned()]));
    replace_context(error, ContextKind::SuggestedSubcommand, suggested);
    // An empty list of further suggestions would be printed as an empty line.
    let further = explanation.map(|text| ContextValue::StyledStrs(vec![StyledStr::from(text)]));
    let has_further =
        matches!(error.get(ContextKind::Suggested), Some(ContextValue::StyledStrs(all)) if !all.is_empty());
    if further.is_some() || !has_further {
        replace_context(error, ContextKind::Suggested, further);
    }
}

/// Returns the long option that was written with a single dash, such as `-out=FILE`. `invalid` is the first letter of
/// the option with its dash.
fn find_single_dash_option<'a>(command: &'a Command, arguments: &[String], invalid: &str) -> Option<&'a str> {
    let is_meant = |word: &&String| invalid.len() == 2 && word.starts_with(invalid) && !word.starts_with("--");
    let word = arguments.iter().find(is_meant)?.split('=').next()?;
    let name = word.get(1..).filter(|name| name.len() > 1)?;
    let mut options = find_command(command, arguments, word).get_arguments().filter(|option| !option.is_hide_set());
    options.find_map(|option| option.get_long().filter(|long| *long == name))
}

fn read_text(error: &Error, kind: ContextKind) -> Option<String> {
    match error.get(kind)? {
        ContextValue::String(text) => Some(text.clone()),
        _ => None,
    }
}

fn replace_context(error: &mut Error, kind: ContextKind, value: Option<ContextValue>) {
    match value {
        Some(value) => error.insert(kind, value),
        None => error.remove(kind),
    };
}

/// Returns the command that the arguments before the last occurrence of the invalid word select.
fn find_command<'a>(command: &'a Command, arguments: &[String], invalid: &str) -> &'a Command {
    let last = arguments.iter().rposition(|argument| argument.split('=').next() == Some(invalid));
    let before = arguments.iter().take(last.unwrap_or(arguments.len()));
    before.fold(command, |command, word| command.find_subcommand(word).unwrap_or(command))
}

/// Returns the names and visible aliases of the visible subcommands.
fn visible_subcommands(command: &Command) -> impl Iterator<Item = &str> {
    let visible = command.get_subcommands().filter(|below| !below.is_hide_set());
    visible.flat_map(|below| std::iter::once(below.get_name()).chain(below.get_visible_aliases()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::ArgAction;

    /// Returns the usage error of these arguments, with corrected suggestions.
    fn usage_error(arguments: &[&str]) -> String {
        let switch = |name: &'static str| Arg::new(name).long(name).action(ArgAction::SetTrue);
        let format = Arg::new("format").long("format").value_parser(["table", "json"]);
        let list = Command::new("list").visible_alias("ls").arg(switch("output")).arg(switch("outdir").hide(true));
        let image = Command::new("image").subcommand_required(true).subcommand(list.arg(format));
        let hidden = ["image-worker", "imag"].map(|name| Command::new(name).hide(true));
        let command = Command::new("drophammer").subcommand_required(true);
        let command = command.arg(switch("server").global(true));
        let mut command = command.subcommands(hidden).subcommand(image).subcommand(Command::new("os"));
        let explain = |command: &Command, word: &str| {
            (command.get_name() == "image" && word == "lost").then(|| "images are not lost".to_owned())
        };
        let words = ["drophammer"].iter().chain(arguments);
        let mut error = command.clone().try_get_matches_from(words).unwrap_err();
        let arguments: Vec<String> = arguments.iter().map(|word| (*word).to_owned()).collect();
        command.build();
        correct_suggestions(&mut error, &command, &arguments, explain);
        error.render().to_string()
    }

    #[test]
    fn only_visible_near_matches_are_suggested() {
        for (arguments, expected) in [
            (&["imgae"][..], "a similar subcommand exists: 'image'"),
            (&["image", "lits"], "a similar subcommand exists: 'list'"),
            (&["image", "list", "--sevrer"], "a similar argument exists: '--server'"),
            (&["image", "list", "--ouptut"], "a similar argument exists: '--output'"),
            (&["image", "list", "--format", "jsno"], "a similar value exists: 'json'"),
            (&["image", "list", "-output"], "a similar argument exists: '--output'"),
            (&["image", "lost"], "tip: images are not lost"),
        ] {
            let text = usage_error(arguments);
            assert!(text.contains(expected), "{arguments:?}: {text}");
        }
        assert!(!usage_error(&["image", "lost"]).contains("similar"));
        for arguments in [
            &["nonsense"][..],
            &["image-workr"],
            &["image", "os"],
            &["image", "image"],
            &["image", "list", "--outdri"],
            &["image", "list", "-outdir"],
            &["image", "list", "-o"],
        ] {
            let text = usage_error(arguments);
            assert!(!text.contains("similar") && !text.contains("\n\n\n"), "{arguments:?}: {text}");
        }
    }
}
