//! Entries of the audit log: every change, with its values, and every refused request.

use super::*;
use api::access::route_access::{RouteAccess, all_rules, is_query};

impl Running {
    pub(super) async fn audit(&self, query: &str) -> Vec<Value> {
        self.v1("GET", &format!("/v1/audit?{query}"), &Value::Null).await.json().as_array().unwrap().clone()
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_modifying_route_leaves_an_audit_entry() {
    let server = Running::start().await;
    for (method, route, access, _) in all_rules().filter(|(method, route, ..)| !is_query(method, route)) {
        let RouteAccess::User(_) = access else { continue };
        let path = route.replace("{id}", TWO).replace("{*path}", "x").replace("{name}", "x");
        let path = path.replace("{state}", "hidden").replace("{token}", "x");
        let bearer = format!("Bearer {}", server.operator());
        let headers = [
            ("Authorization", bearer.as_str()),
            ("X-Request-Id", "my-id"),
            ("X-OpenStack-Ironic-API-Version", "latest"),
        ];
        let answer = server.ask(method, &path, &headers, "{}").await;
        let entry = server.audit("limit=1").await.remove(0);
        assert_eq!((&entry["path"], &entry["method"]), (&json!(path), &json!(method)));
        assert_eq!(entry["action"], json!(format!("{method} {route}")), "{entry}");
        assert_eq!((&entry["user"], &entry["role"]), (&json!("operator"), &json!("admin")), "{entry}");
        assert_eq!(entry["status"], json!(answer.status), "{entry}");
        assert_eq!(entry["request"], json!(answer.headers["x-request-id"]), "{entry}");
        assert_eq!(entry["address"], "127.0.0.1");
    }
}

/// Requests whose paths do not contain their objects: method, path, body, and the object that the audit entry must
/// name.
const OBJECTS_IN_BODIES: [(&str, &str, &str, &str); 14] = [
    ("PUT", "/v1/users", r#"{"name": "ann", "role": "viewer"}"#, "ann"),
    ("POST", "/v1/documents/apply", "{}", "documents"),
    ("POST", "/v1/documents/export", "", "documents"),
    ("PUT", "/v1/filesystemlayout", r#"{"id": "new"}"#, "new"),
    ("POST", "/v1/filesystemlayout", r#"{"id": "new"}"#, "new"),
    ("PUT", "/v1/image", r#"{"id": "new"}"#, "new"),
    ("POST", "/v1/image", r#"{"id": "new"}"#, "new"),
    ("PUT", "/v1/size", r#"{"id": "new"}"#, "new"),
    ("POST", "/v1/size", r#"{"id": "new"}"#, "new"),
    ("POST", "/v1/machine/allocate", r#"{"uuid": "4C4C4544-0051-3010-8052-B4C04F4D0001", "imageid": "i"}"#, ONE),
    ("POST", "/v1/machines/confirm", "", "all machines"),
    ("POST", "/v1/deploy_templates", r#"{"name": "CUSTOM_A"}"#, "CUSTOM_A"),
    ("POST", "/v1/deploy-templates", r#"{"name": "CUSTOM_A"}"#, "CUSTOM_A"),
    // A rollout has an id only once it is created.
    ("POST", "/v1/rollouts", r#"{"at_most": 1, "members": []}"#, ""),
];

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn audit_entry_names_the_object_of_every_modifying_route() {
    let server = Running::start().await;
    let bearer = format!("Bearer {}", server.operator());
    let headers = [("Authorization", bearer.as_str()), ("X-OpenStack-Ironic-API-Version", "latest")];
    for (method, route, access, _) in all_rules().filter(|(method, route, ..)| !is_query(method, route)) {
        let RouteAccess::User(_) = access else { continue };
        let in_body = OBJECTS_IN_BODIES.iter().find(|(one, other, ..)| (one, other) == (method, route));
        let (body, object) = match in_body {
            Some((.., body, object)) => (*body, *object),
            None if route.contains("{id}") => ("{}", TWO),
            None => ("{}", "x"),
        };
        let path = route.replace("{id}", TWO).replace("{*path}", "x").replace("{name}", "x");
        let path = path.replace("{state}", "hidden").replace("{token}", "x");
        server.ask(method, &path, &headers, body).await;
        let entry = server.audit("limit=1").await.remove(0);
        assert_eq!(entry["object"], object, "{method} {route}: {entry}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn entry_contains_changed_values_without_secrets() {
    let dir = directory();
    let secret = "  user_data: hunter2\n";
    let one = machine_file(ONE, "one", "52:54:00:00:00:01", "a1", secret);
    std::fs::write(dir.path().join("machines/one.yaml"), one).unwrap();
    let server = Running::start_in(dir).await;
    assert_eq!(server.v1("DELETE", &format!("/v1/machine/{ONE}/free"), &Value::Null).await.status, 200);
    let entry = server.audit(&format!("machine={ONE}")).await.remove(0);
    let text = entry.to_string();
    assert!(text.contains("machines/one.yaml: /allocation") && text.contains("(hidden)"), "{text}");
    assert!(!text.contains("hunter2"), "{text}");
    assert_eq!((&entry["outcome"], &entry["status"]), (&json!("done"), &json!(200)));

    let added = server.v1("PUT", "/v1/users", &json!({"name": "ann", "role": "viewer"})).await;
    assert_eq!(added.status, 201);
    assert_eq!(server.v1("POST", "/v1/users/ann", &json!({"role": "operator"})).await.status, 200);
    let entry = server.audit("machine=ann").await.remove(0);
    assert_eq!(entry["changes"], json!([{"path": "user ann: /role", "before": "viewer", "after": "operator"}]));
    assert_eq!(entry["committed"], true, "the transaction of the change marks its entry");
    let made = server.v1("POST", "/v1/users/ann/tokens", &json!({"name": "ci"})).await.json();
    let entry = server.audit("machine=ann").await.remove(0);
    assert!(!entry.to_string().contains(made["token"].as_str().unwrap()), "{entry}");
    assert!(entry.to_string().contains("user ann: /access/ci"), "{entry}");
    let refused = server.v1("PUT", "/v1/users", &json!({"name": "ann", "role": "viewer"})).await;
    let entry = server.audit("limit=1").await.remove(0);
    assert_eq!((refused.status, &entry["outcome"], &entry["committed"]), (409, &json!("refused"), &json!(false)));
    assert!(entry["reason"].as_str().unwrap().contains("user ann exists already"), "{entry}");
}

/// The file with the parameters is created by the first request, and changed by the second one.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn entry_hides_site_wide_parameters_of_os_definitions() {
    let server = Running::start().await;
    for (value, fields) in [("hunter2", ["after"].as_slice()), ("hunter3", &["before", "after"])] {
        let body = json!({"changes": [format!("root_key={value}")]});
        let answer = server.v1("POST", "/v1/os/web/parameters", &body).await;
        assert_eq!(answer.status, 200, "{}", answer.text());
        let entry = server.audit("limit=1").await.remove(0);
        let text = entry.to_string();
        assert!(text.contains("os/parameters.yaml") && !text.contains("hunter"), "{text}");
        assert!(fields.iter().all(|field| entry["changes"][0][field].to_string().contains("(hidden)")), "{text}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn entry_of_new_machine_contains_only_its_file() {
    let server = Running::start().await;
    server.token(STRANGER).await;
    let body = json!({"name": "three", "image": "debian-12", "layout": "default"});
    let answer = server.v1("POST", &format!("/v1/machine/{STRANGER}/file"), &body).await;
    assert_eq!(answer.status, 200, "{}", answer.text());
    let entry = server.audit(&format!("machine={STRANGER}")).await.remove(0);
    let changes = entry["changes"].as_array().unwrap();
    let paths: Vec<_> = changes.iter().map(|change| change["path"].as_str().unwrap()).collect();
    assert_eq!(paths, [format!("machine {STRANGER}").as_str(), "machines/three.yaml"], "{entry}");
    assert!(changes.iter().all(|change| change["before"].is_null() && change["after"]["name"] == "three"), "{entry}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn refused_requests_leave_a_limited_number_of_entries() {
    let server = Running::start().await;
    let viewer = server.user("vic", "viewer", &[]).await;
    let power = format!("/v1/machine/{ONE}/power");
    assert_eq!(server.call(&viewer, "POST", &power, &json!({"action": "on"})).await.status, 403);
    let entry = server.audit("who=vic").await.remove(0);
    assert_eq!(
        (&entry["status"], &entry["reason"], &entry["object"]),
        (&json!(403), &json!("insufficient role"), &json!(ONE))
    );
    assert_eq!(server.v1("DELETE", "/v1/users/vic/tokens/t", &Value::Null).await.status, 200);
    assert_eq!(server.call(&viewer, "POST", &power, &json!({"action": "on"})).await.status, 401);
    let entry = server.audit("who=vic").await.remove(0);
    assert_eq!((&entry["status"], &entry["reason"]), (&json!(401), &json!("the token was revoked")));
    for _ in 0..50 {
        assert_eq!(server.call("dh_wrong", "POST", &power, &json!({})).await.status, 401);
    }
    let unknown = server.audit("limit=1000").await.into_iter().filter(|entry| entry["user"] == "");
    assert_eq!(unknown.count(), 18, "at most 20 entries per address and minute");
    // Agents are not users: their requests are not recorded.
    let before = server.audit("").await.len();
    server.call("wrong", "POST", &format!("/v1/machine/{ONE}/event"), &json!({})).await;
    server.token(ONE).await;
    assert_eq!(server.audit("").await.len(), before);
}

/// A viewer sends requests that succeed, and refused requests. Neither may displace the entries of changes.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn viewers_cannot_fill_the_log() {
    let server = Running::start().await;
    let viewer = server.user("vic", "viewer", &[]).await;
    let before = server.audit("limit=1000").await.len();
    for _ in 0..50 {
        let found = server.call(&viewer, "POST", "/v1/machine/find", &json!({})).await;
        assert_eq!(found.status, 200, "{}", found.text());
    }
    let body = json!({"size": "c1", "image": "debian-12"});
    assert_eq!(server.call(&viewer, "POST", "/v1/filesystemlayout/try", &body).await.status, 422, "no layout applies");
    let refused = server.audit("limit=1000").await;
    assert_eq!(refused.len(), before + 1, "a refused query is recorded, a successful one is not");
    assert_eq!((&refused[0]["user"], &refused[0]["outcome"]), (&json!("vic"), &json!("refused")));
    let browser = server.browser_with(&viewer).await;
    for number in 0..50 {
        assert_eq!(server.call(&viewer, "POST", "/v1/machine/find", &json!({"size": number})).await.status, 400);
        assert_eq!(browser.post("/logout", &[], &[("form", "wrong")]).await.status, 403);
    }
    let all = server.audit("limit=1000").await;
    assert_eq!(all.iter().filter(|entry| entry["outcome"] == "refused").count(), 20, "refusals are limited");
    browser.log_out().await;
    let entry = server.audit("limit=1").await.remove(0);
    assert_eq!(
        (&entry["action"], &entry["outcome"], &entry["user"]),
        (&json!("POST /logout"), &json!("done"), &json!("vic"))
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn logins_of_a_user_are_limited() {
    let server = Running::start().await;
    let viewer = server.user("vic", "viewer", &[]).await;
    for _ in 0..30 {
        server.browser_with(&viewer).await;
    }
    let refused = server.ask("POST", "/login", &[], &format!("token={viewer}")).await;
    assert_eq!((refused.status, refused.headers["retry-after"].as_str()), (429, "5"), "{}", refused.text());
    server.browser().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn login_is_recorded_despite_exhausted_refusal_quota() {
    let server = Running::start().await;
    for _ in 0..50 {
        assert_eq!(server.call("dh_wrong", "POST", "/v1/machine/find", &json!({})).await.status, 401);
    }
    let refusals = server.audit("limit=1000").await.into_iter().filter(|entry| entry["outcome"] == "refused");
    assert_eq!(refusals.count(), 20);
    let token = server.user("ann", "viewer", &[]).await;
    server.browser_with(&token).await;
    let entry = server.audit("who=ann").await.remove(0);
    assert_eq!((&entry["action"], &entry["outcome"]), (&json!("POST /login"), &json!("done")), "{entry}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn audit_file_that_is_not_regular_is_refused() {
    let dir = directory();
    let file = dir.path().join("audit.fifo");
    nix::unistd::mkfifo(&file, nix::sys::stat::Mode::S_IRWXU).unwrap();
    let options = ServerConfig { audit_log: Some(file), ..options(dir.path()) };
    let watch = ServerLog::json_into(CapturedLog::default());
    let refused = ControlServer::bind_server(&options, watch, &silent(), 10_000).await.err().unwrap().to_string();
    assert!(refused.contains("--audit-log") && refused.contains("is not a regular file"), "{refused}");
}

/// The file is replaced by a FIFO without a reader, to which nothing can be written.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn entries_that_the_file_lacks_are_counted_and_shown() {
    let dir = directory();
    let file = dir.path().join("audit.jsonl");
    let options = ServerConfig { audit_log: Some(file.clone()), ..options(dir.path()) };
    let server = Running::start_with(dir, &options, &silent(), 10_000).await;
    assert!(server.has_metric("drophammer_audit_entries_lost_total 0").await);
    std::fs::remove_file(&file).unwrap();
    nix::unistd::mkfifo(&file, nix::sys::stat::Mode::S_IRWXU).unwrap();
    assert_eq!(server.v1("PUT", "/v1/users", &json!({"name": "a", "role": "viewer"})).await.status, 201);
    server.heard("cannot write entry").await;
    while !server.has_metric("drophammer_audit_entries_lost_total 1").await {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    let browser = server.browser().await;
    while !browser.text("/").await.contains("lacks 1 entry") {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    assert!(server.is_ready().await.0, "requests are not impaired");
    assert_eq!(server.audit("action=PUT").await.len(), 1, "the entry is in the database");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn entries_are_filtered_paged_and_written_to_a_file() {
    let dir = directory();
    let file = dir.path().join("audit.jsonl");
    let options = ServerConfig { audit_log: Some(file.clone()), ..options(dir.path()) };
    let server = Running::start_with(dir, &options, &silent(), 10_000).await;
    for name in ["a", "b", "c"] {
        server.v1("PUT", "/v1/users", &json!({"name": name, "role": "viewer"})).await;
    }
    let ids = |entries: Vec<Value>| entries.iter().map(|entry| entry["id"].as_i64().unwrap()).collect::<Vec<_>>();
    let all = ids(server.audit("action=/v1/users").await);
    assert_eq!(all.len(), 3);
    assert!(all[0] > all[1], "the newest entry is first");
    assert_eq!(ids(server.audit(&format!("limit=1&before={}", all[1])).await), [all[2]]);
    assert_eq!(ids(server.audit(&format!("after={}", all[2])).await), [all[1], all[0]], "the oldest entry is first");
    assert!(server.audit("who=nobody").await.is_empty() && server.audit("since=2999-01-01T00:00:00Z").await.is_empty());
    assert_eq!(server.v1("GET", "/v1/audit?nonsense=1", &Value::Null).await.status, 400);
    for method in ["POST", "PUT", "PATCH", "DELETE"] {
        assert_eq!(server.v1(method, "/v1/audit", &Value::Null).await.status, 405, "{method}");
    }
    let read = || std::fs::read_to_string(&file).unwrap();
    server.wait_until(|| read().lines().count() == 7, "all entries are in the file").await;
    let lines = read();
    let lines: Vec<Value> = lines.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(lines.len(), 7, "{lines:?}");
    assert!(lines[..3].iter().all(|line| line["outcome"] == "done" && line["user"] == "operator"), "{lines:?}");
    assert!(lines[3..].iter().all(|line| line["outcome"] == "refused" && line["status"] == 405), "{lines:?}");
}
