//! Findings about an input, each with its location. A parser collects the findings, so that all of them can be reported
//! together.

use crate::error_code::{self, ErrorCode};
use crate::format::os_error_messages::without_os_error_numbers;
use serde::{Deserialize, Serialize};
use std::fmt;

/// A finding about an input: an error or a note.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Diagnostic {
    /// Path in the document, such as `disks[0].partitions[1].size`; empty for the document as a whole.
    pub place: String,
    /// Line in the file, starting at 1; `None` if the document was not read from a file.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub line: Option<usize>,
    /// Column in the file, starting at 1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub column: Option<usize>,
    /// The problem and its remedy, in one sentence.
    pub message: String,
    /// Code of a problem, such as `DH-210`; `None` for a note.
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "error_code::deserialize_known")]
    pub code: Option<ErrorCode>,
}

impl Diagnostic {
    pub fn new(place: impl Into<String>, message: impl Into<String>) -> Self {
        let message = without_os_error_numbers(&message.into()).into_owned();
        Diagnostic { place: place.into(), line: None, column: None, message, code: None }
    }

    #[must_use]
    pub fn with_code(self, code: ErrorCode) -> Diagnostic {
        Diagnostic { code: Some(code), ..self }
    }

    /// Sets the code of the problem, unless it already has a code.
    #[must_use]
    pub fn with_default_code(self, code: ErrorCode) -> Diagnostic {
        Diagnostic { code: self.code.or(Some(code)), ..self }
    }

    /// Returns the location and the message, with the code at the end.
    pub fn to_coded_text(&self) -> String {
        self.code.map_or_else(|| self.to_string(), |code| code.annotate(self.to_string()))
    }
}

impl fmt::Display for Diagnostic {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let (Some(line), Some(column)) = (self.line, self.column) {
            write!(f, "{line}:{column}: ")?;
        }
        if !self.place.is_empty() {
            write!(f, "{}: ", self.place)?;
        }
        f.write_str(&self.message)
    }
}

/// Returns the path of the field `name` of the mapping whose path is `place`.
pub fn child_path(place: &str, name: &str) -> String {
    if place.is_empty() { name.to_owned() } else { format!("{place}.{name}") }
}

/// Formats problems in one line, each with its code: for messages of which lists display only the first line.
pub fn summarize_problems(problems: &[Diagnostic]) -> String {
    let coded = problems.iter().map(Diagnostic::to_coded_text);
    let lines: Vec<String> = coded.map(|text| text.lines().map(str::trim).collect::<Vec<_>>().join(" ")).collect();
    lines.join("; ")
}

/// Formats problems for an error message, one problem per line.
pub fn join_problems(problems: &[Diagnostic]) -> String {
    problems.iter().map(|problem| problem.to_string()).collect::<Vec<_>>().join("\n")
}
