//! Machines that impersonate one of the machines of a migration. Until the operator has approved their certificates,
//! they receive no data, erase nothing, and cannot take over the allocation.

use super::machine_migration::{certificate, fingerprint, marker};
use super::*;

impl Running {
    async fn announce_waiting_with_secret(&self, id: &str, token: &str, order: &str, secret: bool) -> Answer {
        let mut body = json!({ "order": order, "certificate": certificate(id), "has_secret": secret });
        match id == ONE {
            true => body["carried"] = json!({ "marker": marker(ONE), "filesystems": [] }),
            false => body["port"] = json!(4711),
        }
        self.call(token, "POST", &format!("/v1/machine/{id}/moving"), &body).await
    }

    async fn fetch_migration(&self) -> Value {
        self.about_move("GET", "", Value::Null).await.json()
    }

    async fn peer_of_sender(&self, token: &str) -> Value {
        self.read_allocation(ONE, token).await["moving"]["peer"].clone()
    }
}

/// The UUID and the MAC of the target are not secret. Another machine boots with them, and waits for the migration with
/// its own certificate.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn unapproved_receiver_is_neither_announced_nor_started() {
    let (server, order) = Running::move_ordered().await;
    let (one, impostor) = (server.ramdisk(ONE).await, server.ramdisk(TWO).await);
    assert_eq!(server.announce_waiting(ONE, &one, &order).await.status, 200);
    assert_eq!(server.announce_waiting(TWO, &impostor, &order).await.status, 200);
    server.heard(&format!("is not approved: compare its fingerprint {}", fingerprint(TWO))).await;
    for _ in 0..3 {
        let told = server.read_allocation(ONE, &one).await;
        assert_eq!((&told["moving"]["peer"], &told["moving"]["awaits_approval"]), (&Value::Null, &json!(true)));
        let answer = server.begins_to_receive(&impostor).await;
        assert!(answer.status == 503 && answer.text().contains("--approve FINGERPRINT"), "{}", answer.text());
    }
    // The impostor also cannot take over the allocation with a report of success.
    let success = json!({ "success": true, "message": "m", "allocationuuid": "a1", "marker": marker(TWO) });
    let answer = server.call(&impostor, "POST", &format!("/v1/machine/{TWO}/report"), &success).await;
    assert_eq!(answer.status, 409, "{}", answer.text());
    let shown = server.fetch_migration().await;
    assert_eq!(shown["to_certificate"], json!({ "fingerprint": fingerprint(TWO), "trust": "unapproved" }));
    assert_eq!(shown["from_certificate"], json!({ "fingerprint": fingerprint(ONE), "trust": "unapproved" }));
    // The console of machine B shows a fingerprint that differs from the one at the server. Approvals of other
    // fingerprints are refused, and the error lists the current fingerprints.
    let other = json!({ "fingerprints": [fingerprint("the real one")] });
    let answer = server.about_move("POST", "/approve", other).await;
    assert!(answer.status == 409 && answer.text().contains(&fingerprint(TWO)), "{}", answer.text());
    assert_eq!(server.about_move("POST", "/approve", json!({ "fingerprints": [] })).await.status, 409);
    assert_eq!(server.about_move("POST", "/approve", json!({ "all": true })).await.status, 400);
    let without_token = server.call(&one, "POST", &format!("/v1/machine/{ONE}/move/approve"), &json!({})).await;
    assert_eq!(without_token.status, 401, "a machine does not approve itself");
    assert_eq!(server.peer_of_sender(&one).await, Value::Null);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn approvals_are_individual_and_survive_a_restart() {
    let (server, order) = Running::move_ordered().await;
    let (one, two) = (server.ramdisk(ONE).await, server.ramdisk(TWO).await);
    for (id, token) in [(ONE, &one), (TWO, &two)] {
        assert_eq!(server.announce_waiting(id, token, &order).await.status, 200);
    }
    assert_eq!(server.approves(&[TWO]).await.json()["to_certificate"]["trust"], json!("operator"));
    assert_eq!(server.peer_of_sender(&one).await["approved"], json!(true));
    assert_eq!(server.begins_to_receive(&two).await.status, 503, "an impostor of A would overwrite B");
    let told = server.read_allocation(TWO, &two).await;
    assert_eq!(told["moving"]["peer"].get("approved"), None, "{told}");
    let server = server.restarted().await;
    let answer = server.approves(&[ONE]).await.json();
    assert_eq!([&answer["from_certificate"]["trust"], &answer["to_certificate"]["trust"]], [&json!("operator"); 2]);
    server.exchange_certificates(&one).await;
    assert_eq!(server.begins_to_receive(&two).await.status, 200);
    let page = server.listed().await;
    assert_eq!(page["moving"]["certificate"]["fingerprint"], json!(fingerprint(ONE)));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn secret_or_order_option_replaces_the_approval() {
    let (server, order) = Running::move_ordered().await;
    let (one, two) = (server.ramdisk(ONE).await, server.ramdisk(TWO).await);
    for (id, token) in [(ONE, &one), (TWO, &two)] {
        assert_eq!(server.announce_waiting_with_secret(id, token, &order, true).await.status, 200);
    }
    let peer = server.peer_of_sender(&one).await;
    assert!(peer["certificate"] == json!(certificate(TWO)) && peer.get("approved").is_none(), "{peer}");
    server.read_allocation(ONE, &one).await;
    assert_eq!(server.begins_to_receive(&two).await.status, 200);

    // The impostor claims to have the secret, but the source does not have it, so the secret replaces no approval.
    let (server, order) = Running::move_ordered().await;
    let (one, impostor) = (server.ramdisk(ONE).await, server.ramdisk(TWO).await);
    assert_eq!(server.announce_waiting_with_secret(ONE, &one, &order, false).await.status, 200);
    assert_eq!(server.announce_waiting_with_secret(TWO, &impostor, &order, true).await.status, 200);
    assert_eq!(server.peer_of_sender(&one).await, Value::Null);
    assert_eq!(server.begins_to_receive(&impostor).await.status, 503);

    // If the operator permits unapproved machines, for example on a trusted network, no approval is needed.
    assert_eq!(server.about_move("DELETE", "", Value::Null).await.status, 200);
    let answer = server.about_move("POST", "", json!({ "to": TWO, "allow_unapproved": true })).await;
    assert_eq!(answer.status, 200, "{}", answer.text());
    let order = answer.json()["id"].as_str().unwrap().to_owned();
    let (one, two) = (server.ramdisk(ONE).await, server.ramdisk(TWO).await);
    for (id, token) in [(ONE, &one), (TWO, &two)] {
        assert_eq!(server.announce_waiting(id, token, &order).await.status, 200);
    }
    for _ in 0..2 {
        assert_eq!(server.peer_of_sender(&one).await["approved"], json!(true));
    }
    assert_eq!(server.begins_to_receive(&two).await.status, 200);
    assert_eq!(server.fetch_migration().await["to_certificate"]["trust"], json!("order"));
}
