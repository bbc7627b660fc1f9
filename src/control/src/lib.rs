//! Control planes, which assign allocations to machines, and receive their events and reports. A control plane is a
//! server over HTTP, a file, or metal-stack. The rest of the agent does not depend on the type of the control plane.

pub mod agent_api_types;
pub mod boot_digest;
pub mod clock;
#[cfg(any(test, feature = "testing"))]
pub mod fake_control_plane;
mod file_control_plane;
mod http_control_plane;
mod http_machine_client;
pub mod metal_stack;
pub mod retry;

pub use file_control_plane::{FileControl, SignatureVerifier};
pub use http_control_plane::HttpControlPlane;
pub use http_machine_client::HttpMachineClient;
pub use metal_stack::MetalControlPlane;
use operations::StageExtents;

use common::error::{Error, Phase, Result};
use model::allocation::{AssignedMachine, RecordSource, ReleasedSecrets, SecretPurpose};
use model::install_marker::RecordedDisk;
use model::install_report::{InstallResult, ProgressEvent};
use model::inventory::Inventory;
use model::machine_migration::MigrationReport;
use model::pool_machine_disks::KnownDisk;
use serde::{Deserialize, Serialize};
use std::time::Duration;

/// Announcement that an attempt is about to destroy data.
#[derive(Debug, Clone, Copy, Default)]
pub struct AttemptNotice<'a> {
    /// Id of the allocation; empty if the attempt erases the disks of a machine without an allocation.
    pub allocation: &'a str,
    /// Id of the reinstall order; `None` for a first installation.
    pub order: Option<&'a str>,
    /// Disks that the layout selects now. The next attempt must select the same disks.
    pub disks: &'a [RecordedDisk],
    /// Extents of the disks that each stage may write. A control plane may record these extents.
    pub extents: &'a [StageExtents],
    /// Hash that identifies the approved plan. The agent has compared its own plan with this approved plan.
    pub approved: Option<&'a str>,
    /// `sha256:HEX` of the secret that the install marker of this attempt will contain.
    pub secret_digest: Option<&'a str>,
}

/// Interface of one machine to its control plane.
pub trait ControlPlane: Send + Sync {
    /// Registers this machine.
    ///
    /// # Errors
    /// Fails if the control plane cannot be reached within a bounded number of retries, or rejects the registration.
    fn register_machine(&self, inventory: &Inventory) -> Result<()>;

    /// Waits at most `patience` for an allocation. Returns whether the machine has an allocation.
    ///
    /// # Errors
    /// Fails as [`ControlPlane::register_machine`] does.
    fn wait_for_allocation(&self, patience: Duration) -> Result<bool>;

    /// Returns the machine with its allocation.
    ///
    /// # Errors
    /// Fails as [`ControlPlane::register_machine`] does.
    fn fetch_machine(&self) -> Result<AssignedMachine>;

    /// Sends an event once, with a short timeout. The default implementation discards the event.
    ///
    /// # Errors
    /// Fails if the event was not delivered. The caller does not send it again.
    fn send_event(&self, _: &ProgressEvent) -> Result<()> {
        Ok(())
    }

    /// Sends a part of the console log once, with a short timeout. `start` is the offset of the part in the log of this
    /// boot, in bytes. Returns false if the control plane does not store logs.
    ///
    /// # Errors
    /// Fails if the part was not delivered. The caller may send it again.
    fn upload_log(&self, _start: u64, _text: &str) -> Result<bool> {
        Ok(false)
    }

    /// Announces an attempt that is about to destroy data.
    ///
    /// # Errors
    /// Fails as [`ControlPlane::register_machine`] does, or if the allocation or the reinstall order is no
    /// longer in force.
    fn announce_point_of_no_return(&self, notice: &AttemptNotice) -> Result<()>;

    /// Reports the result of an installation, and waits until the report is acknowledged.
    ///
    /// # Errors
    /// Fails if the report was not acknowledged within a bounded number of retries.
    fn report_result(&self, ended: &InstallResult) -> Result<ReportAcknowledgement>;

    /// Reports the state of this machine in a migration: its certificate, its port, and its inventory.
    ///
    /// # Errors
    /// Fails as [`ControlPlane::register_machine`] does, or if the migration order is no longer in
    /// force.
    fn report_migration_state(&self, _: &MigrationReport) -> Result<()> {
        Err(Error::refusal(Phase::Control, "this control plane does not support the migration of machines"))
    }

    /// Returns whether the control plane records installations. If it does not, the install marker on the disks is the
    /// only record.
    fn records_installations(&self) -> bool {
        true
    }

    /// Returns whether the control plane stores the registered inventory of a machine that waits for an allocation, so
    /// that operators can derive a layout from it.
    fn stores_inventory(&self) -> bool {
        false
    }

    /// Requests the secrets for this purpose. Some control planes omit secrets from the allocation, and send them
    /// only in response to this request. Returns `None` if the allocation already contains the secrets, or has none
    /// for this purpose.
    ///
    /// # Errors
    /// Fails as [`ControlPlane::register_machine`] does.
    fn fetch_secrets(&self, _: SecretPurpose) -> Result<Option<ReleasedSecrets>> {
        Ok(None)
    }

    /// Returns where earlier installations of this machine are recorded: at the control plane, or only on the disks.
    fn install_memory(&self) -> RecordSource {
        RecordSource::ControlPlane
    }

    /// Returns the pool to which this machine belongs; `None` if it belongs to no pool. The disks of a machine in a
    /// pool are erased before the machine is allocated, so that its next owner cannot read the data of the previous
    /// owner.
    fn machine_pool(&self) -> Option<&dyn MachinePool> {
        None
    }
}

/// Control plane that allocates a machine to one owner after another.
pub trait MachinePool {
    /// Returns whether this machine is allocated. `at_stake` is true if a wrong `false` would destroy data on the
    /// disks.
    ///
    /// # Errors
    /// Fails if this cannot be determined. A missing response must not count as `false`, because the disks of an
    /// unallocated machine are erased.
    fn is_allocated(&self, at_stake: bool) -> Result<bool>;

    /// Returns the disks of this machine that earlier boots have recorded.
    ///
    /// # Errors
    /// Fails if a record exists but cannot be read.
    fn known_disks(&self) -> Result<Vec<KnownDisk>>;

    /// Records the disks of this machine for later boots.
    ///
    /// # Errors
    /// Fails if the machine cannot store the record, or the storage is full.
    fn remember_disks(&self, disks: &[KnownDisk]) -> Result<()>;
}

/// Returns the received machine if its id is `id`, the id of this machine. Without this check, the allocation of
/// another machine could erase the disks of this machine.
///
/// # Errors
/// Fails if the received machine has another id.
fn require_same_machine(machine: AssignedMachine, id: &str) -> Result<AssignedMachine> {
    match machine.id.eq_ignore_ascii_case(id) {
        true => Ok(machine),
        false => {
            let message = format!(
                "the allocation is for machine {other:?}, but this is machine {id}; nothing will be installed",
                other = machine.id
            );
            Err(Error::new(Phase::Control, message))
        }
    }
}

/// Response of the control plane to a report.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct ReportAcknowledgement {
    /// True if the machine must immediately reboot over PXE, to make another attempt at a failed reinstall.
    #[serde(default)]
    pub retry: bool,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_allocation_of_another_machine_is_refused() {
        let machine = |id: &str| AssignedMachine { id: id.to_owned(), ..AssignedMachine::default() };
        assert_eq!(require_same_machine(machine("4C-1"), "4c-1").unwrap().id, "4C-1");
        for other in ["4c-2", ""] {
            let why = require_same_machine(machine(other), "4c-1").unwrap_err().to_string();
            assert!(why.contains(other) && why.contains("4c-1"), "{why}");
        }
    }
}
