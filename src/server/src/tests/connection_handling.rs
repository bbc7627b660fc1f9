//! Connections: malformed requests, waiting machines, the limit on open connections, and shutdown.

use super::*;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn invalid_requests_receive_json_errors() {
    let server = Running::start().await;
    let token = server.token(TWO).await;
    let path = format!("/v1/machine/{TWO}");
    let machine = server.call(&token, "GET", &path, &Value::Null).await.json();
    assert_eq!(machine, json!({"id": TWO, "name": "two"}));
    assert_eq!(server.call(&token, "GET", &format!("{path}/wait?seconds=0"), &Value::Null).await.status, 204);
    let bearer = format!("Bearer {token}");
    let auth = [("Authorization", bearer.as_str())];
    let big = format!("{{\"event\": \"Alive\", \"message\": \"{}\"}}", "x".repeat(70_000));
    let cases = [
        ("GET", "/nothing".to_owned(), "", 404),
        ("DELETE", path.clone(), "", 405),
        ("POST", format!("{path}/wait"), "", 405),
        ("GET", format!("{path}/wait?seconds=soon"), "", 400),
        ("GET", format!("{path}/wait?seconds=-1"), "", 400),
        ("GET", "/v1/machine/%FF".to_owned(), "", 400),
        ("GET", "/v1/machine/%00'%20OR%201=1".to_owned(), "", 401),
        ("POST", format!("{path}/event"), "", 400),
        ("POST", format!("{path}/event"), "{", 400),
        ("POST", format!("{path}/event"), "{\"event\": \"Party\", \"message\": \"\"}", 400),
        ("POST", format!("{path}/event"), big.as_str(), 413),
        ("POST", format!("{path}/report"), "[]", 400),
        ("POST", "/v1/machine/register".to_owned(), "{}", 400),
    ];
    for (method, path, body, expected) in cases {
        let answer = server.ask(method, &path, &auth, body).await;
        assert_eq!(answer.status, expected, "{method} {path}: {}", answer.text());
        assert_eq!(answer.json()["statuscode"], expected, "{method} {path}");
    }
    // The server responds to data that is not HTTP, or closes the connection, and then continues to serve requests.
    for garbage in ["\r\n\r\n", "GET\r\n\r\n", "\u{0}\u{1}\u{2}\r\n\r\n", "GET / HTTP/9.9\r\n\r\n"] {
        let mut stream = TcpStream::connect(server.address).await.unwrap();
        stream.write_all(garbage.as_bytes()).await.unwrap();
        stream.shutdown().await.unwrap();
        let mut answer = Vec::new();
        drop(tokio::time::timeout(PATIENCE, stream.read_to_end(&mut answer)).await.unwrap());
    }
    assert_eq!(server.call(&token, "GET", &path, &Value::Null).await.status, 200);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn shutdown_answers_waiting_requests() {
    let server = Running::start().await;
    let token = server.token(TWO).await;
    let mut stream = TcpStream::connect(server.address).await.unwrap();
    let request =
        format!("GET /v1/machine/{TWO}/wait?seconds=300 HTTP/1.1\r\nHost: h\r\nAuthorization: Bearer {token}\r\n\r\n");
    stream.write_all(request.as_bytes()).await.unwrap();
    // The response to a request on a later connection shows that the waiting request was accepted.
    server.call(&token, "GET", &format!("/v1/machine/{TWO}"), &Value::Null).await;
    server.stop().await;
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).await.unwrap();
    assert!(answer.starts_with(b"HTTP/1.1 204"), "{}", String::from_utf8_lossy(&answer));
}

/// A thousand waiting machines do not need threads, and one change wakes all of them.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_thousand_waiting_machines_need_no_threads() {
    const MACHINES: usize = 1000;
    let threads = || std::fs::read_dir("/proc/self/task").unwrap().count();
    let server = Arc::new(Running::start().await);
    let token = server.token(TWO).await;
    let threads_before = threads();
    let mut streams = Vec::new();
    for _ in 0..MACHINES {
        let mut stream = TcpStream::connect(server.address).await.unwrap();
        let request = format!(
            "GET /v1/machine/{TWO}/wait?seconds=300 HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\
             Authorization: Bearer {token}\r\n\r\n"
        );
        stream.write_all(request.as_bytes()).await.unwrap();
        streams.push(stream);
    }
    // Other requests are served while the machines wait.
    assert_eq!(server.call(&token, "GET", &format!("/v1/machine/{TWO}"), &Value::Null).await.status, 200);
    // Other tests in this process also start threads, so the test only limits the number of additional threads.
    let more = threads().saturating_sub(threads_before);
    assert!(more < 100, "{more} more threads for {MACHINES} waiting machines");
    server.write("machines/two.yaml", &machine_file(TWO, "two", "52:54:00:00:00:02", "b1", ""));
    for mut stream in streams {
        let mut answer = Vec::new();
        tokio::time::timeout(PATIENCE, stream.read_to_end(&mut answer)).await.unwrap().unwrap();
        assert!(answer.starts_with(b"HTTP/1.1 200"), "{}", String::from_utf8_lossy(&answer));
    }
}

/// Clients that open connections without sending anything cannot exhaust the file descriptors for the server's own
/// files.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn open_connections_are_limited() {
    let dir = directory();
    let options = options(dir.path());
    let server = Running::start_with(dir, &options, &silent(), 4).await;
    let mut idle = Vec::new();
    for _ in 0..8 {
        idle.push(TcpStream::connect(server.address).await.unwrap());
    }
    server.heard("the server's limit on open connections is reached").await;
    let boot_query = format!("uuid={ONE}");
    let (_, script) = tokio::join!(
        async {
            tokio::time::sleep(Duration::from_millis(100)).await;
            idle.clear();
        },
        server.boot(&boot_query)
    );
    assert_eq!(script.status, 200);
}
