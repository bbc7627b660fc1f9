//! First installations that have passed their point of no return.

use super::reinstall::{failure, with_images};
use super::*;

fn disks(serial: &str) -> Value {
    json!([{ "device": "/dev/sda", "serial": serial, "size_bytes": 1 }])
}

impl Running {
    async fn begin_first(&self, token: &str, allocation: &str, disks: Value) -> Answer {
        let body = json!({ "allocationuuid": allocation, "order": "", "disks": disks });
        self.call(token, "POST", &format!("/v1/machine/{ONE}/point-of-no-return"), &body).await
    }

    async fn until_allocated(&self, token: &str, allocation: &str) {
        for _ in 0..500 {
            if self.allocated(ONE, token).await.allocation.unwrap().id == allocation {
                return;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        panic!("allocation {allocation} is never served");
    }

    async fn begun_on(&self, token: &str) -> Vec<String> {
        let given = self.allocated(ONE, token).await.allocation.unwrap();
        given.begun_on.into_iter().map(|disk| disk.serial).collect()
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn started_installation_must_continue_on_its_disks() {
    let server = Running::start_in(with_images()).await;
    let token = server.token(ONE).await;
    let early = server.begin_first(&token, "a1", disks("A")).await;
    assert_eq!(early.status, 409);
    assert!(early.text().contains("was not sent"), "{}", early.text());
    assert!(server.begun_on(&token).await.is_empty());
    for _ in 0..2 {
        assert_eq!(server.begin_first(&token, "a1", disks("A")).await.status, 200);
    }
    server.heard("one starts its installation: the disks of its layout are erased").await;

    // The machine loses power.
    let server = server.restarted().await;
    let token = server.token(ONE).await;
    assert_eq!(server.begun_on(&token).await, ["A"]);
    let other = server.begin_first(&token, "a1", disks("B")).await;
    assert_eq!(other.status, 409);
    let text = other.text();
    assert!(text.contains(r#"serial \"A\""#) && text.contains(r#"serial \"B\""#), "{text}");
    // A boot reports that it has not written any disk. The previous boot may have written disks, so the record remains.
    server.report_of(&token, failure("", true)).await;
    assert_eq!(server.begun_on(&token).await, ["A"]);
    assert_eq!(server.begin_first(&token, "a1", disks("A")).await.status, 200);
    server.report_of(&token, failure("", true)).await;
    assert_eq!(server.begun_on(&token).await, ["A"]);
    server.report(ONE, &token, "a1", true).await;
    let late = server.begin_first(&token, "a1", disks("A")).await;
    assert_eq!(late.status, 401);
    assert!(late.text().contains("the token expired when the installation ended"), "{}", late.text());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn announced_unstarted_installation_does_not_bind_disks() {
    let server = Running::start_in(with_images()).await;
    let token = server.token(ONE).await;
    server.allocated(ONE, &token).await;
    assert_eq!(server.begin_first(&token, "a1", disks("A")).await.status, 200);
    server.report_of(&token, failure("", true)).await;
    let token = server.token(ONE).await;
    assert!(server.begun_on(&token).await.is_empty());
    assert_eq!(server.begin_first(&token, "a1", disks("B")).await.status, 200);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn installation_does_not_start_after_a_change() {
    let server = Running::start_in(with_images()).await;
    let token = server.token(ONE).await;
    server.allocated(ONE, &token).await;
    let begins = async |token: &str, words: &str| {
        let answer = server.begin_first(token, "a1", disks("A")).await;
        (answer.status, answer.text().contains(words))
    };
    let newer = server.token(ONE).await;
    assert_eq!(begins(&token, "was issued before the machine last booted").await, (401, true));
    let file = |allocation: &str| machine_file(ONE, "one", "52:54:00:00:00:01", allocation, "");
    for (text, words) in [
        (file("a2"), "the machine's current allocation is a2, not a1"),
        (format!("id: {ONE}\n"), "the machine file no longer contains allocation"),
    ] {
        server.write("machines/one.yaml", &text);
        while begins(&newer, words).await != (409, true) {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }
    server.write("machines/one.yaml", &file("a1"));
    while begins(&newer, "").await.0 != 200 {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn new_allocation_id_replaces_layout_of_interrupted_installation() {
    let server = Running::start_in(with_images()).await;
    let token = server.token(ONE).await;
    server.allocated(ONE, &token).await;
    assert_eq!(server.begin_first(&token, "a1", disks("A")).await.status, 200);

    // The machine loses power. Correcting the layout file alone is not sufficient, and a reinstall cannot be ordered.
    server.write("layouts/default.yaml", &LAYOUT.replace("root", "other"));
    let server = server.restarted().await;
    let given = async |token: &str| {
        let given = server.allocated(ONE, token).await.allocation.unwrap();
        let label = given.filesystemlayout["filesystems"][0]["label"].as_str().unwrap().to_owned();
        (given.id, label, given.begun_on.len())
    };
    let token = server.token(ONE).await;
    assert_eq!(given(&token).await, ("a1".to_owned(), "root".to_owned(), 1));
    let refused = server.press(ONE, "debian-13", json!({ "change_promise": true })).await;
    assert_eq!(refused.status, 400);
    assert!(refused.text().contains("is not installed yet"), "{}", refused.text());

    server.write("machines/one.yaml", &machine_file(ONE, "one", "52:54:00:00:00:01", "a2", ""));
    server.until_allocated(&token, "a2").await;
    let late = server.begin_first(&token, "a1", disks("A")).await;
    assert_eq!(late.status, 409);
    let token = server.token(ONE).await;
    assert_eq!(given(&token).await, ("a2".to_owned(), "other".to_owned(), 0));
    assert_eq!(server.begin_first(&token, "a2", disks("B")).await.status, 200);
}

/// The report of the first installation is lost. The layout file is edited before the machine boots again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn edited_layout_does_not_affect_a_started_installation() {
    let server = Running::start_in(with_images()).await;
    let token = server.token(ONE).await;
    server.allocated(ONE, &token).await;
    assert_eq!(server.begin_first(&token, "a1", disks("A")).await.status, 200);
    server.write("layouts/default.yaml", &LAYOUT.replace("root", "other"));
    let server = server.restarted().await;
    let token = server.token(ONE).await;
    let label = async |token: &str| {
        let given = server.allocated(ONE, token).await.allocation.unwrap();
        given.filesystemlayout["filesystems"][0]["label"].as_str().unwrap().to_owned()
    };
    assert_eq!(label(&token).await, "root");
    server.report(ONE, &token, "a1", true).await;
    server.heard("layout default has changed since the machine was installed").await;
    server.order("debian-13").await;
    assert_eq!(label(&server.token(ONE).await).await, "root");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn failed_installation_receives_the_corrected_layout() {
    let server = Running::start_in(with_images()).await;
    let token = server.token(ONE).await;
    server.allocated(ONE, &token).await;
    assert_eq!(server.begin_first(&token, "a1", disks("A")).await.status, 200);
    server.report_of(&token, failure("", false)).await;
    server.write("layouts/default.yaml", &LAYOUT.replace("root", "other"));
    for _ in 0..500 {
        let given = server.allocated(ONE, &token).await.allocation.unwrap();
        if given.filesystemlayout["filesystems"][0]["label"] == "other" {
            assert_eq!(given.begun_on.len(), 1, "the recorded disks are unchanged");
            return;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    panic!("the corrected layout is never served");
}
