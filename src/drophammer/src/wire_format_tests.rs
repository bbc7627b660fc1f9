//! Test that compares the fields of all documents and of the API, without descriptions, with `testdata/wire.txt`. A
//! change of that file is a change of the wire format.

use crate::local_commands::schema::{SchemaDocument, generate_schema};
use clap::ValueEnum;
use serde_json::{Map, Value};
use std::collections::BTreeSet;
use std::path::Path;

/// Adds a line for each property of a schema and of its nested schemas: the path, `?` for an optional property, and the
/// type.
fn add_lines(path: &str, schema: &Value, lines: &mut BTreeSet<String>) {
    let Some(schema) = schema.as_object() else { return };
    let required: BTreeSet<&str> = schema
        .get("required")
        .and_then(Value::as_array)
        .map_or_else(BTreeSet::new, |names| names.iter().filter_map(Value::as_str).collect());
    for (name, property) in schema.get("properties").and_then(Value::as_object).into_iter().flatten() {
        let mark = if required.contains(name.as_str()) { "" } else { "?" };
        lines.insert(format!("{path}.{name}{mark}: {}", describe_type(property)));
        add_lines(&format!("{path}.{name}"), property, lines);
    }
    for keyword in ["anyOf", "oneOf", "allOf"] {
        let parts = schema.get(keyword).and_then(Value::as_array).into_iter().flatten();
        parts.for_each(|part| add_lines(path, part, lines));
    }
    for keyword in ["items", "additionalProperties"] {
        schema.get(keyword).into_iter().for_each(|part| add_lines(&format!("{path}[]"), part, lines));
    }
}

/// Describes a JSON Schema by those of its keywords that restrict values.
fn describe_type(schema: &Value) -> String {
    let Some(schema) = schema.as_object() else { return schema.to_string() };
    let kept = ["$ref", "type", "const", "enum", "items", "anyOf", "oneOf"];
    let parts = kept.iter().filter_map(|keyword| {
        let value = schema.get(*keyword)?;
        Some(match value {
            Value::Array(values) if values.iter().all(Value::is_object) => {
                format!("{keyword} ({})", values.iter().map(describe_type).collect::<Vec<_>>().join(" | "))
            }
            Value::Object(_) => format!("{keyword} ({})", describe_type(value)),
            value => format!("{keyword} {value}"),
        })
    });
    parts.collect::<Vec<_>>().join(", ")
}

fn add_definitions(name: &str, definitions: Option<&Map<String, Value>>, lines: &mut BTreeSet<String>) {
    for (definition, schema) in definitions.into_iter().flatten() {
        let path = format!("{name} {definition}");
        lines.insert(format!("{path}: {}", describe_type(schema)));
        add_lines(&path, schema, lines);
    }
}

fn wire_text() -> String {
    let mut lines = BTreeSet::new();
    for document in SchemaDocument::value_variants() {
        let name = format!("{document:?}").to_lowercase();
        let schema = generate_schema(*document);
        add_lines(&name, &schema, &mut lines);
        add_definitions(&name, schema.get("$defs").and_then(Value::as_object), &mut lines);
    }
    let openapi = api::openapi::openapi_document();
    let definitions = openapi.pointer("/components/schemas").and_then(Value::as_object);
    assert!(definitions.is_some_and(|all| all.len() > 20), "openapi has schemas");
    add_definitions("openapi", definitions, &mut lines);
    for (path, operations) in openapi["paths"].as_object().into_iter().flatten() {
        for (method, operation) in operations.as_object().into_iter().flatten() {
            let codes: Vec<&String> =
                operation["responses"].as_object().into_iter().flatten().map(|(code, _)| code).collect();
            lines.insert(format!("endpoint {method} {path}: {codes:?}"));
        }
    }
    lines.into_iter().map(|line| line + "\n").collect()
}

#[test]
fn the_wire_is_as_recorded() {
    let file = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../../testdata/wire.txt"));
    let found = wire_text();
    if std::env::var_os("UPDATE_GOLDEN").is_some() {
        std::fs::write(file, &found).unwrap();
    }
    let expected = std::fs::read_to_string(file).unwrap_or_default();
    let (found, expected): (BTreeSet<&str>, BTreeSet<&str>) = (found.lines().collect(), expected.lines().collect());
    let gone: Vec<&&str> = expected.difference(&found).collect();
    let new: Vec<&&str> = found.difference(&expected).collect();
    assert!(
        gone.is_empty() && new.is_empty(),
        "the wire format has changed: describe the change in CHANGELOG.md, and update testdata/wire.txt with `UPDATE_GOLDEN=1 cargo test`\ngone: {gone:#?}\nnew: {new:#?}"
    );
}
