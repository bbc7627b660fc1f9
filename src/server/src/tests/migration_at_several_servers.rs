//! Migrations with servers that share a PostgreSQL database, and have their own directories.

use super::machine_migration::success;
use super::reinstall::with_images;
use super::several_servers::{new_database, start};
use super::*;

/// Starts a server with the token of another server, and with the machine files from before the migration.
async fn start_with_old_files(first: &Running, url: &str) -> Running {
    let dir = with_images();
    std::fs::copy(first.dir.path().join("operator.token"), dir.path().join("operator.token")).unwrap();
    start(dir, url).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn every_server_moves_the_allocation_in_its_own_files() {
    let Some(url) = new_database() else { return };
    let a = start(with_images(), &url).await;
    let b = start_with_old_files(&a, &url).await;
    let order = a.order_move().await;
    let [_, two] = a.begin_move(&order).await;
    let answer = a.report_to(TWO, &two, success(TWO)).await;
    assert_eq!(answer.status, 200, "{}", answer.text());
    for server in [&a, &b] {
        server.files_say("two", "one").await;
    }
    let event = json!({ "event": "Phoned Home", "message": "" });
    assert_eq!(b.call(&two, "POST", &format!("/v1/machine/{TWO}/event"), &event).await.status, 200);
    assert_eq!(a.state().await, "done");
    // This server was not running during the migration, so its files still assign the allocation to machine one.
    let late = start_with_old_files(&a, &url).await;
    for server in [&a, &b, &late] {
        assert!(server.is_disk(TWO).await && !server.is_disk(ONE).await);
        server.files_say("two", "one").await;
        assert!(server.is_disk(TWO).await && !server.is_disk(ONE).await);
    }
}
