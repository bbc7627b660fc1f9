//! Problems of the server itself, as shown in the log, in `/readyz`, in the metrics, and on the web page.

use super::*;
use std::sync::atomic::{AtomicU64, Ordering};

impl Running {
    pub(super) async fn is_ready(&self) -> (bool, String) {
        let answer = self.ask("GET", "/readyz", &[], "").await;
        match answer.status {
            200 => (true, answer.text()),
            _ => (false, answer.json()["message"].as_str().unwrap().to_owned()),
        }
    }

    /// Waits until `/readyz` responds with the given readiness. Returns the response.
    pub(super) async fn until_ready(&self, expected: bool) -> String {
        let began = std::time::Instant::now();
        loop {
            match self.is_ready().await {
                (is_ready, text) if is_ready == expected => return text,
                (_, text) => assert!(began.elapsed() < PATIENCE, "{text}"),
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    pub(super) async fn has_metric(&self, line: &str) -> bool {
        let answer = self.v1("GET", "/metrics", &Value::Null).await;
        answer.text().lines().any(|found| found == line)
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_full_disk_is_a_problem_until_space_is_free() {
    let (dir, free) = (directory(), Arc::new(AtomicU64::new(1 << 30)));
    let read = free.clone();
    let free_space: crate::server_health_monitor::FreeSpace =
        Arc::new(move |_: &Path| Some(read.load(Ordering::Relaxed)));
    let (options, around) = (options(dir.path()), HostEnvironment { free_space, ..silent() });
    let server = Running::start_with(dir, &options, &around, 10_000).await;
    let browser = server.browser().await;
    server.until_ready(true).await;
    assert!(server.has_metric("drophammer_healthy 1").await);
    for (bytes, words) in [(0, ": no space is free"), (5 << 20, ": less than 67.1 MB is free")] {
        free.store(bytes, Ordering::Relaxed);
        let answer = server.until_ready(false).await;
        assert_eq!(answer, "little free space");
        server.heard(words).await;
        assert!(server.has_metric("drophammer_healthy 0").await);
        assert!(browser.text("/").await.contains("reports and orders cannot be stored"));
        let problems = server.v1("GET", "/v1/problems", &Value::Null).await.json();
        let messages = problems.as_array().unwrap().iter().map(|problem| problem["message"].as_str().unwrap());
        assert!(messages.clone().any(|message| message.contains(words)), "{problems}");
        free.store(1 << 30, Ordering::Relaxed);
        server.until_ready(true).await;
    }
    server.heard("\"note\":\"no longer a problem: ").await;
    assert!(!browser.text("/").await.contains("reports and orders cannot be stored"));
}

/// Clients without a token do not receive error messages of the database.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn readiness_contains_no_details_of_the_database() {
    let server = Running::start().await;
    let browser = server.browser().await;
    let database = rusqlite::Connection::open(server.dir.path().join(store::DATABASE)).unwrap();
    database.execute_batch("ALTER TABLE allocations RENAME TO moved").unwrap();
    assert_eq!(server.is_ready().await, (false, "the database cannot be read".to_owned()));
    server.heard("/readyz: cannot read the database: ").await;
    database.execute_batch("ALTER TABLE moved RENAME TO allocations").unwrap();
    let trigger = "CREATE TRIGGER failing BEFORE UPDATE ON identity BEGIN SELECT RAISE(ABORT, 'sector 7'); END";
    database.execute_batch(trigger).unwrap();
    server.heard("sector 7").await;
    assert_eq!(server.until_ready(false).await, "the database cannot be written");
    assert!(browser.text("/").await.contains("sector 7"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn failed_request_is_logged_immediately() {
    let server = Running::start().await;
    let browser = server.browser().await;
    server.token(STRANGER).await;
    let folder = server.dir.path().join("machines");
    std::fs::rename(&folder, server.dir.path().join("away")).unwrap();
    let path = format!("/v1/machine/{STRANGER}/file");
    let answer = server.v1("POST", &path, &json!({ "name": "new" })).await;
    assert_eq!(answer.status, 500, "{}", answer.text());
    let line =
        format!("POST {path} from 127.0.0.1: cannot complete the request (status 500): write machines/new.yaml: ");
    server.heard(&format!("\"problem\":\"{line}")).await;
    assert_eq!(server.is_ready().await, (true, "ok\n".to_owned()));
    assert!(server.has_metric("drophammer_healthy 0").await);
    assert!(server.has_metric("drophammer_errors_total 1").await);
    assert!(browser.text("/").await.contains("write machines/new.yaml"));
    assert_eq!(server.ask("GET", "/livez", &[], "").await.status, 200, "the process is alive");
    // Refused requests and requests for unknown paths do not count as errors of the server.
    assert_eq!(server.v1("GET", &format!("/v1/machine/{STRANGER}"), &Value::Null).await.status, 404);
    assert!(server.has_metric("drophammer_errors_total 1").await);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn missing_kernel_is_a_problem_but_not_unready() {
    let server = Running::start().await;
    let browser = server.browser().await;
    std::fs::remove_file(server.dir.path().join("boot/vmlinuz")).unwrap();
    server.heard("boot/vmlinuz is missing: machines cannot boot the ramdisk").await;
    let page = browser.text("/").await;
    assert!(page.contains("<summary>1 problem</summary>") && page.contains("boot/vmlinuz is missing"), "{page}");
    assert!(server.is_ready().await.0);
    server.write("boot/vmlinuz", "kernel");
    server.heard("no longer a problem: ").await;
    assert!(!browser.text("/").await.contains("boot/vmlinuz is missing"));
}
