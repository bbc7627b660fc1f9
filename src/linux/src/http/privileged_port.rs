//! Requests from a source port below 1024. Only a privileged process can bind such a port, so the port proves to the
//! server that the request does not come from an unprivileged process on this host.
//!
//! reqwest cannot bind a source port, so this module sends the requests itself. Because such requests are rare, each
//! request uses its own connection.

use bytes::Bytes;
use http::header::{HOST, USER_AGENT};
use http::uri::Scheme;
use http::{HeaderValue, Request, Response, Uri};
use http_body_util::{BodyExt, Full, Limited};
use hyper_util::rt::TokioIo;
use rustls::ClientConfig;
use rustls::pki_types::ServerName;
use rustls_platform_verifier::ConfigVerifierExt;
use std::io::{self, Error, ErrorKind};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::ops::RangeInclusive;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpSocket, TcpStream};
use tokio::time::timeout;
use tokio_rustls::TlsConnector;

/// Source ports that are tried: the range used by rresvport(3), in which servers rarely listen.
const SOURCE_PORTS: RangeInclusive<u16> = 512..=1023;
/// Maximum size of a response in bytes.
const ANSWER_BYTES: usize = 1 << 20;

/// Sends the request and returns the response. The URI of the request must be absolute. Redirects are not followed.
///
/// # Errors
/// Returns an error if the server does not respond within `patience`, or its certificate is not trusted.
pub fn send_privileged(request: Request<Vec<u8>>, patience: Duration) -> io::Result<Response<Bytes>> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(send_privileged_from(None, request, patience))
}

/// Asynchronous form of [`send_privileged`]. If `source` is set, the request is sent from this address.
///
/// # Errors
/// The same errors as for [`send_privileged`].
pub async fn send_privileged_from(
    source: Option<IpAddr>,
    request: Request<Vec<u8>>,
    patience: Duration,
) -> io::Result<Response<Bytes>> {
    let answer = timeout(patience, send_over_connection(source, request)).await;
    answer.unwrap_or_else(|_| {
        let message = format!("no response within {} s", patience.as_secs());
        Err(Error::new(ErrorKind::TimedOut, message))
    })
}

async fn send_over_connection(source: Option<IpAddr>, request: Request<Vec<u8>>) -> io::Result<Response<Bytes>> {
    let uri = request.uri().clone();
    let is_https = uri.scheme() == Some(&Scheme::HTTPS);
    let host = uri.host().ok_or_else(|| Error::new(ErrorKind::InvalidInput, "the URL lacks a host"))?;
    let host = host.trim_start_matches('[').trim_end_matches(']').to_owned();
    let stream = connect_to_host(source, &host, uri.port_u16().unwrap_or(if is_https { 443 } else { 80 })).await?;
    let request = to_origin_form(request)?;
    if !is_https {
        return exchange_message(stream, request).await;
    }
    let name = ServerName::try_from(host).map_err(Error::other)?;
    let stream = TlsConnector::from(tls_config()?).connect(name, stream).await?;
    exchange_message(stream, request).await
}

fn tls_config() -> io::Result<Arc<ClientConfig>> {
    // An error is ignored: it only means that an earlier call has already installed the cryptographic provider.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let mut config = ClientConfig::with_platform_verifier().map_err(Error::other)?;
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(Arc::new(config))
}

/// Replaces the absolute URI by its path and query, and adds the `Host` and `User-Agent` headers.
fn to_origin_form(mut request: Request<Vec<u8>>) -> io::Result<Request<Full<Bytes>>> {
    let authority = request.uri().authority().map(|authority| authority.as_str().to_owned()).unwrap_or_default();
    let host = HeaderValue::from_str(&authority).map_err(Error::other)?;
    let path = request.uri().path_and_query().map_or("/", |path| path.as_str()).to_owned();
    *request.uri_mut() = path.parse::<Uri>().map_err(Error::other)?;
    request.headers_mut().insert(HOST, host);
    let agent = concat!("drophammer/", env!("CARGO_PKG_VERSION"));
    request.headers_mut().insert(USER_AGENT, HeaderValue::from_static(agent));
    Ok(request.map(|body| Full::new(Bytes::from(body))))
}

async fn exchange_message(
    stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
    request: Request<Full<Bytes>>,
) -> io::Result<Response<Bytes>> {
    let (mut sender, connection) =
        hyper::client::conn::http1::handshake(TokioIo::new(stream)).await.map_err(Error::other)?;
    // The task that serves the connection is not awaited: it ends when the runtime is dropped.
    drop(tokio::spawn(connection));
    let (head, body) = sender.send_request(request).await.map_err(Error::other)?.into_parts();
    let body = Limited::new(body, ANSWER_BYTES).collect().await.map_err(Error::other)?;
    Ok(Response::from_parts(head, body.to_bytes()))
}

async fn connect_to_host(source: Option<IpAddr>, host: &str, port: u16) -> io::Result<TcpStream> {
    let mut last = Error::new(ErrorKind::NotFound, "the server's host name does not resolve to an address");
    for address in tokio::net::lookup_host((host, port)).await? {
        match connect_from_privileged_port(source, address).await {
            Ok(stream) => return Ok(stream),
            Err(error) => last = error,
        }
    }
    Err(last)
}

/// Connects from a privileged source port. If this process is unprivileged, connects from any free port; the server may
/// refuse such a connection.
async fn connect_from_privileged_port(source: Option<IpAddr>, server: SocketAddr) -> io::Result<TcpStream> {
    let count = SOURCE_PORTS.end() - SOURCE_PORTS.start() + 1;
    let first = fastrand::u16(..count);
    for offset in 0..count {
        let socket = if server.is_ipv4() { TcpSocket::new_v4() } else { TcpSocket::new_v6() }?;
        // Without this option, binding would fail while an earlier connection from this port is in TIME_WAIT.
        socket.set_reuseaddr(true)?;
        let any: IpAddr = if server.is_ipv4() { Ipv4Addr::UNSPECIFIED.into() } else { Ipv6Addr::UNSPECIFIED.into() };
        let bound =
            socket.bind(SocketAddr::new(source.unwrap_or(any), SOURCE_PORTS.start() + (first + offset) % count));
        let connected = match bound {
            Ok(()) => socket.connect(server).await,
            Err(error) if error.kind() == ErrorKind::PermissionDenied => {
                tracing::warn!("cannot bind a source port below 1024: {error}; the server may reject this request");
                return TcpStream::connect(server).await;
            }
            Err(error) => Err(error),
        };
        match connected {
            Err(error) if matches!(error.kind(), ErrorKind::AddrInUse | ErrorKind::AddrNotAvailable) => {}
            done => return done,
        }
    }
    Err(Error::new(ErrorKind::AddrInUse, "all source ports from 512 to 1023 are in use"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read, Write};
    use std::net::TcpListener;
    use std::thread;

    const PATIENCE: Duration = Duration::from_secs(60);

    /// Answers one request, and returns it with the source port.
    fn answer_once(answer: &'static str) -> (u16, thread::JoinHandle<(u16, String)>) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let server = thread::spawn(move || {
            let (mut stream, peer) = listener.accept().unwrap();
            let (mut request, mut bytes) = (String::new(), [0; 1024]);
            while !request.ends_with("the body") {
                let count = stream.read(&mut bytes).unwrap();
                request += std::str::from_utf8(&bytes[..count]).unwrap();
            }
            stream.write_all(answer.as_bytes()).unwrap();
            (peer.port(), request)
        });
        (port, server)
    }

    #[test]
    fn privileged_process_sends_from_a_privileged_port() {
        let (port, server) = answer_once("HTTP/1.1 201 Created\r\nContent-Length: 6\r\n\r\nanswer");
        let request = Request::post(format!("http://127.0.0.1:{port}/a?b=c")).header("x-test", "1");
        let answer = send_privileged(request.body(b"the body".to_vec()).unwrap(), PATIENCE).unwrap();
        assert_eq!((answer.status().as_u16(), &answer.body()[..]), (201, &b"answer"[..]));
        let (source, request) = server.join().unwrap();
        let is_root = nix::unistd::geteuid().is_root();
        assert_eq!(SOURCE_PORTS.contains(&source), is_root, "{source}");
        assert!(request.starts_with("POST /a?b=c HTTP/1.1\r\n"), "{request}");
        for line in [&format!("host: 127.0.0.1:{port}"), "content-length: 8", "x-test: 1"] {
            assert!(request.to_lowercase().contains(line), "{line}: {request}");
        }
    }

    #[test]
    fn endless_or_missing_response_is_an_error() {
        let (port, server) = answer_once("HTTP/1.1 200 OK\r\nContent-Length: 2000000\r\n\r\n");
        let post = |port| Request::post(format!("http://127.0.0.1:{port}/")).body(b"the body".to_vec()).unwrap();
        assert!(send_privileged(post(port), PATIENCE).is_err());
        server.join().unwrap();
        let unused = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        assert_eq!(send_privileged(post(unused), PATIENCE).unwrap_err().kind(), ErrorKind::ConnectionRefused);
        assert!(send_privileged(Request::get("/").body(Vec::new()).unwrap(), PATIENCE).is_err());
    }
}
