//! A small HTTP server for tests that can do everything wrong that servers do wrong, and short-hands around it.

use super::flow::{Clock, Pool, Reader, pipe};
use super::get::{Pace, Rules};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ServerConfig, ServerConnection, StreamOwned};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

/// Short pauses; the stall is long enough for a busy machine, and tests of stalls shorten it.
pub fn pace() -> Pace {
    Pace {
        stall: Duration::from_secs(10),
        attempts: 4,
        first_pause: Duration::from_millis(1),
        longest_pause: Duration::from_millis(5),
        lanes: Rules::default(),
    }
}

/// The bytes as they come from a stage before, in buffers of `cut` bytes. There are only three of them: who holds more at
/// once waits for ever.
pub fn reader(bytes: &[u8], cut: usize) -> Reader {
    let (sender, receiver) = pipe(1);
    let bytes = bytes.to_vec();
    thread::spawn(move || {
        let (pool, clock) = (Pool::new(3, cut), Clock::default());
        for piece in bytes.chunks(cut) {
            let mut filling = pool.take(&clock);
            filling[..piece.len()].copy_from_slice(piece);
            if sender.send(filling.filled(piece.len()), &clock).is_err() {
                return;
            }
        }
        sender.end();
    });
    Reader::new(receiver, Arc::default())
}

/// A stage that sends these bytes, and then how they end.
pub fn source(bytes: &[u8], buffer_bytes: usize, end: std::io::Result<()>) -> Reader {
    let count = bytes.len().div_ceil(buffer_bytes);
    let (pool, clock) = (Pool::new(count, buffer_bytes), Clock::default());
    let (sender, receiver) = pipe(count + 1);
    for piece in bytes.chunks(buffer_bytes) {
        let mut filling = pool.take(&clock);
        filling[..piece.len()].copy_from_slice(piece);
        sender.send(filling.filled(piece.len()), &clock).unwrap();
    }
    match end {
        Ok(()) => sender.end(),
        Err(error) => sender.fail(error),
    }
    Reader::new(receiver, Arc::default())
}

/// Bytes that do not compress and are the same in every run.
pub fn noise(length: usize) -> Vec<u8> {
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 32) as u8
    };
    (0..length).map(|_| next()).collect()
}

/// A request as it came.
#[derive(Debug, Clone)]
pub struct Request {
    /// How many requests with this method and path came before.
    pub nth: usize,
    pub method: String,
    pub path: String,
    pub range: Option<String>,
    pub if_range: Option<String>,
    pub authorization: Option<String>,
}

/// How to answer. The default is a good server.
#[derive(Debug, Clone)]
pub struct Act {
    pub status: Option<u16>,
    pub etag: Option<String>,
    /// Whether Range is honoured at all.
    pub ranges: bool,
    /// Honours Range without looking at If-Range.
    pub trust_range: bool,
    /// A lie in the header.
    pub content_range: Option<String>,
    /// Whether Content-Length is sent.
    pub length: bool,
    /// So many bytes of the body, then the end.
    pub cut: Option<usize>,
    /// At the cut, hold the connection instead of closing it.
    pub hold: bool,
    /// One byte more than there are.
    pub more: bool,
    pub silent: bool,
    /// Pause between the sixteenths of the body.
    pub trickle: Option<Duration>,
    /// Instead of the server's body.
    pub body: Option<Vec<u8>>,
    /// Instead of all that an answer is: the bytes on the wire.
    pub wire: Option<Vec<u8>>,
    pub headers: Vec<(&'static str, String)>,
}

impl Default for Act {
    fn default() -> Self {
        Act {
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
            headers: Vec::new(),
        }
    }
}

impl Act {
    pub fn status(status: u16) -> Act {
        Act { status: Some(status), ..Act::default() }
    }

    pub fn cut_after(bytes: usize) -> Act {
        Act { cut: Some(bytes), ..Act::default() }
    }

    pub fn stall_after(bytes: usize) -> Act {
        Act { cut: Some(bytes), hold: true, ..Act::default() }
    }

    pub fn stall_before_the_answer() -> Act {
        Act { silent: true, ..Act::default() }
    }

    pub fn wire(bytes: impl Into<Vec<u8>>) -> Act {
        Act { wire: Some(bytes.into()), ..Act::default() }
    }
}

/// Serves one body under every path, until the test ends.
pub struct Server {
    /// With the scheme, and no slash at its end.
    base: String,
    requests: Arc<Mutex<Vec<Request>>>,
}

impl Server {
    pub fn start(body: Vec<u8>, act: impl Fn(&Request) -> Act + Send + Sync + 'static) -> Server {
        Server::listen("http", body, act, Some)
    }

    /// With the certificate of `testdata/tls`.
    pub fn start_tls(body: Vec<u8>, act: impl Fn(&Request) -> Act + Send + Sync + 'static) -> Server {
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
        act: impl Fn(&Request) -> Act + Send + Sync + 'static,
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
                        // A client that goes away in the middle is what half of the tests are about.
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

/// A file of `testdata/tls`.
pub fn tls_file(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("testdata/tls").join(name)
}

fn read_request(socket: &mut impl Read, seen: &Mutex<Vec<Request>>) -> Option<Request> {
    let mut lines = BufReader::new(socket).lines().map_while(Result::ok);
    let first = lines.next()?;
    let mut words = first.split(' ').map(str::to_owned);
    let (method, path) = (words.next()?, words.next()?);
    let headers: Vec<String> = lines.take_while(|line| !line.is_empty()).collect();
    let header = |name: &str| {
        let pair = headers.iter().filter_map(|line| line.split_once(':'));
        pair.filter(|(key, _)| key.eq_ignore_ascii_case(name)).map(|(_, value)| value.trim().to_owned()).next()
    };
    let mut seen = seen.lock().unwrap();
    let nth = seen.iter().filter(|other| other.method == method && other.path == path).count();
    let (range, if_range, authorization) = (header("range"), header("if-range"), header("authorization"));
    let request = Request { nth, range, if_range, authorization, method, path };
    seen.push(request.clone());
    Some(request)
}

fn answer(mut socket: impl Read + Write, request: &Request, act: &Act, body: &[u8]) -> std::io::Result<()> {
    if act.silent {
        return hold(socket);
    }
    if let Some(bytes) = &act.wire {
        return socket.write_all(bytes);
    }
    let headers: String = act.headers.iter().map(|(name, value)| format!("{name}: {value}\r\n")).collect();
    if let Some(status) = act.status {
        let end = "Content-Length: 0\r\nConnection: close\r\n\r\n";
        return write!(socket, "HTTP/1.1 {status} Said So\r\n{headers}{end}");
    }
    let body = act.body.as_deref().unwrap_or(body);
    let asked = request.range.as_deref().and_then(|range| range.strip_prefix("bytes=")?.split_once('-'));
    let same = act.trust_range || request.if_range.is_none() || request.if_range == act.etag;
    let span = asked.filter(|_| act.ranges && same).map(|(start, end)| {
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

/// Keeps the connection until the client closes it.
fn hold(mut socket: impl Read) -> std::io::Result<()> {
    while socket.read(&mut [0; 64])? > 0 {}
    Ok(())
}

/// Compressed as the command-line tools do it by default, with their checksums.
pub fn compress(format: &str, content: &[u8]) -> Vec<u8> {
    compress_all(format, &[content])
}

/// The pieces as one stream.
pub fn compress_all(format: &str, pieces: &[&[u8]]) -> Vec<u8> {
    let write = |to: &mut dyn Write| pieces.iter().for_each(|piece| to.write_all(piece).unwrap());
    match format {
        "zstd" => {
            let mut encoder = zstd::Encoder::new(Vec::new(), 1).unwrap();
            encoder.include_checksum(true).unwrap();
            write(&mut encoder);
            encoder.finish().unwrap()
        }
        "lz4" => {
            let info = lz4_flex::frame::FrameInfo::new()
                .content_checksum(true)
                .block_size(lz4_flex::frame::BlockSize::Max64KB)
                .block_mode(lz4_flex::frame::BlockMode::Independent);
            let mut encoder = lz4_flex::frame::FrameEncoder::with_frame_info(info, Vec::new());
            write(&mut encoder);
            encoder.finish().unwrap()
        }
        "xz" => {
            let mut encoder = liblzma::write::XzEncoder::new(Vec::new(), 1);
            write(&mut encoder);
            encoder.finish().unwrap()
        }
        "plain" => pieces.concat(),
        _ => {
            let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
            write(&mut encoder);
            encoder.finish().unwrap()
        }
    }
}

/// Memory of this process at its peak.
pub fn peak_kib() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
    line.trim().trim_end_matches(" kB").parse().unwrap()
}

/// A tar made by hand, owned by who runs the tests.
pub struct Tar(pub Vec<u8>);

impl Tar {
    pub fn new() -> Tar {
        Tar(Vec::new())
    }

    /// Adds a member with any header at all.
    pub fn raw(mut self, path: &str, kind: u8, content: &[u8], change: impl Fn(&mut tar::Header)) -> Tar {
        let mut header = tar::Header::new_gnu();
        header.as_old_mut().name[..path.len()].copy_from_slice(path.as_bytes());
        header.set_entry_type(tar::EntryType::new(kind));
        header.set_size(content.len() as u64);
        header.set_mode(0o644);
        header.set_mtime(1_000_000_000);
        header.set_uid(nix::unistd::getuid().as_raw().into());
        header.set_gid(nix::unistd::getgid().as_raw().into());
        change(&mut header);
        header.set_cksum();
        self.0.extend(header.as_bytes());
        self.0.extend(content);
        self.0.resize(self.0.len().next_multiple_of(512), 0);
        self
    }

    pub fn file(self, path: &str, content: &[u8]) -> Tar {
        self.raw(path, b'0', content, |_| ())
    }

    pub fn directory(self, path: &str) -> Tar {
        self.raw(path, b'5', b"", |header| header.set_mode(0o755))
    }

    pub fn symlink(self, path: &str, target: &str) -> Tar {
        self.raw(path, b'2', b"", |header| header.set_link_name_literal(target).unwrap())
    }

    pub fn hard_link(self, path: &str, target: &str) -> Tar {
        self.raw(path, b'1', b"", |header| header.set_link_name_literal(target).unwrap())
    }

    /// A PAX header of records like `size=9`.
    pub fn pax(self, kind: u8, records: &[&[u8]]) -> Tar {
        let records: Vec<u8> = records.iter().flat_map(|record| pax_record(record)).collect();
        self.raw("pax", kind, &records, |_| ())
    }

    pub fn end(mut self) -> Vec<u8> {
        self.0.extend([0; 1024]);
        self.0
    }
}

/// `LENGTH KEY=VALUE\n`, where the length counts its own digits.
pub fn pax_record(pair: &[u8]) -> Vec<u8> {
    let digits = (1..).find(|digits| (digits + pair.len() + 2).to_string().len() == *digits).unwrap();
    [format!("{} ", digits + pair.len() + 2).as_bytes(), pair, b"\n"].concat()
}
