//! `/metrics`, `/livez` and `/readyz`.

use super::*;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn metrics_count_installations_and_orders() {
    let server = Running::start().await;
    let token = server.file("metrics.token").trim().to_owned();
    // Machines are counted only once a second.
    let until = async |line: &str| {
        let began = std::time::Instant::now();
        loop {
            let answer = server.call(&token, "GET", "/metrics", &Value::Null).await;
            assert_eq!(answer.status, 200, "{}", answer.text());
            assert_eq!(answer.headers["content-type"], "text/plain; version=0.0.4");
            if answer.text().lines().any(|said| said == line) {
                return answer.text();
            }
            assert!(began.elapsed() < PATIENCE, "{line}\n{}", answer.text());
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    let text = until("drophammer_machines{phase=\"not installed\"} 1").await;
    assert!(text.contains("drophammer_machines{phase=\"free\"} 1\n"), "{text}");
    let machine = server.token(ONE).await;
    server.allocated(ONE, &machine).await;
    let body = json!({ "success": true, "message": "m", "allocationuuid": "a1",
        "timings": [{"step": "image.burn", "seconds": 12.5}, {"step": "a\nb{", "seconds": 1}] });
    let path = format!("/v1/machine/{ONE}/report");
    assert_eq!(server.call(&machine, "POST", &path, &body).await.status, 409, "the installation has not started");
    assert_eq!(server.begins_first(ONE, &machine, "a1").await, 200);
    for _ in 0..2 {
        assert_eq!(server.call(&machine, "POST", &path, &body).await.status, 200);
    }
    let text = until("drophammer_machines{phase=\"installed\"} 1").await;
    for line in [
        "drophammer_installs_total{kind=\"first\",result=\"success\"} 1",
        "drophammer_step_seconds_bucket{step=\"image.burn\",le=\"20\"} 1",
        "drophammer_step_seconds_count{step=\"other\"} 1",
        "drophammer_waits 0",
    ] {
        assert!(text.lines().any(|said| said == line), "{line}\n{text}");
    }
    assert!(!text.contains("drophammer_store_seconds_count 0\n"));
    assert!(!text.contains("drophammer_certificate_expiry_timestamp_seconds{"), "it does not use TLS");
    let order = json!({"id": ONE, "imageid": "debian-12"});
    assert_eq!(server.v1("POST", &format!("/v1/machine/{ONE}/reinstall"), &order).await.status, 200);
    until("drophammer_machines{phase=\"reinstall ordered\"} 1").await;
    assert_eq!(server.v1("DELETE", &format!("/v1/machine/{ONE}/reinstall"), &Value::Null).await.status, 200);
    let text = until("drophammer_machines{phase=\"installed\"} 1").await;
    assert!(text.contains("drophammer_orders_total{event=\"placed\"} 1\n"), "{text}");
    assert!(text.contains("drophammer_orders_total{event=\"taken_back\"} 1\n"), "{text}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn metrics_token_only_grants_access_to_metrics() {
    let server = Running::start().await;
    let token = server.file("metrics.token").trim().to_owned();
    assert_eq!(server.call(&token, "GET", "/v1/machines", &Value::Null).await.status, 401);
    assert_eq!(server.call(&token, "GET", "/v1/filesystemlayout", &Value::Null).await.status, 401);
    assert_eq!(server.call(&server.operator(), "GET", "/metrics", &Value::Null).await.status, 200);
    assert_eq!(server.ask("GET", "/metrics", &[], "").await.status, 401);
    let machine = server.token(ONE).await;
    assert_eq!(server.call(&machine, "GET", "/metrics", &Value::Null).await.status, 401);
    for path in ["/livez", "/readyz"] {
        let answer = server.ask("GET", path, &[], "").await;
        assert_eq!((answer.status, answer.text().as_str()), (200, "ok\n"), "{path}");
    }
}
