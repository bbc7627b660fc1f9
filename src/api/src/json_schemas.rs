//! JSON Schemas of request and response bodies, derived from their Rust types. `openapi` includes them as components.

use common::json_schema_cleanup::remove_nonstandard_formats;
use schemars::generate::SchemaSettings;
use schemars::{JsonSchema, SchemaGenerator};
use serde_json::{Map, Value, json};

const COMPONENTS: &str = "/components/schemas";
/// Suffix that distinguishes the request schema of a type from its response schema, until `openapi` has compared both.
/// The name of a type cannot have this suffix.
pub(crate) const REQUEST_SCHEMA_SUFFIX: &str = "@request";

/// Generators for the schemas of responses and of requests. Two generators are needed, since a field can be optional
/// only in requests, or only in responses.
pub struct SchemaGenerators {
    responses: SchemaGenerator,
    requests: SchemaGenerator,
}

impl SchemaGenerators {
    pub(crate) fn new() -> SchemaGenerators {
        let settings = || SchemaSettings::draft2020_12().with(|settings| settings.definitions_path = COMPONENTS.into());
        SchemaGenerators {
            responses: settings().for_serialize().into_generator(),
            requests: settings().for_deserialize().into_generator(),
        }
    }

    pub(crate) fn into_components(mut self) -> Map<String, Value> {
        let mut all = self.responses.take_definitions(true);
        for (name, mut schema) in self.requests.take_definitions(true) {
            add_request_suffix(&mut schema);
            all.insert(format!("{name}{REQUEST_SCHEMA_SUFFIX}"), schema);
        }
        all.values_mut().for_each(remove_nonstandard_formats);
        // The layout may be null: an allocation that the server does not send to the machine yet may have no layout.
        for name in ["Allocation", "MachineAllocation"] {
            let schema = all.get_mut(name);
            if let Some(layout) = schema.and_then(|schema| schema.pointer_mut("/properties/filesystemlayout")) {
                *layout = json!({"anyOf": [layout.take(), {"type": "null"}]});
            }
        }
        all
    }
}

/// Appends the suffix to the references in a request schema.
fn add_request_suffix(schema: &mut Value) {
    match schema {
        Value::Object(fields) => fields.iter_mut().for_each(|(name, value)| match value {
            Value::String(place) if name == "$ref" => *place += REQUEST_SCHEMA_SUFFIX,
            value => add_request_suffix(value),
        }),
        Value::Array(items) => items.iter_mut().for_each(add_request_suffix),
        _ => {}
    }
}

/// Returns the schema of any object.
pub(crate) fn object_schema(_: &mut SchemaGenerators) -> Value {
    json!({"type": "object"})
}

/// Returns the schema of a response.
pub(crate) fn response_schema<T: JsonSchema>(schemas: &mut SchemaGenerators) -> Value {
    schemas.responses.subschema_for::<T>().to_value()
}

pub(crate) fn list_schema<T: JsonSchema>(schemas: &mut SchemaGenerators) -> Value {
    json!({"type": "array", "items": response_schema::<T>(schemas)})
}

/// Returns the schema of a request.
pub(crate) fn request_schema<T: JsonSchema>(schemas: &mut SchemaGenerators) -> Value {
    let mut schema = schemas.requests.subschema_for::<T>().to_value();
    add_request_suffix(&mut schema);
    schema
}

/// Returns the schema of a request with the specified fields of a response type. Only the field `id` is
/// required.
pub(crate) fn fields_schema<T: JsonSchema>(schemas: &mut SchemaGenerators, names: &[&str]) -> Value {
    let mut schema = T::json_schema(&mut schemas.responses).to_value();
    if let Some(properties) = schema["properties"].as_object_mut() {
        properties.retain(|name, _| names.contains(&name.as_str()));
        // In such requests, a field that is null has the same meaning as an absent field.
        properties.values_mut().for_each(|schema| *schema = json!({"anyOf": [schema.take(), {"type": "null"}]}));
    }
    schema["required"] = json!(["id"]);
    remove_nonstandard_formats(&mut schema);
    schema
}

/// Returns the schema of an empty object.
pub(crate) fn empty_schema(_: &mut SchemaGenerators) -> Value {
    json!({"type": "object", "maxProperties": 0})
}
