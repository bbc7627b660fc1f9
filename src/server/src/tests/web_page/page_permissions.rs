//! The page for users: which actions and machines it offers, and when sessions end.

use super::*;
use api::access::route_access::{RouteAccess, RouteScope, all_rules};

fn with_projects() -> TempDir {
    let dir = directory();
    let one = machine_file(ONE, "one", "52:54:00:00:00:01", "a1", "");
    std::fs::write(dir.path().join("machines/one.yaml"), format!("project: blue\n{one}")).unwrap();
    dir
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn pages_hide_and_refuse_actions_for_viewers() {
    let server = Running::start_in(with_projects()).await;
    let browser = server.browser_with(&server.user("vic", "viewer", &[]).await).await;
    let list = browser.text("/").await;
    assert!(list.contains(">vic<") && list.contains("one") && list.contains("two"), "{list}");
    assert!(!list.contains("/bulk/review") && !list.contains("/audit"), "{list}");
    let page = browser.text(&format!("/machines/{ONE}")).await;
    for action in ["/reinstall", "/file", "/actions", "/cancel", "Console log"] {
        assert!(!page.contains(&format!("/machines/{ONE}{action}")), "{action}: {page}");
    }
    for (method, route, access, _) in all_rules() {
        let RouteAccess::Page(role) = access else { continue };
        let path = route.replace("{id}", ONE);
        if *role == api::access::UserRole::Viewer {
            continue;
        }
        let form = [("form", browser.token().await)];
        let form = form.each_ref().map(|(name, value)| (*name, value.as_str()));
        let answer = match *method {
            "GET" => browser.get(&path).await,
            _ => browser.post(&path, &[], &form).await,
        };
        assert_eq!(answer.status, 403, "{method} {path}: {}", answer.text());
        assert!(answer.text().contains("requires the role") && answer.text().contains("</html>"), "{}", answer.text());
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn project_user_sees_and_keeps_only_own_machines() {
    let server = Running::start_in(with_projects()).await;
    let browser = server.browser_with(&server.user("bob", "operator", &["blue"]).await).await;
    let list = browser.text("/").await;
    assert!(list.contains(ONE) && !list.contains(TWO), "{list}");
    for (method, route, access, scope) in all_rules() {
        let (RouteAccess::Page(_), RouteScope::Machine) = (access, scope) else { continue };
        let nobody = "4c4c4544-0051-3010-8052-b4c04f4d7777";
        let mut bodies = Vec::new();
        for id in [TWO, nobody] {
            let path = route.replace("{id}", id);
            let answer = match *method {
                "GET" => browser.get(&path).await,
                _ => browser.post(&path, &[], &[]).await,
            };
            assert_eq!(answer.status, 404, "{method} {path}: {}", answer.text());
            bodies.push(answer.text().replace(id, "ID"));
        }
        assert_eq!(bodies[0], bodies[1], "{method} {route}");
    }
    let path = format!("/machines/{ONE}/file");
    let text = std::fs::read_to_string(server.dir.path().join("machines/one.yaml")).unwrap();
    let page = browser.text(&path).await;
    let (_, rest) = page.split_once("name=\"base\" value=\"").unwrap();
    let base = rest.split('"').next().unwrap();
    let form = browser.token().await;
    for other in ["project: red", "# no project"] {
        let text = text.replace("project: blue", other);
        let fields = [("form", form.as_str()), ("base", base), ("text", text.as_str())];
        let answer = browser.post(&path, &[], &fields).await;
        assert!(
            answer.status == 403 && answer.text().contains("a user with the projects blue cannot set the project"),
            "{}",
            answer.text()
        );
    }
    assert_eq!(std::fs::read_to_string(server.dir.path().join("machines/one.yaml")).unwrap(), text);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sessions_end_when_their_token_is_revoked() {
    let server = Running::start().await;
    let token = server.user("ann", "admin", &[]).await;
    let browser = server.browser_with(&token).await;
    let audit = browser.text("/audit").await;
    assert!(audit.contains("POST /login") && audit.contains("PUT /v1/users") && audit.contains("ann"), "{audit}");
    assert!(!browser.text("/audit?who=nobody").await.contains("PUT /v1/users"));
    assert_eq!(server.v1("DELETE", "/v1/users/ann/tokens/t", &Value::Null).await.status, 200);
    let answer = browser.get("/").await;
    assert_eq!((answer.status, answer.headers["location"].as_str()), (303, "/login"));
    let refused = server.post("/login", &[], &[("token", &token)]).await;
    assert!(refused.status == 401 && refused.text().contains("the token was revoked"), "{}", refused.text());
}
