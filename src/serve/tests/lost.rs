//! The database is gone, and with it who is in the middle of a reinstall.

use super::*;
use std::fs;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_has_lost_its_database_does_not_start() {
    let dir = Running::start().await.stop().await;
    let path = |name: &str| dir.path().join(name);
    let heard = Heard::default();
    assert!(bind(&dir, &heard).await.is_ok(), "it is all there");
    for ending in ["-wal", "-shm"] {
        let _ = fs::remove_file(path(&format!("drophammer.sqlite{ending}")));
    }
    let lost = [|path: &Path| fs::remove_file(path).unwrap(), |path: &Path| fs::write(path, "").unwrap()];
    for lose in lost {
        lose(&path("drophammer.sqlite"));
        for _ in 0..2 {
            let error = bind(&dir, &heard).await.err().expect("it starts").to_string();
            assert!(error.contains("drophammer.sqlite is gone") && error.contains("operator.token"), "{error}");
        }
    }
    // Without a machine there is nothing to lose.
    fs::rename(path("machines"), path("aside")).unwrap();
    assert!(bind(&dir, &heard).await.is_ok());
    fs::remove_file(path("drophammer.sqlite")).unwrap();
    fs::rename(path("aside"), path("machines")).unwrap();
    assert!(bind(&dir, &heard).await.is_err());
    // What the operator is told to do.
    fs::remove_file(path("operator.token")).unwrap();
    assert!(bind(&dir, &heard).await.is_ok());
    assert!(bind(&dir, &heard).await.is_ok(), "once is enough");
}
