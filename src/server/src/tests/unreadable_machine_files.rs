//! Unreadable machine files: they do not count as deleted, and their machines do not count as new.

use super::reinstall::with_images;
use super::*;
use std::fs;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn temporarily_missing_folder_changes_nothing() {
    let server = Running::start_in(with_images()).await;
    server.installed().await;
    let token = server.token(TWO).await;
    let path = |name: &str| server.dir.path().join(name);
    for folder in ["machines", "layouts", "images"] {
        fs::rename(path(folder), path("aside")).unwrap();
        server.heard(&format!("{folder}/: unreadable since 20")).await;
        assert!(server.boots_disk().await, "{folder}");
        assert_eq!(server.listed().await["image"], "debian-12");
        assert_eq!(server.call(&token, "GET", &format!("/v1/machine/{TWO}"), &Value::Null).await.json()["name"], "two");
        fs::rename(path("aside"), path(folder)).unwrap();
    }
    server.heard("all files are valid again").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn installed_machine_without_file_boots_disk_after_restart() {
    let server = Running::start_in(with_images()).await;
    server.installed().await;
    type Loss = (&'static str, fn(&Path));
    let lose: [Loss; 3] = [
        ("the folder", |dir| fs::rename(dir.join("machines"), dir.join("aside")).unwrap()),
        ("the file", |dir| fs::remove_file(dir.join("machines/one.yaml")).unwrap()),
        ("its text", |dir| fs::write(dir.join("machines/one.yaml"), "id: [").unwrap()),
    ];
    let text = fs::read_to_string(server.dir.path().join("machines/one.yaml")).unwrap();
    let mut dir = server.stop().await;
    for (what, lose) in lose {
        lose(dir.path());
        let server = Running::start_in(dir).await;
        assert!(server.boots_disk().await, "{what}");
        server.heard("is installed, but has no valid file in machines/").await;
        let json = server.ask("GET", &format!("/boot.json?uuid={ONE}"), &[], "").await;
        assert_eq!(json.status, 409, "{what}: {}", json.text());
        // A machine that is actually new registers, and waits.
        assert!(server.boot(&format!("uuid={STRANGER}")).await.text().contains("drophammer.token"), "{what}");
        dir = server.stop().await;
        let _ = fs::rename(dir.path().join("aside"), dir.path().join("machines"));
        fs::write(dir.path().join("machines/one.yaml"), &text).unwrap();
    }
    // A machine file without an allocation frees the machine.
    fs::write(dir.path().join("machines/one.yaml"), format!("id: {ONE}\n")).unwrap();
    let server = Running::start_in(dir).await;
    assert!(!server.boots_disk().await);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn started_reinstall_waits_for_its_machine_file() {
    let server = Running::start_in(with_images()).await;
    server.installed().await;
    let order = server.order("debian-13").await;
    let token = server.token(ONE).await;
    assert_eq!(server.begin(&token, &order).await, 200);
    let dir = server.stop().await;
    fs::rename(dir.path().join("machines"), dir.path().join("aside")).unwrap();
    let server = Running::start_in(dir).await;
    let token = server.token(ONE).await;
    let wait = format!("/v1/machine/{ONE}/wait?seconds=0");
    assert_eq!(server.call(&token, "GET", &wait, &Value::Null).await.status, 204);
    fs::rename(server.dir.path().join("aside"), server.dir.path().join("machines")).unwrap();
    let given = server.allocated(ONE, &token).await.allocation.unwrap();
    let open = given.order.unwrap();
    assert_eq!((open.id, open.started, open.attempt, given.reinstall), (order, true, 1, true));
}
