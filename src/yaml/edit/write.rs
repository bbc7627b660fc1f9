//! Formatting of values as YAML, in block or flow style.

pub use crate::yaml::scalar;

use serde_json::{Map, Value};

/// Formats a value in one line.
pub fn flow(value: &Value) -> String {
    match value {
        Value::Object(fields) => {
            let fields = given(fields).map(|(name, value)| format!("{}: {}", scalar(name), flow(value)));
            format!("{{{}}}", fields.collect::<Vec<_>>().join(", "))
        }
        Value::Array(items) => format!("[{}]", items.iter().map(flow).collect::<Vec<_>>().join(", ")),
        Value::String(text) => scalar(text),
        other => other.to_string(),
    }
}

/// Formats the value after the colon of a field with this indentation. Deeply nested values are written in one line.
pub fn block(value: &Value, indent: usize, depth: usize, newline: &str) -> String {
    let blanks = " ".repeat(indent + 2);
    match value {
        Value::Object(fields) if given(fields).next().is_some() && depth < 4 => {
            let field = |(name, value): (&String, &Value)| {
                format!("{newline}{blanks}{}:{}", scalar(name), block(value, indent + 2, depth + 1, newline))
            };
            given(fields).map(field).collect()
        }
        Value::Array(items) if items.iter().any(Value::is_object) => {
            items.iter().map(|value| format!("{newline}{}", item(value, indent + 2, depth, newline))).collect()
        }
        other => format!(" {}", flow(other)),
    }
}

/// Formats an item of a list, with its dash at this column.
pub fn item(value: &Value, column: usize, depth: usize, newline: &str) -> String {
    let dash = " ".repeat(column) + "- ";
    match value {
        Value::Object(fields) if given(fields).next().is_some() && depth < 3 => {
            let field = |(name, value): (&String, &Value)| {
                format!("{}:{}", scalar(name), block(value, column + 2, depth + 2, newline))
            };
            let between = format!("{newline}{}", " ".repeat(column + 2));
            dash + &given(fields).map(field).collect::<Vec<_>>().join(&between)
        }
        other => dash + &flow(other),
    }
}

/// Returns the fields to write: neither null nor empty lists.
fn given(fields: &Map<String, Value>) -> impl Iterator<Item = (&String, &Value)> {
    fields.iter().filter(|(_, value)| !value.is_null() && !value.as_array().is_some_and(Vec::is_empty))
}
