//! Documents in the database that several servers share: `drophammer apply` and `drophammer export`.

mod undone_changes;

use super::*;
use clap::Parser;
use common::command_outcome::CommandOutcome;
use drophammer::cli::{Cli, CliCommand};
use std::time::Instant;
use testing::postgres::{self, PrivatePostgres};

/// Interval between scans of a server that must notice the changes of other servers without a scan.
const NO_SCAN: Duration = Duration::from_secs(600);

/// Starts a server with its own directory. If `first` is set, the new server uses the token of that server.
async fn start(url: &str, first: Option<&Running>) -> Running {
    let dir = directory();
    if let Some(first) = first {
        let token = std::fs::read(first.dir.path().join("operator.token")).unwrap();
        std::fs::write(dir.path().join("operator.token"), token).unwrap();
    }
    let mut options = options(dir.path());
    options.store.store = Some(url.to_owned());
    let around = HostEnvironment { scan_interval: NO_SCAN, ..silent() };
    Running::start_with(dir, &options, &around, 10_000).await
}

/// Starts PostgreSQL; `None` if it is not installed.
fn database() -> Option<(PrivatePostgres, String)> {
    if !postgres::is_installed() {
        println!("skipped: PostgreSQL 15 is not installed");
        return None;
    }
    let database = PrivatePostgres::start();
    let url = database.create_database("documents");
    Some((database, url))
}

fn document(path: &str, text: &str) -> Value {
    json!({"path": path, "text": text})
}

fn machine_two(name: &str) -> Value {
    document("machines/two.yaml", &format!("# rack 2\nid: {TWO}\nname: {name}\nmacs: ['52:54:00:00:00:02']\n"))
}

impl Running {
    async fn apply(&self, documents: &[Value], more: &Value) -> Answer {
        let mut body = json!({"documents": documents});
        for (name, value) in more.as_object().into_iter().flatten() {
            body[name] = value.clone();
        }
        self.v1("POST", "/v1/documents/apply", &body).await
    }

    async fn applied(&self, documents: &[Value]) -> Value {
        let answer = self.apply(documents, &json!({})).await;
        assert_eq!(answer.status, 200, "{}", answer.text());
        answer.json()
    }

    /// Returns the stored documents by path.
    async fn exported(&self) -> BTreeMap<String, String> {
        let answer = self.v1("POST", "/v1/documents/export", &Value::Null).await;
        assert_eq!(answer.status, 200, "{}", answer.text());
        let text = |one: &Value, name: &str| one[name].as_str().unwrap().to_owned();
        let all = answer.json();
        all["documents"].as_array().unwrap().iter().map(|one| (text(one, "path"), text(one, "text"))).collect()
    }

    /// Waits until the machine `two` has this name. Returns the elapsed time.
    async fn named(&self, name: &str) -> Duration {
        let began = Instant::now();
        loop {
            let all = self.v1("GET", "/v1/machines", &Value::Null).await;
            if all.status == 200
                && all.json().as_array().unwrap().iter().any(|one| one["id"] == TWO && one["name"] == name)
            {
                return began.elapsed();
            }
            assert!(began.elapsed() < PATIENCE, "machine two is never named {name}: {}", all.text());
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }

    async fn documents_command(&self, arguments: &[&str]) -> Result<CommandOutcome> {
        let url = format!("http://{}", self.address);
        let token = self.dir.path().join("operator.token").display().to_string();
        let with = ["--server", &url, "--token-file", &token];
        let command = Cli::try_parse_from(["drophammer"].iter().chain(arguments).chain(&with)).unwrap().command;
        let run = move || match command {
            CliCommand::Apply(options) => drophammer::server_commands::apply_and_export::run_apply(&options),
            CliCommand::Export(options) => drophammer::server_commands::apply_and_export::run_export(&options),
            _ => panic!(),
        };
        tokio::task::spawn_blocking(run).await.unwrap()
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn applied_documents_are_in_force_at_both_servers() {
    let Some((database, url)) = database() else { return };
    let one = start(&url, None).await;
    let other = start(&url, Some(&one)).await;
    // The first request stores the documents of the directory in the database, from which both servers then read all
    // documents.
    let report = one.applied(&[machine_two("first")]).await;
    assert_eq!(report["revision"], 1);
    let actions: Vec<_> = report["documents"].as_array().unwrap().iter().map(|one| one["action"].clone()).collect();
    assert_eq!(actions, ["imported", "imported", "imported", "created"]);
    other.named("first").await;
    other.heard("ignored, as are all 4 document files").await;
    assert!(one.file("machines/two.yaml").contains("name: two"), "files are not written");

    one.applied(&[machine_two("second")]).await;
    let took = other.named("second").await;
    assert!(took < Duration::from_secs(1), "{took:?}");
    // A request that writes a single object also writes to the database.
    let size = json!({"id": "c1", "constraints": [{"type": "cores", "min": 1, "max": 4}]});
    assert_eq!(other.v1("PUT", "/v1/size", &size).await.status, 201);
    assert!(one.exported().await.contains_key("sizes/c1.yaml") && !other.dir.path().join("sizes").exists());

    database.stop();
    assert_eq!(one.apply(&[machine_two("third")], &json!({})).await.status, 503);
    database.resume();
    let began = Instant::now();
    while one.apply(&[machine_two("third")], &json!({})).await.status != 200 {
        assert!(began.elapsed() < PATIENCE, "{}", one.heard.text());
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    other.named("third").await;
    let late = start(&url, Some(&one)).await;
    late.named("third").await;
    for server in [one, other, late] {
        server.stop().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_concurrent_write_succeeds_and_the_other_conflicts() {
    let Some((_database, url)) = database() else { return };
    let one = start(&url, None).await;
    let other = start(&url, Some(&one)).await;
    one.applied(&[]).await;
    other.named("two").await;
    let size = |max: u64| json!({"id": "c1", "constraints": [{"type": "cores", "min": 1, "max": max}]});
    let (first, second) = (size(4), size(8));
    let (left, right) = tokio::join!(one.v1("PUT", "/v1/size", &first), other.v1("PUT", "/v1/size", &second));
    let mut statuses = [left.status, right.status];
    statuses.sort_unstable();
    assert_eq!(statuses, [201, 409], "{} {}", left.text(), right.text());
    let refused = if left.status == 409 { left } else { right };
    let text = refused.text();
    assert!(text.contains("operator changed the document first") || text.contains("already"), "{text}");
    let stored = one.exported().await["sizes/c1.yaml"].clone();
    assert_eq!(stored, other.exported().await["sizes/c1.yaml"]);

    for round in 0..5 {
        let names = [format!("left{round}"), format!("right{round}")];
        let machines = names.clone().map(|name| machine_two(&name));
        let none = json!({});
        let (left, right) = tokio::join!(one.apply(&machines[..1], &none), other.apply(&machines[1..], &none));
        for answer in [&left, &right] {
            let is_conflict = answer.status == 409 && answer.text().contains("operator changed the document first");
            assert!(answer.status == 200 || is_conflict, "{}", answer.text());
        }
        assert!(left.status == 200 || right.status == 200);
        let text = one.exported().await["machines/two.yaml"].clone();
        assert_eq!(text, other.exported().await["machines/two.yaml"]);
        assert!(names.iter().any(|name| text.contains(name)), "{text}");
    }
    one.stop().await;
    other.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_refused_application_changes_nothing() {
    let Some((_database, url)) = database() else { return };
    let server = start(&url, None).await;
    let admin = server.operator();
    let bad = document("layouts/bad.yaml", "id: bad\ndisks: 7\n");
    let answer = server.apply(&[machine_two("x"), bad.clone()], &json!({})).await;
    assert!(answer.status == 422 && answer.text().contains("layouts/bad.yaml:2:8"), "{}", answer.text());
    server.applied(&[]).await;
    let before = server.exported().await;
    for (documents, more, status, expected) in [
        (vec![machine_two("x"), bad], json!({}), 422, "layouts/bad.yaml:2:8"),
        (vec![machine_two("x"), document("../a.yaml", "x")], json!({}), 422, "not a valid path"),
        (vec![machine_two("x"), document("boot/vmlinuz", "x")], json!({}), 422, "not a document"),
        // Machine one uses the layout and the image that this request would delete.
        (
            vec![machine_two("x"), document("machines/one.yaml", &before["machines/one.yaml"])],
            json!({"prune": true}),
            422,
            "machines/one.yaml",
        ),
        (vec![machine_two("x")], json!({"unknown": 1}), 400, "unknown field"),
    ] {
        let answer = server.apply(&documents, &more).await;
        assert!(answer.status == status && answer.text().contains(expected), "{}: {}", answer.status, answer.text());
        assert_eq!(server.exported().await, before);
    }
    let dry = server.apply(&[machine_two("x")], &json!({"dry_run": true, "prune": true})).await;
    assert_eq!(dry.status, 200, "{}", dry.text());
    let deleted: Vec<Value> =
        dry.json()["documents"].as_array().unwrap().iter().filter(|one| one["action"] == "deleted").cloned().collect();
    assert!(deleted.len() == 3 && deleted[0]["before"].is_string(), "{deleted:?}");
    assert_eq!(server.exported().await, before);

    for (name, role) in [("vic", "viewer"), ("olga", "operator")] {
        let token = server.user(name, role, &[]).await;
        for path in ["/v1/documents/export", "/v1/documents/apply"] {
            let answer = server.call(&token, "POST", path, &json!({"documents": []})).await;
            assert_eq!(answer.status, 403, "{role} {path}");
            assert!(!answer.text().contains("machines/"), "{}", answer.text());
        }
    }

    // The audit log contains names and digests, but no contents.
    server
        .applied(&[document("sizes/c.yaml", "id: c\ndescription: hunter2\nconstraints: [{type: cores, max: 4}]\n")])
        .await;
    let audit = server.call(&admin, "GET", "/v1/audit?action=documents", &Value::Null).await.text();
    assert!(audit.contains("sizes/c.yaml") && audit.contains("/v1/documents/export"), "{audit}");
    assert!(!audit.contains("hunter2"), "{audit}");
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn prune_never_deletes_a_machine_in_use() {
    let Some((_database, url)) = database() else { return };
    let server = start(&url, None).await;
    server.applied(&[]).await;
    let token = server.token(ONE).await;
    server.allocated(ONE, &token).await;
    server.report(ONE, &token, "a1", true).await;
    let all = server.exported().await;
    let without = |left_out: &str| -> Vec<Value> {
        all.iter().filter(|(path, _)| *path != left_out).map(|(path, text)| document(path, text)).collect()
    };
    let prune = json!({"prune": true});
    let answer = server.apply(&without("machines/one.yaml"), &prune).await;
    assert!(answer.status == 409 && answer.text().contains("is installed"), "{}", answer.text());
    assert_eq!(server.exported().await, all);
    // Machine two has no allocation, so its document can be deleted.
    let answer = server.apply(&without("machines/two.yaml"), &prune).await;
    assert_eq!(answer.status, 200, "{}", answer.text());
    let mut expected = all.clone();
    expected.remove("machines/two.yaml");
    assert_eq!(server.exported().await, expected);
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_round_trip_on_the_command_line_is_byte_identical() {
    let Some((_database, url)) = database() else { return };
    let server = start(&url, None).await;
    let dir = tempfile::tempdir().unwrap();
    let (from, to) = (dir.path().join("from"), dir.path().join("to"));
    let files = [
        ("machines/one.yaml", format!("# one\r\nid: {ONE}\nname: one  # trailing\n\n\n")),
        ("layouts/default.yaml", format!("{LAYOUT}# no newline at the end")),
        ("images/d.yaml", "id: debian-13\nname: \"D\u{e9}bian\"\nurl: http://m/d.tar\n".to_owned()),
        ("image-states.yaml", "hidden: [debian-13] # soon\n".to_owned()),
    ];
    for (name, text) in &files {
        std::fs::create_dir_all(from.join(name).parent().unwrap()).unwrap();
        std::fs::write(from.join(name), text).unwrap();
    }
    let (from_text, to_text) = (from.display().to_string(), to.display().to_string());
    let outcome = async |arguments: &[&str]| match server.documents_command(arguments).await {
        Ok(outcome) => outcome,
        Err(error) if error.is_refusal() => CommandOutcome::Refused,
        Err(error) => panic!("{arguments:?}: {error}"),
    };
    let apply = ["apply", "-f", &from_text, "--prune", "--detailed-exitcode"];
    assert_eq!(outcome(&[&apply[..], &["--dry-run"]].concat()).await, CommandOutcome::Erases);
    assert_eq!(outcome(&apply).await, CommandOutcome::Erases);
    assert_eq!(outcome(&apply).await, CommandOutcome::Good);
    assert_eq!(outcome(&["export", &to_text]).await, CommandOutcome::Good);
    for (name, text) in &files {
        assert_eq!(std::fs::read(to.join(name)).unwrap(), text.as_bytes(), "{name}");
    }
    assert_eq!(outcome(&["apply", "-f", &to_text, "--prune", "--detailed-exitcode"]).await, CommandOutcome::Good);
    assert_eq!(outcome(&["export", &to_text]).await, CommandOutcome::Refused);
    assert_eq!(outcome(&["export", &to_text, "--force"]).await, CommandOutcome::Good);
    std::fs::create_dir(from.join("unknown")).unwrap();
    assert_eq!(outcome(&apply).await, CommandOutcome::Refused);
    std::fs::remove_dir(from.join("unknown")).unwrap();
    std::fs::write(from.join("machines/one.yaml"), "id: 1\n").unwrap();
    assert_eq!(outcome(&apply).await, CommandOutcome::Refused);
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn with_sqlite_the_directory_remains_the_source() {
    let server = Running::start().await;
    let answer = server.apply(&[machine_two("x")], &json!({})).await;
    assert!(answer.status == 409 && answer.text().contains("SQLite"), "{}", answer.text());
    assert!(server.file("machines/two.yaml").contains("name: two"));
    let exported = server.exported().await;
    assert_eq!(exported["machines/one.yaml"], server.file("machines/one.yaml"));
    assert_eq!(exported.len(), 4);
}
