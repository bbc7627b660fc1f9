//! Actions on several machines that change their files: locks, allocations, and their removal.

use super::bulk_actions::values;
use super::*;

const KEY: &str = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIO1wzNnTUvTTLTwPNTzGP3iVwJ7KzmKCcVKDeUHBBCQc a@b";

impl Browser<'_> {
    /// Submits the confirmation on a review page, with these additional fields.
    async fn confirm(&self, page: &str, more: &[(&str, &str)]) -> Answer {
        let (_, form) =
            page.split_once("action=\"/bulk/confirm\"").unwrap_or_else(|| panic!("no confirmation: {page}"));
        let mut fields: Vec<(&str, &str)> = Vec::new();
        for name in ["action", "image", "layout", "ssh_key", "machine", "shown"] {
            fields.extend(values(form, name).into_iter().map(|value| (name, value)));
        }
        // The server reads the first of several fields with the same name.
        self.bulk("/bulk/confirm", &[more, &fields[..]].concat()).await
    }
}

fn files(server: &Running) -> String {
    ["one", "two"]
        .map(|name| std::fs::read_to_string(server.dir.path().join(format!("machines/{name}.yaml"))).unwrap())
        .concat()
}

fn assert_contains(answer: Answer, words: &str) {
    let text = answer.text();
    assert!(text.contains(words), "{words}: {} {text}", answer.status);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn several_machines_are_locked_and_unlocked() {
    let server = Running::start_in(with_images()).await;
    let browser = server.browser().await;
    let before = files(&server);
    let page = browser.review("unlock", "").await;
    assert!(page.contains("Machines that will be skipped: 2") && page.contains("the machine is not locked"), "{page}");
    let page = browser.review("lock", "").await;
    for words in ["Lock 2 machines", "name=\"reason\"", "Type <strong>2</strong>"] {
        assert!(page.contains(words), "{words}: {page}");
    }
    let reason = ("reason", "disks of a customer");
    for (fields, words) in [
        (vec![("count", "2")], "a lock requires a reason"),
        (vec![("count", "2"), ("reason", " ")], "a lock requires a reason"),
        (vec![("count", "1"), reason], "the number of machines is 2"),
        (vec![reason], "the number of machines is 2"),
    ] {
        let answer = browser.confirm(&page, &fields).await;
        assert_eq!(answer.status, 400, "{words}: {}", answer.text());
        assert_contains(answer, words);
    }
    assert_eq!(files(&server), before);
    let text = browser.confirm(&page, &[("count", "2"), reason]).await.text();
    assert!(text.contains("2 of 2 machines changed") && text.contains("Locked: 2"), "{text}");
    assert_eq!(files(&server).matches("locked: ").count(), 2, "{}", files(&server));
    let entries = server.v1("GET", &format!("/v1/audit?action=bulk/confirm&machine={TWO}"), &Value::Null).await.json();
    assert!(entries.to_string().contains("machines/two.yaml: /locked"), "{entries}");

    for action in ["lock", "free"] {
        let page = browser.review(action, "").await;
        assert!(page.contains("Machines that will be skipped: 2") && page.contains("machine unlock one"), "{page}");
    }
    let answer = browser.confirm(&page, &[("count", "2"), reason]).await;
    assert_contains(answer, "0 of 2 machines changed");
    let page = browser.review("unlock", "").await;
    assert!(page.contains("Unlock 2 machines") && page.contains("disks of a customer"), "{page}");
    let changed = page.replacen("name=\"shown\" value=\"", "name=\"shown\" value=\"0", 1);
    let text = browser.confirm(&changed, &[("count", "2")]).await.text();
    assert!(text.contains("1 of 2 machines changed") && text.contains("has changed since it was shown"), "{text}");
    let text = browser.confirm(&page, &[("count", "2")]).await.text();
    assert!(text.contains("Unlocked: 1") && text.contains("the machine is not locked"), "{text}");
    assert!(!files(&server).contains("locked"), "{}", files(&server));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn several_machines_are_freed() {
    let server = Running::start_in(with_images()).await;
    server.installed().await;
    let browser = server.browser().await;
    let before = files(&server);
    let page = browser.review("free", "").await;
    for words in ["Free 1 machine", "Installed image", "debian-12", "skipped: 1", "the machine is already free"] {
        assert!(page.contains(words), "{words}: {page}");
    }
    assert_contains(browser.confirm(&page, &[("count", "2")]).await, "nothing was changed");
    let other = page.replace("value=\"a1 ", "value=\"a0 ");
    assert_contains(browser.confirm(&other, &[("count", "1")]).await, "0 of 1 machine changed");
    assert_eq!(files(&server), before);
    let text = browser.confirm(&page, &[("count", "1")]).await.text();
    assert!(text.contains("Freed: 1"), "{text}");
    assert!(!files(&server).contains("allocation"), "{}", files(&server));
    server.heard("one: 127.0.0.1 removed allocation a1").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn several_machines_are_allocated_after_their_plans() {
    let server = Running::start_in(with_images()).await;
    let browser = server.browser().await;
    let both = [("action", "allocate"), ("machine", ONE), ("machine", TWO)];
    let answer = browser.bulk("/bulk/review", &both).await;
    assert!(answer.status == 400 && answer.text().contains("no image is selected"), "{}", answer.text());
    let review = async |more: &[(&str, &str)]| {
        let answer = browser.bulk("/bulk/review", &[&both[..], &[("image", "debian-12")], more].concat()).await;
        assert_eq!(answer.status, 200, "{}", answer.text());
        answer.text()
    };
    let page = review(&[]).await;
    for words in ["skipped: 2", "free the machine first", "name=\"layout\"", "name=\"ssh_key\"", "Review again"] {
        assert!(page.contains(words), "{words}: {page}");
    }
    assert!(!page.contains("button class=\"danger\""), "no layout applies to machine two: {page}");
    let default = ("layout", "default");
    assert!(review(&[default]).await.contains("has never registered, so its disks are unknown"));
    assert!(review(&[default, ("ssh_key", "not a key")]).await.contains("ssh_pub_keys"));

    server.registered(TWO).await;
    let page = review(&[default, ("ssh_key", KEY)]).await;
    for words in
        ["Allocate 1 machine and install debian-12", "Data lost", "/dev/sda", "Type <strong>1</strong>", "skipped: 1"]
    {
        assert!(page.contains(words), "{words}: {page}");
    }
    let before = files(&server);
    assert_eq!(browser.confirm(&page, &[("count", "2")]).await.status, 400);
    for changed in [("ssh_key", ""), ("image", "debian-13")] {
        let answer = browser.confirm(&page, &[("count", "1"), changed]).await;
        assert_contains(answer, "has changed since it was shown");
    }
    assert_eq!(files(&server), before);
    let text = browser.confirm(&page, &[("count", "1")]).await.text();
    assert!(text.contains("Allocated: 1"), "{text}");
    let written = std::fs::read_to_string(server.dir.path().join("machines/two.yaml")).unwrap();
    let allocation = site::operator_files::parse_machine(&written).unwrap().allocation.unwrap();
    assert_eq!((allocation.hostname.as_str(), allocation.image.as_str()), ("two", "debian-12"));
    assert_eq!(allocation.ssh_pub_keys, [KEY]);
    let text = browser.confirm(&page, &[("count", "1")]).await.text();
    assert!(text.contains("0 of 1 machine changed") && text.contains("free the machine first"), "{text}");
}
