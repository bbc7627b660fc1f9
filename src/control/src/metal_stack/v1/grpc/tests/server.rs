//! Scripted gRPC server over HTTP/2 and TLS. Scripts can also violate the protocol.

use super::super::*;
use bytes::Bytes;
use h2::server::{Connection, SendResponse};
use h2::{Reason, RecvStream};
use http::request::Parts;
use http::{HeaderMap, HeaderName, HeaderValue, Request, Response};
use rustls::ServerConfig;
use rustls::server::WebPkiClientVerifier;
use std::net::{SocketAddr, TcpListener};
use std::sync::Mutex;
use std::thread;
use testing::http::tls_file;
use tokio::sync::Notify;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;

type Headers = Vec<(&'static str, String)>;

/// Step of the script of a response.
#[derive(Debug, Clone)]
pub(super) enum Step {
    /// Complete response without a body.
    Only(u16, Headers),
    Head(u16, Headers),
    Data(Vec<u8>),
    Trailers(Headers),
    /// Waits for [`GrpcServer::resume`].
    Pause,
    Reset(Reason),
    GoAway(Reason),
    /// Closes the connection.
    Close,
}

/// Certificates of a server.
pub(super) struct ServerTls {
    /// Base name of the files with the server's certificate and key.
    pub(super) name: &'static str,
    /// Certificate against which client certificates are verified.
    pub(super) clients: &'static str,
}

pub(super) const TRUSTED: ServerTls = ServerTls { name: "server", clients: "ca.pem" };

/// Head and body of each request.
pub(super) type ReceivedRequests = Arc<Mutex<Vec<(Parts, Vec<u8>)>>>;

pub(super) struct GrpcServer {
    pub(super) address: SocketAddr,
    pub(super) requests: ReceivedRequests,
    resume: Arc<Notify>,
}

impl GrpcServer {
    /// Starts a server that responds to each call with the same steps until the test ends.
    pub(super) fn start(steps: Vec<Step>) -> GrpcServer {
        GrpcServer::start_with(&TRUSTED, "127.0.0.1:0", steps)
    }

    pub(super) fn start_with(tls: &ServerTls, address: &str, steps: Vec<Step>) -> GrpcServer {
        let listener = TcpListener::bind(address).unwrap();
        listener.set_nonblocking(true).unwrap();
        let address = listener.local_addr().unwrap();
        let acceptor = TlsAcceptor::from(Arc::new(server_config(tls)));
        let (requests, resume) = (Arc::new(Mutex::new(Vec::new())), Arc::new(Notify::new()));
        let (seen, resumed) = (requests.clone(), resume.clone());
        thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(async {
                let listener = tokio::net::TcpListener::from_std(listener).unwrap();
                while let Ok((socket, _)) = listener.accept().await {
                    let (acceptor, steps) = (acceptor.clone(), steps.clone());
                    let (seen, resumed) = (seen.clone(), resumed.clone());
                    // An error is ignored, because in many tests the client closes the connection.
                    tokio::spawn(async move { drop(serve(acceptor, socket, steps, &seen, &resumed).await) });
                }
            });
        });
        GrpcServer { address, requests, resume }
    }

    pub(super) fn resume(&self) {
        self.resume.notify_one();
    }
}

pub(super) fn read_pem(name: &str) -> String {
    std::fs::read_to_string(tls_file(name)).unwrap()
}

fn server_config(tls: &ServerTls) -> ServerConfig {
    let certificate = |name: &str| CertificateDer::from_pem_file(tls_file(name)).unwrap();
    let key = PrivateKeyDer::from_pem_file(tls_file(&format!("{}.key", tls.name))).unwrap();
    let mut roots = RootCertStore::empty();
    roots.add(certificate(tls.clients)).unwrap();
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let clients = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider.clone()).build().unwrap();
    let config = ServerConfig::builder_with_provider(provider).with_safe_default_protocol_versions().unwrap();
    let config = config.with_client_cert_verifier(clients);
    let mut config = config.with_single_cert(vec![certificate(&format!("{}.pem", tls.name))], key).unwrap();
    config.alpn_protocols = vec![b"h2".to_vec()];
    config
}

/// End of the execution of a script.
enum ScriptEnd {
    Complete,
    GoAway(Reason),
    Close,
}

async fn serve(
    acceptor: TlsAcceptor,
    socket: TcpStream,
    steps: Vec<Step>,
    seen: &Mutex<Vec<(Parts, Vec<u8>)>>,
    resumed: &Notify,
) -> Result<(), Box<dyn StdError + Send + Sync>> {
    let stream = acceptor.accept(socket).await?;
    let mut connection: Connection<TlsStream<TcpStream>, Bytes> = h2::server::handshake(stream).await?;
    let Some(call) = connection.accept().await else { return Ok(()) };
    let (request, respond) = call?;
    let end = tokio::select! {
        end = run_script(request, respond, steps, seen, resumed) => end?,
        _ = connection.accept() => return Ok(()),
    };
    match end {
        ScriptEnd::Complete => while connection.accept().await.is_some() {},
        ScriptEnd::GoAway(reason) => {
            connection.abrupt_shutdown(reason);
            while connection.accept().await.is_some() {}
            // The socket stays open, because closing a socket with unread data could discard the frame.
            std::future::pending().await
        }
        ScriptEnd::Close => {}
    }
    Ok(())
}

async fn run_script(
    request: Request<RecvStream>,
    mut respond: SendResponse<Bytes>,
    steps: Vec<Step>,
    seen: &Mutex<Vec<(Parts, Vec<u8>)>>,
    resumed: &Notify,
) -> Result<ScriptEnd, h2::Error> {
    let (head, mut body) = request.into_parts();
    let mut content = Vec::new();
    while let Some(data) = body.data().await {
        content.extend_from_slice(&data?);
    }
    seen.lock().unwrap().push((head, content));
    let mut stream = None;
    for step in steps {
        match step {
            Step::Only(status, headers) => drop(respond.send_response(response(status, headers), true)?),
            Step::Head(status, headers) => stream = Some(respond.send_response(response(status, headers), false)?),
            Step::Data(data) => stream.as_mut().unwrap().send_data(data.into(), false)?,
            Step::Trailers(headers) => stream.as_mut().unwrap().send_trailers(header_map(headers))?,
            Step::Pause => resumed.notified().await,
            Step::Reset(reason) => match &mut stream {
                Some(stream) => stream.send_reset(reason),
                None => respond.send_reset(reason),
            },
            Step::GoAway(reason) => return Ok(ScriptEnd::GoAway(reason)),
            Step::Close => return Ok(ScriptEnd::Close),
        }
    }
    // The stream must be ended here, because dropping an open stream would reset it.
    if let Some(stream) = &mut stream {
        let _ = stream.send_data(Bytes::new(), true);
    }
    Ok(ScriptEnd::Complete)
}

fn response(status: u16, headers: Headers) -> Response<()> {
    let mut response = Response::builder().status(status).body(()).unwrap();
    *response.headers_mut() = header_map(headers);
    response
}

fn header_map(headers: Headers) -> HeaderMap {
    let header = |(name, value): (&'static str, String)| {
        (HeaderName::from_static(name), HeaderValue::from_bytes(value.as_bytes()).unwrap())
    };
    headers.into_iter().map(header).collect()
}
