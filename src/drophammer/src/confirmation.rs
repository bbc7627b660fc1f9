//! Confirmation of a command by a text that the operator specifies with `--yes` or types on the terminal.

use common::error::{Context, Phase, Result};
use common::output::print_note;
use std::io::stdin;

/// Returns the given text or, if there is none, the text that the operator types after the prompt. Returns `None` if no
/// text is given, and the operator cannot be asked.
///
/// # Errors
/// Returns an error if standard input cannot be read.
pub(crate) fn read_confirmation(given: Option<String>, prompt: &str, is_interactive: bool) -> Result<Option<String>> {
    let typed = match given {
        None if is_interactive => {
            print_note(prompt);
            let mut line = String::new();
            stdin().read_line(&mut line).context(Phase::Settings, || "read the confirmation")?;
            Some(line)
        }
        given => given,
    };
    Ok(typed.map(|typed| typed.trim().to_owned()))
}
