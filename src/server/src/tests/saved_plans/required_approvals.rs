//! Reinstalls that were ordered with an approved plan, and whose approval is removed before the machine erases its
//! disks.

use super::super::several_servers;
use super::*;

impl Running {
    /// Orders a reinstall with an approved plan. Returns the id of the order and the digest of the plan.
    async fn order_with_plan(&self) -> (String, String) {
        let file = self.installed_with_inventory().await;
        self.plan(&["--machine", "one", "--image", "debian-13", "--out", &file]).await.unwrap();
        assert_eq!(self.reinstall(&file).await, CommandOutcome::Good);
        let order = self.listed().await["order"]["id"].as_str().unwrap().to_owned();
        (order, saved(&file)["approval"]["sha256"].as_str().unwrap().to_owned())
    }

    /// Checks that the machine receives no allocation, and no permission to erase its disks.
    async fn is_withheld(&self, id: &str, token: &str, order: &str, approved: Option<&str>) {
        let began = std::time::Instant::now();
        loop {
            let answer = self.call(token, "GET", &format!("/v1/machine/{id}"), &Value::Null).await;
            if answer.json()["allocation"].is_null() {
                break;
            }
            assert!(began.elapsed() < PATIENCE, "{}", answer.text());
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        for approved in [None, approved] {
            let mut body = json!({ "allocationuuid": "a1", "order": order, "disks": [] });
            body["approved"] = json!(approved);
            let answer = self.call(token, "POST", &format!("/v1/machine/{id}/point-of-no-return"), &body).await;
            assert_eq!(answer.status, 409, "{}", answer.text());
        }
        assert_eq!(self.listed_order(id).await["begun"], false);
    }

    async fn listed_order(&self, id: &str) -> Value {
        let answer = self.call(&self.operator(), "GET", "/v1/machines", &Value::Null).await;
        answer.json().as_array().unwrap().iter().find(|machine| machine["id"] == id).unwrap()["order"].clone()
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_order_with_a_plan_is_withheld_without_its_approval() {
    let server = Running::start_in(with_images()).await;
    let (order, sha256) = server.order_with_plan().await;
    let token = server.token(ONE).await;
    assert!(server.allocated(ONE, &token).await.allocation.unwrap().approved.is_some());
    let path = server.dir.path().join(format!("approved/{ONE}.yaml"));
    let approval = std::fs::read_to_string(&path).unwrap();
    std::fs::remove_file(&path).unwrap();
    server.heard("but no approval is in force: restore the file").await;
    server.is_withheld(ONE, &token, &order, Some(&sha256)).await;

    // After the approval is restored, the order is carried out.
    server.write(&format!("approved/{ONE}.yaml"), &approval);
    let began = std::time::Instant::now();
    while server.allocated(ONE, &token).await.allocation.is_none() {
        assert!(began.elapsed() < PATIENCE, "{}", server.heard.text());
    }
    std::fs::remove_file(&path).unwrap();
    server.is_withheld(ONE, &token, &order, None).await;
    assert_eq!(server.machine(&["reinstall", "one", "--cancel"]).await.unwrap(), CommandOutcome::Good);
    assert!(!server.is_ordered().await);
    // An order without a plan requires no approval.
    server.order("debian-13").await;
    let token = server.token(ONE).await;
    assert!(server.allocated(ONE, &token).await.allocation.unwrap().approved.is_none());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_order_requires_the_approval_that_was_in_force() {
    let server = Running::start_in(with_images()).await;
    let (_, sha256) = server.order_with_plan().await;
    // The new order replaces the previous one, and its plan is not sent again.
    let order = server.order("debian-13").await;
    let token = server.token(ONE).await;
    assert_eq!(server.allocated(ONE, &token).await.allocation.unwrap().approved.unwrap().sha256, sha256);
    std::fs::remove_file(server.dir.path().join(format!("approved/{ONE}.yaml"))).unwrap();
    server.is_withheld(ONE, &token, &order, Some(&sha256)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_order_is_placed_with_an_unusable_approval() {
    let server = Running::start_in(with_images()).await;
    server.order_with_plan().await;
    assert_eq!(server.machine(&["reinstall", "one", "--cancel"]).await.unwrap(), CommandOutcome::Good);
    let path = server.dir.path().join(format!("approved/{ONE}.yaml"));
    let approval = std::fs::read_to_string(&path).unwrap();
    server.write(&format!("approved/{ONE}.yaml"), &format!("unusable: 1\n{approval}"));
    server.heard("this is not an approval").await;
    let answer = server.press(ONE, "debian-13", json!({})).await;
    let words = "the machine's approval cannot be used";
    assert!(answer.status == 409 && answer.text().contains(words), "{}", answer.text());
    assert!(!server.is_ordered().await);
    // Without the file, the operator orders a reinstall without an approved plan.
    std::fs::remove_file(&path).unwrap();
    server.heard("all files are valid again").await;
    server.order("debian-13").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_order_with_a_plan_is_withheld_after_a_rename() {
    let server = Running::start_in(with_images()).await;
    let (order, sha256) = server.order_with_plan().await;
    // The machine with the new mainboard is still unknown, and waits in the ramdisk.
    let token = server.registered(STRANGER).await;
    server.write("machines/one.yaml", &machine_file(STRANGER, "one", "52:54:00:00:00:01", "a1", ""));
    server.heard(&format!("`drophammer machine rename {ONE} {STRANGER}`")).await;
    let path = format!("/v1/machine/{ONE}/rename");
    let renamed = server.call(&server.operator(), "POST", &path, &json!({ "id": STRANGER })).await;
    assert_eq!(renamed.status, 200, "{}", renamed.text());
    server.heard("the plan of the reinstall was approved for the machine\'s previous id").await;
    server.is_withheld(STRANGER, &token, &order, Some(&sha256)).await;
    let answer = server.call(&token, "GET", &format!("/v1/machine/{STRANGER}/wait?seconds=1"), &Value::Null).await;
    assert_eq!(answer.status, 204, "{}", answer.text());

    // The plan can be approved for the new id.
    let dir = server.dir.path().to_owned();
    let (printed, _) = super::super::plan_approval::rack(&dir, |options| options.approve = true).await.unwrap();
    assert_eq!(super::super::plan_approval::row(&printed, STRANGER)["approved"], true, "{printed}");
    let began = std::time::Instant::now();
    let allocation = loop {
        if let Some(allocation) = server.allocated(STRANGER, &token).await.allocation {
            break allocation;
        }
        assert!(began.elapsed() < PATIENCE, "{}", server.heard.text());
    };
    assert_eq!(allocation.order.unwrap().id, order);
    std::fs::remove_file(dir.join(format!("approved/{STRANGER}.yaml"))).unwrap();
    server.is_withheld(STRANGER, &token, &order, None).await;
    assert_eq!(server.machine(&["reinstall", STRANGER, "--cancel"]).await.unwrap(), CommandOutcome::Good);
    assert!(server.listed_order(STRANGER).await.is_null());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn prune_does_not_remove_a_required_approval() {
    let Some(url) = several_servers::new_database() else { return };
    let server = several_servers::start(with_images(), &url).await;
    let apply = async |documents: &[Value]| {
        let body = json!({ "documents": documents, "prune": true });
        server.call(&server.operator(), "POST", "/v1/documents/apply", &body).await
    };
    let export = async || server.call(&server.operator(), "POST", "/v1/documents/export", &Value::Null).await.json();
    let documents = export().await["documents"].as_array().unwrap().clone();
    assert_eq!(apply(&documents).await.status, 200);
    let (order, sha256) = server.order_with_plan().await;
    let answer = apply(&documents).await;
    let words = "has an order that requires the approved plan";
    assert!(answer.status == 409 && answer.text().contains(words), "{}", answer.text());
    let token = server.token(ONE).await;
    assert_eq!(server.allocated(ONE, &token).await.allocation.unwrap().approved.unwrap().sha256, sha256);
    assert_eq!(server.listed().await["order"]["id"], json!(order));
    assert_eq!(server.machine(&["reinstall", "one", "--cancel"]).await.unwrap(), CommandOutcome::Good);
    let answer = apply(&documents).await;
    assert_eq!(answer.status, 200, "{}", answer.text());
    server.stop().await;
}
