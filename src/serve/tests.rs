//! A whole server on the loopback, asked over TCP.

use super::*;
use crate::allocation;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::io::Write;
use std::sync::Mutex;
use tempfile::TempDir;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

const ONE: &str = "4c4c4544-0051-3010-8052-b4c04f4d0001";
const TWO: &str = "4c4c4544-0051-3010-8052-b4c04f4d0002";
const STRANGER: &str = "4c4c4544-0051-3010-8052-b4c04f4dffff";
/// Long enough for a busy machine; nothing here waits for it when all is well.
const PATIENCE: Duration = Duration::from_secs(60);

/// What the server has said so far.
#[derive(Clone, Default)]
struct Heard(Arc<Mutex<Vec<u8>>>);

impl Write for Heard {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

impl Heard {
    fn text(&self) -> String {
        String::from_utf8(self.0.lock().unwrap().clone()).unwrap()
    }
}

struct Running {
    dir: TempDir,
    address: SocketAddr,
    heard: Heard,
    end: oneshot::Sender<()>,
    task: JoinHandle<()>,
}

struct Answer {
    status: u16,
    headers: BTreeMap<String, String>,
    body: Vec<u8>,
}

impl Answer {
    fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }

    fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap_or_else(|error| panic!("{error}: {}", self.text()))
    }
}

const LAYOUT: &str = "id: default
disks: [{device: /dev/sda, wipe: true, partitions: [{number: 1, label: root, size: 0, type: GPTLinux}]}]
filesystems: [{path: /, device: /dev/sda1, format: ext4, label: root}]
";

fn directory() -> TempDir {
    let dir = tempfile::tempdir().unwrap();
    for folder in ["machines", "layouts", "images/deb", "boot"] {
        std::fs::create_dir_all(dir.path().join(folder)).unwrap();
    }
    let write = |name: &str, text: &str| std::fs::write(dir.path().join(name), text).unwrap();
    write("layouts/default.yaml", LAYOUT);
    write("images/debian.yaml", "id: debian-12\nname: Debian\nfile: deb/debian 12.tar.zst\n");
    write("images/deb/debian 12.tar.zst", "0123456789");
    write("images/secret", "not served");
    write("boot/vmlinuz", "kernel");
    write("boot/initrd", "ramdisk");
    write("secret", "not served");
    write("machines/one.yaml", &machine_file(ONE, "one", "52:54:00:00:00:01", "a1", ""));
    write("machines/two.yaml", &format!("id: {TWO}\nname: two\nmacs: ['52:54:00:00:00:02']\nconsoles: [ttyS1]\n"));
    dir
}

fn machine_file(id: &str, name: &str, mac: &str, allocation: &str, more: &str) -> String {
    format!(
        "id: {id}\nname: {name}\nmacs: ['{mac}']\nsize: c1\nallocation:\n  id: {allocation}\n  hostname: h\n  \
         image: debian-12\n  filesystemlayout: default\n  networks: [{{asn: 42}}]\n{more}"
    )
}

impl Running {
    async fn start() -> Running {
        Running::start_in(directory()).await
    }

    async fn start_in(dir: TempDir) -> Running {
        let options = Options {
            dir: dir.path().to_owned(),
            listen: "127.0.0.1:0".parse().unwrap(),
            url: None,
            boot: None,
            cmdline: "quiet".to_owned(),
            json: true,
        };
        let heard = Heard::default();
        let watch = Watch::json_into(heard.clone());
        let server = Server::bind(&options, watch, Duration::from_millis(20)).await.unwrap();
        let address = server.listener.local_addr().unwrap();
        let (end, ended) = oneshot::channel();
        let task = tokio::spawn(server.serve(async move { drop(ended.await) }));
        Running { dir, address, heard, end, task }
    }

    /// Ends the server and gives the directory back.
    async fn stop(self) -> TempDir {
        drop(self.end);
        self.task.await.unwrap();
        self.dir
    }

    fn write(&self, name: &str, text: &str) {
        std::fs::write(self.dir.path().join(name), text).unwrap();
    }

    async fn raw(&self, request: &str) -> Answer {
        let work = async {
            let mut stream = TcpStream::connect(self.address).await.unwrap();
            stream.write_all(request.as_bytes()).await.unwrap();
            let mut answer = Vec::new();
            stream.read_to_end(&mut answer).await.unwrap();
            answer
        };
        let answer = tokio::time::timeout(PATIENCE, work).await.unwrap();
        let end = answer.windows(4).position(|four| four == b"\r\n\r\n").unwrap();
        let head = String::from_utf8(answer[..end].to_vec()).unwrap();
        let headers = head.lines().skip(1).filter_map(|line| line.split_once(": "));
        Answer {
            status: head.split(' ').nth(1).unwrap().parse().unwrap(),
            headers: headers.map(|(name, value)| (name.to_lowercase(), value.to_owned())).collect(),
            body: answer[end + 4..].to_vec(),
        }
    }

    async fn ask(&self, method: &str, path: &str, headers: &[(&str, &str)], body: &str) -> Answer {
        let mut request =
            format!("{method} {path} HTTP/1.1\r\nConnection: close\r\nContent-Length: {}\r\n", body.len());
        if !headers.iter().any(|(name, _)| *name == "Host") {
            request += &format!("Host: {}\r\n", self.address);
        }
        for (name, value) in headers {
            request += &format!("{name}: {value}\r\n");
        }
        self.raw(&format!("{request}\r\n{body}")).await
    }

    async fn call(&self, token: &str, method: &str, path: &str, body: &Value) -> Answer {
        let bearer = format!("Bearer {token}");
        let body = if body.is_null() { String::new() } else { body.to_string() };
        self.ask(method, path, &[("Authorization", &bearer)], &body).await
    }

    async fn boot(&self, query: &str) -> Answer {
        self.ask("GET", &format!("/boot.ipxe?{query}"), &[], "").await
    }

    /// PXE-boots the machine and gives its token.
    async fn token(&self, id: &str) -> String {
        let script = self.boot(&format!("uuid={id}")).await.text();
        let (_, rest) = script.split_once("drophammer.token=").unwrap_or_else(|| panic!("{script}"));
        rest.split(' ').next().unwrap().to_owned()
    }

    /// Waits until the machine is (not) allocated; the digest of its image comes a moment after the start.
    async fn allocated(&self, id: &str, token: &str) -> allocation::Machine {
        let answer = self.call(token, "GET", &format!("/v1/machine/{id}/wait?seconds=60"), &Value::Null).await;
        assert_eq!(answer.status, 200, "{}", answer.text());
        let answer = self.call(token, "GET", &format!("/v1/machine/{id}"), &Value::Null).await;
        assert_eq!(answer.status, 200, "{}", answer.text());
        serde_json::from_slice(&answer.body).unwrap()
    }

    async fn heard(&self, words: &str) {
        self.until(|| self.heard.text().contains(words), words).await;
    }

    async fn until(&self, is_so: impl Fn() -> bool, what: &str) {
        let began = std::time::Instant::now();
        while !is_so() {
            assert!(began.elapsed() < PATIENCE, "never: {what}\n{}", self.heard.text());
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }

    async fn report(&self, id: &str, token: &str, allocation: &str, success: bool) {
        let body =
            json!({ "success": success, "message": "m", "allocationuuid": allocation, "console_password": "s3cret" });
        let answer = self.call(token, "POST", &format!("/v1/machine/{id}/report"), &body).await;
        assert_eq!(answer.status, 200, "{}", answer.text());
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_machine_from_boot_to_report() {
    let server = Running::start().await;
    let token = server.token(ONE).await;
    let register = json!({ "uuid": ONE.to_uppercase(), "hardware": { "memory": 1, "cpu_cores": 2, "disks": [], "nics": [] },
                           "bios": { "vendor": "", "version": "", "date": "" } });
    assert_eq!(server.call(&token, "POST", "/v1/machine/register", &register).await.status, 200);
    let machine = server.allocated(ONE, &token).await;
    assert_eq!((machine.id.as_str(), machine.name.as_str()), (ONE, "one"));
    let given = machine.allocation.unwrap();
    assert_eq!(
        (given.id.as_str(), given.hostname.as_str(), given.succeeded, given.reinstall),
        ("a1", "h", false, false)
    );
    assert_eq!(given.image.url, format!("http://{}/images/deb/debian%2012.tar.zst", server.address));
    // sha256 of 0123456789
    let digest = "sha256:84d89877f0d4041efb6bf91a16f0248f2fd573e6af05c19f96bedb9f882f7882";
    assert_eq!(given.image.digest.as_deref(), Some(digest));
    assert_eq!(given.layout().unwrap().layout, crate::layout::read_yaml(LAYOUT).unwrap().layout);
    assert_eq!(given.filesystemlayout["disks"][0]["wipeonreinstall"], true, "canonical on the wire");
    assert_eq!(given.networks, json!([{"asn": 42}]));
    assert!(!given.created.is_empty());

    let event = json!({ "event": "Installing", "message": "x", "step": "image.burn", "progress": { "bytes": 1, "bytes_per_second": 2 } });
    assert_eq!(server.call(&token, "POST", &format!("/v1/machine/{ONE}/event"), &event).await.status, 200);
    server.heard("\"step\":\"image.burn\"").await;
    server.report(ONE, &token, "a1", false).await;
    assert!(server.boot(&format!("uuid={ONE}")).await.text().contains("drophammer.token"));
    let token = server.token(ONE).await;
    server.report(ONE, &token, "a1", true).await;
    server.report(ONE, &token, "a1", true).await;
    assert!(server.allocated(ONE, &token).await.allocation.unwrap().succeeded);
    assert!(server.boot(&format!("uuid={ONE}")).await.text().contains("sanboot"));
    server.heard("boots its disk").await;
    let text = server.heard.text();
    assert_eq!(
        text.lines().filter(|line| line.contains("\"report\"")).count(),
        2,
        "the repeated one is not shown: {text}"
    );
    assert!(!text.contains("s3cret") && !text.contains(&token), "{text}");

    // A restart remembers, and another allocation id is another installation.
    let server = Running::start_in(server.stop().await).await;
    assert!(server.boot(&format!("uuid={ONE}")).await.text().contains("sanboot"));
    server.write("machines/one.yaml", &machine_file(ONE, "one", "52:54:00:00:00:01", "a2", ""));
    let installs = async || server.boot(&format!("uuid={ONE}")).await.text().contains("drophammer.token");
    for _ in 0..500 {
        if installs().await {
            return;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    panic!("the new allocation is not installed");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_reinstallation_happens_once() {
    let server = Running::start().await;
    let token = server.token(ONE).await;
    server.allocated(ONE, &token).await;
    server.report(ONE, &token, "a1", true).await;
    let reinstall = machine_file(ONE, "one", "52:54:00:00:00:01", "a1", "  reinstall: true\n");
    server.write("machines/one.yaml", &reinstall);
    for _ in 0..500 {
        if server.boot(&format!("uuid={ONE}")).await.text().contains("drophammer.token") {
            break;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let token = server.token(ONE).await;
    assert!(server.allocated(ONE, &token).await.allocation.unwrap().reinstall);
    server.report(ONE, &token, "a1", true).await;
    assert!(!server.allocated(ONE, &token).await.allocation.unwrap().reinstall);
    assert!(server.boot(&format!("uuid={ONE}")).await.text().contains("sanboot"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn only_its_own_last_token_opens_a_machine() {
    let server = Running::start().await;
    let stale = server.token(ONE).await;
    let own = server.token(ONE).await;
    let other = server.token(TWO).await;
    let unknown = server.token(STRANGER).await;
    let path = format!("/v1/machine/{ONE}");
    let bearer = |token: &str| format!("Bearer {token}");
    let cases = [
        (bearer(&own), 200),
        (format!("bearer {own}"), 200),
        (bearer(&stale), 401),
        (bearer(&other), 401),
        (bearer(&unknown), 401),
        (bearer(""), 401),
        (bearer(&own[..63]), 401),
        (bearer(&format!("{own}0")), 401),
        (format!("Basic {own}"), 401),
        (own.clone(), 401),
    ];
    for (header, expected) in cases {
        let answer = server.ask("GET", &path, &[("Authorization", &header)], "").await;
        assert_eq!(answer.status, expected, "{header}");
        if expected == 401 {
            let body: crate::control::wire::ErrorBody = serde_json::from_slice(&answer.body).unwrap();
            assert_eq!(body.statuscode, 401);
            assert!(body.message.contains("token"), "{}", body.message);
        }
    }
    let register = json!({ "uuid": ONE, "hardware": { "memory": 1, "cpu_cores": 2, "disks": [], "nics": [] },
                           "bios": { "vendor": "", "version": "", "date": "" } })
    .to_string();
    let event = json!({ "event": "Alive", "message": "" }).to_string();
    let report = json!({ "success": true, "message": "" }).to_string();
    let calls = [
        ("GET", "".to_owned(), ""),
        ("GET", "/wait?seconds=0".to_owned(), ""),
        ("POST", "/event".to_owned(), event.as_str()),
        ("POST", "/report".to_owned(), report.as_str()),
    ];
    for (method, rest, body) in &calls {
        for headers in [vec![], vec![("Authorization", bearer(&other))], vec![("Authorization", bearer(&stale))]] {
            let headers: Vec<(&str, &str)> = headers.iter().map(|(name, value)| (*name, value.as_str())).collect();
            let answer = server.ask(method, &format!("{path}{rest}"), &headers, body).await;
            assert_eq!(answer.status, 401, "{method} {rest} {headers:?}");
        }
    }
    assert_eq!(server.ask("POST", "/v1/machine/register", &[], &register).await.status, 401);
    assert_eq!(
        server.ask("POST", "/v1/machine/register", &[("Authorization", &bearer(&other))], &register).await.status,
        401
    );
    // None of these reports counted.
    assert!(server.boot(&format!("uuid={ONE}")).await.text().contains("drophammer.token"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn boot_scripts() {
    let server = Running::start().await;
    let token = |script: &str| script.split("drophammer.token=").nth(1).unwrap().split(' ').next().unwrap().to_owned();
    let base = format!("http://{}", server.address);
    let cases = [
        (format!("uuid={}&mac=aa:bb:cc:dd:ee:ff", TWO.to_uppercase()), TWO, "console=ttyS1"),
        (format!("uuid={STRANGER}&mac=52-54-00-00-00-02"), TWO, "console=ttyS1"),
        ("uuid=&mac=52:54:00:00:00:02".to_owned(), TWO, "console=ttyS1"),
        ("uuid=00000000-0000-0000-0000-000000000000&mac=52:54:00:00:00:02".to_owned(), TWO, "console=ttyS1"),
        (format!("uuid={STRANGER}&mac="), STRANGER, "console=tty0 console=ttyS0,115200n8"),
    ];
    for (query, id, consoles) in cases {
        let script = server.boot(&query).await.text();
        let token = token(&script);
        assert_eq!(
            script,
            format!(
                "#!ipxe\nkernel {base}/boot/vmlinuz initrd=initrd drophammer.url={base} drophammer.token={token} \
                 drophammer.machine={id} {consoles} panic=-1 quiet\ninitrd --name initrd {base}/boot/initrd\nboot\n"
            ),
            "{query}"
        );
        assert_eq!(token.len(), 64);
    }
    let bad = [
        "",
        "uuid=&mac=",
        "mac=aa:bb:cc:dd:ee:ff",
        "uuid=00000000-0000-0000-0000-000000000000",
        "uuid=x%0Aboot",
        "uuid=${uuid}",
        &format!("uuid={STRANGER}%0Aboot"),
        &format!("uuid={STRANGER}&mac=52:54:00:00:00:02%20init=/bin/sh"),
        &format!("uuid={STRANGER}&uuid={ONE}"),
        "uuid=%FF%FE",
    ];
    for query in bad {
        let answer = server.boot(query).await;
        assert_eq!(answer.status, 400, "{query}: {}", answer.text());
        assert!(!answer.text().contains("#!ipxe"), "{query}");
    }
    for host in ["a b", "a/b", "h${x}", "u@h", "", "h:99999"] {
        let answer = server.ask("GET", &format!("/boot.ipxe?uuid={ONE}"), &[("Host", host)], "").await;
        assert_eq!(answer.status, 400, "{host}");
    }
    let start = server.ask("GET", "/start.ipxe", &[("Host", "install.rack:80")], "").await;
    assert!(start.text().contains("chain http://install.rack:80/boot.ipxe?uuid=${uuid}&mac="), "{}", start.text());
    let before = server.token(ONE).await;
    assert_eq!(server.ask("HEAD", &format!("/boot.ipxe?uuid={ONE}"), &[], "").await.status, 405);
    assert_eq!(server.call(&before, "GET", &format!("/v1/machine/{ONE}"), &Value::Null).await.status, 200);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn files_with_range_and_etag() {
    let server = Running::start().await;
    let path = "/images/deb/debian%2012.tar.zst";
    let whole = server.ask("GET", path, &[], "").await;
    assert_eq!((whole.status, whole.text().as_str()), (200, "0123456789"));
    assert_eq!(whole.headers["accept-ranges"], "bytes");
    let etag = whole.headers["etag"].as_str();
    let date = whole.headers["last-modified"].as_str();
    let old_date = "Mon, 01 Jan 2024 00:00:00 GMT";
    type Case<'a> = (&'a str, Vec<(&'a str, &'a str)>, u16, &'a str);
    let cases: Vec<Case> = vec![
        ("GET", vec![("Range", "bytes=3-")], 206, "3456789"),
        ("GET", vec![("Range", "bytes=0-0")], 206, "0"),
        ("GET", vec![("Range", "bytes=-2")], 206, "89"),
        ("GET", vec![("Range", "bytes=10-")], 416, ""),
        ("GET", vec![("Range", "bytes=x")], 416, ""),
        ("GET", vec![("Range", "bytes=0-1,3-4")], 200, "0123456789"),
        ("GET", vec![("Range", "bytes=3-"), ("If-Range", etag)], 206, "3456789"),
        ("GET", vec![("Range", "bytes=3-"), ("If-Range", "\"other\"")], 200, "0123456789"),
        ("GET", vec![("Range", "bytes=3-"), ("If-Range", &whole.headers["etag"][1..])], 200, "0123456789"),
        ("GET", vec![("Range", "bytes=3-"), ("If-Range", date)], 206, "3456789"),
        ("GET", vec![("Range", "bytes=3-"), ("If-Range", old_date)], 200, "0123456789"),
        ("GET", vec![("Range", "bytes=10-"), ("If-Range", etag)], 416, ""),
        ("GET", vec![("Range", "bytes=10-"), ("If-Range", "\"other\"")], 200, "0123456789"),
        ("GET", vec![("If-None-Match", etag)], 304, ""),
        ("GET", vec![("If-None-Match", "\"other\"")], 200, "0123456789"),
        ("GET", vec![("If-Match", "\"other\"")], 412, ""),
        ("HEAD", vec![], 200, ""),
    ];
    for (method, headers, status, body) in cases {
        let answer = server.ask(method, path, &headers, "").await;
        assert_eq!(answer.status, status, "{headers:?}");
        if status < 300 {
            assert_eq!(answer.text(), body, "{headers:?}");
            assert_eq!(answer.headers["etag"], etag);
        }
        if status == 206 {
            assert_eq!(answer.headers["content-length"], body.len().to_string());
            assert!(answer.headers["content-range"].ends_with("/10"));
        }
    }
    assert_eq!(server.ask("HEAD", path, &[], "").await.headers["content-length"], "10");
    assert_eq!(server.ask("GET", "/boot/vmlinuz", &[], "").await.text(), "kernel");
    let not_there = [
        "/boot/nothing",
        "/boot/..%2fsecret",
        "/boot/%2e%2e%2fsecret",
        "/boot/../secret",
        "/boot/.%2e/secret",
        "/boot/.hidden",
        "/boot/",
        "/boot/vmlinuz%00",
        "/images/secret",
        "/images/debian.yaml",
        "/images/../secret",
        "/images/deb/..%2f..%2fsecret",
        "/images/deb%2f%2e%2e%2f%2e%2e%2fsecret",
        "/images//etc/passwd",
        "/images/%2fetc%2fpasswd",
        "/images/deb",
        "/drophammer.sqlite",
        "/machines/one.yaml",
        "/",
    ];
    for path in not_there {
        let answer = server.ask("GET", path, &[], "").await;
        assert_eq!(answer.status, 404, "{path}: {}", answer.text());
        assert_eq!(answer.json()["statuscode"], 404, "{path}");
    }

    // A new version has another ETag and, a moment later, another digest.
    let token = server.token(ONE).await;
    let first = server.allocated(ONE, &token).await.allocation.unwrap().image.digest;
    server.write("images/deb/debian 12.tar.zst", "0123456789abc");
    assert_ne!(server.ask("GET", path, &[], "").await.headers["etag"], etag);
    for _ in 0..500 {
        let answer = server.call(&token, "GET", &format!("/v1/machine/{ONE}"), &Value::Null).await.json();
        let digest = answer["allocation"]["image"]["digest"].as_str().map(str::to_owned);
        if digest.is_some() && digest != first {
            return;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    panic!("the digest is still that of the old file");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn bad_files_are_named_and_the_last_good_version_counts() {
    let server = Running::start().await;
    let token = server.token(ONE).await;
    server.allocated(ONE, &token).await;
    let good = machine_file(ONE, "one", "52:54:00:00:00:01", "a1", "");
    let cases = [
        (
            format!("{good}  hostnam: x\n"),
            "one.yaml:11:3: there is no field \\\"hostnam\\\"; did you mean \\\"hostname\\\"?",
        ),
        (
            good.replace("debian-12", "debian-13"),
            "there is no image \\\"debian-13\\\" in images/; did you mean \\\"debian-12\\\"?",
        ),
        (good.replace("default", "lvm"), "one.yaml:9:21: there is no layout \\\"lvm\\\" in layouts/; there is default"),
        ("id: [".to_owned(), "one.yaml:"),
    ];
    for (text, expected) in cases {
        server.write("machines/one.yaml", &text);
        server.heard(expected).await;
        assert!(server.heard.text().contains("(its last good version stays in force)"), "{}", server.heard.text());
        assert_eq!(server.allocated(ONE, &token).await.allocation.unwrap().id, "a1", "{expected}");
    }
    server.write("machines/one.yaml", &good);
    server.heard("every file is good again").await;

    server.write("machines/copy.yaml", &good);
    server.heard(&format!("one.yaml: machine {ONE} is in ")).await;
    std::fs::remove_file(server.dir.path().join("machines/copy.yaml")).unwrap();
    server.write("machines/three.yaml", &format!("id: {STRANGER}\nmacs: ['52:54:00:00:00:01']\n"));
    server.heard(&format!("52:54:00:00:00:01 belongs to machine {ONE} already")).await;
    server.write("images/gone.yaml", "id: gone\nfile: gone.tar\n");
    server.heard("gone.tar: No such file").await;
    server.write("layouts/bad.yaml", "id: bad\nfilesystem: []\n");
    server.heard("layouts/bad.yaml:2:1: ").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_not_a_call_gets_an_error_and_nothing_else() {
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
    // Not HTTP at all: an answer or a closed connection, and the server goes on.
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
async fn the_end_answers_those_who_wait() {
    let server = Running::start().await;
    let token = server.token(TWO).await;
    let mut stream = TcpStream::connect(server.address).await.unwrap();
    let request =
        format!("GET /v1/machine/{TWO}/wait?seconds=300 HTTP/1.1\r\nHost: h\r\nAuthorization: Bearer {token}\r\n\r\n");
    stream.write_all(request.as_bytes()).await.unwrap();
    // Another call on a later connection is answered after the wait has been accepted.
    server.call(&token, "GET", &format!("/v1/machine/{TWO}"), &Value::Null).await;
    let began = std::time::Instant::now();
    server.stop().await;
    assert!(began.elapsed() < Duration::from_secs(2), "{:?}", began.elapsed());
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).await.unwrap();
    assert!(answer.starts_with(b"HTTP/1.1 204"), "{}", String::from_utf8_lossy(&answer));
}

/// A thousand waiting machines: one change wakes all of them, and they never were threads.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_thousand_machines_wait() {
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
    // Served while they wait.
    assert_eq!(server.call(&token, "GET", &format!("/v1/machine/{TWO}"), &Value::Null).await.status, 200);
    // Other tests of this process have threads too, so this is an upper bound and not a difference of zero.
    let more = threads().saturating_sub(threads_before);
    assert!(more < 100, "{more} more threads for {MACHINES} waiting machines");
    server.write("machines/two.yaml", &machine_file(TWO, "two", "52:54:00:00:00:02", "b1", ""));
    for mut stream in streams {
        let mut answer = Vec::new();
        tokio::time::timeout(PATIENCE, stream.read_to_end(&mut answer)).await.unwrap().unwrap();
        assert!(answer.starts_with(b"HTTP/1.1 200"), "{}", String::from_utf8_lossy(&answer));
    }
}

#[test]
fn options_that_cannot_be_used() {
    let dir = tempfile::tempdir().unwrap();
    let good = Options {
        dir: dir.path().to_owned(),
        listen: "127.0.0.1:0".parse().unwrap(),
        url: Some("https://install.rack:8443/base".to_owned()),
        boot: None,
        cmdline: "quiet".to_owned(),
        json: true,
    };
    assert!(check(&good).is_ok());
    let cases = [
        (Options { dir: dir.path().join("nothing"), ..good.clone() }, "is not a directory"),
        (Options { url: Some("install.rack".to_owned()), ..good.clone() }, "--url"),
        (Options { url: Some("http://h/a b".to_owned()), ..good.clone() }, "--url"),
        (Options { url: Some("http://".to_owned()), ..good.clone() }, "--url"),
        (Options { cmdline: "a && b".to_owned(), ..good.clone() }, "--cmdline"),
        (Options { cmdline: "a\nboot".to_owned(), ..good.clone() }, "--cmdline"),
    ];
    for (options, expected) in cases {
        let error = check(&options).unwrap_err().to_string();
        assert!(error.contains(expected), "{error}");
    }
}
