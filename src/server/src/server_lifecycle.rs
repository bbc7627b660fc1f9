//! Start of the server's threads and routers after its sockets are bound, and shutdown of the server.

use super::health_check::{CHECK_INTERVAL, SHARED_CHECK_INTERVAL, watch_health};
use super::host_environment::HostEnvironment;
use super::listeners::{BoundListeners, ServerFronts};
use super::network_boot::NetworkBoot;
use super::options::ServerConfig;
use super::record_retention::delete_expired_records;
use super::start_checks::{boot_directory, check_at_start, check_options, refuse_lost_database};
use super::systemd_notify::{HeartbeatSource, ServiceManager};
use api::accepted_host_names::{HostNames, note_doubtful_name};
use api::access::login_sessions::{LoginSessions, VERIFY_INTERVAL};
use api::access::project_snapshots::ProjectSnapshots;
use api::audit_log::AuditLog;
use api::deploy_templates::TemplateWriter;
use api::operator::summary_cache::SummaryCache;
use api::planner_pool::PlannerPool;
use api::site_reload::{ReloadEvent, SiteReloader};
use api::source_port_check::SourcePorts;
use api::{AppState, abandoned_actions, metrics, migration_requests, out_of_band, rollouts};
use common::error::{Context, Error, Phase, Result};
use http_server::anonymous_event_limit::AnonymousEvents;
use http_server::connections::ConnectionLimiter;
use http_server::quotas::ClientQuotas;
use http_server::rate_limited_log::RateLimitedLog;
use http_server::request_context;
use http_server::server_health::ServerHealth;
use http_server::server_log::StatusLog;
use hyper_util::server::graceful::GracefulShutdown;
use oidc::provider::OidcProvider;
use oidc::settings::OidcSettings;
use site::documents::SiteDocuments;
use site::loader::SiteLoader;
use site::os_definitions::{OsDefinitions, VerifyCache};
use site::snapshot::SiteSnapshot;
use std::path::PathBuf;
use std::sync::{Arc, mpsc};
use std::time::Duration;
use store::boot_token::BootTokenKey;
use store::image_digest_cache::ImageDigests;
use store::store_address::PostgresAddress;
use store::token::TokenHash;
use store::{ServerState, StoreHooks};
use tokio::sync::watch as published;
use tokio::task::JoinHandle;

/// Time limit for pending responses at shutdown.
const END_PATIENCE: Duration = Duration::from_millis(1500);

/// A server whose sockets are bound.
pub(super) struct ControlServer {
    pub fronts: ServerFronts,
    places: usize,
    pub peers: ClientQuotas,
    alarms: RateLimitedLog,
    planner: PlannerPool,
    watch: StatusLog,
    closing: published::Sender<bool>,
    wake: mpsc::Sender<ReloadEvent>,
    pub state: ServerState,
    boot: NetworkBoot,
    health: ServerHealth,
    /// Tasks that run until the server ends.
    tasks: [JoinHandle<()>; 7],
    /// State whose audit log is written to its file before the server ends.
    audited: Arc<AppState>,
    /// Lock on the server's directory, held while the server runs.
    _lock: Option<store::backup::DirectoryLock>,
}

impl ControlServer {
    /// Binds the sockets, and starts the threads. `places` is the maximum number of connections.
    pub(crate) async fn bind_server(
        options: &ServerConfig,
        watch: StatusLog,
        around: &HostEnvironment,
        places: usize,
    ) -> Result<ControlServer> {
        check_options(options)?;
        options.pxe.as_ref().map_or(Ok(()), |asked| pxe::check_pxe(asked, &options.boot_server()))?;
        let oidc = OidcSettings::read_file(&options.dir)?.map(OidcProvider::new).transpose()?.map(Arc::new);
        let lock = store::backup::lock_directory(&options.dir)?;
        let store = options.store.read_address()?;
        if store.is_none() {
            refuse_lost_database(&options.dir)?;
        }
        let counters = Arc::<metrics::Metrics>::default();
        let state = open_state(options, store.as_ref(), around.quiet, &counters)?;
        let operator = store::token::operator_token_hash(&options.dir)?;
        let metrics = store::token::token_file_hash(&options.dir, store::token::METRICS_FILE)?;
        let listeners = BoundListeners::bind_sockets(options, &watch).await?;
        counters.set_certificates(listeners.certificate().map(|tls| tls.expiry_times()).unwrap_or_default());
        report_start_checks(options, &watch);
        let documents = open_documents(options, &state).await?;
        let (wake, directory) = start_reloader(options, (&state, &documents), &watch, around.look_every).await?;
        let boot = NetworkBoot::start_dnsmasq(options, &state, listeners.port()?, &watch).await?;
        let (closing, is_closing) = published::channel(false);
        let services = StartedServices {
            ipxe: boot.ipxe_directory(),
            directory,
            documents,
            closing: is_closing,
            state: state.clone(),
            counters,
            watch: watch.clone(),
            operator,
            metrics,
            wake: wake.clone(),
            oidc,
        };
        let app = build_app_state(options, around, places, &listeners, services)?;
        let (peers, alarms, planner) = (app.peers.clone(), app.alarms.clone(), app.planner.clone());
        let app = Arc::new(app);
        let audited = app.clone();
        let fronts = listeners.build_fronts(&app);
        let (health, tasks) = (app.counters.health.clone(), start_tasks(&app, options, around));
        let _lock = lock;
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
            boot,
            health,
            tasks,
            audited,
            _lock,
        })
    }

    /// Accepts connections until the future `ended` completes, and then waits a short time for pending responses.
    ///
    /// # Errors
    /// Returns an error if the database was removed.
    pub(crate) async fn serve_connections(
        self,
        ended: impl Future<Output = ()>,
        manager: &ServiceManager,
    ) -> Result<()> {
        let running = GracefulShutdown::new();
        let (watch, alarms, health) = (self.watch.clone(), self.alarms.clone(), self.health.clone());
        let door = ConnectionLimiter::new(self.places, self.peers.clone(), watch, alarms, health);
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
                        // The most likely cause is a lack of file descriptors. An immediate retry would be a busy loop.
                        tokio::time::sleep(Duration::from_millis(500)).await;
                    }
                },
            }
        }
        manager.notify_stopping();
        drop(self.fronts);
        let boot = tokio::spawn(self.boot.stop_dnsmasq(self.state.clone()));
        self.closing.send_replace(true);
        self.tasks.iter().for_each(JoinHandle::abort);
        let _ = self.wake.send(ReloadEvent::End);
        let _ = tokio::time::timeout(END_PATIENCE, running.shutdown()).await;
        let unwritten = self.audited.audit.flush_file(END_PATIENCE).await;
        if unwritten > 0 {
            self.watch
                .log_problem(format!("--audit-log: {unwritten} entries were not written; they are in the database"));
        }
        let _ = boot.await;
        self.state.close().await;
        result
    }
}

/// Starts the tasks that update machine files when migrations have ended, continue the steps over Redfish and the
/// rollouts, check the server itself, and delete old records.
fn start_tasks(app: &Arc<AppState>, options: &ServerConfig, around: &HostEnvironment) -> [JoinHandle<()>; 7] {
    // A load balancer moves machines to a server as soon as the server is ready again.
    let longest = if app.state.is_shared() { SHARED_CHECK_INTERVAL } else { CHECK_INTERVAL };
    let interval = longest.min(around.look_every * 5);
    [
        tokio::spawn(migration_requests::machine_file_update::keep_files_updated(app.clone())),
        tokio::spawn(out_of_band::continue_runs(app.clone())),
        tokio::spawn(rollouts::runner::continue_rollouts(app.clone())),
        tokio::spawn(abandoned_actions::handle_abandoned_actions(app.clone())),
        tokio::spawn(forward_changes(app.clone())),
        tokio::spawn(watch_health(app.clone(), interval, around.free_space.clone())),
        tokio::spawn(delete_expired_records(app.state.clone(), options.limits.clone(), app.alarms.clone())),
    ]
}

/// Wakes everything that waits for a change of the database, whenever another server has committed one.
async fn forward_changes(app: Arc<AppState>) {
    let mut changes = app.state.changes();
    loop {
        app.state.wait_for_change(&mut changes).await;
        let _ = app.wake.send(ReloadEvent::State);
        app.runs.notify_one();
        app.rollouts.notify_one();
    }
}

/// Logs the problems that do not prevent the start.
fn report_start_checks(options: &ServerConfig, watch: &StatusLog) {
    // A resolver may take half a minute to give up, and must not delay the start.
    if let Some(url) = options.url.clone() {
        let watch = watch.clone();
        let check = move || note_doubtful_name(&url).into_iter().for_each(|note| watch.log_note(note));
        let _ = std::thread::Builder::new().name("url-check".to_owned()).spawn(check);
    }
    check_at_start(options).into_iter().for_each(|problem| watch.log_problem(problem));
}

/// Services that are started before the first request is handled, and the hashes of the operator's tokens.
struct StartedServices {
    /// Directory of iPXE's binaries; `None` without `--pxe`.
    ipxe: Option<PathBuf>,
    directory: published::Receiver<Arc<SiteSnapshot>>,
    documents: SiteDocuments,
    closing: published::Receiver<bool>,
    state: ServerState,
    counters: Arc<metrics::Metrics>,
    watch: StatusLog,
    operator: TokenHash,
    metrics: TokenHash,
    wake: mpsc::Sender<ReloadEvent>,
    oidc: Option<Arc<OidcProvider>>,
}

fn build_app_state(
    options: &ServerConfig,
    around: &HostEnvironment,
    places: usize,
    listeners: &BoundListeners,
    services: StartedServices,
) -> Result<AppState> {
    let StartedServices { ipxe, directory, documents, closing, state, counters, watch, operator, metrics, wake, oidc } =
        services;
    let alarms = RateLimitedLog::new(watch.clone());
    Ok(AppState {
        url: options.url.as_ref().map(|url| url.trim_end_matches('/').to_owned()),
        hosts: HostNames::new(&options.hosts, options.url.as_deref(), listeners.certificate()),
        boot: boot_directory(options),
        ipxe,
        images: options.dir.join("images"),
        layouts: options.dir.join("layouts"),
        dir: options.dir.clone(),
        documents,
        machines: options.dir.join("machines"),
        cmdline: options.cmdline.clone(),
        directory,
        closing,
        state,
        counters,
        audit: AuditLog::new(options.audit_retention, options.audit_log.clone(), alarms.clone())?,
        alarms,
        watch,
        operator,
        metrics,
        wake,
        boot_tokens: BootTokenKey::of_operator(&operator),
        source_ports: match options.any_source_port {
            true => SourcePorts::Any,
            false => SourcePorts::Below(around.first_unprivileged_port),
        },
        peers: ClientQuotas::new(places, &options.proxies)
            .with_requests_per_address(options.limits.requests_per_address as usize),
        neighbours: around.neighbours.clone(),
        anonymous_events: AnonymousEvents::default(),
        https: listeners.https()?,
        templates: TemplateWriter::new(&options.dir),
        planner: PlannerPool::start_threads().context(Phase::Serve, || "start the planner threads")?,
        sessions: LoginSessions::default(),
        oidc,
        session_interval: VERIFY_INTERVAL.min(around.look_every * 30),
        summaries: SummaryCache::default(),
        project_snapshots: ProjectSnapshots::default(),
        looks: migration_requests::certificate_checks::CertificateChecks::default(),
        runs: tokio::sync::Notify::new(),
        rollouts: tokio::sync::Notify::new(),
        run_interval: around.look_every.min(out_of_band::RUN_INTERVAL),
    })
}

/// Opens the database. A boot is considered active until the duration `quiet` has passed since its last request.
fn open_state(
    options: &ServerConfig,
    store: Option<&PostgresAddress>,
    quiet: Duration,
    counters: &Arc<metrics::Metrics>,
) -> Result<ServerState> {
    let observed = counters.clone();
    let hooks = StoreHooks {
        current_client: request_context::current_client,
        current_audit_entry: api::access::current_audit_entry,
        observe_job: Arc::new(move |duration| observed.observe_store_job(duration)),
    };
    let state = ServerState::open_store(store, &options.dir, quiet)?;
    let state = state.with_most_unknown(options.limits.unknown_machines as usize);
    Ok(state.with_quiet_at_same_address(options.restart_timeout).with_hooks(hooks))
}

/// Opens the source of the documents: the directory or, once it contains documents, the database that several servers share.
async fn open_documents(options: &ServerConfig, state: &ServerState) -> Result<SiteDocuments> {
    if !state.is_shared() {
        return Ok(SiteDocuments::of_directory(&options.dir));
    }
    let (dir, state) = (options.dir.clone(), state.clone());
    let open = tokio::task::spawn_blocking(move || SiteDocuments::open_shared(&dir, state));
    open.await.context(Phase::Serve, || "read the documents")?
}

/// Starts the threads that read the directory, and waits until it has been read once. Returns a channel that wakes
/// these threads, and a channel on which they publish snapshots.
async fn start_reloader(
    options: &ServerConfig,
    (state, documents): (&ServerState, &SiteDocuments),
    watch: &StatusLog,
    look_every: Duration,
) -> Result<(mpsc::Sender<ReloadEvent>, published::Receiver<Arc<SiteSnapshot>>)> {
    let (wake, woken) = mpsc::channel();
    let done = wake.clone();
    let digests = ImageDigests::start(state.clone(), move |digest| drop(done.send(ReloadEvent::Digest(digest))));
    let digests = digests.context(Phase::Serve, || "start the thread that computes digests")?;
    let done = wake.clone();
    let verified = VerifyCache::start(move |verdict| drop(done.send(ReloadEvent::Verified(verdict))));
    let verified = verified.context(Phase::Serve, || "start the thread that runs `verify` programs")?;
    let definitions = OsDefinitions::new(options.dir.join("os"), verified);
    let loader = SiteLoader::new(&options.dir, digests, definitions, state.clone());
    let loader = loader.with_approved_only(options.approved_only).with_documents(documents);
    let (publish, directory) = published::channel(Arc::default());
    let keeper = SiteReloader::new(state.clone(), loader, watch.clone(), publish);
    let (ready, first_look) = tokio::sync::oneshot::channel();
    std::thread::Builder::new()
        .name("directory".to_owned())
        .spawn(move || keeper.run(&woken, look_every, ready))
        .context(Phase::Serve, || "start the thread that reads the server's directory")?;
    first_look.await.context(Phase::Serve, || "read the server's directory")?;
    Ok((wake, directory))
}
