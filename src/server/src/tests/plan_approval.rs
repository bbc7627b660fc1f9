//! Approval of plans with `drophammer site plan`, and machines that carry out only approved plans.

use super::plan_preview::inventory;
use super::reinstall::{success, with_images};
use super::*;
use common::command_outcome::CommandOutcome;
use drophammer::local_commands::site_plan::{PlanOptions, rack_output};
use operations::{AnnouncePointOfNoReturn, Operation, SessionOp};
use plan::{Plan, PlanRefusal, request_from_allocation};
use uuid::Uuid;

/// Runs `drophammer site plan`, which does not require a running server.
pub(super) async fn rack(dir: &Path, change: impl FnOnce(&mut PlanOptions)) -> Result<(Value, CommandOutcome)> {
    let mut options = PlanOptions { dir: dir.to_owned(), json: true, ..PlanOptions::default() };
    change(&mut options);
    let (text, exit) = tokio::task::spawn_blocking(move || rack_output(&options)).await.unwrap()?;
    Ok((serde_json::from_str(&text).unwrap(), exit))
}

/// Returns the row of the machine in the output of `site plan`.
pub(super) fn row<'a>(printed: &'a Value, id: &str) -> &'a Value {
    printed["machines"].as_array().unwrap().iter().find(|row| row["id"] == id).unwrap()
}

/// Returns the plan that an agent makes from its allocation and this inventory.
fn agent(
    machine: &allocation::AssignedMachine,
    inventory: &model::inventory::Inventory,
) -> std::result::Result<Plan, Box<PlanRefusal>> {
    let mut allocation = machine.allocation.clone().unwrap();
    let layout = allocation.parse_layout().unwrap().layout;
    request_from_allocation::clear_begun_if_intact(ONE, &mut allocation, &layout, inventory);
    let mut request = request_from_allocation::build_request(machine, ONE, &allocation, &[]);
    if let Some(claim) = &mut request.claim {
        // The inventories of these tests lack the contents of filesystems, so the check of the marker is waived.
        claim.waiver = claim.waiver.or(allocation.reinstall.then_some(plan::MarkerWaiver::OfflinePlan));
    }
    plan::make_plan(&layout, inventory, request, &mut Uuid::new_v4)
}

pub(super) fn compared(plan: &Plan) -> Option<String> {
    let operations = plan.stages.iter().flat_map(|stage| &stage.operations);
    operations
        .into_iter()
        .find_map(|operation| match operation {
            Operation::Run(SessionOp::AnnouncePointOfNoReturn(AnnouncePointOfNoReturn { approved, .. })) => {
                Some(approved.clone())
            }
            _ => None,
        })
        .unwrap()
}

impl Running {
    /// Requests the point of no return, like an agent that has compared its plan with this approval.
    pub(super) async fn begins(&self, token: &str, order: &str, approved: Option<&str>) -> Answer {
        let disks = json!([{ "device": "os", "serial": "A0", "size_bytes": 1 }]);
        let mut body = json!({ "allocationuuid": "a1", "order": order, "disks": disks });
        if let Some(approved) = approved {
            body["approved"] = approved.into();
        }
        self.call(token, "POST", &format!("/v1/machine/{ONE}/point-of-no-return"), &body).await
    }

    /// Waits until the machine's allocation contains this approval, or no approval if `approved` is `None`.
    async fn given(&self, token: &str, approved: Option<&str>) -> allocation::AssignedMachine {
        let began = std::time::Instant::now();
        loop {
            let machine = self.allocated(ONE, token).await;
            let allocation = machine.allocation.clone().unwrap_or_default();
            if allocation.approved.as_ref().map(|approved| approved.sha256.as_str()) == approved {
                return machine;
            }
            assert!(began.elapsed() < PATIENCE, "never: {approved:?}\n{}", self.heard.text());
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }

    async fn waits(&self, token: &str) -> bool {
        let answer = self.call(token, "GET", &format!("/v1/machine/{ONE}/wait?seconds=1"), &Value::Null).await;
        answer.status == 204
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn machine_executes_only_the_approved_plan() {
    let server = Running::start_in(with_images()).await;
    let dir = server.dir.path().to_owned();
    let (printed, exit) = rack(&dir, |_| {}).await.unwrap();
    assert_eq!(exit, CommandOutcome::Refused);
    assert_eq!(row(&printed, ONE)["outcome"], "unknown", "it has never registered");
    assert_eq!(row(&printed, TWO)["outcome"], "nothing", "it does not have an allocation");

    let token = server.registered(ONE).await;
    server.given(&token, None).await;
    let only_one = |options: &mut PlanOptions| options.machine = vec!["one".to_owned()];
    let (printed, exit) = rack(&dir, only_one).await.unwrap();
    let one = row(&printed, ONE);
    assert_eq!(
        (exit, &one["outcome"], &one["mode"]),
        (CommandOutcome::Erases, &json!("erases"), &json!("install")),
        "{one}"
    );
    assert!(!one["approved"].as_bool().unwrap() && !dir.join("approved").exists());
    let (printed, _) =
        rack(&dir, |options| (options.approve, options.machine) = (true, vec![ONE.to_owned()])).await.unwrap();
    let sha256 = row(&printed, ONE)["sha256"].as_str().unwrap().to_owned();
    assert_eq!(row(&printed, ONE)["approved"], true);
    assert!(std::fs::read_to_string(dir.join(format!("approved/{ONE}.yaml"))).unwrap().contains(&sha256));

    // The agent confirms that its plan equals the approved plan, or reports the differences.
    let machine = server.given(&token, Some(&sha256)).await;
    let plan = agent(&machine, &inventory()).unwrap();
    assert_eq!(compared(&plan).as_deref(), Some(sha256.as_str()));
    let mut swapped = inventory();
    let disk = swapped.disks.iter_mut().find(|disk| disk.device.as_str() == "/dev/sda").unwrap();
    let was = std::mem::replace(&mut disk.serial, "SWAPPED".to_owned());
    let refusal = agent(&machine, &swapped).unwrap_err().to_string();
    assert!(refusal.contains("disk serial SWAPPED: approved not written, found wiped"), "{refusal}");
    assert!(refusal.contains(&format!("disk serial {was}: approved wiped, found not written")), "{refusal}");

    // An agent that has not compared its plan, or has compared it with another approval, must not erase any disk.
    for (approved, words) in [(None, "is too old to compare plans"), (Some("sha256:0"), "is now in effect")] {
        let answer = server.begins(&token, "", approved).await;
        assert!(answer.status == 409 && answer.text().contains(words), "{}", answer.text());
    }
    let answer = server.begins(&token, "", Some(&sha256)).await;
    assert_eq!(answer.status, 200, "{}", answer.text());
    server.report(ONE, &token, "a1", true).await;

    // Each approval applies once. The next order needs a new approval; `site plan` already predicts the plan of that
    // order.
    let order = server.order("debian-13").await;
    let token = server.registered(ONE).await;
    server.given(&token, None).await;
    let (printed, exit) = rack(&dir, |options| options.approve = true).await.unwrap();
    let one = row(&printed, ONE);
    assert_eq!(
        (exit, &one["mode"], &one["image"]),
        (CommandOutcome::Erases, &json!("reinstall"), &json!("debian-13")),
        "{one}"
    );
    let second = one["sha256"].as_str().unwrap().to_owned();
    assert_ne!(second, sha256);
    let machine = server.given(&token, Some(&second)).await;
    assert_eq!(compared(&agent(&machine, &inventory()).unwrap()).as_deref(), Some(second.as_str()));
    // An approval of one order does not apply to another order.
    let another = server.order("debian-12").await;
    let machine = server.given(&token, Some(&second)).await;
    let refusal = agent(&machine, &inventory()).unwrap_err().to_string();
    assert!(refusal.contains("image: approved debian-13, found debian-12"), "{refusal}");
    assert_eq!(server.begins(&token, &order, Some(&second)).await.status, 409);
    let answer = server.begins(&token, &another, Some(&second)).await;
    assert_eq!(answer.status, 200, "{}", answer.text());
    server.report_of(&token, success(&another)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn site_plan_forecasts_another_image_before_the_order() {
    let server = Running::start_in(with_images()).await;
    let token = server.registered(ONE).await;
    server.allocated(ONE, &token).await;
    assert_eq!(server.begin(&token, "").await, 200);
    let report = json!({ "success": true, "message": "m", "allocationuuid": "a1",
        "timings": [{"step": "image.burn", "seconds": 200.0}, {"step": "storage.wipe", "seconds": 45.5}] });
    server.report_of(&token, report).await;
    let dir = server.dir.path().to_owned();
    let (printed, exit) = rack(&dir, |_| {}).await.unwrap();
    let one = row(&printed, ONE);
    assert_eq!((exit, &one["outcome"]), (CommandOutcome::Good, &json!("nothing")), "{one}");
    assert_eq!(one["reasons"][0], "installed with debian-12; no reinstall is ordered");

    let to_13 = |options: &mut PlanOptions| options.image = Some("debian-13".to_owned());
    let (printed, exit) = rack(&dir, to_13).await.unwrap();
    let one = row(&printed, ONE);
    assert_eq!(
        (exit, &one["outcome"], &one["foreseen"]),
        (CommandOutcome::Erases, &json!("erases"), &json!(true)),
        "{one}"
    );
    assert_eq!((&one["minutes"], &one["image"], &one["mode"]), (&json!(5), &json!("debian-13"), &json!("reinstall")));
    assert_eq!((&one["disks"][0]["device"], &one["disks"][0]["verdict"]), (&json!("/dev/sda"), &json!("wipe")));
    assert_eq!(one["lost_bytes"], one["disks"][0]["size_bytes"]);
    assert_eq!(printed["summary"]["disks"], 1);
    // `site plan` with an image does not predict an installation of a machine without an allocation.
    assert_eq!(row(&printed, TWO)["outcome"], "nothing");

    // A plan that was approved before the reinstall was ordered equals the agent's plan after the order.
    let (printed, _) = rack(&dir, |options| {
        *options = PlanOptions { image: Some("debian-13".to_owned()), approve: true, ..options.clone() }
    })
    .await
    .unwrap();
    let sha256 = row(&printed, ONE)["sha256"].as_str().unwrap().to_owned();
    server.order("debian-13").await;
    let token = server.registered(ONE).await;
    let machine = server.given(&token, Some(&sha256)).await;
    assert_eq!(compared(&agent(&machine, &inventory()).unwrap()), Some(sha256));

    for (change, words) in [
        (
            PlanOptions { image: Some("debian-1".to_owned()), ..PlanOptions::default() },
            "image \"debian-1\" not found in images/",
        ),
        (PlanOptions { layout: Some("x".to_owned()), ..PlanOptions::default() }, "layout \"x\" not found in layouts/"),
        (
            PlanOptions { machine: vec!["x".to_owned()], ..PlanOptions::default() },
            "machines/ contains no machine \"x\"",
        ),
    ] {
        let error =
            rack(&dir, |options| *options = PlanOptions { dir: dir.clone(), json: true, ..change }).await.unwrap_err();
        assert!(error.is_refusal() && error.to_string().contains(words), "{error}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn site_plan_previews_a_new_directory_read_only() {
    let server = Running::start_in(with_images()).await;
    server.registered(ONE).await;
    let dir = server.stop().await;
    let database = std::fs::read(dir.path().join(store::DATABASE)).unwrap();
    let new = with_images();
    let layout = LAYOUT.replace("/dev/sda", "/dev/nvme7n1").replace("/dev/nvme7n11", "/dev/nvme7n1p1");
    std::fs::write(new.path().join("layouts/default.yaml"), layout).unwrap();
    let with = |options: &mut PlanOptions| options.new = Some(new.path().to_owned());
    let (printed, exit) = rack(dir.path(), with).await.unwrap();
    let one = row(&printed, ONE);
    assert_eq!((exit, &one["outcome"]), (CommandOutcome::Refused, &json!("refused")), "{one}");
    assert!(one["reasons"][0].as_str().unwrap().contains("device /dev/nvme7n1 does not exist"), "{one}");
    // An invalid machine file hides the machine that it describes, so the plan of the whole rack is refused.
    std::fs::write(new.path().join("layouts/default.yaml"), LAYOUT).unwrap();
    std::fs::write(new.path().join("machines/two.yaml"), "id: [\n").unwrap();
    let (printed, exit) = rack(dir.path(), with).await.unwrap();
    assert_eq!((exit, &row(&printed, ONE)["outcome"]), (CommandOutcome::Refused, &json!("erases")), "{printed}");
    assert!(printed["problems"][0].as_str().unwrap().contains("two.yaml"), "{printed}");
    assert_eq!(std::fs::read(dir.path().join(store::DATABASE)).unwrap(), database, "it is only read");

    let error = rack(new.path(), |_| {}).await.unwrap_err();
    assert!(error.is_refusal() && error.to_string().contains("no server has run in that directory"), "{error}");
    assert!(!new.path().join(store::DATABASE).exists());
    let error = rack(dir.path(), |options| options.new = Some("/nowhere".into())).await.unwrap_err();
    assert!(error.to_string().contains("/nowhere is not a directory"), "{error}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn unusable_approval_withholds_and_deleted_one_is_withdrawn() {
    let server = Running::start_in(with_images()).await;
    let token = server.registered(ONE).await;
    server.given(&token, None).await;
    let dir = server.dir.path().to_owned();
    let (printed, _) = rack(&dir, |options| options.approve = true).await.unwrap();
    let sha256 = row(&printed, ONE)["sha256"].as_str().unwrap().to_owned();
    server.given(&token, Some(&sha256)).await;
    let path = dir.join(format!("approved/{ONE}.yaml"));
    let good = std::fs::read_to_string(&path).unwrap();
    let others = good.replace(ONE, TWO);
    for (text, words) in [
        ("{".to_owned(), "the machine's approval cannot be used"),
        (good.replace("\"wipe\"", "\"keep\""), "the approval is corrupt"),
        (good.replace("\"version\": 2", "\"version\": 1"), "the approval has version 1, but this drophammer requires"),
        (others, "the approval is corrupt"),
    ] {
        server.write(&format!("approved/{ONE}.yaml"), &text);
        server.heard(words).await;
        let began = std::time::Instant::now();
        while !server.waits(&token).await {
            assert!(began.elapsed() < PATIENCE);
        }
        let answer = server.begins(&token, "", Some(&sha256)).await;
        assert_eq!(answer.status, 409, "{}", answer.text());
        server.write(&format!("approved/{ONE}.yaml"), &good);
        server.given(&token, Some(&sha256)).await;
    }
    std::fs::remove_file(&path).unwrap();
    server.given(&token, None).await;
    assert_eq!(server.begins(&token, "", None).await.status, 200);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn approved_only_option_withholds_unapproved_installations() {
    let dir = with_images();
    let options = ServerConfig { approved_only: true, ..options(dir.path()) };
    let server = Running::start_with(dir, &options, &silent(), 10_000).await;
    let token = server.registered(ONE).await;
    server.heard("the machine's plan is not approved").await;
    assert!(server.waits(&token).await);
    assert_eq!(server.begins(&token, "", None).await.status, 409);
    let dir = server.dir.path().to_owned();
    let (printed, _) = rack(&dir, |options| options.approve = true).await.unwrap();
    let sha256 = row(&printed, ONE)["sha256"].as_str().unwrap().to_owned();
    server.given(&token, Some(&sha256)).await;
    assert_eq!(server.begins(&token, "", Some(&sha256)).await.status, 200);
    server.report(ONE, &token, "a1", true).await;
    // Approvals do not affect installed machines.
    assert!(server.boots_disk().await);
}
