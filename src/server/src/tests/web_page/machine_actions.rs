//! Power actions, lock and release of a machine on the web page.

use super::super::power_control::bmc_field;
use super::*;
use bmc::redfish::test_double::RedfishDouble;

impl Browser<'_> {
    /// Submits the form of an action on machine one.
    async fn act(&self, action: &str, fields: &[(&str, &str)]) -> Answer {
        let token = self.token().await;
        self.post(&format!("/machines/{ONE}/{action}"), &[], &[&[("form", token.as_str())], fields].concat()).await
    }

    /// Returns the page of actions as soon as it contains these words.
    pub(super) async fn actions_with(&self, words: &str) -> String {
        let began = std::time::Instant::now();
        loop {
            let page = self.text(&format!("/machines/{ONE}/actions")).await;
            if page.contains(words) {
                return page;
            }
            assert!(began.elapsed() < PATIENCE, "{words}: {page}");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }
}

fn assert_refused(answer: &Answer, status: u16, words: &str) {
    assert!(answer.status == status && answer.text().contains(words), "{}: {}", answer.status, answer.text());
}

fn file(server: &Running) -> String {
    std::fs::read_to_string(server.dir.path().join("machines/one.yaml")).unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn actions_require_session_form_and_machine_name() {
    let server = Running::start_in(with_images()).await;
    let browser = server.browser().await;
    let before = file(&server);
    for (action, words) in [("power", "the power was not switched"), ("free", "the machine was not freed")] {
        let path = format!("/machines/{ONE}/{action}");
        assert_eq!(browser.post(&path, &[], &[("name", "one"), ("action", "off")]).await.status, 403);
        assert_eq!(server.post(&path, &[], &[("name", "one"), ("action", "off")]).await.status, 401);
        for name in ["", "two", "ONE"] {
            assert_refused(&browser.act(action, &[("name", name), ("action", "off")]).await, 400, words);
        }
    }
    assert_refused(&browser.act("power", &[("name", "one"), ("action", "melt")]).await, 400, "the form has no action");
    assert_refused(&browser.act("power", &[("name", "one"), ("action", "off")]).await, 409, "management controller");
    assert!(browser.text(&format!("/machines/{ONE}/actions")).await.contains("does not name a management controller"));
    assert_eq!(browser.get(&format!("/machines/{STRANGER}/actions")).await.status, 404);
    assert_eq!(file(&server), before);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn power_form_switches_the_machine() {
    let controller = RedfishDouble::start("On", &[]);
    let dir = with_images();
    let text = machine_file(ONE, "one", "52:54:00:00:00:01", "a1", &bmc_field(&controller));
    std::fs::write(dir.path().join("machines/one.yaml"), text).unwrap();
    let server = Running::start_in(dir).await;
    let browser = server.browser().await;
    browser.actions_with("Switch one").await;
    let answer = browser.act("power", &[("name", "one"), ("action", "cycle")]).await;
    assert_eq!((answer.status, &answer.headers["location"]), (303, &format!("/machines/{ONE}")), "{}", answer.text());
    assert_eq!(controller.changes(), ["POST ForceRestart"]);
    server.heard("one: switched off and on, as requested by 127.0.0.1").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn locked_machine_is_unlocked_only_with_its_name() {
    let server = Running::start_in(with_images()).await;
    let browser = server.browser().await;
    assert_refused(&browser.act("lock", &[("reason", " ")]).await, 400, "a lock requires a reason");
    assert_refused(&browser.act("lock", &[("reason", "false")]).await, 400, "must be text");
    let answer = browser.act("lock", &[("reason", "a customer's: disks")]).await;
    assert_eq!(answer.status, 303, "{}", answer.text());
    assert!(browser.text(&format!("/machines/{ONE}")).await.contains("Locked: a customer's: disks"));
    let page = browser.text(&format!("/machines/{ONE}/actions")).await;
    assert!(page.contains("so it cannot be freed") && page.contains("Unlock one"), "{page}");
    let free = [("name", "one"), ("allocation", "a1")];
    assert_refused(&browser.act("free", &free).await, 422, "machine is locked");
    let shown = ("shown", "a customer's: disks");
    assert_refused(&browser.act("lock", &[("name", "two"), shown]).await, 400, "the machine is still locked");
    for other in ["", "another reason"] {
        let answer = browser.act("lock", &[("name", "one"), ("shown", other)]).await;
        assert_refused(&answer, 409, "the lock has changed since the page was loaded");
        let answer = browser.act("lock", &[("reason", "mine"), ("shown", other)]).await;
        assert_refused(&answer, 409, "the lock has changed since the page was loaded");
    }
    assert!(file(&server).contains("locked: "), "{}", file(&server));
    assert_eq!(browser.act("lock", &[("name", "one"), shown]).await.status, 303);
    assert!(!file(&server).contains("locked"), "{}", file(&server));

    let answer = browser.act("free", &[("name", "one"), ("allocation", "a0")]).await;
    assert_refused(&answer, 409, "the allocation has changed since the page was loaded");
    let answer = browser.act("free", &free).await;
    assert_eq!(answer.status, 303, "{}", answer.text());
    assert!(!file(&server).contains("allocation"), "{}", file(&server));
    assert!(browser.actions_with("The machine is free.").await.contains("Power"));
    server.heard("one: 127.0.0.1 removed allocation a1").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn machine_with_removed_image_can_be_locked() {
    let server = Running::start_in(with_images()).await;
    server.installed().await;
    let browser = server.browser().await;
    std::fs::remove_file(server.dir.path().join("images/debian.yaml")).unwrap();
    let began = std::time::Instant::now();
    while browser.text("/images").await.contains("debian-12") {
        assert!(began.elapsed() < PATIENCE, "the image is still listed");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let answer = browser.act("lock", &[("reason", "a customer's disks")]).await;
    assert_eq!(answer.status, 303, "{}", answer.text());
    assert!(file(&server).contains("locked: "), "{}", file(&server));
}
