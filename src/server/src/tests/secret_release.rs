//! Release of secrets to machines: which boots receive which secrets, and when.

use super::reinstall::with_images;
use super::*;

impl Running {
    pub(super) async fn secrets(&self, token: &str, allocation: &str, purpose: &str) -> Answer {
        let body = json!({ "allocationuuid": allocation, "purpose": purpose });
        self.call(token, "POST", &format!("/v1/machine/{ONE}/secrets"), &body).await
    }
}

const SECRETS: [&str; 6] = [
    "a-key-that-is-long-enough-for-it",
    "the-user-data",
    "the-password",
    "the-key",
    "the-pull-secret",
    "the-mirrors-secret",
];

pub(super) fn with_secrets() -> TempDir {
    let dir = with_images();
    let more = "  disk_key: a-key-that-is-long-enough-for-it\n  user_data: the-user-data\n  console_password: the-password\n  vpn: {auth_key: the-key}\n";
    std::fs::write(dir.path().join("machines/one.yaml"), machine_file(ONE, "one", "52:54:00:00:00:01", "a1", more))
        .unwrap();
    let image = "id: debian-12\nurl: oci://r.example/debian:12\nmirrors: [oci://m.example/debian:12]\n\
                 pull_secret: {username: robot, password: the-pull-secret}\n";
    std::fs::write(dir.path().join("images/debian.yaml"), image).unwrap();
    // Base64 of `user:the-mirrors-secret`.
    let registries = r#"{"auths": {"m.example": {"auth": "dXNlcjp0aGUtbWlycm9ycy1zZWNyZXQ="}}}"#;
    std::fs::write(dir.path().join("registries.json"), registries).unwrap();
    dir
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn secrets_are_released_only_at_their_point_of_use() {
    let server = Running::start_in(with_secrets()).await;
    let path = format!("/v1/machine/{ONE}");
    let asked_for = token_of(&server.boot(&format!("uuid={ONE}")).await.text());
    for call in ["", "/wait?seconds=0"] {
        let answer = server.call(&asked_for, "GET", &format!("{path}{call}"), &Value::Null).await;
        assert_eq!(answer.status, 401);
        assert!(answer.text().contains("has not registered"), "{}", answer.text());
    }
    let token = server.token(ONE).await;
    let released = async |token: &str, purpose: &str| {
        let answer = server.secrets(token, "a1", purpose).await;
        let is_cached = answer.headers.get("cache-control").map(String::as_str) != Some("no-store");
        assert!(answer.status != 200 || !is_cached, "{:?}", answer.headers);
        assert!(answer.status == 200 || SECRETS.iter().all(|secret| !answer.text().contains(secret)));
        (answer.status, SECRETS.map(|secret| answer.text().contains(secret)))
    };
    let [none, of_disk, of_system, of_image] = [
        [false; 6],
        [true, false, false, false, false, false],
        [false, true, true, true, false, false],
        [false, false, false, false, true, true],
    ];
    for attempt in 0..2 {
        let token = &if attempt == 0 { token.clone() } else { server.token(ONE).await };
        server.allocated(ONE, token).await;
        let text = server.call(token, "GET", &path, &Value::Null).await.text();
        assert!(SECRETS.iter().all(|secret| !text.contains(secret)), "{text}");
        // The request can be repeated, because the previous response may have been lost.
        for _ in 0..2 {
            assert_eq!(released(token, "disk_key").await, (200, of_disk));
            assert_eq!(released(token, "image").await, (200, of_image));
            assert_eq!(released(token, "system").await, (409, none));
        }
        assert_eq!(server.secrets(token, "a2", "disk_key").await.status, 409);
        assert_eq!(server.begin(token, "").await, 200);
        for _ in 0..2 {
            assert_eq!(released(token, "disk_key").await, (409, none));
            assert_eq!(released(token, "image").await, (409, none));
            assert_eq!(released(token, "system").await, (200, of_system));
        }
        let given = server.allocated(ONE, token).await.allocation.unwrap();
        assert_eq!((given.user_data.as_str(), given.disk_key.is_empty(), given.disk_key_withheld), ("", true, true));
    }
    server.heard("one: sent secrets of allocation a1 to 127.0.0.1: user_data, console_password, vpn").await;
    let next = server.token(ONE).await;
    server.begin(&next, "").await;
    server.report(ONE, &next, "a1", true).await;
    // A boot of the ramdisk that has no installation to carry out receives no secrets.
    server.order("debian-12").await;
    let installed = server.token(ONE).await;
    let cancel = format!("/v1/machine/{ONE}/reinstall");
    assert_eq!(server.call(&server.operator(), "DELETE", &cancel, &Value::Null).await.status, 200);
    for purpose in ["disk_key", "image", "system"] {
        assert_eq!(released(&next, purpose).await, (401, none), "after the installation");
        assert_eq!(released(&installed, purpose).await, (409, none), "of an installed machine");
    }
    let said = server.heard.text();
    assert!(SECRETS.iter().all(|secret| !said.contains(secret)), "{said}");
    let dir = server.stop().await;
    let stored = engine::stored_text(dir.path());
    assert!(stored.contains(ONE));
    for secret in [&SECRETS[..], &["s3cret"]].concat() {
        assert!(!stored.contains(secret), "{secret} is in the database");
    }
}
