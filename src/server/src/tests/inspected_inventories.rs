//! Machines that inspect their disks while they wait for an allocation, and register again with the result.

use super::*;
use clap::Parser;
use common::command_outcome::CommandOutcome;
use control::agent_api_types::RegisterRequest;
use drophammer::cli::{Cli, CliCommand};
use model::inventory::{FilesystemContents, Inventory};
use plan::request_from_allocation::preview::remove_temporary_uses;

fn read_recorded(file: &str) -> String {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../../testdata/foreign-installations/almalinux-uefi/");
    std::fs::read_to_string(format!("{folder}{file}")).unwrap()
}

/// Returns the inventory of a machine that another installer has installed, as read in the ramdisk before the
/// inspection.
fn not_inspected() -> Inventory {
    let mut inventory: Inventory = serde_json::from_str(&read_recorded("inventory.json")).unwrap();
    remove_temporary_uses(&mut inventory);
    inventory.filesystems.clear();
    inventory.explored = false;
    // Another UUID and other MACs would contradict the machine file.
    inventory.system.uuid = None;
    inventory.nics.clear();
    inventory
}

/// Returns the inventory after the inspection. The root filesystem contains this fstab.
fn inspected(fstab: &str) -> Inventory {
    let contents = FilesystemContents {
        device: "/dev/mapper/almalinux-root".into(),
        fstab: Some(fstab.to_owned()),
        ..FilesystemContents::default()
    };
    Inventory { filesystems: vec![contents], explored: true, ..not_inspected() }
}

impl Running {
    async fn registers(&self, id: &str, token: &str, inventory: Inventory) {
        let register = serde_json::to_value(RegisterRequest::new(id.to_owned(), inventory)).unwrap();
        let answer = self.call(token, "POST", "/v1/machine/register", &register).await;
        assert_eq!(answer.status, 200, "{}", answer.text());
    }

    /// Returns the fstab in the registered inventory.
    async fn registered_fstab(&self, id: &str) -> Option<String> {
        let preview = self.call(&self.operator(), "GET", &format!("/v1/machine/{id}/preview"), &Value::Null).await;
        let inventory = &preview.json()["registered"]["inventory"];
        inventory["filesystems"][0]["fstab"].as_str().map(str::to_owned)
    }

    async fn layout_from(&self, machine: &str) -> CommandOutcome {
        let url = format!("http://{}", self.address);
        let token = self.dir.path().join("operator.token").display().to_string();
        let arguments =
            ["drophammer", "layout", "from-machine", "--machine", machine, "--server", &url, "--token-file", &token];
        let CliCommand::Layout(options) = Cli::try_parse_from(arguments).unwrap().command else { panic!() };
        let run = move || drophammer::server_commands::layouts::run_layout_command(&options);
        tokio::task::spawn_blocking(run).await.unwrap().unwrap()
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn layout_of_a_waiting_machine_is_derived_from_its_inspected_disks() {
    let server = Running::start().await;
    let browser = server.browser().await;
    let page = format!("/machines/{STRANGER}");
    let layout = format!("{page}/layout.yaml");
    assert_eq!(browser.get(&layout).await.status, 404);
    let token = token_of(&server.boot(&format!("uuid={STRANGER}")).await.text());
    server.registers(STRANGER, &token, not_inspected()).await;
    assert_eq!(server.layout_from(STRANGER).await, CommandOutcome::Refused, "the fstab is missing");
    assert!(!browser.text(&page).await.contains(&layout));
    server.registers(STRANGER, &token, inspected(&read_recorded("fstab"))).await;
    assert_eq!(server.layout_from(STRANGER).await, CommandOutcome::Good);
    assert!(browser.text(&page).await.contains(&layout));
    let text = browser.text(&layout).await;
    for words in ["id: from-machine\n", "# Reinstall: the system is renewed, everything else is preserved (1 found)."] {
        assert!(text.contains(words), "{words}: {text}");
    }
    let shown = text.lines().filter(|line| line.contains("path: ")).count();
    assert!(shown > 2, "{text}");
    server.stop().await;
}

/// The contents of the disks may have changed after the first inspection of a boot.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn only_the_first_inspection_before_an_installation_is_stored() {
    let server = Running::start().await;
    let token = token_of(&server.boot(&format!("uuid={STRANGER}")).await.text());
    server.registers(STRANGER, &token, not_inspected()).await;
    for inventory in [inspected("first"), inspected("second"), not_inspected()] {
        server.registers(STRANGER, &token, inventory).await;
        assert_eq!(server.registered_fstab(STRANGER).await.as_deref(), Some("first"));
    }
    // The installation has started to erase the disks.
    let token = server.token(ONE).await;
    server.allocated(ONE, &token).await;
    assert_eq!(server.begin(&token, "").await, 200);
    server.registers(ONE, &token, inspected("late")).await;
    assert_eq!(server.registered_fstab(ONE).await, None);
    server.stop().await;
}
