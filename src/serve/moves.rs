//! A whole machine moves to another one's hardware: the order, its states, and what follows from what is heard. Pure.
//!
//! `pairing` finds the disks of the machine that receives, `calls` is the operator's side, `agents` that of the two machines, `handing` what
//! these are told,
//! `overlay` and `files` bring the operator's files to say what the database says. `state/moves` keeps all of it.

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

/// How far a move is. `docs/move-machine.md` has what each means.
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

    /// Is it still to end?
    pub fn is_open(self) -> bool {
        matches!(self, MoveState::Ordered | MoveState::Planned | MoveState::Copying | MoveState::Booting)
    }

    /// Whose the allocation is.
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

/// A machine of a move, as it stands in its ramdisk.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct End {
    /// PEM.
    pub certificate: String,
    /// `HOST:PORT`; empty for the one that sends.
    pub address: String,
    /// Token of that boot, as a hash.
    pub boot: Hash,
    /// The ramdisk has the secret of both machines, and verifies its peer with it.
    #[serde(default)]
    pub has_secret: bool,
}

/// What the receiving machine has begun to write.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct BegunCopy {
    pub disks: Vec<MarkedDisk>,
    /// Token of the boot that has begun last, as a hash.
    pub by: Hash,
    /// No earlier boot has begun.
    pub only: bool,
    /// `sha256:HEX` of the secret of that attempt; none from an agent that sends no digest, and in databases of earlier versions.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub secret_digest: Option<String>,
}

/// The order.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Move {
    pub id: String,
    /// Id of the machine that is moved.
    pub a: String,
    /// Id of the machine that it is moved to.
    pub b: String,
    /// Id of the allocation.
    pub allocation: String,
    pub state: MoveState,
    /// RFC 3339, UTC.
    pub created: String,
    /// Fencing token of what B receives; none before it is ordered, and in databases of earlier versions.
    #[serde(default)]
    pub fencing: Option<FencingToken>,
    /// What A was installed with, which counts again when the move is taken back.
    pub marker: Option<Marker>,
    /// Which disk of B each name of the layout means.
    pub disks: Vec<MarkedDisk>,
    pub carried: Option<Carried>,
    pub sender: Option<End>,
    pub receiver: Option<End>,
    pub begun: Option<BegunCopy>,
    /// Number of boots of B that have begun and failed.
    pub failures: u32,
    /// Token of the last of them, as a hash.
    pub failed: Option<Hash>,
    /// The last words of A and of B.
    pub words_a: String,
    pub words_b: String,
    /// The operator's files do not say yet what this move has come to.
    pub files: bool,
    /// The operator ordered the migration without approvals: every certificate is passed on.
    #[serde(default)]
    pub allow_unapproved: bool,
    #[serde(default)]
    pub approved: ApprovedCertificates,
}

/// The boots that the two machines are in now, as far as they have registered.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Present {
    pub a: Option<Hash>,
    pub b: Option<Hash>,
}

/// What is heard of a move.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Word {
    Stands(Part, End, Option<Box<Carried>>),
    /// What goes wrong at the one with that boot, while all goes on; empty when that is over.
    Says(Part, Hash, String),
    /// B asks to pass its point of no return.
    Begins {
        start: AttemptStart,
        now: Present,
    },
    Succeeds {
        part: Part,
        boot: Hash,
        /// Names the boot of A in which it has sent all, by the word of B. None: an agent of an earlier version.
        received_from: Option<String>,
        now: Present,
    },
    Fails {
        part: Part,
        boot: Hash,
        untouched: bool,
        message: String,
    },
    /// The system runs on B, by the word of its boot.
    PhonedHome(Hash),
    /// The same by the operator's word.
    Finish,
    /// The operator compared these fingerprints with those on the consoles of the machines.
    Approves {
        fingerprints: Vec<String>,
        now: Present,
    },
    /// `off`: B is switched off, by the operator's word.
    Cancel {
        off: bool,
    },
}

/// What a machine of a move boots.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Boots {
    Ramdisk,
    Disk,
    /// The move has no say in it.
    AsEver,
}

/// What a machine of a move is told of the allocation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Hands {
    /// That there is none: it waits.
    Nothing,
    Sends,
    Receives,
    /// The move has no say in it.
    AsEver,
}

impl Move {
    /// Has it still a say in what its machines boot and are told, or in the operator's files?
    pub fn is_live(&self) -> bool {
        self.state.is_open() || self.files
    }

    /// The machine's part. It is one of the two.
    pub fn part(&self, machine: &str) -> Part {
        if self.a == machine { Part::Send } else { Part::Receive }
    }

    /// The other machine.
    pub fn other(&self, machine: &str) -> &str {
        if self.a == machine { &self.b } else { &self.a }
    }

    /// As its machines are told of it.
    pub fn newest(&self) -> Newest {
        Newest { order: self.id.clone(), state: self.state.name().to_owned() }
    }

    /// What the machine boots.
    pub fn boots(&self, machine: &str) -> Boots {
        match (self.part(machine), self.state) {
            (_, MoveState::Ordered | MoveState::Planned | MoveState::Copying) => Boots::Ramdisk,
            (Part::Send, MoveState::Booting) => Boots::Ramdisk,
            (Part::Receive, MoveState::Booting) => Boots::Disk,
            (_, MoveState::Done | MoveState::Cancelled | MoveState::Refused) => Boots::AsEver,
        }
    }

    /// What the machine is told.
    pub fn hands(&self, machine: &str, now: Present) -> Hands {
        match (self.part(machine), self.state) {
            (Part::Send, MoveState::Ordered | MoveState::Planned | MoveState::Copying) => Hands::Sends,
            (Part::Send, MoveState::Booting) => Hands::Nothing,
            // What is to come is known, and who sends it.
            (Part::Receive, MoveState::Ordered) if self.carried.is_some() && self.peer(Part::Send, now).is_some() => {
                Hands::Receives
            }
            (Part::Receive, MoveState::Ordered) => Hands::Nothing,
            (Part::Receive, MoveState::Planned | MoveState::Copying) => Hands::Receives,
            (Part::Receive, MoveState::Booting) => Hands::AsEver,
            (_, MoveState::Done | MoveState::Cancelled | MoveState::Refused) => Hands::AsEver,
        }
    }

    /// The machine with that part, if it stands in the boot that it is in now.
    pub fn peer(&self, part: Part, now: Present) -> Option<&End> {
        let (end, boot) = match part {
            Part::Send => (self.sender.as_ref()?, now.a?),
            Part::Receive => (self.receiver.as_ref()?, now.b?),
        };
        (end.boot == boot).then_some(end)
    }

    /// Should B boot again at once after a failure?
    pub fn retries(&self) -> bool {
        self.state == MoveState::Copying && self.failures < ATTEMPTS
    }

    /// The move after that. The same as before: it is no news.
    ///
    /// # Errors
    /// Why it does not count: whoever has said it must not go on.
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
                state => Err(format!("the move is {state}: only one that is booting can be finished")),
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
            return Err(format!("the move is {}", self.state));
        }
        let mut next = self.clone();
        match part {
            Part::Send => {
                let carried = carried.ok_or("the machine that is moved says what it has: carried is missing")?;
                if carried.marker.allocation != self.allocation {
                    return Err(format!(
                        "the marker on its disks is of allocation {:?}, and {:?} is moved",
                        carried.marker.allocation, self.allocation
                    ));
                }
                next.carried = Some(carried.clone());
                next.sender = Some(end.clone());
            }
            Part::Receive if self.sender.is_none() => {
                return Err("the machine that is moved does not stand in its ramdisk yet".to_owned());
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
                return Err("another boot of this machine stands for the move, or none".to_owned());
            }
            MoveState::Planned if self.peer(Part::Send, now).is_none() => {
                return Err("the machine that is moved does not stand in its ramdisk now".to_owned());
            }
            MoveState::Planned | MoveState::Copying if self.approval_is_missing() => {
                return Err(self.missing_approval());
            }
            MoveState::Planned | MoveState::Copying => {}
            state => return Err(format!("the move is {state}")),
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
                "machine {} has booted again since all was received, and its own system may have written in between: it has to be received anew",
                self.a
            )),
            (Part::Receive, MoveState::Copying) if has_begun => {
                let (words_a, words_b) = Default::default();
                Ok(Move { files: true, words_a, words_b, ..self.becomes(MoveState::Booting) })
            }
            (Part::Receive, MoveState::Copying) => Err("this boot has not begun to receive".to_owned()),
            (Part::Receive, MoveState::Booting | MoveState::Done) if has_begun => Ok(self.clone()),
            // The boot was told to start the installed system before the migration was ordered. Once a later boot waits in its ramdisk, a
            // delayed report of that boot proves nothing.
            (Part::Send, MoveState::Ordered) if self.sender.is_none() => Ok(self.clone()),
            (Part::Send, state) => Err(format!("its system is being moved to machine {}: the move is {state}", self.b)),
            (Part::Receive, state) => Err(format!("the move is {state}: this machine has nothing of it to boot")),
        }
    }

    /// Is A in no other boot than the one in which it has sent all? A boot that is not heard of cannot be told from none.
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
            // It has written without having asked. No boot may say that it has received all before one has begun.
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
                "machine {0} has received all and may run the system: switch it off, see to it that it is off, and say so with `--off {0}`",
                self.b
            )),
            state => Err(format!("the move is {state}: nothing of it can be taken back")),
        }
    }
}
