//! Messages and URLs that are partly hidden from viewers: the output of an image's installer, and secrets in URLs.

use super::reinstall::{failure, with_images};
use super::*;
use api::access::route_access::{RouteAccess, all_rules};
use store::users::UserRole;

/// Message of a failed installer, which quotes the output of the installer.
const MESSAGE: &str = "image.burn: run the image's installer /install.sh: `/install.sh` exited with 3: root password: hunter2 | end\nhunter2";

/// Returns the responses to all read requests that viewers may send about machine one.
async fn read_everything(server: &Running) -> Vec<(String, String)> {
    let token = server.user("vic", "viewer", &[]).await;
    let (bearer, browser) = (format!("Bearer {token}"), server.browser_with(&token).await);
    let version = ("X-OpenStack-Ironic-API-Version", "latest");
    let mut all = Vec::new();
    for (method, route, access, _) in all_rules() {
        let path = route.replace("{id}", ONE).replace("/{*path}", "");
        match access {
            RouteAccess::User(UserRole::Viewer) | RouteAccess::MachineOrUser(_) | RouteAccess::MetricsOrUser(_) => {
                let answer = server.ask(method, &path, &[("Authorization", &bearer), version], "{}").await;
                all.push((format!("{method} {path}"), answer.text()));
            }
            RouteAccess::Page(UserRole::Viewer) if *method == "GET" && path != "/events" => {
                all.push((format!("page {path}"), browser.get(&path).await.text()));
            }
            _ => {}
        }
    }
    all
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn viewers_read_failures_without_installer_output() {
    let server = Running::start_in(with_images()).await;
    server.installed().await;
    let order = server.order("debian-13").await;
    let token = server.token(ONE).await;
    server.allocated(ONE, &token).await;
    for (name, step) in [("Installing", json!("image.burn")), ("Crashed", Value::Null)] {
        let event = json!({ "event": name, "message": MESSAGE, "step": step });
        assert_eq!(server.call(&token, "POST", &format!("/v1/machine/{ONE}/event"), &event).await.status, 200);
    }
    let mut report = failure(&order, true);
    report["message"] = json!(MESSAGE);
    server.report_of(&token, report).await;
    let all = read_everything(&server).await;
    for (request, text) in &all {
        assert!(!text.contains("hunter2"), "{request}: {text}");
    }
    let with_reason = all.iter().filter(|(_, text)| text.contains("`/install.sh` exited with 3")).count();
    assert!(with_reason >= 8, "{with_reason} responses contain the reason without the output");
    let operator = server.user("olga", "operator", &[]).await;
    for path in ["/v1/machines", &format!("/v1/machine/{ONE}/details"), &format!("/v1/machine/{ONE}/events")] {
        assert!(server.call(&operator, "GET", path, &Value::Null).await.text().contains("hunter2"), "{path}");
    }
    let page = server.browser_with(&operator).await.text(&format!("/machines/{ONE}")).await;
    assert!(page.contains("hunter2 | end"), "{page}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn viewers_and_audit_log_see_masked_urls() {
    let dir = with_images();
    let url = "https://me:hunter2@install.rack/d.tar.zst?X-Token=hunter2&part=1";
    let digest = format!("sha256:{}", "0".repeat(64));
    let image = format!("id: debian-14\nurl: {url}\ndigest: {digest}\nmirrors: ['{url}']\n");
    std::fs::write(dir.path().join("images/14.yaml"), image).unwrap();
    let one = std::fs::read_to_string(dir.path().join("machines/one.yaml")).unwrap();
    std::fs::write(dir.path().join("machines/one.yaml"), one.replace("debian-12", "debian-14")).unwrap();
    let server = Running::start_in(dir).await;
    server.token(ONE).await;
    let all = read_everything(&server).await;
    for (request, text) in &all {
        assert!(!text.contains("hunter2"), "{request}: {text}");
    }
    let masked = "https://…@install.rack/d.tar.zst?X-Token=…&part=1";
    assert!(all.iter().filter(|(_, text)| text.contains(masked)).count() >= 2, "{all:?}");
    assert!(server.v1("GET", "/v1/image", &Value::Null).await.text().contains(url), "an admin sees the URL");
    let changed = json!({"id": "debian-14", "url": url.replace("part=1", "part=2")});
    let answer = server.v1("POST", "/v1/image", &changed).await;
    assert_eq!(answer.status, 200, "{}", answer.text());
    let invalid = server.v1("PUT", "/v1/image", &json!({"id": "x", "url": format!("{url}&a b")})).await;
    let audit = server.v1("GET", "/v1/audit", &Value::Null).await.text();
    assert!(audit.contains("part=2") && !audit.contains("hunter2"), "{} {audit}", invalid.text());
}

/// The message about an invalid file can quote a secret that is in the wrong field.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn viewers_see_names_of_invalid_files_without_contents() {
    let server = Running::start().await;
    let file = machine_file(TWO, "two", "52:54:00:00:00:02", "a2", "  os_parameters: hunter2\n");
    server.write("machines/two.yaml", &file);
    server.heard("hunter2").await;
    let operator = server.browser_with(&server.user("olga", "operator", &[]).await).await;
    assert!(operator.text("/").await.contains("hunter2"));
    let token = server.user("vic", "viewer", &[]).await;
    let viewer = server.browser_with(&token).await;
    let page = viewer.text("/").await;
    assert!(page.contains("two.yaml:") && page.contains("only operators can read this problem"), "{page}");
    assert!(!page.contains("hunter2"), "{page}");
    assert!(!viewer.get(&format!("/machines/{TWO}")).await.text().contains("hunter2"));
    let authorization = format!("Bearer {token}");
    for path in ["/v1/machines".to_owned(), format!("/v1/machine/{TWO}/details")] {
        let answer = server.ask("GET", &path, &[("Authorization", &authorization)], "").await.text();
        assert!(answer.contains("only operators can read") && !answer.contains("hunter2"), "{path}: {answer}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn viewers_may_send_head_requests() {
    let server = Running::start().await;
    let bearer = format!("Bearer {}", server.user("vic", "viewer", &[]).await);
    for path in ["/v1/machines", "/v1/image"] {
        let answer = server.ask("HEAD", path, &[("Authorization", &bearer)], "").await;
        assert_eq!((answer.status, answer.body.len()), (200, 0), "{path}");
    }
}
