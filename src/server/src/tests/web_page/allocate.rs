//! Allocation of a free machine on the web page: the plan, the confirmation by the machine's name, and refusals.

use super::reinstall::value;
use super::*;

fn path(id: &str) -> String {
    format!("/machines/{id}/allocate")
}

impl Browser<'_> {
    async fn allocate(&self, page: &str, more: &[(&str, &str)]) -> Answer {
        let token = self.token().await;
        let shown = if page.contains("name=\"shown\"") { value(page, "shown") } else { "" };
        let mut fields = vec![("form", token.as_str()), ("allocation", value(page, "allocation")), ("shown", shown)];
        for (name, value) in [("hostname", "web-2"), ("image", "debian-12"), ("layout", "default")] {
            if !more.iter().any(|(given, _)| *given == name) {
                fields.push((name, value));
            }
        }
        fields.extend(more);
        self.post(&path(TWO), &[], &fields).await
    }
}

fn file(server: &Running) -> String {
    std::fs::read_to_string(server.dir.path().join("machines/two.yaml")).unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn allocation_requires_the_plan_and_the_machine_name() {
    let server = Running::start_in(with_images()).await;
    let commented = format!("# rack 7\n{}", file(&server));
    server.write("machines/two.yaml", &commented);
    server.registered(TWO).await;
    let browser = server.browser().await;
    assert!(browser.text(&format!("/machines/{TWO}")).await.contains(&format!("href=\"{}\"", path(TWO))));
    assert!(!browser.text(&format!("/machines/{ONE}")).await.contains("Allocate…"), "machine one is not free");
    let page = browser.text(&path(TWO)).await;
    for words in ["value=\"two\"", "debian-12", "debian-13", "SSH public keys", "User data"] {
        assert!(page.contains(words), "{words}: {page}");
    }
    assert!(!page.contains("button class=\"danger\""), "{page}");
    let more = [
        ("ssh_key", "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIO1wzNnTUvTTLTwPNTzGP3iVwJ7KzmKCcVKDeUHBBCQc a@b\r\n"),
        ("user_data", "#cloud-config\r\n{}\r\n"),
    ];
    let answer = browser.allocate(&page, &more).await;
    let planned = answer.text();
    assert_eq!(answer.status, 200, "{planned}");
    for words in
        ["Data lost", "── point of no return", "Type <strong>two</strong>", "Allocate two and install debian-12"]
    {
        assert!(planned.contains(words), "{words}: {planned}");
    }
    assert_eq!(file(&server), commented, "the plan writes nothing");
    let write = ("do", "write");
    for (fields, status, words) in [
        (vec![write], 400, "nothing was allocated: the name was not confirmed: &quot;&quot; was typed"),
        (
            vec![write, ("name", "one")],
            400,
            "nothing was allocated: the name was not confirmed: &quot;one&quot; was typed",
        ),
        (vec![write, ("name", "two"), ("hostname", "other")], 409, "have changed since the plan was shown"),
    ] {
        let answer = browser.allocate(&planned, &[&more[..], &fields].concat()).await;
        let text = answer.text();
        assert!(answer.status == status && text.contains(words), "{words}: {} {text}", answer.status);
        assert!(text.contains("#cloud-config"), "the fields are preserved: {text}");
    }
    assert_eq!(file(&server), commented);
    let answer = browser.allocate(&planned, &[&more[..], &[write, ("name", "two")]].concat()).await;
    assert_eq!((answer.status, &answer.headers["location"]), (303, &format!("/machines/{TWO}")), "{}", answer.text());
    let written = file(&server);
    assert!(written.starts_with("# rack 7\n") && written.contains("hostname: web-2"), "{written}");
    let machine = site::operator_files::parse_machine(&written).unwrap();
    let allocation = machine.allocation.unwrap();
    assert_eq!((allocation.image.as_str(), allocation.user_data.as_str()), ("debian-12", "#cloud-config\n{}\n"));
    assert_eq!(
        allocation.ssh_pub_keys,
        ["ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIO1wzNnTUvTTLTwPNTzGP3iVwJ7KzmKCcVKDeUHBBCQc a@b"]
    );
    let answer = browser.get(&path(TWO)).await;
    assert!(answer.status == 409 && answer.text().contains("free the machine first"), "{}", answer.text());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn invalid_allocations_are_refused() {
    let server = Running::start_in(with_images()).await;
    let browser = server.browser().await;
    let page = browser.text(&path(TWO)).await;
    let before = file(&server);
    let answer = browser.allocate(&page, &[]).await;
    assert!(answer.status == 200 && answer.text().contains("its disks are unknown"), "{}", answer.text());
    for (field, words) in [
        (("image", ""), "no image is selected"),
        (("image", "debian-99"), "image &quot;debian-99&quot; not found in images/"),
        (("layout", "none"), "layout &quot;none&quot; not found in layouts/"),
        (("layout", ""), "size"),
        (("hostname", "a b"), "allocation.hostname"),
        (("hostname", ""), "hostname"),
    ] {
        let answer = browser.allocate(&page, &[field, ("do", "write"), ("name", "two")]).await;
        let text = answer.text();
        assert!(answer.status == 422 && text.contains(words), "{field:?}: {} {text}", answer.status);
        assert!(!text.contains("button class=\"danger\""), "{text}");
    }
    for id in [ONE, STRANGER] {
        let answer = browser.get(&path(id)).await;
        assert!(matches!(answer.status, 404 | 409), "{}", answer.text());
    }
    assert_eq!(browser.post(&path(TWO), &[], &[("image", "debian-12")]).await.status, 403);
    assert_eq!(server.post(&path(TWO), &[], &[("image", "debian-12")]).await.status, 401);
    server.write("machines/two.yaml", &format!("{before}locked: broken fan\n"));
    let began = std::time::Instant::now();
    while !browser.get(&path(TWO)).await.text().contains("broken fan") {
        assert!(began.elapsed() < PATIENCE);
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let answer = browser.allocate(&page, &[]).await;
    assert!(answer.status == 409 && answer.text().contains("drophammer machine unlock two"), "{}", answer.text());
}
