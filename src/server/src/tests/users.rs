//! Users, roles, projects and tokens: the permitted requests, and the visible objects.

use super::*;
use api::access::route_access::{RouteAccess, RouteScope, all_rules, find_rule};
use store::users::UserRole;

impl Running {
    /// Adds a user with a token, and returns the token.
    pub(super) async fn user(&self, name: &str, role: &str, projects: &[&str]) -> String {
        let added = self.v1("PUT", "/v1/users", &json!({"name": name, "role": role, "projects": projects})).await;
        assert_eq!(added.status, 201, "{}", added.text());
        let created = self.v1("POST", &format!("/v1/users/{name}/tokens"), &json!({"name": "t"})).await;
        assert_eq!(created.status, 201, "{}", created.text());
        created.json()["token"].as_str().unwrap().to_owned()
    }

    async fn status(&self, token: &str, method: &str, path: &str, body: &Value) -> u16 {
        self.call(token, method, path, body).await.status
    }
}

/// Creates a directory in which machine `one` belongs to project `blue`, and machine `two` to project `red`.
fn with_projects() -> TempDir {
    let dir = directory();
    let one = machine_file(
        ONE,
        "one",
        "52:54:00:00:00:01",
        "a1",
        "  user_data: 'hunter2-data'\n  console_password: hunter2-console\n",
    );
    std::fs::write(dir.path().join("machines/one.yaml"), format!("project: blue\n{one}")).unwrap();
    let two = format!("id: {TWO}\nname: two\nproject: red\nmacs: ['52:54:00:00:00:02']\n");
    std::fs::write(dir.path().join("machines/two.yaml"), two).unwrap();
    dir
}

fn concrete(route: &str, id: &str) -> String {
    let path = route.replace("{id}", id).replace("{*path}", "x");
    path.replace("{name}", "x").replace("{state}", "hidden").replace("{token}", "x")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn routes_refuse_users_with_lower_roles() {
    let server = Running::start_in(with_projects()).await;
    let viewer = server.user("vic", "viewer", &[]).await;
    let operator = server.user("olga", "operator", &[]).await;
    assert!(viewer.starts_with("dh_") && viewer.len() == 67);
    for (method, route, access, _) in all_rules() {
        let RouteAccess::User(role) = access else { continue };
        let path = concrete(route, ONE);
        let version = ("X-OpenStack-Ironic-API-Version", "latest");
        assert_eq!(server.ask(method, &path, &[version], "").await.status, 401, "{method} {path} without a token");
        for (token, own) in [(&viewer, UserRole::Viewer), (&operator, UserRole::Operator)] {
            let bearer = format!("Bearer {token}");
            let answer = server.ask(method, &path, &[("Authorization", &bearer), version], "").await;
            assert_eq!(answer.status == 403, own < *role, "{own} {method} {path}: {} {}", answer.status, answer.text());
        }
    }
    let whoami = server.call(&viewer, "GET", "/v1/whoami", &Value::Null).await.json();
    assert_eq!(whoami, json!({"user": "vic", "token": "t", "role": "viewer", "projects": [], "source": "token"}));
    assert_eq!(server.v1("GET", "/v1/whoami", &Value::Null).await.json()["user"], "operator");
}

#[test]
fn every_page_and_firmware_route_has_access_rule() {
    let sources = [include_str!("../../../web/src/lib.rs"), include_str!("../listeners.rs")];
    let mut count = 0;
    for line in sources.iter().flat_map(|text| text.lines()) {
        let Some((_, rest)) = line.split_once(".route(\"") else { continue };
        let (route, handlers) = rest.split_once('"').unwrap();
        for method in ["get", "post", "put", "delete", "patch"] {
            if handlers.contains(&format!(" {method}(")) || handlers.contains(&format!(").{method}(")) {
                count += 1;
                assert!(find_rule(&method.to_uppercase(), route).is_some(), "{method} {route} has no access rule");
            }
        }
    }
    assert!(count > 35, "{count}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn machines_of_other_projects_are_not_found() {
    let server = Running::start_in(with_projects()).await;
    server.token(TWO).await;
    let blue = server.user("bob", "operator", &["blue"]).await;
    let names = |listed: &Value| {
        let names = listed.as_array().unwrap().iter().map(|machine| machine["name"].as_str().unwrap().to_owned());
        names.collect::<Vec<_>>()
    };
    server.token(STRANGER).await;
    for path in ["/v1/machines", "/v1/machine"] {
        assert_eq!(names(&server.call(&blue, "GET", path, &Value::Null).await.json()), ["one"], "{path}");
    }
    assert_eq!(names(&server.call(&blue, "POST", "/v1/machine/find", &json!({})).await.json()), ["one"]);
    assert_eq!(server.v1("GET", "/v1/machines", &Value::Null).await.json().as_array().unwrap().len(), 3);
    assert_eq!(server.call(&blue, "GET", "/v1/machines", &Value::Null).await.json()[0]["project"], "blue");
    let nobody = "4c4c4544-0051-3010-8052-b4c04f4d7777";
    for (method, route, access, scope) in all_rules() {
        let (RouteAccess::User(_) | RouteAccess::MachineOrUser(_), RouteScope::Machine) = (access, scope) else {
            continue;
        };
        let [other, missing, unknown] = [TWO, nobody, STRANGER].map(|id| concrete(route, id));
        let mut bodies = Vec::new();
        for (path, id) in [(&other, TWO), (&missing, nobody), (&unknown, STRANGER)] {
            let answer = server.call(&blue, method, path, &json!({"id": id})).await;
            assert_eq!(answer.status, 404, "{method} {path}: {}", answer.text());
            bodies.push(answer.text().replace(id, "ID"));
        }
        assert!(bodies[0] == bodies[1] && bodies[1] == bodies[2], "{method} {route}: {bodies:?}");
    }
    let elsewhere = json!({"uuid": TWO, "imageid": "debian-12"});
    assert_eq!(server.status(&blue, "POST", "/v1/machine/allocate", &elsewhere).await, 404);
    assert!(!std::fs::read_to_string(server.dir.path().join("machines/two.yaml")).unwrap().contains("allocation"));
    for path in ["/v1/filesystemlayout/matches", "/v1/size/suggest", &format!("/v1/machine/{STRANGER}/file")] {
        let status = server.status(&blue, "POST", path, &json!({"machine": TWO})).await;
        assert!([403, 404].contains(&status), "{path}: {status}");
    }
    assert_eq!(server.status(&blue, "GET", "/metrics", &Value::Null).await, 403);
    assert_eq!(server.status(&blue, "GET", &format!("/v1/machine/{ONE}/details"), &Value::Null).await, 200);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn list_queries_reveal_no_machines_of_other_projects() {
    let server = Running::start_in(with_projects()).await;
    server.token(STRANGER).await;
    let blue = server.user("bob", "operator", &["blue"]).await;
    let list = async |token: &str, query: &str| {
        let listed = server.call(token, "GET", &format!("/v1/machines{query}"), &Value::Null).await;
        assert_eq!(listed.status, 200, "{query}: {}", listed.text());
        listed.json().as_array().unwrap().len()
    };
    let operator = server.operator();
    for (query, own, all) in [
        ("?q=one", 1, 1),
        ("?q=52:54:00:00:00", 1, 2),
        ("?q=two", 0, 1),
        ("?q=52:54:00:00:00:02", 0, 1),
        (&format!("?q={TWO}"), 0, 1),
        (&format!("?q={STRANGER}"), 0, 1),
        ("?phase=new", 0, 1),
        ("?phase=failed,new", 0, 1),
        ("?phase=free", 0, 1),
        ("?limit=5", 1, 3),
    ] {
        assert_eq!((list(&blue, query).await, list(&operator, query).await), (own, all), "{query}");
    }
    let nobody = "4c4c4544-0051-3010-8052-b4c04f4d7777";
    let mut bodies = Vec::new();
    for id in [TWO, STRANGER, nobody] {
        let answer = server.call(&blue, "GET", &format!("/v1/machines?after={id}"), &Value::Null).await;
        assert_eq!(answer.status, 400, "{id}: {}", answer.text());
        bodies.push(answer.text().replace(id, "ID"));
    }
    assert!(bodies[0] == bodies[1] && bodies[1] == bodies[2], "{bodies:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn viewers_see_no_secrets() {
    let server = Running::start_in(with_projects()).await;
    let token = server.token(ONE).await;
    server.allocated(ONE, &token).await;
    server.report(ONE, &token, "a1", true).await;
    let template = json!({"name": "CUSTOM_T", "steps": [{"interface": "bios", "step": "apply_configuration", "priority": 150,
        "args": {"settings": [{"name": "AdminPw", "value": "hunter2-arg"}]}}]});
    let version = ("X-OpenStack-Ironic-API-Version", "latest");
    let bearer = format!("Bearer {}", server.operator());
    let made =
        server.ask("POST", "/v1/deploy_templates", &[("Authorization", &bearer), version], &template.to_string()).await;
    assert_eq!(made.status, 201, "{}", made.text());
    let viewer = server.user("vic", "viewer", &[]).await;
    let bearer = format!("Bearer {viewer}");
    for (method, route, access, _) in all_rules() {
        if !matches!(access, RouteAccess::User(UserRole::Viewer) | RouteAccess::MachineOrUser(_)) {
            continue;
        }
        let path = concrete(route, ONE).replace("/x", "");
        let answer = server.ask(method, &path, &[("Authorization", &bearer), version], "{}").await.text();
        for secret in ["hunter2", "s3cret"] {
            assert!(!answer.contains(secret), "{method} {path}: {answer}");
        }
    }
    let details = server.call(&viewer, "GET", &format!("/v1/machine/{ONE}/details"), &Value::Null).await;
    assert!(details.status == 200 && details.json()["report"]["success"] == true, "{}", details.text());
    assert_eq!(server.status(&viewer, "GET", &format!("/v1/machine/{ONE}/log"), &Value::Null).await, 403);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn revoked_and_foreign_tokens_and_disabled_users_are_refused() {
    let server = Running::start().await;
    let token = server.user("ann", "admin", &[]).await;
    let list = "/v1/machines";
    assert_eq!(server.status(&token, "GET", list, &Value::Null).await, 200);
    for foreign in ["dh_", "dh_0000", "", &token[..66], &format!("{token}0"), &token.to_uppercase()] {
        assert_eq!(server.status(foreign, "GET", list, &Value::Null).await, 401, "{foreign:?}");
    }
    let disabled = |is: bool| json!({"disabled": is});
    assert_eq!(server.v1("POST", "/v1/users/ann", &disabled(true)).await.status, 200);
    assert_eq!(server.status(&token, "GET", list, &Value::Null).await, 401);
    assert_eq!(server.v1("POST", "/v1/users/ann", &disabled(false)).await.status, 200);
    assert_eq!(server.status(&token, "GET", list, &Value::Null).await, 200);
    // The token in the file can be disabled only if another admin has a valid token.
    assert_eq!(server.call(&token, "POST", "/v1/users/operator", &disabled(true)).await.status, 200);
    assert_eq!(server.v1("GET", list, &Value::Null).await.status, 401);
    for (method, path, body) in [
        ("POST", "/v1/users/ann", disabled(true)),
        ("POST", "/v1/users/ann", json!({"role": "operator"})),
        ("DELETE", "/v1/users/ann", Value::Null),
        ("DELETE", "/v1/users/ann/tokens/t", Value::Null),
    ] {
        let refused = server.call(&token, method, path, &body).await;
        assert_eq!(refused.status, 409, "{method} {path}: {}", refused.text());
        assert!(refused.text().contains("ann is the last administrator with a valid token"), "{}", refused.text());
    }
    assert_eq!(server.call(&token, "POST", "/v1/users/operator", &disabled(false)).await.status, 200);
    assert_eq!(server.v1("DELETE", "/v1/users/ann/tokens/t", &Value::Null).await.status, 200);
    assert_eq!(server.status(&token, "GET", list, &Value::Null).await, 401);
    assert_eq!(server.v1("DELETE", "/v1/users/ann/tokens/t", &Value::Null).await.status, 404);
    assert_eq!(server.v1("DELETE", "/v1/users/operator", &Value::Null).await.status, 409);
    let names = server.v1("GET", "/v1/users", &Value::Null).await.text();
    assert!(!names.contains(&token) && names.contains("ann"), "{names}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn expired_token_is_refused_and_recorded_once() {
    let server = Running::start().await;
    let token = server.user("ann", "operator", &[]).await;
    assert_eq!(server.status(&token, "GET", "/v1/machines", &Value::Null).await, 200);
    let expire = "UPDATE user_tokens SET expires = '2020-01-01T00:00:00Z' WHERE user_name = 'ann' RETURNING user_name";
    assert_eq!(engine::run_sql(server.dir.path(), expire), "ann");
    for (method, path) in [("GET", "/v1/machines".to_owned()), ("POST", format!("/v1/machine/{ONE}/lock"))] {
        let before = server.audit("limit=1000").await.len();
        let refused = server.call(&token, method, &path, &json!({})).await;
        assert_eq!(refused.status, 401, "{}", refused.text());
        assert!(!refused.text().contains("ann"), "{}", refused.text());
        let entries = server.audit("limit=1000").await;
        assert_eq!(entries.len(), before + 1, "{method} {path}");
        let entry = &entries[0];
        assert_eq!((&entry["user"], &entry["token"], &entry["path"]), (&json!("ann"), &json!("t"), &json!(path)));
        assert_eq!((&entry["status"], &entry["outcome"]), (&json!(401), &json!("refused")));
        assert_eq!(entry["reason"], "the token has expired");
    }
    let file = std::fs::read_to_string(server.dir.path().join("machines/one.yaml")).unwrap();
    assert!(!file.contains("locked"), "{file}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn access_to_machine_of_another_project_is_recorded_once() {
    let server = Running::start_in(with_projects()).await;
    let blue = server.user("bob", "operator", &["blue"]).await;
    for (method, action) in [("GET", "details"), ("POST", "lock"), ("DELETE", "free")] {
        let before = server.audit("limit=1000").await.len();
        let path = format!("/v1/machine/{TWO}/{action}");
        assert_eq!(server.status(&blue, method, &path, &json!({})).await, 404, "{method} {path}");
        let entries = server.audit("limit=1000").await;
        assert_eq!(entries.len(), before + 1, "{method} {path}");
        let entry = &entries[0];
        assert_eq!(
            (&entry["user"], &entry["role"], &entry["object"]),
            (&json!("bob"), &json!("operator"), &json!(TWO))
        );
        assert_eq!((&entry["status"], &entry["outcome"]), (&json!(404), &json!("refused")));
        assert_eq!(entry["reason"], "the machine does not exist, or belongs to another project");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn invalid_users_and_tokens_are_refused() {
    let server = Running::start().await;
    for body in [
        json!({"name": "", "role": "viewer"}),
        json!({"name": "a b", "role": "viewer"}),
        json!({"name": "../x", "role": "viewer"}),
        json!({"name": "operator", "role": "viewer"}),
        json!({"name": "x", "role": "admin", "projects": ["blue"]}),
        json!({"name": "x", "role": "viewer", "projects": ["b l u e"]}),
    ] {
        assert_eq!(server.v1("PUT", "/v1/users", &body).await.status, 409, "{body}");
    }
    for body in
        [json!({"name": "x", "role": "root"}), json!({"name": "x"}), json!({"name": "x", "role": "viewer", "uid": 0})]
    {
        assert_eq!(server.v1("PUT", "/v1/users", &body).await.status, 400, "{body}");
    }
    server.user("x", "viewer", &[]).await;
    assert_eq!(server.v1("PUT", "/v1/users", &json!({"name": "x", "role": "viewer"})).await.status, 409);
    for body in [json!({"name": "t"}), json!({"name": "a b"}), json!({"name": "u", "days": 100_000})] {
        assert_eq!(server.v1("POST", "/v1/users/x/tokens", &body).await.status, 409, "{body}");
    }
    assert_eq!(server.v1("POST", "/v1/users/operator/tokens", &json!({"name": "u"})).await.status, 409);
    assert_eq!(server.v1("POST", "/v1/users/nobody/tokens", &json!({"name": "u"})).await.status, 404);
    let unlimited = server.v1("POST", "/v1/users/x/tokens", &json!({"name": "u", "days": 0})).await.json();
    assert!(unlimited.get("expires").is_none() && unlimited["token"].is_string(), "{unlimited}");
}
