//! Names of request schemas. The schemas of a type in requests and in responses are one component if they are equal.
//! Otherwise, the name of the request schema ends with `Input`.

use crate::json_schemas::REQUEST_SCHEMA_SUFFIX;
use serde_json::{Map, Value};
use std::collections::{BTreeMap, BTreeSet};

/// Suffix of the name of a request schema that differs from the response schema of the same type.
const INPUT_SUFFIX: &str = "Input";
const REFERENCE_PREFIX: &str = "#/components/schemas/";

/// Replaces the internal names of request schemas in the whole document.
pub(super) fn rename_request_schemas(document: &mut Value) {
    let Some(Value::Object(schemas)) = document.pointer_mut("/components/schemas").map(Value::take) else { return };
    let distinct = find_distinct_types(&schemas);
    let rename = |name: &str| -> String {
        match name.strip_suffix(REQUEST_SCHEMA_SUFFIX) {
            Some(type_name) if distinct.contains(type_name) => format!("{type_name}{INPUT_SUFFIX}"),
            Some(type_name) => type_name.to_owned(),
            None => name.to_owned(),
        }
    };
    let renamed: Map<String, Value> = schemas.into_iter().map(|(name, schema)| (rename(&name), schema)).collect();
    document["components"]["schemas"] = Value::Object(renamed);
    rename_references(document, &rename);
}

/// Returns the names of the types whose request schema differs from their response schema, or refers to such a type.
fn find_distinct_types(schemas: &Map<String, Value>) -> BTreeSet<String> {
    let (mut equal, mut distinct) = (BTreeMap::new(), BTreeSet::new());
    for (name, request) in schemas {
        let Some(type_name) = name.strip_suffix(REQUEST_SCHEMA_SUFFIX) else { continue };
        let Some(response) = schemas.get(type_name) else { continue };
        let mut request = request.clone();
        rename_references(&mut request, &|name| name.trim_end_matches(REQUEST_SCHEMA_SUFFIX).to_owned());
        if request == *response {
            equal.insert(type_name.to_owned(), response);
        } else {
            distinct.insert(type_name.to_owned());
        }
    }
    let find = |equal: &BTreeMap<String, &Value>, distinct: &BTreeSet<String>| {
        equal.iter().find(|(_, schema)| refers_to_any(schema, distinct)).map(|(name, _)| name.clone())
    };
    while let Some(name) = find(&equal, &distinct) {
        equal.remove(&name);
        distinct.insert(name);
    }
    distinct
}

fn refers_to_any(schema: &Value, types: &BTreeSet<String>) -> bool {
    match schema {
        Value::Object(fields) => fields.iter().any(|(name, value)| match value {
            Value::String(reference) if name == "$ref" => {
                reference.strip_prefix(REFERENCE_PREFIX).is_some_and(|type_name| types.contains(type_name))
            }
            value => refers_to_any(value, types),
        }),
        Value::Array(items) => items.iter().any(|item| refers_to_any(item, types)),
        _ => false,
    }
}

/// Replaces the names of the schemas to which a document refers.
fn rename_references(document: &mut Value, rename: &dyn Fn(&str) -> String) {
    match document {
        Value::Object(fields) => fields.iter_mut().for_each(|(name, value)| match value {
            Value::String(reference) if name == "$ref" => {
                if let Some(type_name) = reference.strip_prefix(REFERENCE_PREFIX) {
                    *reference = format!("{REFERENCE_PREFIX}{}", rename(type_name));
                }
            }
            value => rename_references(value, rename),
        }),
        Value::Array(items) => items.iter_mut().for_each(|item| rename_references(item, rename)),
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn reference(name: &str) -> Value {
        json!({"$ref": format!("{REFERENCE_PREFIX}{name}")})
    }

    #[test]
    fn only_request_schemas_that_differ_have_names_of_their_own() {
        let request = |name: &str| format!("{name}{REQUEST_SCHEMA_SUFFIX}");
        let schemas = Map::from_iter([
            ("Disk".to_owned(), json!({"type": "object", "required": ["id"]})),
            (request("Disk"), json!({"type": "object"})),
            ("Layout".to_owned(), json!({"items": reference("Disk")})),
            (request("Layout"), json!({"items": reference(&request("Disk"))})),
            ("Role".to_owned(), json!({"type": "string"})),
            (request("Role"), json!({"type": "string"})),
            (request("Order"), json!({"layout": reference(&request("Layout")), "role": reference(&request("Role"))})),
        ]);
        let mut document = json!({"body": reference(&request("Order")), "components": {"schemas": schemas}});
        rename_request_schemas(&mut document);
        let expected = json!({"body": reference("Order"), "components": {"schemas": {
            "Disk": {"type": "object", "required": ["id"]},
            "DiskInput": {"type": "object"},
            "Layout": {"items": reference("Disk")},
            "LayoutInput": {"items": reference("DiskInput")},
            "Role": {"type": "string"},
            "Order": {"layout": reference("LayoutInput"), "role": reference("Role")},
        }}});
        assert_eq!(document, expected);
    }
}
