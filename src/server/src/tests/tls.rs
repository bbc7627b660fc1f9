//! A server with TLS, and clients that accept its certificate or reject it.

use super::options::TlsOptions;
use super::*;
use linux::pem_encoding::encode_pem;
use reqwest::{Certificate, Client, Method, Response};

/// Returns the path of a file in `testdata/tls`.
fn file(name: &str) -> PathBuf {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../..")).join("testdata/tls").join(name)
}

fn with_tls(dir: &Path) -> ServerConfig {
    let (certificates, key, listen) = (file("server.pem"), file("server.key"), "127.0.0.1:0".parse().unwrap());
    ServerConfig { tls: Some(TlsOptions { certificates, key, listen }), ..options(dir) }
}

async fn start() -> Running {
    let dir = directory();
    let options = with_tls(dir.path());
    Running::start_with(dir, &options, &silent(), 10_000).await
}

/// Returns a client that trusts only this CA.
fn trusting(authority: &str) -> Client {
    let _ = rustls::crypto::ring::default_provider().install_default();
    let authority = Certificate::from_pem(&std::fs::read(file(authority)).unwrap()).unwrap();
    Client::builder().no_proxy().tls_certs_only([authority]).timeout(PATIENCE).build().unwrap()
}

impl Running {
    fn https(&self) -> String {
        format!("https://{}", self.tls.unwrap())
    }

    async fn over_tls(&self, client: &Client, method: Method, path: &str, token: &str, body: &Value) -> Response {
        let url = if path.starts_with("https://") { path.to_owned() } else { format!("{}{path}", self.https()) };
        let request = client.request(method, url).bearer_auth(token);
        let request = if body.is_null() { request } else { request.json(body) };
        request.send().await.unwrap()
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn firmware_uses_http_and_token_requests_use_tls() {
    let server = start().await;
    let client = trusting("ca.pem");
    let script = server.boot(&format!("uuid={ONE}")).await.text();
    let (plain, https) = (format!("http://{}", server.address), server.https());
    assert!(script.contains(&format!("kernel {plain}/boot/vmlinuz initrd=initrd ")), "{script}");
    assert!(kernel_arguments(&script).starts_with(&format!("drophammer.url={https} ")), "{script}");
    assert!(script.contains(&format!("initrd --name initrd {plain}/boot/initrd ||")), "{script}");
    assert_eq!(server.ask("GET", "/boot/vmlinuz", &[], "").await.text(), "kernel");
    let start = server.ask("GET", "/start.ipxe", &[], "").await.text();
    assert!(start.contains(&format!("chain --replace {plain}/boot.ipxe")), "{start}");

    let token = token_of(&script);
    let register = registration(ONE);
    let answer = server.over_tls(&client, Method::POST, "/v1/machine/register", &token, &register).await;
    assert_eq!(answer.status(), 200);
    let path = format!("/v1/machine/{ONE}");
    let wait = server.over_tls(&client, Method::GET, &format!("{path}/wait?seconds=60"), &token, &Value::Null).await;
    assert_eq!(wait.status(), 200);
    let machine = server.over_tls(&client, Method::GET, &path, &token, &Value::Null).await;
    let machine: allocation::AssignedMachine = serde_json::from_str(&machine.text().await.unwrap()).unwrap();
    let image = machine.allocation.unwrap().image.url;
    assert!(image.starts_with(&format!("{https}/images/")), "{image}");
    let image = server.over_tls(&client, Method::GET, &image, &token, &Value::Null).await;
    assert_eq!(image.text().await.unwrap(), "0123456789");
    let operator = server.operator();
    let machines = server.over_tls(&client, Method::GET, "/v1/machines", &operator, &Value::Null).await;
    assert_eq!(machines.status(), 200);
    // Firmware that supports TLS can also load its files over TLS. Its boot script then contains only https URLs.
    let path = format!("/boot.ipxe?uuid={ONE}");
    let script = server.over_tls(&client, Method::GET, &path, "", &Value::Null).await.text().await.unwrap();
    assert!(script.contains(&format!("kernel {https}/boot/vmlinuz ")) && !script.contains("http://"), "{script}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn token_requests_over_http_are_refused() {
    let server = start().await;
    let token = token_of(&server.boot(&format!("uuid={ONE}")).await.text());
    let port = server.tls.unwrap().port();
    let path = format!("/v1/machine/{ONE}");
    let calls = [
        ("POST", "/v1/machine/register".to_owned()),
        ("GET", path.clone()),
        ("GET", format!("{path}/wait?seconds=0")),
        ("POST", format!("{path}/event")),
        ("POST", format!("{path}/point-of-no-return")),
        ("POST", format!("{path}/report")),
        ("POST", format!("{path}/reinstall")),
        ("DELETE", format!("{path}/reinstall")),
        ("POST", format!("{path}/adopt")),
        ("POST", format!("{path}/rename")),
        ("GET", "/v1/machines".to_owned()),
        ("GET", format!("/boot.json?uuid={ONE}")),
        ("GET", "/images/deb/debian%2012.tar.zst".to_owned()),
    ];
    for token in [token, server.operator()] {
        for (method, path) in &calls {
            let answer = server.call(&token, method, path, &registration(ONE)).await;
            assert_eq!(answer.status, 403, "{method} {path}");
            assert!(answer.text().contains(&format!("over https, on port {port}")), "{}", answer.text());
        }
    }
    server.heard("127.0.0.1 sent a token unencrypted over plain http").await;
    assert!(!server.heard.text().contains("unknown machine"), "no machine has registered");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn invalid_tls_clients_do_not_affect_others() {
    let server = start().await;
    let mut silent = TcpStream::connect(server.tls.unwrap()).await.unwrap();
    let error = trusting("stranger.pem").get(format!("{}/v1/machines", server.https())).send().await.unwrap_err();
    assert!(linux::http::is_untrusted_certificate(&error), "{error:?}");
    server.heard("127.0.0.1 rejects the server's certificate (UnknownCA)").await;

    for request in ["GET /v1/machines HTTP/1.1\r\nHost: h\r\n\r\n", "\u{0}\u{0}\u{0}\u{0}\u{0}\u{0}\u{0}\u{0}"] {
        let mut stream = TcpStream::connect(server.tls.unwrap()).await.unwrap();
        stream.write_all(request.as_bytes()).await.unwrap();
        let mut answer = Vec::new();
        // The server may reset the connection, because it has not read the whole request.
        let _ = tokio::time::timeout(PATIENCE, stream.read_to_end(&mut answer)).await.expect("it is closed");
        assert!(!answer.starts_with(b"HTTP"), "{answer:?}");
    }
    server.heard("127.0.0.1 sends plain http to the https port").await;
    let operator = server.operator();
    let client = trusting("ca.pem");
    assert_eq!(
        server.over_tls(&client, Method::GET, "/v1/machines", &operator, &Value::Null).await.status(),
        200,
        "while an idle client is connected"
    );
    let mut byte = [0];
    let got = tokio::time::timeout(PATIENCE, silent.read(&mut byte)).await.expect("it is cut off");
    assert!(matches!(got, Ok(0) | Err(_)));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn operator_listener_uses_tls() {
    let dir = directory();
    let operators = Some("127.0.0.1:0".parse().unwrap());
    let options = ServerConfig { operator_listen: operators, ..with_tls(dir.path()) };
    let server = Running::start_with(dir, &options, &silent(), 10_000).await;
    let (client, operator) = (trusting("ca.pem"), server.operator());
    let machines = format!("https://{}/v1/machines", server.operators.unwrap());
    let status = async |url: &str| server.over_tls(&client, Method::GET, url, &operator, &Value::Null).await.status();
    assert_eq!((status(&machines).await.as_u16(), status("/v1/machines").await.as_u16()), (200, 404));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn url_of_machines_must_match_the_certificate() {
    let dir = directory();
    let refused = async |options: ServerConfig| {
        let server =
            ControlServer::bind_server(&options, ServerLog::json_into(CapturedLog::default()), &silent(), 100).await;
        server.err().expect("it is refused").to_string()
    };
    for (url, words) in [
        ("http://10.0.2.2:8080", "must begin with https://"),
        ("https://install.rack:8443", "server.pem does not cover this host"),
    ] {
        let error = refused(ServerConfig { url: Some(url.to_owned()), ..with_tls(dir.path()) }).await;
        assert!(error.contains(words) && error.contains(url), "{error}");
    }
    let url = Some("https://10.0.2.2:443".to_owned());
    let options = ServerConfig { url, ..with_tls(dir.path()) };
    let server = Running::start_with(dir, &options, &silent(), 10_000).await;
    let script = server.boot(&format!("uuid={ONE}")).await.text();
    assert!(script.contains("drophammer.url=https://10.0.2.2:443 "), "{script}");
    assert!(script.contains(&format!("kernel http://{}/boot/vmlinuz", server.address)), "{script}");

    let dir = server.stop().await;
    let options = with_tls(dir.path());
    let server = Running::start_with(dir, &options, &silent(), 10_000).await;
    let host = [("Host", "install.rack:8080")];
    let script = server.ask("GET", &format!("/boot.ipxe?uuid={ONE}"), &host, "").await.text();
    let url = format!("drophammer.url=https://install.rack:{} ", server.tls.unwrap().port());
    assert!(script.contains(&url), "{script}");
    server.heard("does not cover: set --url").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn expiring_certificate_is_reported_by_check_log_and_metrics() {
    let day = time::Duration::DAY;
    let now = time::OffsetDateTime::now_utc();
    let _ = rustls::crypto::ring::default_provider().install_default();
    let key = rcgen::KeyPair::generate().unwrap();
    for (until, is_rejected, words) in [
        (now + day * 10, false, "server.pem: the certificate expires on "),
        (now - day * 10, true, "server.pem: the certificate expired on "),
    ] {
        let dir = directory();
        let mut params = rcgen::CertificateParams::new(vec!["localhost".to_owned()]).unwrap();
        (params.not_before, params.not_after) = (now - day * 100, until);
        let (certificates, key_file) = (dir.path().join("server.pem"), dir.path().join("server.key"));
        std::fs::write(&certificates, encode_pem("CERTIFICATE", params.self_signed(&key).unwrap().der())).unwrap();
        std::fs::write(&key_file, encode_pem("PRIVATE KEY", &key.serialize_der())).unwrap();
        std::fs::set_permissions(&key_file, std::os::unix::fs::PermissionsExt::from_mode(0o600)).unwrap();
        let tls = TlsOptions { certificates, key: key_file, listen: "127.0.0.1:0".parse().unwrap() };
        let options = ServerConfig { tls: Some(tls), ..options(dir.path()) };

        let checked = options.clone();
        let found = tokio::task::spawn_blocking(move || site_check::find_problems(&checked)).await.unwrap().unwrap();
        let names = |all: &[site_check::SiteProblem]| {
            all.iter()
                .any(|one| format!("{}: {}", one.file.clone().unwrap_or_default(), one.message).starts_with(words))
        };
        assert_eq!((names(&found.problems), names(&found.notes)), (is_rejected, !is_rejected), "{found:?}");
        let server = Running::start_with(dir, &options, &silent(), 10_000).await;
        server.heard(words).await;
        let client = Client::builder().no_proxy().tls_danger_accept_invalid_certs(true).build().unwrap();
        let metrics = server.over_tls(&client, Method::GET, "/metrics", &server.operator(), &Value::Null).await;
        let line =
            format!("drophammer_certificate_expiry_timestamp_seconds{{position=\"1\"}} {}", until.unix_timestamp());
        let text = metrics.text().await.unwrap();
        assert!(text.lines().any(|said| said == line), "{line}\n{text}");
    }
}
