//! Requests that a browser sends for another site: by DNS rebinding, or from that site's pages.

use super::*;

const REBOUND: &str = "rebound.evil.example";

impl Running {
    async fn under(&self, host: &str, path: &str, token: &str) -> Answer {
        let (host, bearer) = (format!("{host}:{}", self.address.port()), format!("Bearer {token}"));
        self.ask("GET", path, &[("Host", &host), ("Authorization", &bearer)], "").await
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn requests_with_rebound_host_name_are_refused() {
    let server = Running::start().await;
    let (token, operator) = (server.token(ONE).await, server.operator());
    server.allocated(ONE, &token).await;
    for (path, token) in [
        (format!("/boot.ipxe?uuid={ONE}"), ""),
        (format!("/boot.json?uuid={ONE}"), ""),
        ("/start.ipxe".to_owned(), ""),
        (format!("/v1/machine/{ONE}"), &token),
        (format!("/v1/machine/{ONE}/wait?seconds=0"), &token),
        ("/v1/machines".to_owned(), &operator),
        ("/openapi.json".to_owned(), ""),
        ("/metrics".to_owned(), &operator),
        ("/".to_owned(), ""),
        ("/login".to_owned(), ""),
        ("/images/deb/debian%2012.tar.zst".to_owned(), ""),
        ("/boot/vmlinuz".to_owned(), ""),
        ("/no/such/call".to_owned(), ""),
    ] {
        let answer = server.under(REBOUND, &path, token).await;
        assert_eq!(answer.status, 421, "{path}: {}", answer.text());
        assert!(answer.text().contains(&format!("--host {REBOUND}")), "{}", answer.text());
        assert!(!answer.text().contains("drophammer.token="), "{path}");
    }
    server.heard(&format!("a request from 127.0.0.1 was rejected: {REBOUND} is not a name of this server")).await;
    assert_eq!(server.under("probe.cluster.local", "/livez", "").await.status, 200, "a probe reads nothing secret");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn own_names_and_all_addresses_are_served() {
    let dir = directory();
    let url = Some("http://boot.rack:8080".to_owned());
    let options = ServerConfig { hosts: vec!["install.rack".to_owned()], url, ..options(dir.path()) };
    let server = Running::start_with(dir, &options, &silent(), 10_000).await;
    let own = nix::unistd::gethostname().unwrap().into_string().unwrap();
    for host in ["localhost", "127.0.0.1", "[::1]", "203.0.113.7", "install.rack", "INSTALL.RACK.", "boot.rack", &own] {
        let answer = server.under(host, "/start.ipxe", "").await;
        assert_eq!(answer.status, 200, "{host}: {}", answer.text());
    }
    assert_eq!(server.under("other.rack", "/start.ipxe", "").await.status, 421);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn host_check_covers_every_request_form() {
    let server = Running::start().await;
    let address = server.address;
    for head in [
        "GET /start.ipxe HTTP/1.0\r\n".to_owned(),
        format!("GET http://{REBOUND}/start.ipxe HTTP/1.1\r\nHost: {address}\r\n"),
        format!("GET /start.ipxe HTTP/1.1\r\nHost: {address}\r\nHost: {REBOUND}\r\n"),
        format!("GET /start.ipxe HTTP/1.1\r\nHost: {REBOUND}\r\nHost: {address}\r\n"),
        format!("GET /start.ipxe HTTP/1.1\r\nHost: {REBOUND}\r\nX-Forwarded-Host: {address}\r\n"),
    ] {
        let answer = server.raw(&format!("{head}Connection: close\r\n\r\n")).await;
        assert_eq!(answer.status, 421, "{head}{}", answer.text());
    }
    assert_eq!(server.raw("GET /readyz HTTP/1.0\r\n\r\n").await.status, 200);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn other_sites_receive_no_boot_script() {
    let server = Running::start().await;
    let before = server.token(ONE).await;
    let path = format!("/boot.ipxe?uuid={ONE}");
    for headers in [
        [("Sec-Fetch-Site", "cross-site"), ("Sec-Fetch-Mode", "no-cors")],
        [("Sec-Fetch-Site", "same-site"), ("Sec-Fetch-Mode", "navigate")],
        [("User-Agent", "Mozilla/5.0 (X11; Linux x86_64)"), ("Accept", "image/webp")],
    ] {
        let answer = server.ask("GET", &path, &headers, "").await;
        assert_eq!(answer.status, 403, "{headers:?}: {}", answer.text());
    }
    let machine = server.call(&before, "GET", &format!("/v1/machine/{ONE}"), &Value::Null).await;
    assert_eq!(machine.status, 200, "no other boot has replaced it");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn responses_forbid_caching_and_content_sniffing() {
    let server = Running::start().await;
    let token = server.token(ONE).await;
    server.allocated(ONE, &token).await;
    for (path, token) in [
        (format!("/v1/machine/{ONE}"), token.clone()),
        (format!("/boot.ipxe?uuid={ONE}"), String::new()),
        ("/v1/machines".to_owned(), server.operator()),
        ("/v1/machines".to_owned(), "wrong".to_owned()),
        ("/v1/image".to_owned(), server.operator()),
        (format!("/v1/machine/{ONE}/preview"), server.operator()),
        ("/login".to_owned(), String::new()),
        ("/no/such/call".to_owned(), String::new()),
    ] {
        let answer = server.ask("GET", &path, &[("Authorization", &format!("Bearer {token}"))], "").await;
        let header = |name: &str| answer.headers.get(name).map(String::as_str);
        assert_eq!(header("cache-control"), Some("no-store"), "{path}");
        assert_eq!(header("x-content-type-options"), Some("nosniff"), "{path}");
    }
    let file = server.ask("GET", "/images/deb/debian%2012.tar.zst", &[], "").await;
    assert_eq!((file.headers.get("cache-control"), file.headers["x-content-type-options"].as_str()), (None, "nosniff"));
}
