//! Rollouts on the web page.

use super::super::rollouts::id;
use super::*;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rollout_page_halts_and_resumes_a_rollout() {
    let server = Running::with_installed_machines("").await;
    let browser = server.browser().await;
    assert!(browser.text("/rollouts").await.contains("0 rollouts"));
    let path = server.rollout(&[1, 2, 3], json!({ "at_most": 1 })).await;
    server.until_states(&path, &["ordered", "waiting", "waiting"]).await;
    let page = browser.text("/rollouts").await;
    assert!(
        page.contains("<progress max=\"3\" value=\"0\"") && page.contains("0 of 3 done, 2 waiting, 1 ordered"),
        "{page}"
    );
    let page = browser.text("/rollouts/1").await;
    assert!(page.contains("at most 1") && page.contains("m3") && page.contains("Halt"), "{page}");
    let machine = browser.text(&format!("/machines/{}", id(1))).await;
    assert!(machine.contains("rollout 1") && machine.contains("(running): ordered"), "{machine}");
    assert!(!browser.text(&format!("/machines/{}", id(4))).await.contains("Member of"));
    let details = server.v1("GET", &format!("/v1/machine/{}/details", id(1)), &Value::Null).await.json();
    assert_eq!((&details["rollout"]["id"], &details["rollout"]["member"]["state"]), (&json!(1), &json!("ordered")));
    let details = server.v1("GET", &format!("/v1/machine/{}/details", id(4)), &Value::Null).await.json();
    assert!(details["rollout"].is_null());

    let token = browser.token().await;
    assert_eq!(browser.post("/rollouts/1/halt", &[], &[("form", "x")]).await.status, 403);
    let halted = browser.post("/rollouts/1/halt", &[], &[("form", &token)]).await;
    assert_eq!((halted.status, halted.headers["location"].as_str()), (303, "/rollouts/1"), "{}", halted.text());
    server.installs_member(1).await;
    server.until_states(&path, &["done", "waiting", "waiting"]).await;
    let page = browser.text("/rollouts/1").await;
    assert!(page.contains("halted by operator") && page.contains("Resume"), "{page}");
    assert_eq!(browser.post("/rollouts/1/resume", &[], &[("form", &token)]).await.status, 303);
    server.until_states(&path, &["done", "ordered", "waiting"]).await;
    assert_eq!(browser.post("/rollouts/9/resume", &[], &[("form", &token)]).await.status, 404);
    assert_eq!(browser.get("/rollouts/9").await.status, 404);
    let viewer = server.user("vic", "viewer", &[]).await;
    let page = server.browser_with(&viewer).await.text("/rollouts/1").await;
    assert!(!page.contains("Halt"), "{page}");
}
