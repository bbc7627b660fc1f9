//! Loss of the database, which contains the records of machines in the middle of a reinstall.

use super::*;
use std::fs;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn server_with_lost_database_does_not_start() {
    let dir = Running::start().await.stop().await;
    let path = |name: &str| dir.path().join(name);
    let heard = CapturedLog::default();
    assert!(bind(&dir, &heard).await.is_ok(), "all files exist");
    for ending in ["-wal", "-shm"] {
        let _ = fs::remove_file(path(&format!("drophammer.sqlite{ending}")));
    }
    let lost = [|path: &Path| fs::remove_file(path).unwrap(), |path: &Path| fs::write(path, "").unwrap()];
    for lose in lost {
        lose(&path("drophammer.sqlite"));
        for _ in 0..2 {
            let error = bind(&dir, &heard).await.err().expect("it starts").to_string();
            assert!(error.contains("drophammer.sqlite is missing") && error.contains("operator.token"), "{error}");
        }
    }
    // Without machine files, no record can have been lost, so the server starts.
    fs::rename(path("machines"), path("aside")).unwrap();
    assert!(bind(&dir, &heard).await.is_ok());
    fs::remove_file(path("drophammer.sqlite")).unwrap();
    fs::rename(path("aside"), path("machines")).unwrap();
    assert!(bind(&dir, &heard).await.is_err());
    // The error message proposes this remedy: delete the token file.
    fs::remove_file(path("operator.token")).unwrap();
    assert!(bind(&dir, &heard).await.is_ok());
    assert!(bind(&dir, &heard).await.is_ok(), "the confirmation is required only once");
}

/// After the database was lost, the disks of a machine may contain an installation that the server does not remember.
/// Allocations are marked accordingly until the machine reports a new installation.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn allocations_are_unremembered_after_database_loss() {
    let server = Running::start_in(super::reinstall::with_images()).await;
    let token = server.token(ONE).await;
    let told = server.allocated(ONE, &token).await.allocation.unwrap();
    assert!(!told.unremembered, "a new server");
    let dir = server.stop().await;
    for name in ["drophammer.sqlite", "drophammer.sqlite-wal", "drophammer.sqlite-shm", "operator.token"] {
        let _ = fs::remove_file(dir.path().join(name));
    }
    let server = Running::start_in(dir).await;
    let token = server.token(ONE).await;
    assert!(server.allocated(ONE, &token).await.allocation.unwrap().unremembered);
    // The database records that an earlier database was lost, so a restart does not change this.
    let server = Running::start_in(server.stop().await).await;
    let token = server.token(ONE).await;
    assert!(server.allocated(ONE, &token).await.allocation.unwrap().unremembered);
    assert_eq!(server.begins(&token, "", None).await.status, 200);
    server.report(ONE, &token, "a1", true).await;
    let one = fs::read_to_string(server.dir.path().join("machines/one.yaml")).unwrap();
    fs::write(server.dir.path().join("machines/one.yaml"), one.replace("a1", "a2")).unwrap();
    let server = Running::start_in(server.stop().await).await;
    let token = server.token(ONE).await;
    let told = server.allocated(ONE, &token).await.allocation.unwrap();
    assert_eq!((told.id.as_str(), told.unremembered), ("a2", false));
}
