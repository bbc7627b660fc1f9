//! `drophammer serve`: the control plane for a bench or a rack.
//!
//! The crate assembles the server: the crate `api` contains its endpoints, `web` its web page, `http_server` its
//! connections and its log, `pxe` DHCP and TFTP, `site` the operator's directory, and `store` the database. Start with
//! `server_lifecycle`, which starts the server after `start_checks` has checked the options and the directory, and ends
//! the server.
//!
//! * Start: `options` and `limit_options` define the command line, `listeners` binds the sockets and assigns routes to
//!   them, and `systemd_notify` reports to systemd.
//! * Requests: `host_and_origin_check` checks the head of every request. `record_retention` deletes old records.
//! * Checks: `site_check` checks all files of a directory, `server_health_monitor` checks the running server, and
//!   `site_initialization` creates a directory.
//!
//! The tests start complete servers on the loopback interface.

mod address_range_registration;
mod app_state_setup;
mod authorization_and_audit;
mod host_and_origin_check;
mod host_environment;
mod limit_options;
mod listeners;
mod network_boot;
mod opened_site;
mod options;
mod plain_text_refusals;
mod record_retention;
mod server_health_monitor;
mod server_lifecycle;
mod site_check;
mod site_initialization;
mod start_checks;
pub mod store_options;
mod systemd_notify;

pub use limit_options::LimitOptions;
pub use options::{ServeArgs, ServeCommand, ServeOptions, ServerConfig};

use common::command_outcome::{CommandOutcome, report_refusal};
use common::error::{Context, Error, Phase, Result};
use host_environment::HostEnvironment;
use http_server::server_log::ServerLog;
use server_lifecycle::ControlServer;
use std::time::Duration;
use systemd_notify::ServiceManager;
use tokio::signal::unix::{SignalKind, signal};

/// Note for an operator who runs the server as root. Running as root is acceptable on a test bench. In a rack, the
/// server should run as a separate user, from the systemd unit.
const AS_ROOT: &str = "this server runs as root, which only --pxe requires: use the systemd unit to run it as a separate user, see \
     docs/service.md";

/// Runs `drophammer serve`: runs the server, checks the directory, or backs up or restores the database.
///
/// # Errors
/// Returns an error in the cases of [`run_server`], or if a file cannot be read or written.
pub fn run_serve(serve: ServeArgs) -> Result<CommandOutcome> {
    let done = match (serve.command, serve.options) {
        (None, Some(options)) if options.check => return report_refusal(site_check::check_site(&options.into())),
        (None, Some(options)) if options.init => return site_initialization::create_site(&options.into()),
        (Some(ServeCommand::Backup(command)), _) => {
            let address = command.store.read_address();
            address.and_then(|address| store::backup::back_up_store(address.as_ref(), &command.dir, &command.file))
        }
        (Some(ServeCommand::Restore(command)), _) => {
            let address = command.store.read_address();
            address.and_then(|address| {
                store::backup::restore_store(address.as_ref(), &command.dir, &command.file, command.older)
            })
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
    let (watch, writer) = ServerLog::start_writer(options.json).context(Phase::Serve, || "start the output")?;
    let connections = http_server::fd_limit::raise_fd_limit(&watch);
    let wanted = options.limits.connections.map(|wanted| wanted as usize);
    let connections = http_server::fd_limit::limit_connections(connections, wanted);
    let runtime = tokio::runtime::Builder::new_multi_thread().max_blocking_threads(32).enable_all().build();
    let runtime = runtime.context(Phase::Serve, || "start the asynchronous runtime")?;
    let result = runtime.block_on(async {
        let ended = termination_signal().context(Phase::Serve, || "listen for signals")?;
        let server =
            ControlServer::bind_server(&options, watch.clone(), &HostEnvironment::default(), connections).await?;
        // The note is logged after the address, because a parent process may read the address from the first line of
        // the log.
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

/// Returns a future that completes at SIGINT or SIGTERM.
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
