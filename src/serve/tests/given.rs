//! What is installed is only given with an order; whatever else is given cannot be installed.

use super::reinstall::with_images;
use super::*;

async fn cancel(server: &Running) {
    let path = format!("/v1/machine/{ONE}/reinstall");
    assert_eq!(server.call(&server.operator(), "DELETE", &path, &Value::Null).await.status, 200);
}

/// The disk with the marker was replaced, so nothing on the machine says that it is installed.
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
    server.heard("one is installed and nothing is ordered: it is given nothing to install").await;
    // An agent that would install all the same asks first.
    for order in ["", ordered.order.unwrap().id.as_str()] {
        assert_eq!(server.begin(&token, order).await, 409, "{order:?}");
    }
    assert!(server.boots_disk().await);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_misses_an_image_is_not_told_to_take_the_order_back() {
    let server = Running::start_in(with_images()).await;
    server.installed().await;
    let order = server.order("debian-13").await;
    let image = server.dir.path().join("images/13.yaml");
    let text = std::fs::read_to_string(&image).unwrap();
    std::fs::remove_file(&image).unwrap();
    server.heard("or order one that is there with `drophammer machine reinstall").await;
    std::fs::write(&image, text).unwrap();
    let token = server.token(ONE).await;
    assert_eq!(server.begin(&token, &order).await, 200);
    std::fs::remove_file(&image).unwrap();
    server.heard("it has begun, so put the image back").await;
    assert!(!server.heard.text().contains("--cancel"), "{}", server.heard.text());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_operators_words_go_with_the_order() {
    let server = Running::start_in(with_images()).await;
    server.installed().await;
    let words = json!({ "change_promise": true, "give_up": ["S1", "S2"] });
    let listed = server.press(ONE, "debian-13", words).await.json();
    assert_eq!((&listed["order"]["change_promise"], &listed["order"]["give_up"]), (&json!(true), &json!(["S1", "S2"])));
    server.heard("ordered: image debian-13, with the layout of its file, giving up S1, giving up S2").await;
    let server = server.restarted().await;
    let token = server.token(ONE).await;
    let order = server.allocated(ONE, &token).await.allocation.unwrap().order.unwrap();
    assert!(order.change_promise && !order.without_marker);
    assert_eq!(order.give_up, ["S1", "S2"]);
    let empty = server.press(ONE, "debian-13", json!({ "give_up": [" "] })).await;
    assert_eq!(empty.status, 400, "{}", empty.text());
    // Another order has none of them.
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
