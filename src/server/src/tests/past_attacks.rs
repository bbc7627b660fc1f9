//! Regression tests: attacks with foreign tokens, path traversal, malformed requests, and a full disk must fail.

use super::reinstall::with_images;
use super::*;
use fastrand::Rng;

/// Returns method and path of each request that needs a token, for this machine.
fn calls(id: &str) -> Vec<(&'static str, String)> {
    let of_machine = [
        ("GET", ""),
        ("GET", "/wait?seconds=0"),
        ("POST", "/event"),
        ("POST", "/point-of-no-return"),
        ("POST", "/report"),
    ];
    let of_operator = [
        ("POST", "/reinstall"),
        ("DELETE", "/reinstall"),
        ("POST", "/adopt"),
        ("POST", "/rename"),
        ("POST", "/confirm"),
        ("GET", "/preview"),
    ];
    let mut calls: Vec<_> = of_machine
        .into_iter()
        .chain(of_operator)
        .map(|(method, call)| (method, format!("/v1/machine/{id}{call}")))
        .collect();
    calls.extend([
        ("POST", "/v1/machines/confirm".to_owned()),
        ("GET", "/v1/machines".to_owned()),
        ("POST", "/v1/machine/register".to_owned()),
    ]);
    calls
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn requests_with_foreign_tokens_are_refused() {
    let server = Running::start_in(with_images()).await;
    let registered = server.token(TWO).await;
    let stranger = server.token(STRANGER).await;
    let asked_for = token_of(&server.boot("uuid=4c4c4544-0051-3010-8052-b4c04f4d0003").await.text());
    let of_its_boot_before = server.token(ONE).await;
    let own = server.token(ONE).await;
    server.allocated(ONE, &own).await;
    let before = server.listed().await;
    for token in [&registered, &stranger, &asked_for, &of_its_boot_before, "", "x", &"0".repeat(64)] {
        for (method, path) in calls(ONE) {
            let answer = server.call(token, method, &path, &registration(ONE)).await;
            assert_eq!(answer.status, 401, "{method} {path} with {token:?}: {}", answer.text());
        }
    }
    // A machine's endpoints do not accept the operator's token, except for reading the machine. The operator's
    // endpoints do not accept a machine's token.
    let operator = server.operator();
    for (method, path) in &calls(ONE)[1..5] {
        assert_eq!(server.call(&operator, method, path, &Value::Null).await.status, 401, "{method} {path}");
    }
    for (method, path) in &calls(ONE)[5..13] {
        assert_eq!(server.call(&own, method, path, &Value::Null).await.status, 401, "{method} {path}");
    }
    assert_eq!(server.listed().await, before);
    assert_eq!(server.call(&own, "GET", &format!("/v1/machine/{ONE}"), &Value::Null).await.status, 200);
}

/// Sends a request with `Connection: close`, and returns the whole response.
async fn send(server: &Running, bytes: &[u8]) -> String {
    let work = async {
        let mut stream = TcpStream::connect(server.address).await.unwrap();
        // The server may refuse the request before it has received the whole request.
        let _ = stream.write_all(bytes).await;
        let mut answer = Vec::new();
        let _ = stream.read_to_end(&mut answer).await;
        String::from_utf8_lossy(&answer).into_owned()
    };
    tokio::time::timeout(PATIENCE, work).await.expect("it is answered or closed")
}

/// Sends a request head with arbitrary content, and returns the start of the response. The head may request a
/// keep-alive connection, so the end of the response is not awaited.
async fn send_head(server: &Running, bytes: &[u8]) -> String {
    let work = async {
        let mut stream = TcpStream::connect(server.address).await.unwrap();
        let _ = stream.write_all(&[bytes, b"\r\n\r\n"].concat()).await;
        let mut answer = vec![0; 64 << 10];
        let got = stream.read(&mut answer).await.unwrap_or_default();
        String::from_utf8_lossy(&answer[..got]).into_owned()
    };
    tokio::time::timeout(PATIENCE, work).await.expect("it is answered or closed")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_path_leads_out_of_the_directories() {
    let server = Running::start().await;
    let ups = ["..", "%2e%2e", ".%2e", "%2E.", "..%00", "%252e%252e", "..%c0%af", "%c0%ae%c0%ae", "..;", ".."];
    let slashes = ["/", "%2f", "\\", "%5c", "//", "/./"];
    let mut paths = Vec::new();
    for root in ["/boot", "/images", "/images/deb", ""] {
        for up in ups {
            for slash in slashes {
                paths.push(format!("{root}{slash}{up}{slash}secret"));
                paths.push(format!("{root}/{up}{slash}{up}{slash}operator.token"));
            }
        }
        for file in ["/etc/passwd", "%2fetc%2fpasswd", "file:///etc/passwd", "~", ".", "%00"] {
            paths.push(format!("{root}/{file}"));
        }
    }
    let secrets = ["not served".to_owned(), server.operator(), "root:".to_owned()];
    for path in paths {
        let request = format!("GET {path} HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n");
        let answer = send(&server, request.as_bytes()).await;
        assert!(answer.starts_with("HTTP/1.1 4"), "{path}: {answer}");
        assert!(!secrets.iter().any(|secret| answer.contains(secret.as_str())), "{path}: {answer}");
    }
}

/// Mutates some bytes: replaces, removes or repeats them, or inserts characters with a special meaning for parsers.
fn changed(random: &mut Rng, bytes: &[u8]) -> Vec<u8> {
    const ODD: [&[u8]; 12] =
        [b"\r\n", b"\0", b":", b" ", b"\"", b"{", b"[[[[[[[[", b"-1", b"1e999", b"\xff\xfe", b"\\u0000", b"null"];
    let mut bytes = bytes.to_vec();
    for _ in 0..random.usize(1..5) {
        let at = random.usize(..bytes.len());
        match random.u8(..5) {
            0 => bytes[at] = random.u8(..),
            1 => bytes.truncate(at.max(1)),
            2 => drop(bytes.splice(at..at, ODD[random.usize(..ODD.len())].iter().copied())),
            3 => drop(bytes.drain(at..(at + random.usize(1..20)).min(bytes.len() - 1).max(at))),
            _ => {
                let part = bytes[at..(at + random.usize(1..40)).min(bytes.len())].repeat(random.usize(1..20));
                drop(bytes.splice(at..at, part));
            }
        }
    }
    bytes
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn mutated_requests_neither_panic_nor_change_state() {
    let server = Running::start_in(with_images()).await;
    server.installed().await;
    let token = server.token(TWO).await;
    let path = format!("/v1/machine/{TWO}");
    let mut random = Rng::with_seed(13);
    let event = json!({ "event": "Alive", "message": "m", "step": "s", "seconds": 1.5, "progress": { "bytes": 1, "bytes_per_second": 2 } });
    let disk = json!({ "device": "/dev/sda", "serial": "S", "size_bytes": 1 });
    let begin = json!({ "allocationuuid": "a1", "order": "o", "disks": [disk] });
    let report =
        json!({ "success": false, "message": "m", "allocationuuid": "a1", "timings": [{ "step": "s", "seconds": 1 }] });
    let order = json!({ "id": ONE, "imageid": "debian-13", "give_up": ["S"] });
    let operator = server.operator();
    let bodies = [
        ("/v1/machine/register".to_owned(), registration(TWO), &token),
        (format!("{path}/event"), event, &token),
        (format!("{path}/point-of-no-return"), begin, &token),
        (format!("{path}/report"), report, &token),
        (format!("/v1/machine/{STRANGER}/reinstall"), order, &operator),
        (format!("/v1/machine/{STRANGER}/rename"), json!({ "id": TWO }), &operator),
    ];
    for case in 0..300 {
        let (path, body, token) = &bodies[case % bodies.len()];
        let body = changed(&mut random, body.to_string().as_bytes());
        let head = format!(
            "POST {path} HTTP/1.1\r\nHost: h\r\nConnection: close\r\nAuthorization: Bearer {token}\r\nContent-Length: {}\r\n\r\n",
            body.len()
        );
        let text = send(&server, &[head.as_bytes(), &body[..]].concat()).await;
        assert!(text.starts_with("HTTP/1.1 2") || text.starts_with("HTTP/1.1 4"), "{path} {body:?}: {text}");
    }
    let head = format!(
        "GET {path} HTTP/1.1\r\nHost: h\r\nConnection: close\r\nAuthorization: Bearer {token}\r\nX-Forwarded-For: 10.0.0.1\r\n\
         Range: bytes=0-1\r\nAccept: */*\r\nContent-Length: 0\r\n\r\n"
    );
    for _ in 0..300 {
        let text = send_head(&server, &changed(&mut random, head.as_bytes())).await;
        assert!(text.is_empty() || text.starts_with("HTTP/1.") && !text.starts_with("HTTP/1.1 5"), "{text}");
    }
    assert!(!server.heard.text().contains("panicked"), "{}", server.heard.text());
    let listed = server.listed().await;
    assert_eq!((&listed["installed"], &listed["order"]), (&json!(true), &Value::Null));
    assert!(server.boots_disk().await);
}

/// Mounted filesystem, which is unmounted when this value is dropped.
pub(super) struct Mounted(pub(super) PathBuf);

impl Drop for Mounted {
    fn drop(&mut self) {
        let _ = nix::mount::umount2(&self.0, nix::mount::MntFlags::MNT_DETACH);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs root"]
async fn root_full_disk_refuses_requests_and_loses_no_records() {
    let (small, dir) = (tempfile::tempdir().unwrap(), with_images());
    let options = options(small.path());
    nix::mount::mount(Some("tmpfs"), small.path(), Some("tmpfs"), nix::mount::MsFlags::empty(), Some("size=2m"))
        .unwrap();
    let mounted = Mounted(small.path().to_owned());
    let copied = std::process::Command::new("cp").arg("-a").arg(dir.path().join(".")).arg(small.path()).status();
    assert!(copied.unwrap().success());
    let server = Running::start_with(small, &options, &silent(), 100).await;
    server.installed().await;
    let order = server.order("debian-13").await;

    // Fills the filesystem to the last byte, so that the database cannot grow by a page.
    let mut filler = std::fs::File::create(server.dir.path().join("filler")).unwrap();
    while filler.write(&[7; 512]).is_ok_and(|written| written > 0) {}
    let answer = server.press(ONE, "debian-12", json!({})).await;
    assert!(answer.status >= 500, "{}: {}", answer.status, answer.text());
    assert!(answer.text().contains("the database"), "{}", answer.text());
    let listed = server.listed().await;
    assert_eq!((&listed["order"]["id"], &listed["order"]["image"]), (&json!(order), &json!("debian-13")));
    assert!(!server.boot(&format!("uuid={TWO}")).await.text().contains("#!ipxe"), "an attempt that cannot be counted");

    drop(filler);
    std::fs::remove_file(server.dir.path().join("filler")).unwrap();
    let order = server.order("debian-12").await;
    let small = server.stop().await;
    let server = Running::start_with(small, &options, &silent(), 100).await;
    let listed = server.listed().await;
    assert_eq!((&listed["order"]["id"], &listed["installed"]), (&json!(order), &json!(true)));
    let small = server.stop().await;
    drop(mounted);
    drop(small);
}
