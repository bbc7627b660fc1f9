//! HTTPS server for commands of a conductor, with limits on connections, bytes and time.

mod connection_slots;

use super::certificate::TlsIdentity;
use super::routes::{AcceptedRequest, AgentResponse, RequestHandler};
use common::error::{Context, Phase, Result};
use common::output;
use connection_slots::{ConnectionSlot, ConnectionSlots};
use http_body_util::{BodyExt, Full, Limited};
use hyper::body::{Bytes, Incoming};
use hyper::header::{CONNECTION, CONTENT_TYPE, HeaderValue, LOCATION};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use std::convert::Infallible;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener};
use std::sync::Arc;
use std::thread;
use std::time::Duration;
use tokio::net::TcpStream;
use tokio_rustls::TlsAcceptor;

/// Limits of the HTTPS server.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ServerLimits {
    /// Maximum number of concurrent connections. If the maximum is reached, a new connection replaces a connection that
    /// has not presented the conductor's token.
    pub connections: usize,
    /// Maximum number of connections per address. The limit prevents one client from occupying all connections.
    pub of_an_address: usize,
    pub head_bytes: usize,
    /// Maximum size of a request body, in bytes. The largest bodies contain nodes, layouts and config drives.
    pub body_bytes: usize,
    pub handshake: Duration,
    /// Timeout for the head of a request, including the wait for the next request on a connection.
    pub head: Duration,
    /// Timeout of the body of a request.
    pub body: Duration,
    /// Timeout of a connection, including the execution of commands.
    pub connection: Duration,
}

/// Default limits.
pub(crate) const BOUNDS: ServerLimits = ServerLimits {
    connections: 16,
    of_an_address: 8,
    head_bytes: 64 << 10,
    body_bytes: 16 << 20,
    handshake: Duration::from_secs(10),
    head: Duration::from_secs(15),
    body: Duration::from_secs(60),
    connection: Duration::from_secs(600),
};

/// Listens on a port of all addresses. Port 0 selects a free port.
///
/// # Errors
/// Fails if the port is in use.
pub(crate) fn listen_on_port(port: u16) -> Result<TcpListener> {
    let all = TcpListener::bind(SocketAddr::from((Ipv6Addr::UNSPECIFIED, port)));
    // Binding to an IPv6 address fails if the kernel lacks IPv6. The server then uses only IPv4.
    let listener = all.or_else(|_| TcpListener::bind(SocketAddr::from((Ipv4Addr::UNSPECIFIED, port))));
    listener.context(Phase::Control, || format!("listen on port {port} for the conductor"))
}

/// Serves on a separate thread until the process exits.
///
/// # Errors
/// Fails if the kernel lacks resources.
pub(crate) fn start_server(
    listener: TcpListener,
    identity: &TlsIdentity,
    routes: Arc<RequestHandler>,
    bounds: ServerLimits,
) -> Result<()> {
    let why = || "serve the conductor";
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .max_blocking_threads(bounds.connections)
        .build()
        .context(Phase::Control, why)?;
    listener.set_nonblocking(true).context(Phase::Control, why)?;
    let tls = TlsAcceptor::from(identity.config.clone());
    let listener = {
        let _entered = runtime.enter();
        tokio::net::TcpListener::from_std(listener).context(Phase::Control, why)?
    };
    thread::spawn(move || runtime.block_on(accept_connections(listener, tls, routes, bounds)));
    Ok(())
}

async fn accept_connections(
    listener: tokio::net::TcpListener,
    tls: TlsAcceptor,
    routes: Arc<RequestHandler>,
    bounds: ServerLimits,
) {
    let places = ConnectionSlots::default();
    loop {
        let Ok((stream, address)) = listener.accept().await else {
            // Accepting a connection fails, for example, if no file descriptor is free. File descriptors become free
            // when open connections end.
            tokio::time::sleep(Duration::from_millis(100)).await;
            continue;
        };
        let entered = places.wait_for_slot(address.ip().to_canonical(), bounds.connections, bounds.of_an_address).await;
        places.report_closed().iter().for_each(|line| output::print_line(line));
        let Some(place) = entered.map(Arc::new) else { continue };
        let (tls, routes) = (tls.clone(), routes.clone());
        tokio::spawn(async move {
            let served =
                tokio::time::timeout(bounds.connection, serve_stream(stream, tls, routes, place.clone(), bounds));
            tokio::select! {
                // The connection ends when all of its requests are served, or at its timeout.
                _ = served => {}
                () = place.wait_until_closed() => {}
            }
        });
    }
}

async fn serve_stream(
    stream: TcpStream,
    tls: TlsAcceptor,
    routes: Arc<RequestHandler>,
    place: Arc<ConnectionSlot>,
    bounds: ServerLimits,
) {
    // TCP_NODELAY is set because responses are small and must be sent immediately. If it cannot be set, responses are
    // only delayed by a few milliseconds, so the error is ignored.
    let _ = stream.set_nodelay(true);
    let Ok(Ok(stream)) = tokio::time::timeout(bounds.handshake, tls.accept(stream)).await else { return };
    let service = service_fn(move |request| {
        let (routes, place) = (routes.clone(), place.clone());
        async move { Ok::<_, Infallible>(http_response(handle_request(request, routes, &place, bounds).await)) }
    });
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(bounds.head)
        .max_buf_size(bounds.head_bytes)
        .serve_connection(TokioIo::new(stream), service);
    // Errors are ignored: the client has disconnected, does not read, or does not use HTTP.
    let _ = connection.await;
}

/// Handles a request. Also returns whether the connection may be reused.
async fn handle_request(
    request: Request<Incoming>,
    routes: Arc<RequestHandler>,
    place: &ConnectionSlot,
    bounds: ServerLimits,
) -> (AgentResponse, bool) {
    let (method, uri) = (request.method().as_str(), request.uri());
    if routes.has_token(uri.query().unwrap_or_default()) {
        place.record_token();
    }
    let wait = match routes.check_head(method, uri.path(), uri.query().unwrap_or_default()) {
        // The connection cannot be reused, because the body of the request was not read.
        Err(refused) => return (refused, false),
        Ok(AcceptedRequest::Now(page)) => return (routes.read_resource(&page), true),
        Ok(AcceptedRequest::Order { wait }) => wait,
    };
    let body = Limited::new(request.into_body(), bounds.body_bytes).collect();
    let body = match tokio::time::timeout(bounds.body, body).await {
        Ok(Ok(body)) => body.to_bytes(),
        Ok(Err(error)) => {
            return (AgentResponse::new_fault(413, format!("413 Request Entity Too Large: {error}")), false);
        }
        Err(_) => {
            return (AgentResponse::new_fault(408, "408 Request Timeout: the body was not received in time."), false);
        }
    };
    let answered = tokio::task::spawn_blocking(move || routes.accept_command(wait, &body)).await;
    (
        answered.unwrap_or_else(|_| {
            AgentResponse::new_fault(500, "500 Internal Server Error: the request handler panicked.")
        }),
        true,
    )
}

fn http_response((answer, stays): (AgentResponse, bool)) -> Response<Full<Bytes>> {
    let body = Full::new(Bytes::from(answer.body.to_string()));
    let mut response = Response::new(body);
    *response.status_mut() = StatusCode::from_u16(answer.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    if let Some(location) = answer.location {
        headers.insert(LOCATION, HeaderValue::from_static(location));
    }
    if !stays {
        headers.insert(CONNECTION, HeaderValue::from_static("close"));
    }
    response
}

#[cfg(test)]
mod tests;
