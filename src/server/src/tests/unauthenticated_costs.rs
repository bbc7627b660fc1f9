//! Costs that unauthenticated clients can cause: durable transactions, delays of other clients, stored bytes, logged
//! bytes, and memory.

use super::*;

const FLOOD: &str = "127.0.0.2";
const MACHINE_ADDRESS: &str = "127.0.0.3";

impl Running {
    /// Opens a keep-alive connection from this address.
    async fn keep_alive_from(&self, address: &str) -> TcpStream {
        let socket = tokio::net::TcpSocket::new_v4().unwrap();
        socket.bind(format!("{address}:0").parse().unwrap()).unwrap();
        socket.connect(self.address).await.unwrap()
    }

    /// Returns the number of transactions that were synced to the disk since the creation of the database.
    fn durable_transactions(&self) -> i64 {
        engine::run_sql(self.dir.path(), "SELECT transactions FROM identity").parse().unwrap()
    }

    /// Returns the client addresses of the answered requests, in the order of the responses.
    fn answered(&self) -> Vec<String> {
        let lines = self.heard.text();
        let lines = lines.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
        let answered = lines.filter(|line| line["status"].is_u64());
        answered.map(|line| line["from"].as_str().unwrap().to_owned()).collect()
    }
}

fn get(path: &str) -> String {
    format!("GET {path} HTTP/1.1\r\nHost: h\r\n\r\n")
}

async fn next_answer(stream: &mut TcpStream) -> String {
    let mut answer = vec![0; 8192];
    let read = tokio::time::timeout(PATIENCE, stream.read(&mut answer)).await.unwrap().unwrap();
    String::from_utf8_lossy(&answer[..read]).into_owned()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn anonymous_boots_and_registrations_cost_no_durable_transaction() {
    let server = Running::start().await;
    let before = server.durable_transactions();
    let mut stream = server.keep_alive_from(FLOOD).await;
    for number in 0..100 {
        let id = if number % 2 == 0 { ONE.to_owned() } else { format!("4c4c4544-0051-3010-8052-b4c05{number:07x}") };
        stream.write_all(get(&format!("/boot.ipxe?uuid={id}")).as_bytes()).await.unwrap();
        let token = token_of(&next_answer(&mut stream).await);
        let registration = registration(&id).to_string();
        let registered = server.from(FLOOD, "POST", "/v1/machine/register", &token, &registration).await;
        assert_eq!(registered.status, 200);
    }
    let cost = server.durable_transactions() - before;
    assert!(cost <= 4, "{cost} durable transactions for 100 anonymous boots and registrations");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn boot_token_survives_a_server_restart() {
    let server = Running::start().await;
    let token = token_of(&server.boot(&format!("uuid={ONE}")).await.text());
    let server = Running::start_in(server.stop().await).await;
    assert_eq!(server.register(ONE, &token).await.status, 200);
}

/// The stage in an event is truncated like the other strings.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_text_of_an_event_is_bounded() {
    let server = Running::start().await;
    let token = server.token(ONE).await;
    let long = "x".repeat(60_000);
    let event = json!({ "event": "Alive", "message": "", "step": long });
    let answer = server.call(&token, "POST", &format!("/v1/machine/{ONE}/event"), &event).await;
    assert_eq!(answer.status, 200);
    let dir = server.stop().await;
    let longest: u32 = engine::run_sql(dir.path(), "SELECT max(length(event)) FROM events").parse().unwrap();
    assert!(longest < 1000, "{longest} bytes are stored of one event");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn reports_of_unregistered_boots_are_logged_briefly() {
    let server = Running::start().await;
    let token = token_of(&server.boot(&format!("uuid={ONE}")).await.text());
    let before = server.heard.text().len();
    let report = json!({ "success": false, "allocationuuid": "a1", "message": "line\n".repeat(13_000),
                         "plan": "y".repeat(1 << 20) });
    for _ in 0..40 {
        let answer = server.call(&token, "POST", &format!("/v1/machine/{ONE}/report"), &report).await;
        assert_eq!(answer.status, 200, "{}", answer.text());
    }
    server.wait_until(|| server.answered().len() >= 41, "41 answers").await;
    let printed = server.heard.text().len() - before;
    assert!(printed < 40_000, "{printed} bytes of log from 40 reports");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn log_limit_of_one_address_does_not_affect_others() {
    let server = Running::start().await;
    let unknown = |last: u32| format!("/boot.ipxe?mac=52:54:00:aa:{:02x}:{:02x}", last >> 8, last & 255);
    let mut stream = server.keep_alive_from(FLOOD).await;
    for number in 0..400 {
        stream.write_all(get(&unknown(number)).as_bytes()).await.unwrap();
        assert!(next_answer(&mut stream).await.starts_with("HTTP/1.1 400"));
    }
    assert_eq!(server.from(MACHINE_ADDRESS, "GET", &unknown(0xffff), "", "").await.status, 400);
    server.wait_until(|| server.answered().len() >= 401, "401 answers").await;
    let lines = server.heard.text();
    assert!(lines.contains("52:54:00:aa:ff:ff"), "the alarm about {MACHINE_ADDRESS} is not printed");
}

/// Measures the peak memory of a server that receives eight bodies of 4 MB at the same time. This test runs the server
/// in its own process.
#[test]
fn eight_large_bodies_fit_into_bounded_memory() {
    let name = "tests::unauthenticated_costs::alone_eight_large_bodies";
    let child = std::process::Command::new(std::env::current_exe().unwrap())
        .args(["--exact", name, "--ignored", "--nocapture", "--test-threads=1"])
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&child.stdout).into_owned() + &String::from_utf8_lossy(&child.stderr);
    assert!(child.status.success() && text.contains("peak of eight bodies: "), "{text}");
}

fn peak_kib() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|line| line.starts_with("VmHWM:")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse().unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 8)]
#[ignore = "measures the memory of its process: eight_large_bodies_fit_into_bounded_memory runs it alone"]
async fn alone_eight_large_bodies() {
    let dir = directory();
    let id = |last: u32| format!("4c4c4544-0051-3010-8052-b4c0500000{last}");
    for last in 10..18 {
        let file = format!("id: {}\nname: m{last}\n", id(last));
        std::fs::write(dir.path().join(format!("machines/m{last}.yaml")), file).unwrap();
    }
    let server = Arc::new(Running::start_in(dir).await);
    let mut senders = Vec::new();
    for last in 10..18 {
        let address = format!("127.0.0.{last}");
        let token = server.from(&address, "GET", &format!("/boot.ipxe?uuid={}", id(last)), "", "").await;
        let token = token_of(&token.text());
        let mut body = registration(&id(last)).to_string();
        body.pop();
        body += &format!(",\"tags\":[\"\"{}]}}", ",\"1234567\"".repeat(380_000));
        assert!(body.len() > 3_700_000 && body.len() <= 4 << 20);
        let server = server.clone();
        senders.push(tokio::spawn(async move {
            server.from(&address, "POST", "/v1/machine/register", &token, &body).await.status
        }));
    }
    let mut answers = Vec::new();
    for sender in senders {
        answers.push(sender.await.unwrap());
    }
    let peak = peak_kib() >> 10;
    println!("peak of eight bodies: {peak} MiB, answers {answers:?}");
    // The server parses the bodies completely before it refuses them, because they exceed the limits of registrations.
    assert_eq!(answers, [422; 8]);
    assert!(peak < 300, "{peak} MiB");
}

/// The database is blocked until all requests have arrived, so the order of the requests is known.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn flood_of_one_address_delays_others_by_one_job() {
    const CONNECTIONS: usize = 400;
    let server = Running::start().await;
    let [flood, machine] = [FLOOD, MACHINE_ADDRESS].map(|address| address.parse::<IpAddr>().unwrap());
    let (release, until) = std::sync::mpsc::channel();
    server.state.block_thread(until);
    let mut streams = Vec::new();
    for _ in 0..CONNECTIONS {
        let mut stream = server.keep_alive_from(FLOOD).await;
        stream.write_all(get(&format!("/boot.ipxe?uuid={ONE}")).as_bytes()).await.unwrap();
        streams.push(stream);
    }
    server
        .wait_until(
            || server.client_quotas.request_permits.count_requests(flood) == CONNECTIONS,
            "all requests have arrived",
        )
        .await;
    let mut other = server.keep_alive_from(MACHINE_ADDRESS).await;
    other.write_all(get(&format!("/boot.ipxe?uuid={TWO}")).as_bytes()).await.unwrap();
    server
        .wait_until(
            || server.client_quotas.request_permits.count_requests(machine) == 1,
            "the other machine's request has arrived",
        )
        .await;
    let jobs = || (server.state.waiting_jobs(flood), server.state.waiting_jobs(machine));
    server
        .wait_until(|| jobs() == (http_server::request_permits::MAXIMUM_ADDRESS_REQUESTS, 1), "the first jobs wait")
        .await;
    let before = server.state.served_clients().len();
    drop(release);
    assert!(next_answer(&mut other).await.contains("drophammer.token="));
    let served = server.state.served_clients().split_off(before);
    let first = served.iter().position(|client| *client == Some(machine)).unwrap();
    let own_jobs = served[..first].iter().filter(|client| client.is_none()).count();
    assert!(first - own_jobs <= 1, "{} jobs of the other address came first", first - own_jobs);
    for mut stream in streams {
        assert!(next_answer(&mut stream).await.starts_with("HTTP/1.1 200"));
    }
}

/// Requests that wait for an allocation do not count toward the limit of their address, because all machines of a rack
/// may share one address.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn waiting_machines_do_not_use_turns_of_their_address() {
    let server = Running::start().await;
    let token = server.token(TWO).await;
    let mut streams = Vec::new();
    for _ in 0..3 * http_server::request_permits::MAXIMUM_ADDRESS_REQUESTS {
        let mut stream = server.keep_alive_from("127.0.0.1").await;
        let wait = format!(
            "GET /v1/machine/{TWO}/wait?seconds=300 HTTP/1.1\r\nHost: h\r\nAuthorization: Bearer {token}\r\n\r\n"
        );
        stream.write_all(wait.as_bytes()).await.unwrap();
        streams.push(stream);
    }
    let count = || server.client_quotas.request_permits.count_requests("127.0.0.1".parse().unwrap());
    server
        .wait_until(|| count() == 3 * http_server::request_permits::MAXIMUM_ADDRESS_REQUESTS, "all of them wait")
        .await;
    assert_eq!(server.call(&token, "GET", &format!("/v1/machine/{TWO}"), &Value::Null).await.status, 200);
}

/// Reports of registered machines about their own allocation are logged in full.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn reports_of_registered_boots_are_logged_completely() {
    let server = Running::start().await;
    let token = server.token(ONE).await;
    server.allocated(ONE, &token).await;
    let path = format!("/v1/machine/{ONE}/report");
    let report = json!({ "success": false, "allocationuuid": "a1", "message": "one\ntwo\nthree" });
    assert_eq!(server.call(&token, "POST", &path, &report).await.status, 200);
    server.heard("one\\ntwo\\nthree").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn only_events_of_unregistered_boots_are_limited() {
    let server = Running::start().await;
    let known = server.token(ONE).await;
    let token = token_of(&server.from(FLOOD, "GET", &format!("/boot.ipxe?uuid={TWO}"), "", "").await.text());
    let event = json!({ "event": "Alive", "message": "m" }).to_string();
    let most = http_server::anonymous_event_limit::EVENTS;
    for _ in 0..most + 50 {
        let path = format!("/v1/machine/{TWO}/event");
        assert_eq!(server.from(FLOOD, "POST", &path, &token, &event).await.status, 200);
    }
    for _ in 0..most + 50 {
        let (path, event) = (format!("/v1/machine/{ONE}/event"), json!({"event": "Alive", "message": "m"}));
        assert_eq!(server.call(&known, "POST", &path, &event).await.status, 200);
    }
    server.heard(&format!("{FLOOD} sends more than {most} events a minute")).await;
    let dir = server.stop().await;
    let count = |machine: &str| -> u32 {
        let select = format!("SELECT count(*) FROM events WHERE machine = '{machine}'");
        engine::run_sql(dir.path(), &select).parse().unwrap()
    };
    // A new minute may begin during the test. The limit of events per minute then starts again.
    assert!(count(TWO) <= most + 50 && count(ONE) >= most + 50, "{} {}", count(TWO), count(ONE));
}

/// The server stores up to 256 unknown machines, so it must also limit the size of their registrations.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn unknown_machine_has_a_smaller_registration_limit() {
    let server = Running::start().await;
    for (id, expected) in [(STRANGER, 413), (TWO, 200)] {
        let token = token_of(&server.boot(&format!("uuid={id}")).await.text());
        let mut register = registration(id);
        register["tags"] = json!(vec!["x".repeat(6000); 250]);
        let answer = server.call(&token, "POST", "/v1/machine/register", &register).await;
        assert_eq!(answer.status, expected, "{}", answer.text());
        assert_eq!(server.register(id, &token).await.status, 200);
    }
}
