//! Checks of `/openapi.json` against the routes and the responses of the handlers. All tests compare their requests and
//! the responses with this document.

use super::*;
use api::openapi::openapi_document;
use jsonschema::Validator;
use std::sync::{Arc, LazyLock};

const METHODS: [&str; 5] = ["GET", "PUT", "POST", "PATCH", "DELETE"];
/// Paths whose last segment can be either an id or the name of a query. Their handlers themselves check the method.
const NAMES_OR_QUESTIONS: [&str; 5] = [
    "/v1/filesystemlayout/{id}",
    "/v1/filesystemlayout/try",
    "/v1/filesystemlayout/matches",
    "/v1/size/{id}",
    "/v1/size/suggest",
];

/// Returns the operation in the document that describes a request.
fn described(method: &str, path: &str) -> Option<&'static Value> {
    let path = path.split('?').next().unwrap_or_default();
    let steps: Vec<&str> = path.trim_end_matches('/').split('/').collect();
    let is_it = |template: &str| {
        let names: Vec<&str> = template.split('/').collect();
        names.len() == steps.len()
            && names.iter().zip(&steps).all(|(name, step)| name == step || (name.starts_with('{') && !step.is_empty()))
    };
    let all = openapi_document()["paths"].as_object().unwrap();
    let mut found: Vec<_> = all.iter().filter(|(template, _)| is_it(template)).collect();
    found.sort_by_key(|(template, _)| template.matches('{').count());
    found.into_iter().find_map(|(_, calls)| calls.get(method.to_lowercase()))
}

/// Returns a validator for a schema of the document. The validator includes all referenced schemas.
fn validator(schema: &Value) -> Arc<Validator> {
    static ALL: LazyLock<Mutex<BTreeMap<String, Arc<Validator>>>> = LazyLock::new(Mutex::default);
    let made = ALL.lock().unwrap().get(&schema.to_string()).cloned();
    made.unwrap_or_else(|| {
        let whole = json!({"allOf": [schema], "components": openapi_document()["components"]});
        let validator =
            Arc::new(jsonschema::draft202012::new(&whole).unwrap_or_else(|error| panic!("{schema}: {error}")));
        ALL.lock().unwrap().insert(schema.to_string(), validator.clone());
        validator
    })
}

/// Returns the schema in the document for a response with this status.
fn schema(call: &Value, status: u16) -> Option<Value> {
    let responses = &call["responses"];
    let response = responses.get(status.to_string()).unwrap_or(&responses["default"]);
    let response = match response["$ref"].as_str() {
        Some(place) => openapi_document().pointer(place.trim_start_matches('#')).unwrap(),
        None => response,
    };
    response.pointer("/content/application~1json/schema").cloned()
}

/// Checks a response against the document. If the request has succeeded, also checks the request.
pub(super) fn agrees(method: &str, path: &str, body: &Value, answer: &Answer) {
    let Some(call) = described(method, path) else { return };
    let is_good = (200..300).contains(&answer.status);
    assert!(
        !is_good || call["responses"].get(answer.status.to_string()).is_some(),
        "{method} {path} is answered with {}, which the document does not list",
        answer.status
    );
    let wrong = |schema: &Value, document: &Value| {
        let validator = validator(schema);
        let wrong = validator.iter_errors(document).map(|error| format!("{}: {error}", error.instance_path()));
        wrong.collect::<Vec<_>>().join("\n")
    };
    if let Some(schema) = call.pointer("/requestBody/content/application~1json/schema").filter(|_| is_good) {
        let wrong = wrong(schema, body);
        assert!(wrong.is_empty(), "{method} {path}: {body}\n{wrong}");
    }
    if let Some(schema) = schema(call, answer.status) {
        let wrong = wrong(&schema, &answer.json());
        assert!(wrong.is_empty(), "{method} {path}: {}: {}\n{wrong}", answer.status, answer.text());
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn openapi_document_matches_the_served_routes() {
    let server = Running::start().await;
    let served = server.ask("GET", "/openapi.json", &[], "").await;
    assert_eq!((served.status, &served.json()), (200, openapi_document()));
    let paths = openapi_document()["paths"].as_object().unwrap();
    assert!(paths.len() > 25);
    // Without this header, the lowest version of Ironic's API applies, in which deploy templates do not exist.
    let version = [("X-OpenStack-Ironic-API-Version", "latest")];
    for (template, calls) in paths {
        let path = template.replace("{id}", "x").replace("{ident}", "x");
        for method in METHODS {
            let status = server.ask(method, &path, &version, "").await.status;
            let call = calls.get(method.to_lowercase());
            let is_open = call.is_some_and(|call| call["security"] == json!([]));
            match call {
                // The request does not contain the id of a machine.
                Some(_) if path == "/boot.json" => assert_eq!(status, 400),
                // Without oidc.yaml, no ID token is accepted.
                Some(_) if path == "/v1/oidc/token" => assert_eq!(status, 409),
                Some(_) if is_open => assert_eq!(status, 200, "{method} {path}"),
                Some(_) => assert_eq!(status, 401, "{method} {path}"),
                None if NAMES_OR_QUESTIONS.contains(&template.as_str()) => assert!([401, 405].contains(&status)),
                // The handlers of these paths check the token before the method.
                None if path.starts_with("/v1/deploy") => assert_eq!(status, 401, "{method} {path}"),
                None => assert_eq!(status, 405, "{method} {path}"),
            }
        }
    }
}

#[test]
fn every_route_is_described_with_valid_schemas() {
    for call in api::routes::all_routes() {
        let is_below = call.path.ends_with('/') || call.path.ends_with("{*path}");
        assert!(is_below || !call.described.is_empty(), "{}", call.path);
    }
    let pages = [
        include_str!("../../../../docs/rest.md"),
        include_str!("../../../../docs/rest-machines.md"),
        include_str!("../../../../docs/api.md"),
        include_str!("../../../../docs/api-migration.md"),
        include_str!("../../../../docs/api-admin.md"),
        include_str!("../../../../docs/api-operator.md"),
        include_str!("../../../../docs/api-reports.md"),
        include_str!("../../../../docs/metrics.md"),
        include_str!("../../../../docs/template-requests.md"),
        include_str!("../../../../docs/definitions.md"),
    ];
    for (path, calls) in openapi_document()["paths"].as_object().unwrap() {
        assert!(pages.iter().any(|page| page.contains(path.trim_end_matches("/{ident}"))), "{path} is in no page");
        for (method, call) in calls.as_object().unwrap().iter().filter(|(name, _)| *name != "parameters") {
            let asks = call.pointer("/requestBody/content/application~1json/schema");
            asks.map(validator);
            let answers = call["responses"].as_object().unwrap();
            for status in answers.keys() {
                schema(call, status.parse().unwrap_or(400)).as_ref().map(validator);
            }
            assert!(call["summary"].is_string() && answers.contains_key("default"), "{method} {path}");
        }
    }
    for (name, schema) in openapi_document()["components"]["schemas"].as_object().unwrap() {
        jsonschema::draft202012::meta::validate(schema).unwrap_or_else(|error| panic!("{name}: {error}"));
    }
}
