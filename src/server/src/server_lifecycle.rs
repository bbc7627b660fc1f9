//! Start of the server's threads and routers after its sockets are bound, and shutdown of the server.

use super::app_state_setup::{StartedServices, build_app_state};
use super::host_environment::HostEnvironment;
use super::listeners::{BoundListeners, ServerFronts};
use super::network_boot::NetworkBoot;
use super::opened_site::{OpenedSite, open_documents, start_reloader};
use super::options::ServerConfig;
use super::record_retention::delete_expired_records;
use super::server_health_monitor::{CHECK_INTERVAL, SHARED_CHECK_INTERVAL, explain_full_disk, watch_health};
use super::start_checks::check_at_start;
use super::systemd_notify::{HeartbeatSource, ServiceManager};
use api::accepted_host_names::describe_unresolvable_host;
use api::operator_api::summary_cache::refresh_summaries;
use api::site_reload::ReloadEvent;
use api::{AppState, abandoned_bmc_actions, freed_machine_shutdown, migration_requests, out_of_band, rollouts};
use common::error::{Error, Phase, Result};
use http_server::connections::ConnectionLimiter;
use http_server::server_log::ServerLog;
use hyper_util::server::graceful::GracefulShutdown;
use site::snapshot::SiteSnapshot;
use std::sync::Arc;
use std::time::Duration;
use store::ChangeScope;
use tokio::sync::watch as published;
use tokio::task::JoinHandle;

/// Time limit for pending responses at shutdown.
const SHUTDOWN_TIMEOUT: Duration = Duration::from_millis(1500);

/// A server whose sockets are bound.
pub(super) struct ControlServer {
    pub fronts: ServerFronts,
    /// Maximum number of connections.
    connection_limit: usize,
    /// State of the request handlers.
    pub app: Arc<AppState>,
    closing: published::Sender<bool>,
    boot: NetworkBoot,
    /// Tasks that run until the server ends.
    tasks: [JoinHandle<()>; 9],
    /// Lock on the server's directory, held while the server runs.
    _lock: Option<store::backup::DirectoryLock>,
}

impl ControlServer {
    /// Binds the sockets, and starts the server's threads.
    ///
    /// # Errors
    /// Returns an error if a setting, a file or the database cannot be used, or no space is left for the database.
    pub(crate) async fn bind_server(
        options: &ServerConfig,
        watch: ServerLog,
        environment: &HostEnvironment,
        connection_limit: usize,
    ) -> Result<ControlServer> {
        let started = ControlServer::start_services(options, watch, environment, connection_limit).await;
        started.map_err(|error| explain_full_disk(error, &options.dir, (environment.free_space)(&options.dir)))
    }

    async fn start_services(
        options: &ServerConfig,
        watch: ServerLog,
        environment: &HostEnvironment,
        connection_limit: usize,
    ) -> Result<ControlServer> {
        let mut site = OpenedSite::open(options, environment.quiet)?;
        let lock = site.lock.take();
        let listeners = BoundListeners::bind_sockets(options, &watch).await?;
        site.counters.set_certificates(listeners.certificate().map(|tls| tls.expiry_times()).unwrap_or_default());
        report_start_checks(options, &watch);
        site.note.take().into_iter().for_each(|note| watch.log_note(note));
        let documents = open_documents(options, &site.state).await?;
        let (wake, directory) =
            start_reloader(options, (&site.state, &documents), &watch, environment.scan_interval).await?;
        let named = directory.clone();
        watch.set_machine_names(move |id| find_machine_name(&named.borrow(), id));
        let boot = NetworkBoot::start_dnsmasq(options, &site.state, listeners.port()?, &watch).await?;
        let (closing, is_closing) = published::channel(false);
        let services = StartedServices {
            site,
            ipxe: boot.ipxe_directory(),
            directory,
            documents,
            closing: is_closing,
            watch,
            wake,
        };
        let app = Arc::new(build_app_state(options, environment, connection_limit, &listeners, services)?);
        let fronts = listeners.build_fronts(&app);
        let tasks = start_tasks(&app, options, environment);
        Ok(ControlServer { fronts, connection_limit, app, closing, boot, tasks, _lock: lock })
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
        let app = self.app;
        let (watch, rate_limited_log, health) =
            (app.watch.clone(), app.rate_limited_log.clone(), app.counters.health.clone());
        let door =
            ConnectionLimiter::new(self.connection_limit, app.client_quotas.clone(), watch, rate_limited_log, health);
        let fronts = self.fronts.all();
        let mut ended = std::pin::pin!(ended);
        let sources = [HeartbeatSource::for_database(&app.state), HeartbeatSource::for_planner(&app.planner)];
        let mut heartbeat = std::pin::pin!(manager.send_heartbeats(&sources, &app.watch));
        manager.notify_ready();
        let mut result = Ok(());
        loop {
            tokio::select! {
                () = &mut ended => break,
                () = &mut heartbeat => {}
                why = app.state.wait_until_gone() => {
                    app.watch.log_problem(why.clone());
                    result = Err(Error::new(Phase::Serve, why));
                    break;
                }
                (front, place, accepted) = door.accept_next(&fronts) => match accepted {
                    Ok((stream, address)) => door.admit(stream, address, front, &running, place),
                    Err(error) => {
                        app.watch.log_problem(format!("accept a connection: {error}"));
                        // The most likely cause is a lack of file descriptors. Until descriptors become free, accepting
                        // fails immediately: without a pause, this loop would keep a processor busy.
                        tokio::time::sleep(Duration::from_millis(500)).await;
                    }
                },
            }
        }
        manager.notify_stopping();
        drop(self.fronts);
        let boot = tokio::spawn(self.boot.stop_dnsmasq(app.state.clone()));
        self.closing.send_replace(true);
        self.tasks.iter().for_each(JoinHandle::abort);
        let _ = app.wake.send(ReloadEvent::End);
        let _ = tokio::time::timeout(SHUTDOWN_TIMEOUT, running.shutdown()).await;
        flush_audit_log(&app).await;
        let _ = boot.await;
        app.state.close().await;
        result
    }
}

/// Writes the remaining entries of the audit log to the log's file.
async fn flush_audit_log(app: &AppState) {
    let unwritten = app.audit.flush_file(SHUTDOWN_TIMEOUT).await;
    if unwritten > 0 {
        let why = "entries were not written; they are in the database";
        app.watch.log_problem(format!("--audit-log: {unwritten} {why}"));
    }
}

/// Starts the background tasks: they update machine files after migrations, continue Redfish steps and rollouts,
/// refresh cached summaries, check the server, and delete old records.
fn start_tasks(app: &Arc<AppState>, options: &ServerConfig, environment: &HostEnvironment) -> [JoinHandle<()>; 9] {
    // Servers that share a database are checked more often: their load balancer should send requests to a server soon
    // after the server has recovered.
    let longest = if app.state.is_shared() { SHARED_CHECK_INTERVAL } else { CHECK_INTERVAL };
    let interval = longest.min(environment.scan_interval * 5);
    [
        tokio::spawn(migration_requests::machine_file_update::update_migrated_files(app.clone())),
        tokio::spawn(out_of_band::continue_runs(app.clone())),
        tokio::spawn(rollouts::runner::continue_rollouts(app.clone())),
        tokio::spawn(freed_machine_shutdown::cancel_removed_orders(app.clone())),
        tokio::spawn(abandoned_bmc_actions::handle_abandoned_actions(app.clone())),
        tokio::spawn(refresh_summaries(app.clone())),
        tokio::spawn(forward_changes(app.clone())),
        tokio::spawn(watch_health(app.clone(), interval, environment.free_space.clone())),
        tokio::spawn(delete_expired_records(app.state.clone(), options.limits.clone(), app.rate_limited_log.clone())),
    ]
}

/// Each time another server has changed the database, wakes the requests and tasks that wait for such a change. If only
/// records of some machines have changed, the requests of other machines do not read the database again.
async fn forward_changes(app: Arc<AppState>) {
    let mut changes = app.state.changes();
    loop {
        match app.state.wait_for_change(&mut changes).await {
            ChangeScope::All => app.request_reload(),
            ChangeScope::Machines(machines) => {
                machines.iter().for_each(|machine| app.request_machine_reload(machine, None));
            }
        }
        app.runs.notify_one();
        app.rollouts.notify_one();
    }
}

/// Returns the name of the machine with this id, if the machine has a file with a name.
fn find_machine_name(directory: &SiteSnapshot, id: &str) -> Option<String> {
    let machine = directory.find_machine(&id.to_lowercase())?;
    Some(machine.name.clone()).filter(|name| !name.is_empty())
}

/// Logs the problems that do not prevent the start.
fn report_start_checks(options: &ServerConfig, watch: &ServerLog) {
    // The DNS lookup may take half a minute, and must not delay the start.
    if let Some(url) = options.url.clone() {
        let watch = watch.clone();
        let check = move || describe_unresolvable_host(&url).into_iter().for_each(|note| watch.log_note(note));
        let _ = std::thread::Builder::new().name("url-check".to_owned()).spawn(check);
    }
    check_at_start(options).into_iter().for_each(|problem| watch.log_problem(problem));
}
