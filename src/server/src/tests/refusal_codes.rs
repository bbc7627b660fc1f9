//! Error codes in the bodies of refusals.

use super::*;
use common::error_code::ErrorCode;

/// Returns the status and the error code of a refusal.
fn code_of(answer: &Answer) -> (u16, ErrorCode) {
    let code = answer.json()["error_code"].as_str().and_then(ErrorCode::parse);
    (answer.status, code.unwrap_or_else(|| panic!("{} lacks error_code: {}", answer.status, answer.text())))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_refusal_of_the_operators_api_has_an_error_code() {
    let server = Running::start().await;
    let bearer = format!("Bearer {}", server.operator());
    let power = format!("/v1/machine/{TWO}/power");
    let layout = json!({"id": "default"}).to_string();
    let long = json!({"action": "x".repeat(70_000)}).to_string();
    for (method, path, body, expected) in [
        ("GET", "/v1/machine/x", "", (404, ErrorCode::ObjectMissing)),
        ("GET", "/v1/machine/x/details", "", (404, ErrorCode::ObjectMissing)),
        ("GET", "/v1/filesystemlayout/x", "", (404, ErrorCode::ObjectMissing)),
        ("GET", "/v1/image/x", "", (404, ErrorCode::ObjectMissing)),
        ("GET", "/v1/users/x", "", (404, ErrorCode::ObjectMissing)),
        ("GET", "/v1/deploy_templates/x", "", (404, ErrorCode::ObjectMissing)),
        ("GET", "/v1/unknown", "", (404, ErrorCode::ServerUrl)),
        ("PATCH", "/v1/machines", "", (405, ErrorCode::ServerUrl)),
        ("POST", "/v1/machine/find", "[", (400, ErrorCode::Settings)),
        ("GET", "/v1/machines?limit=x", "", (400, ErrorCode::Settings)),
        ("GET", "/v1/machine/%ff/details", "", (400, ErrorCode::Settings)),
        ("DELETE", "/v1/machine/x/adopt", "", (400, ErrorCode::Settings)),
        ("PUT", "/v1/filesystemlayout", layout.as_str(), (409, ErrorCode::ControlPlane)),
        ("POST", power.as_str(), r#"{"action": "on"}"#, (409, ErrorCode::ManagementController)),
        ("POST", power.as_str(), long.as_str(), (413, ErrorCode::RequestTooLarge)),
    ] {
        let version = ("X-OpenStack-Ironic-API-Version", "latest");
        let answer = server.ask(method, path, &[("Authorization", &bearer), version], body).await;
        assert_eq!(code_of(&answer), expected, "{method} {path}: {}", answer.text());
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn refusals_of_unauthorized_clients_have_error_codes() {
    let server = Running::start().await;
    let viewer = format!("Bearer {}", server.user("vic", "viewer", &[]).await);
    let report = format!("/v1/machine/{ONE}/report");
    let free = format!("/v1/machine/{ONE}/free");
    for (method, path, headers, expected) in [
        ("GET", "/v1/machines", vec![], (401, ErrorCode::OperatorToken)),
        ("GET", "/v1/machines", vec![("Authorization", "Bearer wrong")], (401, ErrorCode::OperatorToken)),
        ("GET", "/v1/deploy_templates", vec![], (401, ErrorCode::OperatorToken)),
        ("POST", report.as_str(), vec![], (401, ErrorCode::BootToken)),
        ("DELETE", free.as_str(), vec![("Authorization", viewer.as_str())], (403, ErrorCode::AccessDenied)),
        ("GET", "/v1/machines", vec![("Host", "rebound.example")], (421, ErrorCode::UnknownServerName)),
    ] {
        let version = ("X-OpenStack-Ironic-API-Version", "latest");
        let answer = server.ask(method, path, &[headers, vec![version]].concat(), "").await;
        assert_eq!(code_of(&answer), expected, "{method} {path}: {}", answer.text());
    }
}
