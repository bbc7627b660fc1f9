//! An installed machine receives an installable image only with an order.

use super::reinstall::with_images;
use super::*;

async fn cancel(server: &Running) {
    let path = format!("/v1/machine/{ONE}/reinstall");
    assert_eq!(server.call(&server.operator(), "DELETE", &path, &Value::Null).await.status, 200);
}

/// The disk with the marker was replaced, so the machine itself does not show that it is installed.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_order_taken_back_in_the_ramdisk_leaves_nothing_to_install() {
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
    assert_eq!((given.image.id.as_str(), given.id.as_str()), ("debian-12", "a1"), "it can boot what it has");
    server.heard("one is installed and no reinstall is ordered: the machine boots from its disks").await;
    // An agent that tried to install would have to request the point of no return, which is refused.
    for order in ["", ordered.order.unwrap().id.as_str()] {
        assert_eq!(server.begin(&token, order).await, 409, "{order:?}");
    }
    assert!(server.boots_disk().await);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_the_manifest_tells_of_the_tree_is_given_on() {
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
async fn who_misses_an_image_is_not_told_to_take_the_order_back() {
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
async fn the_operators_words_go_with_the_order() {
    let server = Running::start_in(with_images()).await;
    server.installed().await;
    let words = json!({ "change_promise": true, "give_up": ["S1", "S2"] });
    let listed = server.press(ONE, "debian-13", words).await.json();
    assert_eq!((&listed["order"]["change_promise"], &listed["order"]["give_up"]), (&json!(true), &json!(["S1", "S2"])));
    server.heard("ordered: image debian-13, with the layout of the machine file, erasing S1, erasing S2").await;
    let server = server.restarted().await;
    let token = server.token(ONE).await;
    let order = server.allocated(ONE, &token).await.allocation.unwrap().order.unwrap();
    assert!(order.change_promise && !order.without_marker);
    assert_eq!(order.give_up, ["S1", "S2"]);
    let empty = server.press(ONE, "debian-13", json!({ "give_up": [" "] })).await;
    assert_eq!(empty.status, 400, "{}", empty.text());
    // The options do not apply to another order.
    server.order("debian-13").await;
    let order = server.allocated(ONE, &token).await.allocation.unwrap().order.unwrap();
    assert!(!order.change_promise && order.give_up.is_empty());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn only_the_operators_word_puts_the_file_in_the_place_of_the_installed_layout() {
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

/// The database is lost and the layout file was edited. The machine reports its marker, and boots its installed system.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_file_that_breaks_the_markers_promise_does_not_become_the_installed_layout() {
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
    let adopted = server.call(&operator, "POST", &format!("/v1/machine/{ONE}/adopt"), &Value::Null).await;
    assert_eq!(adopted.status, 200, "{}", adopted.text());
    server
        .report_of(&token, json!({ "success": true, "message": "m", "allocationuuid": "a1", "marker": marker }))
        .await;
    server.heard("wipe policies: /dev/sda wiped, /dev/sdb kept. Layout default (sha256:").await;
    server.heard("the machine cannot be reinstalled until this problem is solved").await;
    let server = server.restarted().await;
    assert!(server.boots_disk().await, "it is installed all the same");
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
    assert!(wipes(json!({ "change_promise": true })).await, "it is the operator's word");
    server.write("layouts/default.yaml", TWO_DISKS);
    server.heard("all files are valid again").await;
    assert!(!wipes(json!({})).await, "the file is the installed layout again");
    // The order was placed with the valid file. A later invalid edit does not take effect either.
    server.write("layouts/default.yaml", &edited);
    let wait = format!("/v1/machine/{ONE}/wait?seconds=0");
    let token = server.token(ONE).await;
    while server.call(&token, "GET", &wait, &Value::Null).await.status != 204 {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}
