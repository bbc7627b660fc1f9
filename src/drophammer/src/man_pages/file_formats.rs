//! Manual pages in section 5: the fields of layouts, machine files and image files, generated from their JSON Schemas.

use super::page_sections::{add_entry, add_literal};
use crate::local_commands::schema::{SchemaDocument, generate_schema};
use clap_mangen::roff::{Roff, bold, roman};
use serde_json::Value;

/// Names of the manual pages about file formats.
pub(super) const PAGES: [&str; 3] = ["drophammer-layout", "drophammer-machine", "drophammer-image"];
/// Maximum depth of nested fields on a page. docs/network.md describes the deeper levels of the network configuration.
const DEPTH: usize = 5;

/// Page about the format of one type of file.
struct FilePage {
    name: &'static str,
    document: SchemaDocument,
    title: &'static str,
    folder: &'static str,
    example: &'static str,
}

/// Returns the file names and contents of the pages.
pub(super) fn render_pages() -> Vec<(String, Vec<u8>)> {
    let pages = [
        FilePage {
            name: PAGES[0],
            document: SchemaDocument::Layout,
            title: "disks, partitions, arrays, volumes and filesystems of machines",
            folder: "layouts",
            example: include_str!("../../../../examples/site/layouts/storage.yaml"),
        },
        FilePage {
            name: PAGES[1],
            document: SchemaDocument::Machine,
            title: "identity, controller and allocation of a machine",
            folder: "machines",
            example: include_str!("../../../../examples/site/machines/storage-7.yaml"),
        },
        FilePage {
            name: PAGES[2],
            document: SchemaDocument::Image,
            title: "location and digest of an image",
            folder: "images",
            example: include_str!("../../../../examples/site/images/debian-12.yaml"),
        },
    ];
    pages.iter().map(|page| (format!("{}.5", page.name), render_page(page).into_bytes())).collect()
}

fn render_page(page: &FilePage) -> String {
    let FilePage { name, document, title, folder, example } = page;
    let schema = generate_schema(*document);
    let mut roff = Roff::new();
    roff.control("TH", [*name, "5", "", concat!("drophammer ", env!("CARGO_PKG_VERSION")), ""]);
    roff.control("SH", ["NAME"]);
    roff.text([roman(format!("{name} - {title}"))]);
    roff.control("SH", ["SYNOPSIS"]);
    roff.text([roman(format!("DIR/{folder}/*.yaml"))]);
    roff.control("SH", ["DESCRIPTION"]);
    roff.text([roman(schema["description"].as_str().unwrap_or_default())]);
    roff.text([roman("Unknown fields and duplicate fields are errors.")]);
    roff.control("SH", ["FIELDS"]);
    FieldList { root: &schema, roff: &mut roff }.add_fields(&schema, "", DEPTH);
    roff.control("SH", ["EXAMPLES"]);
    add_literal(&mut roff, example);
    roff.control("SH", ["EXIT STATUS"]);
    roff.text([roman("drophammer-check(1) returns 0 if the file is valid, and 2 otherwise.")]);
    roff.control("SH", ["ENVIRONMENT"]);
    roff.text([roman("Environment variables do not change the meaning of the file.")]);
    roff.control("SH", ["FILES"]);
    roff.text([roman(format!("/usr/share/doc/drophammer/examples/site/{folder}/"))]);
    roff.control("SH", ["SEE ALSO"]);
    let others = PAGES.iter().filter(|other| *other != name).map(|other| format!("{other}(5)"));
    let all: Vec<String> =
        ["drophammer-check(1)", "drophammer-schema(1)"].map(str::to_owned).into_iter().chain(others).collect();
    roff.text([roman(all.join(", "))]);
    roff.to_roff()
}

/// Writes a schema's fields as man page entries.
struct FieldList<'a> {
    root: &'a Value,
    roff: &'a mut Roff,
}

impl<'a> FieldList<'a> {
    /// Adds the fields of an object, each followed by the fields of its nested objects. `prefix` is the path of the
    /// object.
    fn add_fields(&mut self, schema: &'a Value, prefix: &str, depth: usize) {
        let required = |name: &str| schema["required"].as_array().is_some_and(|all| all.iter().any(|one| one == name));
        for (name, field) in schema["properties"].as_object().into_iter().flatten() {
            if field["deprecated"] == true {
                continue;
            }
            let path = format!("{prefix}{name}");
            let resolved = self.resolve(field);
            let mut notes: Vec<String> = describe_type(resolved).into_iter().collect();
            notes.extend(required(name).then(|| "required".to_owned()));
            let default = field.get("default").filter(|value| !value.is_null() && !value.is_object());
            notes.extend(default.map(|value| format!("default {value}")));
            let notes = if notes.is_empty() { String::new() } else { format!(" ({})", notes.join(", ")) };
            add_entry(self.roff, [bold(path.as_str()), roman(notes)], &self.describe(field, resolved));
            let (below, marker) = match resolved.get("items") {
                Some(items) => (self.resolve(items), "[]."),
                None => (resolved, "."),
            };
            if depth > 1 {
                self.add_fields(below, &format!("{path}{marker}"), depth - 1);
            }
        }
    }

    /// Resolves references, and selects the alternative that is not null.
    fn resolve(&self, schema: &'a Value) -> &'a Value {
        let reference = schema["$ref"].as_str().and_then(|reference| reference.strip_prefix('#'));
        if let Some(target) = reference.and_then(|path| self.root.pointer(path)) {
            return self.resolve(target);
        }
        let alternatives = schema["anyOf"].as_array().into_iter().flatten();
        let mut alternatives = alternatives.filter(|one| one["type"] != "null" && one.get("required").is_none());
        match alternatives.next() {
            Some(one) if schema.get("properties").is_none() => self.resolve(one),
            _ => schema,
        }
    }

    fn describe(&self, field: &Value, resolved: &Value) -> String {
        let text = [field, resolved].into_iter().find_map(|schema| schema["description"].as_str());
        let values = list_values(resolved)
            .or_else(|| resolved.get("items").map(|items| self.resolve_values(items)).unwrap_or_default());
        let values = values.map(|values| format!(" Values: {values}.")).unwrap_or_default();
        format!("{}{values}", text.unwrap_or_default().replace('\n', " "))
    }

    fn resolve_values(&self, items: &Value) -> Option<String> {
        let reference = items["$ref"].as_str().and_then(|reference| reference.strip_prefix('#'));
        list_values(reference.and_then(|path| self.root.pointer(path)).unwrap_or(items))
    }
}

/// Returns the type of a value, such as `list`; `None` if several types are permitted.
fn describe_type(schema: &Value) -> Option<String> {
    let name = match &schema["type"] {
        Value::Array(types) => types.iter().filter_map(Value::as_str).find(|name| *name != "null"),
        name => name.as_str(),
    };
    let name = match name? {
        "array" => "list",
        "object" => "mapping",
        "boolean" => "true or false",
        "string" => "text",
        "integer" => "whole number",
        other => other,
    };
    Some(name.to_owned())
}

/// Returns the permitted values; `None` if the schema does not list them.
fn list_values(schema: &Value) -> Option<String> {
    let mut values = Vec::new();
    for one in schema["oneOf"].as_array().into_iter().flatten().chain([schema]) {
        values.extend(one.get("const"));
        values.extend(one["enum"].as_array().into_iter().flatten());
    }
    let values: Vec<String> =
        values.into_iter().map(|value| value.as_str().map_or(value.to_string(), str::to_owned)).collect();
    (!values.is_empty()).then(|| values.join(", "))
}
