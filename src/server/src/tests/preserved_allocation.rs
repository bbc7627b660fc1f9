//! A reinstall preserves the installed allocation and lists the differences from the machine file, unless the order
//! applies the file.

use super::reinstall::{failure, success, with_images};
use super::secret_release::with_secrets;
use super::*;

/// Waits until the machine's entry in the list of machines satisfies the condition.
async fn listed_when(server: &Running, is_so: impl Fn(&Value) -> bool, what: &str) -> Value {
    let began = std::time::Instant::now();
    loop {
        let listed = server.listed().await;
        if is_so(&listed) {
            return listed;
        }
        assert!(began.elapsed() < PATIENCE, "never: {what}: {listed}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

fn file(hostname: &str, more: &str) -> String {
    machine_file(ONE, "one", "52:54:00:00:00:01", "a1", more)
        .replace("hostname: h\n", &format!("hostname: {hostname}\n"))
}

/// Edits the machine file, and waits until the server has read it.
async fn edit(server: &Running, hostname: &str, more: &str) -> Value {
    server.write("machines/one.yaml", &file(hostname, more));
    let has_hostname = |listed: &Value| {
        let differences = listed["differences"].as_array().cloned().unwrap_or_default();
        differences.iter().any(|one| one["field"] == "hostname" && one["file"] == hostname)
    };
    listed_when(server, has_hostname, hostname).await["differences"].clone()
}

/// Returns the differences between the file and the installed allocation in these tests, all with this effect.
fn differences(effect: &str) -> Value {
    json!([
        { "field": "hostname", "installed": "h", "file": "other", "effect": effect },
        { "field": "ssh_pub_keys", "file": ["ssh-rsa AAAA"], "effect": effect },
    ])
}

impl Running {
    /// Carries out the open order, and returns the allocation that the agent has received.
    async fn complete_order(&self, order: &str) -> allocation::Allocation {
        let token = self.token(ONE).await;
        let given = self.allocated(ONE, &token).await.allocation.unwrap();
        assert_eq!(given.order_id(), Some(order));
        assert_eq!(self.begin(&token, order).await, 200);
        self.report_of(&token, success(order)).await;
        given
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn machine_file_is_applied_only_with_apply_allocation() {
    let server = Running::start_in(with_images()).await;
    server.installed().await;
    assert_eq!(server.listed().await.get("differences"), None);
    assert_eq!(edit(&server, "other", "  ssh_pub_keys: [ssh-rsa AAAA]\n").await, differences("kept"));
    server.heard("the file differs from the installed allocation in hostname, ssh_pub_keys; a reinstall without").await;

    let answer = server.press(ONE, "debian-13", json!({})).await;
    assert_eq!((answer.status, &answer.json()["differences"]), (200, &differences("kept")), "{}", answer.text());
    assert_eq!(answer.json()["order"]["apply_allocation"], false);
    server.heard("ordered: image debian-13; kept as installed: hostname, ssh_pub_keys").await;
    let order = answer.json()["order"]["id"].as_str().unwrap().to_owned();
    let server = server.restarted().await;
    let given = server.complete_order(&order).await;
    assert_eq!((given.hostname.as_str(), given.ssh_pub_keys.len(), given.image.id.as_str()), ("h", 0, "debian-13"));
    assert_eq!(server.listed().await["differences"], differences("kept"), "the installed allocation is as before");

    let answer = server.press(ONE, "debian-13", json!({ "apply_allocation": true })).await;
    assert_eq!(answer.json()["order"]["apply_allocation"], true);
    let words = "with the allocation of the machine file; changed by the machine file: hostname, ssh_pub_keys";
    server.heard(&format!("ordered: image debian-13, {words}")).await;
    let preview = server.call(&server.operator(), "GET", &format!("/v1/machine/{ONE}/preview"), &Value::Null).await;
    assert_eq!(preview.json()["differences"], differences("applied"));
    assert_eq!(preview.json()["machine"]["allocation"]["hostname"], "other", "as the agent would get it");
    let order = answer.json()["order"]["id"].as_str().unwrap().to_owned();
    let given = server.complete_order(&order).await;
    assert_eq!((given.hostname.as_str(), given.ssh_pub_keys.len()), ("other", 1));
    assert_eq!(server.listed().await.get("differences"), None);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn canceled_or_failed_order_does_not_apply_the_file() {
    let server = Running::start_in(with_images()).await;
    server.installed().await;
    edit(&server, "other", "  ssh_pub_keys: [ssh-rsa AAAA]\n").await;
    for is_cancelled in [true, false] {
        let answer = server.press(ONE, "debian-13", json!({ "apply_allocation": true })).await;
        assert_eq!((answer.status, &answer.json()["differences"]), (200, &differences("applied")), "{}", answer.text());
        let token = server.token(ONE).await;
        assert_eq!(server.allocated(ONE, &token).await.allocation.unwrap().hostname, "other");
        let order = answer.json()["order"]["id"].as_str().unwrap().to_owned();
        if is_cancelled {
            let path = format!("/v1/machine/{ONE}/reinstall");
            assert_eq!(server.call(&server.operator(), "DELETE", &path, &Value::Null).await.status, 200);
        } else {
            assert_eq!(server.begin(&token, &order).await, 200);
            assert!(!server.report_of(&token, failure(&order, true)).await);
        }
        assert_eq!(server.listed().await["differences"], differences("kept"));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_changed_secret_is_refused_or_applied() {
    let server = Running::start_in(with_secrets()).await;
    let secrets =
        "  disk_key: a-key-that-is-long-enough-for-it\n  console_password: the-password\n  vpn: {auth_key: the-key}\n";
    let with_user_data = |text: &str| format!("{secrets}  user_data: {text}\n");
    let token = server.token(ONE).await;
    server.allocated(ONE, &token).await;
    assert_eq!(server.begin(&token, "").await, 200);
    assert_eq!(server.secrets(&token, "a1", "system").await.status, 200);
    server.report(ONE, &token, "a1", true).await;
    assert_eq!(server.listed().await.get("differences"), None, "the secrets come from the file");

    let differences = edit(&server, "other", &with_user_data("new")).await;
    assert_eq!(differences[1], json!({ "field": "user_data", "secret": true, "effect": "refused" }));
    let refused = server.press(ONE, "debian-12", json!({})).await;
    assert_eq!((refused.status, &refused.json()["code"]), (400, &json!("allocation-not-keepable")));
    assert!(refused.text().contains("in user_data. The installed values cannot be kept"), "{}", refused.text());
    assert!(refused.text().contains("--apply-allocation"), "{}", refused.text());
    assert_eq!(server.listed().await["order"], Value::Null);

    let answer = server.press(ONE, "debian-12", json!({ "apply_allocation": true })).await;
    assert_eq!(answer.json()["differences"][1]["effect"], "applied");
    let token = server.token(ONE).await;
    server.allocated(ONE, &token).await;
    assert_eq!(server.begin(&token, answer.json()["order"]["id"].as_str().unwrap()).await, 200);
    assert!(server.secrets(&token, "a1", "system").await.text().contains("\"new\""));
}

/// If an edit of the file during an open order makes it impossible to preserve the installed values, the previous
/// version of the file stays in force.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn changed_secret_during_an_order_is_not_installed() {
    let dir = with_images();
    std::fs::write(dir.path().join("machines/one.yaml"), file("h", "  user_data: old\n")).unwrap();
    let server = Running::start_in(dir).await;
    server.installed().await;
    let order = server.order("debian-13").await;
    server.write("machines/one.yaml", &file("h", "  user_data: new\n"));
    server.heard("in user_data. The installed values cannot be kept").await;
    let token = server.token(ONE).await;
    server.allocated(ONE, &token).await;
    assert_eq!(server.begin(&token, &order).await, 200);
    let sent = server.secrets(&token, "a1", "system").await.text();
    assert!(sent.contains("\"old\"") && !sent.contains("\"new\""), "{sent}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn unknown_fields_are_refused_and_those_of_metal_api_accepted() {
    let server = Running::start_in(with_images()).await;
    server.installed().await;
    for (field, words) in [
        ("apply_alocation", "unknown field \\\"apply_alocation\\\"; did you mean \\\"apply_allocation\\\"?"),
        ("imageId", "unknown field \\\"imageId\\\"; did you mean \\\"imageid\\\"?"),
        ("hostname", "unknown field \\\"hostname\\\"; available: id, imageid, "),
    ] {
        let answer = server.press(ONE, "debian-13", json!({ field: true })).await;
        assert!(answer.status == 400 && answer.text().contains(words), "{}", answer.text());
    }
    assert_eq!(server.listed().await["order"], Value::Null);
    let more = json!({ "name": "one", "description": "kernel update" });
    assert_eq!(server.press(ONE, "debian-13", more).await.status, 200);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn page_lists_differences_and_refuses_outdated_forms() {
    let server = Running::start_in(with_images()).await;
    let token = server.registered(ONE).await;
    server.allocated(ONE, &token).await;
    server.report(ONE, &token, "a1", true).await;
    edit(&server, "other", "").await;
    let browser = server.browser().await;
    let page = browser.text(&format!("/machines/{ONE}")).await;
    assert!(
        page.contains("hostname: stays &quot;h&quot;; the value in the machine file is ignored: &quot;other&quot;"),
        "{page}"
    );
    let path = format!("/machines/{ONE}/reinstall");
    let page = browser.text(&format!("{path}?image=debian-13&apply_allocation=yes")).await;
    assert!(page.contains("hostname: &quot;h&quot; becomes &quot;other&quot;"), "{page}");
    let value = |name: &str| {
        let (_, rest) = page.split_once(&format!("name=\"{name}\" value=\"")).unwrap();
        rest.split('"').next().unwrap().to_owned()
    };
    assert_eq!(value("apply_allocation"), "yes");
    let (form, shown) = (value("form"), value("shown"));
    edit(&server, "third", "").await;
    let fields = [
        ("form", form.as_str()),
        ("shown", &shown),
        ("image", "debian-13"),
        ("apply_allocation", "yes"),
        ("name", "one"),
    ];
    let answer = browser.post(&path, &[], &fields).await;
    assert!(answer.status == 409 && answer.text().contains("the plan has changed since it was shown"));
    edit(&server, "other", "").await;
    assert_eq!(browser.post(&path, &[], &fields).await.status, 303);
    assert_eq!(server.listed().await["order"]["apply_allocation"], true);
    let page = browser.text(&format!("/machines/{ONE}")).await;
    assert!(page.contains(", with the allocation of the machine file"), "{page}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn plan_and_reinstall_print_the_differences() {
    let server = Running::start_in(with_images()).await;
    // Without a marker, a plan requires a layout that does not select the disk by its name.
    let layout = LAYOUT.replace("{device: /dev/sda,", "{device: /dev/sda, hints: {serial: QM00001},");
    server.write("layouts/default.yaml", &layout);
    server.shows("/v1/filesystemlayout/default", |answer| answer.text().contains("QM00001")).await;
    let token = server.registered(ONE).await;
    server.allocated(ONE, &token).await;
    server.report(ONE, &token, "a1", true).await;
    edit(&server, "other", "").await;
    let inventory = concat!(env!("CARGO_MANIFEST_DIR"), "/../../testdata/inventories/installed-default.json");
    let arguments = ["--machine", "one", "--reinstall", "--without-marker", "--inventory", inventory, "--json"];
    let (text, _) = server.plan(&arguments).await.unwrap();
    let kept = "the machine file differs from the installed allocation; --apply-allocation applies the whole file: \
                hostname: stays \\\"h\\\"; the value in the machine file is ignored: \\\"other\\\"";
    assert!(text.contains(kept), "{text}");
    assert!(server.machine(&["reinstall", "one", "--image", "debian-13", "--apply-allocation"]).await.is_ok());
    assert_eq!(server.listed().await["order"]["apply_allocation"], true);
    let (text, _) = server.plan(&arguments).await.unwrap();
    let applied =
        "the reinstall applies the machine file to the installed allocation: hostname: \\\"h\\\" becomes \\\"other\\\"";
    assert!(text.contains(applied), "{text}");
}
