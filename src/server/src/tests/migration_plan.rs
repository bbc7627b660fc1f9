//! Forecasts of the plan of a migration's target: by `drophammer plan`, by `drophammer site plan`, and with an
//! approval.

use super::machine_migration::{certificate, disks, marker, with_one_disk};
use super::plan_approval::{compared, rack, row};
use super::*;
use api::plan_input::PlanInput;
use common::command_outcome::CommandOutcome;
use drophammer::local_commands::site_plan::PlanOptions;
use model::install_marker::InstallMarker;
use model::inventory::{FilesystemContents, Inventory};
use operations::{AnnouncePointOfNoReturn, Operation, SessionOp, WriteMarker};
use plan::{Plan, request_from_allocation, simulator};
use uuid::Uuid;

/// Returns the source's description of its filesystems, as `plan::check_migration` derives it from the layout.
fn carried() -> Value {
    json!({
        "marker": marker(ONE),
        "filesystems": [{ "device": "/dev/sda1", "format": "ext4", "uuid": "020641d6-0000-4000-8000-000000000001",
            "size_bytes": 500_000_000u64, "sector_bytes": 512 }],
        "partitions": [{ "device": "/dev/sda1", "guid": "020641d6-0000-4000-8000-000000000002" }],
    })
}

fn agent(machine: &allocation::AssignedMachine) -> Plan {
    agent_on(machine, &with_one_disk())
}

fn agent_on(machine: &allocation::AssignedMachine, inventory: &Inventory) -> Plan {
    let allocation = machine.allocation.clone().unwrap();
    let layout = allocation.parse_layout().unwrap().layout;
    let request = request_from_allocation::build_request(machine, TWO, &allocation, &[]);
    plan::make_plan(&layout, inventory, request, &mut Uuid::new_v4).unwrap_or_else(|refusal| panic!("{refusal}"))
}

impl Running {
    async fn preview(&self, id: &str) -> PlanInput {
        let path = format!("/v1/machine/{id}/preview");
        let answer = self.call(&self.operator(), "GET", &path, &Value::Null).await;
        serde_json::from_value(answer.json()).unwrap()
    }

    /// Returns the rows of both machines, and the outcome of `site plan`.
    async fn plan_both_machines(&self, approve: bool) -> (Value, Value, CommandOutcome) {
        let only = |options: &mut PlanOptions| {
            (options.approve, options.machine) = (approve, vec!["one".to_owned(), "two".to_owned()]);
        };
        let (printed, exit) = rack(self.dir.path(), only).await.unwrap();
        (row(&printed, ONE).clone(), row(&printed, TWO).clone(), exit)
    }

    async fn until_approved(&self, token: &str, sha256: &str) -> allocation::AssignedMachine {
        loop {
            let answer = self.call(token, "GET", &format!("/v1/machine/{TWO}"), &Value::Null).await;
            if answer.json()["allocation"]["approved"]["sha256"] == json!(sha256) {
                return serde_json::from_value(answer.json()).unwrap();
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    /// Sends to the server the requests that a session sends when it carries out this plan. Stops before the
    /// operation for which `until` returns true, as if the machine lost power.
    async fn send_session_requests(
        &self,
        plan: &Plan,
        token: &str,
        until: impl Fn(&SessionOp) -> bool,
    ) -> Option<InstallMarker> {
        let mut marker = plan.already.clone();
        for operation in plan.stages.iter().flat_map(|stage| &stage.operations) {
            let Operation::Run(operation) = operation else { continue };
            if until(operation) {
                break;
            }
            let (path, body) = match operation {
                SessionOp::WriteMarker(WriteMarker(written)) => {
                    let received_from = Some(model::machine_migration::certificate_digest(&certificate(ONE)));
                    marker = Some(InstallMarker { received_from, ..written.clone() });
                    continue;
                }
                SessionOp::AnnouncePointOfNoReturn(AnnouncePointOfNoReturn {
                    allocation,
                    disks,
                    approved,
                    secret_digest,
                    ..
                }) => {
                    let body = json!({ "allocationuuid": allocation, "order": "", "disks": disks, "approved": approved,
                        "secret_digest": secret_digest });
                    ("point-of-no-return", body)
                }
                SessionOp::Report(closing) => {
                    let (message, allocation) = (&closing.message, &closing.allocation);
                    let body =
                        json!({ "success": true, "message": message, "allocationuuid": allocation, "marker": marker });
                    ("report", body)
                }
                _ => continue,
            };
            let answer = self.call(token, "POST", &format!("/v1/machine/{TWO}/{path}"), &body).await;
            assert_eq!(answer.status, 200, "{path}: {}", answer.text());
        }
        marker
    }

    async fn fetch_assignment(&self, id: &str, token: &str) -> allocation::AssignedMachine {
        let answer = self.call(token, "GET", &format!("/v1/machine/{id}"), &Value::Null).await;
        serde_json::from_value(answer.json()).unwrap()
    }

    async fn request_point_of_no_return(&self, token: &str, approved: Option<&str>) -> Answer {
        let mut body = json!({ "allocationuuid": "a1", "order": "", "disks": disks() });
        if let Some(approved) = approved {
            body["approved"] = approved.into();
        }
        self.call(token, "POST", &format!("/v1/machine/{TWO}/point-of-no-return"), &body).await
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn plan_of_migration_target_is_shown_and_approved() {
    let (server, order) = Running::move_ordered().await;
    // Until the source has reported its contents, the plan of the target is unknown. The source loses no data.
    let words = "waits in its ramdisk for the migration";
    let (one, two, exit) = server.plan_both_machines(false).await;
    assert_eq!(
        (&one["outcome"], &two["outcome"], exit),
        (&json!("nothing"), &json!("unknown"), CommandOutcome::Refused)
    );
    assert!(one["reasons"][0].as_str().unwrap().contains("is migrated to machine two (ordered)"), "{one}");
    assert!(two["reasons"][0].as_str().unwrap().contains(words), "{two}");
    assert!(server.preview(TWO).await.withheld.unwrap().contains(words));
    assert!(server.preview(ONE).await.withheld.unwrap().contains("are only read"));

    let (token_of_one, token) = (server.ramdisk(ONE).await, server.ramdisk(TWO).await);
    let body = json!({ "order": order, "certificate": certificate(ONE), "carried": carried() });
    let answer = server.call(&token_of_one, "POST", &format!("/v1/machine/{ONE}/moving"), &body).await;
    assert_eq!(answer.status, 200, "{}", answer.text());
    let (_, two, _) = server.plan_both_machines(false).await;
    assert_eq!((&two["outcome"], &two["mode"], &two["approved"]), (&json!("erases"), &json!("install"), &json!(false)));
    // `drophammer plan` prints the same plan as the agent.
    let told =
        serde_json::from_value(server.call(&token, "GET", &format!("/v1/machine/{TWO}"), &Value::Null).await.json());
    let printed = agent(&told.unwrap()).to_string();
    assert!(printed.contains("received from machine"), "{printed}");
    let (planned, _) = server.plan(&["--machine", "two"]).await.unwrap();
    let stages = |text: &str| -> Vec<String> {
        let stages = text.lines().skip_while(|line| !line.contains("storage.")).take_while(|line| !line.is_empty());
        stages.map(str::to_owned).collect()
    };
    assert_eq!(stages(&planned), stages(&printed));
    assert!(!planned.contains("the image's server"), "{planned}");

    let (_, two, _) = server.plan_both_machines(true).await;
    let sha256 = two["sha256"].as_str().unwrap().to_owned();
    assert_eq!(two["approved"], json!(true));
    let plan = agent(&server.until_approved(&token, &sha256).await);
    assert_eq!(compared(&plan).as_deref(), Some(sha256.as_str()));
    assert_eq!(server.announce_waiting(TWO, &token, &order).await.status, 200);
    server.exchange_certificates(&token_of_one).await;
    for (approved, words) in [(None, "is too old to compare plans"), (Some("sha256:0"), "is now in effect")] {
        let answer = server.request_point_of_no_return(&token, approved).await;
        assert!(answer.status == 409 && answer.text().contains(words), "{}", answer.text());
    }
    let answer = server.request_point_of_no_return(&token, Some(&sha256)).await;
    assert_eq!(answer.status, 200, "{}", answer.text());
    // After the point of no return, `site plan` predicts the plan. After the cancellation, it predicts no action.
    let (_, two, _) = server.plan_both_machines(false).await;
    assert_eq!((&two["foreseen"], &two["outcome"]), (&json!(true), &json!("erases")), "{two}");
    assert_eq!(server.about_move("DELETE", "", Value::Null).await.status, 200);
    assert_eq!(server.plan_both_machines(false).await.1["outcome"], json!("nothing"));
}

/// Returns a server, the order, the token of machine A, and the inventory of machine B. B has received the complete
/// copy and written the marker, but has lost power before it could report.
async fn complete_and_not_reported() -> (Running, String, String, Inventory) {
    let (server, order) = Running::move_ordered().await;
    let (token_of_one, token) = (server.ramdisk(ONE).await, server.ramdisk(TWO).await);
    let body = json!({ "order": order, "certificate": certificate(ONE), "carried": carried() });
    let answer = server.call(&token_of_one, "POST", &format!("/v1/machine/{ONE}/moving"), &body).await;
    assert_eq!(answer.status, 200, "{}", answer.text());
    assert_eq!(server.announce_waiting(TWO, &token, &order).await.status, 200);
    server.exchange_certificates(&token_of_one).await;
    let plan = agent(&server.fetch_assignment(TWO, &token).await);
    let marker =
        server.send_session_requests(&plan, &token, |operation| matches!(operation, SessionOp::Report(_))).await;
    let mut after = simulator::after(&plan, with_one_disk());
    let root = after.disks[0].table.as_ref().unwrap().partitions[0].device.clone();
    after.filesystems = vec![FilesystemContents { device: root, marker, ..FilesystemContents::default() }];
    (server, order, token_of_one, after)
}

/// After the power failure, the next boot finds the complete copy, and must report it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn complete_unreported_copy_is_reported_by_the_next_boot() {
    let (server, order, _, after) = complete_and_not_reported().await;
    let token = server.ramdisk(TWO).await;
    assert_eq!(server.announce_waiting(TWO, &token, &order).await.status, 200);
    let again = agent_on(&server.fetch_assignment(TWO, &token).await, &after);
    assert!(again.already.is_some(), "{again}");
    server.send_session_requests(&again, &token, |_| false).await;
    let answer = server.about_move("GET", "", Value::Null).await;
    assert_eq!(answer.json()["state"], json!("booting"), "{}", answer.text());
}

/// The source has booted since the copy was made, so its system may have changed in between.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn copy_is_outdated_after_the_source_boots_again() {
    let (server, order, _, after) = complete_and_not_reported().await;
    let token = server.ramdisk(TWO).await;
    assert_eq!(server.announce_waiting(TWO, &token, &order).await.status, 200);
    let again = agent_on(&server.fetch_assignment(TWO, &token).await, &after);
    assert!(again.already.is_some(), "{again}");
    // The source boots before the server receives the report.
    let token_of_one = server.ramdisk(ONE).await;
    let until_report = |operation: &SessionOp| matches!(operation, SessionOp::Report(_));
    let marker = server.send_session_requests(&again, &token, until_report).await;
    let report = json!({ "success": true, "message": "m", "allocationuuid": "a1", "marker": marker });
    let reports = async |token: &str| server.call(token, "POST", &format!("/v1/machine/{TWO}/report"), &report).await;
    let answer = reports(&token).await;
    assert!(answer.status == 409 && answer.text().contains("has booted again"), "{}", answer.text());
    let body = json!({ "order": order, "certificate": certificate("another boot"), "carried": carried() });
    let answer = server.call(&token_of_one, "POST", &format!("/v1/machine/{ONE}/moving"), &body).await;
    assert_eq!(answer.status, 200, "{}", answer.text());
    assert_eq!(reports(&token).await.status, 409);
    assert_eq!(server.about_move("GET", "", Value::Null).await.json()["state"], json!("copying"));
    // The target must receive all data again in its next boot.
    let token = server.ramdisk(TWO).await;
    assert_eq!(server.announce_waiting(TWO, &token, &order).await.status, 200);
    let anew = agent_on(&server.fetch_assignment(TWO, &token).await, &after);
    assert!(anew.already.is_none() && anew.to_string().contains("received from machine"), "{anew}");
}

/// The source boots again at the moment at which the target requests its point of no return.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn target_waits_while_the_source_boots() {
    let (server, order) = Running::move_ordered().await;
    let (token_of_one, token) = (server.ramdisk(ONE).await, server.ramdisk(TWO).await);
    let stands = async |token: &str| {
        let body = json!({ "order": order, "certificate": certificate(ONE), "carried": carried() });
        server.call(token, "POST", &format!("/v1/machine/{ONE}/moving"), &body).await.status
    };
    assert_eq!(stands(&token_of_one).await, 200);
    assert_eq!(server.announce_waiting(TWO, &token, &order).await.status, 200);
    server.exchange_certificates(&token_of_one).await;
    let token_of_one = server.ramdisk(ONE).await;
    let answer = server.request_point_of_no_return(&token, None).await;
    assert!(answer.status == 503 && answer.text().contains("make sure that the source waits"), "{}", answer.text());
    assert_eq!(server.about_move("GET", "", Value::Null).await.json()["state"], json!("planned"));
    assert_eq!(stands(&token_of_one).await, 200);
    server.exchange_certificates(&token_of_one).await;
    assert_eq!(server.request_point_of_no_return(&token, None).await.status, 200);
}
