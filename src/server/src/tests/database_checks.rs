//! Checks of the database file: it must exist, be intact, and belong to the directory.

use super::reinstall::with_images;
use super::*;
use std::fs;
use std::os::unix::fs::{FileExt, PermissionsExt};
use store::backup::{back_up_database, restore_database};

const FILES: [&str; 2] = ["drophammer.sqlite", "drophammer.id"];

/// Creates a directory with copies of [`FILES`] and the operator's token from `dir`, and nothing else.
fn copied(dir: &Path) -> TempDir {
    let copy = with_images();
    for name in FILES.into_iter().chain(["operator.token"]) {
        fs::copy(dir.join(name), copy.path().join(name)).unwrap();
    }
    copy
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn database_file_alone_contains_all_acknowledged_changes() {
    let server = Running::start_in(with_images()).await;
    server.installed().await;
    let order = server.order("debian-13").await;
    let copy = Running::start_in(copied(server.dir.path())).await;
    assert_eq!(copy.listed().await["order"]["id"], order.as_str());
    copy.stop().await;
    let dir = server.stop().await;
    assert!(!dir.path().join("drophammer.sqlite-wal").exists(), "it is closed");
    let copy = Running::start_in(copied(dir.path())).await;
    assert_eq!(copy.listed().await["order"]["id"], order.as_str());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn missing_or_replaced_database_stops_the_server() {
    type Loss = (fn(&Path), &'static str);
    let lose: [Loss; 4] = [
        (|dir| fs::remove_file(dir.join(FILES[0])).unwrap(), "drophammer.sqlite is missing"),
        (
            |dir| {
                fs::copy(dir.join(FILES[0]), dir.join("copy")).unwrap();
                fs::rename(dir.join("copy"), dir.join(FILES[0])).unwrap();
            },
            "drophammer.sqlite is no longer the file",
        ),
        (|dir| fs::rename(dir, dir.with_extension("away")).unwrap(), "drophammer.sqlite is missing"),
        (|dir| fs::remove_file(dir.join(FILES[1])).unwrap(), "drophammer.id is missing"),
    ];
    for (lose, words) in lose {
        let server = Running::start_in(with_images()).await;
        server.installed().await;
        let (operator, away) = (server.operator(), server.dir.path().with_extension("away"));
        lose(server.dir.path());
        let body = json!({ "id": ONE, "imageid": "debian-13" });
        let path = format!("/v1/machine/{ONE}/reinstall");
        // The server may exit before it responds, so errors are ignored.
        let answer = async {
            let mut stream = TcpStream::connect(server.address).await.ok()?;
            let body = body.to_string();
            let request = format!(
                "POST {path} HTTP/1.1\r\nHost: h\r\nConnection: close\r\nAuthorization: Bearer {operator}\r\n\
                 Content-Length: {}\r\n\r\n{body}",
                body.len()
            );
            stream.write_all(request.as_bytes()).await.ok()?;
            let mut answer = Vec::new();
            stream.read_to_end(&mut answer).await.ok()?;
            Some(String::from_utf8_lossy(&answer).into_owned())
        };
        let answer = answer.await.unwrap_or_default();
        assert!(!answer.starts_with("HTTP/1.1 200"), "{words}: {answer}");
        let Running { task, end, dir, .. } = server;
        let error = tokio::time::timeout(PATIENCE, task).await.unwrap().unwrap().unwrap_err().to_string();
        assert!(error.contains(words) && error.contains("so the server stops"), "{error}");
        drop((end, dir));
        let _ = fs::remove_dir_all(away);
    }
}

/// Checks that a server does not start in `dir`, and that the error contains these words.
async fn refused(dir: &TempDir, words: &str) {
    let error = bind(dir, &CapturedLog::default())
        .await
        .err()
        .unwrap_or_else(|| panic!("the server starts: {words}"))
        .to_string();
    assert!(error.contains(words) && error.contains("drophammer serve restore"), "{error}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn foreign_or_outdated_database_is_refused() {
    let server = Running::start_in(with_images()).await;
    server.installed().await;
    let early = copied(server.dir.path());
    server.order("debian-13").await;
    let dir = server.stop().await;
    let put = |from: &TempDir, names: &[&str]| {
        let to = copied(dir.path());
        for name in names {
            fs::copy(from.path().join(name), to.path().join(name)).unwrap();
        }
        to
    };
    assert!(bind(&put(&early, &FILES), &CapturedLog::default()).await.is_ok(), "of the same time");
    refused(&put(&early, &FILES[..1]), "is older than the last state of this directory").await;
    let other = Running::start_in(with_images()).await;
    other.installed().await;
    let other = other.stop().await;
    refused(&put(&other, &FILES[..1]), "belongs to another directory: its id is").await;
    refused(&put(&other, &FILES[1..]), "belongs to another directory: its id is").await;
    let lost = put(&other, &[]);
    fs::remove_file(lost.path().join(FILES[1])).unwrap();
    refused(&lost, "next to the database is missing").await;

    // A file of 4 KB without tables is treated as an empty database.
    let empty = put(&other, &[]);
    fs::remove_file(empty.path().join(FILES[0])).unwrap();
    let connection = rusqlite::Connection::open(empty.path().join(FILES[0])).unwrap();
    connection.execute_batch("PRAGMA journal_mode=WAL; PRAGMA user_version=1;").unwrap();
    drop(connection);
    assert!(fs::metadata(empty.path().join(FILES[0])).unwrap().len() > 0);
    refused(&empty, "drophammer.sqlite is missing or empty").await;

    // Damage in the middle of the file, in pages that the queries at the start might not read.
    let damaged = put(&other, &[]);
    let file = fs::File::options().write(true).open(damaged.path().join(FILES[0])).unwrap();
    let pages = file.metadata().unwrap().len() / 4096;
    for page in pages / 2..pages {
        file.write_all_at(&[0xa5; 4096], page * 4096).unwrap();
    }
    refused(&damaged, "drophammer.sqlite is damaged").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn online_backup_is_restored_unless_outdated() {
    let server = Running::start_in(with_images()).await;
    server.installed().await;
    let kept = tempfile::tempdir().unwrap();
    let (early, late) = (kept.path().join("early"), kept.path().join("late"));
    let dir = server.dir.path();
    back_up_database(dir, &early).unwrap();
    assert_eq!(fs::metadata(&early).unwrap().permissions().mode() & 0o777, 0o600);
    assert!(back_up_database(dir, &early).unwrap_err().to_string().contains("already exists"));
    let order = server.order("debian-13").await;
    back_up_database(dir, &late).unwrap();
    assert!(restore_database(dir, &late, false).unwrap_err().to_string().contains("is running in"));
    let dir = server.stop().await;

    fs::remove_file(dir.path().join(FILES[0])).unwrap();
    let error = restore_database(dir.path(), &early, false).unwrap_err();
    assert!(error.is_refusal() && error.to_string().contains("is older than the state of"), "{error}");
    assert!(!dir.path().join(FILES[0]).exists(), "a refusal does not change anything");
    restore_database(dir.path(), &late, false).unwrap();
    let server = Running::start_in(dir).await;
    assert_eq!(server.listed().await["order"]["id"], order.as_str());
    let dir = server.stop().await;

    restore_database(dir.path(), &late, false).unwrap();
    restore_database(dir.path(), &early, true).unwrap();
    let server = Running::start_in(dir).await;
    assert_eq!((&server.listed().await["order"], &server.listed().await["installed"]), (&Value::Null, &json!(true)));
    let dir = server.stop().await;
    assert!(restore_database(dir.path(), &late, false).is_err(), "a canceled order is not restored");

    let other = with_images();
    restore_database(other.path(), &late, false).unwrap();
    let other = Running::start_in(other).await;
    assert_eq!(other.listed().await["order"]["id"], order.as_str());
    let other = other.stop().await;
    let third = Running::start_in(with_images()).await;
    // A restore may replace a database that records only boots. It must not replace the database of another server that
    // has already served an allocation.
    let token = third.token(ONE).await;
    third.allocated(ONE, &token).await;
    let third = third.stop().await;
    let error = restore_database(third.path(), &late, true).unwrap_err().to_string();
    assert!(error.contains("is a backup of another directory"), "{error}");
    fs::write(kept.path().join("nonsense"), "no database").unwrap();
    assert!(restore_database(other.path(), &kept.path().join("nonsense"), true).is_err());
    assert!(restore_database(other.path(), &kept.path().join("nothing"), true).is_err());
}
