//! Reads a layout from every spelling in use into the canonical types.

use super::Layout;
use crate::problem::Problem;

/// A layout that can be worked with, and what was unusual about its spelling.
#[derive(Debug, Clone)]
pub struct Parsed {
    pub layout: Layout,
    pub notes: Vec<Problem>,
}

/// Reads and validates a layout from YAML (JSON is YAML too), with line and column in every problem.
///
/// # Errors
/// Every problem of the document: spelling, types, unknown fields, and the rules of [`super::validate`].
pub fn read_yaml(_text: &str) -> Result<Parsed, Vec<Problem>> {
    Err(vec![Problem::new("", "not written yet")])
}

/// Reads and validates a layout as it arrives inside an allocation.
///
/// # Errors
/// As [`read_yaml`], with places but no lines.
pub fn read_json(_value: &serde_json::Value) -> Result<Parsed, Vec<Problem>> {
    Err(vec![Problem::new("", "not written yet")])
}
