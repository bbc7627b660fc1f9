//! Reinstalls from the order to the report, and refusals.

use super::*;
use control::agent_api_types::NextBoot;

pub(super) fn with_images() -> TempDir {
    let dir = directory();
    std::fs::write(dir.path().join("images/13.yaml"), "id: debian-13\nfile: deb/debian 12.tar.zst\n").unwrap();
    dir
}

impl Running {
    pub(super) fn operator(&self) -> String {
        std::fs::read_to_string(self.dir.path().join("operator.token")).unwrap().trim().to_owned()
    }

    pub(super) async fn press(&self, id: &str, image: &str, more: Value) -> Answer {
        let mut body = json!({ "id": id, "imageid": image });
        body.as_object_mut().unwrap().extend(more.as_object().cloned().unwrap_or_default());
        self.call(&self.operator(), "POST", &format!("/v1/machine/{id}/reinstall"), &body).await
    }

    /// Orders a reinstall, and returns the id of the order.
    pub(super) async fn order(&self, image: &str) -> String {
        let answer = self.press(ONE, image, json!({})).await;
        assert_eq!(answer.status, 200, "{}", answer.text());
        // The response is a machine in metal-api's format, with the additional fields of the machine list.
        let machine = answer.json();
        assert_eq!((&machine["size"]["id"], &machine["liveliness"]), (&json!("c1"), &json!("Unknown")));
        assert!(machine["installed"].is_boolean() && machine["allocation"]["allocationuuid"].is_string());
        machine["order"]["id"].as_str().unwrap().to_owned()
    }

    pub(super) async fn listed(&self) -> Value {
        let answer = self.call(&self.operator(), "GET", "/v1/machines", &Value::Null).await;
        assert_eq!(answer.status, 200, "{}", answer.text());
        answer.json().as_array().unwrap().iter().find(|machine| machine["id"] == ONE).unwrap().clone()
    }

    pub(super) async fn installed(&self) {
        let token = self.token(ONE).await;
        self.allocated(ONE, &token).await;
        self.report(ONE, &token, "a1", true).await;
    }

    pub(super) async fn begin(&self, token: &str, order: &str) -> u16 {
        let disks = json!([{ "device": "os", "serial": "A0", "size_bytes": 1 }]);
        let body = json!({ "allocationuuid": "a1", "order": order, "disks": disks });
        self.call(token, "POST", &format!("/v1/machine/{ONE}/point-of-no-return"), &body).await.status
    }

    pub(super) async fn report_of(&self, token: &str, body: Value) -> bool {
        let answer = self.call(token, "POST", &format!("/v1/machine/{ONE}/report"), &body).await;
        assert_eq!(answer.status, 200, "{}", answer.text());
        answer.json()["retry"].as_bool().unwrap()
    }

    pub(super) async fn boots_disk(&self) -> bool {
        self.boot(&format!("uuid={ONE}")).await.text().contains("sanboot")
    }

    pub(super) async fn restarted(self) -> Running {
        Running::start_in(self.stop().await).await
    }
}

pub(super) fn success(order: &str) -> Value {
    let marker =
        json!({ "machine": ONE, "allocation": "a1", "order": order, "image": "debian-13", "layout": "default" });
    json!({ "success": true, "message": "m", "allocationuuid": "a1", "order": order, "marker": marker })
}

pub(super) fn failure(order: &str, untouched: bool) -> Value {
    json!({ "success": false, "message": "why", "allocationuuid": "a1", "order": order, "untouched": untouched,
            "step": "image.burn" })
}

/// The server is restarted after each step.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn reinstall_completes_across_server_restarts() {
    let server = Running::start_in(with_images()).await;
    server.installed().await;
    assert!(server.boots_disk().await);
    assert_eq!(server.listed().await["image"], "debian-12");

    let order = server.order("debian-13").await;
    server.heard("\"reinstall\":\"ordered: image debian-13\"").await;
    let server = server.restarted().await;
    let token = server.token(ONE).await;
    server.heard("attempt 1 of 3 to reinstall image debian-13").await;
    let given = server.allocated(ONE, &token).await.allocation.unwrap();
    assert!(given.reinstall && given.succeeded);
    assert_eq!(given.image.id, "debian-13");
    let wanted = allocation::OrderedReinstall {
        id: order.clone(),
        attempt: 1,
        attempts: 3,
        confirmed: true,
        ..Default::default()
    };
    assert_eq!(given.order, Some(wanted));
    assert_eq!(given.parse_layout().unwrap().layout, model::layout::read_yaml(LAYOUT).unwrap().layout);

    let server = server.restarted().await;
    assert_eq!(server.begin(&token, "another").await, 409);
    assert_eq!(server.begin(&token, &order).await, 200);
    assert_eq!(server.begin(&token, &order).await, 200);
    server.heard("started: image debian-13, attempt 1 of 3").await;
    let server = server.restarted().await;
    let started = server.allocated(ONE, &token).await.allocation.unwrap().order.unwrap();
    assert_eq!((started.started, started.disks[0].serial.as_str(), started.disks.len()), (true, "A0", 1));
    let stale = server.call(&token, "POST", &format!("/v1/machine/{ONE}/report"), &success("another")).await;
    assert_eq!((stale.status, &stale.json()["code"]), (409, &json!("success-order-not-open")), "{}", stale.text());
    assert!(!server.report_of(&token, json!({ "success": true, "message": "m", "allocationuuid": "a1" })).await);
    assert_eq!(server.listed().await["order"]["id"], order.as_str(), "neither report was about it");

    assert!(!server.report_of(&token, success(&order)).await);
    server.heard("\"reinstall\":\"done: image debian-13, attempt 1 of 3\"").await;
    let server = server.restarted().await;
    assert!(!server.report_of(&token, success(&order)).await);
    let listed = server.listed().await;
    assert_eq!((&listed["image"], &listed["order"]), (&json!("debian-13"), &Value::Null));
    assert_eq!((&listed["outcome"]["success"], &listed["layout"]), (&json!(true), &json!("default")));
    assert!(server.boots_disk().await);
    let over = server.call(&token, "GET", &format!("/v1/machine/{ONE}"), &Value::Null).await;
    assert_eq!(over.status, 401, "{}", over.text());
    server
        .heard("one.yaml:8:10: the file specifies image debian-12, but image debian-13 is installed; to keep debian-13")
        .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn failures_after_the_point_of_no_return_are_retried() {
    let server = Running::start_in(with_images()).await;
    server.installed().await;
    let order = server.order("debian-13").await;
    let token = server.token(ONE).await;
    server.allocated(ONE, &token).await;
    assert!(!server.report_of(&token, failure(&order, true)).await);
    assert!(!server.report_of(&token, failure(&order, true)).await);
    let listed = server.listed().await;
    assert_eq!((&listed["order"], &listed["image"]), (&Value::Null, &json!("debian-12")));
    assert_eq!(listed["outcome"]["message"], "image.burn: why");
    server.heard("abandoned: the disks are unchanged").await;
    assert!(server.boots_disk().await);

    let order = server.order("debian-13").await;
    for attempt in 1..=3 {
        let token = server.token(ONE).await;
        let given = server.allocated(ONE, &token).await.allocation.unwrap().order.unwrap();
        assert_eq!((given.attempt, given.started), (attempt, attempt > 1));
        assert_eq!(server.begin(&token, &order).await, 200);
        assert_eq!(server.report_of(&token, failure(&order, false)).await, attempt < 3);
    }
    server.heard("abandoned after 3 attempts: the machine is only partially installed").await;
    for _ in 0..2 {
        let script = server.boot(&format!("uuid={ONE}")).await.text();
        assert!(script.contains("/boot/vmlinuz") && script.contains(" drophammer.stop=1 "), "{script}");
    }
    let cancel = server.call(&server.operator(), "DELETE", &format!("/v1/machine/{ONE}/reinstall"), &Value::Null).await;
    assert_eq!(cancel.status, 409);
    assert!(cancel.text().contains("was abandoned after its point of no return: order another"), "{}", cancel.text());
    // Another order replaces the abandoned one. The new order lists the disks of the installation that had started.
    let order = server.order("debian-12").await;
    let token = server.token(ONE).await;
    let started = server.allocated(ONE, &token).await.allocation.unwrap().order.unwrap();
    assert_eq!((started.started, started.disks[0].serial.as_str()), (true, "A0"));
    assert_eq!(server.begin(&token, &order).await, 200);
    server.report_of(&token, success(&order)).await;
    assert!(server.boots_disk().await);
}

/// The server permits the first attempt to erase data, but the attempt loses the connection before it receives this
/// permission, and cannot report. The second attempt finds that no disk was written.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn announced_unstarted_order_is_abandoned_by_the_next_attempt() {
    let server = Running::start_in(with_images()).await;
    server.installed().await;
    let order = server.order("debian-13").await;
    let token = server.token(ONE).await;
    assert_eq!(server.begin(&token, &order).await, 200);
    let token = server.token(ONE).await;
    assert!(server.allocated(ONE, &token).await.allocation.unwrap().order.unwrap().started);
    assert!(!server.report_of(&token, failure(&order, true)).await);
    assert_eq!(server.listed().await["order"], Value::Null);
    server.heard("abandoned: the disks are unchanged").await;
    assert!(server.boots_disk().await);
    server.order("debian-13").await;
    assert!(!server.listed().await["order"]["begun"].as_bool().unwrap());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn order_can_be_canceled_or_replaced_before_its_start() {
    let server = Running::start_in(with_images()).await;
    server.installed().await;
    let path = format!("/v1/machine/{ONE}/reinstall");
    let cancel = async || server.call(&server.operator(), "DELETE", &path, &Value::Null).await.status;
    assert_eq!(cancel().await, 404);
    let first = server.order("debian-13").await;
    let token = server.token(ONE).await;
    assert_eq!(cancel().await, 200);
    assert_eq!(server.begin(&token, &first).await, 409);
    assert!(server.boots_disk().await);
    let first = server.order("debian-13").await;
    let token = server.token(ONE).await;
    let second = server.order("debian-12").await;
    assert_eq!(server.begin(&token, &first).await, 409);
    server.report_of(&token, failure(&first, true)).await;
    assert_eq!(server.listed().await["order"]["id"], second.as_str());
    let token = server.token(ONE).await;
    assert_eq!(server.begin(&token, &second).await, 200);
    assert_eq!(cancel().await, 409);
    let late = server.press(ONE, "debian-13", json!({})).await;
    assert_eq!(late.status, 409);
    assert!(late.text().contains("has passed its point of no return"), "{}", late.text());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn invalid_reinstall_orders_are_refused() {
    let server = Running::start_in(with_images()).await;
    let either = "machine either locked, not allocated yet or invalid image ID specified: ";
    let refused = async |id: &str, image: &str, status: u16, words: &str| {
        let answer = server.press(id, image, json!({})).await;
        assert_eq!(answer.status, status, "{}", answer.text());
        let message = answer.json()["message"].as_str().unwrap().to_owned();
        assert!(message.contains(words), "{message}");
        assert_eq!(message.starts_with(either), status == 400 && !words.contains("reinstallable"), "{message}");
    };
    let token = server.token(ONE).await;
    server.allocated(ONE, &token).await;
    refused(
        ONE,
        "debian-13",
        400,
        "allocation a1 of machine 4c4c4544-0051-3010-8052-b4c04f4d0001 is not installed yet",
    )
    .await;
    refused(TWO, "debian-13", 400, "does not contain an allocation").await;
    refused(STRANGER, "debian-13", 404, "machines/ contains no machine").await;
    server.report(ONE, &token, "a1", true).await;
    refused(ONE, "debian-31", 400, "image \"debian-31\" not found in images/; did you mean \"debian-13\"?").await;
    refused(ONE, "", 400, "image \"\" not found in images/").await;

    let path = format!("/v1/machine/{ONE}/reinstall");
    let body = json!({ "id": TWO, "imageid": "debian-13" });
    assert_eq!(server.call(&server.operator(), "POST", &path, &body).await.status, 400);
    assert_eq!(server.call(&server.operator(), "POST", &path, &json!({ "id": ONE })).await.status, 400);
    let body = json!({ "id": ONE, "imageid": "debian-13" });
    for token in ["", "x", token.as_str()] {
        for (method, path) in [("POST", path.as_str()), ("DELETE", path.as_str()), ("GET", "/v1/machines")] {
            let answer = server.call(token, method, path, &body).await;
            assert_eq!(answer.status, 401, "{method} {path}");
            assert!(answer.text().contains("operator.token"), "{}", answer.text());
        }
    }

    let file = machine_file(ONE, "one", "52:54:00:00:00:01", "a1", "");
    server.write("machines/one.yaml", &format!("locked: the only copy\n{file}"));
    let locked = async || server.listed().await["locked"] == "the only copy";
    while !locked().await {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    refused(ONE, "debian-13", 400, "is locked: the only copy").await;
    assert!(server.boots_disk().await, "none of these reinstalls was ordered");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_layout_without_a_disk_to_wipe_is_not_reinstallable() {
    let dir = with_images();
    std::fs::write(dir.path().join("layouts/default.yaml"), LAYOUT.replace("wipe: true", "wipe: false")).unwrap();
    let server = Running::start_in(dir).await;
    server.installed().await;
    // The layout file has been edited since the installation. The installed layout still applies to the machine.
    server.write("layouts/default.yaml", LAYOUT);
    server.heard("layout default has changed since the machine was installed").await;
    let answer = server.press(ONE, "debian-13", json!({})).await;
    assert_eq!(answer.status, 400);
    assert_eq!(answer.json()["message"], "filesystemlayout:default is not reinstallable, abort reinstallation");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn reinstall_uses_the_installed_layout() {
    let server = Running::start_in(with_images()).await;
    server.installed().await;
    server.write("layouts/default.yaml", &LAYOUT.replace("sda", "sdb"));
    server.heard("layout default has changed since the machine was installed").await;
    server.order("debian-13").await;
    let token = server.token(ONE).await;
    let given = server.allocated(ONE, &token).await.allocation.unwrap();
    assert_eq!(given.parse_layout().unwrap().layout, model::layout::read_yaml(LAYOUT).unwrap().layout);
    std::fs::remove_file(server.dir.path().join("layouts/default.yaml")).unwrap();
    let server = server.restarted().await;
    assert!(server.allocated(ONE, &token).await.allocation.unwrap().reinstall);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn machine_waits_while_its_new_image_is_missing() {
    let server = Running::start_in(with_images()).await;
    server.installed().await;
    server.press(ONE, "debian-13", json!({ "without_marker": true })).await;
    let image = server.dir.path().join("images/13.yaml");
    let text = std::fs::read_to_string(&image).unwrap();
    std::fs::remove_file(&image).unwrap();
    server.heard("a reinstall with image \\\"debian-13\\\" is ordered, but images/ no longer contains it").await;
    let token = server.token(ONE).await;
    let wait = format!("/v1/machine/{ONE}/wait?seconds=0");
    assert_eq!(server.call(&token, "GET", &wait, &Value::Null).await.status, 204);
    let machine = server.call(&token, "GET", &format!("/v1/machine/{ONE}"), &Value::Null).await.json();
    assert!(machine["allocation"].is_null(), "{machine}");
    std::fs::write(&image, text).unwrap();
    let given = server.allocated(ONE, &token).await.allocation.unwrap();
    assert!(given.order.unwrap().without_marker);
}

/// An order wakes a machine that waits in the ramdisk, and so does the cancellation of the order.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn canceled_order_lets_waiting_machine_boot_its_system() {
    let server = Running::start_in(with_images()).await;
    server.installed().await;
    server.order("debian-13").await;
    std::fs::remove_file(server.dir.path().join("images/13.yaml")).unwrap();
    server.heard("but images/ no longer contains it").await;
    let token = server.token(ONE).await;
    let (allocated, _) = tokio::join!(server.allocated(ONE, &token), async {
        tokio::time::sleep(Duration::from_millis(100)).await;
        server.call(&server.operator(), "DELETE", &format!("/v1/machine/{ONE}/reinstall"), &Value::Null).await
    });
    let given = allocated.allocation.unwrap();
    assert!(!given.reinstall && given.order.is_none());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn boot_json_starts_a_reinstall_without_firmware() {
    let server = Running::start_in(with_images()).await;
    server.write("boot/drophammer", "the agent");
    let json = async |query: &str| server.ask("GET", &format!("/boot.json?{query}"), &[], "").await;
    let by_uuid = format!("uuid={ONE}");
    let refused = json(&by_uuid).await;
    assert_eq!(refused.status, 409);
    assert!(refused.text().contains("has no record that the allocation is installed"), "{}", refused.text());
    server.installed().await;
    let refused = json(&by_uuid).await;
    assert_eq!(refused.status, 409);
    assert!(refused.text().contains("no reinstall of machine"), "{}", refused.text());
    assert_eq!(json("uuid=").await.status, 400);
    assert_eq!(server.ask("HEAD", &format!("/boot.json?{by_uuid}"), &[], "").await.status, 405);

    server.order("debian-13").await;
    let next: NextBoot = serde_json::from_value(json("uuid=&mac=52:54:00:00:00:01").await.json()).unwrap();
    let base = format!("http://{}", server.address);
    assert_eq!((next.kernel, next.initrd), (format!("{base}/boot/vmlinuz"), format!("{base}/boot/initrd")));
    let token = next.cmdline.split("drophammer.token=").nth(1).unwrap().split(' ').next().unwrap().to_owned();
    assert_eq!(
        next.cmdline,
        format!(
            "drophammer.url={base} drophammer.token={token} drophammer.machine={ONE} console=tty0 \
             console=ttyS0,115200n8 panic=-1 quiet"
        )
    );
    assert_eq!(server.register(ONE, &token).await.status, 200);
    assert_eq!(server.allocated(ONE, &token).await.allocation.unwrap().order.unwrap().attempt, 1);
    server.heard("attempt 1 of 3 to reinstall image debian-13 by kexec, without the firmware").await;
    // Boots from the firmware and boots from the running system count as attempts at the same order.
    server.token(ONE).await;
    server.token(ONE).await;
    assert_eq!(json(&by_uuid).await.status, 409);
    server.heard("suspended after 3 attempts").await;
    assert_eq!(server.ask("GET", "/boot/drophammer", &[], "").await.text(), "the agent");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn machine_file_cannot_order_a_reinstall() {
    let server = Running::start_in(with_images()).await;
    server.installed().await;
    server.write("machines/one.yaml", &machine_file(ONE, "one", "52:54:00:00:00:01", "a1", "  reinstall: true\n"));
    server
        .heard("one.yaml:11:14: reinstalls can no longer be ordered in a file: remove this line, and use `drophammer machine")
        .await;
    server.heard("(its last good version stays in force)").await;
    assert!(server.boots_disk().await);
}
