//! Kubernetes volumes, from their list in a machine file to their manifests.

use super::*;

const UID: &str = "9474cda7-0dbe-40fc-9842-3cb0404a7201";

fn class() -> Value {
    json!({"kind": "StorageClass", "metadata": {"name": "fast"}, "parameters": {"fsType": "ext4"}})
}

fn volume(name: &str, uid: &str) -> Value {
    json!({"kind": "Volume", "metadata": {"name": name, "uid": uid},
        "spec": {"nodeName": "h", "storageClassName": "fast", "rawBlockDevice": {"devicePath": "/dev/sdc"}}})
}

impl Running {
    async fn volumes(&self) -> Vec<Value> {
        self.v1("GET", "/v1/volumes", &Value::Null).await.json().as_array().unwrap().clone()
    }

    async fn states(&self) -> Vec<String> {
        let said =
            |volume: &Value| format!("{} {}", volume["name"].as_str().unwrap(), volume["state"].as_str().unwrap());
        self.volumes().await.iter().map(said).collect()
    }

    async fn remove(&self, name: &str, phase: &str) -> Answer {
        let path = format!("/v1/machine/{ONE}/volumes/{name}?persistent_volume={phase}");
        self.v1("DELETE", &path, &Value::Null).await
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn volume_is_added_prepared_published_and_deleted() {
    let server = Running::start().await;
    let file = server.file("machines/one.yaml");
    let first = volume("db-1", UID);
    let add = async |list: &Value| server.v1("POST", &format!("/v1/machine/{ONE}/volumes"), list).await;
    // The request is refused, and the machine file does not change.
    let answer = add(&json!([volume("db-1", "x"), class()])).await;
    let why = "Volume db-1: metadata.uid: must be a UUID";
    assert!(answer.status == 400 && answer.text().contains(why), "{}", answer.text());
    let answer = add(&json!([volume("db-1", UID)])).await;
    let why = "Volume db-1: spec.storageClassName: the storage class fast is not in the list\\nNothing was added";
    assert!(answer.status == 400 && answer.text().contains(why), "{}", answer.text());
    assert_eq!(server.file("machines/one.yaml"), file);
    assert_eq!(server.v1("POST", &format!("/v1/machine/{TWO}/volumes"), &class()).await.status, 422);
    // A list in the format of `kubectl get`.
    let answer = add(&json!({"kind": "List", "items": [first, class()]})).await;
    assert_eq!(answer.status, 200, "{}", answer.text());
    assert_eq!(server.states().await, ["db-1 Pending"]);
    assert!(add(&json!([first, class()])).await.status == 200, "existing objects are unchanged");
    let mut other = volume("db-2", "9474cda7-0dbe-40fc-9842-3cb0404a7202");
    other["spec"]["nodeName"] = json!("node-1");
    let file = server.file("machines/one.yaml");
    let answer = add(&json!([other, class()])).await;
    assert!(answer.status == 422 && answer.text().contains("db-2 (of node-1)"), "{}", answer.text());
    assert_eq!(server.file("machines/one.yaml"), file, "the volume is on another node");

    // The agent receives the volume, and reports it as prepared.
    let token = server.token(ONE).await;
    server.register(ONE, &token).await;
    assert_eq!(server.call(&token, "GET", "/v1/volumes", &Value::Null).await.status, 401, "it is the operator's");
    let given = server.allocated(ONE, &token).await.allocation.unwrap();
    assert_eq!(given.parse_volumes().unwrap()[0].name, "db-1");
    assert_eq!(given.prepared_volumes, Some(Vec::new()));
    let path = format!("/dev/disk/by-uuid/{UID}");
    let report = json!({"success": true, "message": "m", "allocationuuid": given.id, "burn": {"bytes": 1, "seconds": 1.0, "shares": []},
        "volumes": [{"name": "db-1", "uid": UID, "path": path, "size_bytes": 4096}]});
    assert_eq!(server.begins_first(ONE, &token, &given.id).await, 200);
    let answer = server.call(&token, "POST", &format!("/v1/machine/{ONE}/report"), &report).await;
    assert_eq!(answer.status, 200, "{}", answer.text());
    assert_eq!(server.states().await, ["db-1 Available"]);
    let page = server.browser().await.text(&format!("/machines/{ONE}")).await;
    for words in ["<h2>Kubernetes volumes</h2>", "<td>db-1</td>", "<td>Available</td>", path.as_str()] {
        assert!(page.contains(words), "{words}: {page}");
    }
    let manifests = server.v1("GET", "/v1/volumes/manifests", &Value::Null).await;
    let text = manifests.text();
    let json: Value = serde_json::from_str(text.split_once('\n').unwrap().1).unwrap();
    let spec = &json["items"][0]["spec"];
    assert_eq!((&spec["local"]["path"], &spec["capacity"]["storage"]), (&json!(path), &json!("4096")));
    assert!(spec["nodeAffinity"].to_string().contains(r#"["h"]"#), "{spec}");

    // The published path depends on the mode in which the volume was prepared. If the mode has changed since, no
    // PersistentVolume is published.
    let mut block = first.clone();
    block["spec"]["mode"] = json!("Block");
    assert_eq!(add(&block).await.status, 200, "the object replaces the existing one");
    assert_eq!(server.states().await, ["db-1 Failed"]);
    let manifests = server.v1("GET", "/v1/volumes/manifests", &Value::Null).await;
    assert!(!manifests.text().contains("db-1"), "{}", manifests.text());
    assert_eq!(add(&first).await.status, 200);
    assert_eq!(server.states().await, ["db-1 Available"]);

    // A volume may name its node by the fully qualified host name. If the operator edits the file so that the volume
    // names another node, the volume fails.
    other["spec"]["nodeName"] = json!("h.rack.example");
    assert_eq!(add(&other).await.status, 200);
    let written = server.file("machines/one.yaml");
    server.write("machines/one.yaml", &written.replace("h.rack.example", "node-1"));
    let began = std::time::Instant::now();
    while server.states().await != ["db-1 Available", "db-2 Failed"] {
        assert!(began.elapsed() < PATIENCE, "{:?}", server.states().await);
        tokio::time::sleep(std::time::Duration::from_millis(20)).await;
    }
    assert_eq!(server.remove("db-2", "none").await.status, 200);

    // A new volume is prepared by the next reinstall.
    other["spec"]["nodeName"] = json!("h");
    assert_eq!(add(&other).await.status, 200);
    assert_eq!(server.states().await, ["db-1 Available", "db-2 Pending"]);
    // Each case of MetalK8s' decision tree for deletions.
    for (name, phase, status) in [
        ("db-1", "bound", 409),
        ("db-1", "pending", 409),
        ("db-1", "lost", 400),
        ("db-9", "none", 404),
        ("db-1", "released", 200),
    ] {
        let answer = server.remove(name, phase).await;
        assert_eq!(answer.status, status, "{name} {phase}: {}", answer.text());
    }
    assert_eq!(server.states().await, ["db-1 Terminating", "db-2 Pending"]);
    // A volume that is marked for deletion is not prepared.
    let mut third = volume("db-3", "9474cda7-0dbe-40fc-9842-3cb0404a7203");
    third["metadata"]["deletionTimestamp"] = json!("2026-11-24T12:00:00Z");
    assert_eq!(add(&third).await.status, 200);
    assert_eq!(server.states().await, ["db-1 Terminating", "db-2 Pending", "db-3 Terminating"]);
    assert_eq!((server.remove("db-3", "bound").await.status, server.remove("db-3", "none").await.status), (409, 200));
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn reinstall_receives_the_prepared_volumes() {
    let server = Running::start().await;
    let list = json!([volume("db-1", UID), class()]);
    assert_eq!(server.v1("POST", &format!("/v1/machine/{ONE}/volumes"), &list).await.status, 200);
    let token = server.token(ONE).await;
    let given = server.allocated(ONE, &token).await.allocation.unwrap();
    assert_eq!(given.prepared_volumes, Some(Vec::new()), "pending");
    let path = format!("/dev/disk/by-uuid/{UID}");
    let report = json!({"success": true, "message": "m", "allocationuuid": given.id, "burn": {"bytes": 1, "seconds": 1.0, "shares": []},
        "volumes": [{"name": "db-1", "uid": UID, "path": path, "size_bytes": 4096}]});
    assert_eq!(server.begins_first(ONE, &token, &given.id).await, 200);
    assert_eq!(server.call(&token, "POST", &format!("/v1/machine/{ONE}/report"), &report).await.status, 200);
    let second = volume("db-2", "9474cda7-0dbe-40fc-9842-3cb0404a7202");
    assert_eq!(server.v1("POST", &format!("/v1/machine/{ONE}/volumes"), &json!([second])).await.status, 200);
    server.order("debian-12").await;
    let token = server.token(ONE).await;
    server.register(ONE, &token).await;
    let given = server.allocated(ONE, &token).await.allocation.unwrap();
    assert_eq!((given.reinstall, given.parse_volumes().unwrap().len()), (true, 2));
    let prepared = given.prepared_volumes.unwrap();
    let prepared: Vec<(&str, &str, &str)> =
        prepared.iter().map(|is| (is.uid.as_str(), is.name.as_str(), is.path.as_str())).collect();
    assert_eq!(prepared, [(UID, "db-1", path.as_str())]);
    server.stop().await;
}
