//! Schemas and parameters of the requests for templates, for `/openapi.json`.

use super::listing::SORT_KEYS;
use super::microversions::VERSION_HEADER_NAME;
use super::representation::TemplateForm;
use crate::json_schemas::SchemaGenerators;
use crate::openapi::parameters::query_parameter;
use serde_json::{Value, json};

/// Returns the schema of a template in a response. No field is required, because a request can select the fields of
/// the response.
pub(crate) fn template_schema(_: &mut SchemaGenerators) -> Value {
    let (text, time) = (json!({"type": "string"}), json!({"type": ["string", "null"]}));
    let (objects, object) = (json!({"type": "array", "items": {"type": "object"}}), json!({"type": "object"}));
    json!({"type": "object", "additionalProperties": false, "properties": {"uuid": text, "name": text, "steps": objects,
        "extra": object, "created_at": time, "updated_at": time, "links": objects}})
}

/// Returns the schema of a list of templates in Ironic's API.
pub(crate) fn ironic_list_schema(schemas: &mut SchemaGenerators) -> Value {
    list_schema(TemplateForm::Ironic, schemas)
}

/// Returns the schema of a list of templates in the API of the specification.
pub(crate) fn proposed_list_schema(schemas: &mut SchemaGenerators) -> Value {
    list_schema(TemplateForm::Proposed, schemas)
}

fn list_schema(form: TemplateForm, schemas: &mut SchemaGenerators) -> Value {
    let all = json!({"type": "array", "items": template_schema(schemas)});
    json!({"type": "object", "additionalProperties": false, "required": [form.path()],
        "properties": {form.path(): all, "next": {"type": "string", "description": "URL of the next page."}}})
}

/// Returns the schema of a request to create a template.
pub(crate) fn request_schema(_: &mut SchemaGenerators) -> Value {
    let arguments = json!({"type": ["object", "null"]});
    let step = json!({"type": "object", "required": ["interface", "step"], "properties": {
        "interface": {"type": "string"}, "step": {"type": "string"}, "args": arguments, "priority": {}}});
    let steps = json!({"type": "array", "items": step});
    let (text, extra) = (json!({"type": "string"}), json!({"type": "object"}));
    json!({"type": "object", "required": ["name", "steps"],
        "properties": {"name": text, "uuid": text, "steps": steps, "extra": extra}})
}

/// Returns the schema of a request to change a template.
pub(crate) fn patch_schema(_: &mut SchemaGenerators) -> Value {
    let operation = json!({"type": "object", "required": ["op", "path"],
        "properties": {"op": {"type": "string"}, "path": {"type": "string"}, "value": {}}});
    json!({"type": "array", "items": operation})
}

/// Returns the parameters of a request for a list.
pub(crate) fn list_parameters() -> Vec<Value> {
    let keys: Vec<&str> = SORT_KEYS.iter().map(|(name, _)| *name).collect();
    let own = [
        ("marker", json!({"type": "string", "description": "UUID of the last template on the previous page."})),
        ("limit", json!({"type": "integer", "minimum": 1, "description": "Maximum number of listed templates."})),
        (
            "sort_key",
            json!({"type": "string", "enum": keys, "description": "Field by which the templates are sorted."}),
        ),
        ("sort_dir", json!({"type": "string", "enum": ["asc", "desc"], "description": "Direction of the order."})),
        ("detail", json!({"type": "boolean", "description": "Return all fields instead of UUID and name."})),
    ];
    let own = own.into_iter().map(|(name, schema)| query_parameter(name, schema, false));
    own.chain(template_parameters()).collect()
}

/// Returns the parameters of a request for one template.
pub(crate) fn template_parameters() -> Vec<Value> {
    let fields = json!({"type": "string", "description": "Names of the returned fields, separated by commas."});
    vec![query_parameter("fields", fields, false)]
}

/// Returns the parameters of all requests in Ironic's API. The API version is required, because deploy templates do not
/// exist in the version that applies to requests without this header.
pub(crate) fn version_parameters() -> Vec<Value> {
    let description = "Version of Ironic's API: `1.55` or later, or `latest`.";
    vec![json!({"name": VERSION_HEADER_NAME, "in": "header", "required": true, "description": description,
        "schema": {"type": "string"}})]
}

pub(crate) fn ironic_list_parameters() -> Vec<Value> {
    [version_parameters(), list_parameters()].concat()
}

pub(crate) fn ironic_template_parameters() -> Vec<Value> {
    [version_parameters(), template_parameters()].concat()
}
