//! Commands that process files on a workstation, one file for each command. Only `plan` and `layout from-machine` can
//! also take their inputs from a server, through `server_commands::machine_plan`. Of these commands, only `check --fix
//! --write`, `image add`, `plan --out`, `site plan --approve` and `tree --svg=FILE` write files. `image pack` is in the
//! crate `image`.

mod allocation_reader;
pub(crate) mod check;
#[cfg(test)]
mod check_fuzz;
#[cfg(test)]
mod check_tests;
pub mod explain;
pub mod image_add;
pub(crate) mod installed_crypttab;
pub mod layout_from_machine;
pub mod plan;
pub(crate) mod plan_templates;
pub(crate) mod saved_plan;
pub(crate) mod schema;
pub mod site;
mod site_files;
pub mod site_plan;
pub mod store_migration;
pub(crate) mod tree;

pub use check::run_check;
pub use explain::run_explain;
pub use plan::run_plan;
pub use schema::run_schema;
pub use site::run_site;
pub use site_plan::run_rack;
pub use store_migration::run_store;
pub use tree::run_tree;

use common::diagnostic::Diagnostic;
use common::error::{Context, Error, Phase, Result};
use common::error_code::ErrorCode;
use common::format::metal_api_phrase_replacement::reword_metal_phrases;
use common::format::terminal_escaping::escape_line;
use common::type_errors::describe_json_error;
use model::layout::{self, ParsedLayout};
use std::io::Read;
use std::path::Path;

/// Formats the problems of a file, one per line: `FILE:LINE:COLUMN: FIELD: MESSAGE (CODE)`.
fn problem_lines(file: &Path, problems: &[Diagnostic]) -> String {
    problems.iter().map(|problem| escape_line(&format_located(file, problem)).into_owned() + "\n").collect()
}

fn format_located(file: &Path, problem: &Diagnostic) -> String {
    let blank = if problem.line.is_some() { "" } else { " " };
    format!("{}:{blank}{}", file.display(), reword_metal_phrases(&problem.to_coded_text()))
}

/// Parses one layout in any supported syntax. The error lists the problems in the format of `drophammer check`.
pub(crate) fn check_layout_text(file: &Path, text: &str) -> std::result::Result<ParsedLayout, String> {
    layout::read_yaml(text).map_err(|problems| {
        let lines = problem_lines(file, &check::explain_layout_problems(text, problems));
        lines.trim_end().to_owned()
    })
}

fn print_problems(file: &Path, problems: &[Diagnostic]) -> Result<()> {
    common::output::print_text(&problem_lines(file, problems))
}

/// Argument that stands for standard input instead of a file.
pub(crate) const STDIN: &str = "-";

fn read_layout(path: &Path) -> Result<std::result::Result<ParsedLayout, Vec<Diagnostic>>> {
    let text = decode_layouts(path, &read_bytes(path)?);
    Ok(text
        .and_then(|text| layout::read_yaml(&text).map_err(|problems| check::explain_layout_problems(&text, problems))))
}

/// Decodes the content of a layout file. A file whose name ends in `.json` must be strict JSON: the YAML parser would
/// also accept files that other programs, which read the file as JSON, would reject.
fn decode_layouts(path: &Path, bytes: &[u8]) -> std::result::Result<String, Vec<Diagnostic>> {
    let text = std::str::from_utf8(bytes).map_err(|error| {
        let why = format!("not UTF-8 text: invalid from byte {position} on", position = error.valid_up_to() + 1);
        vec![Diagnostic::new("", why).with_code(ErrorCode::Layout)]
    })?;
    if is_json(path)
        && let Err(error) = serde_json::from_str::<serde::de::IgnoredAny>(text.trim_start_matches('\u{feff}'))
    {
        let why = describe_json_error(&error);
        let why = format!("not valid JSON, although the file name ends in .json: {why}");
        let mut problem = Diagnostic::new("", why).with_code(ErrorCode::Layout);
        (problem.line, problem.column) = (Some(error.line().max(1)), Some(error.column().max(1)));
        return Err(vec![problem]);
    }
    Ok(text.to_owned())
}

fn is_json(path: &Path) -> bool {
    path.extension().is_some_and(|end| end == "json")
}

fn read_bytes(path: &Path) -> Result<Vec<u8>> {
    let read = match path.as_os_str() == STDIN {
        true => {
            let mut bytes = Vec::new();
            std::io::stdin().lock().read_to_end(&mut bytes).map(|_| bytes)
        }
        false => std::fs::read(path),
    };
    read.context(Phase::Settings, || format!("cannot read {}", path.display()))
}

/// Reads the text of a file, or of standard input if the path is `-`.
///
/// # Errors
/// Returns an error if the file cannot be read, or is not UTF-8 text.
pub(crate) fn read_text(path: &Path) -> Result<String> {
    String::from_utf8(read_bytes(path)?)
        .map_err(|error| Error::refusal(Phase::Settings, format!("cannot read {}: {error}", path.display())))
}
