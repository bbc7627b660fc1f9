//! Proxy between machine and server. It forwards all data, and causes the faults of the scenario.

mod faults;
mod requests;

pub use faults::ResponseTrap;
pub use requests::{drop_query, read_head};

use crate::faulty_responses;
use crate::file_control_plane::FleetFiles;
use crate::host_tools::{Context, Result};
use crate::registry::Registry;
use crate::scenario::EventAction;
use crate::scenario_image::ResponseFault;
use faults::ActiveFaults;
use requests::{read_body, without_query};
use serde_json::Value;
use std::io::{BufReader, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU16, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

/// Maximum time without data on a connection, longer than any long poll.
const IDLE_TIMEOUT: Duration = Duration::from_secs(300);

/// Proxy on a port of this host. It ends when this value is dropped.
pub struct Proxy {
    pub port: u16,
    wire: Arc<ProxyState>,
}

/// State that all connections share.
#[derive(Default)]
struct ProxyState {
    server: AtomicU16,
    /// TLS port of the server for all requests except those of firmware; 0 if all requests are plain text.
    over_tls: AtomicU16,
    process: AtomicI32,
    /// True from the time at which a trap kills the server until the server's port is set again. Meanwhile, the proxy
    /// does not contact the server.
    away: AtomicBool,
    closed: AtomicBool,
    /// Number of altered responses.
    altered_responses: AtomicU32,
    /// Number of power cuts.
    power_cuts: AtomicU32,
    faults: Mutex<ActiveFaults>,
    requests: Mutex<Vec<String>>,
    /// Announcements of agents at their points of no return.
    announced: Mutex<Vec<Value>>,
    registry: OnceLock<Registry>,
    fleet: OnceLock<FleetFiles>,
}

impl Proxy {
    /// Listens on a separate port. The first response with an image is cut after the first length in `cuts`, and so on.
    ///
    /// # Errors
    /// Fails if no port is available.
    pub fn start(cuts: &[u64]) -> Result<Proxy> {
        let listener = TcpListener::bind("127.0.0.1:0").context("127.0.0.1")?;
        let port = listener.local_addr().context("127.0.0.1")?.port();
        let wire = Arc::new(ProxyState::default());
        lock_shared(&wire.faults).cuts = cuts.iter().copied().collect();
        let shared = Arc::clone(&wire);
        std::thread::spawn(move || {
            for client in listener.incoming().flatten() {
                if shared.closed.load(Ordering::Relaxed) {
                    return;
                }
                let shared = Arc::clone(&shared);
                std::thread::spawn(move || shared.handle_connection(client));
            }
        });
        Ok(Proxy { port, wire })
    }

    /// Sets the port and the process of the server.
    pub fn set_server(&self, port: u16, process: i32) {
        self.wire.process.store(process, Ordering::Relaxed);
        self.wire.server.store(port, Ordering::Relaxed);
        self.wire.away.store(false, Ordering::Release);
    }

    /// Starts to forward all requests except those of firmware to this TLS port of the server.
    pub fn set_over_tls(&self, port: u16) {
        self.wire.over_tls.store(port, Ordering::Relaxed);
    }

    /// Lets this registry respond to all further requests for a registry.
    pub fn set_registry(&self, registry: Registry) {
        // This function is called once, because a run has only one image.
        let _ = self.wire.registry.set(registry);
    }

    /// Sets the files of a machine without a control plane.
    pub fn set_fleet(&self, files: FleetFiles) {
        // This function is called once, because a run has only one machine.
        let _ = self.wire.fleet.set(files);
    }

    /// Sets the traps, each of which is triggered once.
    pub fn set_traps(&self, traps: Vec<ResponseTrap>) {
        lock_shared(&self.wire.faults).traps = traps;
    }

    /// Sets the numbers of bytes of an image after which a response is held back until it is released.
    pub fn set_holds(&self, holds: Vec<u64>) {
        lock_shared(&self.wire.faults).holds = holds;
    }

    /// Sets the fault of all further responses with an image, and whether the last cut applies to all of them.
    pub fn set_response_fault(&self, fault: Option<ResponseFault>, cut_for_ever: bool) {
        let mut faults = lock_shared(&self.wire.faults);
        (faults.fault, faults.cut_for_ever) = (fault, cut_for_ever);
    }

    /// Informs the proxy that the power of the machine was cut. Connections that wait for this event then end.
    pub fn announce_power_cut(&self) {
        self.wire.power_cuts.fetch_add(1, Ordering::Release);
    }

    pub fn is_held_at(&self, bytes: u64) -> bool {
        lock_shared(&self.wire.faults).held.contains(&bytes)
    }

    pub fn release_hold(&self, bytes: u64) {
        lock_shared(&self.wire.faults).holds.retain(|hold| *hold != bytes);
    }

    /// Returns the traps that were triggered since the last call.
    pub fn take_triggered_traps(&self) -> Vec<ResponseTrap> {
        std::mem::take(&mut lock_shared(&self.wire.faults).triggered)
    }

    /// Responds to all requests with status 500 for this time.
    pub fn break_for(&self, time: Duration) {
        lock_shared(&self.wire.faults).errors_until = Some(Instant::now() + time);
    }

    /// Returns all requests so far, as `METHOD TARGET RANGE`.
    pub fn requests_with_queries(&self) -> Vec<String> {
        lock_shared(&self.wire.requests).clone()
    }

    /// Returns all requests so far, without the queries of their paths.
    pub fn requests(&self) -> Vec<String> {
        self.requests_with_queries().iter().map(|request| drop_query(request)).collect()
    }

    /// Returns the announcement of each agent before its first destructive write, including those that the server has
    /// not received.
    pub fn announced(&self) -> Vec<Value> {
        lock_shared(&self.wire.announced).clone()
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.wire.closed.store(true, Ordering::Relaxed);
        // This connection wakes the listener, which then checks the flag.
        drop(TcpStream::connect(("127.0.0.1", self.port)));
    }
}

impl ProxyState {
    /// Handles one request per connection. The proxy sends `Connection: close` to the server, so each further request
    /// arrives on a new connection, and is handled here too. An error on one side ends the connections on both sides.
    fn handle_connection(&self, client: TcpStream) {
        let _ = self.forward_request(client);
    }

    fn forward_request(&self, mut client: TcpStream) -> std::io::Result<()> {
        client.set_read_timeout(Some(IDLE_TIMEOUT))?;
        let mut from_client = BufReader::new(client.try_clone()?);
        let head = read_head(&mut from_client)?;
        let Some(request) = head.first() else { return Ok(()) };
        let target = request.split(' ').nth(1).unwrap_or_default();
        let path = without_query(target);
        let method = request.split(' ').next().unwrap_or_default();
        self.record_request(method, target, &head);
        if lock_shared(&self.faults).errors_until.is_some_and(|until| Instant::now() < until) {
            let body = r#"{"statuscode":500,"message":"out of order"}"#;
            let head = "HTTP/1.1 500 Internal Server Error\r\nContent-Type: application/json\r\nConnection: close";
            return write!(client, "{head}\r\nContent-Length: {}\r\n\r\n{body}", body.len());
        }
        let about_image = path.starts_with("/images/") || path.contains("/blobs/");
        let fault = lock_shared(&self.faults).fault.filter(|_| about_image);
        let image = about_image && method == "GET";
        let adapted_head = faulty_responses::adapt_request(fault, &head);
        if let Some(answer) = self.registry.get().and_then(|registry| registry.respond_to(&adapted_head)) {
            return self.send_response(fault, image, &mut &answer[..], &mut client);
        }
        if let Some(files) = self.fleet.get() {
            let body = if method == "PUT" { read_body(&head, &mut from_client)? } else { Vec::new() };
            if let Some(answer) = files.respond_to(method, path, &body) {
                return client.write_all(&answer);
            }
        }
        self.wait_for_server();
        let mut server = self.send_head(path, &adapted_head)?;
        if path.ends_with("/point-of-no-return") {
            let body = read_body(&head, &mut from_client)?;
            lock_shared(&self.announced).extend(serde_json::from_slice::<Value>(&body));
            server.write_all(&body)?;
        }
        let mut to_server = server.try_clone()?;
        std::thread::spawn(move || std::io::copy(&mut from_client, &mut to_server));
        let result = match self.take_trap(&format!("{method} {path}")) {
            Some(trap) if trap.act == EventAction::PowerCut => {
                self.hold_until_power_cut(&trap, &mut server, &mut client)
            }
            Some(trap) => self.execute_trap(&trap, &mut server, &mut client),
            None => self.send_response(fault, image, &mut server, &mut client),
        };
        let _ = client.shutdown(Shutdown::Both);
        let _ = server.shutdown(Shutdown::Both);
        result
    }

    fn record_request(&self, method: &str, target: &str, head: &[String]) {
        let range = head.iter().find_map(|line| line.to_lowercase().strip_prefix("range: ").map(str::to_owned));
        let request = format!("{method} {target} {}", range.unwrap_or_default());
        lock_shared(&self.requests).push(request.trim_end().to_owned());
    }

    /// Connects to the server, and sends it the head of a request to this path.
    fn send_head(&self, path: &str, head: &[String]) -> std::io::Result<TcpStream> {
        let mut server = TcpStream::connect(("127.0.0.1", self.port_of(path)))?;
        server.set_read_timeout(Some(IDLE_TIMEOUT))?;
        for line in head.iter().filter(|line| !line.to_lowercase().starts_with("connection:")) {
            write!(server, "{line}\r\n")?;
        }
        write!(server, "Connection: close\r\n\r\n")?;
        Ok(server)
    }

    fn port_of(&self, path: &str) -> u16 {
        let is_for_firmware = ["/start.ipxe", "/boot.ipxe"].contains(&path) || path.starts_with("/boot/");
        match self.over_tls.load(Ordering::Relaxed) {
            port if port != 0 && !is_for_firmware => port,
            _ => self.server.load(Ordering::Relaxed),
        }
    }

    /// Waits for the server without responding to the client, like a host that has just crashed. iPXE sends its request
    /// only once, and receives the response when the server is back.
    fn wait_for_server(&self) {
        let patience = Instant::now() + Duration::from_secs(60);
        while self.away.load(Ordering::Acquire) && Instant::now() < patience {
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

fn lock_shared<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Tests responses that are cut, complete, held back or withheld, a client that disconnects, and an error.
pub fn self_test() {
    let server = TcpListener::bind("127.0.0.1:0").expect("a port");
    let proxy = Proxy::start(&[600]).expect("a port");
    let mut server_process = crate::host_tools::tie_to_thread("sleep").arg("60").spawn().expect("a process");
    let (port, process) = (server.local_addr().expect("an address").port(), server_process.id() as i32);
    proxy.set_server(port, process);
    let answers = std::thread::spawn(move || {
        for _ in 0..8 {
            let (mut client, _) = server.accept().expect("a client");
            let head = read_head(&mut BufReader::new(client.try_clone().expect("a socket"))).expect("a request");
            assert!(head.contains(&"Connection: close".to_owned()), "{head:?}");
            let body = vec![b'x'; 100_000];
            let _ = write!(client, "HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n", body.len());
            let _ = client.write_all(&body);
        }
    });
    let get = |range: &str| {
        let mut stream = TcpStream::connect(("127.0.0.1", proxy.port)).expect("a connection");
        write!(stream, "GET /images/a?token=secret HTTP/1.1\r\nConnection: keep-alive\r\n{range}\r\n").expect("sent");
        let mut answer = Vec::new();
        let _ = stream.read_to_end(&mut answer);
        answer
    };
    let cut = get("").len();
    assert!((600..100_000).contains(&cut), "{cut}");
    assert!(get("Range: bytes=5-\r\n").len() > 100_000);
    proxy.set_holds(vec![50_000]);
    let held = std::thread::scope(|scope| {
        let answer = scope.spawn(|| get(""));
        while !proxy.is_held_at(50_000) {
            std::thread::sleep(Duration::from_millis(5));
        }
        assert!(!answer.is_finished());
        proxy.release_hold(50_000);
        answer.join().expect("an answer").len()
    });
    assert!(held > 100_000 && !proxy.is_held_at(60_000), "{held}");
    let cut_power_at_response = |swallow| {
        let trap =
            ResponseTrap { request: "GET /im*".to_owned(), swallow, act: EventAction::PowerCut, time: Duration::ZERO };
        proxy.set_traps(vec![trap.clone()]);
        std::thread::scope(|scope| {
            let answer = scope.spawn(|| get(""));
            while proxy.take_triggered_traps() != [trap.clone()] {
                std::thread::sleep(Duration::from_millis(5));
            }
            std::thread::sleep(Duration::from_millis(50));
            assert!(!answer.is_finished());
            proxy.announce_power_cut();
            answer.join().expect("an answer").len()
        })
    };
    assert_eq!(cut_power_at_response(true), 0);
    assert!(cut_power_at_response(false) > 100_000);
    proxy.set_response_fault(Some(ResponseFault::Chunked), false);
    let altered = get("");
    assert!(altered.ends_with(b"\r\n0\r\n\r\n") && altered.len() > 100_000);
    proxy.set_response_fault(None, false);
    let trap =
        ResponseTrap { request: "GET /im*".to_owned(), swallow: false, act: EventAction::Cancel, time: Duration::ZERO };
    proxy.set_traps(vec![trap.clone()]);
    assert!(get("").len() > 100_000 && proxy.take_triggered_traps() == [trap]);
    assert!(server_process.try_wait().expect("a process").is_none() && proxy.wire.away.load(Ordering::Acquire));
    proxy.set_server(port, process);
    let trap = ResponseTrap {
        request: "GET /im*".to_owned(),
        swallow: true,
        act: EventAction::ServerKill,
        time: Duration::ZERO,
    };
    proxy.set_traps(vec![trap.clone()]);
    assert!(get("").is_empty() && proxy.take_triggered_traps() == [trap] && proxy.take_triggered_traps().is_empty());
    assert!(!server_process.wait().expect("a process").success());
    assert!(proxy.wire.away.load(Ordering::Acquire));
    proxy.set_server(1, 0);
    assert!(!proxy.wire.away.load(Ordering::Acquire));
    proxy.break_for(Duration::from_secs(60));
    assert!(get("").starts_with(b"HTTP/1.1 500 "));
    let all = [&["GET /images/a", "GET /images/a bytes=5-"], &["GET /images/a"; 7][..]].concat();
    assert_eq!(proxy.requests(), all);
    answers.join().expect("the server has received the expected requests");
    cut_for_ever();
    test_announcement();
    test_ports();
}

/// Tests that the requests of firmware are sent in plain text.
fn test_ports() {
    let proxy = Proxy::start(&[]).expect("a port");
    proxy.set_server(1, 0);
    let all = ["/boot.ipxe", "/boot/vmlinuz", "/start.ipxe", "/boot.json", "/v1/machines", "/images/a"];
    assert_eq!(all.map(|path| proxy.wire.port_of(path)), [1; 6]);
    proxy.set_over_tls(2);
    assert_eq!(all.map(|path| proxy.wire.port_of(path)), [1, 1, 1, 2, 2, 2]);
}

/// Tests that announcements are recorded and forwarded to the server.
fn test_announcement() {
    let server = TcpListener::bind("127.0.0.1:0").expect("a port");
    let proxy = Proxy::start(&[]).expect("a port");
    proxy.set_server(server.local_addr().expect("an address").port(), 0);
    let forwarded = std::thread::spawn(move || {
        let mut client = BufReader::new(server.accept().expect("a client").0);
        let head = read_head(&mut client).expect("a request");
        read_body(&head, &mut client).expect("a body")
    });
    let mut stream = TcpStream::connect(("127.0.0.1", proxy.port)).expect("a connection");
    let body = r#"{"extents": []}"#;
    let request = "POST /v1/machine/m/point-of-no-return HTTP/1.1";
    write!(stream, "{request}\r\nContent-Length: {}\r\n\r\n{body}", body.len()).expect("sent");
    assert_eq!(forwarded.join().expect("the forwarded body"), body.as_bytes());
    assert_eq!(proxy.announced(), [serde_json::json!({"extents": []})]);
}

/// Tests two cuts. The second one applies to all further responses, at exactly the same length.
fn cut_for_ever() {
    let server = TcpListener::bind("127.0.0.1:0").expect("a port");
    let proxy = Proxy::start(&[100, 60_000]).expect("a port");
    proxy.set_server(server.local_addr().expect("an address").port(), 0);
    proxy.set_response_fault(None, true);
    std::thread::spawn(move || {
        for mut client in server.incoming().flatten() {
            let _ = read_head(&mut BufReader::new(client.try_clone().expect("a socket")));
            let _ = client.write_all(&[b"HTTP/1.1 200 OK\r\n\r\n", &[b'x'; 100_000][..]].concat());
        }
    });
    let lengths = [(); 4].map(|()| {
        let mut stream = TcpStream::connect(("127.0.0.1", proxy.port)).expect("a connection");
        write!(stream, "GET /images/a HTTP/1.1\r\n\r\n").expect("sent");
        let mut answer = Vec::new();
        let _ = stream.read_to_end(&mut answer);
        answer.len()
    });
    assert!((100..60_000).contains(&lengths[0]), "{lengths:?}");
    assert_eq!(lengths[1..], [60_000; 3]);
}
