//! `drophammer plan --machine` with a server prints the plan that the agent makes.

use super::reinstall::with_images;
use super::*;
use clap::Parser;
use common::command_outcome::CommandOutcome;
use control::agent_api_types::RegisterRequest;
use drophammer::cli::{Cli, CliCommand};
use drophammer::local_commands::plan::plan_output;
use model::inventory::Inventory;
use plan::request_from_allocation;
use plan::request_from_allocation::preview::placeholder_uuids;

fn inventory_file() -> PathBuf {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../..")).join("testdata/inventories/installed-default.json")
}

/// Returns an inventory without NICs and without a UUID, because the values in the test file would contradict the
/// machine file.
pub(super) fn inventory() -> Inventory {
    let mut inventory: Inventory = serde_json::from_str(&std::fs::read_to_string(inventory_file()).unwrap()).unwrap();
    inventory.system.uuid = None;
    Inventory { nics: Vec::new(), ..inventory }
}

impl Running {
    /// Runs the command. Returns its output and its outcome.
    pub(super) async fn plan(&self, arguments: &[&str]) -> Result<(String, CommandOutcome)> {
        let url = format!("http://{}", self.address);
        let token = self.dir.path().join("operator.token").display().to_string();
        let with = ["--server", &url, "--token-file", &token];
        let all = ["drophammer", "plan"].iter().chain(arguments).chain(&with);
        let CliCommand::Plan(options) = Cli::try_parse_from(all).unwrap().command else { panic!() };
        tokio::task::spawn_blocking(move || plan_output(&options)).await.unwrap()
    }

    async fn refused(&self, arguments: &[&str], words: &str) {
        let error = self.plan(arguments).await.err().unwrap_or_else(|| panic!("it is planned: {words}"));
        assert!(error.is_refusal() && error.to_string().contains(words), "{error}");
    }

    /// Boots the machine over PXE, and registers it with an inventory.
    pub(super) async fn registered(&self, id: &str) -> String {
        let token = token_of(&self.boot(&format!("uuid={id}")).await.text());
        let register = serde_json::to_value(RegisterRequest::new(id.to_owned(), inventory())).unwrap();
        let answer = self.call(&token, "POST", "/v1/machine/register", &register).await;
        assert_eq!(answer.status, 200, "{}", answer.text());
        token
    }
}

/// Parses a plan in JSON, and removes the warnings, which are not part of the agent's plan.
fn without_notes(text: &str) -> Value {
    let mut plan: Value = serde_json::from_str(text).unwrap();
    let notes = plan.as_object_mut().unwrap().remove("warnings").unwrap();
    assert!(notes.as_array().unwrap().iter().any(|note| note.as_str().unwrap().contains("the inventory is as of 20")));
    plan
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn plan_command_prints_the_plan_of_the_agent() {
    let server = Running::start_in(with_images()).await;
    server.refused(&["--machine", "nobody"], "the server has no machine \"nobody\"").await;
    server.refused(&["--machine", STRANGER], "and no machine with this id has registered").await;
    server.refused(&["--machine", "one"], "machine one has never registered").await;
    server.refused(&["--machine", "one"], "boot it over PXE once").await;

    let token = server.registered(ONE).await;
    let machine = server.allocated(ONE, &token).await;
    let allocation = machine.allocation.clone().unwrap();
    let layout = allocation.parse_layout().unwrap().layout;
    let agents = async |mut allocation: allocation::Allocation| {
        let inventory = inventory();
        request_from_allocation::clear_begun_if_intact(ONE, &mut allocation, &layout, &inventory);
        let request = request_from_allocation::build_request(&machine, ONE, &allocation, &[]);
        let mut plan = plan::make_plan(&layout, &inventory, request, &mut placeholder_uuids()).unwrap();
        plan.warnings = vec!["the inventory is as of 20".to_owned()];
        without_notes(&serde_json::to_string(&plan).unwrap())
    };
    for name in ["one", ONE, &ONE.to_uppercase()] {
        let (text, outcome) = server.plan(&["--machine", name, "--json"]).await.unwrap();
        assert_eq!((without_notes(&text), outcome), (agents(allocation.clone()).await, CommandOutcome::Good));
    }
    let (text, _) = server.plan(&["--machine", "one"]).await.unwrap();
    assert!(text.contains("debian-12") && text.contains("UTC, just now: later changes"), "{text}");
    server.refused(&["--machine", "one", "--reinstall"], "machine one is not installed").await;

    // After an installation, the registered inventory no longer describes the contents of the disks.
    assert_eq!(server.begin(&token, "").await, 200);
    server.report(ONE, &token, "a1", true).await;
    let file = inventory_file().display().to_string();
    let with_file = ["--machine", "one", "--inventory", &file];
    server
        .refused(&with_file, "machine one is installed with debian-12 and boots it, because no reinstall is ordered")
        .await;
    server.refused(&["--machine", "one"], "because no reinstall is ordered").await;
    let (text, outcome) = server.plan(&["--machine", "one", "--detailed-exitcode"]).await.unwrap();
    assert!(outcome == CommandOutcome::Good && text.contains("because no reinstall is ordered"), "{text}");
    let (text, outcome) = server.plan(&[&with_file[..], &["--reinstall"]].concat()).await.unwrap();
    assert!(outcome == CommandOutcome::Good && text.contains("reinstall"), "{text}");

    // A reinstall is ordered, and the machine has registered again, so the options of the order apply to the plan.
    let body = json!({ "without_marker": true, "give_up": ["QM00001"] });
    assert_eq!(server.press(ONE, "debian-13", body).await.status, 200);
    let token = server.registered(ONE).await;
    let machine = server.allocated(ONE, &token).await.allocation.unwrap();
    let (text, _) = server.plan(&["--machine", "one", "--json"]).await.unwrap();
    assert_eq!(without_notes(&text), agents(machine).await);
    assert_eq!(serde_json::from_str::<Value>(&text).unwrap()["mode"], "reinstall");
}

/// After an installation, the registered inventory no longer describes the contents of the disks.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn outdated_inventory_yields_only_a_forecast() {
    let server = Running::start_in(with_images()).await;
    let token = server.registered(ONE).await;
    server.allocated(ONE, &token).await;
    assert_eq!(server.begin(&token, "").await, 200);
    let changed = "the disks of the machine have changed since it registered";
    let (text, _) = server.plan(&["--machine", "one"]).await.unwrap();
    assert!(
        text.starts_with("one: installation with debian-12; the inventory is as of 20") && text.contains(changed),
        "{text}"
    );
    server.report(ONE, &token, "a1", true).await;
    server.refused(&["--machine", "one"], "because no reinstall is ordered").await;
    let (text, outcome) = server.plan(&["--machine", "one", "--reinstall"]).await.unwrap();
    assert!(outcome == CommandOutcome::Good && text.contains(changed) && text.contains("Data lost: "), "{text}");
    assert!(!text.contains("point of no return"), "only a forecast: {text}");
    for json in [&[][..], &["--json"]] {
        let detailed = [&["--machine", "one", "--reinstall", "--detailed-exitcode"], json].concat();
        let (text, outcome) = server.plan(&detailed).await.unwrap();
        assert!(matches!(outcome, CommandOutcome::Changes | CommandOutcome::Erases), "{text}");
        let lost =
            serde_json::from_str(&text).map_or(!text.contains("Data lost: 0 B"), |text: Value| text["lost_bytes"] != 0);
        assert_eq!(outcome == CommandOutcome::Erases, lost, "{text}");
    }
    let (text, _) = server.plan(&["--machine", "one", "--reinstall", "--json"]).await.unwrap();
    let forecast: Value = serde_json::from_str(&text).unwrap();
    assert_eq!((&forecast["foreseen"], forecast["disks"].as_array().unwrap().is_empty()), (&json!(changed), false));
    let layout = server.dir.path().join("layouts/default.yaml").display().to_string();
    let with_layout = ["--machine", "one", "--reinstall", "--layout", &layout];
    server.refused(&with_layout, "the contents of its disks have changed").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn unallocated_machine_is_planned_with_a_layout_option() {
    let server = Running::start().await;
    for id in [TWO, STRANGER] {
        server.registered(id).await;
        server.refused(&["--machine", id], "nothing would be installed").await;
        let layout = server.dir.path().join("layouts/default.yaml").display().to_string();
        let (text, outcome) = server.plan(&["--machine", id, "--layout", &layout]).await.unwrap();
        assert!(outcome == CommandOutcome::Good && text.contains("the inventory is as of 20"), "{text}");
    }
    // Only the operator may read the preview.
    let token = server.registered(TWO).await;
    assert_eq!(server.call(&token, "GET", &format!("/v1/machine/{TWO}/preview"), &Value::Null).await.status, 401);
}
