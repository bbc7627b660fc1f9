//! Blocking interface to an HTTP control plane, for the agent, which does not use asynchronous code.

use super::http_machine_client::HttpMachineClient;
use super::{AttemptNotice, ControlPlane, ReportAcknowledgement};
use common::error::{Context, Phase, Result};
use model::allocation::{AssignedMachine, ReleasedSecrets, SecretPurpose};
use model::install_report::{InstallResult, ProgressEvent};
use model::inventory::Inventory;
use model::machine_migration::MigrationReport;
use std::time::Duration;
use tokio::runtime::Handle;
use tokio::sync::oneshot;

/// Blocking interface to [`HttpMachineClient`].
pub struct HttpControlPlane {
    client: HttpMachineClient,
    runtime: Handle,
    /// Sender that ends the thread of the runtime when it is dropped.
    _end: oneshot::Sender<()>,
}

impl HttpControlPlane {
    /// Creates the client, and the thread that handles its connections. The thread notices if the server closes a
    /// connection. Without the thread, the next request would be sent over the closed connection, and would fail.
    ///
    /// # Errors
    /// Fails if TLS cannot be set up, or the thread cannot be started.
    pub fn new(url: &str, token: &str, machine: &str) -> Result<HttpControlPlane> {
        let what = || "start the thread of the control plane's client";
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let runtime = runtime.context(Phase::Control, what)?;
        let (end, ended) = oneshot::channel::<()>();
        let handle = runtime.handle().clone();
        let run = move || drop(runtime.block_on(ended));
        std::thread::Builder::new().name("control".to_owned()).spawn(run).context(Phase::Control, what)?;
        Ok(HttpControlPlane { client: HttpMachineClient::new(url, token, machine, None)?, runtime: handle, _end: end })
    }
}

impl ControlPlane for HttpControlPlane {
    fn register_machine(&self, inventory: &Inventory) -> Result<()> {
        self.runtime.block_on(self.client.register_machine(inventory))
    }

    fn stores_inventory(&self) -> bool {
        true
    }

    fn wait_for_allocation(&self, patience: Duration) -> Result<bool> {
        self.runtime.block_on(self.client.wait_for_allocation(patience))
    }

    fn fetch_machine(&self) -> Result<AssignedMachine> {
        self.runtime.block_on(self.client.fetch_machine())
    }

    fn fetch_secrets(&self, purpose: SecretPurpose) -> Result<Option<ReleasedSecrets>> {
        self.runtime.block_on(self.client.fetch_secrets(purpose))
    }

    fn send_event(&self, event: &ProgressEvent) -> Result<()> {
        self.runtime.block_on(self.client.send_event(event))
    }

    fn upload_log(&self, start: u64, text: &str) -> Result<bool> {
        self.runtime.block_on(self.client.upload_log(start, text))
    }

    fn announce_point_of_no_return(&self, notice: &AttemptNotice) -> Result<()> {
        self.runtime.block_on(self.client.announce_point_of_no_return(notice))
    }

    fn report_migration_state(&self, migration_report: &MigrationReport) -> Result<()> {
        self.runtime.block_on(self.client.report_migration_state(migration_report))
    }

    fn report_result(&self, ended: &InstallResult) -> Result<ReportAcknowledgement> {
        self.runtime.block_on(self.client.report_result(ended))
    }
}

#[cfg(test)]
pub(crate) mod tests;
