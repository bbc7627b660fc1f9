//! `drophammer explain`: prints the manual's entry of an error code, or lists all codes.

pub(crate) mod manual_entry;
mod paragraphs;

use crate::terminal_output::table_width;
use clap::Args;
use common::error::{Error, Phase, Result};
use common::error_code::ErrorCode;
use common::exit_status::{CommandOutcome, report_refusal};
use common::output::{print_text, to_json};
use manual_entry::ManualEntry;
use paragraphs::wrap_paragraphs;

/// Maximum width of paragraphs: longer lines are hard to read.
const MAX_WIDTH: usize = 100;

/// Options of `drophammer explain`.
#[derive(Debug, Args)]
pub struct ExplainOptions {
    /// Code at the end of a message, such as DH-310. Without a code, all codes are listed.
    pub code: Option<String>,
    /// Print JSON.
    #[arg(long)]
    pub json: bool,
}

/// Prints the entry of a code, or the list of all codes.
///
/// # Errors
/// Returns an error if standard output cannot be written.
pub fn run_explain(options: &ExplainOptions) -> Result<CommandOutcome> {
    let text = explain_output(options);
    report_refusal(text.and_then(|text| print_text(&text)).map(|()| CommandOutcome::Good))
}

fn explain_output(options: &ExplainOptions) -> Result<String> {
    let Some(code) = &options.code else {
        let entries: Vec<ManualEntry> = ErrorCode::ALL.iter().filter_map(|code| ManualEntry::find(*code)).collect();
        return match options.json {
            true => Ok(to_json(&entries)? + "\n"),
            false => Ok(entries.iter().map(|entry| format!("{}  {}\n", entry.code, entry.title)).collect()),
        };
    };
    let width = table_width().map_or(MAX_WIDTH, |width| width.min(MAX_WIDTH));
    let entry = ErrorCode::parse(code).and_then(ManualEntry::find).ok_or_else(|| {
        let what =
            format!("cannot explain {code:?}: this version has no such code; `drophammer explain` lists all codes");
        Error::refusal(Phase::Settings, what).with_code(ErrorCode::UnknownCode)
    })?;
    if options.json { Ok(to_json(&entry)? + "\n") } else { Ok(wrap_paragraphs(&entry.to_string(), width)) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn explain(code: Option<&str>, json: bool) -> Result<String> {
        explain_output(&ExplainOptions { code: code.map(str::to_owned), json })
    }

    #[test]
    fn a_code_is_explained_in_any_spelling() {
        let text = explain(Some("DH-310"), false).unwrap();
        assert!(text.starts_with("DH-310: A filesystem cannot be created\n\nmkfs has failed"), "{text}");
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
        assert_eq!(text.lines().count(), ErrorCode::ALL.len());
        assert!(text.contains("DH-210  No such disk\n"), "{text}");
        let json: Vec<serde_json::Value> = serde_json::from_str(&explain(None, true).unwrap()).unwrap();
        assert_eq!(json.len(), ErrorCode::ALL.len());
    }

    #[test]
    fn an_unknown_code_is_refused_with_a_hint() {
        for code in ["DH-999", "", "E0277", "DH-31\u{1b}[2J"] {
            let error = explain(Some(code), false).unwrap_err();
            assert!(error.is_refusal() && error.to_coded_text().contains("lists all codes (DH-105)"), "{error}");
        }
    }
}
