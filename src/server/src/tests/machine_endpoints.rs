//! The operator's requests to `/v1/machine`: list, find, allocate, free.

use super::*;
use control::agent_api_types::RegisterRequest;

const AT: &str = "/v1/machine";

impl Running {
    /// Waits until the machine satisfies the condition, and returns it.
    async fn found(&self, id: &str, is_so: impl Fn(&Value) -> bool) -> Value {
        let request = json!({"id": id.to_uppercase()});
        loop {
            let found = self.v1("POST", &format!("{AT}/find"), &request).await.json();
            if let Some(one) = found.get(0).filter(|one| is_so(one)) {
                return one.clone();
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn machines_are_listed_and_found_as_in_metal_api() {
    let server = Running::start().await;
    server.token(ONE).await;
    let listed = server.v1("GET", AT, &Value::Null).await.json();
    let ids: Vec<&str> = listed.as_array().unwrap().iter().map(|machine| machine["id"].as_str().unwrap()).collect();
    assert_eq!(ids, [ONE, TWO]);
    let one = server.found(ONE, |one| one["withheld"].is_null()).await;
    assert_eq!((&one["size"]["id"], &one["state"]["value"]), (&json!("c1"), &json!("")));
    assert_eq!(
        (&one["allocation"]["image"]["id"], &one["allocation"]["succeeded"]),
        (&json!("debian-12"), &json!(false))
    );
    assert_eq!(one["allocation"]["filesystemlayout"]["id"], "default");
    assert_eq!((&one["hardware"]["cpu_cores"], &one["bios"]["vendor"]), (&json!(2), &json!("")));
    // An agent can read only its own machine, with the allocation. The operator can read all machines, in the format of
    // the list.
    let token = server.token(ONE).await;
    let own = server.call(&token, "GET", &format!("{AT}/{ONE}"), &Value::Null).await;
    assert!(own.status == 200 && own.json().get("state").is_none(), "{}", own.text());
    assert_eq!(server.call(&token, "GET", &format!("{AT}/{TWO}"), &Value::Null).await.status, 401);
    let shown = server.v1("GET", &format!("{AT}/{}", ONE.to_uppercase()), &Value::Null).await;
    assert_eq!(
        (shown.status, &shown.json()["name"], &shown.json()["liveliness"]),
        (200, &json!("one"), &json!("Unknown"))
    );
    assert_eq!(server.v1("GET", &format!("{AT}/{STRANGER}"), &Value::Null).await.status, 404);
    assert_eq!(server.call(&token, "GET", AT, &Value::Null).await.status, 401);
    assert_eq!(server.call(&token, "POST", &format!("{AT}/find"), &json!({})).await.status, 401);

    let found = async |query: Value| {
        let found = server.v1("POST", &format!("{AT}/find"), &query).await.json();
        found.as_array().unwrap().iter().map(|machine| machine["name"].as_str().unwrap().to_owned()).collect::<Vec<_>>()
    };
    for (query, names) in [
        (json!({}), &["one", "two"][..]),
        (json!({"id": ONE.to_uppercase(), "rackid": null}), &["one"]),
        (json!({"sizeid": "c1", "allocation_image_id": "debian-12", "allocation_succeeded": false}), &["one"]),
        (json!({"name": "two", "network_ids": [], "rackid": ""}), &["two"]),
        (json!({"allocation_hostname": "other"}), &[]),
        (json!({"nics_mac_addresses": ["52:54:00:00:00:01"]}), &[]),
    ] {
        assert_eq!(found(query.clone()).await, names, "{query}");
    }
    let refused = server.v1("POST", &format!("{AT}/find"), &json!({"rackid": "r"})).await;
    assert!(refused.status == 400 && refused.text().contains("cannot be searched by"), "{}", refused.text());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn allocation_and_free_edit_the_machine_file() {
    let server = Running::start().await;
    let text = format!("# Of the rack.\nid: {TWO}\nname: two # the second\nmacs: ['52:54:00:00:00:02']\nsize: c2\n");
    server.write("machines/two.yaml", &text);
    server.found(TWO, |two| two["size"]["id"] == "c2").await;
    let wish = json!({"sizeid": "c2", "imageid": "debian-12", "filesystemlayoutid": "default", "hostname": "h2",
        "projectid": "p", "partitionid": "any", "ssh_pub_keys": ["ssh-ed25519 AAAA"], "networks": []});
    let allocate = async |wish: &Value| server.v1("POST", &format!("{AT}/allocate"), wish).await;
    let with = |name: &str, value: Value| {
        let mut wish = wish.clone();
        wish[name] = value;
        wish
    };
    for (status, words, body) in [
        (422, "no machine available", wish.clone()),
        (422, "a size id must be specified", with("sizeid", Value::Null)),
        (400, "is not supported in an allocation request", with("ips", json!(["10.0.0.1"]))),
        (422, "network \\\"n\\\" is not in the file of machine", {
            let mut wish = with("uuid", json!(TWO));
            wish["networks"] = json!([{"networkid": "n"}]);
            wish
        }),
        (404, "no machine with id", with("uuid", json!(STRANGER))),
        (422, "machine is already allocated", with("uuid", json!(ONE))),
        (422, "\"imageid: image \\\"debian-99\\\" not found", {
            let mut wish = with("uuid", json!(TWO));
            wish["imageid"] = json!("debian-99");
            wish
        }),
        (422, "\"filesystemlayoutid: layout \\\"none\\\" not found", {
            let mut wish = with("uuid", json!(TWO));
            wish["filesystemlayoutid"] = json!("none");
            wish
        }),
        (400, "\"ssh_pub_keys[0]: ", {
            let mut wish = with("uuid", json!(TWO));
            wish["ssh_pub_keys"] = json!([{"key": "ssh-ed25519 AAAA"}]);
            wish
        }),
        (422, "does not have the requested size: c7", {
            let mut wish = with("uuid", json!(TWO));
            wish["sizeid"] = json!("c7");
            wish
        }),
    ] {
        let answer = allocate(&body).await;
        assert!(answer.status == status && answer.text().contains(words), "{words}: {}", answer.text());
    }
    assert_eq!(server.file("machines/two.yaml"), text);

    // A machine can be allocated after its registration.
    let token = server.token(TWO).await;
    let answer = allocate(&wish).await;
    assert_eq!(answer.status, 200, "{}", answer.text());
    let entry =
        server.v1("GET", &format!("/v1/audit?action=allocate&machine={TWO}&limit=1"), &Value::Null).await.json();
    assert_eq!((&entry[0]["outcome"], &entry[0]["object"]), (&json!("done"), &json!(TWO)), "{entry}");
    let machine = answer.json();
    let uuid = machine["allocation"]["allocationuuid"].as_str().unwrap().to_owned();
    let written = server.file("machines/two.yaml");
    assert!(
        written.starts_with(&text)
            && (written.contains(&format!("id: \"{uuid}\"")) || written.contains(&format!("id: {uuid}"))),
        "{written}"
    );
    assert!(written.contains("  hostname: h2\n") && written.contains("  project: p\n"), "{written}");
    let given = server.allocated(TWO, &token).await.allocation.unwrap();
    assert_eq!((given.id, given.image.id, given.ssh_pub_keys.len()), (uuid.clone(), "debian-12".to_owned(), 1));
    assert_eq!(allocate(&wish).await.status, 422, "no second machine is free");

    // A machine cannot be freed during an installation. After the installation has ended, it can be freed.
    let body = json!({ "allocationuuid": uuid, "order": "", "disks": [] });
    let started = server.call(&token, "POST", &format!("{AT}/{TWO}/point-of-no-return"), &body).await;
    assert_eq!(started.status, 200, "{}", started.text());
    let free = async || server.v1("DELETE", &format!("{AT}/{TWO}/free"), &Value::Null).await;
    assert_eq!(free().await.status, 409);
    server.report(TWO, &token, &uuid, true).await;
    let freed = free().await;
    assert_eq!((freed.status, &freed.json()["allocation"]), (200, &Value::Null), "{}", freed.text());
    assert_eq!(server.file("machines/two.yaml"), text);
    assert_eq!(free().await.status, 200, "the machine is already free");
    server.write("machines/two.yaml", &(written + "locked: repair\n"));
    server.found(TWO, |two| two["state"]["value"] == "LOCKED").await;
    let locked = free().await;
    assert!(locked.status == 422 && locked.text().contains("machine is locked: repair"), "{}", locked.text());
}

/// An allocation is refused if the layout does not fit the machine, as in metal-api.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn layout_exceeding_the_registered_disks_is_not_allocated() {
    let server = Running::start().await;
    let text = format!("id: {TWO}\nname: two\nmacs: ['52:54:00:00:00:02']\nsize: c2\n");
    server.write("machines/two.yaml", &text);
    server.found(TWO, |two| two["size"]["id"] == "c2").await;
    let constraints = "constraints: {sizes: [c2], images: {debian: \"*\"}}\n";
    for (file, id, disk, more) in [("other", "other", "/dev/sdb", constraints), ("large", "large", "/dev/sda", "")] {
        let layout = LAYOUT.replace("id: default", &format!("id: {id}")).replace("/dev/sda", disk) + more;
        server.write(&format!("layouts/{file}.yaml"), &layout.replace("size: 0", "size: 2000"));
    }
    server.shows("/v1/filesystemlayout/large", |answer| answer.status == 200).await;
    server.shows("/v1/filesystemlayout/other", |answer| answer.status == 200).await;
    let disk = model::inventory::InventoryDisk {
        name: "sda".into(),
        device: "/dev/sda".into(),
        size_bytes: 1 << 30,
        sector_bytes: 512,
        ..Default::default()
    };
    let inventory = model::inventory::Inventory { disks: vec![disk], ..Default::default() };
    let token = token_of(&server.boot(&format!("uuid={TWO}")).await.text());
    let body = serde_json::to_value(RegisterRequest::new(TWO.to_owned(), inventory)).unwrap();
    assert_eq!(server.call(&token, "POST", "/v1/machine/register", &body).await.status, 200);
    let allocate = async |field: &str, value: &str, layout: &str| {
        let wish = json!({"imageid": "debian-12", "filesystemlayoutid": layout, field: value});
        server.v1("POST", &format!("{AT}/allocate"), &wish).await
    };
    let large = "device:/dev/sda is not big enough required:2002MiB, existing:1024MiB (with 1 MiB at each end";
    let other = "device:/dev/sdb does not exist on given hardware";
    // If no layout is named, the size and the image select it.
    for (layout, words) in [("large", large), ("other", other), ("", other)] {
        for (field, value) in [("uuid", TWO), ("sizeid", "c2")] {
            let answer = allocate(field, value, layout).await;
            assert!(answer.status == 422 && answer.text().contains(words), "{layout}: {}", answer.text());
            assert!(answer.text().contains("does not fit the disks of machine two: "), "{}", answer.text());
        }
    }
    assert_eq!(server.file("machines/two.yaml"), text);
    let answer = allocate("sizeid", "c2", "default").await;
    assert_eq!(answer.status, 200, "{}", answer.text());
}

/// A request does not overwrite an edit of the operator that is not in force yet.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn pending_edit_of_a_machine_file_is_not_overwritten() {
    let server = Running::start().await;
    server.token(TWO).await;
    let broken = format!("id: {TWO}\nname: two\nmacs: [\n");
    server.write("machines/two.yaml", &broken);
    let wish = json!({"uuid": TWO, "imageid": "debian-12", "filesystemlayoutid": "default"});
    let answer = server.v1("POST", &format!("{AT}/allocate"), &wish).await;
    assert_eq!((answer.status, server.file("machines/two.yaml")), (422, broken), "{}", answer.text());
    assert!(answer.text().contains("machines/two.yaml:4:1"), "{}", answer.text());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn allocation_accepts_only_networks_of_the_machine_file() {
    let server = Running::start().await;
    let text = format!(
        "id: {TWO}\nname: two\nmacs: ['52:54:00:00:00:02']\nnetworks: [{{networkid: internet, asn: 42}}, {{networkid: storage}}]\n"
    );
    server.write("machines/two.yaml", &text);
    server.token(TWO).await;
    let wish = |networks: Value| json!({"uuid": TWO, "imageid": "debian-12", "filesystemlayoutid": "default", "networks": networks});
    let allocate = async |networks: Value| server.v1("POST", &format!("{AT}/allocate"), &wish(networks)).await;
    // The server might not have read the file yet.
    let mut answer = allocate(json!([{"networkid": "stor", "autoacquire": true}])).await;
    while !answer.text().contains("did you mean") {
        tokio::time::sleep(Duration::from_millis(20)).await;
        answer = allocate(json!([{"networkid": "stor", "autoacquire": true}])).await;
    }
    let words =
        format!("network \"stor\" is not in the file of machine {TWO}: add the network to `networks` in that file");
    assert!(answer.status == 422 && answer.text().contains(&words.replace('"', "\\\"")), "{}", answer.text());
    for networks in [json!([{"autoacquire": true}]), json!(["internet"]), json!("internet")] {
        assert_eq!(allocate(networks).await.status, 400);
    }
    assert_eq!(server.file("machines/two.yaml"), text);
    let answer = allocate(json!([{"networkid": "storage"}, {"networkid": "internet", "autoacquire": true}])).await;
    let networks = &answer.json()["allocation"]["networks"];
    assert_eq!((answer.status, networks[0]["networkid"].as_str()), (200, Some("storage")), "{}", answer.text());
    assert_eq!((&networks[1]["networkid"], &networks[1]["asn"]), (&json!("internet"), &json!(42)));
    let freed = server.v1("DELETE", &format!("{AT}/{TWO}/free"), &Value::Null).await;
    assert_eq!((freed.status, server.file("machines/two.yaml")), (200, text));
}
