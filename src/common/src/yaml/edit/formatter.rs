//! Formatting of values as YAML, in block or flow style.

pub(crate) use crate::yaml::format_scalar;

use serde_json::{Map, Value};

/// Formats a value in one line.
pub(crate) fn format_flow(value: &Value) -> String {
    match value {
        Value::Object(fields) => {
            let fields = non_empty_fields(fields)
                .map(|(name, value)| format!("{}: {}", format_scalar(name), format_flow(value)));
            format!("{{{}}}", fields.collect::<Vec<_>>().join(", "))
        }
        Value::Array(items) => format!("[{}]", items.iter().map(format_flow).collect::<Vec<_>>().join(", ")),
        Value::String(text) => format_scalar(text),
        other => other.to_string(),
    }
}

/// Formats the value of a field as the text after the field's colon. `indent` is the indentation of the field. Deeply
/// nested values are written in one line.
pub(crate) fn format_block(value: &Value, indent: usize, depth: usize, newline: &str) -> String {
    let blanks = " ".repeat(indent + 2);
    match value {
        Value::Object(fields) if non_empty_fields(fields).next().is_some() && depth < 4 => {
            let field = |(name, value): (&String, &Value)| {
                format!(
                    "{newline}{blanks}{}:{}",
                    format_scalar(name),
                    format_block(value, indent + 2, depth + 1, newline)
                )
            };
            non_empty_fields(fields).map(field).collect()
        }
        Value::Array(items) if items.iter().any(Value::is_object) => {
            items.iter().map(|value| format!("{newline}{}", format_item(value, indent + 2, depth, newline))).collect()
        }
        other => format!(" {}", format_flow(other)),
    }
}

/// Formats an item of a list. `column` is the column of the item's dash.
pub(crate) fn format_item(value: &Value, column: usize, depth: usize, newline: &str) -> String {
    let dash = " ".repeat(column) + "- ";
    match value {
        Value::Object(fields) if non_empty_fields(fields).next().is_some() && depth < 3 => {
            let field = |(name, value): (&String, &Value)| {
                format!("{}:{}", format_scalar(name), format_block(value, column + 2, depth + 2, newline))
            };
            let between = format!("{newline}{}", " ".repeat(column + 2));
            dash + &non_empty_fields(fields).map(field).collect::<Vec<_>>().join(&between)
        }
        other => dash + &format_flow(other),
    }
}

/// Returns the fields that are written: all fields except those with a null value or an empty list.
fn non_empty_fields(fields: &Map<String, Value>) -> impl Iterator<Item = (&String, &Value)> {
    fields.iter().filter(|(_, value)| !value.is_null() && !value.as_array().is_some_and(Vec::is_empty))
}
