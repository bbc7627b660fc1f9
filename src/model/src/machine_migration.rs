//! Messages about migrations, and the description of a migrated machine: its filesystems, and the ids that the system
//! uses for partitions and arrays. The source machine reports the description, and the control plane passes it to the
//! target machine, whose plan uses it.

use crate::architecture::Architecture;
use crate::device_name::LayoutPath;
use crate::install_marker::{InstallMarker, RecordedDisk};
use crate::layout::FilesystemFormat;
use common::encoding::format_sha256;
use serde::{Deserialize, Serialize};
use uuid::Uuid;

/// Role of a machine in a migration, with the data that the machine needs for this role. The control plane sends the
/// role and the data in the allocation.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema), schemars(deny_unknown_fields))]
pub struct MigrationOffer {
    /// Id of the migration order.
    pub order: String,
    pub part: MigrationSide,
    /// True if the target machine has passed its point of no return. Only then may data be transferred.
    #[serde(default, rename = "begun")]
    pub started: bool,
    /// True until both certificates are approved, by the operator or automatically with the secret in the ramdisks.
    /// Until then, the target machine must not erase its disks.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub awaits_approval: bool,
    /// The other machine of the migration, if that machine is running in its ramdisk. The certificate of that machine
    /// changes at each boot.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub peer: Option<MigrationPeer>,
    /// Description of the migrated data; only sent to the target machine.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schemars(with = "Option<serde_json::Value>"))]
    pub carried: Option<MigratedMachine>,
    /// Disk of the target machine for each disk of the layout; only sent to the target machine.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub disks: Vec<RecordedDisk>,
}

/// Role of a machine in a migration.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub enum MigrationSide {
    /// The source machine, whose disks are only read.
    #[serde(rename = "send")]
    Source,
    #[serde(rename = "receive")]
    Target,
}

/// Latest migration of a machine, and the state of this migration. A machine without a role in a migration detects the
/// end of the migration from this status.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema), schemars(deny_unknown_fields))]
pub struct MigrationStatus {
    /// Id of the migration order.
    pub order: String,
    /// State of the migration: `ordered`, `planned`, `copying`, `booting`, `done`, `cancelled` or `refused`.
    pub state: String,
}

/// State of a migration for a machine that waits in its ramdisk, derived from a response of the control plane.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MigrationAnswer<'m> {
    /// The migration continues, and the machine has this role.
    Role(&'m MigrationOffer),
    /// The migration is in this state and has not ended. The machine currently has no role, and must wait.
    Waiting(&'m str),
    /// The migration has succeeded, and the system runs on the target machine.
    Done,
    /// The migration was canceled or refused, or it was superseded by the order of another migration.
    Ended,
    /// The response does not mention any migration, because the control plane has an earlier version or has lost the
    /// migration order. The migration has not necessarily ended.
    Unmentioned,
}

/// Derives the state of the migration with the id `order`. The end of a migration takes precedence over a role, because
/// the end is final.
pub fn interpret_answer<'m>(
    order: &str,
    part: Option<&'m MigrationOffer>,
    newest: Option<&'m MigrationStatus>,
) -> MigrationAnswer<'m> {
    let part = part.filter(|part| part.order == order);
    match (newest, part) {
        (Some(newest), _) if newest.order != order => MigrationAnswer::Ended,
        (Some(newest), _) if newest.state == "done" => MigrationAnswer::Done,
        (Some(newest), _) if newest.state == "cancelled" || newest.state == "refused" => MigrationAnswer::Ended,
        (_, Some(part)) => MigrationAnswer::Role(part),
        (Some(newest), None) => MigrationAnswer::Waiting(&newest.state),
        (None, None) => MigrationAnswer::Unmentioned,
    }
}

/// The other machine of a migration.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema), schemars(deny_unknown_fields))]
pub struct MigrationPeer {
    /// Certificate in PEM. If both ramdisks have a secret, a signature precedes the certificate.
    pub certificate: String,
    /// `HOST:PORT` on which the target machine listens; empty if this is the source machine.
    #[serde(default)]
    pub address: String,
    /// True if the operator has approved this certificate, or has ordered the migration without approvals. An agent
    /// without the secret trusts only approved certificates.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub approved: bool,
}

impl MigrationPeer {
    /// Returns the digest of the certificate, which identifies the current boot of the machine.
    pub fn digest(&self) -> String {
        certificate_digest(&self.certificate)
    }
}

/// Returns `sha256:HEX` of a certificate, in the form in which the control plane passes it to the peer.
pub fn certificate_digest(certificate: &str) -> String {
    format_sha256(certificate)
}

/// Report about a migration, which a machine sends after each boot.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema), schemars(deny_unknown_fields))]
pub struct MigrationReport {
    /// Id of the migration order.
    pub order: String,
    pub certificate: String,
    /// Port on which the target machine listens. The source address of the report is the address of the target machine.
    #[serde(default)]
    pub port: Option<u16>,
    /// Description of the migrated data; only sent by the source machine.
    #[serde(default)]
    #[cfg_attr(feature = "schema", schemars(with = "Option<serde_json::Value>"))]
    pub carried: Option<MigratedMachine>,
    /// Problem that delays but does not stop the migration; `None` if there is no such problem, or if the problem is
    /// resolved.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub words: Option<String>,
    /// True if the ramdisk contains the secret that both machines share. The machine can then verify its peer without
    /// an approval of the operator.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub has_secret: bool,
}

/// Description of a migrated machine: the data that belongs to its layout, as found on the disks of the source
/// machine.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct MigratedMachine {
    /// Install marker of the installed system.
    pub marker: InstallMarker,
    pub filesystems: Vec<MigratedFilesystem>,
    #[serde(default)]
    pub arrays: Vec<MigratedArray>,
    #[serde(default)]
    pub partitions: Vec<MigratedPartition>,
    /// Network interfaces, in the order of the inventory.
    #[serde(default)]
    pub nics: Vec<MigratedNic>,
    /// Architecture of the source machine. Earlier versions, which ran only on amd64, omit it.
    #[serde(default, skip_serializing_if = "Architecture::is_default")]
    pub architecture: Architecture,
}

impl MigratedMachine {
    /// Returns whether both descriptions contain filesystems, arrays and partitions with the same ids and sizes. If so,
    /// a plan for one of the described machines also fits the other machine.
    pub fn has_same_content(&self, other: &MigratedMachine) -> bool {
        is_same_set(&self.filesystems, &other.filesystems)
            && is_same_set(&self.arrays, &other.arrays)
            && is_same_set(&self.partitions, &other.partitions)
    }
}

/// Returns whether two lists have the same items, regardless of the order.
fn is_same_set<T: PartialEq>(some: &[T], others: &[T]) -> bool {
    some.len() == others.len() && some.iter().all(|one| others.contains(one))
}

/// Filesystem or other content of a device of the layout.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct MigratedFilesystem {
    /// Name of the device in the layout.
    pub device: LayoutPath,
    pub format: FilesystemFormat,
    /// UUID of the content in the notation of blkid; empty if it has none.
    #[serde(default)]
    pub uuid: String,
    /// Size of the device in bytes.
    pub size_bytes: u64,
    /// Logical sector size of the device, in bytes.
    pub sector_bytes: u32,
}

/// Array of the migrated system. `device` is its name in the layout.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct MigratedArray {
    pub device: LayoutPath,
    pub uuid: Uuid,
}

/// Partition of the migrated system. `device` is its name in the layout.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct MigratedPartition {
    pub device: LayoutPath,
    /// Unique partition GUID (PARTUUID).
    pub guid: Uuid,
}

/// A network interface of the source machine.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct MigratedNic {
    pub name: String,
    pub mac: String,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn part(order: &str) -> MigrationOffer {
        let order = order.to_owned();
        MigrationOffer {
            order,
            part: MigrationSide::Source,
            started: true,
            awaits_approval: false,
            peer: None,
            carried: None,
            disks: Vec::new(),
        }
    }

    fn newest(order: &str, state: &str) -> MigrationStatus {
        MigrationStatus { order: order.to_owned(), state: state.to_owned() }
    }

    /// Responses of control planes with and without a migration status. A missing status does not end a migration.
    #[test]
    fn only_a_final_status_ends_a_migration() {
        let (own, other) = (part("o1"), part("o2"));
        for (part, state, means) in [
            (Some(&own), "copying", MigrationAnswer::Role(&own)),
            (Some(&own), "planned", MigrationAnswer::Role(&own)),
            // The control plane sends no role if it cannot read its own records.
            (None, "copying", MigrationAnswer::Waiting("copying")),
            (None, "ordered", MigrationAnswer::Waiting("ordered")),
            (None, "booting", MigrationAnswer::Waiting("booting")),
            (None, "what a later version calls it", MigrationAnswer::Waiting("what a later version calls it")),
            (None, "done", MigrationAnswer::Done),
            (None, "cancelled", MigrationAnswer::Ended),
            (None, "refused", MigrationAnswer::Ended),
            // The migration ended while the control plane composed the response.
            (Some(&own), "cancelled", MigrationAnswer::Ended),
            (Some(&own), "done", MigrationAnswer::Done),
            (Some(&other), "copying", MigrationAnswer::Waiting("copying")),
        ] {
            assert_eq!(interpret_answer("o1", part, Some(&newest("o1", state))), means, "{state}");
        }
        assert_eq!(interpret_answer("o1", Some(&other), Some(&newest("o2", "ordered"))), MigrationAnswer::Ended);
        // A control plane of an earlier version sends no status.
        assert_eq!(interpret_answer("o1", Some(&own), None), MigrationAnswer::Role(&own));
        for part in [None, Some(&other)] {
            assert_eq!(interpret_answer("o1", part, None), MigrationAnswer::Unmentioned);
        }
    }
}
