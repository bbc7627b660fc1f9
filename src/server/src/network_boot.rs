//! Start and end of dnsmasq, and of the registration of its address range.

use super::address_range_registration::RangeRegistration;
use super::options::ServerConfig;
use common::error::{Context, Phase, Result};
use http_server::rate_limited_log::RateLimitedLog;
use http_server::server_log::ServerLog;
use pxe::pxe_options::PxeOptions;
use pxe::{PxeLog, PxeMessage, PxeServer};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;
use store::ServerState;

/// Maximum time to release the registration of the address range in the database at shutdown.
const REGISTRATION_END_TIMEOUT: Duration = Duration::from_millis(1500);

/// Running dnsmasq, if the server has the option `--pxe`.
pub(crate) struct NetworkBoot {
    pxe: Option<PxeServer>,
    range: RangeRegistration,
}

impl NetworkBoot {
    /// Registers the range of addresses, and starts dnsmasq.
    ///
    /// # Errors
    /// Returns an error if another server assigns some of the addresses, or dnsmasq cannot be started.
    pub(crate) async fn start_dnsmasq(
        options: &ServerConfig,
        state: &ServerState,
        port: u16,
        watch: &ServerLog,
    ) -> Result<NetworkBoot> {
        let range = options.pxe.as_ref().and_then(|pxe_options| pxe_options.range);
        let range = RangeRegistration::register_range(state, range, watch).await?;
        let pxe = match options.pxe.clone() {
            Some(pxe_options) => {
                let log = (watch.clone(), range.permission.clone());
                Some(start_pxe(pxe_options, options.clone(), port, log).await?)
            }
            None => None,
        };
        Ok(NetworkBoot { pxe, range })
    }

    /// Returns the directory of iPXE's binaries; `None` without `--pxe`.
    pub(crate) fn ipxe_directory(&self) -> Option<PathBuf> {
        self.pxe.as_ref().map(|pxe| pxe.ipxe.clone())
    }

    /// Stops dnsmasq, and then releases the registered address range, so that another server can assign its addresses.
    pub(crate) async fn stop_dnsmasq(self, state: ServerState) {
        let NetworkBoot { pxe, range } = self;
        let _ = tokio::task::spawn_blocking(move || drop(pxe)).await;
        if range.is_registered() {
            drop(range);
            // If the database is unavailable, the registration ends when its lease expires.
            let _ = tokio::time::timeout(REGISTRATION_END_TIMEOUT, state.release_address_range()).await;
        }
    }
}

/// Starts dnsmasq, and waits until it is ready or has failed.
pub(super) async fn start_pxe(
    pxe_options: PxeOptions,
    options: ServerConfig,
    port: u16,
    (watch, permission): (ServerLog, Arc<AtomicBool>),
) -> Result<PxeServer> {
    let limited = RateLimitedLog::new(watch.clone());
    let log: PxeLog = Arc::new(move |message| match message {
        PxeMessage::Dnsmasq(line) => limited.log_note(line),
        PxeMessage::Note(line) => watch.log_note(line),
        PxeMessage::Problem(line) => watch.log_problem(line),
    });
    let started = tokio::task::spawn_blocking(move || {
        PxeServer::start_dnsmasq(&pxe_options, &options.boot_server(), port, (&log, permission))
    });
    started.await.context(Phase::Serve, || "start dnsmasq")?
}
