//! `/v1/image`: images and their files, and hidden and blacklisted images.

use super::*;

const AT: &str = "/v1/image";
const NEW: &str = "debian-13.0.20261101";

fn image() -> Value {
    json!({"id": NEW, "name": "Debian 13", "url": "https://mirror.example.org/debian-13.tar.zst"})
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn image_requests_create_update_and_delete_its_file() {
    let server = Running::start().await;
    let made = server.v1("PUT", AT, &image()).await;
    assert_eq!(made.status, 201, "{}", made.text());
    let file = format!("images/{NEW}.yaml");
    let text = format!("id: {NEW}\nname: \"Debian 13\"\nurl: \"https://mirror.example.org/debian-13.tar.zst\"\n");
    assert_eq!(server.file(&file), text);
    let again = server.v1("PUT", AT, &image()).await;
    let words = format!("cannot create image in database, entity already exists: {NEW}");
    assert_eq!((again.status, again.json()["message"].as_str()), (409, Some(words.as_str())));

    // The operator has written a comment and a password into the file. A request changes another field.
    let secret = "pull_secret: {username: u, password: hunter2} # of the robot\n";
    server.write(&file, &format!("id: {NEW}  # new\nurl: oci://r.example/debian:13\n{secret}"));
    let shown = server.shows(&format!("{AT}/{NEW}"), |answer| answer.text().contains("oci:")).await;
    assert!(!shown.text().contains("hunter2"));
    let changed = server.v1("POST", AT, &json!({"id": NEW, "description": "of the rack", "name": null})).await;
    assert_eq!(
        (changed.status, changed.json()["description"].clone()),
        (200, json!("of the rack")),
        "{}",
        changed.text()
    );
    let expected = format!("id: {NEW}  # new\nurl: oci://r.example/debian:13\n{secret}description: \"of the rack\"\n");
    assert_eq!(server.file(&file), expected);
    // The response of a GET can be sent back without a change, even by clients that format the date differently.
    assert_eq!(server.v1("POST", AT, &changed.json()).await.status, 200);
    let again = json!({"id": NEW, "expirationDate": "9999-12-31T00:00:00+00:00"});
    assert_eq!(server.v1("POST", AT, &again).await.status, 200);
    assert_eq!(server.file(&file), expected);
    let old = server.v1_matching("POST", AT, &shown.headers["etag"], &json!({"id": NEW, "name": "x"})).await;
    assert!(old.status == 409 && !old.text().contains("hunter2"), "{}", old.text());

    let deleted = server.v1("DELETE", &format!("{AT}/{NEW}"), &Value::Null).await;
    assert_eq!((deleted.status, server.file(&file).as_str()), (200, ""));
    assert_eq!(server.v1("GET", &format!("{AT}/{NEW}"), &Value::Null).await.status, 404);
    let used = server.v1("DELETE", &format!("{AT}/debian-12"), &Value::Null).await;
    let words = format!("image debian-12 is in use by machines:[{ONE}]");
    assert_eq!((used.status, used.json()["message"].as_str()), (422, Some(words.as_str())));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn invalid_images_are_refused_and_computed_digests_not_stored() {
    let server = Running::start().await;
    let with = |name: &str, value: Value| {
        let mut image = image();
        image[name] = value;
        image
    };
    for (status, words, body) in [
        (400, "id should not be empty", json!({})),
        (400, "url should not be empty", json!({"id": NEW})),
        (
            400,
            "invalid format for os image, expected <os>-<major>.<minor>[.<patch>]: debian",
            with("id", json!("debian")),
        ),
        (400, "the url is neither", with("url", json!("ftp://h/i"))),
        (400, "specify one", with("file", json!("deb/debian 12.tar.zst"))),
        (400, "there is no field \"urll\"", with("urll", json!("x"))),
        (400, "images do not expire", with("expirationDate", json!("2027-01-01T00:00:00Z"))),
        (400, "there is no field \"classification\"", with("classification", json!("supported"))),
        (400, "the digest is neither", with("digest", json!("md5:0"))),
        (400, "is not accessible under:", json!({"id": NEW, "file": "none.tar"})),
        (400, "below images/", json!({"id": NEW, "file": "../secret"})),
    ] {
        let answer = server.v1("PUT", AT, &body).await;
        assert!(
            answer.status == status && answer.json()["message"].as_str().unwrap().contains(words),
            "{}",
            answer.text()
        );
    }
    let token = server.token(ONE).await;
    assert_eq!(server.call(&token, "GET", AT, &Value::Null).await.status, 401);
    let shown = server.shows(&format!("{AT}/debian-12"), |answer| answer.json()["ready"] == true).await;
    let (before, digest) = (server.file("images/debian.yaml"), shown.json()["digest"].clone());
    assert!(
        digest.as_str().unwrap().starts_with("sha256:") && shown.json()["url"].as_str().unwrap().starts_with("http://")
    );
    let same = server.v1("POST", AT, &shown.json()).await;
    assert_eq!((same.status, server.file("images/debian.yaml")), (200, before), "{}", same.text());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn hidden_image_is_not_listed_but_installable() {
    let server = Running::start().await;
    let ids = async |query: &str| {
        let listed = server.v1("GET", &format!("{AT}{query}"), &Value::Null).await.json();
        listed.as_array().unwrap().iter().map(|image| image["id"].as_str().unwrap().to_owned()).collect::<Vec<_>>()
    };
    // The flag `hidden` can be set before the image exists.
    let set = server.v1("PUT", &format!("{AT}/{NEW}/hidden"), &Value::Null).await;
    assert_eq!((set.status, set.json()), (200, json!({"hidden": [NEW], "blacklisted": []})));
    assert_eq!(server.v1("PUT", AT, &image()).await.status, 201);
    assert_eq!(ids("").await, ["debian-12"]);
    assert_eq!(ids("?hidden=true").await, ["debian-12", NEW]);
    assert_eq!((ids("?hidden=True").await.len(), ids("?hidden=False").await.len()), (2, 1), "as clients in Python");
    assert_eq!(server.v1("GET", &format!("{AT}?hidden=yes"), &Value::Null).await.status, 400);
    assert_eq!(server.v1("PUT", &format!("{AT}/debian-12/hidden"), &Value::Null).await.status, 200);
    assert!(ids("").await.is_empty());
    let token = server.token(ONE).await;
    assert_eq!(server.allocated(ONE, &token).await.allocation.unwrap().image.id, "debian-12");

    // The operator edits the same file.
    server.write("image-states.yaml", "# Of the rack.\nhidden: [debian-12] # the old one\n");
    server.shows("/v1/image-states", |answer| answer.json()["hidden"] == json!(["debian-12"])).await;
    assert_eq!(server.v1("PUT", &format!("{AT}/{NEW}/blacklisted"), &Value::Null).await.status, 200);
    let expected = format!("# Of the rack.\nhidden: [debian-12] # the old one\nblacklisted: [{NEW}]\n");
    assert_eq!(server.file("image-states.yaml"), expected);
    assert_eq!(server.v1("DELETE", &format!("{AT}/debian-12/hidden"), &Value::Null).await.status, 200);
    assert_eq!(ids("").await, ["debian-12"]);
    assert_eq!(ids("?blacklisted=true").await, ["debian-12", NEW]);
    assert_eq!(server.v1("PUT", &format!("{AT}/{NEW}/other"), &Value::Null).await.status, 404);
    assert_eq!(server.v1("GET", &format!("{AT}?hidden=perhaps"), &Value::Null).await.status, 400);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn blacklisted_image_is_only_accepted_for_its_reinstalls() {
    let server = Running::start().await;
    let blacklist = async |method: &str, id: &str| {
        let answer = server.v1(method, &format!("{AT}/{id}/blacklisted"), &Value::Null).await;
        assert_eq!(answer.status, 200, "{}", answer.text());
    };
    blacklist("PUT", "debian-12").await;
    server.heard("debian-12 is blacklisted: it cannot be used for new installations").await;
    let token = server.token(ONE).await;
    let waits = server.call(&token, "GET", &format!("/v1/machine/{ONE}/wait?seconds=0"), &Value::Null).await;
    assert_eq!(waits.status, 204);
    blacklist("DELETE", "debian-12").await;
    let given = server.allocated(ONE, &token).await.allocation.unwrap();
    assert_eq!(given.image.id, "debian-12");

    // If an image is blacklisted after it was sent to a machine, the installation must not start. An installation that
    // has started continues.
    let body = json!({ "allocationuuid": "a1", "order": "", "disks": [] });
    let begin = async || server.call(&token, "POST", &format!("/v1/machine/{ONE}/point-of-no-return"), &body).await;
    blacklist("PUT", "debian-12").await;
    let refused = begin().await;
    assert!(refused.status == 409 && refused.text().contains("was blacklisted after"), "{}", refused.text());
    blacklist("DELETE", "debian-12").await;
    assert_eq!(begin().await.status, 200);
    blacklist("PUT", "debian-12").await;
    assert!(server.allocated(ONE, &token).await.allocation.is_some());
    server.report(ONE, &token, "a1", true).await;

    // A machine that runs a blacklisted image can be reinstalled with it, but not with another blacklisted image.
    server.write("images/other.yaml", "id: debian-11\nfile: deb/debian 12.tar.zst\n");
    server.shows(&format!("{AT}/debian-11"), |answer| answer.status == 200 && answer.json()["ready"] == true).await;
    blacklist("PUT", "debian-11").await;
    let order = async |image: &str| {
        server.v1("POST", &format!("/v1/machine/{ONE}/reinstall"), &json!({"id": ONE, "imageid": image})).await
    };
    let refused = order("debian-11").await;
    assert!(refused.status == 400 && refused.text().contains("debian-11 is blacklisted"), "{}", refused.text());
    assert_eq!(order("debian-12").await.status, 200);
    let token = server.token(ONE).await;
    assert!(server.allocated(ONE, &token).await.allocation.unwrap().reinstall);

    // If an image is blacklisted after a reinstall was ordered, the reinstall waits, unless it has started.
    blacklist("DELETE", "debian-11").await;
    assert_eq!(order("debian-11").await.status, 200);
    blacklist("PUT", "debian-11").await;
    server.heard("a reinstall with image debian-11 is ordered, but the image has been blacklisted since then").await;
}

/// The interval of the periodic scans is too long for this test.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn added_image_is_in_the_next_response() {
    let dir = directory();
    let options = options(dir.path());
    let environment = HostEnvironment { scan_interval: Duration::from_secs(3600), ..silent() };
    let server = Running::start_with(dir, &options, &environment, 10_000).await;
    let add = |id: &str| {
        let digest = "0a".repeat(32);
        server.write(&format!("images/{id}.tar"), id);
        server.write(&format!("images/{id}.yaml"), &format!("id: {id}\nfile: {id}.tar\ndigest: sha256:{digest}\n"));
    };
    add("new-1");
    let listed = server.v1("GET", AT, &Value::Null).await;
    assert!(listed.text().contains("\"new-1\""), "{}", listed.text());
    add("new-2");
    assert_eq!(server.v1("GET", &format!("{AT}/new-2"), &Value::Null).await.status, 200);
    add("new-3");
    assert!(server.browser().await.text("/images").await.contains("new-3"));
    add("new-4");
    let ordered = server.press(ONE, "new-4", json!({})).await;
    assert!(ordered.text().contains("is not installed yet"), "the image is known: {}", ordered.text());
    server.write("images/invalid.yaml", "id: [");
    assert_eq!(server.v1("GET", AT, &Value::Null).await.status, 200);
}
