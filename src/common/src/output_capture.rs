//! Recording of the output of commands, and hostile text, for tests.

use crate::error::Result;
use crate::format::terminal_escaping::is_hidden;
use crate::output::print_error;
use std::cell::RefCell;

/// Name that contains every type of text that affects a terminal: escape sequences in 7-bit and 8-bit form that set
/// colors, the clipboard, links and the title; the bell; erased and forged lines; changes of the writing direction;
/// invisible characters; and the marks of the program's own text styles.
pub const HOSTILE: &str = "n\u{1b}[2J\u{9b}31m\u{1b}]52;c;ZXZpbA==\u{7}\u{1b}]8;;http://evil\u{1b}\\x\u{1b}]0;t\u{9c}\r\u{8}\u{7f}\u{85}\
     \ndrophammer: forged\u{b}\u{c}\u{202e}cba\u{2066}\u{200b}\u{200d}\u{feff}\u{2028}\u{2029}\u{ad}\u{e0041}\u{fdd3}\u{fdef}\u{fffd}";

/// Returns the first hidden character of the output; `None` if all characters are safe for a terminal.
pub fn first_hidden(output: &str) -> Option<char> {
    output.chars().find(|c| is_hidden(*c) && *c != '\n' && *c != '\t')
}

thread_local! {
    static RECORDED: RefCell<Option<String>> = const { RefCell::new(None) };
}

/// Records the text if [`recorded`] is running on this thread. Returns whether the text was recorded.
pub(crate) fn record(text: &str) -> bool {
    RECORDED.with_borrow_mut(|recorded| recorded.as_mut().map(|recorded| recorded.push_str(text)).is_some())
}

/// Runs a command and returns everything that it writes to standard output and standard error, including its error
/// message.
pub fn recorded<T>(command: impl FnOnce() -> Result<T>) -> String {
    RECORDED.set(Some(String::new()));
    if let Err(error) = command() {
        print_error(&error);
    }
    RECORDED.take().unwrap_or_default()
}
