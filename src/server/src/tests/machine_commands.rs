//! `drophammer machine` against a server.

use super::*;
use clap::Parser;
use common::command_outcome::CommandOutcome;
use drophammer::cli::{Cli, CliCommand};

impl Running {
    /// Runs the command, with the server and its token on the command line.
    pub(super) async fn machine(&self, arguments: &[&str]) -> Result<CommandOutcome> {
        let url = format!("http://{}/", self.address);
        let token = self.dir.path().join("operator.token").display().to_string();
        let with = ["--server", &url, "--token-file", &token];
        let all = ["drophammer", "machine"].iter().chain(arguments).chain(&with);
        let CliCommand::Machine(options) = Cli::try_parse_from(all).unwrap().command else { panic!() };
        tokio::task::spawn_blocking(move || drophammer::server_commands::run_machine_command(&options)).await.unwrap()
    }

    /// Waits until the change of the machine file that locks the machine is in effect.
    async fn until_locked(&self, id: &str) {
        loop {
            let all = self.call(&self.operator(), "GET", "/v1/machines", &Value::Null).await.json();
            let machine = all.as_array().unwrap().iter().find(|machine| machine["id"] == id).unwrap().clone();
            if !machine["locked"].is_null() {
                return;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn reinstall_and_rename_commands_change_orders_and_ids() {
    let server = Running::start().await;
    let order = ["reinstall", "one", "--image", "debian-12"];
    let good = async |arguments: &[&str]| match server.machine(arguments).await {
        Ok(outcome) => outcome == CommandOutcome::Good,
        Err(error) => panic!("{arguments:?}: {error}"),
    };
    assert!(!good(&order).await, "the machine is not installed");
    let token = server.token(ONE).await;
    server.allocated(ONE, &token).await;
    server.report(ONE, &token, "a1", true).await;
    assert!(good(&["list"]).await && good(&["list", "--json"]).await);
    assert!(!good(&["reinstall", "one", "--cancel"]).await, "no reinstall is ordered");
    assert!(good(&order).await);
    server.heard("ordered: image debian-12").await;
    assert!(good(&["reinstall", &ONE.to_uppercase(), "--cancel"]).await);
    server.heard("cancelled: image debian-12").await;
    assert!(good(&["reinstall", "one", "--image", "debian-12", "--without-marker", "--json"]).await);
    server.heard("ordered: image debian-12, without the marker").await;
    let words = ["reinstall", "one", "--image", "debian-12", "--change-promise", "--give-up", "S1", "--give-up", "S2"];
    assert!(good(&words).await);
    server.heard("ordered: image debian-12, with the layout of the machine file, erasing S1, erasing S2").await;
    let container = "5b9e2c74-1f0a-4c3b-9d52-7a1f0c3b9d52";
    assert!(good(&["reinstall", "one", "--image", "debian-12", "--leave-locked", container]).await);
    server.heard(&format!("ordered: image debian-12, leaving {container} locked")).await;
    assert!(good(&["reinstall", "one", "--image", "debian-12", "--replace-newer"]).await);
    server.heard("ordered: image debian-12, replacing a newer installation").await;
    assert!(!good(&["rename", "one", STRANGER]).await, "the new id must be an id, not a name");
    assert!(!good(&["rename", TWO, STRANGER]).await, "the server has no records of the machine");
    assert!(good(&["rename", ONE, STRANGER]).await && good(&["rename", STRANGER, ONE]).await);
    assert!(!good(&["reinstall", "nobody", "--image", "debian-12"]).await);
    assert!(!good(&["reinstall", "one", "--image", "debian-21"]).await);

    server.write("operator.token", "mistaken\n");
    let error = server.machine(&["list"]).await.unwrap_err().to_string();
    assert!(error.contains("rejects the token in") && error.contains("operator.token"), "{error}");
    std::fs::remove_file(server.dir.path().join("operator.token")).unwrap();
    let error = server.machine(&["list"]).await.unwrap_err().to_string();
    assert!(error.contains("read the operator's token") && error.contains("--token-file FILE"), "{error}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_machine_is_freed() {
    let server = Running::start().await;
    let free = async |name: &str| server.machine(&["free", name]).await.unwrap();
    assert_eq!(free("other").await, CommandOutcome::Refused);
    assert!(server.listed().await["allocation"] == "a1");
    assert_eq!(free("one").await, CommandOutcome::Good);
    assert!(server.listed().await["allocation"].is_null());
    assert_eq!(free("one").await, CommandOutcome::Good);
    server.write("machines/two.yaml", &format!("id: {TWO}\nname: two\nlocked: in use\n"));
    server.until_locked(TWO).await;
    assert_eq!(free("two").await, CommandOutcome::Refused);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn names_are_completed() {
    let server = Running::start().await;
    let token = server.dir.path().join("operator.token").display().to_string();
    for (command, expected) in [
        ("machine show ", &["one", "two"][..]),
        ("machine show tw", &["two"]),
        ("machine reinstall one --image deb", &["debian-12"]),
        ("layout show ", &["default"]),
        ("image show x", &[]),
        ("machine list ", &[]),
    ] {
        let (noun, rest) = command.split_once(' ').unwrap();
        let (verb, rest) = rest.split_once(' ').unwrap();
        let line = format!("drophammer {noun} {verb} --server {} --token-file {token} {rest}", server.address);
        let names =
            tokio::task::spawn_blocking(move || drophammer::live_completion::complete_line(&line)).await.unwrap();
        assert_eq!(names.unwrap(), expected, "{command}");
    }
}

/// After the loss of the database of a rack, machines report their markers, and the operator adopts the correct ones.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn machines_waiting_with_a_marker_are_listed_and_adopted() {
    let dir = directory();
    let file = machine_file(TWO, "two", "52:54:00:00:00:02", "b1", "");
    std::fs::write(dir.path().join("machines/two.yaml"), file).unwrap();
    let server = Running::start_in(dir).await;
    let waits = async |id: &str| {
        let listed = server.call(&server.operator(), "GET", "/v1/machines", &Value::Null).await.json();
        let waits = listed.as_array().unwrap().iter().find(|machine| machine["id"] == id).unwrap()["waits"].clone();
        if waits.is_null() { waits } else { json!({ "image": waits["image"], "time": waits["time"] }) }
    };
    let refused = async |id: &str, allocation: &str, marked: &str| {
        let token = server.token(id).await;
        server.allocated(id, &token).await;
        let marker = json!({ "machine": id, "allocation": marked, "image": "debian-11", "layout": "default", "time": "2026-01-01T00:00:00Z" });
        let report = json!({ "success": false, "message": "plan: refused", "step": "plan", "untouched": true,
            "allocationuuid": allocation, "marker": marker });
        let answer = server.call(&token, "POST", &format!("/v1/machine/{id}/report"), &report).await;
        assert_eq!(answer.status, 200, "{}", answer.text());
        token
    };
    assert_eq!((waits(ONE).await, waits(TWO).await), (Value::Null, Value::Null));
    refused(ONE, "a1", "a1").await;
    refused(TWO, "b1", "a1").await;
    let said = json!({ "image": "debian-11", "time": "2026-01-01T00:00:00Z" });
    assert_eq!(
        (waits(ONE).await, waits(TWO).await),
        (said.clone(), Value::Null),
        "a marker of another allocation is ignored"
    );
    // A machine whose disk was erased starts to install, and no longer waits for its adoption.
    let token = refused(TWO, "b1", "b1").await;
    assert_eq!(waits(TWO).await, said);
    let begin = json!({ "allocationuuid": "b1", "order": "", "disks": [] });
    let answer = server.call(&token, "POST", &format!("/v1/machine/{TWO}/point-of-no-return"), &begin).await;
    assert_eq!((answer.status, waits(TWO).await), (200, Value::Null));
    refused(TWO, "b1", "b1").await;

    let good = async |arguments: &[&str]| server.machine(arguments).await.unwrap() == CommandOutcome::Good;
    assert!(good(&["adopt", "--waiting"]).await && good(&["adopt", "--waiting", "--json"]).await);
    assert_eq!(waits(ONE).await, said, "listing does not adopt");
    assert!(!good(&["adopt", "one", "nobody"]).await);
    assert_eq!(waits(ONE).await, said, "an unknown name prevents all adoptions");
    assert!(good(&["adopt", ONE, "two"]).await);
    for allocation in ["a1", "b1"] {
        server.heard(&format!("127.0.0.1 recorded allocation {allocation} as installed")).await;
    }
    assert_eq!((waits(ONE).await, waits(TWO).await), (Value::Null, Value::Null));
    let token = server.token(ONE).await;
    assert!(server.allocated(ONE, &token).await.allocation.unwrap().succeeded);
    let marker = json!({ "machine": ONE, "allocation": "a1", "image": "debian-11", "layout": "default", "time": "2026-01-01T00:00:00Z" });
    let report = json!({ "success": true, "message": "m", "allocationuuid": "a1", "marker": marker });
    let answer = server.call(&token, "POST", &format!("/v1/machine/{ONE}/report"), &report).await;
    assert_eq!(answer.status, 200, "{}", answer.text());
    assert!(!good(&["adopt", ONE, "two"]).await, "one of the machines is already recorded as installed");
}

#[test]
fn contradictory_machine_arguments_are_rejected() {
    let parses = |arguments: &[&str]| Cli::try_parse_from(["drophammer", "machine"].iter().chain(arguments)).is_ok();
    assert!(parses(&["reinstall", "one", "--image", "i"]));
    assert!(parses(&["reinstall", "one", "--cancel"]));
    for bad in [
        &["reinstall", "one"][..],
        &["reinstall", "--image", "i"],
        &["reinstall", "one", "--image", "i", "--cancel"],
        &["reinstall", "one", "--cancel", "--without-marker"],
        &["reinstall", "one", "--cancel", "--change-promise"],
        &["reinstall", "one", "--cancel", "--give-up", "S1"],
        &["reinstall", "one", "--cancel", "--leave-locked", "5b9e2c74-1f0a-4c3b-9d52-7a1f0c3b9d52"],
        &["reinstall", "one", "--image", "i", "--leave-locked", "/dev/sdb1"],
        &["rename", "one"],
        &["adopt"],
        &["adopt", "--waiting", "one"],
        &[],
    ] {
        assert!(!parses(bad), "{bad:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn machines_are_locked_and_unlocked() {
    let server = Running::start_in(super::reinstall::with_images()).await;
    server.installed().await;
    let run = async |arguments: &[&str]| server.machine(arguments).await.unwrap();
    let lock = ["lock", "one", "two", "--reason", "holds the only copy"];
    assert_eq!(run(&["lock", "one", "nobody", "--reason", "r"]).await, CommandOutcome::Refused);
    assert!(server.listed().await["locked"].is_null(), "an unknown name prevents all locks");
    for bad in ["", "  ", "true", "off"] {
        assert_eq!(run(&["lock", "one", "--reason", bad]).await, CommandOutcome::Refused, "{bad:?}");
    }
    assert_eq!(run(&lock).await, CommandOutcome::Good);
    assert!(server.file("machines/two.yaml").contains("holds the only copy"));
    assert_eq!(server.listed().await["locked"], "holds the only copy");
    assert_eq!(run(&lock).await, CommandOutcome::Good, "repeated");
    let other = server.v1("POST", &format!("/v1/machine/{ONE}/lock"), &json!({ "reason": "other" })).await;
    assert!(other.status == 409 && other.json()["error_code"] == "DH-645", "{}", other.text());
    let refused = server.press(ONE, "debian-13", json!({})).await;
    let words = "is locked: holds the only copy; to unlock it, run `drophammer machine unlock one`";
    assert!(refused.status == 400 && refused.text().contains(words), "{}", refused.text());
    assert_eq!(refused.json()["error_code"], "DH-645");
    let migration = server.v1("POST", &format!("/v1/machine/{ONE}/move"), &json!({ "to": TWO })).await;
    assert!(migration.status == 409 && migration.json()["error_code"] == "DH-645", "{}", migration.text());
    let freed = server.v1("DELETE", &format!("/v1/machine/{ONE}/free"), &json!(null)).await;
    assert!(freed.status == 422 && freed.json()["error_code"] == "DH-645", "{}", freed.text());
    assert_eq!(run(&["unlock", "one", "two"]).await, CommandOutcome::Good);
    assert!(!server.file("machines/one.yaml").contains("locked") && server.listed().await["locked"].is_null());
    assert_eq!(run(&["unlock", "one"]).await, CommandOutcome::Good, "repeated");
    assert_eq!(run(&["plan", "one"]).await, CommandOutcome::Refused, "no reinstall is ordered");
    assert_eq!(run(&["plan", "one", "--detailed-exitcode"]).await, CommandOutcome::Good, "unchanged");
    let entries = server.v1("GET", "/v1/audit?action=lock", &Value::Null).await.json();
    let locks = entries.as_array().unwrap().iter().filter(|entry| entry["outcome"] == "done");
    let changes: Vec<Value> = locks.map(|entry| entry["changes"].clone()).collect();
    assert!(json!(changes).to_string().contains("holds the only copy"), "{changes:?}");
    server.order("debian-13").await;
}
