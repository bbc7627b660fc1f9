//! Listening sockets and their routes. If TLS is configured, requests with a token are accepted only over TLS. Boot
//! scripts, kernel and ramdisk remain available over plain HTTP, because most firmware does not support TLS.

use super::{ServerConfig, authorization_and_audit, host_and_origin_check};
use api::metal_api::machines;
use api::{AppState, HttpsPort, agent_api, deploy_templates, downloads, netboot, routes};
use axum::Router;
use axum::extract::State;
use axum::handler::Handler;
use axum::http::{HeaderMap, StatusCode, header};
use axum::middleware::from_fn_with_state;
use axum::routing::get;
use common::error::{Context, Error, Phase, Result};
use common::error_code::ErrorCode;
use http_server::api_error::ApiError;
use http_server::client_address::ClientAddress;
use http_server::connections::RoutedListener;
use http_server::server_log::ServerLog;
use http_server::tls::{self, ServerTls};
use std::io::ErrorKind;
use std::net::SocketAddr;
use std::sync::Arc;
use tokio::net::TcpListener;

/// Bound sockets. No connection has been accepted on them yet.
pub(crate) struct BoundListeners {
    machines: TcpListener,
    tls: Option<(TcpListener, ServerTls)>,
    operators: Option<TcpListener>,
}

pub(crate) struct ServerFronts {
    pub machines: RoutedListener,
    /// Listener for all requests that carry a token; `None` without TLS.
    pub tls: Option<RoutedListener>,
    /// Listener for the operator's API; `None` if one of the other listeners serves it.
    pub operators: Option<RoutedListener>,
}

impl ServerFronts {
    pub(crate) fn all(&self) -> Vec<&RoutedListener> {
        [Some(&self.machines), self.tls.as_ref(), self.operators.as_ref()].into_iter().flatten().collect()
    }
}

impl BoundListeners {
    pub(crate) async fn bind_sockets(options: &ServerConfig, watch: &ServerLog) -> Result<BoundListeners> {
        let tls = load_tls(options)?.map(|(tls, at, problem)| {
            let validity =
                tls.find_validity_problems().into_iter().map(|problem| ErrorCode::Tls.annotate(problem.message));
            problem.into_iter().chain(validity).for_each(|problem| watch.log_problem(problem));
            (tls, at)
        });
        let (machines, address) = bind_socket(options.listen, "--listen").await?;
        watch.log_listening(format!("http://{address}"));
        let tls = match tls {
            Some((tls, at)) => {
                let (listener, address) = bind_socket(at, "--tls-listen").await?;
                watch.log_note(format!(
                    "the API and images are served only at https://{address}; http://{http_address} serves only boot files",
                    http_address = machines.local_addr().map(|address| address.to_string()).unwrap_or_default()
                ));
                Some((listener, tls))
            }
            None => None,
        };
        let operators = match options.operator_listen {
            Some(at) => {
                let (listener, address) = bind_socket(at, "--operator-listen").await?;
                let scheme = if tls.is_some() { "https" } else { "http" };
                watch.log_note(format!("the operator's API is only served at {scheme}://{address}"));
                Some(listener)
            }
            None => None,
        };
        Ok(BoundListeners { machines, tls, operators })
    }

    pub(crate) fn https(&self) -> Result<Option<HttpsPort>> {
        let Some((listener, tls)) = &self.tls else { return Ok(None) };
        let address = listener.local_addr().context(Phase::Serve, || "get the address of --tls-listen")?;
        Ok(Some(HttpsPort { tls: tls.clone(), port: address.port() }))
    }

    pub(crate) fn certificate(&self) -> Option<ServerTls> {
        self.tls.as_ref().map(|(_, tls)| tls.clone())
    }

    /// Returns the port on which firmware loads its files.
    pub(crate) fn port(&self) -> Result<u16> {
        let address = self.machines.local_addr().context(Phase::Serve, || "get the address of --listen")?;
        Ok(address.port())
    }

    pub(crate) fn build_fronts(self, app: &Arc<AppState>) -> ServerFronts {
        let BoundListeners { machines, tls, operators } = self;
        let apart = operators.is_some();
        let calls = || match apart {
            true => machine_router().merge(one_machine(agent_api::get_machine)),
            false => machine_router().merge(operator_router()).merge(one_machine(machines::get_machine_for_caller)),
        };
        let all = || finish_router(firmware_router().merge(calls()), app);
        let of_machines = match &tls {
            Some(_) => guard_router(firmware_router().fallback(refuse_plain_http), app),
            None => all(),
        };
        let certificate = tls.as_ref().map(|(_, tls)| tls.clone());
        ServerFronts {
            machines: RoutedListener { listener: machines, router: of_machines, tls: None },
            tls: tls.map(|(listener, tls)| RoutedListener { listener, router: all(), tls: Some(tls) }),
            operators: operators.map(|listener| RoutedListener {
                listener,
                router: finish_router(operator_router().merge(one_machine(machines::show_machine)), app),
                tls: certificate,
            }),
        }
    }
}

/// Loads the certificate. Returns the TLS configuration, the address to listen on, and a warning if all users can read
/// the private key. Returns `None` if TLS is not configured.
///
/// # Errors
/// Returns an error if the files are invalid, or contradict other options.
pub(crate) fn load_tls(options: &ServerConfig) -> Result<Option<(ServerTls, SocketAddr, Option<String>)>> {
    let Some(tls_options) = &options.tls else { return Ok(None) };
    let tls = ServerTls::load_certificate(&tls_options.certificates, &tls_options.key)?;
    if let Some(url) = &options.url {
        let host = url.strip_prefix("https://").map(|rest| rest.split('/').next().unwrap_or_default());
        let refuse = |why: &str| Err(Error::new(Phase::Serve, format!("--url {url}: {why}")));
        match host {
            None => {
                return refuse(
                    "must begin with https://, because machines connect over TLS if --tls-cert is specified",
                );
            }
            Some(host) if !tls.covers_host(host) => {
                let names = format!(
                    "the certificate in {file} does not cover this host",
                    file = tls_options.certificates.display()
                );
                return refuse(&names);
            }
            Some(_) => {}
        }
    }
    let readable = tls::world_readable_key(&tls_options.key);
    let problem = readable.map(|key| {
        format!("the TLS key is readable by all users of this host: run chmod o-r {file}", file = key.display())
    });
    Ok(Some((tls, tls_options.listen, problem)))
}

/// Binds a socket to an address. `option` is the name of the option with this address, for error messages.
async fn bind_socket(at: SocketAddr, option: &str) -> Result<(TcpListener, SocketAddr)> {
    let what = || format!("listen on {at}");
    let listener = TcpListener::bind(at).await.map_err(|error| match error.kind() {
        ErrorKind::AddrInUse => Error::new(
            Phase::Serve,
            format!(
                "cannot listen on {at}: another program uses port {0} (`ss -ltnp` lists it); stop that program, or select another port \
                 with {option} ADDRESS:PORT",
                at.port()
            ),
        ).with_code(ErrorCode::AddressInUse),
        ErrorKind::AddrNotAvailable => Error::new(
            Phase::Serve,
            format!(
                "cannot listen on {at}: no network interface of this host has the address {0} (`ip address` lists the addresses); select \
                 another address with {option}, or all addresses with {option} :{1}",
                at.ip(),
                at.port()
            ),
        ),
        _ => Error::with_source(Phase::Serve, format!("cannot listen on {at} ({option})"), error),
    })?;
    let address = listener.local_addr().context(Phase::Serve, what)?;
    Ok((listener, address))
}

fn firmware_router() -> Router<Arc<AppState>> {
    Router::new()
        .route("/start.ipxe", get(netboot::start_script))
        .route("/boot.ipxe", get(netboot::boot_script))
        .route("/boot/{name}", get(downloads::serve_boot_file))
        .route("/ipxe/{name}", get(downloads::serve_ipxe))
}

fn machine_router() -> Router<Arc<AppState>> {
    routes::build_router(routes::machine_routes()).route("/images/{*path}", get(downloads::serve_image))
}

fn one_machine<H: Handler<T, Arc<AppState>>, T: 'static>(handler: H) -> Router<Arc<AppState>> {
    routes::build_router(vec![routes::one_machine_route(handler)])
}

fn operator_router() -> Router<Arc<AppState>> {
    routes::build_router(routes::operator_routes())
        .merge(web::web_routes())
        .route("/v1", get(deploy_templates::show_version_one))
        .route("/v1/", get(deploy_templates::show_version_one))
}

fn finish_router(router: Router<Arc<AppState>>, app: &Arc<AppState>) -> Router {
    let router =
        router.fallback(agent_api::no_such_endpoint).method_not_allowed_fallback(agent_api::method_not_allowed);
    guard_router(router, app)
}

/// Adds the authorization and the check of request heads as layers, so that they also apply to unknown paths.
fn guard_router(router: Router<Arc<AppState>>, app: &Arc<AppState>) -> Router {
    router
        .layer(from_fn_with_state(app.clone(), authorization_and_audit::authorize))
        .layer(from_fn_with_state(app.clone(), host_and_origin_check::guard_request))
        .with_state(app.clone())
}

/// Refuses a request that must use TLS, without reading its body. If the request contains a token, the token was sent
/// unencrypted and may be compromised.
async fn refuse_plain_http(State(app): State<Arc<AppState>>, peer: ClientAddress, headers: HeaderMap) -> ApiError {
    let port = app.https.as_ref().map(|https| https.port).unwrap_or_default();
    if headers.contains_key(header::AUTHORIZATION) {
        app.log_rate_limited(ErrorCode::Tls.annotate(format!(
            "{peer} sent a token unencrypted over plain http: use a URL that begins with https:// and contains port {port}"
        )));
    }
    ApiError::new(StatusCode::FORBIDDEN, format!("this server accepts this request only over https, on port {port}"))
        .with_error_code(ErrorCode::Tls)
}
