//! Boots through a NIC that no file lists, during and after migrations.

use super::*;
use crate::tests::reinstall::with_images;

impl Running {
    /// Boots the machine through a NIC that no file lists. Returns a word for the effect of the script.
    async fn boot_through_unlisted_nic(&self, id: &str) -> &'static str {
        let script = self.boot(&format!("uuid={id}&mac=52:54:00:00:00:99")).await.text();
        let held = "/boot.ipxe?uuid=${uuid}&mac=${netX/mac}&arch=${buildarch} || goto again";
        match script {
            script if script.contains("token") => panic!("{script}"),
            script if script.contains("sanboot") => "disk",
            script if script.contains(held) && script.contains("\nchain --replace http://127.0.0.1:") => "waits",
            script => panic!("{script}"),
        }
    }
}

/// The NIC has no influence on whether a machine may boot from its disk.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn boot_from_another_nic_respects_the_migration_state() {
    let none = Running::start_in(with_images()).await;
    assert_eq!(none.boot_through_unlisted_nic(ONE).await, "disk", "no move");
    let (server, order) = Running::move_ordered().await;
    let by_both = async |server: &Running| {
        [server.boot_through_unlisted_nic(ONE).await, server.boot_through_unlisted_nic(TWO).await]
    };
    assert_eq!(by_both(&server).await, ["waits", "waits"], "ordered");
    let (one, two) = (server.ramdisk(ONE).await, server.ramdisk(TWO).await);
    for (id, token) in [(ONE, &one), (TWO, &two)] {
        assert_eq!(server.announce_waiting(id, token, &order).await.status, 200);
    }
    assert_eq!(by_both(&server).await, ["waits", "waits"], "planned");
    server.exchange_certificates(&one).await;
    assert_eq!(server.begins_to_receive(&two).await.status, 200);
    assert_eq!(by_both(&server).await, ["waits", "waits"], "copying");
    server.heard("waits instead of booting from its disk").await;
    assert_eq!(server.report_to(TWO, &two, success(TWO)).await.status, 200);
    assert_eq!(by_both(&server).await, ["waits", "disk"], "booting");
    server.files_say("two", "one").await;
    assert_eq!(by_both(&server).await, ["waits", "disk"], "booting, with its files");
    let event = json!({ "event": "Phoned Home", "message": "" });
    assert_eq!(server.call(&two, "POST", &format!("/v1/machine/{TWO}/event"), &event).await.status, 200);
    assert_eq!(server.state().await, "done");
    let server = server.restarted().await;
    assert_eq!(by_both(&server).await, ["waits", "disk"], "done");
    // The disks of machine one still contain the migrated system, whichever allocation the machine gets next.
    for allocation in [MARKED, "a9"] {
        server.write("machines/one.yaml", &machine_file(ONE, "one", "52:54:00:00:00:01", allocation, ""));
        assert_eq!(server.boot_through_unlisted_nic(ONE).await, "waits", "{allocation}");
    }
    let one = server.ramdisk(ONE).await;
    server.until_given(ONE, &one, "a9").await;
    assert_eq!(server.boot_through_unlisted_nic(ONE).await, "waits", "a9 is not installed");
    let body = json!({ "allocationuuid": "a9", "order": "", "disks": disks() });
    let answer = server.call(&one, "POST", &format!("/v1/machine/{ONE}/point-of-no-return"), &body).await;
    assert_eq!(answer.status, 200, "{}", answer.text());
    let mut body = success(ONE);
    (body["allocationuuid"], body["marker"]["allocation"]) = (json!("a9"), json!("a9"));
    assert_eq!(server.report_to(ONE, &one, body).await.status, 200);
    assert_eq!(server.boot_through_unlisted_nic(ONE).await, "disk", "a9 is installed");

    // The migration is canceled after the target has received everything.
    let (server, _, _, two) = Running::move_begun().await;
    assert_eq!(server.report_to(TWO, &two, success(TWO)).await.status, 200);
    server.files_say("two", "one").await;
    assert_eq!(server.about_move("DELETE", &format!("?off={TWO}"), Value::Null).await.status, 200);
    assert_eq!(by_both(&server).await, ["disk", "waits"], "cancelled");
}

/// The NIC has no influence on whether a machine may boot an incomplete system.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn boot_from_another_nic_does_not_start_an_incomplete_system() {
    let server = Running::start_in(with_images()).await;
    let token = server.token(ONE).await;
    server.allocated(ONE, &token).await;
    assert_eq!(server.boot_through_unlisted_nic(ONE).await, "disk", "nothing was written");
    assert_eq!(server.begins_first(ONE, &token, MARKED).await, 200);
    assert_eq!(server.boot_through_unlisted_nic(ONE).await, "waits", "the first installation has started");
    server.heard("The system is incomplete or migrated").await;
    server.report(ONE, &token, MARKED, true).await;
    assert_eq!(server.boot_through_unlisted_nic(ONE).await, "disk", "installed");
    let order = server.order("debian-13").await;
    assert_eq!(server.boot_through_unlisted_nic(ONE).await, "disk", "the reinstall has not started");
    let token = server.token(ONE).await;
    server.allocated(ONE, &token).await;
    assert_eq!(server.begin(&token, &order).await, 200);
    assert_eq!(server.boot_through_unlisted_nic(ONE).await, "waits", "the reinstall has started");
}

/// Returns whether the script, if it cannot load the ramdisk, exits to the firmware, which then boots the disk.
fn returns_to_firmware(script: &str) -> bool {
    assert_ne!(script.contains("\nexit 1\n"), script.ends_with("\nreboot || goto again\n"), "{script}");
    script.contains("\nexit 1\n")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lost_ramdisk_does_not_boot_an_incomplete_or_migrated_system() {
    let server = Running::start_in(with_images()).await;
    let script = async |server: &Running, id: &str| server.boot(&format!("uuid={id}")).await.text();
    assert!(returns_to_firmware(&script(&server, STRANGER).await));
    let token = server.token(ONE).await;
    server.allocated(ONE, &token).await;
    assert!(returns_to_firmware(&script(&server, ONE).await), "nothing was written");
    assert_eq!(server.begins_first(ONE, &token, MARKED).await, 200);
    assert!(!returns_to_firmware(&script(&server, ONE).await), "the first installation is incomplete");
    server.report(ONE, &token, MARKED, true).await;
    let order = server.order("debian-13").await;
    assert!(returns_to_firmware(&script(&server, ONE).await), "the installed system is intact");
    let token = server.token(ONE).await;
    server.allocated(ONE, &token).await;
    assert_eq!(server.begin(&token, &order).await, 200);
    assert!(!returns_to_firmware(&script(&server, ONE).await), "the system is incomplete");
    // The allocation is edited away, and finally the file is removed.
    for file in [Some(format!("id: {ONE}\nname: one\n")), None] {
        let path = server.dir.path().join("machines/one.yaml");
        match &file {
            Some(text) => std::fs::write(path, text).unwrap(),
            None => std::fs::remove_file(path).unwrap(),
        }
        let is_read = |answer: &Answer| {
            let all = answer.json();
            let found = all.as_array().unwrap().iter().find(|machine| machine["id"] == ONE);
            found.map(|machine| machine["allocation"].is_null()) == file.as_ref().map(|_| true)
        };
        server.shows("/v1/machines", is_read).await;
        assert!(!returns_to_firmware(&script(&server, ONE).await), "{file:?}");
    }

    let (server, _) = Running::move_ordered().await;
    for id in [ONE, TWO] {
        assert!(!returns_to_firmware(&script(&server, id).await), "{id}");
    }
}
