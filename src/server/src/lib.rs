//! `drophammer serve`: the control plane for a bench or a rack.
//!
//! Requests are authenticated and limited before they are parsed, and nothing is acknowledged before it is stored. Start with `routes`.
//! `server_lifecycle` starts and ends the server, after `start_checks` has checked its options and its directory.
//!
//! * Operator's directory: the crate `site` reads the directory. `site_reload` watches the directory and publishes
//!   snapshots, `allocation_state` and `approval_check` combine snapshots with the database, `deploy_templates`
//!   changes templates, `site_check` checks all files, and `new_site` creates a
//!   directory.
//! * State: the crate `store` contains the database.
//! * Machines: `netboot` boots machines with the scripts of the crate `pxe`, `machine_auth` and `source_port_check` authenticate them,
//!   `machine_identification` and `arp` identify them, and `migration_requests` migrates them. `agent_api` is the API of the agents,
//!   `console_log` stores console logs, `downloads` serves files, `out_of_band` runs the steps over Redfish that
//!   precede an installation, and `pxe` runs DHCP and TFTP.
//! * Operators: `operator` is the operator's API, `metal_api` is compatible with metal-api, and `web` is the web page.
//!   `routes` is the table of all endpoints, and `openapi` describes the endpoints. `machine_file_creation` creates machine
//!   files, `machine_details` and `install_timeline` describe one machine, `power` and `freed_machine_shutdown` switch
//!   machines on and off, `plan_input` and `boot_digest` serve commands, and `server_log` prints the log.
//! * Connections: `listeners` binds sockets to each `listen_address`, `tls` encrypts connections, `connections` accepts
//!   them, `accepted_host_names` and `request_guard` check requests, `request_context` assigns request ids, and
//!   `base_url` determines URLs. `quotas`, `request_turns`, `fd_limit`, `rate_limited_log` and `anonymous_event_limit`
//!   limit clients, `metrics` counts events, `server_health` finds problems of the server itself, and `systemd_notify`
//!   reports to systemd.

mod accepted_host_names;
mod agent_api;
mod allocation_state;
mod approval_check;
mod base_url;
pub mod boot_digest;
mod console_log;
mod deploy_templates;
mod downloads;
mod freed_machine_shutdown;
mod health_check;
mod host_environment;
pub mod install_timeline;
mod listeners;
mod machine_auth;
pub mod machine_details;
pub mod machine_file_creation;
mod machine_identification;
pub mod metal_api;
mod metrics;
pub mod migration_requests;
mod netboot;
mod new_site;
pub mod openapi;
pub mod operator;
mod options;
pub mod out_of_band;
pub mod plan_input;
pub(crate) mod planner_pool;
pub mod power;
pub mod rack_plan;
mod request_guard;
mod routes;
mod server_lifecycle;
mod site_check;
mod site_reload;
mod source_port_check;
mod start_checks;
mod systemd_notify;
mod web;

pub use options::{ServeArgs, ServeCommand, ServeOptions, ServerConfig};
pub use web::phase::{DisplayPhase, ObjectFate};

use accepted_host_names::HostNames;
use common::error::{Context, Error, Phase, Result};
use common::exit_status::{CommandOutcome, report_refusal};
use deploy_templates::TemplateWriter;
use host_environment::HostEnvironment;
use http_server::anonymous_event_limit::AnonymousEvents;
use http_server::quotas::ClientQuotas;
use http_server::rate_limited_log::RateLimitedLog;
use http_server::server_log::StatusLog;
use linux::neighbor_table::MacLookup;
use listeners::HttpsPort;
use planner_pool::PlannerPool;
use server_lifecycle::ControlServer;
use site::snapshot::SiteSnapshot;
use site_reload::ReloadEvent;
use source_port_check::SourcePorts;
use std::path::PathBuf;
use std::sync::{Arc, mpsc};
use std::time::Duration;
use store::ServerState;
use store::boot_token::BootTokenKey;
use systemd_notify::ServiceManager;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::watch as published;

/// Note for an operator who runs the server as root. Running as root is acceptable on a test bench. In a rack, the
/// server should run as a separate user, from the systemd unit.
const AS_ROOT: &str = "this server runs as root, which only --pxe requires: use the systemd unit to run it as a separate user, see \
     docs/service.md";

/// State shared by all request handlers.
pub(crate) struct AppState {
    url: Option<String>,
    hosts: HostNames,
    boot: PathBuf,
    /// Directory of iPXE's binaries; `None` without `--pxe`.
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
    looks: migration_requests::certificate_checks::CertificateChecks,
    /// Wakes the task that continues the steps over Redfish.
    runs: tokio::sync::Notify,
    /// Interval at which the task that runs the steps over Redfish continues unfinished runs.
    run_interval: Duration,
}

impl AppState {
    /// Returns the current snapshot of the directory.
    fn directory(&self) -> Arc<SiteSnapshot> {
        self.directory.borrow().clone()
    }

    /// Logs a problem for the operator. The log line is subject to a rate limit, because any client on the network can
    /// cause it.
    fn log_rate_limited(&self, text: String) {
        self.alarms.log_problem(text);
    }

    /// Requests a reload of the directory, which wakes waiting machines and logs problems.
    fn request_reload(&self) {
        // Sending fails only at shutdown, when the directory thread has exited.
        let _ = self.wake.send(ReloadEvent::State);
    }
}

/// Runs `drophammer serve`: runs the server, checks the directory, or backs up or restores the database.
///
/// # Errors
/// Returns an error in the cases of [`run_server`], or if a file cannot be read or written.
pub fn run_serve(serve: ServeArgs) -> Result<CommandOutcome> {
    let done = match (serve.command, serve.options) {
        (None, Some(options)) if options.check => return report_refusal(site_check::check_site(&options.into())),
        (None, Some(options)) if options.init => return new_site::create_site(&options.into()),
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
/// Returns an error if the directory, the address or an option is invalid.
pub(crate) fn run_server(options: ServerConfig) -> Result<()> {
    let (watch, writer) = StatusLog::start_writer(options.json).context(Phase::Serve, || "start the output")?;
    let connections = http_server::fd_limit::raise_fd_limit(&watch);
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

#[cfg(test)]
mod tests;

#[cfg(test)]
testing::workers!(linux::verify_program::WORKER => || -> std::io::Result<()> { linux::verify_program::worker::run_verify_worker() });
