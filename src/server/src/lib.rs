//! `drophammer serve`: the control plane for a bench or a rack.
//!
//! Requests are authenticated and limited before they are parsed; what is acknowledged is stored first. Start with `routes`.
//!
//! * Operator's directory: `site_folder`, `site` and `os_definitions` read it, `site_reload` watches it, `watched_file` reads a single
//!   file, `site_files` parses, `resolve` follows the references of an allocation, `requested_steps` determines its steps,
//!   `deploy_templates` the deploy templates, `sizes` the sizes, `image_states` hidden and blacklisted images, `approvals` approved plans,
//!   `check_site` checks everything.
//! * State: the crate `store`.
//! * Machines: `netboot` and `ipxe` boot them, `auth` and `privileged_port` authenticate them,
//!   `machine_identification` and `arp` identify them, `api` is their API, `console_log` their console logs, `downloads` their downloads,
//!   `migrations` migrates them, `pxe` runs DHCP and TFTP.
//! * Operators: `operator` is their API, `metal_api` that of metal-api, `web` the web page, `routes` the table of all endpoints and
//!   `openapi` its description, `create_machine` creates machine files, `power` and `free_machine` switch machines, `plan_input` and
//!   `boot_digest` serve commands, `status_log` prints the log.
//! * Connections: `listeners` binds sockets, `tls` encrypts, `connections` accepts, `host_names` and `request_guard` check requests,
//!   `request_id` gives them ids, `base_url` determines URLs, `quotas`, `request_turns`, `fd_limit`, `rate_limited_log` and
//!   `anonymous_events` limit clients, `metrics` counts, `systemd_notify` reports to systemd.

mod anonymous_events;
mod api;
mod api_error;
mod approvals;
mod arp;
mod auth;
mod base_url;
pub mod bmc;
pub mod boot_digest;
mod check_site;
mod connections;
mod console_log;
pub mod create_machine;
mod deploy_templates;
mod downloads;
mod fd_limit;
mod free_machine;
mod host_environment;
mod host_names;
mod image_states;
pub mod ipxe;
mod listeners;
mod machine_identification;
pub mod metal_api;
mod metrics;
pub mod migrations;
mod netboot;
pub mod openapi;
pub mod operator;
mod options;
mod os_definitions;
pub mod plan_input;
pub mod planner;
pub mod power;
mod privileged_port;
mod pxe;
mod quotas;
pub mod rack_plan;
mod rate_limited_log;
mod registry_credentials;
mod request_guard;
mod request_id;
mod request_turns;
mod requested_steps;
mod resolve;
mod routes;
mod site;
pub mod site_files;
mod site_folder;
mod site_reload;
mod sizes;
mod status_log;
mod systemd_notify;
mod tls;
mod watched_file;
mod web;
mod write_timeout;

pub use options::{ServeArgs, ServeCommand, ServeOptions, ServerConfig};

use anonymous_events::AnonymousEvents;
use arp::MacLookup;
use common::error::{Context, Error, Phase, Result};
use common::exit_code::{CommandOutcome, report_refusal};
use connections::ConnectionLimiter;
use deploy_templates::TemplateWriter;
use host_environment::HostEnvironment;
use host_names::HostNames;
use hyper_util::server::graceful::GracefulShutdown;
use listeners::{BoundListeners, HttpsPort, ServerFronts};
use os_definitions::{OsDefinitions, VerifyCache};
use planner::PlannerPool;
use privileged_port::SourcePorts;
use pxe::{PxeOptions, PxeServer};
use quotas::ClientQuotas;
use rate_limited_log::RateLimitedLog;
use site::{SiteLoader, SiteSnapshot};
use site_reload::{ReloadEvent, SiteReloader};
use status_log::StatusLog;
use std::path::{Path, PathBuf};
use std::sync::{Arc, mpsc};
use std::time::Duration;
use store::boot_token::BootTokenKey;
use store::image_digests::ImageDigests;
use store::{ServerState, StoreHooks};
use systemd_notify::{HeartbeatSource, ServiceManager};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::watch as published;

/// Database in the server's directory.
/// Acceptable for a bench. For a rack, the systemd unit runs the server as a separate user.
const AS_ROOT: &str = "this server runs as root, which only --pxe requires: use the systemd unit to run it as a separate user, see \
     docs/serve.md";
/// Time limit for pending responses at shutdown.
const END_PATIENCE: Duration = Duration::from_millis(1500);

/// State shared by all request handlers.
pub struct AppState {
    url: Option<String>,
    hosts: HostNames,
    boot: PathBuf,
    /// Directory of iPXE's binaries, with `--pxe`.
    ipxe: Option<PathBuf>,
    images: PathBuf,
    layouts: PathBuf,
    dir: PathBuf,
    machines: PathBuf,
    cmdline: String,
    directory: published::Receiver<Arc<SiteSnapshot>>,
    closing: published::Receiver<bool>,
    state: ServerState,
    counters: Arc<metrics::Metrics>,
    watch: StatusLog,
    /// Hash of the operator's token.
    operator: store::token::TokenHash,
    /// Hash of the token for metrics.
    metrics: store::token::TokenHash,
    wake: mpsc::Sender<ReloadEvent>,
    boot_tokens: BootTokenKey,
    source_ports: SourcePorts,
    peers: ClientQuotas,
    neighbours: MacLookup,
    alarms: RateLimitedLog,
    anonymous_events: AnonymousEvents,
    https: Option<HttpsPort>,
    templates: TemplateWriter,
    page: web::PageState,
    planner: PlannerPool,
    looks: migrations::cert_seen::CertificateChecks,
}

impl AppState {
    /// Returns the current state of the directory.
    fn directory(&self) -> Arc<SiteSnapshot> {
        self.directory.borrow().clone()
    }

    /// Logs a message for the operator that any client on the network can cause, with a rate limit.
    fn log_rate_limited(&self, text: String) {
        self.alarms.log_problem(text);
    }

    /// Requests a reload of the directory, which wakes waiting machines and logs problems.
    fn request_reload(&self) {
        // Fails only if the keeper's thread has ended, at shutdown.
        let _ = self.wake.send(ReloadEvent::State);
    }
}

/// Runs `drophammer serve`: serves, checks the directory, or copies the database.
///
/// # Errors
/// As [`run_server`], or a file cannot be read or written.
pub fn run_serve(serve: ServeArgs) -> Result<CommandOutcome> {
    if let (None, Some(ServeOptions { check: true, .. })) = (&serve.command, &serve.options) {
        return report_refusal(
            serve.options.map_or(Ok(CommandOutcome::Good), |options| check_site::check_site(&options.into())),
        );
    }
    let done = match (serve.command, serve.options) {
        (Some(ServeCommand::Backup(asked)), _) => store::backup::back_up_database(&asked.dir, &asked.file),
        (Some(ServeCommand::Restore(asked)), _) => {
            store::backup::restore_database(&asked.dir, &asked.file, asked.older)
        }
        (None, Some(options)) => run_server(options.into()),
        (None, None) => Err(Error::new(Phase::Serve, "the server's directory is missing: `drophammer serve DIR`")),
    };
    report_refusal(done.map(|()| CommandOutcome::Good))
}

/// Serves until SIGINT or SIGTERM.
///
/// # Errors
/// The directory, the address or an option is invalid.
pub fn run_server(options: ServerConfig) -> Result<()> {
    let (watch, writer) = StatusLog::start_writer(options.json).context(Phase::Serve, || "start the output")?;
    let connections = fd_limit::raise_fd_limit(&watch);
    let runtime = tokio::runtime::Builder::new_multi_thread().max_blocking_threads(32).enable_all().build();
    let runtime = runtime.context(Phase::Serve, || "start the asynchronous runtime")?;
    let result = runtime.block_on(async {
        let ended = termination_signal().context(Phase::Serve, || "listen for signals")?;
        let server =
            ControlServer::bind_server(&options, watch.clone(), &HostEnvironment::default(), connections).await?;
        // The parent process may read the first line for the address.
        if nix::unistd::geteuid().is_root() {
            watch.log_note(AS_ROOT.to_owned());
        }
        drop(watch);
        server.serve_connections(ended, &ServiceManager::from_environment()?).await
    });
    runtime.shutdown_timeout(Duration::from_millis(200));
    writer.finish();
    result
}

/// Returns a future that resolves at SIGINT or SIGTERM.
fn termination_signal() -> std::io::Result<impl Future<Output = ()>> {
    let (mut interrupt, mut terminate) = (signal(SignalKind::interrupt())?, signal(SignalKind::terminate())?);
    Ok(async move {
        tokio::select! {
            _ = interrupt.recv() => {}
            _ = terminate.recv() => {}
        }
    })
}

/// A server whose sockets are bound.
struct ControlServer {
    fronts: ServerFronts,
    places: usize,
    peers: ClientQuotas,
    alarms: RateLimitedLog,
    planner: PlannerPool,
    watch: StatusLog,
    closing: published::Sender<bool>,
    wake: mpsc::Sender<ReloadEvent>,
    state: ServerState,
    pxe: Option<PxeServer>,
    /// Task that updates machine files after migrations.
    files: tokio::task::JoinHandle<()>,
    /// Held as long as the server runs.
    _lock: Option<store::backup::DirectoryLock>,
}

impl ControlServer {
    /// Binds the sockets and starts the threads. `places` is the maximum number of connections.
    async fn bind_server(
        options: &ServerConfig,
        watch: StatusLog,
        around: &HostEnvironment,
        places: usize,
    ) -> Result<ControlServer> {
        check_options(options)?;
        options.pxe.as_ref().map_or(Ok(()), |asked| pxe::check_pxe(asked, options))?;
        let lock = store::backup::lock_directory(&options.dir)?;
        refuse_lost_database(&options.dir)?;
        let counters = Arc::<metrics::Metrics>::default();
        let observed = counters.clone();
        let hooks = StoreHooks {
            current_client: request_id::current_client,
            observe_job: Arc::new(move |duration| observed.observe_store_job(duration)),
        };
        let state = ServerState::open(&options.dir.join(store::DATABASE), around.quiet)?.with_hooks(hooks);
        let operator = store::token::operator_token_hash(&options.dir)?;
        let metrics = store::token::token_file_hash(&options.dir, store::token::METRICS_FILE)?;
        let listeners = BoundListeners::bind_sockets(options, &watch).await?;
        let boot = boot_directory(options);
        check_at_start(options).into_iter().for_each(|problem| watch.log_problem(problem));

        let (wake, woken) = mpsc::channel();
        let done = wake.clone();
        let digests = ImageDigests::start(state.clone(), move |digest| drop(done.send(ReloadEvent::Digest(digest))));
        let digests = digests.context(Phase::Serve, || "start the digest thread")?;
        let done = wake.clone();
        let verified = VerifyCache::start(move |verdict| drop(done.send(ReloadEvent::Verified(verdict))));
        let verified = verified.context(Phase::Serve, || "start the verify thread")?;
        let definitions = OsDefinitions::new(options.dir.join("os"), verified);
        let loader = SiteLoader::new(&options.dir, digests, definitions, state.clone());
        let loader = loader.with_approved_only(options.approved_only);
        let (publish, directory) = published::channel(Arc::default());
        let keeper = SiteReloader::new(state.clone(), loader, watch.clone(), publish);
        let (ready, first_look) = tokio::sync::oneshot::channel();
        std::thread::Builder::new()
            .name("directory".to_owned())
            .spawn({
                let look_every = around.look_every;
                move || keeper.run(&woken, look_every, ready)
            })
            .context(Phase::Serve, || "start the directory thread")?;
        first_look.await.context(Phase::Serve, || "read the directory")?;

        let pxe = match options.pxe.clone() {
            Some(asked) => Some(start_pxe(asked, options.clone(), listeners.port()?, watch.clone()).await?),
            None => None,
        };

        let (closing, is_closing) = published::channel(false);
        let app = AppState {
            url: options.url.as_ref().map(|url| url.trim_end_matches('/').to_owned()),
            hosts: HostNames::new(options, listeners.certificate()),
            boot,
            ipxe: pxe.as_ref().map(|pxe| pxe.ipxe.clone()),
            images: options.dir.join("images"),
            layouts: options.dir.join("layouts"),
            dir: options.dir.clone(),
            machines: options.dir.join("machines"),
            cmdline: options.cmdline.clone(),
            directory,
            closing: is_closing,
            state: state.clone(),
            counters,
            watch: watch.clone(),
            operator,
            metrics,
            wake: wake.clone(),
            boot_tokens: BootTokenKey::of_operator(&operator),
            source_ports: SourcePorts::new(options, around),
            peers: ClientQuotas::new(places, &options.proxies),
            neighbours: around.neighbours.clone(),
            alarms: RateLimitedLog::new(watch.clone()),
            anonymous_events: AnonymousEvents::default(),
            https: listeners.https()?,
            templates: TemplateWriter::new(&options.dir),
            page: web::PageState::default(),
            planner: PlannerPool::start_threads().context(Phase::Serve, || "start the planner threads")?,
            looks: migrations::cert_seen::CertificateChecks::default(),
        };
        let (peers, alarms, planner) = (app.peers.clone(), app.alarms.clone(), app.planner.clone());
        let app = Arc::new(app);
        let fronts = listeners.build_fronts(&app);
        let files = tokio::spawn(migrations::machine_file_update::keep_files_updated(app));
        Ok(ControlServer {
            fronts,
            places,
            peers,
            alarms,
            planner,
            watch,
            closing,
            wake,
            state,
            pxe,
            files,
            _lock: lock,
        })
    }

    /// Accepts connections until `ended`, then gives pending responses a short time to complete.
    ///
    /// # Errors
    /// The database was removed.
    async fn serve_connections(self, ended: impl Future<Output = ()>, manager: &ServiceManager) -> Result<()> {
        let running = GracefulShutdown::new();
        let door = ConnectionLimiter::new(self.places, self.peers.clone(), self.watch.clone(), self.alarms.clone());
        let fronts = self.fronts.all();
        let mut ended = std::pin::pin!(ended);
        let sources = [HeartbeatSource::for_database(&self.state), HeartbeatSource::for_planner(&self.planner)];
        let mut heartbeat = std::pin::pin!(manager.send_heartbeats(&sources, &self.watch));
        manager.notify_ready();
        let mut result = Ok(());
        loop {
            tokio::select! {
                () = &mut ended => break,
                () = &mut heartbeat => {}
                why = self.state.wait_until_gone() => {
                    self.watch.log_problem(why.clone());
                    result = Err(Error::new(Phase::Serve, why));
                    break;
                }
                (front, place, accepted) = door.accept_next(&fronts) => match accepted {
                    Ok((stream, address)) => door.admit(stream, address, front, &running, place),
                    Err(error) => {
                        self.watch.log_problem(format!("accept a connection: {error}"));
                        // Most likely out of file descriptors: an immediate retry would only spin.
                        tokio::time::sleep(Duration::from_millis(500)).await;
                    }
                },
            }
        }
        manager.notify_stopping();
        drop(self.fronts);
        let pxe = tokio::task::spawn_blocking(move || drop(self.pxe));
        self.closing.send_replace(true);
        self.files.abort();
        let _ = self.wake.send(ReloadEvent::End);
        let _ = tokio::time::timeout(END_PATIENCE, running.shutdown()).await;
        self.state.close().await;
        let _ = pxe.await;
        result
    }
}

fn boot_directory(options: &ServerConfig) -> PathBuf {
    options.boot.clone().unwrap_or_else(|| options.dir.join("boot"))
}

/// Returns problems that are only checked at the start.
fn check_at_start(options: &ServerConfig) -> Vec<String> {
    let boot = ["vmlinuz", "initrd"].map(|name| boot_directory(options).join(name)).into_iter();
    let boot = boot.filter(|path| !path.is_file());
    let boot = boot.map(|path| format!("{} is missing: machines cannot boot the ramdisk", path.display()));
    let secrets = ["machines", "images"].map(|name| site_folder::find_readable_secrets(&options.dir.join(name)));
    let registries = Some(options.dir.join("registries.json")).filter(|path| site_folder::is_world_readable(path));
    let what = "contains secrets and is readable by all users of this host";
    let secrets = secrets.into_iter().flatten().chain(registries);
    boot.chain(secrets.map(|path| format!("{} {what}: run chmod o-r {0}", path.display()))).collect()
}

/// Starts dnsmasq, and waits until it is ready or has failed.
async fn start_pxe(asked: PxeOptions, options: ServerConfig, port: u16, watch: StatusLog) -> Result<PxeServer> {
    let started = tokio::task::spawn_blocking(move || PxeServer::start_dnsmasq(&asked, &options, port, &watch));
    started.await.context(Phase::Serve, || "start dnsmasq")?
}

fn check_options(options: &ServerConfig) -> Result<()> {
    let refuse = |what: String| Err(Error::new(Phase::Serve, what));
    if !options.dir.is_dir() {
        return refuse(format!(
            "{} is not a directory; it should contain machines/, layouts/ and images/",
            options.dir.display()
        ));
    }
    if let Some(url) = &options.url {
        let rest = url.strip_prefix("http://").or_else(|| url.strip_prefix("https://"));
        let host = rest.map(|rest| rest.split('/').next().unwrap_or_default());
        let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-._~/:[]".contains(&byte);
        if host.is_none_or(|host| ipxe::validate_host(host).is_err()) || !url.bytes().all(plain) {
            return refuse(format!("--url {url}: must be a URL such as http://10.0.0.1:8080"));
        }
    }
    ipxe::validate_cmdline(&options.cmdline).or_else(|why| refuse(format!("--cmdline: {why}")))
}

/// Refuses to start if the database was lost: only the database records that a machine is in the middle of a reinstall and has no install
/// marker, and without it all of its disks would be wiped. The operator's token, which is created after the database, proves that it
/// existed.
fn refuse_lost_database(dir: &Path) -> Result<()> {
    let database = dir.join(store::DATABASE);
    let has_token = dir.join(store::token::OPERATOR_FILE).exists();
    if !has_token || !site_folder::has_machine_files(dir) || !store::database_file::is_new_database(&database)? {
        return Ok(());
    }
    let message = format!(
        "{} is missing or empty, although {} shows that it existed. Without it, a machine in the middle of a reinstall is taken for a \
         new one, and its preserved disks are wiped. Restore a backup with `drophammer serve restore`. If no \
         machine is in the middle of a reinstall, remove {1} and start again: both are recreated",
        database.display(),
        store::token::OPERATOR_FILE
    );
    Err(Error::new(Phase::Serve, message))
}

#[cfg(test)]
mod tests;

#[cfg(test)]
testing::workers!(linux::verify::WORKER => || -> std::io::Result<()> { linux::verify::worker::run_verify_worker() });
