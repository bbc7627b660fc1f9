//! Console output of machines on their pages, and request ids in the logs of client and server.

use super::*;

impl Running {
    async fn says(&self, token: &str, id: &str, start: u64, log: &str) -> u16 {
        let body = json!({ "start": start, "log": log });
        self.call(token, "POST", &format!("/v1/machine/{id}/log"), &body).await.status
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn console_output_is_shown_on_the_machine_page() {
    let server = Running::start().await;
    let browser = server.browser().await;
    let (path, text) = (format!("/machines/{ONE}"), format!("/machines/{ONE}/log"));
    let token = token_of(&server.boot(&format!("uuid={ONE}")).await.text());
    assert_eq!(server.says(&token, ONE, 0, "somebody else's\n").await, 401, "anybody can ask for a boot");
    assert_eq!(server.register(ONE, &token).await.status, 200);
    assert_eq!(server.says(&token, ONE, 0, "drophammer: hardware is up\nPrepar").await, 200);
    // The acknowledgement was lost, so the agent sends the output again, together with newer output.
    assert_eq!(server.says(&token, ONE, 0, "drophammer: hardware is up\nPreparing <b>\u{1b}[2J\n").await, 200);
    assert_eq!(server.says(&token, ONE, 45, "Registering\n").await, 200);
    assert_eq!(server.says(&token, ONE, 157, "Waiting\n").await, 200);
    let page = browser.text(&path).await;
    for words in ["Preparing &lt;b&gt; [2J\nRegistering\n[100 bytes are missing]\nWaiting\n", "href=\"/machines/"] {
        assert!(page.contains(words), "{words}: {page}");
    }
    assert!(!page.contains("somebody else") && page.matches("hardware is up").count() == 1, "{page}");
    let answer = browser.get(&text).await;
    assert_eq!((answer.status, answer.headers["content-type"].as_str()), (200, "text/plain; charset=utf-8"));
    assert!(answer.text().contains("Preparing <b> [2J\nRegistering\n"), "{}", answer.text());
    // After its success, a boot may still send its last output.
    server.allocated(ONE, &token).await;
    server.report(ONE, &token, "a1", true).await;
    assert_eq!(server.says(&token, ONE, 165, "Booting New Kernel\n").await, 200);
    assert!(browser.text(&text).await.ends_with("Waiting\nBooting New Kernel\n"));
    assert_ne!(server.ask("GET", &text, &[], "").await.status, 200, "not for everybody");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_log_is_bounded_and_outlives_the_server() {
    let server = Running::start().await;
    let token = server.token(ONE).await;
    let part = "x".repeat(63) + "\n";
    for number in 0..40u64 {
        assert_eq!(server.says(&token, ONE, number * 16_384, &part.repeat(256)).await, 200);
    }
    assert_eq!(server.says(&token, ONE, 655_360, &"x".repeat(70_000)).await, 413);
    let stranger = server.token(STRANGER).await;
    assert_eq!(server.says(&stranger, STRANGER, 0, "nobody knows me\n").await, 200);
    let server = Running::start_in(server.stop().await).await;
    let browser = server.browser().await;
    let text = browser.text(&format!("/machines/{ONE}/log")).await;
    assert!(text.len() > 200_000 && text.len() < 262_144 + 200, "{}", text.len());
    assert!(text.contains(" bytes are missing]\nxxx") && text.ends_with("x\n"), "the end of the log is preserved");
    assert!(browser.text(&format!("/machines/{STRANGER}/log")).await.is_empty());
    let page = browser.text(&format!("/machines/{ONE}")).await;
    assert!(page.contains("last part only") && page.len() < 150_000, "{}", page.len());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn request_id_is_in_response_and_log_lines() {
    let server = Running::start().await;
    let token = server.token(ONE).await;
    let (bearer, path) = (format!("Bearer {token}"), format!("/v1/machine/{ONE}/event"));
    let event = json!({ "event": "Alive", "message": "still here" }).to_string();
    let ids = [("Authorization", bearer.as_str()), ("X-Request-Id", "5f0c2a91-7")];
    let answer = server.ask("POST", &path, &ids, &event).await;
    assert_eq!((answer.status, answer.headers["x-request-id"].as_str()), (200, "5f0c2a91-7"));
    server
        .heard("\"path\":\"/v1/machine/4c4c4544-0051-3010-8052-b4c04f4d0001/event\",\"request\":\"5f0c2a91-7\"")
        .await;
    let heard = server.heard.text();
    let said: Vec<Value> = heard.lines().filter_map(|line| serde_json::from_str(line).ok()).collect();
    let of_it: Vec<&Value> = said.iter().filter(|line| line["request"] == "5f0c2a91-7").collect();
    assert_eq!(of_it.len(), 2, "{heard}");
    assert_eq!((&of_it[0]["event"], &of_it[1]["status"]), (&json!("Alive"), &json!(200)));
    // Refused requests also have an id. The server replaces a missing or invalid id with a random one.
    let answer = server.ask("POST", &path, &[("X-Request-Id", "a b")], &event).await;
    let made = &answer.headers["x-request-id"];
    assert_eq!((answer.status, made.len()), (401, 16));
    server.heard(made).await;
    assert!(!heard.contains(&token), "the log does not contain a token");
}
