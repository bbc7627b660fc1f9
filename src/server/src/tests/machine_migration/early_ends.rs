//! Migrations that are canceled or refused.

use super::*;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn canceled_migration_returns_the_system_to_the_source() {
    // A migration is canceled at three points: before anything was written, during the copy, and after the target has
    // received everything.
    let (server, _) = Running::move_ordered().await;
    // The running system of machine one may load the ramdisk without the machine's firmware.
    let without_firmware = async || server.ask("GET", &format!("/boot.json?uuid={ONE}"), &[], "").await.status;
    assert_eq!(without_firmware().await, 200);
    assert_eq!(server.about_move("DELETE", "", Value::Null).await.json()["state"], json!("cancelled"));
    assert_eq!(without_firmware().await, 409);
    assert!(server.is_disk(ONE).await);

    let (server, order, one, two) = Running::move_begun().await;
    assert_eq!(server.about_move("DELETE", "", Value::Null).await.status, 200);
    for (id, token) in [(ONE, &one), (TWO, &two)] {
        assert_eq!(server.word(id, token, &order).await, "cancelled");
    }
    let told = server.read_allocation(ONE, &one).await;
    assert_eq!((&told["moving"], &told["succeeded"]), (&Value::Null, &json!(true)));
    assert_eq!(server.read_allocation(TWO, &two).await, Value::Null);
    assert_eq!(server.report_to(TWO, &two, success(TWO)).await.status, 409);
    assert!(server.is_disk(ONE).await && !server.is_disk(TWO).await);
    // Machine two does not boot from its disk, even if its file contains the allocation that was canceled.
    server.write("machines/two.yaml", &machine_file(TWO, "two", "52:54:00:00:00:02", MARKED, ""));
    server.heard("two.yaml:6:7: allocation a1 was migrated").await;
    assert!(!server.is_disk(TWO).await);
    std::fs::remove_file(server.dir.path().join("machines/two.yaml")).unwrap();
    assert!(!server.is_disk(TWO).await);

    let (server, _, _, two) = Running::move_begun().await;
    assert_eq!(server.report_to(TWO, &two, success(TWO)).await.status, 200);
    server.files_say("two", "one").await;
    let refused = server.about_move("DELETE", "", Value::Null).await;
    assert_eq!(refused.status, 409);
    assert!(refused.text().contains(&format!("`--off {TWO}`")), "{}", refused.text());
    assert_eq!(server.about_move("DELETE", &format!("?off={ONE}"), Value::Null).await.status, 400);
    assert!(!server.is_disk(ONE).await);
    assert_eq!(server.about_move("DELETE", &format!("?off={TWO}"), Value::Null).await.status, 200);
    assert!(server.is_disk(ONE).await && !server.is_disk(TWO).await);
    server.files_say("one", "two").await;
    let server = server.restarted().await;
    assert!(server.is_disk(ONE).await && !server.is_disk(TWO).await);
    let listed = server.listed().await;
    assert_eq!((&listed["installed"], &listed["allocation"]), (&json!(true), &json!(MARKED)));
    // Machine one owns the installed system again, so it can be migrated again or reinstalled.
    server.order("debian-13").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_refused_plan_ends_the_order() {
    let (server, order) = Running::move_ordered().await;
    let (one, two) = (server.ramdisk(ONE).await, server.ramdisk(TWO).await);
    server.announce_waiting(ONE, &one, &order).await;
    server.announce_waiting(TWO, &two, &order).await;
    let answer = server.report_to(TWO, &two, failure(true)).await;
    assert_eq!(answer.json(), json!({ "retry": false }));
    let shown = server.about_move("GET", "", Value::Null).await.json();
    assert_eq!((&shown["state"], &shown["to_says"]), (&json!("refused"), &json!("storage.find: why")));
    assert_eq!(server.word(ONE, &one, &order).await, "refused");
    assert!(server.is_disk(ONE).await);

    // A failure does not end a migration that has started; it is retried.
    let (server, _, _, two) = Running::move_begun().await;
    assert_eq!(server.report_to(TWO, &two, failure(false)).await.json(), json!({ "retry": true }));
    assert_eq!(server.state().await, "copying");
}
