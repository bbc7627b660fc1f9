//! Transitions of a migration: the state to which each event leads, or the reason why the event is rejected.

use super::{CurrentBoots, Migration, MigrationEndpoint, MigrationEvent, MigrationState, StartedCopy, disk_mapping};
use crate::AttemptStart;
use crate::token_hash::TokenHash;
use model::machine_migration::{self, MigratedMachine, MigrationSide};

impl Migration {
    /// Returns the migration after an event. The returned migration is unchanged if the event has no effect.
    ///
    /// # Errors
    /// Returns the reason why the event is rejected. The machine that sent the event must not continue.
    pub fn apply_event(&self, word: &MigrationEvent) -> Result<Migration, String> {
        match word {
            MigrationEvent::Waiting(part, end, migrated_machine) => {
                self.register_endpoint(*part, end, migrated_machine.as_deref())
            }
            MigrationEvent::ProblemReported(part, boot, words) => Ok(self.set_problem(*part, *boot, words)),
            MigrationEvent::StartRequested { start, now } => self.start_copy(start, *now),
            MigrationEvent::Succeeded { part, boot, received_from, now } => {
                self.complete_copy((*part, *boot), received_from.as_deref(), *now)
            }
            MigrationEvent::Failed { part, boot, untouched, message } => {
                Ok(self.record_failure(*part, *boot, *untouched, message))
            }
            MigrationEvent::PhonedHome(boot) => {
                let is_it = self.target_endpoint.as_ref().is_some_and(|end| end.boot == *boot);
                Ok(if self.state == MigrationState::Booting && is_it {
                    self.with_state(MigrationState::Done)
                } else {
                    self.clone()
                })
            }
            MigrationEvent::Finished => match self.state {
                MigrationState::Booting => Ok(self.with_state(MigrationState::Done)),
                MigrationState::Done => Ok(self.clone()),
                state => Err(format!("the migration is {state}: only a migration in state `booting` can be finished")),
            },
            MigrationEvent::Cancelled { off } => self.cancel(*off),
            MigrationEvent::Approved { fingerprints, now } => self.approve_certificates(fingerprints, *now),
        }
    }

    fn with_state(&self, state: MigrationState) -> Migration {
        Migration { state, ..self.clone() }
    }

    fn register_endpoint(
        &self,
        part: MigrationSide,
        end: &MigrationEndpoint,
        migrated_machine: Option<&MigratedMachine>,
    ) -> Result<Migration, String> {
        if !matches!(self.state, MigrationState::Ordered | MigrationState::Planned | MigrationState::Copying) {
            return Err(format!("the migration is {}", self.state));
        }
        if part == MigrationSide::Source && self.left == Some(end.boot) {
            return Err("the machine has already reported success in this boot: boot its ramdisk again, so that the machine waits for the migration".to_owned());
        }
        let mut next = self.clone();
        match part {
            MigrationSide::Source => {
                let migrated_machine = migrated_machine.ok_or(
                    "the source machine must describe the system on its disks: the field `carried` is missing",
                )?;
                if migrated_machine.marker.allocation != self.allocation {
                    return Err(format!(
                        "the install marker on the source machine's disks names allocation {marker_allocation:?}, \
                         but allocation {allocation:?} is being migrated",
                        marker_allocation = migrated_machine.marker.allocation,
                        allocation = self.allocation
                    ));
                }
                next.carried = Some(migrated_machine.clone());
                next.source_endpoint = Some(end.clone());
            }
            MigrationSide::Target if self.source_endpoint.is_none() => {
                return Err("the source machine is not waiting in its ramdisk yet".to_owned());
            }
            MigrationSide::Target => next.target_endpoint = Some(end.clone()),
        }
        if next.source_endpoint.is_some() && next.target_endpoint.is_some() && next.state == MigrationState::Ordered {
            next.state = MigrationState::Planned;
        }
        Ok(next)
    }

    fn set_problem(&self, part: MigrationSide, boot: TokenHash, words: &str) -> Migration {
        let mut next = self.clone();
        let (end, said) = match part {
            MigrationSide::Source => (&self.source_endpoint, &mut next.source_problem),
            MigrationSide::Target => (&self.target_endpoint, &mut next.target_problem),
        };
        if self.state.is_open() && end.as_ref().is_some_and(|end| end.boot == boot) {
            words.clone_into(said);
        }
        next
    }

    fn start_copy(&self, start: &AttemptStart, now: CurrentBoots) -> Result<Migration, String> {
        let AttemptStart { by: boot, disks, secret_digest, .. } = start.clone();
        let stands = self.target_endpoint.as_ref().is_some_and(|end| end.boot == boot) && now.target == Some(boot);
        match self.state {
            MigrationState::Planned | MigrationState::Copying if !stands => {
                return Err(
                    "the request comes from a boot other than the one in which the machine waits for the migration"
                        .to_owned(),
                );
            }
            MigrationState::Planned if self.present_endpoint(MigrationSide::Source, now).is_none() => {
                return Err("the source machine is not waiting in its ramdisk".to_owned());
            }
            MigrationState::Planned | MigrationState::Copying if self.approval_is_missing() => {
                return Err(self.explain_missing_approval());
            }
            MigrationState::Planned | MigrationState::Copying => {}
            state => return Err(format!("the migration is {state}: the target machine cannot start to receive")),
        }
        let expected = self.started_copy.as_ref().map_or(&self.disks, |started| &started.disks);
        if let Some(why) = disk_mapping::explain_other_disk(expected, &disks) {
            return Err(why);
        }
        let only = self.started_copy.as_ref().is_none_or(|started| started.only && started.by == boot);
        let started = Some(StartedCopy { disks, by: boot, only, secret_digest });
        Ok(Migration { started_copy: started, ..self.with_state(MigrationState::Copying) })
    }

    fn complete_copy(
        &self,
        (part, boot): (MigrationSide, TokenHash),
        from: Option<&str>,
        now: CurrentBoots,
    ) -> Result<Migration, String> {
        let has_begun = self.started_copy.as_ref().is_some_and(|started| started.by == boot);
        match (part, self.state) {
            (MigrationSide::Target, MigrationState::Copying) if has_begun && !self.is_source_unchanged(from, now) => {
                Err(format!(
                    "source machine {source} has booted again since all data was received, and its own system may have written data since then: the data must be received again",
                    source = self.source
                ))
            }
            (MigrationSide::Target, MigrationState::Copying) if has_begun => {
                let (source_problem, target_problem) = Default::default();
                Ok(Migration {
                    files: true,
                    source_problem,
                    target_problem,
                    ..self.with_state(MigrationState::Booting)
                })
            }
            (MigrationSide::Target, MigrationState::Copying) => {
                Err("the machine has not started to receive the migration's data in this boot".to_owned())
            }
            (MigrationSide::Target, MigrationState::Booting | MigrationState::Done) if has_begun => Ok(self.clone()),
            // The boot of the report has started the installed system before the migration was ordered. If the source
            // already waits in its ramdisk in a later boot, the delayed report is no longer evidence that the installed
            // system runs.
            (MigrationSide::Source, MigrationState::Ordered) if self.source_endpoint.is_none() => {
                Ok(Migration { left: Some(boot), ..self.clone() })
            }
            (MigrationSide::Source, state) => Err(format!(
                "the system of this machine is being migrated to machine {target}: the migration is {state}",
                target = self.target
            )),
            (MigrationSide::Target, state) => {
                Err(format!("the migration is {state}: this machine has not received a system to boot"))
            }
        }
    }

    /// Returns whether the source is still in the boot in which it sent all data. A later boot is noticed only after it
    /// has registered.
    fn is_source_unchanged(&self, from: Option<&str>, now: CurrentBoots) -> bool {
        let Some(sender) = &self.source_endpoint else { return false };
        let is_it = from.is_none_or(|from| from == machine_migration::certificate_digest(&sender.certificate));
        is_it && now.source.is_none_or(|boot| boot == sender.boot)
    }

    fn record_failure(&self, part: MigrationSide, boot: TokenHash, untouched: bool, message: &str) -> Migration {
        let mut next = self.clone();
        let is_begun =
            matches!(self.state, MigrationState::Ordered | MigrationState::Planned | MigrationState::Copying);
        if !is_begun && self.state != MigrationState::Booting {
            return next;
        }
        match part {
            MigrationSide::Source => message.clone_into(&mut next.source_problem),
            MigrationSide::Target => message.clone_into(&mut next.target_problem),
        }
        let is_only = self.started_copy.as_ref().is_some_and(|started| started.only && started.by == boot);
        match (part, self.state) {
            (MigrationSide::Source, MigrationState::Ordered | MigrationState::Planned) => {
                next.state = MigrationState::Refused
            }
            (MigrationSide::Target, MigrationState::Ordered | MigrationState::Planned) if untouched => {
                next.state = MigrationState::Refused
            }
            // The target has written without permission. It must request permission to pass the point of no return
            // before it may report that everything was received.
            (MigrationSide::Target, MigrationState::Ordered | MigrationState::Planned) => {
                next.state = MigrationState::Copying;
                next.started_copy = Some(StartedCopy {
                    disks: self.disks.clone(),
                    by: TokenHash::default(),
                    only: false,
                    secret_digest: None,
                });
                next.failures += 1;
                next.failed = Some(boot);
            }
            (MigrationSide::Target, MigrationState::Copying) if untouched && is_only => {
                next.state = MigrationState::Refused
            }
            (MigrationSide::Target, MigrationState::Copying) if self.failed != Some(boot) => {
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
                "machine {0} has received all data and may run the system: switch the machine off, verify that the machine is off, and confirm this with `--off {0}`",
                self.target
            )),
            state => Err(format!("the migration is {state}: it can no longer be canceled")),
        }
    }
}
