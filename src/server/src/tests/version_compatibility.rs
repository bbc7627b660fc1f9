//! Tests that a directory, a database and a backup of an earlier version (`testdata/recorded`) are still accepted.

use super::*;
use crate::site_check::find_problems;
use common::command_outcome::CommandOutcome;
use std::os::unix::fs::PermissionsExt;
use store::backup::restore_database;

const NEWER: &str = "debian-13.1.20251201";

fn recorded() -> PathBuf {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../..")).join("testdata/recorded")
}

fn id(number: u32) -> String {
    format!("4c4c4544-0051-3010-8052-b4c04f4d{number:04x}")
}

fn copy_folder(from: &Path, to: &Path) {
    std::fs::create_dir_all(to).unwrap();
    for entry in std::fs::read_dir(from).unwrap().map(|entry| entry.unwrap()) {
        let (source, target) = (entry.path(), to.join(entry.file_name()));
        if source.is_dir() {
            copy_folder(&source, &target);
            continue;
        }
        std::fs::write(&target, std::fs::read(&source).unwrap()).unwrap();
        // Files of machines and images may contain secrets.
        let mode = if target.ends_with("verify") { 0o700 } else { 0o600 };
        std::fs::set_permissions(&target, std::fs::Permissions::from_mode(mode)).unwrap();
    }
}

/// Creates a copy of the directory as the earlier server left it, without the database.
fn site_without_database() -> TempDir {
    let dir = tempfile::tempdir().unwrap();
    copy_folder(&recorded().join("site"), dir.path());
    dir
}

/// Creates a copy of the directory as the earlier server left it, with the database.
fn site() -> TempDir {
    let dir = site_without_database();
    std::fs::copy(recorded().join("backup.sqlite"), dir.path().join("drophammer.sqlite")).unwrap();
    dir
}

/// Returns the recorded responses of the earlier server, by path.
fn recorded_answers(file: &str) -> serde_json::Map<String, Value> {
    serde_json::from_slice(&std::fs::read(recorded().join(file)).unwrap()).unwrap()
}

/// Fields that clients of metal-api require, and that earlier versions did not fill in metal-api's format.
const COMPLETED: [&str; 6] = ["gpttype", "networks", "role", "bios", "hardware", "created"];

/// Adds to `differences` each recorded field that is missing in the response, or has another value. Additional fields
/// and other wordings of reasons are permitted. Approvals are ignored, since an approval of the earlier version is no
/// longer in force.
fn compare(path: &str, recorded: &Value, answer: &Value, differences: &mut Vec<String>) {
    match (recorded, answer) {
        (Value::Object(fields), Value::Object(found)) => {
            for (name, value) in fields {
                let found = found.get(name).unwrap_or(&Value::Null);
                let is_reworded = name == "withheld" && value.is_string() && found.is_string();
                let is_completed = COMPLETED.contains(&name.as_str())
                    && (value.is_null() || value == "")
                    && (path.starts_with("/v1/machine[") || path.starts_with("/v1/filesystemlayout["));
                if !is_reworded && !is_completed && name != "approved" {
                    compare(&format!("{path}.{name}"), value, found, differences);
                }
            }
        }
        (Value::Array(items), Value::Array(found)) if items.len() == found.len() => {
            for (index, (item, found)) in items.iter().zip(found).enumerate() {
                compare(&format!("{path}[{index}]"), item, found, differences);
            }
        }
        _ if recorded == answer => {}
        _ => differences.push(format!("{path}: recorded {recorded}, found {answer}")),
    }
}

impl Running {
    fn normalized(&self, answer: &Answer) -> Value {
        let text = answer.text().replace(&self.address.to_string(), "SERVER");
        serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error}: {text}"))
    }

    async fn ask_operator(&self, path: &str) -> Value {
        let version = ("X-OpenStack-Ironic-API-Version", "1.55");
        let bearer = format!("Bearer {}", self.operator());
        let answer = self.ask("GET", path, &[("Authorization", bearer.as_str()), version], "").await;
        assert_eq!(answer.status, 200, "{path}: {}", answer.text());
        self.normalized(&answer)
    }

    /// Waits until the digest of the image below `images/` is known, and the OS definition of a machine is verified.
    async fn wait_for_site(&self) {
        let began = std::time::Instant::now();
        loop {
            let is_ready = self.ask_operator("/v1/image/debian-12.0.20251101").await["ready"] == true;
            let machines = self.ask_operator("/v1/machine").await;
            let of_definition = machines.as_array().unwrap().iter().find(|machine| machine["id"] == id(0x0a));
            if is_ready && of_definition.unwrap()["withheld"].is_null() {
                return;
            }
            assert!(began.elapsed() < PATIENCE, "{}", self.heard.text());
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    async fn summary(&self, number: u32) -> Value {
        let listed = self.ask_operator("/v1/machines").await;
        listed.as_array().unwrap().iter().find(|machine| machine["id"] == id(number)).unwrap().clone()
    }

    async fn boot_script(&self, number: u32) -> String {
        let mac = format!("52:54:00:00:01:{:02x}", number & 0xff);
        self.boot(&format!("uuid={}&mac={mac}", id(number))).await.text()
    }

    /// Boots the ramdisk, and returns the token and the allocation.
    async fn fetch_recorded(&self, number: u32) -> (String, Value) {
        let token = token_of(&self.boot_script(number).await);
        let answer = self.register(&id(number), &token).await;
        assert_eq!(answer.status, 200, "{}", answer.text());
        self.allocated(&id(number), &token).await;
        let answer = self.call(&token, "GET", &format!("/v1/machine/{}", id(number)), &Value::Null).await;
        (token, self.normalized(&answer)["allocation"].clone())
    }

    /// Announces the start of an installation, as an agent of the earlier version.
    async fn start_recorded(&self, number: u32, token: &str, given: &Value, disks: &Value) -> u16 {
        let body = json!({ "allocationuuid": given["allocationuuid"], "disks": disks,
            "order": given["order"]["id"].as_str().unwrap_or_default() });
        self.call(token, "POST", &format!("/v1/machine/{}/point-of-no-return", id(number)), &body).await.status
    }

    /// Reports a success, as an agent of the earlier version.
    async fn succeed_recorded(&self, number: u32, token: &str, given: &Value, disks: &Value) {
        let order = given["order"]["id"].as_str().unwrap_or_default();
        let marker = json!({ "machine": id(number), "allocation": given["allocationuuid"], "order": order,
            "image": given["image"]["id"], "layout": given["filesystemlayout"]["id"], "time": "2026-01-16T10:00:00Z",
            "disks": disks });
        let report = json!({ "success": true, "message": "m", "allocationuuid": given["allocationuuid"], "order": order,
            "marker": marker });
        let answer = self.call(token, "POST", &format!("/v1/machine/{}/report", id(number)), &report).await;
        assert_eq!((answer.status, &answer.json()["retry"]), (200, &json!(false)), "{}", answer.text());
    }
}

#[test]
fn the_recorded_directory_is_valid() {
    let dir = site();
    let found = find_problems(&options(dir.path())).unwrap();
    let problems: Vec<_> = found.problems.iter().map(|problem| problem.file.as_deref().unwrap_or_default()).collect();
    assert_eq!(problems, [format!("approved/{}.yaml", id(0x0f)).as_str(), "machines/approved.yaml"]);
    assert!(found.problems[1].message.contains("approve the plan again: `drophammer site plan"));
    let (pairs, notes): (Vec<_>, Vec<_>) =
        found.notes.iter().partition(|note| note.file.as_deref() == Some("layouts/"));
    assert!(pairs.iter().all(|note| note.message.contains("a matching filesystemLayout")), "{pairs:?}");
    let notes: Vec<_> = notes.iter().map(|note| (note.file.as_deref(), note.line, note.column)).collect();
    assert_eq!(notes, [(Some("machines/installed.yaml"), Some(5), Some(55))], "it runs another image than its file");
    assert_eq!((found.machines, found.layouts, found.images), (18, 5, 5));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn operators_receive_the_recorded_responses() {
    let dir = site();
    // The approval is removed, because an approval of the earlier version is no longer valid. The machine is then
    // installed without an approval.
    std::fs::remove_dir_all(dir.path().join("approved")).unwrap();
    let server = Running::start_in(dir).await;
    server.wait_for_site().await;
    let mut differences = Vec::new();
    for (path, recorded) in recorded_answers("answers.json") {
        let mut found = server.ask_operator(&path).await;
        // The earlier version did not list machines without a machine file.
        found.as_array_mut().into_iter().for_each(|rows| rows.retain(|row| row["new"] != true));
        compare(&path, &recorded, &found, &mut differences);
    }
    assert_eq!(differences, Vec::<String>::new());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn recorded_machines_boot_disk_or_ramdisk() {
    let server = Running::start_in(site()).await;
    let disk = [0x01, 0x09, 0x0e, 0x11];
    let ramdisk = [0x02, 0x03, 0x04, 0x05, 0x06, 0x07, 0x08, 0x0b, 0x0c, 0x0f, 0x10, 0xed, 0xee];
    let all = disk.iter().map(|number| (*number, true)).chain(ramdisk.iter().map(|number| (*number, false)));
    for (number, boots_disk) in all {
        let script = server.boot_script(number).await;
        let found = (script.contains("sanboot"), script.contains("drophammer.token="));
        assert_eq!(found, (boots_disk, !boots_disk), "{number:#x}: {script}");
        assert!(!script.contains("drophammer.stop="), "{number:#x}: {script}");
    }
    let script = server.boot_script(0x0d).await;
    assert!(script.contains(" drophammer.stop=1 "), "its order was aborted, and waits for the operator: {script}");
}

/// The agent now fetches secrets separately. All other fields are equal to those that an agent of the earlier version
/// received.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_agent_receives_the_recorded_allocation() {
    let server = Running::start_in(site()).await;
    let (_, given) = server.fetch_recorded(0x08).await;
    let mut recorded = recorded_answers("allocation.json")["allocation"].clone();
    for secret in ["user_data", "console_password"] {
        assert_ne!(recorded[secret], "", "{secret}");
        recorded[secret] = json!("");
    }
    recorded.as_object_mut().unwrap().remove("disk_key").unwrap();
    assert_eq!(recorded["vpn"].take(), json!({ "address": "https://vpn.example.org", "auth_key": "recorded" }));
    assert_eq!(given["separate_secrets"], json!(["disk_key", "user_data", "console_password", "vpn"]));
    let mut differences = Vec::new();
    compare("allocation", &recorded, &given, &mut differences);
    assert_eq!(differences, Vec::<String>::new());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn recorded_orders_and_installations_are_carried_out() {
    let server = Running::start_in(site()).await;
    // The machine had not received this order yet.
    let (token, given) = server.fetch_recorded(0x02).await;
    let order = &given["order"];
    assert_eq!((&order["attempt"], &order["begun"], &order["confirmed"]), (&json!(1), &json!(false), &json!(true)));
    assert_eq!((&order["change_promise"], &order["give_up"]), (&json!(true), &json!(["S02A"])));
    assert_eq!((&given["image"]["id"], &given["installed"]["image"]), (&json!(NEWER), &json!("debian-12.0.20251101")));
    let disks = given["installed"]["disks"].clone();
    assert_eq!(server.start_recorded(0x02, &token, &given, &disks).await, 200);
    server.succeed_recorded(0x02, &token, &given, &disks).await;
    let summary = server.summary(0x02).await;
    assert_eq!(
        (&summary["image"], &summary["order"], &summary["outcome"]["success"]),
        (&json!(NEWER), &Value::Null, &json!(true))
    );

    // The first attempt at this reinstall had failed after its start.
    let (token, given) = server.fetch_recorded(0x04).await;
    let order = &given["order"];
    assert_eq!((&order["attempt"], &order["begun"]), (&json!(2), &json!(true)));
    let disks = order["disks"].clone();
    assert_eq!(
        (&disks[0]["serial"], &disks[1]["promise"], &disks[1]["making"][0]["on"]),
        (&json!("S04A"), &json!("kept"), &json!("disk"))
    );
    assert_eq!(server.start_recorded(0x04, &token, &given, &disks).await, 200);
    server.succeed_recorded(0x04, &token, &given, &disks).await;
    let summary = server.summary(0x04).await;
    assert_eq!(
        (&summary["image"], summary.get("allocation_unrecorded")),
        (&json!(NEWER), None),
        "the installation is now recorded"
    );

    // An interrupted first installation may continue only on the same disks.
    let (token, given) = server.fetch_recorded(0x03).await;
    let disks = given["begun_on"].clone();
    assert_eq!((&disks[0]["serial"], &disks[1]["serial"]), (&json!("S03A"), &json!("S03B")));
    let mut other = disks.clone();
    other[0]["serial"] = json!("another");
    assert_eq!(server.start_recorded(0x03, &token, &given, &other).await, 409);
    assert_eq!(server.start_recorded(0x03, &token, &given, &disks).await, 200);
    server.succeed_recorded(0x03, &token, &given, &disks).await;
    assert_eq!(server.summary(0x03).await["installed"], true);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn commands_act_on_recorded_machines() {
    let server = Running::start_in(site()).await;
    for arguments in [
        &["adopt", "waiting-marker"][..],
        &["reinstall", "ordered", "--cancel"],
        &["reinstall", "given-up", "--image", NEWER],
        &["reinstall", "installed", "--image", "debian-12.0.20251101"],
        &["rename", &id(0x0e), &id(0xff)],
        &["move", "source", "--cancel"],
    ] {
        assert_eq!(server.machine(arguments).await.unwrap(), CommandOutcome::Good, "{arguments:?}");
    }
    assert_eq!(server.summary(0x06).await["adopted"], true);
    assert_eq!(server.summary(0x02).await["order"], Value::Null);
    // The earlier version has not recorded the installed allocations, so the allocations in the machine files apply, as
    // before.
    for number in [0x01, 0x0d] {
        let summary = server.summary(number).await;
        assert_eq!((&summary["allocation_unrecorded"], summary.get("differences")), (&json!(true), None), "{number}");
    }
    server.heard("the installed allocation is not on record, because an earlier version installed the machine").await;
    let order = server.summary(0x0d).await["order"].clone();
    assert_eq!((&order["given_up"], &order["attempts"], &order["begun"]), (&json!(false), &json!(0), &json!(true)));
    let script = server.boot_script(0x0d).await;
    assert!(script.contains("drophammer.token=") && !script.contains("drophammer.stop="), "{script}");
    assert!(server.boot_script(0x0b).await.contains("sanboot"), "the source of a cancelled migration boots its disk");
    assert_eq!(server.machine(&["reinstall", "full", "--image", NEWER]).await.unwrap(), CommandOutcome::Refused);
}

/// A backup is restored in its own directory, and on a new host, on which nothing shows whether the backup is up to
/// date.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_recorded_backup_is_restored() {
    let backup = recorded().join("backup.sqlite");
    for is_new_host in [false, true] {
        let dir = if is_new_host { site_without_database() } else { site() };
        if is_new_host {
            std::fs::remove_file(dir.path().join("drophammer.id")).unwrap();
        }
        restore_database(dir.path(), &backup, false).unwrap();
        let server = Running::start_in(dir).await;
        let summary = server.summary(0x02).await;
        assert_eq!(
            (&summary["needs_confirmation"], &summary["image"]),
            (&json!(is_new_host), &json!("debian-12.0.20251101"))
        );
        assert_eq!(summary["order"]["give_up"], json!(["S02A"]));
        if is_new_host {
            let (_, given) = server.fetch_recorded(0x02).await;
            assert_eq!((&given["order"], &given["reinstall"]), (&Value::Null, &json!(false)), "the order is withheld");
            assert_eq!(server.machine(&["confirm", "--all"]).await.unwrap(), CommandOutcome::Good);
            assert_eq!(server.summary(0x02).await["needs_confirmation"], false);
        }
        let (_, given) = server.fetch_recorded(0x02).await;
        assert_eq!((&given["order"]["attempt"], &given["image"]["id"]), (&json!(1), &json!(NEWER)));
    }
}
