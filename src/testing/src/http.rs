//! Small HTTP server for tests. It can simulate faulty servers.

use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ServerConfig, ServerConnection, StreamOwned};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

/// Received request.
#[derive(Debug, Clone)]
pub struct Request {
    /// Number of earlier requests with the same method and path.
    pub nth: usize,
    pub method: String,
    pub path: String,
    pub range: Option<String>,
    pub if_range: Option<String>,
    pub authorization: Option<String>,
    /// All headers, by their names in lower case.
    headers: Vec<(String, String)>,
    pub body: String,
}

impl Request {
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(key, _)| key == name).map(|(_, value)| value.as_str())
    }

    /// Returns the request line: `GET /image`.
    pub fn line(&self) -> String {
        format!("{} {}", self.method, self.path)
    }
}

/// Behavior of the server for one request. By default, the server responds correctly.
#[derive(Debug, Clone)]
pub struct ResponseBehavior {
    pub status: Option<u16>,
    pub etag: Option<String>,
    /// True if the server supports the header Range.
    pub ranges: bool,
    /// True if the server honors Range even if If-Range does not match.
    pub trust_range: bool,
    /// Incorrect value for the header Content-Range.
    pub content_range: Option<String>,
    /// True if the server sends the header Content-Length.
    pub length: bool,
    /// Number of bytes of the body after which the server ends the response.
    pub cut: Option<usize>,
    /// True if the server holds the connection open after `cut` bytes instead of closing it.
    pub hold: bool,
    /// True if the server sends one extra byte after the body.
    pub more: bool,
    pub silent: bool,
    /// Pause after each sixteenth of the body.
    pub trickle: Option<Duration>,
    /// Body that is sent instead of the server's usual body. A response with a `status` has no other body.
    pub body: Option<Vec<u8>>,
    /// Raw bytes to send instead of a response.
    pub wire: Option<Vec<u8>>,
    /// Time between the raw bytes of `wire` and the end of the connection, which is closed without notice.
    pub linger: Duration,
    pub headers: Vec<(&'static str, String)>,
}

impl Default for ResponseBehavior {
    fn default() -> Self {
        ResponseBehavior {
            status: None,
            etag: Some("\"one\"".to_owned()),
            ranges: true,
            trust_range: false,
            content_range: None,
            length: true,
            cut: None,
            hold: false,
            more: false,
            silent: false,
            trickle: None,
            body: None,
            wire: None,
            linger: Duration::ZERO,
            headers: Vec::new(),
        }
    }
}

impl ResponseBehavior {
    pub fn status(status: u16) -> ResponseBehavior {
        ResponseBehavior { status: Some(status), ..ResponseBehavior::default() }
    }

    pub fn body(body: impl Into<Vec<u8>>) -> ResponseBehavior {
        ResponseBehavior { body: Some(body.into()), ..ResponseBehavior::default() }
    }

    /// Returns a response with this status and body.
    pub fn respond(status: u16, body: &str) -> ResponseBehavior {
        ResponseBehavior { status: Some(status), ..ResponseBehavior::body(body) }
    }

    pub fn cut_after(bytes: usize) -> ResponseBehavior {
        ResponseBehavior { cut: Some(bytes), ..ResponseBehavior::default() }
    }

    pub fn stall_after(bytes: usize) -> ResponseBehavior {
        ResponseBehavior { cut: Some(bytes), hold: true, ..ResponseBehavior::default() }
    }

    pub fn stall_before_the_answer() -> ResponseBehavior {
        ResponseBehavior { silent: true, ..ResponseBehavior::default() }
    }

    pub fn wire(bytes: impl Into<Vec<u8>>) -> ResponseBehavior {
        ResponseBehavior { wire: Some(bytes.into()), ..ResponseBehavior::default() }
    }
}

/// Server that serves the same body at every path until the test ends.
pub struct Server {
    /// Base URL, without a trailing slash.
    base: String,
    requests: Arc<Mutex<Vec<Request>>>,
}

impl Server {
    pub fn start(body: Vec<u8>, act: impl Fn(&Request) -> ResponseBehavior + Send + Sync + 'static) -> Server {
        Server::listen("http", body, act, Some)
    }

    /// Starts a server that sends these responses, one per request. Further requests receive status 410.
    pub fn script(answers: &[(u16, &str)]) -> Server {
        let acts: Vec<ResponseBehavior> =
            answers.iter().map(|(status, body)| ResponseBehavior::respond(*status, body)).collect();
        let acts = Mutex::new(acts.into_iter());
        Server::start(Vec::new(), move |_| acts.lock().unwrap().next().unwrap_or_else(|| ResponseBehavior::status(410)))
    }

    /// Starts a server that serves HTTPS with the certificate in `testdata/tls`.
    pub fn start_tls(body: Vec<u8>, act: impl Fn(&Request) -> ResponseBehavior + Send + Sync + 'static) -> Server {
        let chain = vec![CertificateDer::from_pem_file(tls_file("server.pem")).unwrap()];
        let key = PrivateKeyDer::from_pem_file(tls_file("server.key")).unwrap();
        let config = ServerConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()));
        let config = config.with_safe_default_protocol_versions().unwrap().with_no_client_auth();
        let config = Arc::new(config.with_single_cert(chain, key).unwrap());
        Server::listen("https", body, act, move |socket| {
            Some(StreamOwned::new(ServerConnection::new(config.clone()).ok()?, socket))
        })
    }

    fn listen<S: Read + Write>(
        scheme: &str,
        body: Vec<u8>,
        act: impl Fn(&Request) -> ResponseBehavior + Send + Sync + 'static,
        speak: impl Fn(TcpStream) -> Option<S> + Send + Sync + 'static,
    ) -> Server {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let base = format!("{scheme}://{}", listener.local_addr().unwrap());
        let requests = Arc::new(Mutex::new(Vec::new()));
        let (seen, act, body, speak) = (requests.clone(), Arc::new(act), Arc::new(body), Arc::new(speak));
        thread::spawn(move || {
            for socket in listener.incoming().flatten() {
                let (seen, act, body, speak) = (seen.clone(), act.clone(), body.clone(), speak.clone());
                thread::spawn(move || {
                    let Some(mut socket) = speak(socket) else { return };
                    if let Some(request) = read_request(&mut socket, &seen) {
                        // Errors of the connection are ignored, because in many tests the client closes the connection
                        // early.
                        let _ = answer(socket, &request, &act(&request), &body);
                    }
                });
            }
        });
        Server { base, requests }
    }

    pub fn url(&self, path: &str) -> String {
        format!("{}/{path}", self.base)
    }

    pub fn requests(&self) -> Vec<Request> {
        self.requests.lock().unwrap().clone()
    }
}

/// Returns the path of a file in `testdata/tls`.
pub fn tls_file(name: &str) -> PathBuf {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../..")).join("testdata/tls").join(name)
}

fn read_request(socket: &mut impl Read, seen: &Mutex<Vec<Request>>) -> Option<Request> {
    let mut socket = BufReader::new(socket);
    let mut lines = (&mut socket).lines().map_while(Result::ok);
    let first = lines.next()?;
    let mut words = first.split(' ').map(str::to_owned);
    let (method, path) = (words.next()?, words.next()?);
    let lines = lines.take_while(|line| !line.is_empty());
    let headers: Vec<(String, String)> = lines
        .filter_map(|line| line.split_once(':').map(|(name, value)| (name.to_lowercase(), value.trim().to_owned())))
        .collect();
    let header = |name: &str| headers.iter().find(|(key, _)| key == name).map(|(_, value)| value.clone());
    let mut body = vec![0; header("content-length").map_or(Some(0), |length| length.parse().ok())?];
    socket.read_exact(&mut body).ok()?;
    let body = String::from_utf8_lossy(&body).into_owned();
    let mut seen = seen.lock().unwrap();
    let nth = seen.iter().filter(|other| other.method == method && other.path == path).count();
    let (range, if_range, authorization) = (header("range"), header("if-range"), header("authorization"));
    let request = Request { nth, method, path, range, if_range, authorization, headers, body };
    seen.push(request.clone());
    Some(request)
}

fn answer(
    mut socket: impl Read + Write,
    request: &Request,
    act: &ResponseBehavior,
    body: &[u8],
) -> std::io::Result<()> {
    if act.silent {
        return hold(socket);
    }
    if let Some(bytes) = &act.wire {
        socket.write_all(bytes)?;
        thread::sleep(act.linger);
        return Ok(());
    }
    let headers: String = act.headers.iter().map(|(name, value)| format!("{name}: {value}\r\n")).collect();
    if let Some(status) = act.status {
        let body = act.body.as_deref().unwrap_or_default();
        write!(
            socket,
            "HTTP/1.1 {status} Said So\r\n{headers}Content-Length: {}\r\nConnection: close\r\n\r\n",
            body.len()
        )?;
        return socket.write_all(body);
    }
    let body = act.body.as_deref().unwrap_or(body);
    let range = request.range.as_deref().and_then(|range| range.strip_prefix("bytes=")?.split_once('-'));
    let same = act.trust_range || request.if_range.is_none() || request.if_range == act.etag;
    let span = range.filter(|_| act.ranges && same).map(|(start, end)| {
        let end = end.parse::<usize>().map_or(body.len(), |last| last + 1).min(body.len());
        (start.parse::<usize>().unwrap_or(0).min(end), end)
    });
    let (start, end) = span.unwrap_or((0, body.len()));
    let part = &body[start..end];
    let mut head = String::from(if span.is_some() { "HTTP/1.1 206 Part\r\n" } else { "HTTP/1.1 200 OK\r\n" });
    head += &format!("{headers}Connection: close\r\n");
    if span.is_some() {
        let true_range = format!("bytes {start}-{}/{}", end.saturating_sub(1), body.len());
        head += &format!("Content-Range: {}\r\n", act.content_range.as_ref().unwrap_or(&true_range));
    }
    if let Some(etag) = &act.etag {
        head += &format!("ETag: {etag}\r\n");
    }
    if act.length {
        head += &format!("Content-Length: {}\r\n", part.len());
    }
    socket.write_all(format!("{head}\r\n").as_bytes())?;
    if request.method == "HEAD" {
        return Ok(());
    }
    let part = &part[..act.cut.unwrap_or(part.len()).min(part.len())];
    match act.trickle {
        None => socket.write_all(part)?,
        Some(pause) => {
            for piece in part.chunks(part.len().div_ceil(16).max(1)) {
                socket.write_all(piece)?;
                thread::sleep(pause);
            }
        }
    }
    if act.more {
        socket.write_all(b"x")?;
    }
    if act.hold { hold(socket) } else { Ok(()) }
}

/// Holds the connection open until the client closes it.
fn hold(mut socket: impl Read) -> std::io::Result<()> {
    while socket.read(&mut [0; 64])? > 0 {}
    Ok(())
}
