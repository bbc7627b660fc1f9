//! Allocations that do not name a layout: the layout is selected by the machine's size and image.

use super::*;

fn layout(id: &str, constraint: &str) -> String {
    LAYOUT.replace("id: default", &format!("id: {id}"))
        + &format!("constraints: {{sizes: [c1], images: {{debian: {constraint:?}}}}}\n")
}

/// Returns the text of [`machine_file`] without the line that names a layout.
fn without_layout(allocation: &str, image: &str) -> String {
    let named = machine_file(ONE, "one", "52:54:00:00:00:01", allocation, "");
    named.replace("  filesystemlayout: default\n", "").replace("debian-12", image)
}

async fn layout_of(server: &Running, token: &str) -> Option<String> {
    let answer = server.call(token, "GET", &format!("/v1/machine/{ONE}"), &Value::Null).await.json();
    answer["allocation"]["filesystemlayout"]["id"].as_str().map(str::to_owned)
}

/// Waits until the machine's allocation has this layout, or none.
async fn until_layout(server: &Running, token: &str, expected: Option<&str>) {
    for _ in 0..500 {
        if layout_of(server, token).await.as_deref() == expected {
            return;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    panic!("never {expected:?}: {}", server.heard.text());
}

fn with_images() -> TempDir {
    let dir = directory();
    for version in ["13", "14"] {
        let text = format!("id: debian-{version}\nfile: deb/debian 12.tar.zst\n");
        std::fs::write(dir.path().join(format!("images/{version}.yaml")), text).unwrap();
    }
    dir
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn layout_is_selected_by_size_and_image_and_stored() {
    let dir = with_images();
    std::fs::write(dir.path().join("layouts/old.yaml"), layout("old", "< 13")).unwrap();
    std::fs::write(dir.path().join("layouts/new.yaml"), layout("new", ">= 13")).unwrap();
    std::fs::write(dir.path().join("machines/one.yaml"), without_layout("a1", "debian-12")).unwrap();
    let server = Running::start_in(dir).await;
    let token = server.token(ONE).await;
    server.allocated(ONE, &token).await;
    assert_eq!(layout_of(&server, &token).await.as_deref(), Some("old"));
    server.report(ONE, &token, "a1", true).await;

    // If the allocation is edited to name another image, its layout stays the same, even if that image is ordered, or
    // the server restarts.
    server.write("machines/one.yaml", &without_layout("a1", "debian-13"));
    server.heard("the file specifies image debian-13, but image debian-12 is installed").await;
    server.order("debian-13").await;
    let token = server.token(ONE).await;
    assert_eq!(layout_of(&server, &token).await.as_deref(), Some("old"));
    let server = Running::start_in(server.stop().await).await;
    let token = server.token(ONE).await;
    server.allocated(ONE, &token).await;
    assert_eq!(layout_of(&server, &token).await.as_deref(), Some("old"));

    // As long as the allocation is not installed, the layout is selected again after each change.
    server.write("machines/one.yaml", &without_layout("a2", "debian-12"));
    server.write("layouts/old.yaml", &layout("older", "< 13"));
    until_layout(&server, &token, Some("older")).await;
    server.write("machines/one.yaml", &without_layout("a2", "debian-13"));
    until_layout(&server, &token, Some("new")).await;
    server.report(ONE, &token, "a2", true).await;
    std::fs::remove_file(server.dir.path().join("layouts/new.yaml")).unwrap();
    server.order("debian-12").await;
    let token = server.token(ONE).await;
    assert_eq!(layout_of(&server, &token).await.as_deref(), Some("new"), "the layout is stored with the allocation");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn colliding_layouts_withhold_ambiguous_allocations() {
    let dir = with_images();
    std::fs::write(dir.path().join("layouts/a.yaml"), layout("a", "< 14")).unwrap();
    std::fs::write(dir.path().join("layouts/b.yaml"), layout("b", ">= 13")).unwrap();
    std::fs::write(dir.path().join("machines/one.yaml"), without_layout("a1", "debian-13")).unwrap();
    let server = Running::start_in(dir).await;
    let token = server.token(ONE).await;
    server.heard("these combinations already exist:c1->[debian >= 13]: debian-13.0.0 on c1 would get a (").await;
    server.heard("one.yaml:8:10: 2 layouts match size:c1 and image:debian-13: change their constraints").await;
    until_layout(&server, &token, None).await;

    // Allocations that name a layout, or for which exactly one layout matches, are still served.
    server.write("machines/one.yaml", &without_layout("a2", "debian-14"));
    until_layout(&server, &token, Some("b")).await;
    server.write("machines/one.yaml", &machine_file(ONE, "one", "52:54:00:00:00:01", "a3", "").replace("-12", "-13"));
    until_layout(&server, &token, Some("default")).await;

    // As soon as no two layouts match the same image, the files are valid again.
    server.write("machines/one.yaml", &without_layout("a4", "debian-13"));
    server.write("layouts/b.yaml", &layout("b", "> 13"));
    until_layout(&server, &token, Some("a")).await;
    server.heard("all files are valid again").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn reason_for_missing_layout_is_logged() {
    let server = Running::start_in(with_images()).await;
    server.write("layouts/a.yaml", &layout("a", "> 13"));
    for (text, expected) in [
        (
            without_layout("b1", "debian-13"),
            "one.yaml:8:10: could not find a matching filesystemLayout for size:c1 and image:debian-13",
        ),
        (without_layout("b2", "debian-13"), "a.yaml) accepts debian "),
        (
            without_layout("b3", "debian-13").replace("size: c1\n", ""),
            "one.yaml:5:7: the allocation does not specify a filesystemlayout, and the machine has no size",
        ),
        (
            without_layout("b4", "debian"),
            "invalid format for os image, expected <os>-<major>.<minor>[.<patch>]: debian",
        ),
    ] {
        server.write("machines/one.yaml", &text);
        server.heard(expected).await;
    }
}

/// The operator removes a disk from the layout while the agent still plans with the layout that it has received.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn changed_layout_forbids_an_installation_that_has_not_started() {
    let server = Running::start_in(with_images()).await;
    let token = server.token(ONE).await;
    server.allocated(ONE, &token).await;
    let is_changed = async || {
        let layout = server.v1("GET", "/v1/filesystemlayout/default", &Value::Null).await;
        layout.text().contains("changed")
    };
    server.write("layouts/default.yaml", &LAYOUT.replace("label: root", "label: changed"));
    while !is_changed().await {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    assert_eq!(server.begins_first(ONE, &token, "a1").await, 409);
    assert!(server.state.read_install_state(ONE, "a1").await.unwrap().first.is_none());

    // With the current layout, the installation starts, and then continues with this layout.
    server.allocated(ONE, &token).await;
    assert_eq!(server.begins_first(ONE, &token, "a1").await, 200);
    server.write("layouts/default.yaml", LAYOUT);
    while is_changed().await {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    assert_eq!(server.begins_first(ONE, &token, "a1").await, 200);
}

/// The operator has permitted one layout with other wipe policies. The permission does not apply to later layouts.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn change_promise_applies_only_to_the_layout_at_the_time_of_the_order() {
    let server = Running::start_in(with_images()).await;
    server.installed().await;
    let labeled = |label: &str| LAYOUT.replace("label: root", &format!("label: {label}"));
    let change = async |label: &str| {
        server.write("layouts/default.yaml", &labeled(label));
        while !server.v1("GET", "/v1/filesystemlayout/default", &Value::Null).await.text().contains(label) {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    change("second").await;
    let answer = server.press(ONE, "debian-13", json!({ "change_promise": true })).await;
    assert_eq!(answer.status, 200, "{}", answer.text());
    change("third").await;
    let token = server.token(ONE).await;
    server.heard("layout default has changed since the reinstall was ordered with --change-promise").await;
    until_layout(&server, &token, None).await;
    change("second").await;
    until_layout(&server, &token, Some("default")).await;
}
