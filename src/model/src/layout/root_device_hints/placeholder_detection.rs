//! Detection of hints that select a disk by a placeholder.

use super::DiskHints;
use super::expression::{ComparisonOperator, HintCondition, TextCondition};
use crate::disk_identifiers::{is_placeholder_serial, is_placeholder_wwn};
use std::fmt;

/// A hint whose value is a placeholder. Such a hint selects no disk.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PlaceholderHint {
    pub hint: String,
    value: String,
}

impl fmt::Display for PlaceholderHint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{value:?} is a placeholder that many disks report: it does not identify a disk, so this hint does not match any disk",
            value = self.value
        )
    }
}

/// Returns the first hint whose values are all placeholders. No disk can match such a hint. Returns `None` if there is
/// no such hint.
pub fn find_placeholder(hints: &DiskHints) -> Option<PlaceholderHint> {
    hints.iter().find_map(|(hint, text)| {
        let Ok(HintCondition::Text(word)) = HintCondition::parse(hint, text) else { return None };
        let values = exact_values(&word);
        let is_any_usable = values.iter().any(|value| !is_placeholder(hint, value));
        let value = values.first().filter(|_| !is_any_usable)?;
        Some(PlaceholderHint { hint: hint.clone(), value: (*value).to_owned() })
    })
}

/// Returns the reason why a value of a hint selects no disk; `None` if the value is not a placeholder.
pub(super) fn describe_if_placeholder(hint: &str, value: &str) -> Option<String> {
    let found = || PlaceholderHint { hint: hint.to_owned(), value: value.to_owned() };
    is_placeholder(hint, value).then(|| found().to_string())
}

fn is_placeholder(hint: &str, value: &str) -> bool {
    match hint {
        "serial" => is_placeholder_serial(value),
        "wwn" | "wwn_with_extension" => is_placeholder_wwn(value),
        _ => false,
    }
}

/// Returns the accepted values of the attribute if the condition is a comparison for equality; otherwise an empty list.
pub(super) fn exact_values(word: &TextCondition) -> Vec<&str> {
    match word {
        TextCondition::Compared(ComparisonOperator::Equal, value) => vec![value],
        TextCondition::OneOf(values) => values.iter().map(String::as_str).collect(),
        _ => Vec::new(),
    }
}
