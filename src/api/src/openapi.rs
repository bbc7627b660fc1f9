//! `/openapi.json`: OpenAPI 3.1 description of the endpoints in [`super::routes`]. The schemas of request and response
//! bodies are derived from their Rust types.

use super::json_schemas::{SchemaGenerators, response_schema};
use super::metal_api::RefusalBody;
use super::routes::{self, ApiRoute, OperationDoc, RequiredToken, ResponseContent};
use axum::Json;
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
    // In Ironic's format, `error_message` is a string that contains JSON.
    let as_ironic = json!({"type": "object", "required": ["error_message", "error_code"],
            "properties": {"error_message": {"type": "string"}, "error_code": {"type": "string"}}});
    let refusals = [("Refused", response_schema::<RefusalBody>(&mut schemas)), ("RefusedAsIronic", as_ironic)];
    let refusals = refusals.map(|(name, schema)| {
        let content = json!({"application/json": {"schema": schema}});
        (name.to_owned(), json!({"description": "Error message.", "content": content}))
    });
    let mut paths = Map::new();
    for described in all {
        let path =
            paths.entry(described.path).or_insert_with(|| json!({ "parameters": path_parameters(described.path) }));
        path[described.method.to_lowercase()] = describe_operation(described, &mut schemas);
    }
    let bearer = |what: &str| json!({"type": "http", "scheme": "bearer", "description": what});
    json!({
        "openapi": "3.1.1",
        "jsonSchemaDialect": "https://json-schema.org/draft/2020-12/schema",
        "info": {"title": "drophammer serve", "version": env!("CARGO_PKG_VERSION"), "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"}},
        "paths": paths,
        "components": {
            "schemas": schemas.into_components(),
            "responses": Map::from_iter(refusals),
            "securitySchemes": {
                "operator": bearer("Token in DIR/operator.token."),
                "metrics": bearer("Token in DIR/metrics.token."),
                "machine": bearer("Token in the machine's boot script, valid for one boot of that machine."),
            },
        },
    })
}

fn path_parameters(path: &str) -> Vec<Value> {
    let names = path.split('/').filter_map(|step| step.strip_prefix('{')?.strip_suffix('}'));
    names.map(|name| json!({"name": name, "in": "path", "required": true, "schema": {"type": "string"}})).collect()
}

fn describe_operation(described: &OperationDoc, schemas: &mut SchemaGenerators) -> Value {
    let OperationDoc { summary, token, query, refused, .. } = described;
    let mut operation = json!({ "summary": summary });
    operation["security"] = match token {
        RequiredToken::Operator => json!([{"operator": []}]),
        RequiredToken::Metrics => json!([{"metrics": []}, {"operator": []}]),
        RequiredToken::Machine => json!([{"machine": []}]),
        RequiredToken::MachineOrOperator => json!([{"machine": []}, {"operator": []}]),
        RequiredToken::None => json!([]),
    };
    if !query.is_empty() {
        let parameter = |name: &&str| json!({"name": name, "in": "query", "schema": {"type": "string"}});
        operation["parameters"] = query.iter().map(parameter).collect();
    }
    if let Some(asks) = described.asks {
        operation["requestBody"] =
            json!({"required": true, "content": {"application/json": {"schema": asks(schemas)}}});
    }
    let mut responses = Map::new();
    for (status, content) in &described.answers {
        let description = axum::http::StatusCode::from_u16(*status).ok().and_then(|status| status.canonical_reason());
        let mut response = json!({ "description": description.unwrap_or_default() });
        match content {
            ResponseContent::Nothing => {}
            ResponseContent::Text => response["content"] = json!({"text/plain": {"schema": {"type": "string"}}}),
            ResponseContent::Json(schema) => {
                response["content"] = json!({"application/json": {"schema": schema(schemas)}})
            }
        }
        responses.insert(status.to_string(), response);
    }
    responses.insert("default".to_owned(), json!({"$ref": format!("#/components/responses/{refused}")}));
    operation["responses"] = Value::Object(responses);
    operation
}
