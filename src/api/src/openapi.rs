//! `/openapi.json`: OpenAPI 3.1 description of the endpoints in [`super::routes`]. The schemas of request and response
//! bodies are derived from their Rust types.

mod error_responses;
mod operation_ids;
pub(crate) mod parameters;
mod portable_schemas;
mod request_schemas;
#[cfg(test)]
mod tests;

use super::json_schemas::SchemaGenerators;
use super::routes::{self, ApiRoute, OperationDoc, RequiredToken, ResponseContent};
use axum::Json;
use portable_schemas::{into_portable, make_portable};
use serde_json::{Map, Value, json};
use std::sync::LazyLock;

/// `GET /openapi.json`: returns the description of all JSON endpoints.
pub(crate) async fn get_openapi() -> Json<&'static Value> {
    Json(openapi_document())
}

/// Returns the OpenAPI document.
pub fn openapi_document() -> &'static Value {
    static DOCUMENT: LazyLock<Value> = LazyLock::new(|| {
        let calls: Vec<ApiRoute> = routes::all_routes();
        let described: Vec<&OperationDoc> = calls.iter().flat_map(|call| &call.described).collect();
        build_document(&described)
    });
    &DOCUMENT
}

fn build_document(all: &[&OperationDoc]) -> Value {
    let mut schemas = SchemaGenerators::new();
    let responses = error_responses::error_components(&mut schemas);
    let mut paths = Map::new();
    for described in all {
        let parameters = || json!({ "parameters": parameters::path_parameters(described.path) });
        let path = paths.entry(described.path).or_insert_with(parameters);
        path[described.method.to_lowercase()] = describe_operation(described, &mut schemas);
    }
    let mut components = schemas.into_components();
    components.extend([error_responses::ironic_error_schema()]);
    components.values_mut().for_each(make_portable);
    let tags = operation_ids::TAGS.map(|(name, description)| json!({"name": name, "description": description}));
    let bearer = |what: &str| json!({"type": "http", "scheme": "bearer", "description": what});
    let mut document = json!({
        "openapi": "3.1.1",
        "jsonSchemaDialect": "https://json-schema.org/draft/2020-12/schema",
        "info": {
            "title": "drophammer serve",
            "summary": "Installs bare-metal servers over the network.",
            "version": env!("CARGO_PKG_VERSION"),
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "servers": [{"url": "/", "description": "The server from which this document was requested."}],
        "tags": tags,
        "paths": paths,
        "components": {
            "schemas": components,
            "responses": responses,
            "securitySchemes": {
                "operator": bearer("Token of a user, or the token in DIR/operator.token."),
                "metrics": bearer("Token in DIR/metrics.token."),
                "machine": bearer("Token in the machine's boot script, valid for one boot of that machine."),
            },
        },
    });
    request_schemas::rename_request_schemas(&mut document);
    document
}

fn describe_operation(described: &OperationDoc, schemas: &mut SchemaGenerators) -> Value {
    let mut operation = json!({"summary": described.summary, "security": describe_security(described.token)});
    if let Some((id, tag)) = operation_ids::find_operation(described.method, described.path) {
        operation["operationId"] = json!(id);
        operation["tags"] = json!([tag]);
    }
    if let Some(parameters) = described.parameters {
        operation["parameters"] = parameters().into();
    }
    if let Some(asks) = described.asks {
        let content = json!({"application/json": {"schema": into_portable(asks(schemas))}});
        operation["requestBody"] = json!({"required": true, "content": content});
    }
    let mut responses = Map::new();
    for (status, content) in &described.answers {
        let description = axum::http::StatusCode::from_u16(*status).ok().and_then(|status| status.canonical_reason());
        let mut response = json!({ "description": description.unwrap_or_default() });
        match content {
            ResponseContent::Nothing => {}
            ResponseContent::Text => response["content"] = json!({"text/plain": {"schema": {"type": "string"}}}),
            ResponseContent::Json(schema) => {
                response["content"] = json!({"application/json": {"schema": into_portable(schema(schemas))}})
            }
        }
        responses.insert(status.to_string(), response);
    }
    responses.extend(error_responses::error_responses(described));
    operation["responses"] = Value::Object(responses);
    operation
}

fn describe_security(token: RequiredToken) -> Value {
    match token {
        RequiredToken::Operator => json!([{"operator": []}]),
        RequiredToken::Metrics => json!([{"metrics": []}, {"operator": []}]),
        RequiredToken::Machine => json!([{"machine": []}]),
        RequiredToken::MachineOrOperator => json!([{"machine": []}, {"operator": []}]),
        RequiredToken::None => json!([]),
    }
}
