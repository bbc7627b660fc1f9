//! The digest that an operator passes to `drophammer reinstall` equals the digest of the files that the machine
//! receives.

use super::*;
use control::boot_digest::BootDigest;

impl Running {
    async fn boot_digest(&self, query: &str) -> Answer {
        self.v1("GET", &format!("/v1/machine/{ONE}/boot-digest{query}"), &Value::Null).await
    }

    /// Returns the digest of the files and kernel arguments that the machine would boot now, computed as the machine
    /// computes it.
    async fn served(&self) -> String {
        let script = self.boot(&format!("uuid={ONE}")).await.text();
        let (kernel, initrd) =
            (self.ask("GET", "/boot/vmlinuz", &[], "").await, self.ask("GET", "/boot/initrd", &[], "").await);
        let digest = BootDigest::compute_from_files(&kernel.body[..], &initrd.body[..], kernel_arguments(&script));
        digest.unwrap().to_string()
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn computed_boot_digest_matches_every_boot() {
    let server = Running::start().await;
    let at = format!("?server=http://{}/", server.address);
    let known = server.boot_digest(&at).await.json()["digest"].as_str().unwrap().to_owned();
    // Two boots with different tokens have the same digest.
    assert_eq!((server.served().await, server.served().await), (known.clone(), known.clone()));
    for (file, content) in [("initrd", "another ramdisk"), ("vmlinuz", "another kernel")] {
        let before = server.boot_digest(&at).await.json();
        std::fs::write(server.dir.path().join("boot").join(file), content).unwrap();
        let after = server.boot_digest(&at).await.json();
        assert_ne!(before["digest"], after["digest"], "{file}");
        assert_eq!(after["digest"], server.served().await);
    }
    let elsewhere = server.boot_digest("?server=http://10.0.0.66:8080").await.json();
    assert_ne!(elsewhere["digest"], server.served().await, "the digest covers the server's address");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn boot_digest_requires_token_machine_and_url() {
    let server = Running::start().await;
    let path = format!("/v1/machine/{ONE}/boot-digest?server=http://10.0.0.1");
    assert_eq!(server.ask("GET", &path, &[], "").await.status, 401);
    for (query, status, words) in [
        ("", 409, "start the server with --url"),
        ("?server=10.0.0.1:8080", 400, "server=10.0.0.1:8080"),
        ("?server=ftp://10.0.0.1", 400, "must begin with http://"),
        ("?server=http://a%20b", 400, "server="),
    ] {
        let answer = server.boot_digest(query).await;
        assert_eq!(answer.status, status, "{query}: {}", answer.text());
        assert!(answer.text().contains(words), "{query}: {}", answer.text());
    }
    let stranger = format!("/v1/machine/{STRANGER}/boot-digest?server=http://10.0.0.1");
    assert_eq!(server.v1("GET", &stranger, &Value::Null).await.status, 404);
    std::fs::remove_file(server.dir.path().join("boot/initrd")).unwrap();
    assert_eq!(server.boot_digest("?server=http://10.0.0.1").await.status, 500);
    assert_eq!(
        server.machine(&["boot-digest", "nobody", "--at", "http://10.0.0.1"]).await.unwrap(),
        CommandOutcome::Refused
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn configured_url_is_used_for_the_digest() {
    let dir = directory();
    let options = ServerConfig { url: Some("http://install.rack:8080".to_owned()), ..options(dir.path()) };
    let server = Running::start_with(dir, &options, &silent(), 10_000).await;
    let shown = server.boot_digest("").await.json();
    assert_eq!(shown["server"], "http://install.rack:8080");
    assert_eq!(shown["digest"], server.served().await);
    assert_eq!(server.machine(&["boot-digest", "one"]).await.unwrap(), CommandOutcome::Good);
}
