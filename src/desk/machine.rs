//! Files about a machine on a workstation: the operator's machine file, as in `machines/` of `drophammer serve`, or the document that the
//! agent receives.

use crate::allocation::{self, Allocation};
use crate::inventory::Nic;
use crate::problem::Problem;
use crate::serve::input;

/// Returns whether the text is about a machine, and not a layout.
pub use crate::serve::input::is_of_a_machine;

/// Returns the allocation in the text, if it has one. If NICs are given, the network must match them.
///
/// # Errors
/// All problems, with line and column if known.
pub fn read(text: &str, nics: Option<&[Nic]>) -> Result<Option<Allocation>, Vec<Problem>> {
    let read = if input::is_document(text) { document(text) } else { file(text) };
    let misfits = nics.map(|nics| input::network_misfits(text, nics)).unwrap_or_default();
    match read {
        Ok(allocation) if misfits.is_empty() => Ok(allocation),
        Ok(_) => Err(problems(misfits)),
        Err(lines) => Err(problems(lines.into_iter().chain(misfits).collect())),
    }
}

fn file(text: &str) -> Result<Option<Allocation>, Vec<String>> {
    let machine = input::machine(text).map_err(|lines| lines.lines().map(str::to_owned).collect::<Vec<_>>())?;
    Ok(machine.allocation.map(|allocation| allocation.told()))
}

fn document(text: &str) -> Result<Option<Allocation>, Vec<String>> {
    let machine: allocation::Machine = serde_json::from_str(text).map_err(|error| vec![of_json(&error)])?;
    let wrong = input::network_problems(text);
    if wrong.is_empty() { Ok(machine.allocation) } else { Err(wrong) }
}

fn of_json(error: &serde_json::Error) -> String {
    let said = error.to_string();
    let why = said.split(" at line ").next().unwrap_or_default();
    format!("{}:{}: {why}", error.line().max(1), error.column().max(1))
}

/// Converts messages to problems. Messages may start with line and column.
fn problems(lines: Vec<String>) -> Vec<Problem> {
    let problem = |line: &String| {
        let mut parts = line.splitn(3, ':');
        let mut number = || parts.next().and_then(|part| part.parse::<usize>().ok());
        match (number(), number()) {
            (Some(line), Some(column)) => {
                let message = parts.next().unwrap_or_default().trim_start();
                Problem { line: Some(line), column: Some(column), ..Problem::new("", message) }
            }
            _ => Problem::new("", line),
        }
    };
    let mut problems: Vec<Problem> = lines.iter().map(problem).collect();
    problems.sort_by_key(|problem| (problem.line, problem.column));
    problems
}

#[cfg(test)]
mod tests;
