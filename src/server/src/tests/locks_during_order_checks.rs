//! Locks that take effect while an order or another edit of the machine is checked.

use super::reinstall::with_images;
use super::several_servers::GatedController;
use super::*;

const LOCKED: &str = "locked: holds the only copy\n";

/// The server has not read the edited file yet.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn machine_that_was_just_locked_is_neither_allocated_nor_freed() {
    let dir = with_images();
    let options = options(dir.path());
    let environment = HostEnvironment { scan_interval: Duration::from_secs(3600), ..silent() };
    let server = Running::start_with(dir, &options, &environment, 10_000).await;
    // The digest of the image is known afterwards, so the server does not scan its directory again.
    server.installed().await;
    for name in ["machines/one.yaml", "machines/two.yaml"] {
        server.write(name, &(server.file(name) + LOCKED));
    }
    let asked = json!({ "uuid": TWO, "imageid": "debian-12", "projectid": "p" });
    let allocated = server.v1("POST", "/v1/machine/allocate", &asked).await;
    assert!([409, 422].contains(&allocated.status), "{}", allocated.text());
    assert!(!server.file("machines/two.yaml").contains("allocation"));
    let freed = server.v1("DELETE", &format!("/v1/machine/{ONE}/free"), &Value::Null).await;
    assert!([409, 422].contains(&freed.status), "{}", freed.text());
    assert!(server.file("machines/one.yaml").contains("allocation"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn lock_during_the_check_of_an_order_prevents_the_order() {
    let controller = GatedController::start(ONE.to_owned());
    let server = Running::start_in(with_images()).await;
    server.installed().await;
    std::fs::create_dir(server.dir.path().join("deploy-templates")).unwrap();
    let step = json!({"interface": "power", "step": "reboot", "args": {}, "priority": 5});
    server.write("deploy-templates/a.yaml", &json!({"name": "CUSTOM_A", "steps": [step]}).to_string());
    let file = server.file("machines/one.yaml").replace("name: one\n", "name: renamed\ntraits: [CUSTOM_A]\n");
    server.write("machines/one.yaml", &(file + "  requested_traits: [CUSTOM_A]\n" + &controller.bmc()));
    server.shows("/v1/machines", |answer| answer.text().contains("renamed")).await;

    let gate = controller.close_gate("GET").await;
    let lock = async {
        server.wait_until(|| controller.count("GET") > 0, "the check of the controller").await;
        let body = json!({ "reason": "holds the only copy" });
        let locked = server.v1("POST", &format!("/v1/machine/{ONE}/lock"), &body).await;
        assert_eq!(locked.status, 200, "{}", locked.text());
        drop(gate);
    };
    let (ordered, ()) = tokio::join!(server.press(ONE, "debian-13", json!({})), lock);
    assert!(ordered.status == 400 && ordered.text().contains("holds the only copy"), "{}", ordered.text());
    assert_eq!(ordered.json()["error_code"], "DH-645");
    assert!(server.listed().await["order"].is_null());
}
