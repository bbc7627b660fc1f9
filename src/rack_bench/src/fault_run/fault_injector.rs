//! Injection of the planned faults into the running servers and their database.

use super::fault_plan::{FaultKind, PlannedFault};
use super::history::HistoryRecorder;
use super::load_balancer::LoadBalancer;
use super::postgres_process::PostgresProcess;
use super::server_process::ServerProcess;
use common::error::{Error, Phase, Result};
use nix::sys::signal::Signal;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Time for which a killed server stays down.
const DOWNTIME: Duration = Duration::from_millis(500);
/// Pause between the recovery of both servers and the next fault.
const FAULT_INTERVAL: Duration = Duration::from_millis(300);
/// Time within which both servers must be ready after a fault.
const RECOVERY_TIMEOUT: Duration = Duration::from_secs(90);

/// Servers, database and load balancer of a run.
pub struct FaultTarget {
    pub servers: [ServerProcess; 2],
    pub postgres: PostgresProcess,
    pub balancer: Arc<LoadBalancer>,
}

/// Fault that was injected.
#[derive(Debug, Clone)]
pub struct InjectedFault {
    pub fault: PlannedFault,
    /// Time at which the takeover starts, in seconds since the start of the run: the beginning of the fault or, if the
    /// fault affects both servers, the end of the fault.
    pub began: f64,
    /// Addresses of the clients that were connected to the affected server, or to both servers if the fault affects
    /// both.
    pub clients: Vec<IpAddr>,
    /// Time from the end of the fault until both servers were ready again, in seconds.
    pub recovery: f64,
    /// Measured shift of the server's clock in seconds; 0 if the fault is not a wrong clock.
    pub clock_shift: i64,
}

impl FaultTarget {
    /// Injects a fault, ends it, and waits until both servers are ready.
    ///
    /// # Errors
    /// Returns an error if the fault cannot be injected, or the servers do not become ready.
    pub async fn inject(&self, fault: PlannedFault, history: &HistoryRecorder) -> Result<InjectedFault> {
        let mut began = history.elapsed();
        let mut clients = self.balancer.clients_of(fault.server);
        if fault.kind.affects_both_servers() {
            clients.extend(self.balancer.clients_of(1 - fault.server));
        }
        let clock_shift = self.run_fault(fault).await?;
        let ended = history.elapsed();
        if fault.kind.affects_both_servers() {
            began = ended;
        }
        let recovery = self.wait_until_ready().await.map_err(|error| {
            Error::new(Phase::Control, format!("after the fault `{}`: {error}", fault.kind.describe()))
        })?;
        tokio::time::sleep(FAULT_INTERVAL).await;
        Ok(InjectedFault { fault, began, clients, recovery, clock_shift })
    }

    /// Starts the fault, waits, and ends it. Returns the measured shift of the clock.
    async fn run_fault(&self, fault: PlannedFault) -> Result<i64> {
        let (server, pause) = (&self.servers[fault.server], tokio::time::sleep(fault.duration));
        match fault.kind {
            FaultKind::ServerKilled => {
                server.kill();
                tokio::time::sleep(DOWNTIME).await;
                server.start().await?;
            }
            FaultKind::ServerPaused => {
                server.signal(Signal::SIGSTOP)?;
                pause.await;
                server.signal(Signal::SIGCONT)?;
            }
            FaultKind::ServerUnreachable => {
                let link = &self.balancer.backends[fault.server].link;
                link.cut();
                pause.await;
                link.repair();
            }
            FaultKind::DatabaseUnreachable => {
                server.database_link.cut();
                pause.await;
                server.database_link.repair();
            }
            FaultKind::PostgresRestarted => self.postgres.restart(Signal::SIGINT).await?,
            FaultKind::PostgresCrashed => self.postgres.restart(Signal::SIGQUIT).await?,
            FaultKind::PostgresHung => {
                self.postgres.signal_all(Signal::SIGSTOP)?;
                pause.await;
                self.postgres.signal_all(Signal::SIGCONT)?;
            }
            FaultKind::ClockWrong => {
                server.set_clock(fault.clock_shift)?;
                pause.await;
                let shift = server.clock_shift().await?;
                server.set_clock(0)?;
                return Ok(shift);
            }
        }
        Ok(0)
    }

    /// Waits until both servers pass the check of the load balancer. Returns the elapsed time in seconds.
    async fn wait_until_ready(&self) -> Result<f64> {
        let began = Instant::now();
        // The pause comes first, because the load balancer may have made its last check of a server before the fault.
        tokio::time::sleep(Duration::from_millis(700)).await;
        while !self.balancer.are_all_ready() {
            for server in &self.servers {
                if let Some(status) = server.exit_status() {
                    return Err(Error::new(Phase::Control, format!("a server has ended by itself: {status}")));
                }
            }
            if began.elapsed() > RECOVERY_TIMEOUT {
                return Err(Error::new(Phase::Control, "the servers are not ready"));
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        Ok(began.elapsed().as_secs_f64())
    }
}
