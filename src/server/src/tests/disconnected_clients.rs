//! Clients that disconnect before they have received the response to a change.

use super::*;
use api::audit_log::AuditQuery;

impl Running {
    /// Sends a request of an operator, and disconnects as soon as the request is recorded in the audit log.
    async fn send_and_disconnect(&self, method: &str, path: &str, body: &str) {
        let (token, length) = (self.operator(), body.len());
        let head = format!("{method} {path} HTTP/1.1\r\nHost: {}\r\nAuthorization: Bearer {token}\r\n", self.address);
        let mut stream = TcpStream::connect(self.address).await.unwrap();
        stream.write_all(format!("{head}Content-Length: {length}\r\n\r\n{body}").as_bytes()).await.unwrap();
        let began = std::time::Instant::now();
        while !self.state.list_audit(AuditQuery::default()).await.unwrap().iter().any(|entry| entry.path == path) {
            assert!(began.elapsed() < PATIENCE, "{}", self.heard.text());
        }
        drop(stream);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_change_is_completed_and_recorded_after_the_client_has_disconnected() {
    let dir = directory();
    let file = dir.path().join("audit.jsonl");
    let options = ServerConfig { audit_log: Some(file.clone()), ..options(dir.path()) };
    let server = Running::start_with(dir, &options, &silent(), 10_000).await;
    server.installed().await;
    let lock = format!("/v1/machine/{TWO}/lock");
    server.send_and_disconnect("POST", &lock, r#"{"reason": "disk check"}"#).await;
    let free = format!("/v1/machine/{ONE}/free");
    server.send_and_disconnect("DELETE", &free, "").await;

    // Freeing a machine ends with the power-off of the previous system.
    server.heard("one: cannot power off the freed machine").await;
    let line_of = |path: &str| {
        let text = std::fs::read_to_string(&file).unwrap_or_default();
        text.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok()).find(|line| line["path"] == path)
    };
    for (path, name, expected) in [(&lock, "machines/two.yaml", "disk check"), (&free, "machines/one.yaml", "hostname")]
    {
        server.wait_until(|| line_of(path).is_some(), path).await;
        let line = line_of(path).unwrap();
        assert_eq!((&line["outcome"], &line["status"]), (&json!("done"), &json!(200)), "{line}");
        let entries = server.v1("GET", "/v1/audit?action=/v1/machine", &Value::Null).await.json();
        let entry = entries.as_array().unwrap().iter().find(|entry| entry["path"] == json!(path)).unwrap().clone();
        assert_eq!((&entry["outcome"], &entry["id"]), (&json!("done"), &line["id"]), "{entry}");
        assert_eq!(server.file(name).contains(expected), path == &lock, "{name}");
    }
}
