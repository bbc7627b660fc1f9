//! Machines that have registered without a machine file: in lists, on the web page, and with `machine add`.

use super::web_page::Browser;
use super::*;
use common::command_outcome::CommandOutcome;

const KEY: &str = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIO1wzNnTUvTTLTwPNTzGP3iVwJ7KzmKCcVKDeUHBBCQc a@b";

impl Running {
    async fn machines(&self) -> Vec<Value> {
        let answer = self.v1("GET", "/v1/machines", &Value::Null).await;
        assert_eq!(answer.status, 200, "{}", answer.text());
        answer.json().as_array().unwrap().clone()
    }

    async fn add(&self, body: Value) -> Answer {
        self.v1("POST", &format!("/v1/machine/{STRANGER}/file"), &body).await
    }
}

/// Returns the values of these hidden fields of a page.
async fn hidden_fields<const N: usize>(browser: &Browser<'_>, path: &str, names: [&str; N]) -> [String; N] {
    let page = browser.text(path).await;
    names.map(|name| {
        let (_, rest) =
            page.split_once(&format!("name=\"{name}\" value=\"")).unwrap_or_else(|| panic!("{name}: {page}"));
        rest.split('"').next().unwrap().to_owned()
    })
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_new_machine_is_in_the_operators_list_only() {
    let server = Running::start().await;
    assert_eq!(server.machines().await.len(), 2);
    // A machine that has requested a boot script, but has not registered, is not listed.
    server.boot(&format!("uuid={STRANGER}")).await;
    assert_eq!(server.machines().await.len(), 2);
    server.token(STRANGER).await;
    let all = server.machines().await;
    let new = &all[2];
    assert_eq!((&new["id"], &new["phase"], &new["new"]), (&json!(STRANGER), &json!("new"), &json!(true)));
    assert_eq!((&new["address"], &new["name"]), (&json!("127.0.0.1"), &json!("")));
    assert!(new["last_seen"].as_str().is_some_and(|seen| seen.starts_with("20")), "{new}");
    assert_eq!(
        (&all[0]["phase"], &all[0]["new"], &all[1]["phase"]),
        (&json!("not installed"), &Value::Null, &json!("free"))
    );
    assert_eq!(server.v1("GET", "/v1/machine", &Value::Null).await.json().as_array().unwrap().len(), 2);
    assert_eq!(server.v1("GET", &format!("/v1/machine/{STRANGER}"), &Value::Null).await.status, 404);

    let browser = server.browser().await;
    let page = browser.text("/").await;
    for words in ["3 machines", "/?phase=new", &format!("/machines/{STRANGER}/add"), "Add…"] {
        assert!(page.contains(words), "{words}: {page}");
    }
    assert!(page.contains(&browser.text(&format!("/machines/{STRANGER}/row")).await));
    assert_eq!(browser.get("/machines/4c4c4544-0051-3010-8052-b4c04f4daaaa/row").await.status, 404);
    server.write("machines/new.yaml", &format!("id: {STRANGER}\nname: new\n"));
    server.until_listed("new", |machine| machine["phase"] == "free").await;
}

impl Running {
    /// Waits until the list contains a machine with this name that satisfies the condition.
    async fn until_listed(&self, name: &str, is_so: impl Fn(&Value) -> bool) {
        let began = std::time::Instant::now();
        while !self.machines().await.iter().any(|machine| machine["name"] == name && is_so(machine)) {
            assert!(began.elapsed() < PATIENCE, "{:?}", self.machines().await);
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }
}

/// If the machine file is in effect, the request that has created it succeeds, even if the database fails afterwards.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn request_succeeds_if_only_the_database_record_fails() {
    let server = Running::start().await;
    server.token(STRANGER).await;
    let database = rusqlite::Connection::open(server.dir.path().join(store::DATABASE)).unwrap();
    let trigger =
        "CREATE TRIGGER failing BEFORE UPDATE OF stranger ON machines BEGIN SELECT RAISE(ABORT, 'sector 7'); END";
    database.execute_batch(trigger).unwrap();
    let answer = server.add(json!({ "name": "new" })).await;
    assert_eq!((answer.status, answer.json()["file"].as_str()), (200, Some("machines/new.yaml")), "{}", answer.text());
    server.heard(&format!("created machines/new.yaml for machine {STRANGER}")).await;
    server.heard("machines/new.yaml: cannot record that machine ").await;
    server.until_listed("new", |machine| machine["new"].is_null()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn machine_file_with_allocation_requires_existing_objects() {
    let server = Running::start().await;
    let token = server.token(STRANGER).await;
    for (body, words) in [
        (json!({ "name": "new", "layout": "default" }), "requires an image; add an image"),
        (json!({ "name": "new", "ssh_pub_keys": [KEY] }), "requires an image; add an image"),
        (json!({ "name": "new", "image": "debian-99", "layout": "default" }), "allocation.image: "),
        (json!({ "name": "new", "image": "debian-12", "layout": "nosuch" }), "allocation.filesystemlayout: "),
        (
            json!({ "name": "new", "image": "debian-12", "layout": "default", "ssh_pub_keys": ["nokey"] }),
            "ssh_pub_keys",
        ),
        (json!({ "name": "a_b", "image": "debian-12", "layout": "default" }), "hostname"),
    ] {
        let answer = server.add(body.clone()).await;
        assert!(answer.status == 409 && answer.text().contains(words), "{body}: {}", answer.text());
    }
    assert!(!server.dir.path().join("machines/new.yaml").exists());
    let body = json!({ "name": "new", "image": "debian-12", "layout": "default", "ssh_pub_keys": [KEY] });
    let answer = server.add(body).await;
    assert_eq!((answer.status, &answer.json()["image"]), (200, &json!("debian-12")), "{}", answer.text());
    // From now on, events and console output are stored.
    let (event, log) = (json!({ "event": "Waiting", "message": "" }), json!({ "start": 0, "log": "waits\n" }));
    for (part, body) in [("event", event), ("log", log)] {
        let path = format!("/v1/machine/{STRANGER}/{part}");
        assert_eq!(server.call(&token, "POST", &path, &body).await.status, 200);
    }
    let events = server.v1("GET", &format!("/v1/machine/{STRANGER}/events"), &Value::Null).await.json();
    assert_eq!(events[0]["event"], "Waiting", "{events}");
    let log = server.v1("GET", &format!("/v1/machine/{STRANGER}/log"), &Value::Null).await;
    assert!(log.text().contains("waits"), "{}", log.text());
    // The machine, which waits in its ramdisk, receives the allocation and is installed.
    let allocation = server.allocated(STRANGER, &token).await.allocation.unwrap();
    assert_eq!((allocation.hostname.as_str(), allocation.image.id.as_str()), ("new", "debian-12"));
    assert_eq!(allocation.ssh_pub_keys, [KEY]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn page_adds_a_machine_only_after_its_plan() {
    let server = Running::start().await;
    let browser = server.browser().await;
    let path = format!("/machines/{STRANGER}/add");
    server.registered(STRANGER).await;
    assert!(browser.text(&format!("/machines/{STRANGER}")).await.contains(&path));
    assert!(browser.text(&path).await.contains("Nothing is written yet"));
    let refused = browser.get(&format!("{path}?name=one")).await;
    assert!(refused.status == 409 && refused.text().contains("already has the name"), "{}", refused.text());
    let query = format!("{path}?name=new&image=debian-12&layout=default&ssh_key=");
    let page = browser.text(&query).await;
    for words in ["Data lost", "── point of no return", "Type <strong>new</strong>", "will be installed as soon as"]
    {
        assert!(page.contains(words), "{words}: {page}");
    }
    let [form, shown, allocation] = hidden_fields(&browser, &query, ["form", "shown", "allocation"]).await;
    let fields = |form, typed, shown| {
        let image =
            [("image", "debian-12"), ("layout", "default"), ("name", "new"), ("allocation", allocation.as_str())];
        [&image[..], &[("form", form), ("typed", typed), ("shown", shown)]].concat()
    };
    for (fields, headers, status, words) in [
        (fields("", "new", shown.as_str()), &[][..], 403, "does not belong to your session"),
        (fields(&form, "new", &shown), &[("Origin", "http://evil")], 403, "does not belong to your session"),
        (fields(&form, "", &shown), &[], 400, "nothing was added"),
        (fields(&form, "new", "sha256:0"), &[], 409, "the plan has changed"),
    ] {
        let answer = browser.post(&path, headers, &fields).await;
        assert!(answer.status == status && answer.text().contains(words), "{words}: {}", answer.text());
    }
    assert!(!server.dir.path().join("machines/new.yaml").exists());
    let answer = browser.post(&path, &[], &fields(&form, "new", &shown)).await;
    let location = format!("/machines/{STRANGER}");
    assert_eq!((answer.status, answer.headers.get("location")), (303, Some(&location)), "{}", answer.text());
    assert!(server.file("machines/new.yaml").contains("image: \"debian-12\""));
    server.until_listed("new", |machine| machine["wanted"] == "debian-12").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_an_image_the_page_only_writes_the_file() {
    let server = Running::start().await;
    let browser = server.browser().await;
    let path = format!("/machines/{STRANGER}/add");
    assert_eq!(browser.get(&format!("{path}?name=new")).await.status, 404, "it has not registered");
    server.token(STRANGER).await;
    let [form, shown] = hidden_fields(&browser, &format!("{path}?name=new"), ["form", "shown"]).await;
    let answer = browser.post(&path, &[], &[("name", "new"), ("form", &form), ("shown", &shown)]).await;
    assert_eq!(answer.status, 303, "{}", answer.text());
    assert_eq!(server.file("machines/new.yaml"), format!("id: {STRANGER}\nname: \"new\"\n"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn add_command_infers_the_only_new_machine() {
    let server = Running::start().await;
    let good = async |arguments: &[&str]| match server.machine(arguments).await {
        Ok(outcome) => outcome == CommandOutcome::Good,
        Err(error) => panic!("{arguments:?}: {error}"),
    };
    assert!(!good(&["add", "--name", "new"]).await, "no machine is new");
    let token = server.registered(STRANGER).await;
    server.token("4c4c4544-0051-3010-8052-b4c04f4deeee").await;
    assert!(!good(&["add", "--name", "new"]).await, "two machines are new");
    for part in ["show", "events", "logs", "history"] {
        assert!(good(&[part, STRANGER]).await && good(&[part, STRANGER, "--json"]).await, "{part}");
        assert!(!good(&[part, "nobody"]).await, "{part}");
    }
    server.write("machines/other.yaml", "id: 4c4c4544-0051-3010-8052-b4c04f4deeee\nname: other\n");
    server.until_listed("other", |machine| machine["phase"] == "free").await;
    let with_image = ["add", "--name", "new", "--image", "debian-12", "--layout", "default", "--ssh-key", KEY];
    assert!(good(&with_image).await);
    server.allocated(STRANGER, &token).await;
    assert!(good(&["plan", "new"]).await && good(&["show", "new"]).await);
    assert!(!good(&with_image).await, "no machine is new any longer");
}
