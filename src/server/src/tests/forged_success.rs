//! Claims of success without proof: forged install markers, and reports of attempts that have never started.

use super::reinstall::with_images;
use super::*;
use common::command_outcome::CommandOutcome;
use model::allocation::Allocation;
use model::install_marker::InstallMarker;
use model::inventory::{FilesystemContents, Inventory};
use operations::{AnnouncePointOfNoReturn, Operation, SessionOp, WriteMarker};
use plan::{DiskVerdict, Plan, PlanRefusal, request_from_allocation, simulator};
use uuid::Uuid;

fn blank_machine() -> Inventory {
    let disk = json!({ "name": "sda", "device": "/dev/sda", "serial": "S1", "size_bytes": 9_000_000_000u64,
        "sector_bytes": 512, "blank": true });
    Inventory { disks: vec![serde_json::from_value(disk).unwrap()], ..Inventory::default() }
}

/// Returns the plan of an honest agent.
fn agent(given: &Allocation, inventory: &Inventory) -> Result<Plan, Box<PlanRefusal>> {
    let request = request_from_allocation::build_request(&allocation::AssignedMachine::default(), ONE, given, &[]);
    plan::make_plan(&given.parse_layout().unwrap().layout, inventory, request, &mut Uuid::new_v4)
}

/// Returns the request for the point of no return that a session sends for this plan, and the marker that the session
/// writes.
fn attempt(plan: &Plan) -> (Value, InstallMarker) {
    let (mut notice, mut marker) = (Value::Null, None);
    for operation in plan.stages.iter().flat_map(|stage| &stage.operations) {
        match operation {
            Operation::Run(SessionOp::AnnouncePointOfNoReturn(AnnouncePointOfNoReturn {
                allocation,
                order,
                disks,
                secret_digest,
                ..
            })) => {
                let order = order.clone().unwrap_or_default();
                notice = json!({ "allocationuuid": allocation, "order": order, "disks": disks,
                    "secret_digest": secret_digest });
            }
            Operation::Run(SessionOp::WriteMarker(WriteMarker(written))) => marker = Some(written.clone()),
            _ => {}
        }
    }
    (notice, InstallMarker { time: "2026-11-01T00:00:00Z".to_owned(), ..marker.unwrap() })
}

/// Returns the inventory of the machine after the plan was carried out, with this marker on its root filesystem.
fn installed(plan: &Plan, before: &Inventory, marker: &InstallMarker) -> Inventory {
    with_marker(&simulator::after(plan, before.clone()), marker)
}

fn with_marker(inventory: &Inventory, marker: &InstallMarker) -> Inventory {
    let device = inventory.disks[0].table.as_ref().unwrap().partitions[0].device.clone();
    let filesystem = FilesystemContents { device, marker: Some(marker.clone()), ..FilesystemContents::default() };
    Inventory { filesystems: vec![filesystem], ..inventory.clone() }
}

fn success(allocation: &str, order: &str, marker: Option<&InstallMarker>) -> Value {
    json!({ "success": true, "message": "m", "allocationuuid": allocation, "order": order, "marker": marker })
}

impl Running {
    /// Boots the ramdisk over PXE.
    async fn boots(&self) -> (String, Allocation) {
        let token = self.token(ONE).await;
        let given = self.allocated(ONE, &token).await.allocation.unwrap();
        (token, given)
    }

    async fn sends(&self, token: &str, call: &str, body: &Value) -> Answer {
        self.call(token, "POST", &format!("/v1/machine/{ONE}/{call}"), body).await
    }

    async fn refuses(&self, token: &str, report: &Value, code: &str) {
        let answer = self.sends(token, "report", report).await;
        assert_eq!((answer.status, answer.json()["code"].as_str()), (409, Some(code)), "{}", answer.text());
        let message = answer.json()["message"].as_str().unwrap().to_owned();
        assert!(message.contains("is not recorded") && message.contains("drophammer machine"), "{message}");
        self.heard("is not recorded: ").await;
    }

    async fn acknowledges(&self, token: &str, call: &str, body: &Value) {
        let answer = self.sends(token, call, body).await;
        assert_eq!(answer.status, 200, "{call}: {}", answer.text());
    }

    /// Installs the machine for the first time, with an agent that sends a digest of its secret.
    async fn install_one(&self) -> (Inventory, InstallMarker) {
        let (token, given) = self.boots().await;
        let plan = agent(&given, &blank_machine()).unwrap();
        let (notice, marker) = attempt(&plan);
        self.acknowledges(&token, "point-of-no-return", &notice).await;
        self.acknowledges(&token, "report", &success("a1", "", Some(&marker))).await;
        (installed(&plan, &blank_machine(), &marker), marker)
    }
}

/// The complete attack: the root user of the old system writes the id of the order into the install marker, and boots
/// over PXE.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn forged_marker_does_not_complete_a_reinstall() {
    let server = Running::start_in(with_images()).await;
    let (old_system, old_marker) = server.install_one().await;
    let order = server.order("debian-13").await;
    let image = "debian-13".to_owned();
    let forged = InstallMarker { order: Some(order.clone()), image, ..old_marker };
    let forged_system = with_marker(&old_system, &forged);

    let (token, given) = server.boots().await;
    let plan = agent(&given, &forged_system).unwrap();
    assert!(plan.already.is_none() && plan.disks[0].verdict == DiskVerdict::Wipe, "the order is carried out: {plan}");
    // An agent that trusts the forged marker, or the old system itself, reports a success although no attempt has
    // started.
    for marker in [Some(&forged), None] {
        server.refuses(&token, &success("a1", &order, marker), "success-not-begun").await;
    }
    let listed = server.listed().await;
    assert_eq!((&listed["image"], &listed["order"]["id"]), (&json!("debian-12"), &json!(order)), "nothing is recorded");
    assert_eq!(listed["outcome"], Value::Null);

    // The honest attempt has a new secret, which the forged marker does not prove.
    let (notice, marker) = attempt(&plan);
    for _ in 0..2 {
        server.acknowledges(&token, "point-of-no-return", &notice).await;
    }
    server.refuses(&token, &success("a1", &order, Some(&forged)), "success-other-marker").await;
    let no_secret = InstallMarker { secret: None, ..marker.clone() };
    server.refuses(&token, &success("a1", &order, Some(&no_secret)), "success-other-marker").await;
    server.refuses(&token, &success("a1", &order, None), "success-other-marker").await;
    let no_tables = InstallMarker { disks: Vec::new(), ..marker.clone() };
    server.refuses(&token, &success("a1", &order, Some(&no_tables)), "success-other-marker").await;

    // The machine loses power after it has written its marker, and before it reports. The next boot distinguishes this
    // marker from the forged one, even if the server has restarted.
    let complete = installed(&plan, &forged_system, &marker);
    let server = server.restarted().await;
    let (token, given) = server.boots().await;
    assert!(agent(&given, &forged_system).unwrap().already.is_none());
    assert!(agent(&given, &with_marker(&complete, &forged)).unwrap().already.is_none());
    let elsewhere = agent(&given, &with_marker(&old_system, &marker)).unwrap_err().to_string();
    assert!(
        elsewhere.contains("--replace-newer"),
        "its partition tables are missing, and nothing is erased: {elsewhere}"
    );
    assert_eq!(agent(&given, &complete).unwrap().already.as_ref(), Some(&marker));
    let report = success("a1", &order, Some(&marker));
    server.acknowledges(&token, "report", &report).await;
    server.acknowledges(&token, "report", &report).await;
    let listed = server.listed().await;
    assert_eq!((&listed["image"], &listed["order"]), (&json!("debian-13"), &Value::Null));
    assert!(server.boots_disk().await);
    server.refuses(&token, &success("a1", &order, Some(&forged)), "success-order-not-open").await;
    server.refuses(&token, &success("a1", "another", Some(&marker)), "success-order-not-open").await;
    assert_eq!(server.listed().await["outcome"]["success"], true);
}

/// Each attempt replaces the record of the previous attempt. The marker of an earlier attempt proves nothing, because
/// the root user may have read it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn only_the_latest_started_attempt_can_report_success() {
    let server = Running::start_in(with_images()).await;
    let (old_system, _) = server.install_one().await;
    let order = server.order("debian-13").await;
    let mut attempts = Vec::new();
    for number in 0..2 {
        let (token, given) = server.boots().await;
        let (notice, marker) = attempt(&agent(&given, &old_system).unwrap());
        let declared = given.order.unwrap().attempt_record.map(|record| record.secret_digest);
        let before: Option<&(Value, InstallMarker)> = attempts.last();
        let expected = before.map(|(notice, _)| notice["secret_digest"].as_str().unwrap().to_owned());
        assert_eq!(declared, expected, "{number}");
        server.acknowledges(&token, "point-of-no-return", &notice).await;
        attempts.push((notice, marker));
    }
    let token = server.token(ONE).await;
    server.refuses(&token, &success("a1", &order, Some(&attempts[0].1)), "success-other-marker").await;
    server.acknowledges(&token, "report", &success("a1", &order, Some(&attempts[1].1))).await;
}

/// An attempt without a digest, made by an agent of an earlier version, can be completed only by the boot that has
/// started it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn attempt_without_digest_requires_its_own_boot() {
    let server = Running::start_in(with_images()).await;
    server.install_one().await;
    let order = server.order("debian-13").await;
    let token = server.token(ONE).await;
    assert_eq!(server.begin(&token, &order).await, 200);
    let wrong = json!({ "allocationuuid": "a1", "order": order, "secret_digest": "sha256:0" });
    assert_eq!(server.sends(&token, "point-of-no-return", &wrong).await.status, 400);
    let later = server.token(ONE).await;
    server.refuses(&later, &success("a1", &order, None), "success-other-boot").await;
    assert_eq!(server.begin(&later, &order).await, 200);
    server.acknowledges(&later, "report", &success("a1", &order, None)).await;
}

/// The machine is allocated to the next tenant while the system of the previous tenant is still running.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn old_system_cannot_report_the_next_allocation_installed() {
    let server = Running::start_in(with_images()).await;
    let (old_system, old_marker) = server.install_one().await;
    server.write("machines/one.yaml", &machine_file(ONE, "one", "52:54:00:00:00:01", "a2", ""));
    server.until_assigned("a2").await;
    let forged = InstallMarker { allocation: "a2".to_owned(), ..old_marker };
    let (token, given) = server.boots().await;
    assert_eq!(given.id, "a2");
    for marker in [None, Some(&forged)] {
        server.refuses(&token, &success("a2", "", marker), "success-not-begun").await;
    }
    // If a marker of this allocation is not proven, an honest agent neither boots nor erases the system.
    let refused = agent(&given, &with_marker(&old_system, &forged)).unwrap_err().to_string();
    assert!(refused.contains("neither booted nor erased") && refused.contains("machine adopt"), "{refused}");
    let plan = agent(&given, &old_system).unwrap();
    let (notice, marker) = attempt(&plan);
    server.acknowledges(&token, "point-of-no-return", &notice).await;
    server.refuses(&token, &success("a2", "", Some(&forged)), "success-other-marker").await;
    assert_eq!(server.listed().await["installed"], false);
    // If the machine loses power between marker and report, its next boot accepts the machine's own marker.
    let (token, given) = server.boots().await;
    assert!(agent(&given, &installed(&plan, &old_system, &marker)).unwrap().already.is_some());
    assert!(agent(&given, &installed(&plan, &old_system, &forged)).is_err());
    server.acknowledges(&token, "report", &success("a2", "", Some(&marker))).await;
    assert_eq!(server.listed().await["installed"], true);
}

/// A machine without an order boots over PXE, and reports a success. The server acknowledges the report, and the
/// machine then boots its disk, but the server does not record a success.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn accidental_report_is_acknowledged_without_changes() {
    let server = Running::start_in(with_images()).await;
    let (system, marker) = server.install_one().await;
    let order = server.order("debian-13").await;
    let (token, _) = server.boots().await;
    let cancel = format!("/v1/machine/{ONE}/reinstall");
    assert_eq!(server.call(&server.operator(), "DELETE", &cancel, &Value::Null).await.status, 200);
    let given = server.allocated(ONE, &token).await.allocation.unwrap();
    assert!(agent(&given, &system).unwrap().already.is_some());
    let forged = InstallMarker { image: "debian-31".to_owned(), ..marker.clone() };
    for marker in [&forged, &marker] {
        server.acknowledges(&token, "report", &success("a1", "", Some(marker))).await;
        assert_eq!(server.listed().await["image"], "debian-12");
    }
    server.refuses(&token, &success("a1", &order, Some(&marker)), "success-order-not-open").await;
}

/// The operator has adopted one marker, but the machine then reports another one.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn adoption_applies_only_to_the_reported_marker() {
    let server = Running::start_in(with_images()).await;
    let (token, given) = server.boots().await;
    let (_, shown) = attempt(&agent(&given, &blank_machine()).unwrap());
    let failed = json!({ "success": false, "message": "refused", "step": "plan", "untouched": true,
        "allocationuuid": "a1", "marker": shown });
    server.acknowledges(&token, "report", &failed).await;
    assert_eq!(server.machine(&["adopt", "one"]).await.unwrap(), CommandOutcome::Good);
    let (token, given) = server.boots().await;
    assert!(given.succeeded);
    let other = InstallMarker { image: "debian-11".to_owned(), ..shown.clone() };
    server.refuses(&token, &success("a1", "", Some(&other)), "success-not-adopted").await;
    // The operator must adopt the other marker separately.
    let listed = server.listed().await;
    assert_eq!((&listed["adopted"], &listed["waits"]["image"]), (&json!(false), &json!("debian-11")), "{listed}");
    assert_eq!(server.machine(&["adopt", "one"]).await.unwrap(), CommandOutcome::Good);
    server.refuses(&token, &success("a1", "", Some(&shown)), "success-not-adopted").await;
    assert_eq!(server.machine(&["adopt", "one"]).await.unwrap(), CommandOutcome::Good);
    server.acknowledges(&token, "report", &success("a1", "", Some(&shown))).await;
    let listed = server.listed().await;
    assert_eq!((&listed["installed"], &listed["claimed"]), (&json!(true), &json!(true)));

    // The server itself has recorded the start and the end of this reinstall, so it does not depend on the marker
    // alone.
    let order = server.order("debian-13").await;
    let (token, given) = server.boots().await;
    assert!(given.order.as_ref().is_some_and(|order| order.attempt_record.is_none()));
    assert_eq!(server.begin(&token, &order).await, 200);
    server.acknowledges(&token, "report", &success("a1", &order, None)).await;
    let listed = server.listed().await;
    assert_eq!((&listed["installed"], &listed["claimed"]), (&json!(true), &json!(false)));
}

impl Running {
    /// Waits until the machine has this allocation.
    async fn until_assigned(&self, allocation: &str) {
        let began = std::time::Instant::now();
        while self.listed().await["allocation"] != allocation {
            assert!(began.elapsed() < PATIENCE, "{}", self.heard.text());
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }
}
