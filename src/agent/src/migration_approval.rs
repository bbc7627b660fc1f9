//! Waiting for the operator's approval, on the receiving machine of a migration. The machine waits after the plan is
//! made, and before its disks are erased.

use super::InstallAgent;
use super::failure_handling::InstallFailure;
use super::migration_sender::POLL_INTERVAL;
use common::error::{Error, Phase, Result};
use common::error_code::ErrorCode;
use model::allocation::Allocation;
use model::install_report::EventName;
use model::machine_migration::{MigrationAnswer, MigrationOffer};
use std::thread;
use transfer::machine_migration::{ControlSilence, IncomingMigration, OwnIdentity, SilenceState};

/// Returns the message that both machines show while they wait.
pub(crate) fn describe_approval_wait(own: &OwnIdentity) -> String {
    format!(
        "for the operator's approval of both machines' certificates; fingerprint of this machine's certificate: {fingerprint}",
        fingerprint = own.fingerprint()
    )
}

/// State of the operator's approval, derived from a response of the control plane.
#[derive(Debug, PartialEq, Eq)]
enum ApprovalStatus {
    Approved,
    /// The approval is still missing, and nothing has been written. Contains the reason for the wait.
    Awaited(String),
    /// The migration has ended. Contains the reason.
    Ended(&'static str),
}

impl InstallAgent {
    /// Waits until both certificates are approved or verified by a secret, and the sender is known. Until then, nothing
    /// is written to the disks.
    ///
    /// # Errors
    /// Fails if the migration has ended or the token of this boot has expired.
    pub(super) fn await_approval(
        &self,
        allocation: &Allocation,
        incoming: &IncomingMigration,
    ) -> Result<(), Box<InstallFailure>> {
        let Some(moving) = &allocation.moving else { return Ok(()) };
        let (mut silence, mut shown) = (ControlSilence::default(), String::new());
        loop {
            let machine = match self.control.fetch_machine() {
                Ok(machine) => machine,
                Err(error) if error.is_refusal() => return Err(Box::new(InstallFailure::new_expired_token(error))),
                Err(error) => {
                    silence.reset();
                    self.reporter.print_line(&format!("{error}"));
                    thread::sleep(POLL_INTERVAL);
                    continue;
                }
            };
            let failed = |error| Box::new(InstallFailure::new_before_plan("move.approve", error));
            match evaluate_approval(machine.migration_status(&moving.order), incoming, &mut silence).map_err(failed)? {
                ApprovalStatus::Approved => return Ok(()),
                ApprovalStatus::Ended(why) => {
                    return Err(failed(Error::denial(Phase::Move, why).with_code(ErrorCode::MigrationEnded)));
                }
                ApprovalStatus::Awaited(what) if what == shown => {}
                ApprovalStatus::Awaited(what) => {
                    self.reporter.start_phase(EventName::Waiting, &what);
                    shown = what;
                }
            }
            thread::sleep(POLL_INTERVAL);
        }
    }
}

/// Evaluates a response of the control plane.
///
/// # Errors
/// Fails if the sender's certificate is not valid, or is not signed with the secret.
fn evaluate_approval(
    said: MigrationAnswer,
    incoming: &IncomingMigration,
    silence: &mut ControlSilence,
) -> Result<ApprovalStatus> {
    if said != MigrationAnswer::Unmentioned {
        silence.reset();
    }
    Ok(match said {
        MigrationAnswer::Role(MigrationOffer { peer, awaits_approval, .. }) => {
            peer.iter().try_for_each(|peer| incoming.set_peer(peer))?;
            match (awaits_approval, incoming.knows_sender()) {
                (false, true) => ApprovalStatus::Approved,
                (true, _) => ApprovalStatus::Awaited(describe_approval_wait(incoming.own())),
                (false, false) => ApprovalStatus::Awaited("for the sending machine".to_owned()),
            }
        }
        MigrationAnswer::Waiting(state) => ApprovalStatus::Awaited(format!(
            "for the control plane: the migration is {state}, but the response has no instructions for this machine"
        )),
        MigrationAnswer::Done | MigrationAnswer::Ended => {
            ApprovalStatus::Ended("the migration has ended; nothing was written")
        }
        MigrationAnswer::Unmentioned => match silence.record_silence() {
            SilenceState::TimedOut => ApprovalStatus::Ended("the control plane no longer reports the migration"),
            SilenceState::Started | SilenceState::Continued => {
                ApprovalStatus::Awaited("for the control plane to report the migration".to_owned())
            }
        },
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use model::machine_migration::{MigrationPeer, MigrationSide};
    use std::path::Path;

    fn own() -> OwnIdentity {
        OwnIdentity::generate_identity(Path::new("/there/is/no/secret")).unwrap()
    }

    fn part(approved: bool, awaits_approval: bool) -> MigrationOffer {
        let peer = MigrationPeer { certificate: own().certificate().to_owned(), address: String::new(), approved };
        let (order, part) = ("o1".to_owned(), MigrationSide::Target);
        MigrationOffer {
            order,
            part,
            started: false,
            awaits_approval,
            peer: Some(peer),
            carried: None,
            disks: Vec::new(),
        }
    }

    /// A machine that impersonates the sender is reported, and cannot connect.
    #[test]
    fn transfer_requires_approval_of_both_certificates() {
        for (approved, awaits_approval, is_given) in
            [(false, true, false), (true, true, false), (false, false, false), (true, false, true)]
        {
            let incoming = IncomingMigration::open_port(own(), None).unwrap();
            let moving = part(approved, awaits_approval);
            let state =
                evaluate_approval(MigrationAnswer::Role(&moving), &incoming, &mut ControlSilence::default()).unwrap();
            assert_eq!(state == ApprovalStatus::Approved, is_given, "{approved} {awaits_approval}: {state:?}");
            assert_eq!(incoming.knows_sender(), approved);
        }
    }

    #[test]
    fn only_an_ended_migration_ends_the_wait() {
        let incoming = IncomingMigration::open_port(own(), None).unwrap();
        let state = |said| evaluate_approval(said, &incoming, &mut ControlSilence::default()).unwrap();
        for said in [MigrationAnswer::Done, MigrationAnswer::Ended] {
            assert!(matches!(state(said), ApprovalStatus::Ended(_)), "{said:?}");
        }
        for said in [MigrationAnswer::Unmentioned, MigrationAnswer::Waiting("planned")] {
            assert!(matches!(state(said), ApprovalStatus::Awaited(_)), "{said:?}");
        }
    }

    #[test]
    fn invalid_certificate_is_refused_before_writing() {
        let incoming = IncomingMigration::open_port(own(), None).unwrap();
        let mut moving = part(true, false);
        moving.peer.as_mut().unwrap().certificate = "none".to_owned();
        let refused =
            evaluate_approval(MigrationAnswer::Role(&moving), &incoming, &mut ControlSilence::default()).unwrap_err();
        assert!(refused.is_refusal(), "{refused}");
    }
}
