//! HTTP connections: limits in total and per address, timeouts, and isolation of panics. A panic ends only the
//! request that has caused it.

use crate::api_error::{ApiError, set_retry_after};
use crate::body_drain::DrainedBody;
use crate::client_address::ConnectionInfo;
use crate::client_quotas::{ClientQuotas, QuotaShare};
use crate::rate_limited_log::RateLimitedLog;
use crate::request_context::{self, RequestContext};
use crate::server_health::ServerHealth;
use crate::server_log::{AnsweredRequest, ServerLog};
use crate::tls::{self, ServerTls};
use crate::write_timeout::{STALLED_PEER_TIMEOUT, WriteTimeoutStream};
use axum::Router;
use axum::body::Body;
use axum::http::{HeaderValue, Method, StatusCode, header};
use axum::response::{IntoResponse, Response};
use common::error_code::ErrorCode;
use futures_util::FutureExt;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::{Service, service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::server::graceful::{GracefulShutdown, Watcher};
use hyper_util::service::TowerToHyperService;
use std::convert::Infallible;
use std::future::poll_fn;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::Poll;
use std::time::{Duration, Instant};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

// The server must be built with unwinding panics. The agent is built with another profile, which aborts on panic,
// because the agent cannot continue after a panic.
#[cfg(panic = "abort")]
compile_error!(
    "the server was built with a Cargo profile that aborts on panic, so a single request could end the server: build the server with the panic strategy unwind"
);

/// Timeout for the head of a request, and for an idle connection.
const HEAD_TIMEOUT: Duration = Duration::from_secs(30);

/// Default time after which a request that waits for a permit is answered with status 429. The time is shorter than
/// the request timeout of agents.
const PERMIT_TIMEOUT: Duration = Duration::from_secs(20);
/// If fewer than 1/`FREE_CONNECTIONS_DIVISOR` of all connections are free, each connection is closed after its
/// current response.
const FREE_CONNECTIONS_DIVISOR: usize = 10;

/// Listening socket, with the router that handles its requests.
pub struct RoutedListener {
    pub listener: TcpListener,
    pub router: Router,
    pub tls: Option<ServerTls>,
}

/// Permits that are released when the connection ends.
type ConnectionPermits = (Option<OwnedSemaphorePermit>, QuotaShare);

/// Accepts connections within the limits.
pub struct ConnectionLimiter {
    permits: Arc<Semaphore>,
    /// Number of free permits below which connections are closed after their current response.
    scarce_permits: usize,
    /// Time after which a request that waits for a permit is refused.
    permit_timeout: Duration,
    client_quotas: ClientQuotas,
    watch: ServerLog,
    rate_limited_log: RateLimitedLog,
    health: ServerHealth,
    is_full: AtomicBool,
    has_refused: AtomicBool,
}

impl ConnectionLimiter {
    pub fn new(
        permits: usize,
        client_quotas: ClientQuotas,
        watch: ServerLog,
        rate_limited_log: RateLimitedLog,
        health: ServerHealth,
    ) -> ConnectionLimiter {
        let (is_full, has_refused) = (AtomicBool::new(false), AtomicBool::new(false));
        ConnectionLimiter {
            permits: Arc::new(Semaphore::new(permits)),
            scarce_permits: permits / FREE_CONNECTIONS_DIVISOR,
            permit_timeout: PERMIT_TIMEOUT,
            client_quotas,
            watch,
            rate_limited_log,
            health,
            is_full,
            has_refused,
        }
    }

    /// Accepts the next connection once a permit is free. Until then, connections wait in the kernel.
    pub async fn accept_next<'a>(
        &self,
        fronts: &[&'a RoutedListener],
    ) -> (&'a RoutedListener, Option<OwnedSemaphorePermit>, io::Result<(TcpStream, SocketAddr)>) {
        let place = self.permits.clone().try_acquire_owned().ok();
        if place.is_none() && !self.is_full.swap(true, Ordering::Relaxed) {
            self.watch
                .log_problem("the server's limit on open connections is reached: further connections wait".to_owned());
        }
        self.is_full.store(place.is_none(), Ordering::Relaxed);
        let place = match place {
            Some(place) => Some(place),
            None => self.permits.clone().acquire_owned().await.ok(),
        };
        // Polls a random listener first, so that a flood on one listener does not starve the others.
        let first = fastrand::usize(..fronts.len());
        let (front, accepted) = poll_fn(|context| {
            for front in fronts.iter().cycle().skip(first).take(fronts.len()) {
                if let Poll::Ready(accepted) = front.listener.poll_accept(context) {
                    return Poll::Ready((*front, accepted));
                }
            }
            Poll::Pending
        })
        .await;
        (front, place, accepted)
    }

    /// Serves the connection, unless the client's address has reached its connection limit.
    pub fn admit(
        &self,
        stream: TcpStream,
        address: SocketAddr,
        front: &RoutedListener,
        running: &GracefulShutdown,
        place: Option<OwnedSemaphorePermit>,
    ) {
        let (address, port) = (address.ip().to_canonical(), address.port());
        match self.client_quotas.reserve_connection(address) {
            Some(share) => {
                let client = ConnectionClient {
                    address,
                    port,
                    router: front.router.clone(),
                    permits: self.permits.clone(),
                    scarce_permits: self.scarce_permits,
                    permit_timeout: self.permit_timeout,
                    client_quotas: self.client_quotas.clone(),
                    watch: self.watch.clone(),
                    rate_limited_log: self.rate_limited_log.clone(),
                    health: self.health.clone(),
                };
                tokio::spawn(handle_connection(stream, client, running.watcher(), front.tls.clone(), (place, share)));
            }
            None if !self.has_refused.swap(true, Ordering::Relaxed) => self.watch.log_problem(format!(
                "client {address} has reached the limit of connections per address: further connections from {address} are closed (if {address} is a proxy, specify it with --proxy)"
            )),
            None => {}
        }
    }
}

/// Client of a connection, and the router that handles the client's requests.
struct ConnectionClient {
    address: IpAddr,
    port: u16,
    router: Router,
    permits: Arc<Semaphore>,
    scarce_permits: usize,
    permit_timeout: Duration,
    client_quotas: ClientQuotas,
    watch: ServerLog,
    rate_limited_log: RateLimitedLog,
    health: ServerHealth,
}

/// Performs the TLS handshake if the listener uses TLS, and serves the connection. A slow handshake occupies only the
/// permits of its own connection.
async fn handle_connection(
    stream: TcpStream,
    client: ConnectionClient,
    running: Watcher,
    tls: Option<ServerTls>,
    permits: ConnectionPermits,
) {
    // TCP_NODELAY sends small responses immediately. An error is ignored, because it delays responses only by a few
    // milliseconds.
    let _ = stream.set_nodelay(true);
    let stream = WriteTimeoutStream::new(stream, STALLED_PEER_TIMEOUT);
    let (client_address, rate_limited_log) = (client.address, client.rate_limited_log.clone());
    match tls {
        None => serve_connection(stream, client, running, false).await,
        Some(tls) => match tls.accept_tls(stream).await {
            Ok(stream) => serve_connection(stream, client, running, true).await,
            Err(error) => {
                if let Some(trouble) = tls::describe_tls_error(&error) {
                    let message = ErrorCode::Tls.annotate(format!("{client_address} {trouble}"));
                    rate_limited_log.log_problem_of(client_address, message);
                }
            }
        },
    }
    drop(permits);
}

async fn serve_connection(
    stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
    client: ConnectionClient,
    running: Watcher,
    over_tls: bool,
) {
    let client = Arc::new(client);
    let service = service_fn(move |request| {
        let client = client.clone();
        async move { Ok::<Response, Infallible>(client.respond(request, over_tls).await) }
    });
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEAD_TIMEOUT)
        .serve_connection(TokioIo::new(stream), service);
    // An error is normal: the client has disconnected, does not read the response, or does not send HTTP.
    drop(running.watch(connection).await);
}

impl ConnectionClient {
    /// Waits for a request permit, and returns the response to the request.
    async fn respond(&self, mut request: hyper::Request<Incoming>, over_tls: bool) -> Response {
        let (id, began) = (request_context::request_id(request.headers()), Instant::now());
        let connected = ConnectionInfo { address: self.address, port: self.port, over_tls };
        let origin = self.client_quotas.find_origin(connected, request.headers());
        request.extensions_mut().insert(connected);
        request.extensions_mut().insert(origin);
        let permit = self.client_quotas.request_permits.acquire_request_permit(origin.address);
        let mut response = match tokio::time::timeout(self.permit_timeout, permit).await {
            Ok(permit) => {
                let context = RequestContext::new(id.clone(), origin.address, permit);
                request_context::run_in_context(context, self.handle_request(request, began)).await
            }
            Err(_) => {
                drop(DrainedBody::new(request.into_body()));
                let message =
                    format!("client {address} has too many requests in flight; retry later", address = origin.address);
                ApiError::new(StatusCode::TOO_MANY_REQUESTS, message).into_response()
            }
        };
        request_context::add_id_header(response.headers_mut(), &id);
        set_retry_after(&mut response);
        if self.permits.available_permits() < self.scarce_permits {
            // If few permits are left, the connection is closed. An idle connection would occupy its permit for half a
            // minute.
            response.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("close"));
        }
        response
    }

    /// Passes the request to the router, logs request and response, and returns the response.
    async fn handle_request(&self, request: hyper::Request<Incoming>, began: Instant) -> Response {
        let (method, path) = (request.method().clone(), request.uri().path().to_owned());
        let request = request.map(|body| Body::new(DrainedBody::new(body)));
        let router = TowerToHyperService::new(self.router.clone());
        // The server can continue after a panic: only the state of this request may be inconsistent. Shared state is in
        // the database, or behind locks that ignore poisoning.
        let answer = AssertUnwindSafe(async move { router.call(request).await }).catch_unwind();
        let response = match answer.await {
            Ok(Ok(response)) => response,
            Err(_) => respond_to_panic(&self.watch, &method, &path, self.address),
        };
        let failed = self.health.record_response(&method, &path, self.address, &response);
        failed.into_iter().for_each(|line| self.rate_limited_log.log_problem(line));
        self.watch.log_request(AnsweredRequest {
            from: self.address,
            method,
            path,
            status: response.status(),
            took: began.elapsed(),
        });
        response
    }
}

/// Logs a request that has panicked, and returns the response to the client.
fn respond_to_panic(watch: &ServerLog, method: &Method, path: &str, address: IpAddr) -> Response {
    watch.log_problem(format!(
        "{method} {path} from {address} panicked: responded with status 500; other requests are not affected"
    ));
    ApiError::new(StatusCode::INTERNAL_SERVER_ERROR, "internal error: this request panicked").into_response()
}

#[cfg(test)]
mod tests;
