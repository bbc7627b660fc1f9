//! Migration of a machine to the hardware of another one: the order, its states, and their transitions. Pure.
//!
//! `pairing` selects the disks of the target machine, `calls` handles the operator's requests and `agents` those of the two machines,
//! `handing` builds the responses to these, and `overlay` and `files` apply the result to the operator's files. `state/moves` stores
//! migrations.

pub mod agents;
pub mod approval;
pub mod calls;
pub mod files;
pub mod handing;
pub mod looks;
pub mod overlay;
pub mod pairing;
#[cfg(test)]
pub mod tests;

use super::state::{ATTEMPTS, AttemptStart};
use super::token::Hash;
use crate::carried::{self, Carried, Newest, Part};
use crate::marker::{FencingToken, MarkedDisk, Marker};
use approval::ApprovedCertificates;
use serde::{Deserialize, Serialize};
use std::fmt;

/// State of a migration. `docs/move-machine.md` describes each.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum MoveState {
    Ordered,
    Planned,
    Copying,
    Booting,
    Done,
    Cancelled,
    Refused,
}

impl MoveState {
    pub const ALL: [MoveState; 7] = [
        MoveState::Ordered,
        MoveState::Planned,
        MoveState::Copying,
        MoveState::Booting,
        MoveState::Done,
        MoveState::Cancelled,
        MoveState::Refused,
    ];

    pub fn name(self) -> &'static str {
        match self {
            MoveState::Ordered => "ordered",
            MoveState::Planned => "planned",
            MoveState::Copying => "copying",
            MoveState::Booting => "booting",
            MoveState::Done => "done",
            MoveState::Cancelled => "cancelled",
            MoveState::Refused => "refused",
        }
    }

    /// Returns whether the migration has not ended.
    pub fn is_open(self) -> bool {
        matches!(self, MoveState::Ordered | MoveState::Planned | MoveState::Copying | MoveState::Booting)
    }

    /// Returns the role of the machine to which the allocation belongs.
    pub fn owner(self) -> Part {
        match self {
            MoveState::Booting | MoveState::Done => Part::Receive,
            _ => Part::Send,
        }
    }
}

impl fmt::Display for MoveState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Machine of a migration that waits in its ramdisk.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct End {
    /// Certificate in PEM.
    pub certificate: String,
    /// `HOST:PORT`; empty for the source.
    pub address: String,
    /// Hash of the token of that boot.
    pub boot: Hash,
    /// True if the ramdisk has the secret of both machines, with which it verifies its peer.
    #[serde(default)]
    pub has_secret: bool,
}

/// Copy that the target machine has started to write.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct BegunCopy {
    pub disks: Vec<MarkedDisk>,
    /// Hash of the token of the boot that started last.
    pub by: Hash,
    /// True if no earlier boot has started.
    pub only: bool,
    /// `sha256:HEX` of the secret of that attempt; `None` from an agent that sends no digest, and in databases of earlier versions.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub secret_digest: Option<String>,
}

/// Migration as ordered, with its progress.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Move {
    pub id: String,
    /// Id of the source machine.
    pub a: String,
    /// Id of the target machine.
    pub b: String,
    /// Id of the allocation.
    pub allocation: String,
    pub state: MoveState,
    /// Time of the order, RFC 3339 in UTC.
    pub created: String,
    /// Fencing token of the target's installation; `None` before the order, and in databases of earlier versions.
    #[serde(default)]
    pub fencing: Option<FencingToken>,
    /// Install marker of the source, which is restored if the migration is cancelled.
    pub marker: Option<Marker>,
    /// Disk of the target for each disk name of the layout.
    pub disks: Vec<MarkedDisk>,
    pub carried: Option<Carried>,
    pub sender: Option<End>,
    pub receiver: Option<End>,
    pub begun: Option<BegunCopy>,
    /// Number of boots of the target that started and failed.
    pub failures: u32,
    /// Hash of the token of the last boot that failed.
    pub failed: Option<Hash>,
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
pub struct Present {
    pub a: Option<Hash>,
    pub b: Option<Hash>,
}

/// Event of a migration.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Word {
    /// The machine waits in its ramdisk.
    Stands(Part, End, Option<Box<Carried>>),
    /// Problem of the machine in that boot, while the migration continues; empty once it is solved.
    Says(Part, Hash, String),
    /// The target requests to pass its point of no return.
    Begins {
        start: AttemptStart,
        now: Present,
    },
    Succeeds {
        part: Part,
        boot: Hash,
        /// Digest of the certificate of the source in the boot in which it sent everything, as reported by the target. `None` from an agent
        /// of an earlier version.
        received_from: Option<String>,
        now: Present,
    },
    Fails {
        part: Part,
        boot: Hash,
        untouched: bool,
        message: String,
    },
    /// The system runs on the target, as reported by its boot.
    PhonedHome(Hash),
    /// The system runs on the target, as confirmed by the operator.
    Finish,
    /// The operator compared these fingerprints with those on the consoles of the machines.
    Approves {
        fingerprints: Vec<String>,
        now: Present,
    },
    /// `off`: the operator confirms that the target is switched off.
    Cancel {
        off: bool,
    },
}

/// Boot target of a machine in a migration.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Boots {
    Ramdisk,
    Disk,
    /// The migration does not affect this.
    AsEver,
}

/// Role of a machine in a migration, when it requests its allocation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Hands {
    /// The machine gets no allocation, and waits.
    Nothing,
    Sends,
    Receives,
    /// The migration does not affect this.
    AsEver,
}

impl Move {
    /// Returns whether the migration still determines what its machines boot and receive, or which of the operator's files has the
    /// allocation.
    pub fn is_live(&self) -> bool {
        self.state.is_open() || self.files
    }

    /// Returns the role of one of the two machines.
    pub fn part(&self, machine: &str) -> Part {
        if self.a == machine { Part::Send } else { Part::Receive }
    }

    /// Returns the id of the other machine.
    pub fn other(&self, machine: &str) -> &str {
        if self.a == machine { &self.b } else { &self.a }
    }

    /// Returns the status as it is sent to the two machines.
    pub fn newest(&self) -> Newest {
        Newest { order: self.id.clone(), state: self.state.name().to_owned() }
    }

    /// Returns what the machine boots.
    pub fn boots(&self, machine: &str) -> Boots {
        match (self.part(machine), self.state) {
            (_, MoveState::Ordered | MoveState::Planned | MoveState::Copying) => Boots::Ramdisk,
            (Part::Send, MoveState::Booting) => Boots::Ramdisk,
            (Part::Receive, MoveState::Booting) => Boots::Disk,
            (_, MoveState::Done | MoveState::Cancelled | MoveState::Refused) => Boots::AsEver,
        }
    }

    /// Returns the role of the machine when it requests its allocation.
    pub fn hands(&self, machine: &str, now: Present) -> Hands {
        match (self.part(machine), self.state) {
            (Part::Send, MoveState::Ordered | MoveState::Planned | MoveState::Copying) => Hands::Sends,
            (Part::Send, MoveState::Booting) => Hands::Nothing,
            // The source is present, and its contents are known.
            (Part::Receive, MoveState::Ordered) if self.carried.is_some() && self.peer(Part::Send, now).is_some() => {
                Hands::Receives
            }
            (Part::Receive, MoveState::Ordered) => Hands::Nothing,
            (Part::Receive, MoveState::Planned | MoveState::Copying) => Hands::Receives,
            (Part::Receive, MoveState::Booting) => Hands::AsEver,
            (_, MoveState::Done | MoveState::Cancelled | MoveState::Refused) => Hands::AsEver,
        }
    }

    /// Returns the machine with that role, if it waits in its current boot.
    pub fn peer(&self, part: Part, now: Present) -> Option<&End> {
        let (end, boot) = match part {
            Part::Send => (self.sender.as_ref()?, now.a?),
            Part::Receive => (self.receiver.as_ref()?, now.b?),
        };
        (end.boot == boot).then_some(end)
    }

    /// Returns whether the target should boot again immediately after a failure.
    pub fn retries(&self) -> bool {
        self.state == MoveState::Copying && self.failures < ATTEMPTS
    }

    /// Returns the migration after an event; unchanged if the event has no effect.
    ///
    /// # Errors
    /// Why the event is rejected. Its sender must not continue.
    pub fn after(&self, word: &Word) -> Result<Move, String> {
        match word {
            Word::Stands(part, end, carried) => self.stands(*part, end, carried.as_deref()),
            Word::Says(part, boot, words) => Ok(self.says(*part, *boot, words)),
            Word::Begins { start, now } => self.begins(start, *now),
            Word::Succeeds { part, boot, received_from, now } => {
                self.succeeds((*part, *boot), received_from.as_deref(), *now)
            }
            Word::Fails { part, boot, untouched, message } => Ok(self.fails(*part, *boot, *untouched, message)),
            Word::PhonedHome(boot) => {
                let is_it = self.receiver.as_ref().is_some_and(|end| end.boot == *boot);
                Ok(if self.state == MoveState::Booting && is_it { self.becomes(MoveState::Done) } else { self.clone() })
            }
            Word::Finish => match self.state {
                MoveState::Booting => Ok(self.becomes(MoveState::Done)),
                MoveState::Done => Ok(self.clone()),
                state => Err(format!("the migration is {state}: only one that is booting can be finished")),
            },
            Word::Cancel { off } => self.cancelled(*off),
            Word::Approves { fingerprints, now } => self.approve(fingerprints, *now),
        }
    }

    fn becomes(&self, state: MoveState) -> Move {
        Move { state, ..self.clone() }
    }

    fn stands(&self, part: Part, end: &End, carried: Option<&Carried>) -> Result<Move, String> {
        if !matches!(self.state, MoveState::Ordered | MoveState::Planned | MoveState::Copying) {
            return Err(format!("the migration is {}", self.state));
        }
        let mut next = self.clone();
        match part {
            Part::Send => {
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
            Part::Receive if self.sender.is_none() => {
                return Err("the source machine is not waiting in its ramdisk yet".to_owned());
            }
            Part::Receive => next.receiver = Some(end.clone()),
        }
        if next.sender.is_some() && next.receiver.is_some() && next.state == MoveState::Ordered {
            next.state = MoveState::Planned;
        }
        Ok(next)
    }

    fn says(&self, part: Part, boot: Hash, words: &str) -> Move {
        let mut next = self.clone();
        let (end, said) = match part {
            Part::Send => (&self.sender, &mut next.words_a),
            Part::Receive => (&self.receiver, &mut next.words_b),
        };
        if self.state.is_open() && end.as_ref().is_some_and(|end| end.boot == boot) {
            words.clone_into(said);
        }
        next
    }

    fn begins(&self, start: &AttemptStart, now: Present) -> Result<Move, String> {
        let AttemptStart { by: boot, disks, secret_digest } = start.clone();
        let stands = self.receiver.as_ref().is_some_and(|end| end.boot == boot) && now.b == Some(boot);
        match self.state {
            MoveState::Planned | MoveState::Copying if !stands => {
                return Err("this boot is not the one in which the machine waits for the migration".to_owned());
            }
            MoveState::Planned if self.peer(Part::Send, now).is_none() => {
                return Err("the source machine is not waiting in its ramdisk".to_owned());
            }
            MoveState::Planned | MoveState::Copying if self.approval_is_missing() => {
                return Err(self.missing_approval());
            }
            MoveState::Planned | MoveState::Copying => {}
            state => return Err(format!("the migration is {state}")),
        }
        let expected = self.begun.as_ref().map_or(&self.disks, |begun| &begun.disks);
        if let Some(why) = pairing::other_disks(expected, &disks) {
            return Err(why);
        }
        let only = self.begun.as_ref().is_none_or(|begun| begun.only && begun.by == boot);
        let begun = Some(BegunCopy { disks, by: boot, only, secret_digest });
        Ok(Move { begun, ..self.becomes(MoveState::Copying) })
    }

    fn succeeds(&self, (part, boot): (Part, Hash), from: Option<&str>, now: Present) -> Result<Move, String> {
        let has_begun = self.begun.as_ref().is_some_and(|begun| begun.by == boot);
        match (part, self.state) {
            (Part::Receive, MoveState::Copying) if has_begun && !self.is_present(from, now) => Err(format!(
                "machine {} has booted again since everything was received, and its own system may have written in between: it must be received again",
                self.a
            )),
            (Part::Receive, MoveState::Copying) if has_begun => {
                let (words_a, words_b) = Default::default();
                Ok(Move { files: true, words_a, words_b, ..self.becomes(MoveState::Booting) })
            }
            (Part::Receive, MoveState::Copying) => Err("this boot has not started to receive".to_owned()),
            (Part::Receive, MoveState::Booting | MoveState::Done) if has_begun => Ok(self.clone()),
            // The boot was sent to the installed system before the migration was ordered. Once a later boot waits in its ramdisk, a delayed
            // report of that boot proves nothing.
            (Part::Send, MoveState::Ordered) if self.sender.is_none() => Ok(self.clone()),
            (Part::Send, state) => {
                Err(format!("its system is being migrated to machine {}: the migration is {state}", self.b))
            }
            (Part::Receive, state) => {
                Err(format!("the migration is {state}: this machine has not received a system to boot"))
            }
        }
    }

    /// Returns whether the source is in the boot in which it sent everything. A boot that has not registered cannot be noticed.
    fn is_present(&self, from: Option<&str>, now: Present) -> bool {
        let Some(sender) = &self.sender else { return false };
        let is_it = from.is_none_or(|from| from == carried::digest(&sender.certificate));
        is_it && now.a.is_none_or(|boot| boot == sender.boot)
    }

    fn fails(&self, part: Part, boot: Hash, untouched: bool, message: &str) -> Move {
        let mut next = self.clone();
        let is_begun = matches!(self.state, MoveState::Ordered | MoveState::Planned | MoveState::Copying);
        if !is_begun && self.state != MoveState::Booting {
            return next;
        }
        match part {
            Part::Send => message.clone_into(&mut next.words_a),
            Part::Receive => message.clone_into(&mut next.words_b),
        }
        let is_only = self.begun.as_ref().is_some_and(|begun| begun.only && begun.by == boot);
        match (part, self.state) {
            (Part::Send, MoveState::Ordered | MoveState::Planned) => next.state = MoveState::Refused,
            (Part::Receive, MoveState::Ordered | MoveState::Planned) if untouched => next.state = MoveState::Refused,
            // It has written without permission. No boot may report that everything was received before one has started.
            (Part::Receive, MoveState::Ordered | MoveState::Planned) => {
                next.state = MoveState::Copying;
                next.begun = Some(BegunCopy {
                    disks: self.disks.clone(),
                    by: Hash::default(),
                    only: false,
                    secret_digest: None,
                });
                next.failures += 1;
                next.failed = Some(boot);
            }
            (Part::Receive, MoveState::Copying) if untouched && is_only => next.state = MoveState::Refused,
            (Part::Receive, MoveState::Copying) if self.failed != Some(boot) => {
                next.failures += 1;
                next.failed = Some(boot);
            }
            _ => {}
        }
        next
    }

    fn cancelled(&self, off: bool) -> Result<Move, String> {
        match self.state {
            MoveState::Ordered | MoveState::Planned | MoveState::Copying => Ok(self.becomes(MoveState::Cancelled)),
            MoveState::Booting if off => Ok(Move { files: true, ..self.becomes(MoveState::Cancelled) }),
            MoveState::Booting => Err(format!(
                "machine {0} has received everything and may run the system: switch it off, verify that it is off, and confirm that with `--off {0}`",
                self.b
            )),
            state => Err(format!("the migration is {state}: it can no longer be cancelled")),
        }
    }
}
