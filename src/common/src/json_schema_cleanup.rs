//! Post-processing of JSON Schemas (draft 2020-12) that are generated from types.

use serde_json::Value;

/// Removes formats such as `format: uint32`, which no standard defines, and `default: null`, which only repeats that a
/// field is optional.
pub fn remove_nonstandard_formats(schema: &mut Value) {
    match schema {
        Value::Object(fields) => {
            fields.retain(|name, value| match name.as_str() {
                "format" => !value.as_str().is_some_and(|format| format.starts_with("uint")),
                "default" => !value.is_null(),
                _ => true,
            });
            fields.values_mut().for_each(remove_nonstandard_formats);
        }
        Value::Array(items) => items.iter_mut().for_each(remove_nonstandard_formats),
        _ => {}
    }
}
