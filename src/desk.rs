//! The desk tools: inventory, plan, check, tree and schema. They read, print, and change nothing.

#[cfg(feature = "desk")]
mod schema;
#[cfg(feature = "desk")]
mod tree;

use crate::cli;
use crate::error::{Context, Error, Phase, Result};
use crate::inventory::{self, Inventory};
use crate::layout::{self, Parsed};
use crate::plan::{self, Erase, Mode, Request, Subject};
use crate::problem::Problem;
use serde::Serialize;
use std::path::{Path, PathBuf};
use uuid::Uuid;

#[cfg(feature = "desk")]
pub use schema::schema;
#[cfg(feature = "desk")]
pub use tree::tree;

/// Was the input good?
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    Good,
    Refused,
}

/// Prints this machine.
///
/// # Errors
/// sysfs cannot be read.
pub fn inventory() -> Result<Outcome> {
    println!("{}", json(&inventory::read()?)?);
    Ok(Outcome::Good)
}

/// Prints what an installation would do.
///
/// # Errors
/// A file cannot be read, or the inventory is not one.
pub fn plan(options: &cli::Plan) -> Result<Outcome> {
    let parsed = match read_layout(&options.layout)? {
        Ok(parsed) => parsed,
        Err(problems) => {
            print_problems(&options.layout, &problems);
            return Ok(Outcome::Refused);
        }
    };
    let inventory = match &options.inventory {
        Some(path) => read_inventory(path)?,
        None => inventory::read()?,
    };
    let mode = if options.reinstall { Mode::Reinstall } else { Mode::Install };
    let subject = Subject {
        machine: inventory.system.uuid.clone(),
        image: "the image".to_owned(),
        url: "the image's server".to_owned(),
        ..Subject::default()
    };
    let request = Request { mode, erase: Erase::Quick, subject };
    match plan::make(&parsed.layout, &inventory, request, &mut Uuid::new_v4) {
        Ok(plan) => {
            print!("{}", if options.json { json(&plan)? + "\n" } else { plan.to_string() });
            Ok(Outcome::Good)
        }
        Err(refusal) => {
            let refusal = refusal.located(|problem| parsed.locate(problem));
            println!("{}", if options.json { json(&refusal)? } else { refusal.to_string() });
            Ok(Outcome::Refused)
        }
    }
}

/// What was found in one file.
#[derive(Serialize)]
struct Checked {
    file: PathBuf,
    valid: bool,
    problems: Vec<Problem>,
    notes: Vec<Problem>,
}

/// Prints all that is wrong with each of the layouts.
///
/// # Errors
/// A file cannot be read.
pub fn check(options: &cli::Check) -> Result<Outcome> {
    let mut checked = Vec::new();
    for file in &options.files {
        let (problems, notes) = match read_layout(file)? {
            Ok(parsed) => (Vec::new(), parsed.notes),
            Err(problems) => (problems, Vec::new()),
        };
        checked.push(Checked { file: file.clone(), valid: problems.is_empty(), problems, notes });
    }
    if options.json {
        println!("{}", json(&checked)?);
    } else {
        checked.iter().for_each(print_checked);
    }
    Ok(if checked.iter().all(|file| file.valid) { Outcome::Good } else { Outcome::Refused })
}

fn print_checked(checked: &Checked) {
    for note in &checked.notes {
        println!("{}:{note} (note)", checked.file.display());
    }
    if checked.valid {
        println!("{}: good", checked.file.display());
    } else {
        print_problems(&checked.file, &checked.problems);
    }
}

fn print_problems(file: &Path, problems: &[Problem]) {
    for problem in problems {
        println!("{}:{problem}", file.display());
    }
}

fn read_layout(path: &Path) -> Result<std::result::Result<Parsed, Vec<Problem>>> {
    Ok(layout::read_yaml(&read(path)?))
}

fn read_inventory(path: &Path) -> Result<Inventory> {
    let text = read(path)?;
    serde_json::from_str(&text).context(Phase::Inventory, || {
        format!("{} is not an inventory as `drophammer inventory` prints it", path.display())
    })
}

fn read(path: &Path) -> Result<String> {
    std::fs::read_to_string(path).context(Phase::Settings, || format!("read {}", path.display()))
}

/// To standard output; a reader that has seen enough (`| head`) is no error.
#[cfg(feature = "desk")]
fn print(text: &str) -> Result<()> {
    use std::io::{ErrorKind, Write};
    match std::io::stdout().lock().write_all(text.as_bytes()) {
        Err(error) if error.kind() == ErrorKind::BrokenPipe => Ok(()),
        written => written.context(Phase::Settings, || "write to standard output".to_owned()),
    }
}

fn json(value: &impl Serialize) -> Result<String> {
    serde_json::to_string_pretty(value).map_err(|error| Error::with_source(Phase::Settings, "print as JSON", error))
}
