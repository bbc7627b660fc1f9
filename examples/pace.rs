//! HTTP server for the files of one directory, limited to the speed of a link: `scripts/bench burn` measures through
//! it. All connections share the link; each can have an additional limit.
//!
//! Usage: pace DIR [BITS_PER_SECOND [BITS_PER_SECOND_OF_EACH_CONNECTION]] (default 0: unlimited). Prints the address
//! that it listens on.

use std::fs::File;
use std::io::{self, BufRead, BufReader, Read, Seek, SeekFrom, Write};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

/// Maximum backlog that is caught up after the link was idle.
const BURST: Duration = Duration::from_millis(2);

fn main() -> io::Result<()> {
    let mut arguments = std::env::args().skip(1);
    let usage = || io::Error::other("usage: pace DIR [BITS_PER_SECOND [BITS_PER_SECOND_OF_EACH_CONNECTION]]");
    let directory = PathBuf::from(arguments.next().ok_or_else(usage)?);
    let mut bits = || arguments.next().map_or(Ok(0), |text| text.parse::<u64>()).map_err(|_| usage());
    let (together, each) = (bits()?, bits()?);
    let listener = TcpListener::bind("127.0.0.1:0")?;
    println!("http://{}", listener.local_addr()?);
    let link = Arc::new(Link::of(together));
    for stream in listener.incoming() {
        let (stream, directory, link) = (stream?, directory.clone(), link.clone());
        thread::spawn(move || {
            // A client that disconnects has received enough.
            if let Err(error) = serve(&stream, &directory, &[&link, &Link::of(each)]) {
                eprintln!("pace: {error}");
            }
        });
    }
    Ok(())
}

/// Rate limiter for all connections together, or for a single connection.
struct Link {
    /// Rate in bytes per second; 0 is unlimited.
    bytes_per_second: u64,
    /// Time at which all data accounted so far will have been sent.
    free: Mutex<Instant>,
}

impl Link {
    fn of(bits_per_second: u64) -> Link {
        Link { bytes_per_second: bits_per_second / 8, free: Mutex::new(Instant::now()) }
    }

    /// Data of a millisecond, but at least enough that the system calls cost less than the data.
    fn chunk(&self) -> u64 {
        match self.bytes_per_second {
            0 => 1 << 20,
            rate => (rate / 1000).clamp(32 << 10, 1 << 20),
        }
    }

    /// Returns when this number of bytes has been sent.
    fn carry(&self, bytes: u64) {
        if self.bytes_per_second == 0 {
            return;
        }
        let through = {
            let mut free = self.free.lock().unwrap_or_else(PoisonError::into_inner);
            let begins = (*free).max(Instant::now() - BURST);
            *free = begins + Duration::from_secs_f64(bytes as f64 / self.bytes_per_second as f64);
            *free
        };
        thread::sleep(through.saturating_duration_since(Instant::now()));
    }
}

/// Handles the requests of one connection.
fn serve(mut stream: &TcpStream, directory: &Path, links: &[&Link]) -> io::Result<()> {
    stream.set_nodelay(true)?;
    let mut reader = BufReader::new(stream.try_clone()?);
    while let Some(request) = Request::read(&mut reader)? {
        // Only plain names: files of this directory.
        let name = request.path.trim_start_matches('/');
        let file =
            if name.contains('/') || name.starts_with('.') { None } else { File::open(directory.join(name)).ok() };
        let Some(mut file) = file else {
            write!(stream, "HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n")?;
            continue;
        };
        let size = file.metadata()?.len();
        let (start, end) = request.range.unwrap_or((0, u64::MAX));
        let end = end.min(size.saturating_sub(1));
        if request.range.is_some() && start > end {
            write!(
                stream,
                "HTTP/1.1 416 Range Not Satisfiable\r\nContent-Range: bytes */{size}\r\nContent-Length: 0\r\n\r\n"
            )?;
            continue;
        }
        let length = if size == 0 { 0 } else { end - start + 1 };
        let status = if request.range.is_some() { "206 Partial Content" } else { "200 OK" };
        let range = request.range.map(|_| format!("Content-Range: bytes {start}-{end}/{size}\r\n")).unwrap_or_default();
        let head = format!("Content-Length: {length}\r\nETag: \"{size:x}\"\r\nAccept-Ranges: bytes\r\n{range}");
        write!(stream, "HTTP/1.1 {status}\r\n{head}\r\n")?;
        if request.method == "HEAD" {
            continue;
        }
        file.seek(SeekFrom::Start(start))?;
        let chunk = links.iter().map(|link| link.chunk()).min().unwrap_or(1);
        let mut left = length;
        while left > 0 {
            // sendfile(2): the server must use as little CPU time as possible.
            let sent = io::copy(&mut (&file).take(left.min(chunk)), &mut stream)?;
            if sent == 0 {
                return Err(io::Error::other("the file became shorter"));
            }
            links.iter().for_each(|link| link.carry(sent));
            left -= sent;
        }
    }
    Ok(())
}

struct Request {
    method: String,
    path: String,
    /// First and last byte of the range.
    range: Option<(u64, u64)>,
}

impl Request {
    /// Reads a request; `None` at the end of the connection.
    fn read(reader: &mut impl BufRead) -> io::Result<Option<Request>> {
        let mut first = String::new();
        if reader.read_line(&mut first)? == 0 {
            return Ok(None);
        }
        let mut words = first.split_whitespace().map(str::to_owned);
        let (Some(method), Some(path)) = (words.next(), words.next()) else {
            return Err(io::Error::other(format!("no request: {first:?}")));
        };
        let mut range = None;
        loop {
            let mut line = String::new();
            reader.read_line(&mut line)?;
            let Some((name, value)) = line.split_once(':') else { break };
            if name.eq_ignore_ascii_case("range") {
                let span = value.trim().strip_prefix("bytes=").and_then(|span| span.split_once('-'));
                range = span.and_then(|(start, end)| Some((start.parse().ok()?, end.parse().unwrap_or(u64::MAX))));
            }
        }
        Ok(Some(Request { method, path, range }))
    }
}
