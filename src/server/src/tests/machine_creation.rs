//! Creation of machine files for machines that have registered without a file.

use super::*;
use site::operator_files;

const NEW: &str = "4c4c4544-0051-3010-8052-b4c04f4d0009";

async fn add(server: &Running, id: &str, body: Value) -> Answer {
    let operator = std::fs::read_to_string(server.dir.path().join("operator.token")).unwrap();
    server.call(operator.trim(), "POST", &format!("/v1/machine/{id}/file"), &body).await
}

/// Boots and registers a machine without a file.
async fn registered(server: &Running, mac: &str) {
    let token = token_of(&server.boot(&format!("uuid={NEW}")).await.text());
    let mut body = registration(NEW);
    body["hardware"] = json!({ "memory": 64 << 30, "cpu_cores": 16, "disks": [{ "name": "/dev/sda", "size": 480 }],
                               "nics": [{ "mac": mac, "name": "eth0" }, { "mac": "", "name": "eth1" }] });
    let answer = server.call(&token, "POST", "/v1/machine/register", &body).await;
    assert_eq!(answer.status, 200, "{}", answer.text());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn registered_machine_is_added_with_its_detected_size() {
    let dir = directory();
    std::fs::create_dir(dir.path().join("sizes")).unwrap();
    let size = |id: &str, cores: u32| {
        let text = format!("id: {id}\nconstraints: [{{type: cores, min: {cores}, max: {cores}}}]\n");
        std::fs::write(dir.path().join(format!("sizes/{id}.yaml")), text).unwrap();
    };
    size("c1", 16);
    size("c2", 32);
    let server = Running::start_in(dir).await;
    let answer = add(&server, NEW, json!({ "name": "new" })).await;
    assert_eq!(answer.status, 404, "{}", answer.text());
    assert!(answer.text().contains("has not registered: boot it over PXE once"), "{}", answer.text());
    registered(&server, "52:54:00:00:00:09").await;

    for (body, expected) in [
        (json!({ "name": "../new" }), "cannot be the name of a machine file"),
        (json!({ "name": ".new" }), "cannot be the name of a machine file"),
        (json!({ "name": "" }), "cannot be the name of a machine file"),
        (json!({ "name": "one" }), "already has the name \\\"one\\\""),
        (json!({ "name": "new", "size": "c3" }), "size \\\"c3\\\" not found in sizes/"),
    ] {
        let answer = add(&server, NEW, body.clone()).await;
        assert!(answer.status == 409 && answer.text().contains(expected), "{body}: {}", answer.text());
    }
    // A file with that name exists already, for another machine.
    server.write("machines/taken.yaml", &format!("id: {STRANGER}\n"));
    let answer = add(&server, NEW, json!({ "name": "taken" })).await;
    assert!(answer.status == 409 && answer.text().contains("machines/taken.yaml already exists"), "{}", answer.text());
    let wrong = server.call("wrong", "POST", &format!("/v1/machine/{NEW}/file"), &json!({ "name": "new" })).await;
    assert_eq!(wrong.status, 401);

    let answer = add(&server, NEW, json!({ "name": "new" })).await;
    assert_eq!(answer.status, 200, "{}", answer.text());
    assert_eq!((&answer.json()["size"], &answer.json()["file"]), (&json!("c1"), &json!("machines/new.yaml")));
    let text = std::fs::read_to_string(server.dir.path().join("machines/new.yaml")).unwrap();
    assert_eq!(text, format!("id: {NEW}\nname: \"new\"\nmacs: [\"52:54:00:00:00:09\"]\nsize: \"c1\"\n"));
    let machine = operator_files::parse_machine(&text).unwrap();
    assert!(machine.allocation.is_none() && machine.size.as_deref() == Some("c1"));
    let left = std::fs::read_dir(server.dir.path().join("machines")).unwrap().map(|entry| entry.unwrap().file_name());
    assert!(left.into_iter().all(|name| !name.to_string_lossy().ends_with(".new")));
    server.heard("created machines/new.yaml for machine").await;

    // The machine is known after the next scan of the directory.
    let operator = std::fs::read_to_string(server.dir.path().join("operator.token")).unwrap();
    let began = std::time::Instant::now();
    loop {
        let listed = server.call(operator.trim(), "GET", "/v1/machines", &Value::Null).await.json();
        if listed.as_array().unwrap().iter().any(|machine| machine["id"] == NEW) {
            break;
        }
        assert!(began.elapsed() < PATIENCE, "{listed}");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    let answer = add(&server, NEW, json!({ "name": "newer" })).await;
    assert!(answer.status == 409 && answer.text().contains("already has a machine file"), "{}", answer.text());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn mac_of_another_machine_is_refused() {
    let server = Running::start().await;
    registered(&server, "52:54:00:00:00:01").await;
    let answer = add(&server, NEW, json!({ "name": "new" })).await;
    assert!(answer.status == 409 && answer.text().contains("belongs to machine"), "{}", answer.text());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn simultaneous_requests_create_one_file() {
    let server = Running::start().await;
    registered(&server, "52:54:00:00:00:09").await;
    let names = ["n1", "n2", "n3", "n4"];
    let [n1, n2, n3, n4] = names.map(|name| add(&server, NEW, json!({ "name": name })));
    let answers: [Answer; 4] = tokio::join!(n1, n2, n3, n4).into();
    let created = answers.iter().filter(|answer| answer.status == 200).count();
    let refused = answers.iter().filter(|answer| answer.status == 409);
    assert_eq!(created, 1);
    // A request is refused while another request creates the file, and also afterwards.
    for answer in refused.clone() {
        let text = answer.text();
        assert!(
            text.contains("already has a machine file")
                || text.contains("another request is creating the file of machine"),
            "{text}"
        );
    }
    assert_eq!(refused.count(), names.len() - 1);
    let files = names.iter().filter(|name| server.dir.path().join(format!("machines/{name}.yaml")).exists());
    assert_eq!(files.count(), 1);
}
