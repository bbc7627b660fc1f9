//! Suggestions in usage errors. The parser of the command line also suggests hidden commands and options, and words that
//! have little in common with the typed one.

use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{Arg, Command, Error};
use common::spelling_suggestions::find_mistyped;

/// Replaces the suggestions of a usage error by the visible command, option or value that was probably mistyped, and
/// removes them if there is none. `arguments` are the words of the command line, without the name of the program.
pub(super) fn correct_suggestions(error: &mut Error, command: &Command, arguments: &[String]) {
    if let Some(word) = read_text(error, ContextKind::InvalidSubcommand) {
        let known: Vec<&str> = visible_subcommands(find_command(command, arguments, &word)).collect();
        let suggested = find_mistyped(&word, known).map(|name| ContextValue::Strings(vec![name.to_owned()]));
        replace_context(error, ContextKind::SuggestedSubcommand, suggested);
        // An empty list of further suggestions would be printed as an empty line.
        if let Some(ContextValue::StyledStrs(further)) = error.get(ContextKind::Suggested)
            && further.is_empty()
        {
            error.remove(ContextKind::Suggested);
        }
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
    }
    if let Some(word) = read_text(error, ContextKind::InvalidValue)
        && let Some(ContextValue::Strings(valid)) = error.get(ContextKind::ValidValue)
    {
        let suggested = find_mistyped(&word, valid.iter().map(String::as_str));
        let suggested = suggested.map(|name| ContextValue::String(name.to_owned()));
        replace_context(error, ContextKind::SuggestedValue, suggested);
    }
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
        let words = ["drophammer"].iter().chain(arguments);
        let mut error = command.clone().try_get_matches_from(words).unwrap_err();
        let arguments: Vec<String> = arguments.iter().map(|word| (*word).to_owned()).collect();
        command.build();
        correct_suggestions(&mut error, &command, &arguments);
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
        ] {
            let text = usage_error(arguments);
            assert!(text.contains(expected), "{arguments:?}: {text}");
        }
        for arguments in
            [&["nonsense"][..], &["image-workr"], &["image", "os"], &["image", "image"], &["image", "list", "--outdri"]]
        {
            let text = usage_error(arguments);
            assert!(!text.contains("similar") && !text.contains("\n\n\n"), "{arguments:?}: {text}");
        }
    }
}
