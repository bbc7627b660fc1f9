//! Reinstall orders whose attempts do not reach the point of no return: the order is suspended, and never lost.

use super::reinstall::with_images;
use super::*;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn order_is_suspended_after_three_unstarted_attempts() {
    let server = Running::start_in(with_images()).await;
    server.installed().await;
    server.order("debian-13").await;
    let mut token = String::new();
    for _ in 0..3 {
        token = server.token(ONE).await;
    }
    assert!(server.boots_disk().await);
    server.heard("suspended after 3 attempts: image debian-13 is not installed").await;
    // The order is not lost: it is shown with the reason and the remedy, and the operator replaces or cancels it.
    let listed = server.listed().await;
    assert_eq!((&listed["order"]["given_up"], &listed["order"]["begun"]), (&json!(true), &json!(false)));
    let outcome = &listed["outcome"];
    assert_eq!(outcome["success"], false);
    let message = outcome["message"].as_str().unwrap();
    assert!(message.starts_with("suspended: none of 3 attempts") && message.contains("order the reinstall again"));
    let browser = server.browser().await;
    assert!(browser.text("/orders").await.contains("suspended: the machine boots its disk"));
    assert!(browser.text(&format!("/machines/{ONE}")).await.contains("The order is suspended"));
    assert!(server.has_metric("drophammer_machines{phase=\"reinstall suspended\"} 1").await);
    assert_eq!(server.allocated(ONE, &token).await.allocation.unwrap().order, None);
    server.order("debian-13").await;
    assert!(!server.boots_disk().await);
}
