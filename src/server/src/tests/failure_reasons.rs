//! Failures after the final report: the reason remains visible, even if events that were sent before the report
//! arrive after it.

use super::reinstall::{failure, with_images};
use super::*;

impl Running {
    async fn event(&self, token: &str, event: Value) {
        let answer = self.call(token, "POST", &format!("/v1/machine/{ONE}/event"), &event).await;
        assert_eq!(answer.status, 200, "{}", answer.text());
    }
}

fn installing() -> Value {
    json!({ "event": "Installing", "message": "begins", "step": "storage.format" })
}

/// Report of a failed first installation, as the agent sends it: the message begins with the name of the stage.
fn first_failure() -> Value {
    json!({ "success": false, "message": "storage.format: mkfs.ext4: no space left", "allocationuuid": "a1", "order": "",
        "step": "storage.format" })
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn failure_reason_remains_visible_until_the_next_success() {
    let server = Running::start_in(with_images()).await;
    let browser = server.browser().await;
    let token = server.token(ONE).await;
    server.allocated(ONE, &token).await;
    assert_eq!(server.begins_first(ONE, &token, "a1").await, 200);
    server.event(&token, installing()).await;
    assert!(server.listed().await.get("failure").is_none());
    server.report_of(&token, first_failure()).await;
    // This event was sent before the report, but arrives after it.
    server.event(&token, installing()).await;
    let check = async |server: &Running| {
        let listed = server.listed().await;
        assert_eq!((&listed["phase"], &listed["ended"]), (&json!("failed"), &json!(true)), "{listed}");
        let failure = &listed["failure"];
        assert_eq!(
            (&failure["stage"], &failure["message"]),
            (&json!("storage.format"), &json!("mkfs.ext4: no space left"))
        );
        assert!(failure["remedy"].as_str().unwrap().contains("boot the machine over PXE"), "{failure}");
    };
    check(&server).await;
    for path in [format!("/machines/{ONE}"), format!("/machines/{ONE}/row"), "/".to_owned()] {
        let page = browser.text(&path).await;
        assert!(page.contains("mkfs.ext4: no space left") && page.contains("failed"), "{path}: {page}");
        assert!(!page.contains("storage.format: storage.format"), "{path}: {page}");
    }
    let page = browser.text(&format!("/machines/{ONE}")).await;
    let (reason, hardware) = (page.find("Failed at storage.format").unwrap(), page.find("<h2>Hardware").unwrap());
    assert!(reason < hardware, "the reason comes first: {page}");
    let server = server.restarted().await;
    check(&server).await;

    // The metrics count the machine as the list does, although the event after the failure was lost.
    assert!(server.has_metric("drophammer_machines{phase=\"failed\"} 1").await);
    assert!(server.has_metric("drophammer_machines{phase=\"installing\"} 0").await);

    // The next boot starts a new attempt. The reason for the failure remains recorded until an attempt succeeds.
    let token = server.token(ONE).await;
    server.event(&token, installing()).await;
    let listed = server.listed().await;
    assert_eq!((&listed["phase"], &listed["failure"]["stage"]), (&json!("installing"), &json!("storage.format")));
    server.allocated(ONE, &token).await;
    server.report(ONE, &token, "a1", true).await;
    let listed = server.listed().await;
    assert_eq!((&listed["phase"], listed.get("failure")), (&json!("installed"), None));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn reinstall_failure_contains_its_stage_once() {
    let server = Running::start_in(with_images()).await;
    server.installed().await;
    let order = server.order("debian-13").await;
    let token = server.token(ONE).await;
    server.allocated(ONE, &token).await;
    let mut report = failure(&order, true);
    report["message"] = json!("image.burn: connection lost");
    server.report_of(&token, report).await;
    let listed = server.listed().await;
    assert_eq!(listed["outcome"]["message"], "image.burn: connection lost");
    assert_eq!((&listed["phase"], &listed["failure"]["untouched"]), (&json!("installed"), &json!(true)));
    assert!(listed["failure"]["remedy"].as_str().unwrap().contains("boots its old system"), "{listed}");
    server.heard("\"step\":\"image.burn\"").await;
}

/// The event after the success is lost, and then a reinstall is ordered. The registered inventory is older than the
/// installation, so it yields no plan.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn outdated_inventory_yields_no_plan_after_lost_event() {
    let server = Running::start_in(with_images()).await;
    let browser = server.browser().await;
    let token = server.registered(ONE).await;
    server.allocated(ONE, &token).await;
    assert_eq!(server.begin(&token, "").await, 200);
    server.event(&token, installing()).await;
    server.report(ONE, &token, "a1", true).await;
    assert_eq!(server.press(ONE, "debian-13", json!({})).await.status, 200);
    assert_eq!(server.listed().await["phase"], "reinstall ordered");
    let page = browser.text(&format!("/machines/{ONE}")).await;
    assert!(page.contains("the disks of the machine have changed since it registered"), "{page}");
    assert!(!page.contains("── point of no return"), "a plan from the inventory before the installation: {page}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn progress_and_log_update_the_last_seen_time() {
    let server = Running::start().await;
    let token = server.token(ONE).await;
    let seen = async || server.listed().await["last_seen"].as_str().unwrap().to_owned();
    let progress = json!({ "bytes": 1, "bytes_per_second": 1 });
    let event = json!({ "event": "Installing", "message": "", "step": "image.burn", "progress": progress });
    let calls = [("event", event), ("log", json!({ "start": 0, "log": "a\n" }))];
    let mut before = seen().await;
    for (path, body) in calls {
        tokio::time::sleep(Duration::from_millis(5)).await;
        let answer = server.call(&token, "POST", &format!("/v1/machine/{ONE}/{path}"), &body).await;
        assert_eq!(answer.status, 200, "{}", answer.text());
        let now = seen().await;
        assert!(now > before, "{path}: {before} {now}");
        before = now;
    }
}
