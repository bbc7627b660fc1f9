//! `drophammer explain`: prints the entry about an error code in the manual, or lists all codes.

pub(crate) mod manual_entry;
mod paragraphs;

use crate::object_list::{ListColumn, ListOptions, ObjectList, OutputFormat, format_for_terminal, to_yaml};
use crate::terminal_output::{print_for_terminal, table_width};
use clap::Args;
use common::command_outcome::{CommandOutcome, report_refusal};
use common::error::{Error, Phase, Result};
use common::error_code::ErrorCode;
use common::output::to_json;
use manual_entry::ManualEntry;
use paragraphs::wrap_paragraphs;

/// Maximum width of paragraphs, because longer lines are hard to read.
const MAX_WIDTH: usize = 100;

/// Options of `drophammer explain`.
#[derive(Debug, Args)]
pub struct ExplainOptions {
    /// Code at the end of a message, such as DH-310. Without a code, all codes are listed.
    pub code: Option<String>,
    #[command(flatten)]
    pub list: ListOptions,
    /// Print the entry or the list as JSON.
    #[arg(long)]
    pub json: bool,
}

/// Prints the entry of a code, or the list of all codes.
///
/// # Errors
/// Returns an error if standard output cannot be written.
pub fn run_explain(options: &ExplainOptions) -> Result<CommandOutcome> {
    let text = explain_output(options);
    report_refusal(text.and_then(|text| print_for_terminal(&text)).map(|()| CommandOutcome::Good))
}

fn explain_output(options: &ExplainOptions) -> Result<String> {
    let Some(code) = &options.code else {
        let entries: Vec<ManualEntry> = ErrorCode::ALL.iter().filter_map(|code| ManualEntry::find(*code)).collect();
        return format_for_terminal(&code_columns(), &entries, &options.list, options.json);
    };
    let width = table_width().map_or(MAX_WIDTH, |width| width.min(MAX_WIDTH));
    let entry = ErrorCode::parse(code).and_then(ManualEntry::find).ok_or_else(|| {
        let what =
            format!("cannot explain {code:?}: this version has no such code; `drophammer explain` lists all codes");
        Error::refusal(Phase::Settings, what).with_code(ErrorCode::UnknownCode)
    })?;
    match options.list.output_format(options.json)? {
        OutputFormat::Json => Ok(to_json(&entry)? + "\n"),
        OutputFormat::Yaml => to_yaml(&entry),
        OutputFormat::Name => Ok(format!("{}\n", entry.code)),
        OutputFormat::Table | OutputFormat::Wide => Ok(wrap_paragraphs(&entry.to_string(), width)),
    }
}

fn code_columns() -> ObjectList<'static, ManualEntry> {
    let columns = vec![
        ListColumn::new("code", |entry: &ManualEntry| entry.code.to_string()),
        ListColumn::new("meaning", |entry: &ManualEntry| entry.title).with_prose(),
        ListColumn::new("page", |entry: &ManualEntry| entry.page).only_wide(),
    ];
    ObjectList { command: "explain", noun: "codes", name: |entry| entry.code.to_string(), columns }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn explain(code: Option<&str>, json: bool) -> Result<String> {
        explain_output(&ExplainOptions { code: code.map(str::to_owned), list: ListOptions::default(), json })
    }

    #[test]
    fn a_code_is_explained_in_any_spelling() {
        let text = explain(Some("DH-310"), false).unwrap();
        let message = "    create <format> on <device>: <error message of mkfs>\n";
        assert!(text.starts_with(&format!("DH-310: A filesystem cannot be created\n\n{message}")), "{text}");
        assert!(text.contains("\n\nmkfs has failed"), "{text}");
        assert!(
            text.ends_with("Manual: docs/codes-install.md\n") && !text.contains("](") && !text.contains("**"),
            "{text}"
        );
        for spelling in ["dh-310", "310"] {
            assert_eq!(explain(Some(spelling), false).unwrap(), text);
        }
        let json: serde_json::Value = serde_json::from_str(&explain(Some("310"), true).unwrap()).unwrap();
        assert_eq!((&json["code"], &json["page"]), (&"DH-310".into(), &"codes-install.md".into()));
    }

    #[test]
    fn without_a_code_all_codes_are_listed() {
        let text = explain(None, false).unwrap();
        assert_eq!(text.lines().count(), 1 + ErrorCode::ALL.len());
        assert!(text.contains("DH-210  A disk of the layout does not exist\n"), "{text}");
        let json: Vec<serde_json::Value> = serde_json::from_str(&explain(None, true).unwrap()).unwrap();
        assert_eq!(json.len(), ErrorCode::ALL.len());
    }

    #[test]
    fn codes_are_printed_in_all_formats_of_lists() {
        let output = |code: Option<&str>, output| {
            let list = ListOptions { output: Some(output), ..ListOptions::default() };
            explain_output(&ExplainOptions { code: code.map(str::to_owned), list, json: false }).unwrap()
        };
        assert!(output(None, OutputFormat::Name).contains("DH-310\n"));
        assert_eq!(output(Some("310"), OutputFormat::Name), "DH-310\n");
        assert!(output(Some("310"), OutputFormat::Yaml).contains("code: DH-310\n"));
    }

    #[test]
    fn an_unknown_code_is_refused_with_a_hint() {
        for code in ["DH-999", "", "E0277", "DH-31\u{1b}[2J"] {
            let error = explain(Some(code), false).unwrap_err();
            assert!(error.is_refusal() && error.to_coded_text().contains("lists all codes (DH-105)"), "{error}");
        }
    }
}
