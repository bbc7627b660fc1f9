//! Attackers on the boot network: the tests check which data they receive, and what they cannot interrupt.

use super::reinstall::{failure, with_images};
use super::secret_release::with_secrets;
use super::*;
use std::time::Instant;

/// Requests can come from several addresses, because all of 127.0.0.0/8 is local.
impl Running {
    pub(super) async fn from(&self, address: &str, method: &str, path: &str, token: &str, body: &str) -> Answer {
        let socket = tokio::net::TcpSocket::new_v4().unwrap();
        socket.bind(format!("{address}:0").parse().unwrap()).unwrap();
        self.over(socket, method, path, token, body).await
    }

    pub(super) async fn over(
        &self,
        socket: tokio::net::TcpSocket,
        method: &str,
        path: &str,
        token: &str,
        body: &str,
    ) -> Answer {
        let mut stream = socket.connect(self.address).await.unwrap();
        let request = format!(
            "{method} {path} HTTP/1.1\r\nHost: {}\r\nConnection: close\r\nAuthorization: Bearer {token}\r\n\
             Content-Length: {}\r\n\r\n{body}",
            self.address,
            body.len()
        );
        stream.write_all(request.as_bytes()).await.unwrap();
        let mut answer = Vec::new();
        tokio::time::timeout(PATIENCE, stream.read_to_end(&mut answer)).await.unwrap().unwrap();
        let text = String::from_utf8(answer).unwrap();
        let (head, body) = text.split_once("\r\n\r\n").unwrap();
        let status = head.split(' ').nth(1).unwrap().parse().unwrap();
        Answer { status, headers: BTreeMap::new(), body: body.as_bytes().to_vec() }
    }

    pub(super) async fn boot_from(&self, address: &str, id: &str) -> Answer {
        self.from(address, "GET", &format!("/boot.ipxe?uuid={id}"), "", "").await
    }

    pub(super) async fn register_from(&self, address: &str, id: &str, token: &str) -> u16 {
        self.from(address, "POST", "/v1/machine/register", token, &registration(id).to_string()).await.status
    }
}

pub(super) const MACHINE_ADDRESS: &str = "127.0.0.2";
pub(super) const ATTACKER: &str = "127.0.0.66";

/// Starts a server with the production timeout after which a boot counts as silent.
pub(super) async fn in_earnest(dir: TempDir) -> Running {
    let (options, around) =
        (options(dir.path()), HostEnvironment { quiet: store::boot_activity::ACTIVE_BOOT_TIMEOUT, ..silent() });
    Running::start_with(dir, &options, &around, 10_000).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn other_address_cannot_end_a_running_installation() {
    let server = in_earnest(with_images()).await;
    let path = format!("/v1/machine/{ONE}");
    let token = token_of(&server.boot_from(MACHINE_ADDRESS, ONE).await.text());
    assert_eq!(server.register_from(MACHINE_ADDRESS, ONE, &token).await, 200);
    // The allocation is not sent until the server has computed the digest of its image.
    let wait = format!("{path}/wait?seconds=60");
    assert_eq!(server.from(MACHINE_ADDRESS, "GET", &wait, &token, "").await.status, 200);
    assert_eq!(server.from(MACHINE_ADDRESS, "GET", &path, &token, "").await.status, 200);

    let stolen = token_of(&server.boot_from(ATTACKER, ONE).await.text());
    server.heard(&format!("one: boot requested from {ATTACKER}; the boot at {MACHINE_ADDRESS} was active ")).await;
    assert_eq!(server.from(ATTACKER, "GET", &path, &stolen, "").await.status, 401, "the boot has not registered");
    assert_eq!(server.register_from(ATTACKER, ONE, &stolen).await, 503);
    server
        .heard(&format!("one: the client at {ATTACKER} cannot register this machine yet: another boot of the machine, at {MACHINE_ADDRESS}, is still active"))
        .await;
    // The machine's own token is refused from another address.
    assert_eq!(server.from(ATTACKER, "GET", &path, &token, "").await.status, 401);
    assert_eq!(server.register_from(ATTACKER, ONE, &token).await, 503);
    server
        .heard(&format!(
            "one: request from {ATTACKER} refused: the token of the request belongs to the boot that registered from {MACHINE_ADDRESS}"
        ))
        .await;
    let body = json!({ "allocationuuid": "a1", "order": "", "disks": [] }).to_string();
    assert_eq!(
        server.from(MACHINE_ADDRESS, "POST", &format!("{path}/point-of-no-return"), &token, &body).await.status,
        200
    );

    // A second boot must also wait until the first one is silent, even at the machine's own address.
    let next = token_of(&server.boot_from(MACHINE_ADDRESS, ONE).await.text());
    assert_eq!(server.register_from(MACHINE_ADDRESS, ONE, &next).await, 503);
    assert_eq!(server.from(MACHINE_ADDRESS, "GET", &path, &token, "").await.status, 200);
    assert_eq!(server.from(MACHINE_ADDRESS, "GET", &path, &next, "").await.status, 401);

    // On the restarted server, the first boot is silent. The next boot can register, and replaces it.
    let server = Running::start_in(server.stop().await).await;
    assert_eq!(server.register_from(MACHINE_ADDRESS, ONE, &next).await, 200);
    assert_eq!(server.from(MACHINE_ADDRESS, "GET", &path, &token, "").await.status, 401);
    assert_eq!(server.from(MACHINE_ADDRESS, "GET", &path, &next, "").await.status, 200);
    assert_eq!(server.register_from(MACHINE_ADDRESS, ONE, &token).await, 401);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_restart_timeout_applies_to_the_same_address_only() {
    let dir = with_images();
    let options = ServerConfig { restart_timeout: Duration::ZERO, ..options(dir.path()) };
    let around = HostEnvironment { quiet: store::boot_activity::ACTIVE_BOOT_TIMEOUT, ..silent() };
    let server = Running::start_with(dir, &options, &around, 10_000).await;
    let token = token_of(&server.boot_from(MACHINE_ADDRESS, ONE).await.text());
    assert_eq!(server.register_from(MACHINE_ADDRESS, ONE, &token).await, 200);
    let stolen = token_of(&server.boot_from(ATTACKER, ONE).await.text());
    assert_eq!(server.register_from(ATTACKER, ONE, &stolen).await, 503);
    let next = token_of(&server.boot_from(MACHINE_ADDRESS, ONE).await.text());
    assert_eq!(server.register_from(MACHINE_ADDRESS, ONE, &next).await, 200);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn repeated_boot_requests_count_as_one_attempt() {
    let server = in_earnest(with_images()).await;
    server.installed().await;
    let order = server.order("debian-13").await;
    for address in [ATTACKER, "127.0.0.67", ATTACKER, "127.0.0.68", ATTACKER] {
        assert!(server.boot_from(address, ONE).await.text().contains("drophammer.token="));
    }
    assert_eq!(
        (&server.listed().await["order"]["id"], &server.listed().await["order"]["attempts"]),
        (&json!(order), &json!(1))
    );
    let token = token_of(&server.boot_from(MACHINE_ADDRESS, ONE).await.text());
    assert_eq!(server.register_from(MACHINE_ADDRESS, ONE, &token).await, 200);
    for _ in 0..5 {
        server.boot_from(ATTACKER, ONE).await;
    }
    assert_eq!(server.listed().await["order"]["attempts"], 1);
    // After a reported failure, the next boot counts as another attempt.
    let report = failure(&order, false).to_string();
    let path = format!("/v1/machine/{ONE}/report");
    let mut token = token;
    for attempts in [2, 3] {
        assert_eq!(server.from(MACHINE_ADDRESS, "POST", &path, &token, &report).await.status, 200);
        token = token_of(&server.boot_from(MACHINE_ADDRESS, ONE).await.text());
        assert_eq!(server.listed().await["order"]["attempts"], attempts);
        assert_eq!(server.register_from(MACHINE_ADDRESS, ONE, &token).await, 200);
    }
}

/// A boot that is requested while another boot is active counts as an attempt only once it registers. It can register
/// only after the other boot has become silent.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn boot_during_an_active_boot_counts_at_registration() {
    let server = in_earnest(with_images()).await;
    server.installed().await;
    server.order("debian-13").await;
    let mut server = server;
    for (address, attempts, is_suspended) in
        [("127.0.0.3", 1, false), (MACHINE_ADDRESS, 2, false), (ATTACKER, 3, false), (MACHINE_ADDRESS, 3, true)]
    {
        let token = token_of(&server.boot_from(address, ONE).await.text());
        // On the restarted server, each boot counts as silent immediately.
        let silent = Running::start_in(server.stop().await).await;
        assert_eq!(silent.register_from(MACHINE_ADDRESS, ONE, &token).await, 200);
        let order = silent.listed().await["order"].clone();
        assert_eq!((&order["attempts"], &order["given_up"]), (&json!(attempts), &json!(is_suspended)));
        if is_suspended {
            silent.heard("suspended after 3 attempts: image debian-13 is not installed").await;
        }
        server = in_earnest(silent.stop().await).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn boot_from_a_nic_of_another_machine_is_refused() {
    let dir = with_images();
    let nics = [(MACHINE_ADDRESS, "52:54:00:00:00:01"), (ATTACKER, "52:54:00:00:00:66")];
    let neighbors = move |address: IpAddr| {
        let found = nics.iter().filter(|(at, _)| at.parse() == Ok(address));
        found.map(|(_, mac)| (*mac).to_owned()).collect()
    };
    let around = HostEnvironment { neighbors: Arc::new(neighbors), ..silent() };
    let options = options(dir.path());
    let server = Running::start_with(dir, &options, &around, 10_000).await;
    assert!(server.boot_from(ATTACKER, ONE).await.text().contains("sanboot"));
    server.heard(&format!("(52:54:00:00:00:01): the machine is not served. If two machines share a UUID, assign a separate id to each; if it is the same machine, add the MAC to its file; the request came from {ATTACKER}")).await;
    let token = token_of(&server.boot_from(MACHINE_ADDRESS, ONE).await.text());
    assert_eq!(server.register_from(ATTACKER, ONE, &token).await, 409);
    assert_eq!(server.register_from(MACHINE_ADDRESS, ONE, &token).await, 200);
    // If a request comes through a router, the server cannot determine the MAC, and serves the boot. A machine whose
    // file lists no MACs may boot through any NIC.
    assert!(server.boot_from("127.0.0.9", ONE).await.text().contains("drophammer.token="));
    assert!(server.boot_from(ATTACKER, STRANGER).await.text().contains("drophammer.token="));
}

/// The server refuses unauthorized requests after it has read their heads. It neither reads their bodies nor waits for
/// them.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn unauthorized_request_is_refused_before_its_body() {
    let server = Running::start().await;
    let token = server.token(ONE).await;
    let machine = format!("/v1/machine/{ONE}");
    let calls = ["/v1/machine/register".to_owned(), format!("{machine}/event"), format!("{machine}/report")];
    let more = [format!("{machine}/point-of-no-return"), format!("{machine}/reinstall"), format!("{machine}/rename")];
    for path in calls.iter().chain(&more) {
        let head = |token: &str, bytes: usize| {
            format!(
                "POST {path} HTTP/1.1\r\nHost: h\r\nConnection: close\r\nAuthorization: Bearer {token}\r\nContent-Length: {bytes}\r\n\r\n"
            )
        };
        let mut stream = TcpStream::connect(server.address).await.unwrap();
        stream.write_all(head("x", 3 << 20).as_bytes()).await.unwrap();
        let mut answer = [0; 12];
        tokio::time::timeout(PATIENCE, stream.read_exact(&mut answer)).await.unwrap().unwrap();
        assert_eq!(&answer, b"HTTP/1.1 401", "{path}");
        // Authorized requests whose bodies are too large are also refused before the server has read the bodies.
        let token =
            if path.ends_with("reinstall") || path.ends_with("rename") { server.operator() } else { token.clone() };
        let mut stream = TcpStream::connect(server.address).await.unwrap();
        stream.write_all(head(&token, 5 << 20).as_bytes()).await.unwrap();
        tokio::time::timeout(PATIENCE, stream.read_exact(&mut answer)).await.unwrap().unwrap();
        assert_eq!(&answer, b"HTTP/1.1 413", "{path}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn unread_bodies_of_one_address_are_limited() {
    let server = Running::start().await;
    let token = server.token(ONE).await;
    let head = format!(
        "POST /v1/machine/{ONE}/report HTTP/1.1\r\nHost: h\r\nAuthorization: Bearer {token}\r\nContent-Length: {}\r\n\r\n{{",
        4 << 20
    );
    let bodies = async || {
        let mut open = Vec::new();
        for _ in 0..2 {
            let mut stream = TcpStream::connect(server.address).await.unwrap();
            stream.write_all(head.as_bytes()).await.unwrap();
            open.push(stream);
        }
        open
    };
    let mut open = bodies().await;
    let path = format!("/v1/machine/{ONE}/event");
    let event = json!({ "event": "Alive", "message": "" });
    let (began, mut opened) = (Instant::now(), Instant::now());
    while server.call(&token, "POST", &path, &event).await.status != 429 {
        assert!(began.elapsed() < PATIENCE);
        // On a very busy host, the unfinished bodies may have timed out before the request was handled.
        if opened.elapsed() > Duration::from_secs(5) {
            (open, opened) = (bodies().await, Instant::now());
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    drop(open);
    while server.call(&token, "POST", &path, &event).await.status != 200 {
        assert!(began.elapsed() < PATIENCE);
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn reports_for_foreign_allocations_are_not_recorded() {
    let server = Running::start().await;
    let token = server.token(ONE).await;
    let path = format!("/v1/machine/{ONE}/report");
    let report =
        |allocation: &str, success: bool| json!({ "success": success, "message": "m", "allocationuuid": allocation });
    let foreign = server.call(&token, "POST", &path, &report("nobodys", true)).await;
    assert_eq!(foreign.status, 409);
    assert!(foreign.text().contains("never belonged to this machine"), "{}", foreign.text());
    assert_eq!(server.call(&token, "POST", &path, &report("nobodys", false)).await.status, 200);
    let stranger = server.token(STRANGER).await;
    let path = format!("/v1/machine/{STRANGER}/report");
    assert_eq!(server.call(&stranger, "POST", &path, &report("", false)).await.status, 200);
    server.heard(&format!("\"machine\":\"{STRANGER}\"")).await;
    let dir = server.stop().await;
    assert_eq!(engine::run_sql(dir.path(), "SELECT count(*) FROM allocations"), "0");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn unknown_machines_are_limited_and_their_events_dropped() {
    const MANY: usize = 300;
    let dir = directory();
    let (mut options, around) =
        (options(dir.path()), HostEnvironment { quiet: store::boot_activity::ACTIVE_BOOT_TIMEOUT, ..silent() });
    options.limits.unknown_machines = 256;
    let server = Running::start_with(dir, &options, &around, 10_000).await;
    let heard = server.token(STRANGER).await;
    let event = json!({ "event": "Alive", "message": "x".repeat(50_000) });
    assert_eq!(server.call(&heard, "POST", &format!("/v1/machine/{STRANGER}/event"), &event).await.status, 200);
    let known = server.token(ONE).await;
    for number in 0..MANY {
        let id = format!("4c4c4544-0051-3010-8052-b4c05{number:07x}");
        assert_eq!(server.boot_from(ATTACKER, &id).await.status, 200);
    }
    // The limit removes silent boots, but never active ones.
    for (id, token) in [(STRANGER, &heard), (ONE, &known)] {
        assert_eq!(server.call(token, "GET", &format!("/v1/machine/{id}"), &Value::Null).await.status, 200, "{id}");
    }
    let dir = server.stop().await;
    let count = |what: &str| -> u32 { engine::run_sql(dir.path(), &format!("SELECT {what}")).parse().unwrap() };
    assert_eq!(count("count(*) FROM machines WHERE stranger IS NOT NULL"), 256);
    assert!(count("count(*) FROM boots") <= 257);
    assert_eq!(
        count("count(*) FROM events WHERE machine <> (SELECT machine FROM boots ORDER BY created LIMIT 1 OFFSET 1)"),
        0
    );
    assert!(count("max(length(last_event)) FROM machines") < 5000, "a message is truncated to a readable length");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn operator_api_is_served_only_on_its_listener() {
    let dir = directory();
    let options = ServerConfig { operator_listen: Some("127.0.0.1:0".parse().unwrap()), ..options(dir.path()) };
    let server = Running::start_with(dir, &options, &silent(), 10_000).await;
    let operator = server.operator();
    assert_eq!(server.call(&operator, "GET", "/v1/machines", &Value::Null).await.status, 404);
    let one = format!("/v1/machine/{ONE}");
    assert_eq!(server.call(&operator, "GET", &one, &Value::Null).await.status, 401);
    let machines = Running { address: server.operators.unwrap(), ..server };
    assert_eq!(machines.call(&operator, "GET", "/v1/machines", &Value::Null).await.status, 200);
    assert_eq!(machines.call(&operator, "GET", &one, &Value::Null).await.status, 200);
    assert_eq!(machines.boot(&format!("uuid={ONE}")).await.status, 404);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn forwarded_address_is_accepted_only_from_a_proxy() {
    let dir = directory();
    let options = ServerConfig { proxies: vec!["127.0.0.1".parse().unwrap()], ..options(dir.path()) };
    let server = Running::start_with(dir, &options, &silent(), 10_000).await;
    let boot = format!("/boot.ipxe?uuid={ONE}");
    server.ask("GET", &boot, &[("X-Forwarded-For", "192.0.2.1, 10.9.9.9")], "").await;
    server.heard("\"from\":\"10.9.9.9\"").await;
    server.boot_from("127.0.0.8", ONE).await;
    server.heard("\"from\":\"127.0.0.8\"").await;
    let dir = server.stop().await;
    let server = Running::start_in(dir).await;
    server.ask("GET", &boot, &[("X-Forwarded-For", "10.8.8.8")], "").await;
    server.heard("\"from\":\"127.0.0.1\"").await;
    assert!(!server.heard.text().contains("10.8.8.8"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn operator_adopts_installation_missing_from_the_database() {
    let server = Running::start_in(with_secrets()).await;
    let path = format!("/v1/machine/{ONE}/adopt");
    let adopt = async || server.call(&server.operator(), "POST", &path, &Value::Null).await;
    let token = server.token(ONE).await;
    server.allocated(ONE, &token).await;
    assert_eq!(server.call(&token, "POST", &path, &Value::Null).await.status, 401, "the token is not privileged");
    let listed = adopt().await;
    assert_eq!(
        (listed.status, &listed.json()["adopted"], &listed.json()["installed"]),
        (200, &json!(true), &json!(false))
    );
    server.heard("one: 127.0.0.1 recorded allocation a1 as installed").await;
    // No installation can start now, not even in the boot that was already running.
    let given = server.allocated(ONE, &token).await.allocation.unwrap();
    assert_eq!((given.succeeded, given.image.url.as_str(), given.user_data.as_str()), (true, "", ""));
    assert_eq!(server.begin(&token, "").await, 409);
    // The machine's own report confirms the record.
    let token = server.token(ONE).await;
    let marker = json!({ "machine": ONE, "allocation": "a1", "image": "debian-12", "layout": "default" });
    server
        .report_of(&token, json!({ "success": true, "message": "m", "allocationuuid": "a1", "marker": marker }))
        .await;
    let listed = server.listed().await;
    assert_eq!(
        (&listed["adopted"], &listed["installed"], &listed["image"]),
        (&json!(false), &json!(true), &json!("debian-12"))
    );
    assert!(server.boots_disk().await);
    let again = adopt().await;
    assert_eq!(again.status, 409);
    assert!(again.text().contains("is already recorded as installed"), "{}", again.text());
}
