//! Migration of a machine to the hardware of another machine: the migration order and the states of the migration. The
//! module performs no I/O.
//!
//! `transitions` applies events, `disk_mapping` selects the target's disks, `certificate_approval` decides which
//! certificates are trusted, `certificate_check_record` records which source machines have checked the target's
//! certificate, and `migration_records` stores migrations.

pub mod certificate_approval;
pub mod certificate_check_record;
pub mod disk_mapping;
#[cfg(any(test, feature = "testing"))]
pub mod testing;
#[cfg(test)]
mod tests;
mod transitions;

use crate::token_hash::TokenHash;
use crate::{ATTEMPTS, AttemptStart};
use model::install_marker::{FencingToken, InstallMarker, RecordedDisk};
use model::machine_migration::{MigratedMachine, MigrationSide, MigrationStatus};
use serde::{Deserialize, Serialize};
use std::fmt;

/// State of a migration. `docs/migration.md` describes each state.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum MigrationState {
    Ordered,
    Planned,
    Copying,
    Booting,
    Done,
    Cancelled,
    Refused,
}

impl MigrationState {
    #[cfg(test)]
    pub(crate) const ALL: [MigrationState; 7] = [
        MigrationState::Ordered,
        MigrationState::Planned,
        MigrationState::Copying,
        MigrationState::Booting,
        MigrationState::Done,
        MigrationState::Cancelled,
        MigrationState::Refused,
    ];

    pub fn name(self) -> &'static str {
        match self {
            MigrationState::Ordered => "ordered",
            MigrationState::Planned => "planned",
            MigrationState::Copying => "copying",
            MigrationState::Booting => "booting",
            MigrationState::Done => "done",
            MigrationState::Cancelled => "cancelled",
            MigrationState::Refused => "refused",
        }
    }

    /// Returns true until the migration has ended.
    pub fn is_open(self) -> bool {
        matches!(
            self,
            MigrationState::Ordered | MigrationState::Planned | MigrationState::Copying | MigrationState::Booting
        )
    }

    /// Returns the role of the machine that owns the allocation in this state.
    pub fn owner_role(self) -> MigrationSide {
        match self {
            MigrationState::Booting | MigrationState::Done => MigrationSide::Target,
            _ => MigrationSide::Source,
        }
    }
}

impl fmt::Display for MigrationState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Source or target machine that waits in its ramdisk for the migration.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct MigrationEndpoint {
    /// Certificate in PEM.
    pub certificate: String,
    /// `HOST:PORT` at which the target accepts the data of the migration; empty for the source.
    pub address: String,
    /// Hash of the token of the boot in which the machine waits.
    pub boot: TokenHash,
    /// True if the machine's ramdisk contains the shared secret with which a machine verifies its peer.
    #[serde(default)]
    pub has_secret: bool,
}

/// Copy of the source machine's disks that has started, so the target machine may have written to its own disks.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct StartedCopy {
    pub disks: Vec<RecordedDisk>,
    /// Hash of the token of the target's boot that was the last to pass the point of no return.
    pub by: TokenHash,
    /// True if no earlier boot of the target passed the point of no return.
    pub only: bool,
    /// Digest (`sha256:HEX`) of the secret of the boot that was the last to pass the point of no return; `None` if the
    /// agent sent no digest, and in databases of earlier versions.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub secret_digest: Option<String>,
}

/// Fingerprints of the certificates that the operator approved. A machine creates a new certificate in each boot, and
/// each certificate needs its own approval.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ApprovedCertificates {
    #[serde(rename = "sender")]
    pub source: Option<String>,
    #[serde(rename = "receiver")]
    pub target: Option<String>,
}

/// Order of a migration, and the progress of the migration.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Migration {
    pub id: String,
    /// Id of the source machine.
    #[serde(rename = "a")]
    pub source: String,
    /// Id of the target machine.
    #[serde(rename = "b")]
    pub target: String,
    /// Id of the allocation.
    pub allocation: String,
    pub state: MigrationState,
    /// Time at which the migration was ordered, RFC 3339 in UTC.
    pub created: String,
    /// Fencing token of the target's installation; `None` until the migration is stored, and in older databases.
    #[serde(default)]
    pub fencing: Option<FencingToken>,
    /// Install marker of the source. If the migration is cancelled, this marker is recorded again for the source.
    pub marker: Option<InstallMarker>,
    /// Disk of the target machine for each disk name in the layout.
    pub disks: Vec<RecordedDisk>,
    pub carried: Option<MigratedMachine>,
    #[serde(rename = "sender")]
    pub source_endpoint: Option<MigrationEndpoint>,
    #[serde(rename = "receiver")]
    pub target_endpoint: Option<MigrationEndpoint>,
    #[serde(rename = "begun")]
    pub started_copy: Option<StartedCopy>,
    /// Number of boots of the target that passed the point of no return and failed.
    pub failures: u32,
    /// Hash of the token of the target's last boot that failed.
    pub failed: Option<TokenHash>,
    /// Hash of the token of the source's boot that reported a success. The source has then booted its installed system.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub left: Option<TokenHash>,
    /// Last problem that the source reported.
    #[serde(rename = "words_a")]
    pub source_problem: String,
    /// Last problem that the target reported.
    #[serde(rename = "words_b")]
    pub target_problem: String,
    /// True if the result of the migration must still be applied to the operator's files.
    pub files: bool,
    /// True if the operator ordered the migration without approvals. Each machine's certificate is then sent to its
    /// peer.
    #[serde(default)]
    pub allow_unapproved: bool,
    #[serde(default)]
    pub approved: ApprovedCertificates,
}

/// Current boots of both machines, as hashes of their tokens; `None` for a machine without a registered boot.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct CurrentBoots {
    pub source: Option<TokenHash>,
    pub target: Option<TokenHash>,
}

/// Event of a migration.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum MigrationEvent {
    /// The machine waits in its ramdisk for the migration.
    Waiting(MigrationSide, MigrationEndpoint, Option<Box<MigratedMachine>>),
    /// The machine reports a problem that does not end the migration, or an empty string once the problem is solved.
    ProblemReported(MigrationSide, TokenHash, String),
    /// The target requests permission to pass its point of no return, after which the target may erase its disks.
    StartRequested {
        start: AttemptStart,
        now: CurrentBoots,
    },
    Succeeded {
        part: MigrationSide,
        boot: TokenHash,
        /// Digest of the certificate that the source used when it sent the data, as reported by the target. `None` if
        /// the target's agent is of an earlier version.
        received_from: Option<String>,
        now: CurrentBoots,
    },
    Failed {
        part: MigrationSide,
        boot: TokenHash,
        untouched: bool,
        message: String,
    },
    /// The boot that received the system reports that the system runs on the target.
    PhonedHome(TokenHash),
    /// The operator confirms that the system runs on the target.
    Finished,
    /// The operator has compared these fingerprints with those on the consoles of the machines.
    Approved {
        fingerprints: Vec<String>,
        now: CurrentBoots,
    },
    /// The operator cancels the migration. `off` is true if the operator confirms that the target is switched off.
    Cancelled {
        off: bool,
    },
}

/// Effect of a migration on the boot of a machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum MigrationBoot {
    Ramdisk,
    Disk,
    /// The migration does not affect what the machine boots.
    Unaffected,
}

/// Effect of a migration on a machine that requests its allocation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MigrationRole {
    /// The machine receives no allocation, and waits.
    Waiting,
    Source,
    Target,
    /// The migration does not affect which allocation the machine receives.
    Unaffected,
}

impl Migration {
    /// Returns whether the migration is open, or its result must still be applied to the operator's files.
    pub(crate) fn is_live(&self) -> bool {
        self.state.is_open() || self.files
    }

    /// Returns the role of a machine in the migration. The machine must be the source or the target.
    pub fn role_of(&self, machine: &str) -> MigrationSide {
        if self.source == machine { MigrationSide::Source } else { MigrationSide::Target }
    }

    /// Returns the id of this machine's peer in the migration.
    pub fn other_machine(&self, machine: &str) -> &str {
        if self.source == machine { &self.target } else { &self.source }
    }

    /// Converts the state of the migration to the form that the two machines receive.
    pub fn to_status(&self) -> MigrationStatus {
        MigrationStatus { order: self.id.clone(), state: self.state.name().to_owned() }
    }

    /// Returns the effect of the migration on the boot of this machine.
    pub(crate) fn boot_target(&self, machine: &str) -> MigrationBoot {
        match (self.role_of(machine), self.state) {
            (_, MigrationState::Ordered | MigrationState::Planned | MigrationState::Copying) => MigrationBoot::Ramdisk,
            (MigrationSide::Source, MigrationState::Booting) => MigrationBoot::Ramdisk,
            (MigrationSide::Target, MigrationState::Booting) => MigrationBoot::Disk,
            (_, MigrationState::Done | MigrationState::Cancelled | MigrationState::Refused) => {
                MigrationBoot::Unaffected
            }
        }
    }

    /// Returns the effect of the migration on the machine's request for its allocation.
    pub fn role_in(&self, machine: &str, now: CurrentBoots) -> MigrationRole {
        match (self.role_of(machine), self.state) {
            (MigrationSide::Source, MigrationState::Ordered | MigrationState::Planned | MigrationState::Copying) => {
                MigrationRole::Source
            }
            (MigrationSide::Source, MigrationState::Booting) => MigrationRole::Waiting,
            // The target becomes the receiver once the source waits in its ramdisk, and has described its data.
            (MigrationSide::Target, MigrationState::Ordered)
                if self.carried.is_some() && self.present_endpoint(MigrationSide::Source, now).is_some() =>
            {
                MigrationRole::Target
            }
            (MigrationSide::Target, MigrationState::Ordered) => MigrationRole::Waiting,
            (MigrationSide::Target, MigrationState::Planned | MigrationState::Copying) => MigrationRole::Target,
            (MigrationSide::Target, MigrationState::Booting) => MigrationRole::Unaffected,
            (_, MigrationState::Done | MigrationState::Cancelled | MigrationState::Refused) => {
                MigrationRole::Unaffected
            }
        }
    }

    /// Returns the endpoint with this role, if its machine waits for the migration in its current boot.
    pub fn present_endpoint(&self, part: MigrationSide, now: CurrentBoots) -> Option<&MigrationEndpoint> {
        let (end, boot) = match part {
            MigrationSide::Source => (self.source_endpoint.as_ref()?, now.source?),
            MigrationSide::Target => (self.target_endpoint.as_ref()?, now.target?),
        };
        (end.boot == boot).then_some(end)
    }

    /// Returns whether the target must boot again immediately after a failure, to make another attempt.
    pub fn should_retry(&self) -> bool {
        self.state == MigrationState::Copying && self.failures < ATTEMPTS
    }
}
