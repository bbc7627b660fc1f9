//! Migrations in a database that was restored from a backup.

use super::machine_migration::{disks, failure, success};
use super::reinstall::with_images;
use super::*;
use store::backup::{back_up_database, restore_database};

/// Changes the record of the migration to a copy that the target has started.
const COPYING: &str = "UPDATE moves SET state = 'copying', document = json_set(document, '$.state', 'copying',
    '$.begun', json_object('disks', json('[]'), 'by', json_extract(document, '$.receiver.boot'), 'only', json('true')))";

async fn restored() -> (Running, String, String, String) {
    restored_after("").await
}

/// Orders a migration, lets both machines wait in their ramdisks, executes the SQL statement in the backup, and
/// restores the backup on a new host.
async fn restored_after(statement: &str) -> (Running, String, String, String) {
    let (server, order) = Running::move_ordered().await;
    let (one, two) = (server.ramdisk(ONE).await, server.ramdisk(TWO).await);
    for (id, token) in [(ONE, &one), (TWO, &two)] {
        let answer = server.announce_waiting(id, token, &order).await;
        assert_eq!(answer.status, 200, "{}", answer.text());
    }
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("backup");
    back_up_database(server.dir.path(), &file).unwrap();
    drop(server.stop().await);
    rusqlite::Connection::open(&file).unwrap().execute_batch(statement).unwrap();
    let dir = with_images();
    restore_database(dir.path(), &file, false).unwrap();
    (Running::start_in(dir).await, order, one, two)
}

async fn begins(server: &Running, token: &str) -> u16 {
    let body = json!({ "allocationuuid": "a1", "order": "", "disks": disks() });
    server.call(token, "POST", &format!("/v1/machine/{TWO}/point-of-no-return"), &body).await.status
}

async fn confirm(server: &Running, id: &str) {
    let answer = server.call(&server.operator(), "POST", &format!("/v1/machine/{id}/confirm"), &Value::Null).await;
    assert_eq!(answer.status, 200, "{}", answer.text());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn restored_migration_waits_for_both_confirmations() {
    let (server, order, one, two) = restored().await;
    for confirmed in [None, Some(TWO)] {
        if let Some(id) = confirmed {
            confirm(&server, id).await;
        }
        for (id, token) in [(ONE, &one), (TWO, &two)] {
            assert_eq!(server.read_allocation(id, token).await, Value::Null, "{id} {confirmed:?}");
        }
        assert_eq!(begins(&server, &two).await, 409, "{confirmed:?}");
    }
    // The marker of the source does not prove anything about the data that the target has received.
    let marker = super::machine_migration::marker(ONE);
    let report = json!({ "success": true, "message": "m", "allocationuuid": "a1", "marker": marker });
    let _ = server.call(&one, "POST", &format!("/v1/machine/{ONE}/report"), &report).await;
    assert!(server.listed().await["needs_confirmation"].as_bool().unwrap());

    // Both machines boot the ramdisk, and wait there for their confirmation.
    assert_eq!(server.read_allocation(TWO, &server.ramdisk(TWO).await).await, Value::Null);
    confirm(&server, ONE).await;
    let (one, two) = (server.ramdisk(ONE).await, server.ramdisk(TWO).await);
    assert!(server.read_allocation(ONE, &one).await["moving"].is_object());
    for (id, token) in [(ONE, &one), (TWO, &two)] {
        assert_eq!(server.announce_waiting(id, token, &order).await.status, 200);
    }
    server.exchange_certificates(&one).await;
    let given = server.allocated(TWO, &two).await.allocation.unwrap();
    assert!(given.fencing.is_some_and(|token| token.is_plausible()), "the received disk also has a token");
    assert_eq!(begins(&server, &two).await, 200);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn unconfirmed_machines_refuse_migration_but_allow_cancellation() {
    let (server, ..) = restored().await;
    let cancelled = server.about_move("DELETE", "", Value::Null).await;
    assert_eq!(cancelled.status, 200, "{}", cancelled.text());
    for confirmed in [ONE, TWO] {
        let answer = server.about_move("POST", "", json!({ "to": TWO })).await;
        assert!(answer.status == 409 && answer.text().contains("needs confirmation"), "{}", answer.text());
        confirm(&server, confirmed).await;
    }
    let answer = server.about_move("POST", "", json!({ "to": TWO })).await;
    assert_eq!(answer.status, 200, "{}", answer.text());
}

/// According to the restored database, machine TWO has the system, but the machine files had not been changed when the
/// backup was made.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn restored_migration_does_not_edit_files_before_confirmation() {
    let (server, _) = Running::move_ordered().await;
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("backup");
    back_up_database(server.dir.path(), &file).unwrap();
    drop(server.stop().await);
    let booting = "UPDATE moves SET state = 'booting',
        document = json_set(document, '$.state', 'booting', '$.files', json('true'))";
    rusqlite::Connection::open(&file).unwrap().execute(booting, []).unwrap();
    let dir = with_images();
    restore_database(dir.path(), &file, false).unwrap();
    let server = Running::start_in(dir).await;
    let text = |name: &str| std::fs::read_to_string(server.dir.path().join(format!("machines/{name}.yaml"))).unwrap();
    for confirmed in [None, Some(ONE)] {
        if let Some(id) = confirmed {
            confirm(&server, id).await;
        }
        for id in [ONE, TWO] {
            assert!(!server.is_disk(id).await, "{id} {confirmed:?}");
        }
        assert!(text("one").contains("allocation:") && !text("two").contains("allocation:"));
    }
    server.heard("boots the ramdisk and waits: its migration is withheld").await;
    confirm(&server, TWO).await;
    assert!(server.is_disk(TWO).await && !server.is_disk(ONE).await);
    server
        .wait_until(|| text("two").contains("allocation:") && !text("one").contains("allocation:"), "it has moved")
        .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn failures_do_not_end_restored_migration_before_confirmation() {
    let (server, _, one, two) = restored().await;
    for (id, token) in [(ONE, &one), (TWO, &two)] {
        let answer = server.report_to(id, token, failure(true)).await;
        assert_eq!(answer.status, 200, "{}", answer.text());
        assert_eq!(server.state().await, "planned", "{id}");
        assert!(!server.is_disk(ONE).await && !server.is_disk(TWO).await, "{id}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn target_boots_received_system_only_after_confirmation() {
    let (server, _, _, two) = restored_after(COPYING).await;
    for confirmed in [ONE, TWO] {
        let answer = server.report_to(TWO, &two, success(TWO)).await;
        assert!(answer.status == 409 && answer.text().contains("needs confirmation"), "{}", answer.text());
        assert_eq!(server.state().await, "copying");
        confirm(&server, confirmed).await;
    }
    let answer = server.report_to(TWO, &two, success(TWO)).await;
    assert_eq!((answer.status, server.state().await.as_str()), (200, "booting"), "{}", answer.text());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn running_target_does_not_finish_restored_migration_before_confirmation() {
    let booting = "UPDATE moves SET state = 'booting', document = json_set(document, '$.state', 'booting')";
    let (server, _, _, two) = restored_after(booting).await;
    let event = json!({ "event": "Phoned Home", "message": "" });
    let path = format!("/v1/machine/{TWO}/event");
    assert_eq!(server.call(&two, "POST", &path, &event).await.status, 200);
    server.heard("its migration is not finished").await;
    assert_eq!(server.state().await, "booting");
    confirm(&server, ONE).await;
    confirm(&server, TWO).await;
    assert_eq!(server.call(&two, "POST", &path, &event).await.status, 200);
    assert_eq!(server.state().await, "done");
}
