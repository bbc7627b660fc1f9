//! Reader of a machine's allocation, for commands on a workstation. The allocation is in the operator's machine file,
//! as in `machines/` of `drophammer serve`, or in the document that the agent receives.

use common::diagnostic::Diagnostic;
use common::type_errors::describe_json_error;
use model::allocation::{self, Allocation};
use model::inventory::Nic;
use site::operator_files;

/// Returns whether the text describes a machine rather than a layout.
pub use site::operator_files::is_machine_text;

/// Returns the allocation in the text; `None` if the text contains no allocation. If NICs are given, the network of the
/// allocation must match them.
///
/// # Errors
/// Returns all problems, with line and column if they are known.
pub(crate) fn read_allocation(text: &str, nics: Option<&[Nic]>) -> Result<Option<Allocation>, Vec<Diagnostic>> {
    let read =
        if operator_files::is_agent_document(text) { parse_agent_document(text) } else { parse_machine_file(text) };
    let misfits = nics.map(|nics| operator_files::find_network_misfits(text, nics)).unwrap_or_default();
    match read {
        Ok(allocation) if misfits.is_empty() => Ok(allocation),
        Ok(_) => Err(parse_messages(misfits)),
        Err(lines) => Err(parse_messages(lines.into_iter().chain(misfits).collect())),
    }
}

fn parse_machine_file(text: &str) -> Result<Option<Allocation>, Vec<String>> {
    let machine =
        operator_files::parse_machine(text).map_err(|lines| lines.lines().map(str::to_owned).collect::<Vec<_>>())?;
    Ok(machine.allocation.map(|allocation| allocation.to_agent_allocation()))
}

fn parse_agent_document(text: &str) -> Result<Option<Allocation>, Vec<String>> {
    let machine: allocation::AssignedMachine =
        serde_json::from_str(text).map_err(|error| vec![format_json_error(&error)])?;
    let wrong = operator_files::find_network_problems(text);
    if wrong.is_empty() { Ok(machine.allocation) } else { Err(wrong) }
}

fn format_json_error(error: &serde_json::Error) -> String {
    format!("{}:{}: {}", error.line().max(1), error.column().max(1), describe_json_error(error))
}

/// Converts messages to diagnostics. If a message starts with a line and a column, they become the position.
pub(crate) fn parse_messages(lines: Vec<String>) -> Vec<Diagnostic> {
    let problem = |line: &String| {
        let mut parts = line.splitn(3, ':');
        let mut number = || parts.next().and_then(|part| part.parse::<usize>().ok());
        match (number(), number()) {
            (Some(line), Some(column)) => {
                let message = parts.next().unwrap_or_default().trim_start();
                Diagnostic { line: Some(line), column: Some(column), ..Diagnostic::new("", message) }
            }
            _ => Diagnostic::new("", line),
        }
    };
    let mut problems: Vec<Diagnostic> = lines.iter().map(problem).collect();
    problems.sort_by_key(|problem| (problem.line, problem.column));
    problems
}

#[cfg(test)]
mod tests;
