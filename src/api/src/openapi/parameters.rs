//! Parameters of operations: in the path, in the query, and in headers.

use super::portable_schemas::into_portable;
use common::json_schema_cleanup::remove_nonstandard_formats;
use schemars::JsonSchema;
use schemars::generate::SchemaSettings;
use serde_json::{Value, json};

/// Function that returns the parameters of an operation in the query and in headers.
pub(crate) type ParameterFn = fn() -> Vec<Value>;

/// Parameters in paths: the preceding segment of the path, the type, and the description.
const PATH_PARAMETERS: [(&str, &str, &str); 11] = [
    ("machine", "string", "Id of the machine."),
    ("filesystemlayout", "string", "Id of the layout."),
    ("image", "string", "Id of the image."),
    ("size", "string", "Id of the size."),
    ("os", "string", "Name of the OS definition."),
    ("volumes", "string", "Name of the volume."),
    ("rollouts", "integer", "Number of the rollout."),
    ("users", "string", "Name of the user."),
    ("tokens", "string", "Name of the token."),
    ("deploy_templates", "string", "UUID or name of the template."),
    ("deploy-templates", "string", "UUID or name of the template."),
];

/// Returns the parameters in a path.
pub(super) fn path_parameters(path: &str) -> Vec<Value> {
    let segments: Vec<&str> = path.split('/').collect();
    let parameter = |pair: &[&str]| {
        let [collection, segment] = pair else { return None };
        let name = segment.strip_prefix('{')?.strip_suffix('}')?;
        let (_, kind, description) = PATH_PARAMETERS.iter().find(|(preceding, ..)| preceding == collection)?;
        let schema = json!({"type": kind});
        Some(json!({"name": name, "in": "path", "required": true, "description": description, "schema": schema}))
    };
    segments.windows(2).filter_map(parameter).collect()
}

/// Returns the parameters in the query, which are the fields of `T`.
pub(crate) fn query_parameters<T: JsonSchema>() -> Vec<Value> {
    let settings = SchemaSettings::draft2020_12().with(|settings| settings.inline_subschemas = true);
    let mut schema = T::json_schema(&mut settings.for_deserialize().into_generator()).to_value();
    remove_nonstandard_formats(&mut schema);
    let schema = into_portable(schema);
    let is_required = |name: &String| {
        schema["required"].as_array().is_some_and(|names| names.iter().any(|required| required == name.as_str()))
    };
    let fields = schema["properties"].as_object().into_iter().flatten();
    fields.map(|(name, field)| query_parameter(name, field.clone(), is_required(name))).collect()
}

/// Returns a parameter in the query. The description of the schema becomes that of the parameter.
pub(crate) fn query_parameter(name: &str, mut schema: Value, is_required: bool) -> Value {
    let mut parameter = json!({"name": name, "in": "query", "required": is_required});
    if let Some(keywords) = schema.as_object_mut() {
        // A parameter is absent or has a value, but cannot be null.
        let types = keywords.get("type").and_then(Value::as_array);
        let value_type = types.and_then(|types| types.iter().find(|name| name.as_str() != Some("null")).cloned());
        if let Some(value_type) = value_type {
            keywords.insert("type".to_owned(), value_type);
        }
        if let Some(description) = keywords.remove("description") {
            parameter["description"] = description;
        }
    }
    parameter["schema"] = schema;
    parameter
}

/// Returns the header that makes a change depend on the version of the object.
pub(crate) fn version_parameter() -> Vec<Value> {
    let description =
        "`ETag` of an earlier response. If the object has changed since then, the request is refused with 409.";
    vec![json!({"name": "If-Match", "in": "header", "description": description, "schema": {"type": "string"}})]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::audit_log::AuditQuery;
    use crate::metal_api::volumes::RemovalQuery;

    #[test]
    fn query_parameters_are_the_fields_of_the_type() {
        let parameters = query_parameters::<AuditQuery>();
        let names: Vec<&str> = parameters.iter().filter_map(|parameter| parameter["name"].as_str()).collect();
        assert_eq!(names, ["action", "after", "before", "limit", "machine", "since", "who"]);
        let limit = json!({"name": "limit", "in": "query", "required": false,
            "description": "Maximum number of entries.", "schema": {"type": "integer", "minimum": 0}});
        assert!(parameters.contains(&limit), "{parameters:?}");
        let [volume] = &query_parameters::<RemovalQuery>()[..] else { panic!() };
        let phases = ["pending", "available", "bound", "released", "failed", "none"];
        assert_eq!((&volume["required"], &volume["schema"]["enum"]), (&json!(true), &json!(phases)));
    }
}
