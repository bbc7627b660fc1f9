//! Migration of a machine to the hardware of another one: the order, its states, and their transitions. Pure.
//!
//! `disk_mapping` selects the disks of the target machine, `certificate_approval` decides which certificates are trusted, and `cert_seen`
//! remembers which have been shown. `migrations` stores migrations.

pub mod cert_seen;
pub mod certificate_approval;
pub mod disk_mapping;
#[cfg(any(test, feature = "testing"))]
pub mod testing;
#[cfg(test)]
mod tests;

use crate::token::TokenHash;
use crate::{ATTEMPTS, AttemptStart};
use certificate_approval::ApprovedCertificates;
use model::install_marker::{FencingToken, InstallMarker, RecordedDisk};
use model::migration::{self, MigratedMachine, MigrationSide, MigrationStatus};
use serde::{Deserialize, Serialize};
use std::fmt;

/// State of a migration. `docs/move-machine.md` describes each.
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
    pub const ALL: [MigrationState; 7] = [
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

    /// Returns whether the migration has not ended.
    pub fn is_open(self) -> bool {
        matches!(
            self,
            MigrationState::Ordered | MigrationState::Planned | MigrationState::Copying | MigrationState::Booting
        )
    }

    /// Returns the role of the machine to which the allocation belongs.
    pub fn owner_role(self) -> MigrationSide {
        match self {
            MigrationState::Booting | MigrationState::Done => MigrationSide::Receive,
            _ => MigrationSide::Send,
        }
    }
}

impl fmt::Display for MigrationState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Machine of a migration that waits in its ramdisk.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct MigrationEndpoint {
    /// Certificate in PEM.
    pub certificate: String,
    /// `HOST:PORT`; empty for the source.
    pub address: String,
    /// Hash of the token of that boot.
    pub boot: TokenHash,
    /// True if the ramdisk has the secret of both machines, with which it verifies its peer.
    #[serde(default)]
    pub has_secret: bool,
}

/// Copy that the target machine has started to write.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct StartedCopy {
    pub disks: Vec<RecordedDisk>,
    /// Hash of the token of the boot that started last.
    pub by: TokenHash,
    /// True if no earlier boot has started.
    pub only: bool,
    /// `sha256:HEX` of the secret of that attempt; `None` from an agent that sends no digest, and in databases of earlier versions.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub secret_digest: Option<String>,
}

/// Migration as ordered, with its progress.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Migration {
    pub id: String,
    /// Id of the source machine.
    pub a: String,
    /// Id of the target machine.
    pub b: String,
    /// Id of the allocation.
    pub allocation: String,
    pub state: MigrationState,
    /// Time of the order, RFC 3339 in UTC.
    pub created: String,
    /// Fencing token of the target's installation; `None` before the order, and in databases of earlier versions.
    #[serde(default)]
    pub fencing: Option<FencingToken>,
    /// Install marker of the source, which is restored if the migration is cancelled.
    pub marker: Option<InstallMarker>,
    /// Disk of the target for each disk name of the layout.
    pub disks: Vec<RecordedDisk>,
    pub carried: Option<MigratedMachine>,
    pub sender: Option<MigrationEndpoint>,
    pub receiver: Option<MigrationEndpoint>,
    pub begun: Option<StartedCopy>,
    /// Number of boots of the target that started and failed.
    pub failures: u32,
    /// Hash of the token of the last boot that failed.
    pub failed: Option<TokenHash>,
    /// Last message of the source.
    pub words_a: String,
    /// Last message of the target.
    pub words_b: String,
    /// True if the operator's files still have to be updated with the result.
    pub files: bool,
    /// True if the operator ordered the migration without approvals: then every certificate is passed on.
    #[serde(default)]
    pub allow_unapproved: bool,
    #[serde(default)]
    pub approved: ApprovedCertificates,
}

/// Current boots of the two machines, if they have registered.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct CurrentBoots {
    pub a: Option<TokenHash>,
    pub b: Option<TokenHash>,
}

/// Event of a migration.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum MigrationEvent {
    /// The machine waits in its ramdisk.
    Stands(MigrationSide, MigrationEndpoint, Option<Box<MigratedMachine>>),
    /// Problem of the machine in that boot, while the migration continues; empty once it is solved.
    Says(MigrationSide, TokenHash, String),
    /// The target requests to pass its point of no return.
    Begins {
        start: AttemptStart,
        now: CurrentBoots,
    },
    Succeeds {
        part: MigrationSide,
        boot: TokenHash,
        /// Digest of the certificate of the source in the boot in which it sent everything, as reported by the target. `None` from an agent
        /// of an earlier version.
        received_from: Option<String>,
        now: CurrentBoots,
    },
    Fails {
        part: MigrationSide,
        boot: TokenHash,
        untouched: bool,
        message: String,
    },
    /// The system runs on the target, as reported by its boot.
    PhonedHome(TokenHash),
    /// The system runs on the target, as confirmed by the operator.
    Finish,
    /// The operator compared these fingerprints with those on the consoles of the machines.
    Approves {
        fingerprints: Vec<String>,
        now: CurrentBoots,
    },
    /// `off`: the operator confirms that the target is switched off.
    Cancel {
        off: bool,
    },
}

/// Boot target of a machine in a migration.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MigrationBoot {
    Ramdisk,
    Disk,
    /// The migration does not affect this.
    AsEver,
}

/// Role of a machine in a migration, when it requests its allocation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MigrationRole {
    /// The machine gets no allocation, and waits.
    Nothing,
    Sends,
    Receives,
    /// The migration does not affect this.
    AsEver,
}

impl Migration {
    /// Returns whether the migration still determines what its machines boot and receive, or which of the operator's files has the
    /// allocation.
    pub fn is_live(&self) -> bool {
        self.state.is_open() || self.files
    }

    /// Returns the role of one of the two machines.
    pub fn role_of(&self, machine: &str) -> MigrationSide {
        if self.a == machine { MigrationSide::Send } else { MigrationSide::Receive }
    }

    /// Returns the id of the other machine.
    pub fn other_machine(&self, machine: &str) -> &str {
        if self.a == machine { &self.b } else { &self.a }
    }

    /// Returns the status as it is sent to the two machines.
    pub fn to_status(&self) -> MigrationStatus {
        MigrationStatus { order: self.id.clone(), state: self.state.name().to_owned() }
    }

    /// Returns what the machine boots.
    pub fn boot_target(&self, machine: &str) -> MigrationBoot {
        match (self.role_of(machine), self.state) {
            (_, MigrationState::Ordered | MigrationState::Planned | MigrationState::Copying) => MigrationBoot::Ramdisk,
            (MigrationSide::Send, MigrationState::Booting) => MigrationBoot::Ramdisk,
            (MigrationSide::Receive, MigrationState::Booting) => MigrationBoot::Disk,
            (_, MigrationState::Done | MigrationState::Cancelled | MigrationState::Refused) => MigrationBoot::AsEver,
        }
    }

    /// Returns the role of the machine when it requests its allocation.
    pub fn role_in(&self, machine: &str, now: CurrentBoots) -> MigrationRole {
        match (self.role_of(machine), self.state) {
            (MigrationSide::Send, MigrationState::Ordered | MigrationState::Planned | MigrationState::Copying) => {
                MigrationRole::Sends
            }
            (MigrationSide::Send, MigrationState::Booting) => MigrationRole::Nothing,
            // The source is present, and its contents are known.
            (MigrationSide::Receive, MigrationState::Ordered)
                if self.carried.is_some() && self.present_endpoint(MigrationSide::Send, now).is_some() =>
            {
                MigrationRole::Receives
            }
            (MigrationSide::Receive, MigrationState::Ordered) => MigrationRole::Nothing,
            (MigrationSide::Receive, MigrationState::Planned | MigrationState::Copying) => MigrationRole::Receives,
            (MigrationSide::Receive, MigrationState::Booting) => MigrationRole::AsEver,
            (_, MigrationState::Done | MigrationState::Cancelled | MigrationState::Refused) => MigrationRole::AsEver,
        }
    }

    /// Returns the machine with that role, if it waits in its current boot.
    pub fn present_endpoint(&self, part: MigrationSide, now: CurrentBoots) -> Option<&MigrationEndpoint> {
        let (end, boot) = match part {
            MigrationSide::Send => (self.sender.as_ref()?, now.a?),
            MigrationSide::Receive => (self.receiver.as_ref()?, now.b?),
        };
        (end.boot == boot).then_some(end)
    }

    /// Returns whether the target should boot again immediately after a failure.
    pub fn should_retry(&self) -> bool {
        self.state == MigrationState::Copying && self.failures < ATTEMPTS
    }

    /// Returns the migration after an event; unchanged if the event has no effect.
    ///
    /// # Errors
    /// Why the event is rejected. Its sender must not continue.
    pub fn apply_event(&self, word: &MigrationEvent) -> Result<Migration, String> {
        match word {
            MigrationEvent::Stands(part, end, carried) => self.register_endpoint(*part, end, carried.as_deref()),
            MigrationEvent::Says(part, boot, words) => Ok(self.set_problem(*part, *boot, words)),
            MigrationEvent::Begins { start, now } => self.start_copy(start, *now),
            MigrationEvent::Succeeds { part, boot, received_from, now } => {
                self.complete_copy((*part, *boot), received_from.as_deref(), *now)
            }
            MigrationEvent::Fails { part, boot, untouched, message } => {
                Ok(self.record_failure(*part, *boot, *untouched, message))
            }
            MigrationEvent::PhonedHome(boot) => {
                let is_it = self.receiver.as_ref().is_some_and(|end| end.boot == *boot);
                Ok(if self.state == MigrationState::Booting && is_it {
                    self.with_state(MigrationState::Done)
                } else {
                    self.clone()
                })
            }
            MigrationEvent::Finish => match self.state {
                MigrationState::Booting => Ok(self.with_state(MigrationState::Done)),
                MigrationState::Done => Ok(self.clone()),
                state => Err(format!("the migration is {state}: only one that is booting can be finished")),
            },
            MigrationEvent::Cancel { off } => self.cancel(*off),
            MigrationEvent::Approves { fingerprints, now } => self.approve_certificates(fingerprints, *now),
        }
    }

    fn with_state(&self, state: MigrationState) -> Migration {
        Migration { state, ..self.clone() }
    }

    fn register_endpoint(
        &self,
        part: MigrationSide,
        end: &MigrationEndpoint,
        carried: Option<&MigratedMachine>,
    ) -> Result<Migration, String> {
        if !matches!(self.state, MigrationState::Ordered | MigrationState::Planned | MigrationState::Copying) {
            return Err(format!("the migration is {}", self.state));
        }
        let mut next = self.clone();
        match part {
            MigrationSide::Send => {
                let carried = carried.ok_or("the source machine must describe its contents: carried is missing")?;
                if carried.marker.allocation != self.allocation {
                    return Err(format!(
                        "the install marker on its disks is of allocation {:?}, but {:?} is migrated",
                        carried.marker.allocation, self.allocation
                    ));
                }
                next.carried = Some(carried.clone());
                next.sender = Some(end.clone());
            }
            MigrationSide::Receive if self.sender.is_none() => {
                return Err("the source machine is not waiting in its ramdisk yet".to_owned());
            }
            MigrationSide::Receive => next.receiver = Some(end.clone()),
        }
        if next.sender.is_some() && next.receiver.is_some() && next.state == MigrationState::Ordered {
            next.state = MigrationState::Planned;
        }
        Ok(next)
    }

    fn set_problem(&self, part: MigrationSide, boot: TokenHash, words: &str) -> Migration {
        let mut next = self.clone();
        let (end, said) = match part {
            MigrationSide::Send => (&self.sender, &mut next.words_a),
            MigrationSide::Receive => (&self.receiver, &mut next.words_b),
        };
        if self.state.is_open() && end.as_ref().is_some_and(|end| end.boot == boot) {
            words.clone_into(said);
        }
        next
    }

    fn start_copy(&self, start: &AttemptStart, now: CurrentBoots) -> Result<Migration, String> {
        let AttemptStart { by: boot, disks, secret_digest } = start.clone();
        let stands = self.receiver.as_ref().is_some_and(|end| end.boot == boot) && now.b == Some(boot);
        match self.state {
            MigrationState::Planned | MigrationState::Copying if !stands => {
                return Err("this boot is not the one in which the machine waits for the migration".to_owned());
            }
            MigrationState::Planned if self.present_endpoint(MigrationSide::Send, now).is_none() => {
                return Err("the source machine is not waiting in its ramdisk".to_owned());
            }
            MigrationState::Planned | MigrationState::Copying if self.approval_is_missing() => {
                return Err(self.explain_missing_approval());
            }
            MigrationState::Planned | MigrationState::Copying => {}
            state => return Err(format!("the migration is {state}")),
        }
        let expected = self.begun.as_ref().map_or(&self.disks, |begun| &begun.disks);
        if let Some(why) = disk_mapping::explain_other_disk(expected, &disks) {
            return Err(why);
        }
        let only = self.begun.as_ref().is_none_or(|begun| begun.only && begun.by == boot);
        let begun = Some(StartedCopy { disks, by: boot, only, secret_digest });
        Ok(Migration { begun, ..self.with_state(MigrationState::Copying) })
    }

    fn complete_copy(
        &self,
        (part, boot): (MigrationSide, TokenHash),
        from: Option<&str>,
        now: CurrentBoots,
    ) -> Result<Migration, String> {
        let has_begun = self.begun.as_ref().is_some_and(|begun| begun.by == boot);
        match (part, self.state) {
            (MigrationSide::Receive, MigrationState::Copying) if has_begun && !self.is_source_unchanged(from, now) => {
                Err(format!(
                    "machine {} has booted again since everything was received, and its own system may have written in between: it must be received again",
                    self.a
                ))
            }
            (MigrationSide::Receive, MigrationState::Copying) if has_begun => {
                let (words_a, words_b) = Default::default();
                Ok(Migration { files: true, words_a, words_b, ..self.with_state(MigrationState::Booting) })
            }
            (MigrationSide::Receive, MigrationState::Copying) => Err("this boot has not started to receive".to_owned()),
            (MigrationSide::Receive, MigrationState::Booting | MigrationState::Done) if has_begun => Ok(self.clone()),
            // The boot was sent to the installed system before the migration was ordered. Once a later boot waits in its ramdisk, a delayed
            // report of that boot proves nothing.
            (MigrationSide::Send, MigrationState::Ordered) if self.sender.is_none() => Ok(self.clone()),
            (MigrationSide::Send, state) => {
                Err(format!("its system is being migrated to machine {}: the migration is {state}", self.b))
            }
            (MigrationSide::Receive, state) => {
                Err(format!("the migration is {state}: this machine has not received a system to boot"))
            }
        }
    }

    /// Returns whether the source is in the boot in which it sent everything. A boot that has not registered cannot be noticed.
    fn is_source_unchanged(&self, from: Option<&str>, now: CurrentBoots) -> bool {
        let Some(sender) = &self.sender else { return false };
        let is_it = from.is_none_or(|from| from == migration::certificate_digest(&sender.certificate));
        is_it && now.a.is_none_or(|boot| boot == sender.boot)
    }

    fn record_failure(&self, part: MigrationSide, boot: TokenHash, untouched: bool, message: &str) -> Migration {
        let mut next = self.clone();
        let is_begun =
            matches!(self.state, MigrationState::Ordered | MigrationState::Planned | MigrationState::Copying);
        if !is_begun && self.state != MigrationState::Booting {
            return next;
        }
        match part {
            MigrationSide::Send => message.clone_into(&mut next.words_a),
            MigrationSide::Receive => message.clone_into(&mut next.words_b),
        }
        let is_only = self.begun.as_ref().is_some_and(|begun| begun.only && begun.by == boot);
        match (part, self.state) {
            (MigrationSide::Send, MigrationState::Ordered | MigrationState::Planned) => {
                next.state = MigrationState::Refused
            }
            (MigrationSide::Receive, MigrationState::Ordered | MigrationState::Planned) if untouched => {
                next.state = MigrationState::Refused
            }
            // It has written without permission. No boot may report that everything was received before one has started.
            (MigrationSide::Receive, MigrationState::Ordered | MigrationState::Planned) => {
                next.state = MigrationState::Copying;
                next.begun = Some(StartedCopy {
                    disks: self.disks.clone(),
                    by: TokenHash::default(),
                    only: false,
                    secret_digest: None,
                });
                next.failures += 1;
                next.failed = Some(boot);
            }
            (MigrationSide::Receive, MigrationState::Copying) if untouched && is_only => {
                next.state = MigrationState::Refused
            }
            (MigrationSide::Receive, MigrationState::Copying) if self.failed != Some(boot) => {
                next.failures += 1;
                next.failed = Some(boot);
            }
            _ => {}
        }
        next
    }

    fn cancel(&self, off: bool) -> Result<Migration, String> {
        match self.state {
            MigrationState::Ordered | MigrationState::Planned | MigrationState::Copying => {
                Ok(self.with_state(MigrationState::Cancelled))
            }
            MigrationState::Booting if off => {
                Ok(Migration { files: true, ..self.with_state(MigrationState::Cancelled) })
            }
            MigrationState::Booting => Err(format!(
                "machine {0} has received everything and may run the system: switch it off, verify that it is off, and confirm that with `--off {0}`",
                self.b
            )),
            state => Err(format!("the migration is {state}: it can no longer be cancelled")),
        }
    }
}
