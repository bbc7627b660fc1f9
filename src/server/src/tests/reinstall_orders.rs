//! The server sends an image to an installed machine only for an order.

use super::reinstall::with_images;
use super::*;

async fn cancel(server: &Running) {
    let path = format!("/v1/machine/{ONE}/reinstall");
    assert_eq!(server.call(&server.operator(), "DELETE", &path, &Value::Null).await.status, 200);
}

/// The disk with the marker was replaced, so the machine's disks do not show that it is installed.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn order_canceled_in_the_ramdisk_prevents_installation() {
    let server = Running::start_in(with_images()).await;
    server.installed().await;
    server.press(ONE, "debian-13", json!({ "without_marker": true })).await;
    let token = server.token(ONE).await;
    let ordered = server.allocated(ONE, &token).await.allocation.unwrap();
    assert!(ordered.image.url.contains("/images/") && ordered.reinstall);
    cancel(&server).await;

    let given = server.allocated(ONE, &token).await.allocation.unwrap();
    assert_eq!((given.succeeded, given.reinstall, given.order), (true, false, None));
    assert_eq!((given.image.url.as_str(), given.image.mirrors.len(), given.image.digest), ("", 0, None));
    assert_eq!(
        (given.image.id.as_str(), given.id.as_str()),
        ("debian-12", "a1"),
        "the machine can boot the installed system"
    );
    server.heard("one is installed and no reinstall is ordered: the machine boots from its disks").await;
    // Before an agent could install, it would have to request the point of no return, which the server refuses.
    for order in ["", ordered.order.unwrap().id.as_str()] {
        assert_eq!(server.begin(&token, order).await, 409, "{order:?}");
    }
    assert!(server.boots_disk().await);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn manifest_contents_are_passed_to_the_agent() {
    let server = Running::start_in(with_images()).await;
    let token = server.token(ONE).await;
    let image = server.allocated(ONE, &token).await.allocation.unwrap().image;
    assert_eq!(image.contents, None);
    let file = "images/deb/debian 12.tar.zst.manifest";
    let manifest =
        |digest: &str| json!({"version": 1, "digest": digest, "contents": {"init": "/sbin/init"}}).to_string();
    server.write(file, &manifest("sha256:0a"));
    server
        .heard("debian 12.tar.zst.manifest is not used: the manifest is for another image: its digest is sha256:0a")
        .await;
    server.write(file, &manifest(&image.digest.unwrap()));
    // After the next scan, a request gets the new manifest.
    let given = async {
        loop {
            match server.allocated(ONE, &token).await.allocation.unwrap().image.contents {
                Some(contents) => break contents,
                None => tokio::time::sleep(std::time::Duration::from_millis(50)).await,
            }
        }
    };
    let contents = tokio::time::timeout(PATIENCE, given).await.unwrap();
    assert_eq!((contents.init.as_deref(), contents.kernels.len()), (Some("/sbin/init"), 0));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn missing_image_message_does_not_suggest_cancellation() {
    let server = Running::start_in(with_images()).await;
    server.installed().await;
    let order = server.order("debian-13").await;
    let image = server.dir.path().join("images/13.yaml");
    let text = std::fs::read_to_string(&image).unwrap();
    std::fs::remove_file(&image).unwrap();
    server.heard("or order another image with `drophammer machine reinstall").await;
    std::fs::write(&image, text).unwrap();
    let token = server.token(ONE).await;
    // Wait until the server has detected that the image is back.
    server.allocated(ONE, &token).await;
    assert_eq!(server.begin(&token, &order).await, 200);
    std::fs::remove_file(&image).unwrap();
    server.heard("put the image back, because the reinstall has already started").await;
    assert!(!server.heard.text().contains("--cancel"), "{}", server.heard.text());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn order_carries_the_options_of_the_operator() {
    let server = Running::start_in(with_images()).await;
    server.installed().await;
    let container = "5b9e2c74-1f0a-4c3b-9d52-7a1f0c3b9d52";
    let words = json!({ "change_promise": true, "give_up": ["S1", "S2"], "leave_locked": [container.to_uppercase()] });
    let listed = server.press(ONE, "debian-13", words).await.json();
    assert_eq!((&listed["order"]["change_promise"], &listed["order"]["give_up"]), (&json!(true), &json!(["S1", "S2"])));
    assert_eq!(listed["order"]["leave_locked"], json!([container]));
    let options = format!("with the layout of the machine file, erasing S1, erasing S2, leaving {container} locked");
    server.heard(&format!("ordered: image debian-13, {options}")).await;
    let server = server.restarted().await;
    let token = server.token(ONE).await;
    let order = server.allocated(ONE, &token).await.allocation.unwrap().order.unwrap();
    assert!(order.change_promise && !order.without_marker);
    assert_eq!(
        (&order.give_up[..], &order.leave_locked[..]),
        (&["S1", "S2"].map(str::to_owned)[..], &[container.to_owned()][..])
    );
    for invalid in
        [json!({ "give_up": [" "] }), json!({ "leave_locked": ["/dev/sdb1"] }), json!({ "leave_locked": [""] })]
    {
        let refused = server.press(ONE, "debian-13", invalid).await;
        assert_eq!(refused.status, 400, "{}", refused.text());
    }
    // The overrides of an order do not apply to the next order.
    server.order("debian-13").await;
    let order = server.allocated(ONE, &token).await.allocation.unwrap().order.unwrap();
    assert!(!order.change_promise && order.give_up.is_empty() && order.leave_locked.is_empty());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn response_to_an_order_contains_the_order_that_it_replaces() {
    let server = Running::start_in(with_images()).await;
    server.installed().await;
    let first = server.press(ONE, "debian-13", json!({})).await.json();
    assert!(first["replaced"].is_null(), "{first}");
    assert_eq!(first["order"]["created_by"], "operator", "{first}");
    let second = server.press(ONE, "debian-12", json!({})).await.json();
    assert_eq!(second["replaced"], first["order"], "{second}");
    assert_ne!(second["order"]["id"], first["order"]["id"]);
    let text = format!(
        "ordered: image debian-12; replaces order {id} (image debian-13, ordered by operator at ",
        id = first["order"]["id"].as_str().unwrap()
    );
    server.heard(&text).await;
    let listed = server.v1("GET", "/v1/machines", &Value::Null).await;
    assert!(!listed.text().contains("\"replaced\""), "{}", listed.text());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn only_change_promise_replaces_the_installed_layout() {
    let server = Running::start_in(with_images()).await;
    server.installed().await;
    server.write("layouts/default.yaml", &LAYOUT.replace("sda", "sdb"));
    server.heard("layout default has changed since the machine was installed").await;
    let disk = async |words: Value| {
        server.press(ONE, "debian-13", words).await;
        let token = server.token(ONE).await;
        let given = server.allocated(ONE, &token).await.allocation.unwrap();
        given.filesystemlayout["disks"][0]["device"].as_str().unwrap().to_owned()
    };
    assert_eq!(disk(json!({})).await, "/dev/sda");
    assert_eq!(disk(json!({ "change_promise": true })).await, "/dev/sdb");
    assert_eq!(disk(json!({})).await, "/dev/sda");
}

const TWO_DISKS: &str = "id: default
disks:
- {device: /dev/sda, wipeonreinstall: true, partitions: [{number: 1, label: root, size: 0, type: GPTLinux}]}
- {device: /dev/sdb, partitions: [{number: 1, label: srv, size: 0, type: GPTLinux}]}
filesystems:
- {path: /, device: /dev/sda1, format: ext4, label: root}
- {path: /srv, device: /dev/sdb1, format: ext4, label: srv}
";

/// The database is lost, and the layout file has been edited. The machine reports its marker, and boots its installed
/// system.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn layout_violating_the_marker_is_not_installed_without_override() {
    let dir = with_images();
    let layout = model::layout::read_yaml(TWO_DISKS).unwrap().layout;
    let edited = TWO_DISKS.replace("{device: /dev/sdb,", "{device: /dev/sdb, wipeonreinstall: true,");
    std::fs::write(dir.path().join("layouts/default.yaml"), &edited).unwrap();
    let server = Running::start_in(dir).await;
    let token = server.token(ONE).await;
    server.allocated(ONE, &token).await;
    let marker = json!({
        "machine": ONE, "allocation": "a1", "image": "debian-12", "layout": "default",
        "layout_digest": model::layout::compute_digest(&layout),
        "disks": [{ "device": "/dev/sda", "size_bytes": 1, "promise": "wiped" },
                  { "device": "/dev/sdb", "size_bytes": 1, "promise": "kept" }],
    });
    let operator = server.operator();
    let adopt = async || server.call(&operator, "POST", &format!("/v1/machine/{ONE}/adopt"), &Value::Null).await;
    for _ in 0..2 {
        let adopted = adopt().await;
        assert!(adopted.status == 200 && adopted.json()["adopted"] == true, "{}", adopted.text());
    }
    server
        .report_of(&token, json!({ "success": true, "message": "m", "allocationuuid": "a1", "marker": marker }))
        .await;
    assert_eq!(adopt().await.status, 409, "the machine has reported its installation");
    server.heard("wipe policies: /dev/sda wiped, /dev/sdb kept. Layout default (sha256:").await;
    server.heard("the machine cannot be reinstalled until this problem is solved").await;
    let server = server.restarted().await;
    assert!(server.boots_disk().await, "the image is installed nevertheless");
    let refused = server.press(ONE, "debian-13", json!({})).await;
    assert_eq!(refused.status, 400);
    let text = refused.text();
    assert!(
        text.contains("/dev/sdb kept") && text.contains("/dev/sdb wiped") && text.contains("--change-promise"),
        "{text}"
    );

    let wipes = async |words: Value| {
        // A new file takes effect a moment later.
        let began = std::time::Instant::now();
        while server.press(ONE, "debian-13", words.clone()).await.status != 200 {
            assert!(began.elapsed() < PATIENCE, "never pressed: {}", server.heard.text());
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        let token = server.token(ONE).await;
        let given = server.allocated(ONE, &token).await.allocation.unwrap();
        given.filesystemlayout["disks"][1]["wipeonreinstall"].as_bool().unwrap()
    };
    assert!(wipes(json!({ "change_promise": true })).await, "the operator permits the change");
    server.write("layouts/default.yaml", TWO_DISKS);
    server.heard("layout default has changed since the reinstall was ordered with --change-promise").await;
    assert!(!wipes(json!({})).await, "the file is the installed layout again");
    server.heard("all files are valid again").await;
    // The order was placed while the file was valid. After the file has become invalid, the machine must wait.
    server.write("layouts/default.yaml", &edited);
    let wait = format!("/v1/machine/{ONE}/wait?seconds=0");
    let token = server.token(ONE).await;
    while server.call(&token, "GET", &wait, &Value::Null).await.status != 204 {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}
