//! Every command writes through this module, whatever names it has read.

#[cfg(all(feature = "agent", feature = "desk", feature = "serve"))]
mod commands;

use super::*;
use crate::format::terminal::tests::{HOSTILE, first_hidden};
use std::cell::RefCell;

thread_local! {
    static RECORDED: RefCell<Option<String>> = const { RefCell::new(None) };
}

/// Takes what this thread writes, while [`recorded`] runs.
pub fn record(text: &str) -> bool {
    RECORDED.with_borrow_mut(|recorded| recorded.as_mut().map(|recorded| recorded.push_str(text)).is_some())
}

/// Returns all that a command writes to both outputs, its error included.
pub fn recorded<T>(command: impl FnOnce() -> Result<T>) -> String {
    RECORDED.set(Some(String::new()));
    if let Err(error) = command() {
        print_error(&error);
    }
    RECORDED.take().unwrap_or_default()
}

/// Files that write to a terminal themselves, each through `format::terminal`.
const WRITERS: [&str; 3] = ["src/output.rs", "src/console.rs", "src/server/status_log.rs"];
/// A process in a sandbox, whose standard error its parent reads.
const WORKER: &str = "src/verify/worker.rs";

/// Returns the line with the first use of a writer.
fn writes(code: &str) -> Option<&str> {
    let words = ["print!(", "println!(", "dbg!(", "io::stdout()", "io::stderr()", "ProgressDrawTarget::"];
    code.lines().find(|line| words.iter().any(|word| line.replace("stdout().is_terminal()", "").contains(word)))
}

#[test]
fn no_other_file_writes_to_a_terminal() {
    let sources = crate::rooms::product_sources();
    let writers = sources.iter().filter_map(|(file, code)| Some((file, writes(code)?)));
    let is_known = |file: &std::path::Path| WRITERS.iter().chain([&WORKER]).any(|known| file.ends_with(known));
    let others: Vec<_> = writers.clone().filter(|(file, _)| !is_known(file)).collect();
    assert!(others.is_empty(), "write through crate::output or crate::console: {others:?}");
    assert_eq!(writers.count(), WRITERS.len() + 1, "the search finds those that write");
}

#[test]
fn json_is_exact() {
    let text = to_json(&serde_json::json!({ "name": HOSTILE })).unwrap();
    assert_eq!(first_hidden(&text), None);
    assert_eq!(serde_json::from_str::<serde_json::Value>(&text).unwrap()["name"], HOSTILE);
}

#[test]
fn an_error_stays_one_message() {
    let said = recorded(|| Err::<(), _>(Error::new(Phase::Image, format!("unpack {HOSTILE}"))));
    assert_eq!(first_hidden(&said), None);
    let lines: Vec<&str> = said.lines().collect();
    assert!(lines[0].starts_with("drophammer: unpack n\\u{1b}[2J"), "{said}");
    assert!(lines[1..].iter().all(|line| line.starts_with("    ")), "{said}");
}
