//! Writer that formats any value as YAML in block style.

use super::format_scalar;
use serde_json::Value;

/// Formats a value as a YAML document. A reader of the document gets the same value, and the document contains no
/// hidden characters.
pub fn to_block_yaml(value: &Value) -> String {
    let mut text = String::new();
    append_value(&mut text, value, 0);
    text
}

fn append_value(text: &mut String, value: &Value, indent: usize) {
    match value {
        Value::Object(fields) if !fields.is_empty() => {
            for (name, value) in fields {
                *text += &format!("{:indent$}{}:", "", format_scalar(name));
                append_field_value(text, value, indent);
            }
        }
        Value::Array(items) if !items.is_empty() => {
            for item in items {
                let mut nested = String::new();
                append_value(&mut nested, item, indent + 2);
                *text += &format!("{:indent$}- {}", "", nested.trim_start_matches(' '));
            }
        }
        Value::String(string) => *text += &format!("{:indent$}{}\n", "", format_scalar(string)),
        other => *text += &format!("{:indent$}{other}\n", ""),
    }
}

/// Appends the value of a field: in the line of the field if the value is a scalar or empty, and below it otherwise.
fn append_field_value(text: &mut String, value: &Value, indent: usize) {
    let is_nested = match value {
        Value::Object(fields) => !fields.is_empty(),
        Value::Array(items) => !items.is_empty(),
        _ => false,
    };
    match is_nested {
        true => {
            text.push('\n');
            append_value(text, value, indent + 2);
        }
        false => {
            text.push(' ');
            append_value(text, value, 0);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::output_capture::{HOSTILE, first_hidden};
    use serde_json::json;

    fn read_back(text: &str) -> Value {
        let options = marked_yaml::LoaderOptions::default().prevent_coercion(true);
        super::super::to_json(&super::super::read_document(text, options).unwrap_or_else(|why| panic!("{why}\n{text}")))
    }

    #[test]
    fn values_are_nested_by_indentation() {
        let value = json!([{"id": "a", "disks": [{"device": "/dev/sda", "sizes": [1, 2]}], "none": null}, "text"]);
        let expected =
            "- disks:\n    - device: /dev/sda\n      sizes:\n        - 1\n        - 2\n  id: a\n  none: null\n- text\n";
        assert_eq!(to_block_yaml(&value), expected);
        assert_eq!(to_block_yaml(&json!([])), "[]\n");
        assert_eq!(to_block_yaml(&json!({"a": {}})), "a: {}\n");
    }

    #[test]
    fn written_values_are_read_back_unchanged() {
        let value = json!({"yes": "no", "1.0": "12", "": "", "hostile": HOSTILE, "nested": [[1, [2.5]], [], {}, true, null],
            "lines": "a\nb: c\n- d", "quotes": "\"'\\#"});
        let text = to_block_yaml(&value);
        assert_eq!(read_back(&text), value, "{text}");
        assert_eq!(first_hidden(&text), None);
    }
}
