//! Limits of PostgreSQL: a full tablespace, and the number of its connections. Meanwhile, `/readyz` fails with the
//! reason, machines wait, and nothing that was acknowledged is lost.

use super::past_attacks::Mounted;
use super::reinstall::with_images;
use super::several_servers::start;
use super::*;
use std::collections::BTreeSet;
use std::time::Instant;
use testing::postgres::{self, PrivatePostgres};

impl Running {
    /// Waits until the problem is reported everywhere: in the log, in `/readyz`, in the metrics, and on the page.
    async fn until_reported(&self, words: &str) {
        self.heard(words).await;
        while self.until_ready(false).await != "the database cannot be written" {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        let token = std::fs::read_to_string(self.dir.path().join("metrics.token")).unwrap();
        let bearer = format!("Bearer {}", token.trim());
        let metrics = self.ask("GET", "/metrics", &[("Authorization", &bearer)], "").await;
        assert!(metrics.status == 200 && metrics.text().contains("\ndrophammer_healthy 0\n"), "{}", metrics.text());
    }

    /// Orders a reinstall, and returns the id of the order, or the refusal.
    async fn try_order(&self, image: &str) -> Result<String, Answer> {
        let answer = self.press(ONE, image, json!({})).await;
        if answer.status == 200 { Ok(answer.json()["order"]["id"].as_str().unwrap().to_owned()) } else { Err(answer) }
    }
}

fn check_refusal(answer: &Answer, words: &str) {
    assert_eq!(answer.status, 503, "{}", answer.text());
    assert_eq!(answer.headers["retry-after"], "1");
    assert!(answer.text().contains(words) && answer.text().contains("DH-720"), "{}", answer.text());
}

/// Fills the filesystem to the last byte. Returns the path of the file.
fn fill_filesystem(dir: &Path) -> PathBuf {
    let path = dir.join("filler");
    let mut filler = std::fs::File::create(&path).unwrap();
    for size in [1 << 16, 1 << 9] {
        while filler.write(&vec![7; size]).is_ok_and(|written| written > 0) {}
    }
    path
}

/// On a full tablespace, statements that fit into existing pages succeed. Nevertheless, `/readyz` fails from the
/// first failed request until there is space again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs root"]
async fn root_a_full_tablespace_of_postgresql_loses_nothing() {
    if !postgres::is_installed() {
        return;
    }
    let small = tempfile::Builder::new().prefix("tablespace-").tempdir_in("/tmp").unwrap();
    let options = Some("size=32m");
    nix::mount::mount(Some("tmpfs"), small.path(), Some("tmpfs"), nix::mount::MsFlags::empty(), options).unwrap();
    let _mounted = Mounted(small.path().to_owned());
    let data = small.path().join("data");
    std::fs::create_dir(&data).unwrap();
    let postgres = PrivatePostgres::start();
    let url = postgres.create_database_in("desk", &data);
    let server = start(with_images(), &url).await;
    server.installed().await;
    server.until_ready(true).await;
    let browser = server.browser().await;

    let mut acknowledged = vec![server.order("debian-13").await, server.order("debian-12").await];
    let filler = fill_filesystem(small.path());
    // Existing pages may have space for some more records.
    let refused = loop {
        match server.try_order(if acknowledged.len() % 2 == 0 { "debian-13" } else { "debian-12" }).await {
            Ok(order) => acknowledged.push(order),
            Err(answer) => break answer,
        }
        assert!(acknowledged.len() < 2000, "the filesystem is not full");
    };
    check_refusal(&refused, "PostgreSQL lacks free space: could not extend file");
    assert!(refused.text().contains("(53100)"), "{}", refused.text());
    server.until_reported("PostgreSQL lacks free space").await;
    assert!(browser.text("/").await.contains("PostgreSQL lacks free space"));
    let problems = server.v1("GET", "/v1/problems", &Value::Null).await;
    assert!(problems.text().contains("reports and orders cannot be stored"), "{}", problems.text());
    let began = Instant::now();
    while began.elapsed() < Duration::from_secs(4) {
        assert!(!server.is_ready().await.0, "the database can be written only in part");
        // The statement of the periodic check succeeds.
        postgres.run_sql("desk", "UPDATE identity SET transactions = transactions");
        tokio::time::sleep(Duration::from_millis(100)).await;
    }

    std::fs::remove_file(filler).unwrap();
    server.until_ready(true).await;
    server.heard("no longer a problem: ").await;
    assert_eq!(server.boot(&format!("uuid={TWO}")).await.status, 200);
    acknowledged.push(server.try_order("debian-13").await.unwrap_or_else(|answer| panic!("{}", answer.text())));
    assert_eq!(server.listed().await["order"]["id"], json!(acknowledged.last()));
    let history = server.state.list_history(ONE).await.unwrap();
    let stored: BTreeSet<String> = history.into_iter().filter_map(|entry| entry.order).collect();
    let lost: Vec<_> = acknowledged.iter().filter(|order| !stored.contains(*order)).collect();
    assert!(lost.is_empty(), "{} of {} orders are lost", lost.len(), acknowledged.len());
    assert_eq!(stored.len(), acknowledged.len(), "no order was stored without an acknowledgement");
    let tables = postgres.run_sql("desk", "SELECT count(*) FROM pg_tables WHERE tablename = 'space_check'");
    assert_eq!(tables, "0");
    server.stop().await;
}

/// Other clients take all connections after the server has lost its own connections.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_without_connections_is_unready_until_one_is_free() {
    if !postgres::is_installed() {
        return;
    }
    let postgres = PrivatePostgres::start();
    let url = postgres.create_database("desk");
    postgres.restart_with("max_connections = 12\nsuperuser_reserved_connections = 0", "local all all trust\n");
    let server = start(with_images(), &url).await;
    server.installed().await;
    let order = server.order("debian-13").await;
    server.until_ready(true).await;
    let others = tokio::task::block_in_place(|| postgres.take_all_connections("desk", 12));
    server.until_reported("too many clients already (53300)").await;
    // The first requests may use connections that the server does not know to be closed yet (57P01).
    let began = Instant::now();
    let mut refusal = server.boot(&format!("uuid={ONE}")).await;
    while refusal.text().contains("(57P01)") && began.elapsed() < PATIENCE {
        refusal = server.boot(&format!("uuid={ONE}")).await;
    }
    check_refusal(&refusal, "too many clients already (53300)");
    drop(others);
    server.until_ready(true).await;
    server.heard("no longer a problem: ").await;
    // PostgreSQL ends the other sessions one after the other, and each connection of the server needs a free one.
    let began = Instant::now();
    while server.v1("GET", "/v1/machines", &Value::Null).await.status == 503 && began.elapsed() < PATIENCE {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    assert_eq!(server.listed().await["order"]["id"], json!(order));
    assert_eq!(server.boot(&format!("uuid={ONE}")).await.status, 200);
    server.stop().await;
}
