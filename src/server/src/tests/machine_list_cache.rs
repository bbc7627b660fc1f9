//! Cache of machine summaries: long lists, which use the cache, have the same contents as short lists, which do not.

use super::*;

/// Number of machines, large enough that their list uses the cache.
const MACHINES: usize = 300;
/// Number of machines on one page, small enough that the page is read without the cache.
const PAGE: usize = 100;

fn id(number: usize) -> String {
    format!("4c4c4544-0051-3010-8052-b4c04f4f{number:04x}")
}

fn file(number: usize, more: &str) -> String {
    let mac = format!("52:54:00:00:{:02x}:{:02x}", number / 256 + 1, number % 256);
    machine_file(&id(number), &format!("m{number:03}"), &mac, &format!("a{number}"), more)
}

fn without_contact(listed: &Value) -> Vec<Value> {
    let mut all = listed.as_array().unwrap().clone();
    all.iter_mut().for_each(|machine| drop(machine.as_object_mut().unwrap().remove("last_seen")));
    all
}

impl Running {
    async fn list_as(&self, token: &str, query: &str) -> Value {
        let answer = self.call(token, "GET", &format!("/v1/machines{query}"), &Value::Null).await;
        assert_eq!(answer.status, 200, "{query}: {}", answer.text());
        answer.json()
    }

    /// Asserts that the list of all machines has the same contents as all pages together. Returns this list.
    async fn assert_equal_lists(&self, token: &str, after: &str) -> Vec<Value> {
        let whole = without_contact(&self.list_as(token, "").await);
        let mut paged = Vec::new();
        loop {
            let after = paged.last().map(|last: &Value| format!("&after={}", last["id"].as_str().unwrap()));
            let page = self.list_as(token, &format!("?limit={PAGE}{}", after.unwrap_or_default())).await;
            let page = without_contact(&page);
            let count = page.len();
            paged.extend(page);
            if count < PAGE {
                break;
            }
        }
        for (cached, read) in whole.iter().zip(&paged) {
            assert_eq!(cached, read, "{after}");
        }
        assert_eq!(whole.len(), paged.len(), "{after}");
        whole
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn cached_machine_list_shows_each_change_immediately() {
    let dir = directory();
    for number in 0..MACHINES {
        let project = if number == 7 { "project: red\n" } else { "project: blue\n" };
        std::fs::write(dir.path().join(format!("machines/m{number:03}.yaml")), file(number, project)).unwrap();
    }
    let server = Running::start_in(dir).await;
    let operator = server.operator();
    let blue = server.user("bea", "viewer", &["blue"]).await;
    let find = |all: &[Value], number: usize| all.iter().find(|machine| machine["id"] == id(number)).cloned();
    let all = server.assert_equal_lists(&operator, "at the start").await;
    assert_eq!(all.len(), MACHINES + 2);
    assert_eq!(find(&all, 3).unwrap()["phase"], "not installed");

    let token = server.token(&id(3)).await;
    server.assert_equal_lists(&operator, "a boot").await;
    server.allocated(&id(3), &token).await;
    let event = json!({"event": "Installing", "message": "x", "step": "storage.wipe"});
    let answer = server.call(&token, "POST", &format!("/v1/machine/{}/event", id(3)), &event).await;
    assert_eq!(answer.status, 200, "{}", answer.text());
    let all = server.assert_equal_lists(&operator, "an event").await;
    assert_eq!(find(&all, 3).unwrap()["phase"], "installing");
    server.report(&id(3), &token, "a3", true).await;
    let all = server.assert_equal_lists(&operator, "a report").await;
    assert_eq!(find(&all, 3).unwrap()["phase"], "installed");

    let order = json!({"id": id(3), "imageid": "debian-12"});
    let path = format!("/v1/machine/{}/reinstall", id(3));
    let answer = server.call(&operator, "POST", &path, &order).await;
    assert_eq!(answer.status, 200, "{}", answer.text());
    let all = server.assert_equal_lists(&operator, "an order").await;
    assert_eq!(find(&all, 3).unwrap()["phase"], "reinstall ordered");
    assert_eq!(server.call(&operator, "DELETE", &path, &Value::Null).await.status, 200);
    let all = server.assert_equal_lists(&operator, "a canceled order").await;
    assert!(find(&all, 3).unwrap()["order"].is_null());

    let locked =
        server.call(&operator, "POST", &format!("/v1/machine/{}/lock", id(5)), &json!({"reason": "disk"})).await;
    assert_eq!(locked.status, 200, "{}", locked.text());
    let all = server.assert_equal_lists(&operator, "a lock").await;
    assert_eq!(find(&all, 5).unwrap()["locked"], "disk");

    // A user with projects never sees machines of other projects, although the cache contains all machines.
    let own = server.assert_equal_lists(&blue, "a user with a project").await;
    assert_eq!(own.len(), MACHINES - 1);
    assert!(find(&own, 7).is_none() && find(&own, 3).is_some());
    assert!(own.iter().all(|machine| machine["project"] == "blue"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn migration_peer_of_another_project_is_hidden_in_lists() {
    let (server, order) = Running::move_ordered().await;
    for number in 0..MACHINES {
        server.write(&format!("machines/m{number:03}.yaml"), &file(number, "project: blue\n"));
    }
    server.assign_projects().await;
    let (operator, blue) = (server.operator(), server.user("bea", "viewer", &["blue"]).await);
    while server.list_as(&operator, "").await.as_array().unwrap().len() < MACHINES + 2 {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    let moving = |all: &[Value]| all.iter().find(|machine| machine["id"] == ONE).unwrap()["moving"].clone();
    for _ in 0..2 {
        let all = server.assert_equal_lists(&operator, "as an admin").await;
        assert_eq!((&moving(&all)["other"], &moving(&all)["id"]), (&json!(TWO), &json!(order)));
        let own = server.assert_equal_lists(&blue, "as a user with a project").await;
        assert_eq!((&moving(&own)["other"], &moving(&own)["id"]), (&json!(""), &json!(order)));
        assert!(!json!(own).to_string().contains(TWO));
    }
}

/// Measures and prints how long lists of ten thousand machines take, while the records of a few hundred machines
/// change.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "measures"]
async fn measure_lists_of_ten_thousand_machines() {
    let dir = directory();
    for number in 0..10_000 {
        std::fs::write(dir.path().join(format!("machines/m{number:05}.yaml")), file(number, "")).unwrap();
    }
    let server = Running::start_in(dir).await;
    let operator = server.operator();
    for round in 0..4 {
        for (name, query) in [("whole list", ""), ("whole list, repeated", ""), ("page of 100", "?limit=100")] {
            let began = std::time::Instant::now();
            let answer = server.call(&operator, "GET", &format!("/v1/machines{query}"), &Value::Null).await;
            println!("round {round}: {name}: {:?}, {} bytes", began.elapsed(), answer.text().len());
        }
        for number in 0..350 {
            let record = server.state.record_machine_file(&id(number)).await;
            record.unwrap();
            server.state.free_machine(&id(number)).await.unwrap();
            drop(server.boot(&format!("uuid={}", id(number))).await);
        }
    }
}
