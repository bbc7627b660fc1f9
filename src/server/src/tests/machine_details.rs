//! Details, events, history and console log of one machine.

use super::reinstall::{failure, with_images};
use super::*;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn details_contain_summary_hardware_timeline_and_report() {
    let server = Running::start_in(with_images()).await;
    let details = async || server.v1("GET", &format!("/v1/machine/{}/details", ONE.to_uppercase()), &Value::Null).await;
    let answer = details().await.json();
    assert_eq!((&answer["summary"]["name"], &answer["file"]), (&json!("one"), &json!("machines/one.yaml")));
    assert!(answer.get("hardware").is_none() && answer.get("timeline").is_none(), "{answer}");
    let token = server.registered(ONE).await;
    server.allocated(ONE, &token).await;
    assert_eq!(server.begin(&token, "").await, 200);
    let event = json!({ "event": "Installing", "message": "begins", "step": "image.burn" });
    let path = format!("/v1/machine/{ONE}/event");
    assert_eq!(server.call(&token, "POST", &path, &event).await.status, 200);
    let answer = details().await.json();
    assert_eq!((&answer["summary"]["phase"], &answer["macs"][0]), (&json!("installing"), &json!("52:54:00:00:00:01")));
    let disks = answer["hardware"]["disk_details"].as_array().unwrap();
    assert!(!disks.is_empty() && disks[0]["serial"].is_string(), "{answer}");
    let timeline = answer["timeline"].as_array().unwrap();
    assert_eq!(timeline[0]["name"], "PXE Booting");
    let last = timeline.last().unwrap();
    assert_eq!((&last["name"], &last["state"]), (&json!("image.burn"), &json!("running")));
    server.report(ONE, &token, "a1", true).await;
    let answer = details().await.json();
    assert_eq!((&answer["report"]["success"], &answer["summary"]["installed"]), (&json!(true), &json!(true)));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn orders_and_results_are_in_the_history() {
    let server = Running::start_in(with_images()).await;
    server.installed().await;
    let order = server.order("debian-13").await;
    let token = server.token(ONE).await;
    server.allocated(ONE, &token).await;
    let mut report = failure(&order, true);
    report["timings"] = json!([{ "step": "image.reach", "seconds": 2.5 }]);
    server.report_of(&token, report.clone()).await;
    server.report_of(&token, report).await;
    server.order("debian-13").await;
    assert_eq!(server.v1("DELETE", &format!("/v1/machine/{ONE}/reinstall"), &Value::Null).await.status, 200);
    let server = server.restarted().await;
    let history = server.v1("GET", &format!("/v1/machine/{ONE}/history"), &Value::Null).await.json();
    let entries: Vec<(&str, &str)> = history
        .as_array()
        .unwrap()
        .iter()
        .map(|entry| (entry["kind"].as_str().unwrap(), entry["image"].as_str().unwrap()))
        .collect();
    let expected = ["debian-12", "debian-13", "debian-13", "debian-13", "debian-13"];
    let kinds = ["installed", "ordered", "failed", "ordered", "cancelled"];
    assert_eq!(entries, kinds.into_iter().zip(expected).collect::<Vec<_>>(), "{history}");
    assert_eq!((&history[2]["stage"], &history[2]["seconds"]), (&json!("image.burn"), &json!(2.5)));
    let events = server.v1("GET", &format!("/v1/machine/{ONE}/events"), &Value::Null).await.json();
    assert_eq!(events[0]["event"], "PXE Booting", "{events}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn log_is_read_incrementally() {
    let server = Running::start().await;
    let token = server.token(ONE).await;
    let say = async |start: u64, log: &str| {
        let body = json!({ "start": start, "log": log });
        let answer = server.call(&token, "POST", &format!("/v1/machine/{ONE}/log"), &body).await;
        assert_eq!(answer.status, 200, "{}", answer.text());
    };
    let read = async |after: &Value| {
        server.v1("GET", &format!("/v1/machine/{ONE}/log?after={after}"), &Value::Null).await.json()
    };
    assert_eq!(read(&json!(0)).await, json!({ "text": "", "next": 0 }));
    say(0, "one\n").await;
    let first = read(&json!(0)).await;
    assert!(first["text"].as_str().unwrap().ends_with("──\none\n"), "{first}");
    assert_eq!(read(&first["next"]).await, json!({ "text": "", "next": first["next"] }));
    say(4, "two\n").await;
    assert_eq!(read(&first["next"]).await["text"], "two\n");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn details_require_operator_and_known_machine() {
    let server = Running::start().await;
    let token = server.token(ONE).await;
    for part in ["details", "events", "history", "log"] {
        let path = |id: &str| format!("/v1/machine/{id}/{part}");
        assert_eq!(server.call(&token, "GET", &path(ONE), &Value::Null).await.status, 401, "{part}");
        assert_eq!(server.v1("GET", &path(STRANGER), &Value::Null).await.status, 404, "{part}");
        assert_eq!(server.v1("GET", &path(ONE), &Value::Null).await.status, 200, "{part}");
    }
    assert_eq!(server.v1("GET", &format!("/v1/machine/{ONE}/log?after=x"), &Value::Null).await.status, 400);
}
