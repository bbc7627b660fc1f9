//! Databases and backups of versions that did not issue fencing tokens.

use super::*;

/// Creates a database of a version without fencing tokens.
fn before_fencing(path: &Path) {
    let old = rusqlite::Connection::open(path).unwrap();
    old.execute_batch(include_str!("../../../../../testdata/database/before-fencing.sql")).unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn order_of_a_database_without_tokens_receives_one() {
    let dir = with_images();
    before_fencing(&dir.path().join("drophammer.sqlite"));
    std::fs::write(dir.path().join("drophammer.id"), format!("6f9619ff-8b86-4d01-b42d-00cf4fc964ff {:020}\n", 9))
        .unwrap();
    let server = Running::start_in(dir).await;
    assert!(!server.needs_confirmation().await);
    let (_, given) = server.boot_and_fetch().await;
    assert!(given.order.is_some_and(|order| order.confirmed), "it was never restored");
    let token = given.fencing.unwrap();
    let server = server.restarted().await;
    assert_eq!(server.boot_and_fetch().await.1.fencing, Some(token.clone()), "it keeps its token");
    server.order("debian-12").await;
    let newer = server.boot_and_fetch().await.1.fencing.unwrap();
    assert_eq!(newer.compare_age(&token), Some(std::cmp::Ordering::Greater));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn backup_without_tokens_is_restored_with_order_withheld() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("backup");
    before_fencing(&file);
    let dir = with_images();
    restore_database(dir.path(), &file, false).unwrap();
    let server = Running::start_in(dir).await;
    let (token, given) = server.boot_and_fetch().await;
    assert!(given.order.is_none() && given.installed.as_ref().is_some_and(|marker| marker.image == "debian-12"));
    assert_eq!(server.begin(&token, "7f9619ff-8b86-4d01-b42d-00cf4fc964ff").await, 409);
    server.boot_installed(&json!(given.installed.unwrap())).await;
    assert!(server.needs_confirmation().await, "its marker matches, but does not confirm the order");
    assert_eq!(server.confirm().await.status, 200);
    let (_, given) = server.boot_and_fetch().await;
    let order = given.order.unwrap();
    assert!(order.id == "7f9619ff-8b86-4d01-b42d-00cf4fc964ff" && order.confirmed);
    assert!(given.fencing.unwrap().is_plausible());
}
