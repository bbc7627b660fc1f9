//! Reinstall orders for a machine whose plan is refused.

use super::plan_preview::inventory;
use super::reinstall::with_images;
use super::*;
use common::command_outcome::CommandOutcome;
use control::agent_api_types::RegisterRequest;

impl Running {
    /// Installs machine `one`. The registered hardware of this machine lacks a disk that the layout requires.
    async fn installed_without_disk(&self) {
        let token = token_of(&self.boot(&format!("uuid={ONE}")).await.text());
        let register = serde_json::to_string(&RegisterRequest::new(ONE.to_owned(), inventory())).unwrap();
        let register = serde_json::from_str(&register.replace("sda", "sdy")).unwrap();
        let answer = self.call(&token, "POST", "/v1/machine/register", &register).await;
        assert_eq!(answer.status, 200, "{}", answer.text());
        self.allocated(ONE, &token).await;
        self.report(ONE, &token, "a1", true).await;
    }

    async fn order_with_query(&self, query: &str) -> Answer {
        let path = format!("/v1/machine/{ONE}/reinstall{query}");
        self.call(&self.operator(), "POST", &path, &json!({ "id": ONE, "imageid": "debian-13" })).await
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn reinstall_with_refused_plan_is_not_ordered() {
    let server = Running::start_in(with_images()).await;
    server.installed_without_disk().await;
    let outcome = server.machine(&["reinstall", "one", "--image", "debian-13"]).await.unwrap();
    assert_eq!(outcome, CommandOutcome::Refused);
    assert!(server.listed().await["order"].is_null());
    let answer = server.order_with_query("?check_plan=true").await;
    let message = answer.json()["message"].as_str().unwrap().to_owned();
    assert_eq!(answer.status, 409, "{message}");
    assert!(message.starts_with("the plan is refused: ") && message.contains("/dev/sda"), "{message}");
    assert!(server.listed().await["order"].is_null());

    let outcome = server.machine(&["reinstall", "one", "--image", "debian-13", "--ignore-plan"]).await.unwrap();
    assert_eq!(outcome, CommandOutcome::Good);
    assert_eq!(server.listed().await["order"]["image"], "debian-13");
}

/// Clients of metal-api omit the query parameter. The order is accepted, and the machine itself refuses the plan, as in
/// metal-stack.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn clients_of_metal_api_order_without_a_plan() {
    let server = Running::start_in(with_images()).await;
    server.installed_without_disk().await;
    let answer = server.order_with_query("").await;
    assert_eq!(answer.status, 200, "{}", answer.text());
    assert_eq!(server.listed().await["order"]["image"], "debian-13");
    assert_eq!(server.order_with_query("?check_plan=perhaps").await.status, 400);
    assert_eq!(server.order_with_query("?plan=true").await.status, 400);
}

/// The registered inventory is from before the installation. It does not show which volumes are on the disks.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn unknown_kubernetes_volumes_do_not_refuse_an_order() {
    let server = Running::start_in(with_images()).await;
    let class = json!({"kind": "StorageClass", "metadata": {"name": "fast"}, "parameters": {"fsType": "ext4"}});
    let volume = json!({"kind": "Volume", "metadata": {"name": "db-1", "uid": "9474cda7-0dbe-40fc-9842-3cb0404a7201"},
        "spec": {"nodeName": "h", "storageClassName": "fast", "rawBlockDevice": {"devicePath": "/dev/sdc"}}});
    let answer = server.v1("POST", &format!("/v1/machine/{ONE}/volumes"), &json!([volume, class])).await;
    assert_eq!(answer.status, 200, "{}", answer.text());
    let token = server.registered(ONE).await;
    server.allocated(ONE, &token).await;
    assert_eq!(server.begins_first(ONE, &token, "a1").await, 200);
    server.report(ONE, &token, "a1", true).await;
    let answer = server.order_with_query("?check_plan=true").await;
    assert_eq!(answer.status, 200, "{}", answer.text());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_accepted_plan_is_ordered() {
    let server = Running::start_in(with_images()).await;
    let token = server.registered(ONE).await;
    server.allocated(ONE, &token).await;
    server.report(ONE, &token, "a1", true).await;
    assert_eq!(server.order_with_query("?check_plan=true").await.status, 200);
}
