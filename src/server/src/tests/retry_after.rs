//! `Retry-After` in responses of a busy server, for each format of error responses.

use super::*;
use http_server::client_address::ClientAddress;

/// Requests whose refusals have different formats: the format of the API, the format with the problems of a document,
/// the format of Ironic, and pages.
const REQUESTS: [(&str, &str, &str); 10] = [
    ("PUT", "/v1/users", r#"{"name": "ann", "role": "viewer"}"#),
    ("POST", "/v1/machine/4c4c4544-0051-3010-8052-b4c04f4d0001/power", r#"{"action": "on"}"#),
    ("POST", "/v1/machine/find", "{}"),
    ("PUT", "/v1/image", r#"{"id": "debian-12"}"#),
    ("PUT", "/v1/filesystemlayout", r#"{"id": "default"}"#),
    ("PUT", "/v1/size", r#"{"id": "c1"}"#),
    ("POST", "/v1/machine/allocate", "{}"),
    ("POST", "/v1/machine/4c4c4544-0051-3010-8052-b4c04f4d0001/lock", "{}"),
    ("POST", "/v1/deploy_templates", r#"{"name": "CUSTOM_T", "steps": []}"#),
    ("POST", "/login", "token=x"),
];

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn refusals_of_all_formats_contain_retry_after() {
    let server = Running::start().await;
    let client = ClientAddress("127.0.0.1".parse().unwrap());
    let held: Vec<_> = std::iter::from_fn(|| server.client_quotas.reserve_body(client, 1 << 20)).collect();
    assert_eq!(held.len(), 8, "the bodies of this address use its whole quota");
    let bearer = format!("Bearer {}", server.operator());
    let headers = [
        ("Authorization", bearer.as_str()),
        ("X-OpenStack-Ironic-API-Version", "latest"),
        ("Content-Type", "application/x-www-form-urlencoded"),
    ];
    for (method, path, body) in REQUESTS {
        let answer = server.ask(method, path, &headers, body).await;
        assert_eq!(answer.status, 429, "{method} {path}: {}", answer.text());
        let seconds = answer.headers.get("retry-after").map(String::as_str);
        assert_eq!(seconds, Some("5"), "{method} {path}: {:?}", answer.headers);
    }
    drop(held);
    let answer = server.ask("POST", "/v1/machine/find", &headers, "{}").await;
    assert_eq!((answer.status, answer.headers.contains_key("retry-after")), (200, false), "{}", answer.text());
}
