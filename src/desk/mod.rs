//! The desk tools, one file each. They read and print; only `check --fix --write` changes a file. `image pack` has a folder of
//! its own, `pack`.

pub(crate) mod check;
mod inventory;
mod plan;
#[cfg(feature = "desk")]
mod schema;
#[cfg(test)]
mod tests;
#[cfg(feature = "desk")]
mod tree;

pub use check::check;
pub use inventory::inventory;
pub use plan::plan;
#[cfg(feature = "desk")]
pub use schema::schema;
#[cfg(feature = "desk")]
pub use tree::tree;

use crate::error::{Context, Error, Phase, Result};
use crate::layout::{self, Parsed};
use crate::problem::Problem;
use serde::Serialize;
use std::io::{ErrorKind, Write};
use std::path::Path;

/// Was the input good?
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    Good,
    Refused,
    /// Of the agent: the machine is to boot again at once.
    BootAgain,
}

impl Outcome {
    fn good_if(good: bool) -> Outcome {
        if good { Outcome::Good } else { Outcome::Refused }
    }
}

/// A refusal is said as a failure is, and has an exit status of its own.
#[cfg(feature = "agent")]
pub fn or_refused(result: Result<Outcome>) -> Result<Outcome> {
    match result {
        Err(error) if error.is_refusal() => {
            eprintln!("drophammer: {error}");
            Ok(Outcome::Refused)
        }
        other => other,
    }
}

/// Problems of a file, one a line: `FILE:LINE:COLUMN: PLACE: MESSAGE`.
fn problem_lines(file: &Path, problems: &[Problem]) -> String {
    problems.iter().map(|problem| format!("{}:{problem}\n", file.display())).collect()
}

fn print_problems(file: &Path, problems: &[Problem]) {
    print!("{}", problem_lines(file, problems));
}

fn read_layout(path: &Path) -> Result<std::result::Result<Parsed, Vec<Problem>>> {
    let bytes = std::fs::read(path).context(Phase::Settings, || format!("read {}", path.display()))?;
    Ok(match std::str::from_utf8(&bytes) {
        Ok(text) => layout::read_yaml(text),
        Err(error) => {
            Err(vec![Problem::new("", format!("this is not UTF-8 text, from byte {} on", error.valid_up_to() + 1))])
        }
    })
}

fn read(path: &Path) -> Result<String> {
    std::fs::read_to_string(path).context(Phase::Settings, || format!("read {}", path.display()))
}

/// To standard output; a reader that has seen enough (`| head`) is no error.
pub(crate) fn print(text: &str) -> Result<()> {
    match std::io::stdout().lock().write_all(text.as_bytes()) {
        Err(error) if error.kind() == ErrorKind::BrokenPipe => Ok(()),
        written => written.context(Phase::Settings, || "write to standard output".to_owned()),
    }
}

pub(crate) fn json(value: &impl Serialize) -> Result<String> {
    serde_json::to_string_pretty(value).map_err(|error| Error::with_source(Phase::Settings, "print as JSON", error))
}
