//! Checks of the document's structure. `server::tests::openapi` compares the document with the responses.

use super::*;
use crate::access::route_access;
use operation_ids::{OPERATIONS, TAGS};
use std::collections::BTreeSet;

/// Method, path and description of each operation in the document.
fn operations() -> Vec<(&'static str, &'static str, &'static Value)> {
    let paths = openapi_document()["paths"].as_object().unwrap();
    let operations = paths.iter().flat_map(|(path, operations)| {
        let methods = operations.as_object().unwrap().iter().filter(|(name, _)| *name != "parameters");
        methods.map(move |(method, operation)| (method.as_str(), path.as_str(), operation))
    });
    operations.collect()
}

/// Calls `check` with each object in the document, and with the path to the object.
fn visit_objects<F: FnMut(&str, &Map<String, Value>)>(path: &str, value: &Value, check: &mut F) {
    match value {
        Value::Object(fields) => {
            check(path, fields);
            fields.iter().for_each(|(name, value)| visit_objects(&format!("{path}/{name}"), value, check));
        }
        Value::Array(items) => {
            items.iter().enumerate().for_each(|(index, value)| visit_objects(&format!("{path}/{index}"), value, check))
        }
        _ => {}
    }
}

#[test]
fn every_route_under_v1_is_described() {
    let described: BTreeSet<(String, &str)> = routes::all_routes()
        .iter()
        .flat_map(|route| {
            let template = format!("{}/{{*path}}", route.path);
            let of_route = |operation: &OperationDoc| match operation.path.ends_with("{ident}") {
                true => (template.clone(), operation.method),
                false => (route.path.to_owned(), operation.method),
            };
            route.described.iter().map(of_route).collect::<Vec<_>>()
        })
        .collect();
    for (method, route, ..) in route_access::all_rules() {
        // `/v1` describes only versions, for clients of Ironic.
        if route.starts_with("/v1/") {
            assert!(described.contains(&((*route).to_owned(), *method)), "{method} {route}");
        }
    }
}

#[test]
fn every_operation_has_a_unique_id_and_a_tag() {
    let operations = operations();
    let mut ids = BTreeSet::new();
    for (method, path, operation) in &operations {
        let (id, tag) = (operation["operationId"].as_str(), operation["tags"][0].as_str());
        let id = id.unwrap_or_else(|| panic!("{method} {path} is missing in OPERATIONS"));
        assert!(id.bytes().all(|byte| byte.is_ascii_lowercase() || byte == b'_'), "{id}");
        assert!(ids.insert(id), "{id}");
        assert!(TAGS.iter().any(|(name, _)| Some(*name) == tag), "{method} {path}");
    }
    assert_eq!(operations.len(), OPERATIONS.len(), "OPERATIONS has an entry without a route");
}

#[test]
fn every_reference_has_a_target() {
    let document = openapi_document();
    let mut count = 0;
    visit_objects("", document, &mut |path: &str, fields: &Map<String, Value>| {
        if let Some(Value::String(reference)) = fields.get("$ref") {
            count += 1;
            assert!(document.pointer(reference.trim_start_matches('#')).is_some(), "{path}: {reference}");
        }
    });
    assert!(count > 500, "{count}");
}

#[test]
fn parameters_and_error_responses_are_complete() {
    for (method, path, operation) in operations() {
        let described = openapi_document()["paths"][path]["parameters"].as_array().unwrap();
        assert_eq!(described.len(), path.matches('{').count(), "{path}: PATH_PARAMETERS lacks a parameter");
        let own = operation["parameters"].as_array().into_iter().flatten();
        for parameter in described.iter().chain(own) {
            let schema = &parameter["schema"];
            assert!(schema["type"].is_string() && parameter["description"].is_string(), "{method} {path}: {parameter}");
        }
        let responses = operation["responses"].as_object().unwrap();
        let needs_token = operation["security"] != json!([]);
        for (status, is_required) in [
            ("401", needs_token),
            ("403", needs_token),
            ("404", path.contains('{')),
            ("409", method != "get"),
            ("422", method != "get"),
            ("429", true),
            ("503", true),
            ("default", true),
        ] {
            assert!(!is_required || responses.contains_key(status), "{method} {path}: {status}");
        }
    }
    let required = openapi_document().pointer("/components/schemas/ErrorBody/required").unwrap().as_array().unwrap();
    assert!(["statuscode", "message", "error_code"].iter().all(|name| required.contains(&json!(name))), "{required:?}");
}

/// Checks for constructs that openapi-python-client or openapi-typescript rejects or misinterprets.
#[test]
fn generators_of_clients_accept_the_schemas() {
    visit_objects("", openapi_document(), &mut |path: &str, fields: &Map<String, Value>| {
        let is_list = path.ends_with("/properties");
        for keyword in ["items", "schema"] {
            assert!(is_list || !fields.get(keyword).is_some_and(Value::is_boolean), "{path}/{keyword}");
        }
        if is_list {
            assert!(fields.values().all(|schema| !schema.is_boolean()), "{path}");
            return;
        }
        assert!(!fields.contains_key("default") || path.ends_with("/responses"), "{path} has a default");
        if let Some(Value::Array(values)) = fields.get("enum") {
            assert!(values.iter().all(Value::is_string), "{path}: {values:?}");
        }
        if let Some(Value::Array(types)) = fields.get("type") {
            assert!(types.len() == 2 && types.contains(&json!("null")), "{path}: {types:?}");
        }
        let is_array = fields
            .get("type")
            .is_some_and(|types| types == "array" || types.as_array().is_some_and(|all| all.contains(&json!("array"))));
        assert!(!is_array || fields.contains_key("items"), "{path}: an array without items");
        for alternatives in ["anyOf", "oneOf"].iter().filter_map(|keyword| fields.get(*keyword)) {
            let consts = alternatives.as_array().unwrap().iter().filter(|one| one["const"].is_string());
            assert_eq!(consts.count(), 0, "{path}");
        }
    });
}
