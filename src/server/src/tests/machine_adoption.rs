//! `drophammer adopt` and `drophammer layout from-machine --machine` against a server, with recorded machines of other
//! installers.

use super::*;
use clap::Parser;
use common::command_outcome::CommandOutcome;
use drophammer::cli::{Cli, CliCommand};
use drophammer::machine_adoption::{AdoptionHost, run_adopt_on};
use model::install_marker::InstallMarker;

/// UUID of the recorded machine `debian-plain`.
const ADOPTED: &str = "bbca83d4-6259-55a9-898f-c6a3c90bd93e";
const MARKER: &str = "etc/metal/drophammer.json";

fn recorded_file(name: &str) -> PathBuf {
    PathBuf::from(format!("{}/../../testdata/foreign-installations/debian-plain/{name}", env!("CARGO_MANIFEST_DIR")))
}

/// Directory in place of the root filesystem of the machine.
fn installed_system() -> TempDir {
    let dir = tempfile::tempdir().unwrap();
    std::fs::create_dir(dir.path().join("etc")).unwrap();
    std::fs::write(dir.path().join("etc/hostname"), "web-1\n").unwrap();
    std::fs::write(dir.path().join("etc/os-release"), "ID=debian\nVERSION_ID=\"13\"\n").unwrap();
    dir
}

impl Running {
    /// Runs `drophammer adopt` for the recorded machine, whose root filesystem is the directory.
    async fn adopt(&self, root: &TempDir, arguments: &[&str]) -> Result<CommandOutcome> {
        let url = format!("http://{}/", self.address);
        let token = self.dir.path().join("operator.token").display().to_string();
        let all = ["drophammer", "adopt", "--server", &url, "--token-file", &token];
        let CliCommand::Adopt(mut options) = Cli::try_parse_from(all.iter().chain(arguments)).unwrap().command else {
            panic!()
        };
        (options.inventory, options.fstab) = (Some(recorded_file("inventory.json")), Some(recorded_file("fstab")));
        let mounts = "1 0 8:2 / / rw - ext4 /dev/sda2 rw\n".to_owned();
        let root = root.path().to_owned();
        let host = AdoptionHost { root, mounts, is_privileged: true, is_interactive: false };
        tokio::task::spawn_blocking(move || run_adopt_on(&options, &host)).await.unwrap()
    }

    async fn find_listed(&self, id: &str) -> Option<Value> {
        let listed = self.call(&self.operator(), "GET", "/v1/machines", &Value::Null).await.json();
        listed.as_array().unwrap().iter().find(|machine| machine["id"] == id).cloned()
    }

    fn has_file(&self, name: &str) -> bool {
        self.dir.path().join(name).exists()
    }
}

const ADOPT: [&str; 4] = ["--image", "debian-12", "--yes", "web-1"];
const UNDO: [&str; 3] = ["--undo", "--yes", "web-1"];

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_adopted_machine_is_installed_and_can_be_reinstalled() {
    let server = Running::start().await;
    let root = installed_system();
    assert_eq!(server.adopt(&root, &ADOPT).await.unwrap(), CommandOutcome::Good);
    let marker: InstallMarker =
        serde_json::from_str(&std::fs::read_to_string(root.path().join(MARKER)).unwrap()).unwrap();
    let machine = server.find_listed(ADOPTED).await.unwrap();
    assert_eq!((&machine["name"], &machine["allocation"]), (&json!("web-1"), &json!(marker.allocation)));
    assert_eq!((&machine["installed"], &machine["claimed"]), (&json!(true), &json!(true)));
    assert_eq!((&machine["image"], &machine["layout"]), (&json!("debian-13"), &json!("web-1")));
    assert!(server.has_file("machines/web-1.yaml") && server.has_file("layouts/web-1.yaml"));
    server.heard("registered the machine, which another installer has installed").await;

    // The firmware boots the present system.
    let script = server.boot(&format!("uuid={ADOPTED}")).await.text();
    assert!(!script.contains("drophammer.token="), "{script}");

    // A reinstall can be ordered, because the adoption has stored the marker and the layout.
    assert_eq!(server.machine(&["reinstall", "web-1", "--image", "debian-12"]).await.unwrap(), CommandOutcome::Good);
    let refused = server.adopt(&root, &UNDO).await.unwrap();
    assert!(refused == CommandOutcome::Refused && root.path().join(MARKER).exists());
    let script = server.boot(&format!("uuid={ADOPTED}")).await.text();
    let token = token_of(&script);
    assert_eq!(server.register(ADOPTED, &token).await.status, 200);
    let assigned = server.call(&token, "GET", &format!("/v1/machine/{ADOPTED}"), &Value::Null).await.json();
    let allocation = &assigned["allocation"];
    assert_eq!((&allocation["reinstall"], &allocation["succeeded"]), (&json!(true), &json!(true)));
    assert_eq!(allocation["installed"], json!(marker));
    assert_eq!(allocation["filesystemlayout"]["id"], "web-1");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_adoption_is_removed_without_a_trace() {
    let server = Running::start().await;
    let root = installed_system();
    assert_eq!(server.adopt(&root, &ADOPT).await.unwrap(), CommandOutcome::Good);
    assert_eq!(server.adopt(&root, &UNDO).await.unwrap(), CommandOutcome::Good);
    assert!(!root.path().join("etc/metal").exists());
    assert!(!server.has_file("machines/web-1.yaml") && !server.has_file("layouts/web-1.yaml"));
    let install_state = server.find_listed(ADOPTED).await;
    assert!(install_state.is_none_or(|machine| machine["new"] == true));
    // The machine can be adopted again, and the removal can be repeated.
    assert_eq!(server.adopt(&root, &UNDO).await.unwrap(), CommandOutcome::Refused);
    assert_eq!(server.adopt(&root, &ADOPT).await.unwrap(), CommandOutcome::Good);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_refused_registration_leaves_no_marker_and_no_layout() {
    let server = Running::start().await;
    let root = installed_system();
    for arguments in [
        ["--image", "debian-21", "--yes", "web-1", "--name", "web-1"],
        ["--image", "debian-12", "--yes", "one", "--name", "one"],
        ["--image", "debian-12", "--yes", "web-2", "--name", "web-1"],
    ] {
        assert_eq!(server.adopt(&root, &arguments).await.unwrap(), CommandOutcome::Refused, "{arguments:?}");
        assert!(!root.path().join("etc/metal").exists(), "{arguments:?}");
        assert!(!server.has_file("layouts/web-1.yaml") && !server.has_file("layouts/one.yaml"), "{arguments:?}");
        assert!(!server.has_file("machines/web-1.yaml"), "{arguments:?}");
    }
    // An existing layout with the same id, but other contents, is neither used nor changed.
    server.write(
        "layouts/web-1.yaml",
        &LAYOUT.replace("id: default", "id: web-1\nconstraints: {sizes: [x], images: {y: \"*\"}}"),
    );
    let before = std::fs::read_to_string(server.dir.path().join("layouts/web-1.yaml")).unwrap();
    server.heard("web-1").await;
    assert_eq!(server.adopt(&root, &ADOPT).await.unwrap(), CommandOutcome::Refused);
    assert!(!root.path().join("etc/metal").exists());
    assert_eq!(std::fs::read_to_string(server.dir.path().join("layouts/web-1.yaml")).unwrap(), before);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_adopted_machine_that_was_changed_since_is_not_removed() {
    let server = Running::start().await;
    let root = installed_system();
    assert_eq!(server.adopt(&root, &ADOPT).await.unwrap(), CommandOutcome::Good);
    let text = std::fs::read_to_string(server.dir.path().join("machines/web-1.yaml")).unwrap();
    server.write("machines/web-1.yaml", &format!("{text}# rack 7\n"));
    assert_eq!(server.adopt(&root, &UNDO).await.unwrap(), CommandOutcome::Refused);
    assert!(root.path().join(MARKER).exists() && server.has_file("machines/web-1.yaml"));
    server.write("machines/web-1.yaml", &text);
    assert_eq!(server.adopt(&root, &UNDO).await.unwrap(), CommandOutcome::Good);
}

/// Registration that `drophammer adopt` sent, derived from the marker that the command wrote.
struct SentRegistration {
    marker: InstallMarker,
    body: Value,
}

impl SentRegistration {
    fn read(root: &TempDir) -> SentRegistration {
        let marker: InstallMarker =
            serde_json::from_str(&std::fs::read_to_string(root.path().join(MARKER)).unwrap()).unwrap();
        let body = json!({ "name": "web-1", "image": "debian-12", "layout": "web-1", "marker": marker,
                           "registration": registration(ADOPTED) });
        SentRegistration { marker, body }
    }

    async fn put(&self, server: &Running) -> Answer {
        server.call(&server.operator(), "PUT", &format!("/v1/machine/{ADOPTED}/adopt"), &self.body).await
    }

    async fn delete(&self, server: &Running) -> Answer {
        let path = format!("/v1/machine/{ADOPTED}/adopt?allocation={}", self.marker.allocation);
        server.call(&server.operator(), "DELETE", &path, &Value::Null).await
    }

    async fn is_recorded(&self, server: &Running) -> bool {
        let install_state = server.state.read_install_state(ADOPTED, &self.marker.allocation).await.unwrap();
        install_state.marker.as_ref() == Some(&self.marker)
    }
}

/// The client repeats the registration if the response to the first request was lost.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_repeated_registration_succeeds_only_with_the_same_marker_and_file() {
    let server = Running::start().await;
    let root = installed_system();
    assert_eq!(server.adopt(&root, &ADOPT).await.unwrap(), CommandOutcome::Good);
    let mut sent = SentRegistration::read(&root);
    let answer = sent.put(&server).await;
    assert_eq!((answer.status, &answer.json()["claimed"]), (200, &json!(true)), "{}", answer.text());
    sent.body["marker"]["image"] = json!("debian-11");
    assert_eq!(sent.put(&server).await.status, 409);
    sent = SentRegistration::read(&root);
    let text = std::fs::read_to_string(server.dir.path().join("machines/web-1.yaml")).unwrap();
    server.write("machines/web-1.yaml", &format!("{text}# rack 7\n"));
    let answer = sent.put(&server).await;
    assert!(answer.status == 500 && answer.text().contains("was changed"), "{}", answer.text());
    assert!(sent.is_recorded(&server).await);
}

/// Registers the machine while another process changes the new file immediately. Returns the status of the response.
async fn register_during_an_edit(sent: &SentRegistration, server: &Running) -> u16 {
    let path = server.dir.path().join("machines/web-1.yaml");
    let editor = std::thread::spawn(move || {
        let began = std::time::Instant::now();
        while began.elapsed() < PATIENCE && !path.exists() {}
        std::fs::write(&path, "id: [\n").unwrap();
    });
    let answer = sent.put(server).await;
    editor.join().unwrap();
    answer.status
}

/// The record is not removed if the file may exist: without the record, the machine would be installed at its next
/// boot over PXE.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_record_of_a_file_that_may_exist_remains() {
    for _ in 0..5 {
        let server = Running::start().await;
        let root = installed_system();
        assert_eq!(server.adopt(&root, &ADOPT).await.unwrap(), CommandOutcome::Good);
        let sent = SentRegistration::read(&root);
        assert_eq!(sent.delete(&server).await.status, 200);
        assert!(!sent.is_recorded(&server).await);
        let status = register_during_an_edit(&sent, &server).await;
        assert!(sent.is_recorded(&server).await, "{status}");
        if status == 200 {
            // The file was already in effect before it was changed, so the race is repeated.
            continue;
        }
        assert_eq!(status, 500);
        // The file is removed by hand, and the record by a repeated removal.
        std::fs::remove_file(server.dir.path().join("machines/web-1.yaml")).unwrap();
        assert_eq!(sent.delete(&server).await.status, 200);
        assert!(!sent.is_recorded(&server).await);
        return;
    }
    panic!("the file was always in effect before it was changed");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_registration_whose_file_is_not_created_leaves_no_record() {
    let server = Running::start().await;
    let root = installed_system();
    assert_eq!(server.adopt(&root, &ADOPT).await.unwrap(), CommandOutcome::Good);
    let sent = SentRegistration::read(&root);
    assert_eq!(sent.delete(&server).await.status, 200);
    server.write("machines/web-1.yaml", "id: [\n");
    let answer = sent.put(&server).await;
    assert!(answer.status == 409 && answer.text().contains("already exists"), "{}", answer.text());
    assert!(!sent.is_recorded(&server).await);
}

/// The file is removed before the record. If the removal of the record is rejected, the file must be restored.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_file_is_restored_if_the_record_remains() {
    let server = Running::start().await;
    let root = installed_system();
    assert_eq!(server.adopt(&root, &ADOPT).await.unwrap(), CommandOutcome::Good);
    let sent = SentRegistration::read(&root);
    let path = server.dir.path().join("machines/web-1.yaml");
    let text = std::fs::read_to_string(&path).unwrap();
    let migration = json!({ "id": "m-1", "a": ADOPTED, "b": TWO, "allocation": sent.marker.allocation, "state": "ordered",
                            "created": "2026-11-29T10:00:00Z", "disks": [], "failures": 0, "words_a": "", "words_b": "",
                            "files": false });
    let placed = server.state.place_migration(serde_json::from_value(migration).unwrap()).await.unwrap();
    assert_eq!(placed, store::MigrationPlacement::Placed);
    let answer = sent.delete(&server).await;
    assert_eq!(answer.status, 409, "{}", answer.text());
    assert_eq!(std::fs::read_to_string(&path).unwrap(), text);
    assert!(sent.is_recorded(&server).await && server.find_listed(ADOPTED).await.is_some());
}

/// Rejects requests that no client of this project sends.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_marker_of_another_machine_or_layout_is_refused() {
    let server = Running::start().await;
    let path = format!("/v1/machine/{ADOPTED}/adopt");
    let request = |machine: &str, allocation: &str, layout: &str, digest: &str| {
        json!({ "name": "web-1", "image": "debian-12", "layout": layout, "registration": registration(ADOPTED),
                "marker": { "machine": machine, "allocation": allocation, "image": "debian-13", "layout": "default",
                            "order": "", "time": "", "disks": [], "layout_digest": digest } })
    };
    for (body, status) in [
        (request(ONE, "a-9", "default", "sha256:0"), 400),
        (request(ADOPTED, "", "default", "sha256:0"), 400),
        (request(ADOPTED, "a-9", "other", "sha256:0"), 400),
        (request(ADOPTED, "a-9", "default", "sha256:0"), 409),
    ] {
        let answer = server.call(&server.operator(), "PUT", &path, &body).await;
        assert_eq!(answer.status, status, "{body}: {}", answer.text());
    }
    assert!(server.find_listed(ADOPTED).await.is_none());
    let answer = server
        .call(&server.operator(), "DELETE", &format!("/v1/machine/{ONE}/adopt?allocation=a1"), &Value::Null)
        .await;
    assert_eq!(answer.status, 409, "{}", answer.text());
    assert!(server.has_file("machines/one.yaml"));
}

/// `drophammer layout from-machine --machine` reads the registered inventory, with the fstab in it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_layout_of_a_registered_machine_is_written() {
    let server = Running::start().await;
    let mut inventory: Value =
        serde_json::from_str(&std::fs::read_to_string(recorded_file("inventory.json")).unwrap()).unwrap();
    inventory["filesystems"][0]["fstab"] = json!(std::fs::read_to_string(recorded_file("fstab")).unwrap());
    let token = token_of(&server.boot(&format!("uuid={ONE}")).await.text());
    let mut body = registration(ONE);
    body["inventory"] = inventory;
    assert_eq!(server.call(&token, "POST", "/v1/machine/register", &body).await.status, 200);
    let url = format!("http://{}/", server.address);
    let token = server.dir.path().join("operator.token").display().to_string();
    let run = async |machine: &str| {
        let all =
            ["drophammer", "layout", "from-machine", "--machine", machine, "--server", &url, "--token-file", &token];
        let CliCommand::Layout(options) = Cli::try_parse_from(all).unwrap().command else { panic!() };
        tokio::task::spawn_blocking(move || {
            let mut outcome = None;
            let output = common::output_capture::recorded(|| {
                let run = drophammer::server_commands::layouts::run_layout_command(&options);
                outcome = run.as_ref().ok().copied();
                run
            });
            (output, outcome)
        })
        .await
        .unwrap()
    };
    let (output, outcome) = run("one").await;
    assert!(outcome == Some(CommandOutcome::Good) && output.contains("id: from-machine"), "{output}");
    assert!(output.contains("path: /\n") || output.contains("path: /,"), "{output}");
    let (output, outcome) = run("nobody").await;
    assert!(outcome != Some(CommandOutcome::Good), "{output}");
}

/// The ramdisk has registered a machine of another installer, which does not have an install marker.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_adopted_machine_without_a_marker_is_reinstalled_if_the_order_permits_it() {
    let server = Running::start().await;
    let order = ["reinstall", "one", "--image", "debian-12", "--without-marker"];
    // Without the adoption, the machine was never installed.
    assert_eq!(server.machine(&order).await.unwrap(), CommandOutcome::Refused);
    assert_eq!(server.machine(&["adopt", "one"]).await.unwrap(), CommandOutcome::Good);
    let refused = server.press(ONE, "debian-12", json!({})).await;
    assert!(
        refused.text().contains("has not reported an install marker: boot the machine over PXE, or"),
        "{}",
        refused.text()
    );
    assert_eq!(server.find_listed(ONE).await.unwrap()["adopted"], true);

    assert_eq!(server.machine(&order).await.unwrap(), CommandOutcome::Good);
    let machine = server.find_listed(ONE).await.unwrap();
    assert_eq!((&machine["installed"], &machine["claimed"]), (&json!(true), &json!(true)), "{machine}");
    let token = server.token(ONE).await;
    let given = server.allocated(ONE, &token).await.allocation.unwrap();
    assert!(given.reinstall && given.succeeded && given.order.unwrap().without_marker);
    // Without the order, the machine boots its disks.
    assert_eq!(server.machine(&["reinstall", "one", "--cancel"]).await.unwrap(), CommandOutcome::Good);
    assert!(server.boots_disk().await);
}
