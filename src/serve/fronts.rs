//! Listening sockets and their routes. With TLS, requests that carry a token are only accepted over TLS; firmware, which mostly supports
//! only plain HTTP, still gets its scripts, kernel and ramdisk.

use super::api;
use super::api_error::ApiError;
use super::connections::Front;
use super::peers::Peer;
use super::tls::{self, Tls};
use super::watch::Watch;
use super::{App, Options, boot, calls, files, page, request_guard, templates};
use crate::error::{Context, Error, Phase, Result};
use axum::Router;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode, header};
use axum::middleware::from_fn_with_state;
use axum::routing::get;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use tokio::net::TcpListener;

/// TLS options of the command line.
#[derive(Debug, Clone)]
pub struct TlsOptions {
    /// Certificate chain, the server's own certificate first.
    pub certificates: PathBuf,
    pub key: PathBuf,
    pub listen: SocketAddr,
}

/// TLS configuration and its port.
pub struct Https {
    pub tls: Tls,
    pub port: u16,
}

/// Bound sockets that do not accept connections yet.
pub struct Listeners {
    machines: TcpListener,
    tls: Option<(TcpListener, Tls)>,
    operators: Option<TcpListener>,
}

pub struct Fronts {
    pub machines: Front,
    /// With TLS: all requests that carry a token.
    pub tls: Option<Front>,
    /// Only for the operator.
    pub operators: Option<Front>,
}

impl Fronts {
    pub fn all(&self) -> Vec<&Front> {
        [Some(&self.machines), self.tls.as_ref(), self.operators.as_ref()].into_iter().flatten().collect()
    }
}

impl Listeners {
    pub async fn bind(options: &Options, watch: &Watch) -> Result<Listeners> {
        let tls = tls(options)?.map(|(tls, at, problem)| {
            problem.into_iter().for_each(|problem| watch.problem(problem));
            (tls, at)
        });
        let (machines, address) = listen(options.listen).await?;
        watch.listening(format!("http://{address}"));
        let tls = match tls {
            Some((tls, at)) => {
                let (listener, address) = listen(at).await?;
                watch.note(format!(
                    "API and images are served at https://{address} only; http://{} only serves boot files",
                    machines.local_addr().map(|address| address.to_string()).unwrap_or_default()
                ));
                Some((listener, tls))
            }
            None => None,
        };
        let operators = match options.operator_listen {
            Some(at) => {
                let (listener, address) = listen(at).await?;
                let scheme = if tls.is_some() { "https" } else { "http" };
                watch.note(format!("the operator's API is only served at {scheme}://{address}"));
                Some(listener)
            }
            None => None,
        };
        Ok(Listeners { machines, tls, operators })
    }

    pub fn https(&self) -> Result<Option<Https>> {
        let Some((listener, tls)) = &self.tls else { return Ok(None) };
        let address = listener.local_addr().context(Phase::Serve, || "get the address of --tls-listen")?;
        Ok(Some(Https { tls: tls.clone(), port: address.port() }))
    }

    pub fn certificate(&self) -> Option<Tls> {
        self.tls.as_ref().map(|(_, tls)| tls.clone())
    }

    /// Returns the port for firmware.
    pub fn port(&self) -> Result<u16> {
        let address = self.machines.local_addr().context(Phase::Serve, || "get the address of --listen")?;
        Ok(address.port())
    }

    pub fn open(self, app: &Arc<App>) -> Fronts {
        let Listeners { machines, tls, operators } = self;
        let apart = operators.is_some();
        let calls = || match apart {
            true => for_machines(),
            false => for_machines().merge(for_operators()),
        };
        let all = || finished(for_firmware().merge(calls()), app);
        let of_machines = match &tls {
            Some(_) => guarded(for_firmware().fallback(over_tls_only), app),
            None => all(),
        };
        let certificate = tls.as_ref().map(|(_, tls)| tls.clone());
        Fronts {
            machines: Front { listener: machines, router: of_machines, tls: None },
            tls: tls.map(|(listener, tls)| Front { listener, router: all(), tls: Some(tls) }),
            operators: operators.map(|listener| Front {
                listener,
                router: finished(for_operators(), app),
                tls: certificate,
            }),
        }
    }
}

/// Loads the certificate. Returns it with its address, and with a warning about its files, if any.
///
/// # Errors
/// The files are invalid, or contradict other options.
pub fn tls(options: &Options) -> Result<Option<(Tls, SocketAddr, Option<String>)>> {
    let Some(asked) = &options.tls else { return Ok(None) };
    let tls = Tls::load(&asked.certificates, &asked.key)?;
    if let Some(url) = &options.url {
        let host = url.strip_prefix("https://").map(|rest| rest.split('/').next().unwrap_or_default());
        let refuse = |why: &str| Err(Error::new(Phase::Serve, format!("--url {url}: {why}")));
        match host {
            None => return refuse("must begin with https://, as machines use TLS with --tls-cert"),
            Some(host) if !tls.is_for(host) => {
                let names = format!("{} does not cover this host", asked.certificates.display());
                return refuse(&names);
            }
            Some(_) => {}
        }
    }
    let readable = tls::readable_key(&asked.key);
    let problem =
        readable.map(|key| format!("the key is readable by all users of this host: run chmod o-r {}", key.display()));
    Ok(Some((tls, asked.listen, problem)))
}

async fn listen(at: SocketAddr) -> Result<(TcpListener, SocketAddr)> {
    let what = || format!("listen on {at}");
    let listener = TcpListener::bind(at).await.context(Phase::Serve, what)?;
    let address = listener.local_addr().context(Phase::Serve, what)?;
    Ok((listener, address))
}

fn for_firmware() -> Router<Arc<App>> {
    Router::new()
        .route("/start.ipxe", get(boot::start_script))
        .route("/boot.ipxe", get(boot::script))
        .route("/boot/{name}", get(files::boot))
        .route("/ipxe/{name}", get(files::ipxe))
}

fn for_machines() -> Router<Arc<App>> {
    calls::router(calls::of_machines()).route("/images/{*path}", get(files::image))
}

fn for_operators() -> Router<Arc<App>> {
    calls::router(calls::of_operators())
        .merge(page::routes())
        .route("/v1", get(templates::version_one))
        .route("/v1/", get(templates::version_one))
}

fn finished(router: Router<Arc<App>>, app: &Arc<App>) -> Router {
    let router = router.fallback(api::no_such_call).method_not_allowed_fallback(api::wrong_method);
    guarded(router, app)
}

/// Adds the check of request heads, which also applies to unknown paths.
fn guarded(router: Router<Arc<App>>, app: &Arc<App>) -> Router {
    router.layer(from_fn_with_state(app.clone(), request_guard::check)).with_state(app.clone())
}

/// Refuses the request without reading it. Its content was sent unencrypted and may be compromised.
async fn over_tls_only(State(app): State<Arc<App>>, peer: Peer, headers: HeaderMap) -> ApiError {
    let port = app.https.as_ref().map(|https| https.port).unwrap_or_default();
    if headers.contains_key(header::AUTHORIZATION) {
        app.alarm(format!(
            "{peer} sent a token unencrypted over plain http: its URL must begin with https://, with port {port}"
        ));
    }
    ApiError::new(StatusCode::FORBIDDEN, format!("this server only accepts this request over https, on port {port}"))
}
