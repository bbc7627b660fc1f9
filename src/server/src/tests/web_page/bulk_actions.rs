//! Actions on several machines: the review page, the confirmation by the number of machines, the checks of each
//! machine, and failures of single machines.

use super::super::power_control::bmc_field;
use super::*;
use bmc::redfish::test_double::RedfishDouble;

impl Browser<'_> {
    pub(super) async fn bulk(&self, path: &str, fields: &[(&str, &str)]) -> Answer {
        let token = self.token().await;
        self.post(path, &[], &[&[("form", token.as_str())], fields].concat()).await
    }

    /// Returns the page that reviews this action on both machines.
    pub(super) async fn review(&self, action: &str, image: &str) -> String {
        let fields = [("action", action), ("image", image), ("machine", ONE), ("machine", TWO)];
        let answer = self.bulk("/bulk/review", &fields).await;
        assert_eq!(answer.status, 200, "{}", answer.text());
        answer.text()
    }
}

/// Returns the values of all hidden fields with this name.
pub(super) fn values<'a>(page: &'a str, name: &str) -> Vec<&'a str> {
    let field = format!("type=\"hidden\" name=\"{name}\" value=\"");
    let parts = page.split(&field).skip(1);
    parts.map(|rest| rest.split('"').next().unwrap()).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn bulk_actions_require_review_and_typed_count() {
    let server = Running::start_in(with_images()).await;
    server.until_digests_are_known().await;
    let browser = server.browser().await;
    let page = browser.text("/").await;
    assert!(page.contains(&format!("name=\"machine\" value=\"{ONE}\" form=\"bulk\"")), "{page}");
    let page = browser.review("reinstall", "debian-13").await;
    assert!(page.contains("is not installed yet") && !page.contains("button class=\"danger\""), "{page}");
    server.installed().await;
    let page = browser.review("reinstall", "debian-13").await;
    assert!(page.contains("the plan is unknown: the machine has never registered"), "{page}");
    assert_eq!(server.press(ONE, "debian-12", json!({ "without_marker": true })).await.status, 200);
    let token = server.registered(ONE).await;
    server.allocated(ONE, &token).await;
    let page = browser.review("reinstall", "debian-12").await;
    assert!(page.contains("Machines that will be skipped: "), "{page}");
    let page = browser.review("cancel", "").await;
    for words in ["Cancel the orders of 1 machine", "Machines that will be skipped: 1", "no reinstall is ordered"] {
        assert!(page.contains(words), "{words}: {page}");
    }
    let (machines, shown) = (values(&page, "machine"), values(&page, "shown"));
    assert_eq!((machines.as_slice(), shown.len()), (&[ONE][..], 1));
    let confirm = async |shown: &str, count: &str, more: &[(&str, &str)]| {
        let fields = [("action", "cancel"), ("machine", ONE), ("shown", shown), ("count", count)];
        browser.bulk("/bulk/confirm", &[&fields[..], more].concat()).await
    };
    for count in ["", "2", "one"] {
        let answer = confirm(shown[0], count, &[]).await;
        assert!(answer.status == 400 && answer.text().contains("nothing was changed"), "{}", answer.text());
    }
    let answer = confirm("another order", "1", &[]).await;
    let text = answer.text();
    assert!(answer.status == 200 && text.contains("0 of 1 machine changed") && text.contains("has changed"), "{text}");
    assert!(server.listed().await["order"].is_object(), "nothing was canceled so far");
    // A failure on one machine does not affect the others.
    let answer = confirm(shown[0], "2", &[("machine", TWO), ("shown", "")]).await.text();
    for words in ["1 of 2 machines changed", "Unchanged machines: 1", "Order canceled: 1", "no reinstall is ordered"] {
        assert!(answer.contains(words), "{words}: {answer}");
    }
    assert!(server.listed().await["order"].is_null());
    let entries = server.v1("GET", &format!("/v1/audit?action=bulk/confirm&machine={TWO}"), &Value::Null).await.json();
    assert_eq!(entries[0]["object"], json!(format!("{ONE}, {TWO}")), "{entries}");
    assert_eq!(entries.as_array().unwrap().len(), 1, "the other actions were on one machine: {entries}");
    let page = browser.text("/audit").await;
    assert!(page.contains(">one, two<"), "{page}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_planned_reinstall_shows_what_the_machine_loses() {
    let server = Running::start_in(with_images()).await;
    let browser = server.browser().await;
    let token = server.registered(ONE).await;
    server.allocated(ONE, &token).await;
    assert_eq!(server.begins_first(ONE, &token, "a1").await, 200);
    server.report(ONE, &token, "a1", true).await;
    let page = browser.review("reinstall", "debian-13").await;
    for words in ["Reinstall 1 machine with debian-13", "Data lost", "/dev/sda", "Type <strong>1</strong>"] {
        assert!(page.contains(words), "{words}: {page}");
    }
    let shown = values(&page, "shown")[0];
    let fields = [("action", "reinstall"), ("image", "debian-13"), ("machine", ONE), ("shown", shown), ("count", "1")];
    let text = browser.bulk("/bulk/confirm", &fields).await.text();
    assert!(text.contains("Reinstall ordered: 1"), "{text}");
    assert_eq!(server.listed().await["order"]["image"], "debian-13");
    let text =
        browser.bulk("/bulk/confirm", &[&fields[..1], &[("image", "debian-12")], &fields[2..]].concat()).await.text();
    assert!(text.contains("0 of 1 machine changed"), "{text}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn several_machines_are_switched_after_a_review() {
    let controller = RedfishDouble::start("On", &[]);
    let dir = with_images();
    let text = machine_file(ONE, "one", "52:54:00:00:00:01", "a1", &bmc_field(&controller));
    std::fs::write(dir.path().join("machines/one.yaml"), text).unwrap();
    let server = Running::start_in(dir).await;
    let browser = server.browser().await;
    let page = browser.review("off", "").await;
    for words in ["Switch off 1 machine", "not installed", "Machines that will be skipped: 1", "management controller"]
    {
        assert!(page.contains(words), "{words}: {page}");
    }
    assert_eq!(values(&page, "machine"), [ONE]);
    let shown = values(&page, "shown")[0];
    let confirm = async |shown: &str, count: &str| {
        let fields = [("action", "off"), ("machine", ONE), ("shown", shown), ("count", count)];
        browser.bulk("/bulk/confirm", &fields).await
    };
    assert_eq!(confirm(shown, "2").await.status, 400);
    let text = confirm("installing", "1").await.text();
    assert!(text.contains("0 of 1 machine changed") && text.contains("the phase has changed"), "{text}");
    assert!(controller.changes().is_empty(), "a machine whose phase has changed is not switched");
    let text = confirm(shown, "1").await.text();
    assert!(text.contains("Switched: 1"), "{text}");
    assert_eq!(controller.changes(), ["POST ForceOff"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn forms_without_action_machine_or_token_are_refused() {
    let server = Running::start_in(with_images()).await;
    let browser = server.browser().await;
    for (fields, words) in [
        (vec![("machine", ONE)], "no action"),
        (vec![("action", "reinstall"), ("machine", ONE)], "no image is selected"),
        (vec![("action", "cancel")], "no machine is selected"),
    ] {
        for path in ["/bulk/review", "/bulk/confirm"] {
            let answer = browser.bulk(path, &fields).await;
            assert!(answer.status == 400 && answer.text().contains(words), "{path} {words}: {}", answer.text());
        }
    }
    let many: Vec<String> = (0..501).map(|number| format!("m{number}")).collect();
    let fields = [("action", "cancel")].into_iter().chain(many.iter().map(|id| ("machine", id.as_str())));
    let answer = browser.bulk("/bulk/review", &fields.collect::<Vec<_>>()).await;
    assert!(answer.status == 400 && answer.text().contains("at most 500"), "{}", answer.text());
    for path in ["/bulk/review", "/bulk/confirm"] {
        assert_eq!(browser.post(path, &[], &[("action", "cancel"), ("machine", ONE)]).await.status, 403);
        assert_eq!(server.post(path, &[], &[("action", "cancel"), ("machine", ONE)]).await.status, 401);
    }
}
