//! gRPC over HTTP/2 (<https://github.com/grpc/grpc/blob/master/doc/PROTOCOL-HTTP2.md>), limited to what machines
//! need: unary calls and one server stream, with a client certificate.
//!
//! Each call opens a new connection. Calls are rare, and a client without idle connections need not detect the loss of
//! such connections.

mod framing;
#[cfg(test)]
mod tests;

use bytes::Bytes;
use common::error::{Context, Error, Phase, Result};
use framing::{decode_error_message, frame_message, take_message};
use h2::client::{ResponseFuture, SendRequest};
use h2::{Reason, RecvStream};
use http::{HeaderMap, Request, StatusCode};
use linux::http::is_untrusted_certificate;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use std::error::Error as StdError;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::TcpStream;
use tokio::runtime::Runtime;
use tokio::time::timeout;
use tokio_rustls::TlsConnector;

/// Timeout of the TLS connection.
const CONNECT: Duration = Duration::from_secs(10);

const HEADER_BYTES: u32 = 64 << 10;

/// Address and TLS configuration of a server.
pub(crate) struct GrpcClient {
    tls: Arc<ClientConfig>,
    /// Host and port of the server.
    address: String,
    name: ServerName<'static>,
}

/// Reason why a gRPC call failed.
#[derive(Debug)]
pub(crate) enum GrpcFailure {
    /// The client does not trust the server's certificate, or the server does not trust the client's. A certificate in
    /// a new configuration may be trusted.
    Certificate(Error),
    /// The server does not support this method.
    Unknown(Error),
    /// Any other failure. A retry may succeed, because the server's error codes do not distinguish permanent from
    /// temporary failures.
    Transient(Error),
}

impl GrpcFailure {
    pub(crate) fn into_error(self) -> Error {
        match self {
            GrpcFailure::Certificate(error) | GrpcFailure::Unknown(error) | GrpcFailure::Transient(error) => error,
        }
    }
}

/// Event of a gRPC stream.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum StreamEvent {
    Message(Vec<u8>),
    /// Regular end of the stream.
    End,
    /// The timeout has elapsed without an event, and the stream is still open.
    Silence,
}

/// gRPC call in progress.
pub(crate) struct GrpcCall {
    runtime: Runtime,
    method: String,
    address: String,
    /// Pending response of the server; `None` after its header was received.
    response: Option<ResponseFuture>,
    body: Option<RecvStream>,
    /// Received bytes that do not form a complete message yet.
    rest: Vec<u8>,
    /// Handle that keeps the connection open during the call.
    _connection: SendRequest<Bytes>,
}

impl GrpcClient {
    /// Creates a client. `ca`, `cert` and `key` are PEM.
    ///
    /// # Errors
    /// Fails if `ca`, `cert` or `key` is malformed, or if certificate and key do not match.
    pub fn new(address: &str, ca: &str, cert: &str, key: &str) -> Result<GrpcClient> {
        let host = address.rsplit_once(':').map_or(address, |(host, _)| host);
        let host = host.trim_start_matches('[').trim_end_matches(']').to_owned();
        let name = ServerName::try_from(host)
            .context(Phase::Control, || format!("address {address} of pixie's configuration"))?;
        Ok(GrpcClient { tls: Arc::new(build_tls_config(ca, cert, key)?), address: address.to_owned(), name })
    }

    /// Makes a unary call.
    ///
    /// # Errors
    /// Fails if the server is unreachable or returns an error.
    pub(crate) fn call_unary(
        &self,
        method: &str,
        question: Vec<u8>,
        patience: Duration,
    ) -> Result<Vec<u8>, GrpcFailure> {
        let mut call = self.start_call(method, question, patience)?;
        let mut answer = Vec::new();
        loop {
            match call.next_event(patience)? {
                StreamEvent::Message(message) => answer = message,
                StreamEvent::End => return Ok(answer),
                StreamEvent::Silence => {
                    let message = format!(
                        "{method}: no answer from {server} within {seconds} s",
                        server = self.address,
                        seconds = patience.as_secs()
                    );
                    return Err(GrpcFailure::Transient(Error::new(Phase::Control, message)));
                }
            }
        }
    }

    /// Starts a call. The caller then reads the messages with [`GrpcCall::next_event`].
    ///
    /// # Errors
    /// Fails if the server is unreachable.
    pub(crate) fn start_call(
        &self,
        method: &str,
        question: Vec<u8>,
        patience: Duration,
    ) -> Result<GrpcCall, GrpcFailure> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let runtime = runtime.map_err(|error| self.connection_failure(method, &error))?;
        let connected = runtime.block_on(async { timeout(patience.min(CONNECT), self.open_connection(method)).await });
        let mut connection = match connected {
            Ok(connection) => connection?,
            Err(_) => {
                let message = format!("{method}: no connection to {server}", server = self.address);
                return Err(GrpcFailure::Transient(Error::new(Phase::Control, message)));
            }
        };
        let request = Request::post(format!("https://{}/{method}", self.address));
        let request = request.header("content-type", "application/grpc").header("te", "trailers");
        let request = request.header("user-agent", concat!("drophammer/", env!("CARGO_PKG_VERSION")));
        let request = request.body(()).map_err(|error| self.connection_failure(method, &error))?;
        let sent = runtime.block_on(async {
            let (response, mut body) = connection.send_request(request, false)?;
            body.send_data(frame_message(&question), true)?;
            Ok(response)
        });
        let response = sent.map_err(|error: h2::Error| self.broken_connection_failure(method, &error))?;
        Ok(GrpcCall {
            runtime,
            method: method.to_owned(),
            address: self.address.clone(),
            response: Some(response),
            body: None,
            rest: Vec::new(),
            _connection: connection,
        })
    }

    async fn open_connection(&self, method: &str) -> Result<SendRequest<Bytes>, GrpcFailure> {
        let stream =
            TcpStream::connect(&self.address).await.map_err(|error| self.connection_failure(method, &error))?;
        // Nagle's algorithm is disabled, because messages are small and must be sent immediately.
        let _ = stream.set_nodelay(true);
        let connected = TlsConnector::from(self.tls.clone()).connect(self.name.clone(), stream).await;
        let stream = connected.map_err(|error| match is_untrusted_certificate(&error) {
            true => {
                let who = "the server has a certificate from a CA that is not in pixie's configuration, or a certificate for another host";
                self.certificate_failure(method, who, error)
            }
            false => self.broken_connection_failure(method, &error),
        })?;
        let mut builder = h2::client::Builder::new();
        builder.max_header_list_size(HEADER_BYTES).enable_push(false);
        let shaken = builder.handshake(stream).await.map_err(|error| self.broken_connection_failure(method, &error))?;
        let (connection, driver) = shaken;
        // This task drives the connection, and responds to the server's pings. Errors of the task are ignored, because
        // reading the streams returns the same errors.
        tokio::spawn(async move { drop(driver.await) });
        connection.ready().await.map_err(|error| self.broken_connection_failure(method, &error))
    }

    fn connection_failure(&self, method: &str, error: &(dyn StdError + 'static)) -> GrpcFailure {
        let message = format!("{method}: no connection to {server}: {error}", server = self.address);
        GrpcFailure::Transient(Error::new(Phase::Control, message))
    }

    fn certificate_failure(&self, method: &str, who: &str, error: std::io::Error) -> GrpcFailure {
        GrpcFailure::Certificate(Error::with_source(
            Phase::Control,
            format!("{method}: {}: {who}", self.address),
            error,
        ))
    }

    fn broken_connection_failure(&self, method: &str, error: &(dyn StdError + 'static)) -> GrpcFailure {
        broken_connection_failure(method, &self.address, error)
    }
}

/// Classifies the error of a broken connection. If the connection ends before the first response, the server may have
/// rejected the client's certificate: in TLS 1.3, the server verifies it after the client has completed its handshake.
fn broken_connection_failure(method: &str, address: &str, error: &(dyn StdError + 'static)) -> GrpcFailure {
    let message = format!(
        "{method}: {address} closed the connection without a response, possibly because it rejects this machine's certificate: {error}"
    );
    GrpcFailure::Certificate(Error::new(Phase::Control, message))
}

fn build_tls_config(ca: &str, cert: &str, key: &str) -> Result<ClientConfig> {
    let what = |name: &str| format!("{name} of pixie's configuration");
    let certificates = |name: &str, pem: &str| -> Result<Vec<CertificateDer<'static>>> {
        let all: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(pem.as_bytes()).collect();
        let all = all.context(Phase::Control, || what(name))?;
        let none = || Error::new(Phase::Control, what(name) + " contains no certificate");
        Some(all).filter(|all| !all.is_empty()).ok_or_else(none)
    };
    let mut roots = RootCertStore::empty();
    for root in certificates("ca_cert", ca)? {
        roots.add(root).context(Phase::Control, || what("ca_cert"))?;
    }
    let key = PrivateKeyDer::from_pem_slice(key.as_bytes()).context(Phase::Control, || what("key"))?;
    let chain = certificates("cert", cert)?;
    let config = ClientConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
        .with_safe_default_protocol_versions()
        .and_then(|config| config.with_root_certificates(roots).with_client_auth_cert(chain, key));
    let mut config = config.context(Phase::Control, || what("cert and key"))?;
    config.alpn_protocols = vec![b"h2".to_vec()];
    Ok(config)
}

impl GrpcCall {
    /// Reads the next event.
    ///
    /// # Errors
    /// Fails if the stream was cut or ended with an error.
    pub(crate) fn next_event(&mut self, patience: Duration) -> Result<StreamEvent, GrpcFailure> {
        match run_with_timeout(
            &self.runtime,
            patience,
            Self::receive_event(&mut self.response, &mut self.body, &mut self.rest),
        ) {
            None => Ok(StreamEvent::Silence),
            Some(Ok(ReceivedFrame::Message(message))) => Ok(StreamEvent::Message(message)),
            Some(Ok(ReceivedFrame::Status(headers))) => self.check_status(&headers).map(|()| StreamEvent::End),
            Some(Ok(ReceivedFrame::Http(status))) => {
                let passing = Error::new(
                    Phase::Control,
                    self.describe_server(&format!("the server answered {status}, which is not gRPC")),
                );
                Err(GrpcFailure::Transient(passing))
            }
            Some(Ok(ReceivedFrame::Garbled(why))) => {
                Err(GrpcFailure::Transient(Error::new(Phase::Control, self.describe_server(why))))
            }
            Some(Err(error)) if self.response.is_some() && error.reason().is_none_or(|why| why == Reason::NO_ERROR) => {
                Err(broken_connection_failure(&self.method, &self.address, &error))
            }
            Some(Err(error)) => {
                let message = self.describe_server("the server closed the stream");
                Err(GrpcFailure::Transient(Error::with_source(Phase::Control, message, error)))
            }
        }
    }

    async fn receive_event(
        response: &mut Option<ResponseFuture>,
        body: &mut Option<RecvStream>,
        rest: &mut Vec<u8>,
    ) -> Result<ReceivedFrame, h2::Error> {
        if let Some(waiting) = response {
            let (head, stream) = waiting.await?.into_parts();
            *response = None;
            if head.status != StatusCode::OK {
                return Ok(ReceivedFrame::Http(head.status));
            }
            // An error response without a body contains the gRPC status in its header.
            if head.headers.contains_key("grpc-status") {
                return Ok(ReceivedFrame::Status(head.headers));
            }
            *body = Some(stream);
        }
        let Some(body) = body else { return Ok(ReceivedFrame::Garbled("the server has already ended the stream")) };
        loop {
            match take_message(rest) {
                Ok(Some(message)) => return Ok(ReceivedFrame::Message(message)),
                Ok(None) => {}
                Err(why) => return Ok(ReceivedFrame::Garbled(why)),
            }
            match body.data().await {
                Some(bytes) => {
                    let bytes = bytes?;
                    body.flow_control().release_capacity(bytes.len())?;
                    rest.extend_from_slice(&bytes);
                }
                None if !rest.is_empty() => {
                    return Ok(ReceivedFrame::Garbled("the server closed the stream in the middle of a message"));
                }
                None => return Ok(ReceivedFrame::Status(body.trailers().await?.unwrap_or_default())),
            }
        }
    }

    fn check_status(&self, headers: &HeaderMap) -> Result<(), GrpcFailure> {
        let text = |name: &str| headers.get(name).map(|value| decode_error_message(value.as_bytes()));
        let message = text("grpc-message").unwrap_or_default();
        match text("grpc-status").as_deref() {
            Some("0") => Ok(()),
            // Only the codes 12 and 14 are distinguished. The server returns any other code for permanent and for
            // temporary failures.
            Some("12") => Err(GrpcFailure::Unknown(Error::new(
                Phase::Control,
                self.describe_server("the server does not have this method"),
            ))),
            Some("14") => Err(GrpcFailure::Transient(Error::new(
                Phase::Control,
                self.describe_server(&format!("the server is not available: {message}")),
            ))),
            Some(status) => {
                let said = self.describe_server(&format!("the server answered: {message} (gRPC status {status})"));
                Err(GrpcFailure::Transient(Error::new(Phase::Control, said)))
            }
            None => Err(GrpcFailure::Transient(Error::new(
                Phase::Control,
                self.describe_server("the server closed the stream without a status"),
            ))),
        }
    }

    fn describe_server(&self, what: &str) -> String {
        format!("{method}: {server}: {what}", method = self.method, server = self.address)
    }
}

enum ReceivedFrame {
    Message(Vec<u8>),
    Status(HeaderMap),
    /// HTTP status of a response that is not gRPC.
    Http(StatusCode),
    Garbled(&'static str),
}

/// Runs a future with a timeout. Returns `None` if the timeout has elapsed. A later call can then continue to read the
/// stream.
fn run_with_timeout<T>(runtime: &Runtime, patience: Duration, what: impl Future<Output = T>) -> Option<T> {
    runtime.block_on(async { timeout(patience, what).await.ok() })
}
