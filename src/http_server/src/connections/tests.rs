//! Requests that panic, and clients that never read.

use super::*;
use axum::routing::get;
use std::sync::Mutex;
use std::time::Instant;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

#[derive(Clone, Default)]
struct CapturedLog(Arc<Mutex<Vec<u8>>>);

impl io::Write for CapturedLog {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Starts a server with these routes. Returns its address and its log.
async fn start(router: Router) -> (SocketAddr, CapturedLog) {
    start_with(router, None).await
}

async fn start_with(router: Router, tls: Option<ServerTls>) -> (SocketAddr, CapturedLog) {
    start_limited(router, tls, 100, PERMIT_TIMEOUT).await
}

/// Starts a server with a maximum number of connections, and with a time limit for the wait for a request permit.
async fn start_limited(
    router: Router,
    tls: Option<ServerTls>,
    places: usize,
    permit_timeout: Duration,
) -> (SocketAddr, CapturedLog) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let (address, heard) = (listener.local_addr().unwrap(), CapturedLog::default());
    let watch = ServerLog::json_into(heard.clone());
    tokio::spawn(async move {
        let (front, running) = (RoutedListener { listener, router, tls }, GracefulShutdown::new());
        let (rate_limited_log, health) = (RateLimitedLog::new(watch.clone()), ServerHealth::default());
        let mut door = ConnectionLimiter::new(places, ClientQuotas::new(places, &[]), watch, rate_limited_log, health);
        door.permit_timeout = permit_timeout;
        loop {
            let (front, place, accepted) = door.accept_next(&[&front]).await;
            let (stream, address) = accepted.unwrap();
            door.admit(stream, address, front, &running, place);
        }
    });
    (address, heard)
}

async fn ask(stream: &mut TcpStream, path: &str) -> String {
    stream.write_all(format!("GET {path} HTTP/1.1\r\nHost: h\r\n\r\n").as_bytes()).await.unwrap();
    let mut answer = vec![0; 4096];
    let got = tokio::time::timeout(Duration::from_secs(60), stream.read(&mut answer)).await.unwrap().unwrap();
    String::from_utf8_lossy(&answer[..got]).into_owned()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn panicking_request_is_answered_with_500() {
    async fn panics() -> &'static str {
        tokio::task::yield_now().await;
        let none: [u8; 0] = [];
        let beyond = none.len() + 1;
        let _ = none[std::hint::black_box(beyond)];
        "not reached"
    }
    let router = Router::new().route("/panic", get(panics)).route("/well", get(|| async { "well" }));
    let (address, heard) = start(router).await;
    let mut stream = TcpStream::connect(address).await.unwrap();
    for _ in 0..3 {
        let answer = ask(&mut stream, "/panic").await;
        assert!(answer.starts_with("HTTP/1.1 500") && answer.contains("this request panicked"), "{answer}");
        assert!(ask(&mut stream, "/well").await.ends_with("well"), "on the same connection");
    }
    assert!(ask(&mut TcpStream::connect(address).await.unwrap(), "/well").await.ends_with("well"));
    let began = Instant::now();
    while !String::from_utf8(heard.0.lock().unwrap().clone()).unwrap().contains("GET /panic from 127.0.0.1 panicked") {
        assert!(began.elapsed() < Duration::from_secs(60));
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

/// The unread rest of a request body arrives after the response was sent.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn unread_body_is_discarded_and_connection_remains_usable() {
    let (address, _) = start(Router::new().route("/well", get(|| async { "well" }))).await;
    let mut stream = TcpStream::connect(address).await.unwrap();
    for path in ["/nothing", "/well"] {
        let (body, mut answer) = ("x".repeat(60_000), vec![0; 4096]);
        let head = format!("POST {path} HTTP/1.1\r\nHost: h\r\nContent-Length: {}\r\n\r\n", body.len());
        stream.write_all(head.as_bytes()).await.unwrap();
        let got = tokio::time::timeout(Duration::from_secs(60), stream.read(&mut answer)).await.unwrap().unwrap();
        let answer = String::from_utf8_lossy(&answer[..got]);
        assert!(answer.starts_with("HTTP/1.1 40"), "{path}: {answer}");
        stream.write_all(body.as_bytes()).await.unwrap();
        assert!(ask(&mut stream, "/well").await.ends_with("well"), "{path}: on the same connection");
    }
    // A body above the limit for discarded bytes closes the connection.
    let head = format!("POST /nothing HTTP/1.1\r\nHost: h\r\nContent-Length: {}\r\n\r\n", 64 << 20);
    stream.write_all(head.as_bytes()).await.unwrap();
    let piece = vec![b'x'; 1 << 20];
    let sent = async { while stream.write_all(&piece).await.is_ok() {} };
    tokio::time::timeout(Duration::from_secs(60), sent).await.unwrap();
}

/// The response is larger than all buffers between server and client.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn stalled_reader_times_out_but_slow_one_succeeds() {
    const BYTES: usize = 64 << 20;
    for reads in [false, true] {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let mut reader = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        let mut writer = WriteTimeoutStream::new(listener.accept().await.unwrap().0, Duration::from_secs(2));
        let write =
            async { tokio::time::timeout(Duration::from_secs(120), writer.write_all(&vec![7; BYTES])).await.unwrap() };
        let read = async {
            let mut buffer = vec![0; 4 << 20];
            let mut left = if reads { BYTES } else { 0 };
            while left > 0 {
                tokio::time::sleep(Duration::from_millis(50)).await;
                left -= reader.read(&mut buffer).await.unwrap();
            }
        };
        let (written, ()) = tokio::join!(write, read);
        assert_eq!(written.map_err(|error| error.kind()), if reads { Ok(()) } else { Err(io::ErrorKind::TimedOut) });
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_address_cannot_occupy_all_connections() {
    let router = Router::new().route("/well", get(|| async { Body::from("well") }));
    let (address, _) = start(router).await;
    let mut idle = Vec::new();
    for _ in 0..70 {
        idle.push(TcpStream::connect(address).await.unwrap());
    }
    let socket = tokio::net::TcpSocket::new_v4().unwrap();
    socket.bind("127.0.0.2:0".parse().unwrap()).unwrap();
    let mut other = socket.connect(address).await.unwrap();
    assert!(ask(&mut other, "/well").await.ends_with("well"));
    let mut last = idle.pop().unwrap();
    let mut byte = [0];
    let got = tokio::time::timeout(Duration::from_secs(20), last.read(&mut byte)).await.unwrap();
    assert!(matches!(got, Ok(0) | Err(_)), "it is closed immediately");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn connection_without_tls_handshake_is_closed_and_released() {
    let file = |name: &str| {
        std::path::Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../..")).join("testdata/tls").join(name)
    };
    let mut tls = ServerTls::load_certificate(&file("server.pem"), &file("server.key")).unwrap();
    tls.handshake = Duration::from_millis(200);
    let (address, heard) = start_with(Router::new(), Some(tls)).await;
    // Opens 90 connections in total. One address may have only 64 at the same time.
    for _ in 0..3 {
        let mut silent = Vec::new();
        for _ in 0..30 {
            silent.push(TcpStream::connect(address).await.unwrap());
        }
        for mut stream in silent {
            let mut byte = [0];
            let got = tokio::time::timeout(Duration::from_secs(60), stream.read(&mut byte)).await.expect("cut off");
            assert!(matches!(got, Ok(0) | Err(_)));
        }
    }
    let said = String::from_utf8(heard.0.lock().unwrap().clone()).unwrap();
    assert!(!said.contains("reached the limit of connections per address"), "{said}");
}

/// The requests of another address are not affected.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn request_above_the_turn_limit_receives_retry_after() {
    let router = Router::new().route("/well", get(|| async { "well" })).route("/slow", get(std::future::pending::<()>));
    let (address, _) = start_limited(router, None, 100, Duration::from_millis(100)).await;
    let mut slow = Vec::new();
    for _ in 0..crate::request_permits::MAXIMUM_ADDRESS_REQUESTS {
        let mut stream = TcpStream::connect(address).await.unwrap();
        stream.write_all(b"GET /slow HTTP/1.1\r\nHost: h\r\n\r\n").await.unwrap();
        slow.push(stream);
    }
    let mut stream = TcpStream::connect(address).await.unwrap();
    let began = Instant::now();
    let answer = loop {
        let answer = ask(&mut stream, "/well").await;
        if !answer.starts_with("HTTP/1.1 200") || began.elapsed() > Duration::from_secs(60) {
            break answer;
        }
    };
    assert!(answer.starts_with("HTTP/1.1 429") && answer.contains("retry-after: 5"), "{answer}");
    assert!(answer.contains("127.0.0.1 has too many requests in flight"), "{answer}");
    let socket = tokio::net::TcpSocket::new_v4().unwrap();
    socket.bind("127.0.0.2:0".parse().unwrap()).unwrap();
    assert!(ask(&mut socket.connect(address).await.unwrap(), "/well").await.ends_with("well"));
    drop(slow);
    while !ask(&mut stream, "/well").await.ends_with("well") {
        assert!(began.elapsed() < Duration::from_secs(60));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn connections_are_closed_after_their_response_if_few_are_free() {
    let router = Router::new().route("/well", get(|| async { "well" }));
    let (address, _) = start_limited(router, None, 20, PERMIT_TIMEOUT).await;
    let mut first = TcpStream::connect(address).await.unwrap();
    assert!(!ask(&mut first, "/well").await.contains("connection: close"));
    // Idle connections occupy their permits, and one more permit is reserved for the next connection.
    let mut idle = Vec::new();
    for _ in 0..17 {
        idle.push(TcpStream::connect(address).await.unwrap());
    }
    let began = Instant::now();
    let answer = loop {
        let answer = ask(&mut first, "/well").await;
        if answer.contains("connection: close") || began.elapsed() > Duration::from_secs(20) {
            break answer;
        }
    };
    assert!(answer.contains("connection: close") && answer.ends_with("well"), "{answer}");
    let mut byte = [0];
    let got = tokio::time::timeout(Duration::from_secs(20), first.read(&mut byte)).await.unwrap();
    assert!(matches!(got, Ok(0)), "it is closed");
}
