//! Error responses of operations.

use crate::json_schemas::{SchemaGenerators, response_schema};
use crate::metal_api::RefusalBody;
use crate::routes::{ErrorFormat, OperationDoc, RequiredToken};
use serde_json::{Map, Value, json};

const BAD_REQUEST: u16 = 400;
const UNAUTHORIZED: u16 = 401;
const FORBIDDEN: u16 = 403;
const NOT_FOUND: u16 = 404;
const CONFLICT: u16 = 409;
const PAYLOAD_TOO_LARGE: u16 = 413;
const UNPROCESSABLE: u16 = 422;
const TOO_MANY_REQUESTS: u16 = 429;
const UNAVAILABLE: u16 = 503;

/// Error responses: the status, the name of the component, and its description.
const ERRORS: [(u16, &str, &str); 9] = [
    (BAD_REQUEST, "BadRequest", "A parameter or the body is invalid, or requests something that does not exist."),
    (UNAUTHORIZED, "Unauthorized", "The token is missing, unknown, expired or revoked."),
    (FORBIDDEN, "Forbidden", "The user's role or projects do not permit the request."),
    (NOT_FOUND, "NotFound", "The object does not exist, or the user has no access to it."),
    (CONFLICT, "Conflict", "The state of the object does not permit the request, or the object has been changed."),
    (PAYLOAD_TOO_LARGE, "PayloadTooLarge", "The body is too large."),
    (UNPROCESSABLE, "Unprocessable", "The request is valid, but cannot be carried out."),
    (TOO_MANY_REQUESTS, "TooManyRequests", "The client has sent too many requests; it may repeat the request later."),
    (UNAVAILABLE, "Unavailable", "The server or its database is unavailable; the client may repeat the request later."),
];
/// Name of the component for errors with other statuses.
const OTHER_ERROR: &str = "Error";
const IRONIC_BODY: &str = "IronicErrorBody";

/// Returns the components for all error responses.
pub(super) fn error_components(schemas: &mut SchemaGenerators) -> Map<String, Value> {
    let bodies = [
        (ErrorFormat::MetalApi, response_schema::<RefusalBody>(schemas)),
        (ErrorFormat::Ironic, json!({"$ref": format!("#/components/schemas/{IRONIC_BODY}")})),
    ];
    let mut components = Map::new();
    for (format, body) in bodies {
        let content = json!({"application/json": {"schema": body}});
        for (status, name, description) in ERRORS {
            let mut response = json!({"description": description, "content": content});
            if [TOO_MANY_REQUESTS, UNAVAILABLE].contains(&status) {
                let seconds = "Seconds after which the client should repeat the request.";
                response["headers"] = json!({"Retry-After": {"description": seconds, "schema": {"type": "integer"}}});
            }
            components.insert(component_name(format, name), response);
        }
        components.insert(
            component_name(format, OTHER_ERROR),
            json!({"description": "Any other error.", "content": content}),
        );
    }
    components
}

/// Returns the schema of errors in Ironic's format.
pub(super) fn ironic_error_schema() -> (String, Value) {
    let text = |description: &str| json!({"type": "string", "description": description});
    let properties = json!({
        "error_message": text("JSON text of an object with `title`, `description` and `code`."),
        "error_code": text("Error code as in the manual, such as `DH-310`."),
    });
    let required = ["error_message", "error_code"];
    let schema = json!({"type": "object", "description": "Body of an error response, as in Ironic, with an error code.",
        "required": required, "properties": properties});
    (IRONIC_BODY.to_owned(), schema)
}

/// Returns the error responses of an operation by their statuses.
pub(super) fn error_responses(described: &OperationDoc) -> Vec<(String, Value)> {
    let format = described.error_format;
    let reference = |name: &str| json!({"$ref": format!("#/components/responses/{}", component_name(format, name))});
    let listed = ERRORS.iter().filter(|(status, ..)| can_fail_with(described, *status));
    listed
        .map(|(status, name, _)| (status.to_string(), reference(name)))
        .chain([("default".to_owned(), reference(OTHER_ERROR))])
        .collect()
}

fn component_name(format: ErrorFormat, name: &str) -> String {
    match format {
        ErrorFormat::MetalApi => name.to_owned(),
        ErrorFormat::Ironic => format!("Ironic{name}"),
    }
}

/// Returns whether the description of the operation lists this status. Each operation can also fail with other
/// statuses.
fn can_fail_with(described: &OperationDoc, status: u16) -> bool {
    let (changes, names_object) = (described.method != "GET", described.path.contains('{'));
    let needs_token = described.token != RequiredToken::None;
    match status {
        BAD_REQUEST => names_object || described.parameters.is_some() || described.asks.is_some(),
        // A request without a bearer token may contain another token in its body.
        UNAUTHORIZED | FORBIDDEN => needs_token || changes,
        NOT_FOUND => names_object,
        CONFLICT => names_object || changes,
        PAYLOAD_TOO_LARGE => described.asks.is_some(),
        UNPROCESSABLE => changes,
        _ => true,
    }
}
