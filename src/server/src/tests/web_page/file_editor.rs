//! Editor of machine files: the check, the plan, the confirmation by the machine's name, and concurrent changes.

use super::reinstall::value;
use super::*;
use crate::tests::verified_definitions::with_definition;

impl Browser<'_> {
    /// Submits an edited file together with the hidden fields of the page.
    async fn submit(&self, page: &str, text: &str, name: &str) -> Answer {
        let shown = if page.contains("name=\"shown\"") { value(page, "shown") } else { "" };
        let fields = [("base", value(page, "base")), ("text", text), ("name", name), ("shown", shown), ("do", "write")];
        let token = self.token().await;
        self.post(&path(), &[], &[&[("form", token.as_str())], &fields[..]].concat()).await
    }
}

fn path() -> String {
    format!("/machines/{ONE}/file")
}

fn text(allocation: &str, more: &str) -> String {
    machine_file(ONE, "one", "52:54:00:00:00:01", allocation, more)
}

fn file(server: &Running) -> String {
    std::fs::read_to_string(server.dir.path().join("machines/one.yaml")).unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn file_is_written_only_after_check_and_confirmation() {
    let server = Running::start_in(with_images()).await;
    server.installed().await;
    let browser = server.browser().await;
    let page = browser.text(&path()).await;
    assert!(page.contains("hostname: h") && page.contains("may contain passwords"), "{page}");
    assert!(!page.contains("Write the file"), "{page}");
    let new = text("a1", "consoles: [ttyS1] # new\n");
    let answer = browser.submit(&page, &new, "one").await;
    assert_eq!(answer.status, 200, "an unchecked text is not written: {}", answer.text());
    let checked = answer.text();
    for words in ["The text is valid.", "does not cause an installation", "Type <strong>one</strong>", "# new"] {
        assert!(checked.contains(words), "{words}: {checked}");
    }
    let other = browser.submit(&checked, &text("a1", "consoles: [ttyS2]\n"), "one").await;
    assert_eq!(other.status, 200, "a text that differs from the checked text is not written: {}", other.text());
    assert_eq!(browser.submit(&checked, &new, "two").await.status, 400);
    assert_eq!(browser.post(&path(), &[], &[("text", &new)]).await.status, 403);
    assert_eq!(file(&server), text("a1", ""));
    // Browsers submit text areas with CRLF line ends.
    let token = browser.token().await;
    let crlf = new.replace('\n', "\r\n");
    let fields = [("base", value(&checked, "base")), ("text", &crlf), ("shown", value(&checked, "shown"))];
    let fields = [&[("form", token.as_str()), ("name", "one")], &fields[..]].concat();
    let answer = browser.post(&path(), &[], &fields).await;
    assert_eq!(answer.status, 200, "the check does not write anything: {}", answer.text());
    assert_eq!(file(&server), text("a1", ""));
    let answer = browser.post(&path(), &[], &[&fields[..], &[("do", "write")]].concat()).await;
    assert_eq!(answer.status, 303, "{}", answer.text());
    assert_eq!(file(&server), new);
    server.heard("one: 127.0.0.1 changed ").await;
    assert_conflict(&server, &browser, &checked, &new).await;
}

/// Checks that an edit based on an earlier version of the file is not written. The page must show the edited text next
/// to the current file, and the edited text must be checked again before it can be written.
async fn assert_conflict(server: &Running, browser: &Browser<'_>, earlier: &str, current: &str) {
    let typed = text("a1", "consoles: [ttyS7] # typed\n");
    let answer = browser.submit(earlier, &typed, "one").await;
    let page = answer.text();
    assert!(answer.status == 409 && page.contains("has changed since"), "{page}");
    for words in ["ttyS7] # typed", "Current file", "consoles: [ttyS1] # new"] {
        assert!(page.contains(words), "{words}: {page}");
    }
    assert!(!page.contains("Write the file"), "{page}");
    assert_eq!(file(server), current);
    let checked = browser.submit(&page, &typed, "one").await.text();
    assert_eq!(file(server), current, "the merged text must be checked first");
    assert_eq!(browser.submit(&checked, &typed, "one").await.status, 303);
    assert_eq!(file(server), typed);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn os_definition_in_text_is_planned_with_its_parameters() {
    let server = Running::start_in(with_definition("track=testing")).await;
    let browser = server.browser().await;
    let token = server.registered(ONE).await;
    server.allocated(ONE, &token).await;
    let page = browser.text(&path()).await;
    let with = |parameters: &str| {
        let os = format!("os: web\n  os_parameters: [{parameters}]");
        text("a2", "").replace("image: debian-12", &os)
    };
    let answer = browser.submit(&page, &with("track=stable"), "").await;
    let checked = answer.text();
    for words in ["the machine will be installed", "Data lost", "debian-12", "Write the file of one"] {
        assert!(checked.contains(words), "{words}: {checked}");
    }
    let unknown = browser.submit(&page, &with("color=red"), "one").await;
    assert!(unknown.status == 422 && unknown.text().contains("color"), "{}", unknown.text());
    let refused = browser.submit(&page, &with("track=sid"), "one").await;
    // Without the permission to create a sandbox, the server does not run `verify`.
    let is_refused = refused.status == 422 && refused.text().contains("refuses these parameters");
    assert!(is_refused || !nix::unistd::geteuid().is_root(), "{}", refused.text());
    let written = browser.submit(&checked, &with("track=stable"), "one").await;
    assert_eq!(written.status, 303, "{}", written.text());
    assert_eq!(file(&server), with("track=stable"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_invalid_text_is_refused_with_all_problems() {
    let dir = with_images();
    let controller = "bmc: {url: 'ipmi://10.1.0.7', username: u, password: p}\n";
    let two = format!("id: {TWO}\nname: two\nmacs: ['52:54:00:00:00:02']\n{controller}");
    std::fs::write(dir.path().join("machines/two.yaml"), two).unwrap();
    let server = Running::start_in(dir).await;
    let browser = server.browser().await;
    let page = browser.text(&path()).await;
    for (new, words) in [
        (text("a1", "macss: []\n"), "macss"),
        (format!("id: {ONE}\nname: one\nmacs: [5, x]\nlocked: yes\n"), "3:8: "),
        ("id: [\n".to_owned(), "The text is not valid"),
        (format!("id: {TWO}\nname: one\n"), "machine rename"),
        (format!("id: {ONE}\nname: two\n"), "already has the name &quot;two&quot;"),
        (format!("id: {ONE}\nname: one\nmacs: ['52:54:00:00:00:02']\n"), "already lists 52:54:00:00:00:02"),
        (format!("id: {ONE}\nname: one\n{controller}"), "already contains the management controller ipmi://10.1.0.7"),
        (text("a1", "").replace("debian-12", "debian-99"), "debian-99"),
        (text("a1", "# </textarea><script>alert(1)</script>\nx: 1\n"), "&lt;/textarea&gt;&lt;script&gt;"),
    ] {
        let answer = browser.submit(&page, &new, "one").await;
        let shown = answer.text();
        assert!(answer.status == 422 && shown.contains(words), "{words}: {} {shown}", answer.status);
        assert!(shown.contains("nothing was written") && !shown.contains("Write the file"), "{shown}");
    }
    assert_eq!(file(&server), text("a1", ""));
    assert_eq!(browser.get(&format!("/machines/{STRANGER}/file")).await.status, 404);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_text_that_causes_an_installation_shows_its_plan() {
    let server = Running::start_in(with_images()).await;
    let browser = server.browser().await;
    let page = browser.text(&path()).await;
    let answer = browser.submit(&page, &text("a2", ""), "").await;
    assert!(answer.status == 200 && answer.text().contains("Its disks are unknown"), "{}", answer.text());
    let token = server.registered(ONE).await;
    server.allocated(ONE, &token).await;
    let answer = browser.submit(&page, &text("a2", ""), "").await;
    let checked = answer.text();
    for words in ["the machine will be installed", "Data lost", "── point of no return", "Write the file of one"] {
        assert!(checked.contains(words), "{words}: {checked}");
    }
    assert_eq!(browser.submit(&checked, &text("a2", ""), "one").await.status, 303);
    assert_eq!(file(&server), text("a2", ""));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn editor_does_not_remove_allocations_in_use() {
    let server = Running::start_in(with_images()).await;
    let browser = server.browser().await;
    let page = browser.text(&path()).await;
    let free = format!("id: {ONE}\nname: one\nmacs: ['52:54:00:00:00:01']\nsize: c1\n");
    let answer = browser.submit(&page, &free, "").await;
    assert_eq!(answer.status, 200, "nothing is installed yet: {}", answer.text());

    server.installed().await;
    for new in [free.clone(), text("a2", "")] {
        let answer = browser.submit(&page, &new, "one").await;
        let shown = answer.text();
        assert!(answer.status == 422 && shown.contains("free the machine first"), "{} {shown}", answer.status);
    }
    server.write("machines/one.yaml", &text("a3", "locked: a customer's disks\n"));
    browser.actions_with("Unlock one").await;
    let page = browser.text(&path()).await;
    let answer = browser.submit(&page, &free, "one").await;
    assert!(answer.status == 422 && answer.text().contains("the machine is locked"), "{}", answer.text());
    assert_eq!(file(&server), text("a3", "locked: a customer's disks\n"));
}
