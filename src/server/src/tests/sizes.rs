//! `/v1/size`, and the files in `sizes/`.

use super::*;

const AT: &str = "/v1/size";

fn size(id: &str, cores: (u64, u64)) -> Value {
    json!({"id": id, "name": "n", "constraints": [
        {"type": "cores", "min": cores.0, "max": cores.1}, {"type": "memory", "min": 1, "max": 1000}]})
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn size_requests_create_update_and_delete_its_file() {
    let server = Running::start().await;
    assert_eq!(server.v1("GET", AT, &Value::Null).await.json(), json!([]), "the folder need not exist");
    let made = server.v1("PUT", AT, &size("c1", (1, 8))).await;
    assert_eq!((made.status, made.json()["description"].clone()), (201, json!("")), "{}", made.text());
    let text = "id: c1\nname: \"n\"\nconstraints:\n  - max: 8\n    min: 1\n    type: cores\n  - max: 1000\n    min: 1\n    type: memory\n";
    assert_eq!(server.file("sizes/c1.yaml"), text);
    // Changes preserve the comments of the operator.
    let text = "# small ones\nid: c1\nconstraints:\n  - {type: cores, min: 1, max: 8} # threads do not count\n  - {type: memory, max: 1000}\n";
    server.write("sizes/c1.yaml", text);
    let shown = server.shows(&format!("{AT}/c1"), |answer| answer.json()["name"] == "").await;
    assert_eq!(shown.json()["constraints"][1], json!({"type": "memory", "min": 0, "max": 1000}));
    let mut changed = shown.json();
    changed["constraints"][0]["max"] = json!(16);
    let answer = server.v1_matching("POST", AT, &shown.headers["etag"], &changed).await;
    assert_eq!(
        (answer.status, server.file("sizes/c1.yaml")),
        (200, text.replace("max: 8", "max: 16")),
        "{}",
        answer.text()
    );
    let stale = server.v1_matching("POST", AT, &shown.headers["etag"], &changed).await;
    let words = "cannot update size (c1): the entity was changed from another, please retry";
    assert_eq!((stale.status, stale.json()["message"].as_str()), (409, Some(words)));
    assert!(stale.json()["conflict"]["file"]["text"].as_str().unwrap().contains("# small ones"));
    assert_eq!(server.v1("POST", AT, &json!({"id": "c1", "name": "x"})).await.json()["name"], "x");
    // `machine add` selects one of the same sizes.
    server.token(STRANGER).await;
    let added = server.v1("POST", &format!("/v1/machine/{STRANGER}/file"), &json!({"name": "new"})).await;
    assert_eq!((added.status, added.json()["size"].as_str()), (200, Some("c1")), "{}", added.text());
    assert!(server.file("sizes/c1.yaml").ends_with("name: x\n"));
    assert_eq!(server.v1("DELETE", &format!("{AT}/c1"), &Value::Null).await.status, 200);
    let gone = server.v1("DELETE", &format!("{AT}/c1"), &Value::Null).await;
    assert_eq!((gone.status, gone.json()["message"].as_str()), (404, Some("no size with id \"c1\" found")));
    assert_eq!(server.file("sizes/c1.yaml"), "");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn invalid_sizes_are_refused_with_metal_api_messages() {
    let server = Running::start().await;
    assert_eq!(server.v1("PUT", AT, &size("c1", (1, 8))).await.status, 201);
    server.write("sizes/broken.yaml", "id: [\n");
    let memory = json!({"type": "memory", "min": 1, "max": 2});
    for (status, words, body) in [
        (400, "id should not be empty", json!({})),
        (400, "id cannot be \"unknown\"", size("unknown", (1, 2))),
        (409, "cannot create size in database, entity already exists: c1", size("c1", (9, 10))),
        (400, "size \"c2\" overlaps with \"c1\"", size("c2", (8, 9))),
        (422, "size \"c2\" is invalid: constraint at index 0 is invalid: max is smaller than min", size("c2", (9, 8))),
        (
            422,
            "size \"c2\" is invalid: constraint at index 1 is invalid: type duplicates are not allowed for type \"memory\"",
            json!({"id": "c2", "constraints": [memory, memory]}),
        ),
        (
            400,
            "identifier",
            json!({"id": "c2", "constraints": [{"type": "gpu", "min": 1, "max": 1, "identifier": "x"}]}),
        ),
        (400, "labels of a size is not supported", json!({"id": "c2", "labels": {"a": "b"}})),
        (400, "there is no field \"constrants\"", json!({"id": "c2", "constrants": [memory]})),
    ] {
        let answer = server.v1("PUT", AT, &body).await;
        assert!(
            answer.status == status && answer.json()["message"].as_str().unwrap().contains(words),
            "{}",
            answer.text()
        );
    }
    assert_eq!(server.v1("PUT", AT, &size("c2", (9, 10))).await.status, 201);
    assert_eq!(server.v1("GET", AT, &Value::Null).await.json().as_array().map(Vec::len), Some(2));
    let token = server.token(ONE).await;
    assert_eq!(server.call(&token, "PUT", AT, &size("c3", (11, 12))).await.status, 401);

    // The server suggests constraints that this registered machine satisfies.
    let suggested = server.v1("POST", &format!("{AT}/suggest"), &json!({"machineID": ONE})).await;
    let expected = json!([{"type": "cores", "min": 2, "max": 2}, {"type": "memory", "min": 1, "max": 1}, {"type": "storage", "min": 0, "max": 0}]);
    assert_eq!((suggested.status, suggested.json()), (200, expected));
    assert_eq!(server.v1("POST", &format!("{AT}/suggest"), &json!({"machineID": TWO})).await.status, 404);
    assert_eq!(
        server.v1("POST", &format!("{AT}/suggest"), &json!({})).await.json()["message"],
        "machineID must be given"
    );
}
