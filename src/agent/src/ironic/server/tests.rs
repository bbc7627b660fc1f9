//! Tests of the server's responses to a conductor, and to unauthenticated clients.

use super::super::certificate;
use super::super::command_result::CommandFault;
use super::super::commands::tests::gated_executor;
use super::super::commands::{CommandExecutor, CommandList, IronicCommand};
use super::*;
use reqwest::blocking::Client;
use serde_json::{Map, Value, json};
use std::io::{Read, Write};

struct IdleExecutor;

impl CommandExecutor for IdleExecutor {
    fn execute_command(&self, _: IronicCommand, _: &Map<String, Value>) -> Result<Option<Value>, CommandFault> {
        Ok(None)
    }

    fn result_available(&self, _: IronicCommand, _: bool) {}
}

fn client() -> Client {
    // rustls rejects a certificate that is its own CA. The conductor's library accepts it (see the conformance tests).
    linux::http::client_builder(Some(Duration::from_secs(60))).danger_accept_invalid_certs(true).build().unwrap()
}

fn serve_with(work: Arc<dyn CommandExecutor>, bounds: ServerLimits) -> String {
    let listener = listen_on_port(0).unwrap();
    let port = listener.local_addr().unwrap().port();
    let routes = Arc::new(RequestHandler::new(CommandList::new(work)));
    routes.set_token("secret");
    let identity =
        certificate::load_or_create(tempfile::tempdir().unwrap().path(), Ipv4Addr::LOCALHOST.into()).unwrap();
    start_server(listener, &identity, routes, bounds).unwrap();
    format!("127.0.0.1:{port}")
}

#[test]
fn only_the_conductor_with_the_token_is_served() {
    let (host, client) = (serve_with(Arc::new(IdleExecutor), BOUNDS), client());
    let url = |query: &str| format!("https://{host}/v1/commands/?{query}");
    let order = json!({"name": "standby.sync", "params": {}});
    let answer = client.post(url("wait=true&agent_token=secret")).json(&order).send().unwrap();
    assert_eq!(answer.status(), 200);
    assert_eq!(answer.json::<Value>().unwrap()["command_status"], "SUCCEEDED");
    let list: Value = client.get(url("agent_token=secret")).send().unwrap().json().unwrap();
    assert_eq!(list["commands"][0]["command_name"], "sync");
    assert_eq!(list["commands"].as_array().unwrap().len(), 1);

    let answer = client.post(url("agent_token=other")).json(&order).send().unwrap();
    assert_eq!((answer.status().as_u16(), answer.headers()["connection"].to_str().unwrap()), (401, "close"));
    let words = "401 Unauthorized: Token invalid.";
    assert_eq!(answer.json::<Value>().unwrap(), json!({"faultcode": "Client", "faultstring": words}));
}

/// Repeats a request. A server with short timeouts may close the connection of a client that is slow because the host
/// is busy.
fn patiently<T>(ask: impl Fn() -> reqwest::Result<T>) -> T {
    let began = std::time::Instant::now();
    loop {
        match ask() {
            Err(_) if began.elapsed() < Duration::from_secs(60) => {}
            answer => return answer.unwrap(),
        }
    }
}

#[test]
fn oversized_or_slow_requests_are_disconnected() {
    let short = Duration::from_millis(300);
    let bounds =
        ServerLimits { body_bytes: 1000, body: short, head: short, handshake: short, connections: 2, ..BOUNDS };
    let (host, client) = (serve_with(Arc::new(IdleExecutor), bounds), client());
    let url = format!("https://{host}/v1/commands/?agent_token=secret");
    let answer = patiently(|| client.post(&url).body("x".repeat(2000)).send());
    assert_eq!(answer.status(), 413);
    // Two clients that connect and send nothing occupy both slots, but not for long.
    let silent: Vec<_> = (0..2).map(|_| std::net::TcpStream::connect(&host).unwrap()).collect();
    assert_eq!(patiently(|| client.get(&url).send()).status(), 200);
    for mut stream in silent {
        // A connection that the server has closed may have been reset.
        assert_eq!(stream.read(&mut [0; 16]).unwrap_or_default(), 0);
    }
}

/// An address has the maximum number of connections, all of which are silent.
#[test]
fn exhausted_address_does_not_block_other_addresses() {
    let host = serve_with(Arc::new(IdleExecutor), ServerLimits { of_an_address: 2, ..BOUNDS });
    let silent: Vec<_> = (0..2).map(|_| std::net::TcpStream::connect(&host).unwrap()).collect();
    let mut third = std::net::TcpStream::connect(&host).unwrap();
    assert_eq!(third.read(&mut [0; 16]).unwrap_or_default(), 0);
    let other = linux::http::client_builder(Some(Duration::from_secs(60)))
        .danger_accept_invalid_certs(true)
        .local_address(std::net::IpAddr::from([127, 0, 0, 2]));
    assert_eq!(other.build().unwrap().get(format!("https://{host}/")).send().unwrap().status(), 200);
    drop(silent);
}

/// Returns a client that connects from this loopback address.
fn client_at(last: u8) -> Client {
    let other = linux::http::client_builder(Some(Duration::from_secs(20)))
        .danger_accept_invalid_certs(true)
        .local_address(std::net::IpAddr::from([127, 0, 0, last]));
    other.build().unwrap()
}

/// Opens a silent connection from this loopback address.
fn silent_from(host: &str, last: u8) -> std::net::TcpStream {
    use nix::sys::socket::{AddressFamily, SockFlag, SockType, SockaddrIn, bind, connect, socket};
    use std::os::fd::AsRawFd;
    let stream = socket(AddressFamily::Inet, SockType::Stream, SockFlag::empty(), None).unwrap();
    bind(stream.as_raw_fd(), &SockaddrIn::new(127, 0, 0, last, 0)).unwrap();
    let port = host.rsplit_once(':').unwrap().1.parse().unwrap();
    connect(stream.as_raw_fd(), &SockaddrIn::new(127, 0, 0, 1, port)).unwrap();
    stream.into()
}

#[test]
fn silent_connections_do_not_block_the_conductor() {
    let host = serve_with(Arc::new(IdleExecutor), BOUNDS);
    let silent: Vec<_> = (10..15).flat_map(|last| (0..8).map(move |_| last)).collect();
    let silent: Vec<_> = silent.into_iter().map(|last| silent_from(&host, last)).collect();
    // The request finishes before the handshake of the silent clients times out.
    let began = std::time::Instant::now();
    let answer = client_at(2).get(format!("https://{host}/")).timeout(Duration::from_secs(8)).send();
    assert_eq!(answer.unwrap().status(), 200, "after {:?}", began.elapsed());
    drop(silent);
}

/// Returns the resident memory of this process, in KiB.
fn resident() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|line| line.starts_with("VmRSS:")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse().unwrap()
}

/// Runs alone in its process, because the memory of the process is measured (see `scripts/ironic`).
#[test]
#[ignore = "measures the memory of the process, so it runs alone"]
fn alone_ten_thousand_wrong_tokens_cost_no_memory() {
    let (host, client) = (serve_with(Arc::new(IdleExecutor), BOUNDS), client());
    let ask = || {
        let body = json!({"name": "standby.sync", "params": {"x": "y".repeat(1000)}});
        let url = format!("https://{host}/v1/commands/?agent_token=wrong");
        assert_eq!(client.post(url).json(&body).send().unwrap().status(), 401);
    };
    (0..500).for_each(|_| ask());
    let before = resident();
    (0..10_000).for_each(|_| ask());
    let after = resident();
    assert!(after < before + 4096, "{before} KiB before, {after} KiB after");
}

#[test]
fn older_tls_and_plain_http_get_no_response() {
    let host = serve_with(Arc::new(IdleExecutor), BOUNDS);
    let old = linux::http::client_builder(Some(Duration::from_secs(60)))
        .danger_accept_invalid_certs(true)
        .tls_version_max(reqwest::tls::Version::TLS_1_2);
    assert!(old.build().unwrap().get(format!("https://{host}/")).send().is_err());
    let mut plain = std::net::TcpStream::connect(&host).unwrap();
    plain.write_all(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n").unwrap();
    let mut answer = Vec::new();
    let _ = plain.read_to_end(&mut answer);
    assert!(!answer.starts_with(b"HTTP"), "{answer:?}");
}

/// While a command runs, its conductor requests the list of commands.
#[test]
fn running_command_does_not_block_queries() {
    let (work, gate) = gated_executor();
    let (host, client) = (serve_with(work, BOUNDS), client());
    let url = |query: &str| format!("https://{host}/v1/commands/?agent_token=secret&{query}");
    let order = json!({"name": "clean.execute_clean_step", "params": {}});
    let running: Value = client.post(url("wait=false")).json(&order).send().unwrap().json().unwrap();
    assert_eq!(running["command_status"], "RUNNING");
    let busy = client.post(url("wait=true")).json(&order).send().unwrap();
    assert_eq!(busy.status(), 409);
    let list: Value = client.get(url("")).send().unwrap().json().unwrap();
    assert_eq!(list["commands"][0], running);
    gate.send(Ok(Some(json!({"clean_result": null})))).unwrap();
}

/// Certificate verifier that accepts any certificate.
#[derive(Debug)]
struct AcceptAnyCertificate(Arc<rustls::crypto::CryptoProvider>);

mod accept_any_certificate {
    use super::AcceptAnyCertificate;
    use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
    use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
    use rustls::{DigitallySignedStruct as Signature, Error, SignatureScheme};

    type Valid = Result<HandshakeSignatureValid, Error>;

    impl ServerCertVerifier for AcceptAnyCertificate {
        fn verify_server_cert(
            &self,
            _: &CertificateDer<'_>,
            _: &[CertificateDer<'_>],
            _: &ServerName<'_>,
            _: &[u8],
            _: UnixTime,
        ) -> Result<ServerCertVerified, Error> {
            Ok(ServerCertVerified::assertion())
        }

        fn verify_tls12_signature(&self, _: &[u8], _: &CertificateDer<'_>, _: &Signature) -> Valid {
            Ok(HandshakeSignatureValid::assertion())
        }

        fn verify_tls13_signature(&self, _: &[u8], _: &CertificateDer<'_>, _: &Signature) -> Valid {
            Ok(HandshakeSignatureValid::assertion())
        }

        fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
            self.0.signature_verification_algorithms.supported_schemes()
        }
    }
}

/// Returns a request with one or more random errors.
fn damaged(random: &mut fastrand::Rng) -> Vec<u8> {
    let body = json!({"name": "standby.sync", "params": {}}).to_string();
    let head = format!(
        "POST /v1/commands/?wait=true&agent_token=secret HTTP/1.1\r\nHost: a\r\nContent-Length: {}\r\n\r\n",
        body.len()
    );
    let mut bytes = (head + &body).into_bytes();
    for _ in 0..random.usize(1..6) {
        let at = random.usize(..bytes.len());
        match random.u8(..6) {
            0 => bytes[at] = random.u8(..),
            1 => bytes.truncate(at.max(1)),
            2 => drop(bytes.splice(at..at, std::iter::repeat_n(random.u8(..), random.usize(..5000)))),
            3 => bytes.extend_from_within(at..),
            4 => drop(bytes.splice(at..at, *b"Content-Length: 99999999999999999999\r\n")),
            _ => drop(bytes.splice(at..at, *b"Transfer-Encoding: chunked\r\n\r\nffffffffffffffff\r\n")),
        }
    }
    bytes
}

/// The random bytes are the same in every run.
#[test]
fn random_input_does_not_prevent_the_next_request() {
    let short = Duration::from_millis(200);
    let host = serve_with(Arc::new(IdleExecutor), ServerLimits { body: short, head: short, ..BOUNDS });
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = rustls::ClientConfig::builder_with_provider(provider.clone()).with_safe_default_protocol_versions();
    let verifier = Arc::new(AcceptAnyCertificate(provider));
    let config = config.unwrap().dangerous().with_custom_certificate_verifier(verifier).with_no_client_auth();
    let (config, mut random) = (Arc::new(config), fastrand::Rng::with_seed(17));
    for _ in 0..150 {
        let name = "127.0.0.1".try_into().unwrap();
        let connection = rustls::ClientConnection::new(config.clone(), name).unwrap();
        let mut stream = rustls::StreamOwned::new(connection, std::net::TcpStream::connect(&host).unwrap());
        // The server may close the connection in the middle of the request.
        let _ = stream.write_all(&damaged(&mut random)).and_then(|()| stream.flush());
        stream.conn.send_close_notify();
        let _ = stream.flush();
        let _ = stream.read_to_end(&mut Vec::new());
    }
    let (client, url) = (client(), format!("https://{host}/v1/commands/?agent_token=secret"));
    let list: Value = patiently(|| client.get(&url).send()?.json());
    let names = list["commands"].as_array().unwrap().iter().map(|one| one["command_name"].as_str().unwrap());
    assert!(names.clone().all(|name| name == "sync"), "{:?}", names.collect::<Vec<_>>());
}
