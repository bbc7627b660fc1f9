//! Requests of users with projects that affect machines of other projects indirectly: through a MAC, a name, or a
//! migration.

use super::machine_migration::fingerprint;
use super::*;

impl Running {
    pub(super) async fn assign_projects(&self) {
        for (name, project) in [("one", "blue"), ("two", "red")] {
            let path = format!("machines/{name}.yaml");
            let text = std::fs::read_to_string(self.dir.path().join(&path)).unwrap();
            self.write(&path, &format!("project: {project}\n{text}"));
        }
        loop {
            let listed = self.v1("GET", "/v1/machines", &Value::Null).await.json();
            if listed.as_array().unwrap().iter().all(|machine| machine["project"].is_string()) {
                return;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn duplicates_in_another_project_are_refused_anonymously() {
    let server = Running::start().await;
    server.assign_projects().await;
    let browser = server.browser_with(&server.user("bob", "operator", &["blue"]).await).await;
    let path = format!("/machines/{ONE}/file");
    let old = std::fs::read_to_string(server.dir.path().join("machines/one.yaml")).unwrap();
    for (from, to, reason) in [
        (
            "52:54:00:00:00:01",
            "52:54:00:00:00:02",
            "the file of a machine of another project already lists 52:54:00:00:00:02",
        ),
        ("name: one", "name: two", "a machine of another project already has the name &quot;two&quot;"),
    ] {
        let page = browser.text(&path).await;
        let field = |name: &str| {
            let (_, rest) = page.split_once(&format!("name=\"{name}\" value=\"")).unwrap();
            rest.split('"').next().unwrap().to_owned()
        };
        let (form, base, text) = (field("form"), field("base"), old.replace(from, to));
        let fields = [("form", form.as_str()), ("base", base.as_str()), ("text", text.as_str())];
        let answer = browser.post(&path, &[], &fields).await;
        assert!(answer.status == 422 && answer.text().contains(reason), "{}", answer.text());
        assert!(!answer.text().contains(TWO) && !answer.text().contains("(\"two\")"), "{}", answer.text());
    }
    assert_eq!(std::fs::read_to_string(server.dir.path().join("machines/one.yaml")).unwrap(), old);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn migration_between_projects_requires_an_operator_of_both() {
    let (server, order) = Running::move_ordered().await;
    server.assign_projects().await;
    let blue = server.user("bob", "operator", &["blue"]).await;
    let red = server.user("rob", "operator", &["red"]).await;
    let both = server.user("kim", "operator", &["blue", "red"]).await;
    for (token, own, other) in [(&blue, ONE, TWO), (&red, TWO, ONE)] {
        let move_path = format!("/v1/machine/{own}/move");
        for (method, path, body) in [
            ("GET", move_path.clone(), Value::Null),
            ("DELETE", move_path.clone(), Value::Null),
            ("DELETE", format!("{move_path}?off={other}"), Value::Null),
            ("POST", format!("{move_path}/finish"), Value::Null),
            ("POST", format!("{move_path}/approve"), json!({ "fingerprints": [fingerprint(other)] })),
        ] {
            let answer = server.call(token, method, &path, &body).await;
            let text = answer.text();
            assert_eq!(answer.status, 403, "{method} {path}: {text}");
            assert!(text.contains("a migration with a machine of another project") && !text.contains(other), "{text}");
        }
        let browser = server.browser_with(token).await;
        let mut all = vec![browser.text("/").await, browser.text(&format!("/machines/{own}")).await];
        for path in ["/v1/machines", "/v1/machine", "", "/details", "/preview", "/events", "/history", "/free"] {
            let path = if path.starts_with("/v1") { path.to_owned() } else { format!("/v1/machine/{own}{path}") };
            let method = if path.ends_with("/free") { "DELETE" } else { "GET" };
            all.push(server.call(token, method, &path, &Value::Null).await.text());
        }
        let reinstall = json!({ "id": own, "imageid": "debian-13" });
        all.push(server.call(token, "POST", &format!("/v1/machine/{own}/reinstall"), &reinstall).await.text());
        for text in all {
            assert!(!text.contains(other), "{text}");
        }
        let listed = server.call(token, "GET", "/v1/machines", &Value::Null).await.json();
        assert_eq!((&listed[0]["moving"]["other"], &listed[0]["moving"]["id"]), (&json!(""), &json!(order)));
    }
    let path = format!("/v1/machine/{TWO}/move");
    assert_eq!(server.call(&both, "GET", &path, &Value::Null).await.json()["from"], ONE);
    assert_eq!(server.call(&both, "DELETE", &path, &Value::Null).await.status, 200);
}
