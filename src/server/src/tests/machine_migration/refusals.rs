//! Migrations that cannot be ordered, and requests that the machines of a migration must not send.

use super::*;
use crate::tests::reinstall::with_images;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn all_reasons_against_a_migration_are_listed() {
    let server = Running::start_in(with_images()).await;
    let refused = async |body: Value, status: u16| {
        let answer = server.about_move("POST", "", body).await;
        assert_eq!(answer.status, status, "{}", answer.text());
        answer.text()
    };
    let text = refused(json!({ "to": TWO }), 409).await;
    for words in [
        "machine 4c4c4544-0051-3010-8052-b4c04f4d0002 has not registered",
        "allocation a1 of machine",
        "is not installed",
    ] {
        assert!(text.contains(words), "{words}: {text}");
    }
    refused(json!({ "to": ONE }), 400).await;
    refused(json!({ "to": STRANGER }), 404).await;
    refused(json!({ "to": TWO, "what": 1 }), 400).await;
    let token = server.token(ONE).await;
    server.allocated(ONE, &token).await;
    assert_eq!(server.begins_first(ONE, &token, MARKED).await, 200);
    assert_eq!(server.report_to(ONE, &token, success(ONE)).await.status, 200);
    server.ramdisk(TWO).await;
    let text = refused(json!({ "to": TWO, "disks": { "/dev/sda": "S9", "/dev/sdb": "N1" } }), 409).await;
    for words in [
        "disk \\\"S9\\\" not found",
        "does not list disk /dev/sdb",
        "/dev/nvme0n1 (1.00 GB serial N1)",
        "--disk /dev/sda=DISK",
    ] {
        assert!(text.contains(words), "{words}: {text}");
    }
    server.order("debian-13").await;
    assert!(refused(json!({ "to": TWO }), 409).await.contains("a reinstall of machine"));
    let cancelled =
        server.call(&server.operator(), "DELETE", &format!("/v1/machine/{ONE}/reinstall"), &Value::Null).await;
    assert_eq!(cancelled.status, 200);
    assert_eq!(server.about_move("POST", "", json!({ "to": TWO, "disks": { "/dev/sda": "N1" } })).await.status, 200);
    // While the migration is open, other orders for its machines are refused.
    assert!(refused(json!({ "to": TWO }), 409).await.contains("is part of a migration"));
    assert_eq!(server.press(ONE, "debian-13", json!({})).await.status, 409);
    for (method, path, body) in [
        ("DELETE", format!("/v1/machine/{ONE}/free"), Value::Null),
        (
            "POST",
            "/v1/machine/allocate".to_owned(),
            json!({ "uuid": TWO, "imageid": "debian-12", "filesystemlayoutid": "default" }),
        ),
        ("POST", format!("/v1/machine/{ONE}/rename"), json!({ "id": STRANGER })),
        ("POST", format!("/v1/machine/{ONE}/adopt"), Value::Null),
    ] {
        let answer = server.call(&server.operator(), method, &path, &body).await;
        assert_eq!(answer.status, 409, "{path}: {}", answer.text());
    }
    server.write("machines/two.yaml", &machine_file(TWO, "two", "52:54:00:00:00:02", "a2", ""));
    server.heard("allocation a2 in this file is ignored: the machine is part of a migration").await;
    let listed = server.listed().await;
    assert_eq!(
        listed["moving"],
        json!({ "id": listed["moving"]["id"], "part": "send", "other": TWO, "state": "ordered" })
    );
}

/// Both machines see the same disk, for example in a disk shelf that is connected to both.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn disk_shared_with_the_source_is_refused() {
    let bytes = 1_000_000_000u64;
    for (serial, wwn, size_bytes, by) in [
        ("S1", "0x5000", 1, "wwn 0x5000"),
        ("N1", "", bytes, "serial number N1, model and size"),
        ("N1", "", 1, ""),
        ("S1", "0x5001", bytes, ""),
    ] {
        let server = Running::start_in(with_images()).await;
        let token = server.token(ONE).await;
        server.allocated(ONE, &token).await;
        let mut body = success(ONE);
        let disk = json!({ "device": "/dev/sda", "serial": serial, "wwn": wwn, "size_bytes": size_bytes });
        body["marker"]["disks"] = json!([disk]);
        assert_eq!(server.begins_first(ONE, &token, MARKED).await, 200);
        assert_eq!(server.report_to(ONE, &token, body).await.status, 200);
        let mut inventory = with_one_disk();
        inventory.disks[0].wwn = "0x5000".to_owned();
        let mut body = registration(TWO);
        body["inventory"] = json!(inventory);
        let token = token_of(&server.boot(&format!("uuid={TWO}")).await.text());
        assert_eq!(server.call(&token, "POST", "/v1/machine/register", &body).await.status, 200);
        let answer = server.about_move("POST", "", json!({ "to": TWO })).await;
        let text = answer.text();
        assert_eq!(answer.status, if by.is_empty() { 200 } else { 409 }, "{serial} {wwn}: {text}");
        let words = format!("the disk that replaces /dev/sda has the same {by} as /dev/sda of machine {ONE}");
        assert!(by.is_empty() || text.contains(&words), "{text}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn migration_of_encrypted_filesystems_is_refused() {
    let dir = with_images();
    let data = LAYOUT.replace(
        "size: 0, type: GPTLinux}",
        "size: 100, type: GPTLinux}, {number: 2, label: data, size: 0, type: GPTLinux}",
    );
    let layout = data.replace(
        "label: root}]\n",
        "label: root}, {path: /data, device: /dev/sda2, format: xfs, encrypted: {key: file}}]\n",
    );
    std::fs::write(dir.path().join("layouts/default.yaml"), layout).unwrap();
    let server = Running::start_in(dir).await;
    let token = server.token(ONE).await;
    server.allocated(ONE, &token).await;
    assert_eq!(server.begins_first(ONE, &token, MARKED).await, 200);
    assert_eq!(server.report_to(ONE, &token, success(ONE)).await.status, 200);
    server.ramdisk(TWO).await;
    let answer = server.about_move("POST", "", json!({ "to": TWO })).await;
    assert!(answer.status == 409 && answer.text().contains("keys would not be migrated"), "{}", answer.text());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn oversized_reports_and_tokens_of_the_peer_are_refused() {
    let (server, order) = Running::move_ordered().await;
    let one = server.ramdisk(ONE).await;
    let two = server.ramdisk(TWO).await;
    let say = async |token: &str, certificate: String, pad: usize| {
        let mut carried = json!({ "marker": marker(ONE), "filesystems": [] });
        carried["nics"] = json!(vec![json!({ "name": "n".repeat(4000), "mac": "m" }); pad]);
        let body = json!({ "order": order, "certificate": certificate, "carried": carried });
        server.call(token, "POST", &format!("/v1/machine/{ONE}/moving"), &body).await.status
    };
    assert_eq!(say(&two, certificate(ONE), 0).await, 401);
    assert_eq!(say(&one, "c".repeat((64 << 10) + 1), 0).await, 413);
    assert_eq!(say(&one, certificate(ONE), 262).await, 413);
    assert_eq!(say(&one, String::new(), 0).await, 400);
    assert_eq!(say(&one, certificate(ONE), 255).await, 200);
}
