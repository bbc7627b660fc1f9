//! Messages to systemd (sd_notify): readiness, shutdown, and heartbeats. A heartbeat is sent only if all checked
//! components respond in time. If the database or the planner hangs, no heartbeats are sent, and systemd restarts the
//! server (`WatchdogSec=`).

use api::planner_pool::PlannerPool;
use common::error::{Context, Phase, Result};
use http_server::server_log::ServerLog;
use std::ffi::OsStr;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::pin::Pin;
use std::time::Duration;
use store::ServerState;

/// Environment variable of units with `Type=notify`, see sd_notify(3).
const SOCKET: &str = "NOTIFY_SOCKET";
/// Environment variable of units with `WatchdogSec=`, in microseconds, see sd_watchdog_enabled(3).
const WATCHDOG: &str = "WATCHDOG_USEC";
/// Number of heartbeats per watchdog timeout. All components must respond within the interval between two heartbeats.
const HEARTBEATS_PER_TIMEOUT: u32 = 3;
/// Interval between two checks of a component that does not respond.
const CHECK_INTERVAL: Duration = Duration::from_secs(1);

/// Future that completes when the component has responded.
pub(crate) type SignOfLife = Pin<Box<dyn Future<Output = ()> + Send>>;

/// Component that must respond before a heartbeat is sent.
pub(crate) struct HeartbeatSource {
    pub name: &'static str,
    /// Function that requests a response from the component.
    pub ask: Box<dyn Fn() -> SignOfLife + Send + Sync>,
}

impl HeartbeatSource {
    /// Returns a heartbeat source that checks the database: it writes and reads one value on the database's thread.
    pub(crate) fn for_database(state: &ServerState) -> HeartbeatSource {
        let state = state.clone();
        let ask = move || -> SignOfLife {
            let state = state.clone();
            Box::pin(async move { drop(state.check_pulse().await) })
        };
        HeartbeatSource { name: "the database", ask: Box::new(ask) }
    }

    /// Returns a heartbeat source that checks the planner: at least one planner thread must be idle, or must have
    /// started its job recently.
    pub(crate) fn for_planner(planner: &PlannerPool) -> HeartbeatSource {
        let planner = planner.clone();
        let ask = move || -> SignOfLife {
            let planner = planner.clone();
            Box::pin(async move {
                while !planner.is_responsive() {
                    tokio::time::sleep(CHECK_INTERVAL).await;
                }
            })
        };
        HeartbeatSource { name: "the planner", ask: Box::new(ask) }
    }
}

/// Connection to the service manager. Without a service manager, all methods do nothing.
#[derive(Default)]
pub(crate) struct ServiceManager {
    socket: Option<(UnixDatagram, SocketAddr)>,
    /// Watchdog timeout: the service manager restarts the server if no heartbeat arrives for this duration.
    watchdog: Option<Duration>,
}

impl ServiceManager {
    /// Connects to the service manager that the environment variables specify.
    ///
    /// # Errors
    /// Returns an error if the environment specifies a socket that cannot be used.
    pub(crate) fn from_environment() -> Result<ServiceManager> {
        let variable = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty());
        let Some(address) = variable(SOCKET) else { return Ok(ServiceManager::default()) };
        let watchdog = variable(WATCHDOG).and_then(|text| text.to_str()?.parse().ok()).filter(|time| *time > 0);
        ServiceManager::connect(&address, watchdog.map(Duration::from_micros))
    }

    /// Connects to the socket at a path, or at an abstract address if `address` begins with `@`.
    fn connect(address: &OsStr, watchdog: Option<Duration>) -> Result<ServiceManager> {
        let what = || format!("{SOCKET} {}: cannot be used", address.display());
        let address = match address.as_bytes() {
            [b'@', name @ ..] => SocketAddr::from_abstract_name(name),
            _ => SocketAddr::from_pathname(address),
        };
        let address = address.context(Phase::Serve, what)?;
        let socket = UnixDatagram::unbound().context(Phase::Serve, what)?;
        // The socket is nonblocking, so that a service manager that does not read cannot block the server.
        socket.set_nonblocking(true).context(Phase::Serve, what)?;
        Ok(ServiceManager { socket: Some((socket, address)), watchdog })
    }

    pub(crate) fn notify_ready(&self) {
        self.send_state("READY=1");
    }

    pub(crate) fn notify_stopping(&self) {
        self.send_state("STOPPING=1");
    }

    fn send_state(&self, state: &str) {
        if let Some((socket, address)) = &self.socket {
            // A failure is ignored, because the next heartbeat follows in any case.
            let _ = socket.send_to_addr(state.as_bytes(), address);
        }
    }

    /// Sends a heartbeat in each interval in which all components have responded in time. Never returns.
    pub(crate) async fn send_heartbeats(&self, sources: &[HeartbeatSource], watch: &ServerLog) {
        let Some(watchdog) = self.watchdog else { return std::future::pending().await };
        let interval = watchdog / HEARTBEATS_PER_TIMEOUT;
        let mut stuck: Option<&'static str> = None;
        loop {
            let next = tokio::time::Instant::now() + interval;
            match find_silent_source(sources, interval).await {
                None => {
                    stuck = None;
                    self.send_state("WATCHDOG=1");
                }
                Some(name) if stuck != Some(name) => {
                    stuck = Some(name);
                    watch.log_problem(format!(
                        "{name}: no response within {seconds} s; systemd restarts the server if no response follows",
                        seconds = interval.as_secs()
                    ));
                }
                Some(_) => {}
            }
            tokio::time::sleep_until(next).await;
        }
    }
}

/// Queries the components one after the other. Returns the name of the first component that does not respond in time,
/// or `None` if all respond.
async fn find_silent_source(sources: &[HeartbeatSource], time: Duration) -> Option<&'static str> {
    let end = tokio::time::Instant::now() + time;
    for source in sources {
        if tokio::time::timeout_at(end, (source.ask)()).await.is_err() {
            return Some(source.name);
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, Ordering};

    fn received(socket: &UnixDatagram) -> Option<String> {
        let mut message = [0; 256];
        let length = socket.recv(&mut message).ok()?;
        Some(String::from_utf8_lossy(&message[..length]).into_owned())
    }

    fn source(name: &'static str, is_stuck: &Arc<AtomicBool>) -> HeartbeatSource {
        let is_stuck = is_stuck.clone();
        let ask = move || -> SignOfLife {
            match is_stuck.load(Ordering::SeqCst) {
                true => Box::pin(std::future::pending()),
                false => Box::pin(std::future::ready(())),
            }
        };
        HeartbeatSource { name, ask: Box::new(ask) }
    }

    #[test]
    fn messages_arrive_at_a_path_and_at_an_abstract_address() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("notify");
        let name = format!("drophammer-test-{}", std::process::id());
        let abstract_address = SocketAddr::from_abstract_name(&name).unwrap();
        for (socket, address) in [
            (UnixDatagram::bind(&path).unwrap(), path.clone().into_os_string()),
            (UnixDatagram::bind_addr(&abstract_address).unwrap(), format!("@{name}").into()),
        ] {
            let manager = ServiceManager::connect(&address, None).unwrap();
            manager.notify_ready();
            manager.notify_stopping();
            assert_eq!((received(&socket), received(&socket)), (Some("READY=1".into()), Some("STOPPING=1".into())));
        }
        let long = "x".repeat(200);
        let error = ServiceManager::connect(OsStr::new(&long), None).err().unwrap().to_string();
        assert!(error.contains("NOTIFY_SOCKET xxx"), "{error}");
    }

    /// Sends heartbeats until the condition holds.
    async fn beat_until(
        manager: &ServiceManager,
        sources: &[HeartbeatSource],
        watch: &ServerLog,
        mut holds: impl FnMut() -> bool,
    ) {
        let holds = async {
            while !holds() {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        };
        tokio::select! {
            () = manager.send_heartbeats(sources, watch) => unreachable!("it never returns"),
            () = holds => {}
        }
    }

    #[tokio::test]
    async fn a_source_that_is_stuck_stops_the_heartbeat() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("notify");
        let socket = UnixDatagram::bind(&path).unwrap();
        socket.set_nonblocking(true).unwrap();
        let manager = ServiceManager::connect(path.as_os_str(), Some(Duration::from_millis(30))).unwrap();
        let heard = crate::tests::CapturedLog::default();
        let watch = ServerLog::json_into(heard.clone());
        let (good, stuck) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicBool::new(false)));
        let sources = [source("store", &good), source("planner", &stuck)];
        let has_beaten = || received(&socket).is_some_and(|message| message == "WATCHDOG=1");
        beat_until(&manager, &sources, &watch, has_beaten).await;

        stuck.store(true, Ordering::SeqCst);
        while received(&socket).is_some() {}
        let is_reported = || heard.text().contains("planner: no response within");
        beat_until(&manager, &sources, &watch, is_reported).await;
        assert_eq!(received(&socket), None, "one source is stuck, and the other is not");

        stuck.store(false, Ordering::SeqCst);
        beat_until(&manager, &sources, &watch, has_beaten).await;
    }

    #[tokio::test]
    async fn a_database_that_is_stuck_stops_the_heartbeat() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("notify");
        let socket = UnixDatagram::bind(&path).unwrap();
        socket.set_nonblocking(true).unwrap();
        let manager = ServiceManager::connect(path.as_os_str(), Some(Duration::from_secs(3))).unwrap();
        let state = ServerState::open(&dir.path().join("drophammer.sqlite"), Duration::ZERO).unwrap();
        let heard = crate::tests::CapturedLog::default();
        let watch = ServerLog::json_into(heard.clone());
        let sources = [HeartbeatSource::for_database(&state)];
        beat_until(&manager, &sources, &watch, || received(&socket).is_some_and(|message| message == "WATCHDOG=1"))
            .await;
        let (release, until) = std::sync::mpsc::channel();
        state.block_thread(until);
        while received(&socket).is_some() {}
        beat_until(&manager, &sources, &watch, || heard.text().contains("the database: no response within 1 s")).await;
        assert_eq!(received(&socket), None);
        drop(release);
        beat_until(&manager, &sources, &watch, || received(&socket).is_some()).await;
    }

    #[tokio::test]
    async fn without_a_service_manager_nothing_is_sent() {
        let manager = ServiceManager::default();
        manager.notify_ready();
        let watch = ServerLog::json_into(std::io::sink());
        beat_until(&manager, &[], &watch, || true).await;
    }
}
