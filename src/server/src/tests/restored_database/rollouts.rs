//! Power cycles of rollout members in a restored database. The operator canceled the rollout after the backup.

use super::super::power_control::bmc_field;
use super::*;
use bmc::redfish::test_double::RedfishDouble;

const ROLLOUT: &str = "/v1/rollouts/1";

/// State of the member's power cycle in the backup.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum PowerCycleRecord {
    NotBegun,
    /// The server held the lease of the machine, and may have sent the request.
    Leased,
    Completed,
}
use PowerCycleRecord::{Completed, Leased, NotBegun};

impl Running {
    /// Installs machine ONE, and orders its reinstall in a rollout. The server does not power-cycle the machine.
    async fn with_ordered_member(controller: &RedfishDouble) -> Running {
        let dir = with_images();
        let file = machine_file(ONE, "one", "52:54:00:00:00:01", "a1", &bmc_field(controller));
        std::fs::write(dir.path().join("machines/one.yaml"), file).unwrap();
        let server = Running::start_in(dir).await;
        server.carry_out().await;
        let body = json!({ "at_most": 1, "members": [{ "id": ONE, "imageid": "debian-13" }] });
        let began = std::time::Instant::now();
        while server.v1("POST", "/v1/rollouts", &body).await.status != 201 {
            assert!(began.elapsed() < PATIENCE);
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        server.until_states(ROLLOUT, &["ordered"]).await;
        server
    }

    async fn resume_rollout(&self) {
        let resumed = self.v1("POST", &format!("{ROLLOUT}/resume"), &Value::Null).await;
        assert_eq!(resumed.status, 200, "{}", resumed.text());
    }
}

/// Changes the backup to one of a rollout whose machines are power-cycled by the server.
fn set_power_cycle(backup: &Path, record: PowerCycleRecord) {
    let database = rusqlite::Connection::open(backup).unwrap();
    let requested = r#"UPDATE rollouts SET document = replace(document, '"power_cycle":false', '"power_cycle":true')"#;
    assert_eq!(database.execute(requested, []).unwrap(), 1);
    if record != NotBegun {
        let begun = r#"UPDATE rollout_members SET document =
            replace(document, '"power_cycled":""', '"power_cycled":"2026-11-01T00:00:00Z"')"#;
        assert_eq!(database.execute(begun, []).unwrap(), 1);
    }
    if record == Leased {
        let action = json!({ "origin": { "rollout": { "rollout": 1, "number": 0 } }, "action": "cycle",
            "requested_by": "rollout 1" });
        let insert = "INSERT INTO server_leases (machine, holder, sequence, expires, switched, pending, document)
            VALUES (?1, 'former', 7, 0, 0, 1, ?2)";
        database.execute(insert, [ONE, &action.to_string()]).unwrap();
    }
}

/// Waits for several rounds of the tasks that power-cycle machines, and checks that they have sent no request.
async fn expect_no_requests(controller: &RedfishDouble) {
    tokio::time::sleep(Duration::from_millis(500)).await;
    assert_eq!(controller.requests().len(), 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn restored_member_is_power_cycled_only_after_confirm_and_resume() {
    for record in [NotBegun, Leased] {
        let controller = RedfishDouble::start("On", &[]);
        let server = Running::with_ordered_member(&controller).await;
        let (_folder, file) = backup_of(&server);
        set_power_cycle(&file, record);
        assert_eq!(server.v1("DELETE", ROLLOUT, &Value::Null).await.status, 200);
        let server = restored(server, &file, false).await;
        expect_no_requests(&controller).await;
        let rollout = server.v1("GET", ROLLOUT, &Value::Null).await.json();
        let reason = rollout["members"][0]["reason"].as_str().unwrap();
        assert!(reason.contains(&format!("drophammer machine confirm {ONE}`")), "{record:?}: {rollout}");
        assert!(reason.contains("drophammer rollout resume 1"), "{record:?}: {rollout}");
        assert_eq!((&rollout["state"], &rollout["members"][0]["state"]), (&json!("halted"), &json!("ordered")));

        // Neither of the two commands suffices.
        server.resume_rollout().await;
        expect_no_requests(&controller).await;
        assert_eq!(server.v1("POST", &format!("{ROLLOUT}/halt"), &Value::Null).await.status, 200);
        assert_eq!(server.confirm().await.status, 200);
        expect_no_requests(&controller).await;
        server.resume_rollout().await;
        server.heard("one: switched off and on, as requested by rollout 1").await;
        let server = server.restarted().await;
        tokio::time::sleep(Duration::from_millis(500)).await;
        let cycles = controller.changes().iter().filter(|change| *change == "POST ForceRestart").count();
        assert_eq!(cycles, 1, "{record:?}");
        let rollout = server.v1("GET", ROLLOUT, &Value::Null).await.json();
        assert_eq!(rollout["members"][0]["reason"], Value::Null, "{record:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn completed_power_cycle_is_not_repeated_after_restore() {
    let controller = RedfishDouble::start("On", &[]);
    let server = Running::with_ordered_member(&controller).await;
    let (_folder, file) = backup_of(&server);
    set_power_cycle(&file, Completed);
    assert_eq!(server.v1("DELETE", ROLLOUT, &Value::Null).await.status, 200);
    let server = restored(server, &file, false).await;
    let rollout = server.v1("GET", ROLLOUT, &Value::Null).await.json();
    assert!(rollout["members"][0]["reason"].as_str().unwrap().contains("has already power-cycled it"), "{rollout}");
    assert_eq!(server.confirm().await.status, 200);
    server.resume_rollout().await;
    expect_no_requests(&controller).await;
}
