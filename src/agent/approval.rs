//! Wait of the receiving machine of a migration for the operator's approval, between its plan and its point of no return.

use super::Agent;
use super::ending::Failure;
use super::moving::PAUSE;
use crate::allocation::Allocation;
use crate::carried::{Moving, Said};
use crate::error::{Error, Phase, Result};
use crate::facts::EventName;
use crate::moving::whole::{Incoming, Own, Silence, Silent};
use std::thread;

/// Returns the message of the wait, for both machines.
pub fn waiting_for_approval(own: &Own) -> String {
    format!("for the operator's approval of the certificates of both machines; this one's is {}", own.fingerprint())
}

/// State of the approval after a response of the control plane.
#[derive(Debug, PartialEq, Eq)]
enum Approval {
    Given,
    /// Outstanding, for this reason. Nothing has been written.
    Awaited(String),
    Over(&'static str),
}

impl Agent {
    /// Waits until both certificates are approved, or verified by a secret, and the sender is known. Nothing is written before.
    ///
    /// # Errors
    /// Fails if the migration has ended or the token of this boot has expired.
    pub(super) fn await_approval(&self, allocation: &Allocation, incoming: &Incoming) -> Result<(), Box<Failure>> {
        let Some(moving) = &allocation.moving else { return Ok(()) };
        let (mut silence, mut shown) = (Silence::default(), String::new());
        loop {
            let machine = match self.control.machine() {
                Ok(machine) => machine,
                Err(error) if error.is_refusal() => return Err(Box::new(Failure::token_has_ended(error))),
                Err(error) => {
                    silence.is_broken();
                    self.reporter.say(&format!("{error}"));
                    thread::sleep(PAUSE);
                    continue;
                }
            };
            let failed = |error| Box::new(Failure::before_the_plan("move.approve", error));
            match approval(machine.says_of(&moving.order), incoming, &mut silence).map_err(failed)? {
                Approval::Given => return Ok(()),
                Approval::Over(why) => return Err(failed(Error::denial(Phase::Move, why))),
                Approval::Awaited(what) if what == shown => {}
                Approval::Awaited(what) => {
                    self.reporter.phase(EventName::Waiting, &what);
                    shown = what;
                }
            }
            thread::sleep(PAUSE);
        }
    }
}

/// Evaluates a response of the control plane.
///
/// # Errors
/// Refuses a sender whose certificate is not valid, or not signed with the secret.
fn approval(said: Said, incoming: &Incoming, silence: &mut Silence) -> Result<Approval> {
    if said != Said::Nothing {
        silence.is_broken();
    }
    Ok(match said {
        Said::Part(Moving { peer, awaits_approval, .. }) => {
            peer.iter().try_for_each(|peer| incoming.hear(peer))?;
            match (awaits_approval, incoming.knows_sender()) {
                (false, true) => Approval::Given,
                (true, _) => Approval::Awaited(waiting_for_approval(incoming.own())),
                (false, false) => Approval::Awaited("for the sending machine".to_owned()),
            }
        }
        Said::Waits(state) => Approval::Awaited(format!(
            "for the control plane: the migration is {state}, without instructions for this machine"
        )),
        Said::Done | Said::Over => Approval::Over("the migration has ended; nothing was written"),
        Said::Nothing => match silence.heard() {
            Silent::Ends => Approval::Over("the control plane no longer reports the migration"),
            Silent::Begins | Silent::Lasts => {
                Approval::Awaited("for the control plane, which does not report the migration".to_owned())
            }
        },
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::carried::{Part, Peer};
    use std::path::Path;

    fn own() -> Own {
        Own::make(Path::new("/there/is/no/secret")).unwrap()
    }

    fn part(approved: bool, awaits_approval: bool) -> Moving {
        let peer = Peer { certificate: own().certificate().to_owned(), address: String::new(), approved };
        let (order, part) = ("o1".to_owned(), Part::Receive);
        Moving { order, part, begun: false, awaits_approval, peer: Some(peer), carried: None, disks: Vec::new() }
    }

    /// A machine that impersonates the sender is told of, and is not let in.
    #[test]
    fn nothing_begins_before_both_certificates_are_approved() {
        for (approved, awaits_approval, is_given) in
            [(false, true, false), (true, true, false), (false, false, false), (true, false, true)]
        {
            let incoming = Incoming::open(own(), None).unwrap();
            let moving = part(approved, awaits_approval);
            let state = approval(Said::Part(&moving), &incoming, &mut Silence::default()).unwrap();
            assert_eq!(state == Approval::Given, is_given, "{approved} {awaits_approval}: {state:?}");
            assert_eq!(incoming.knows_sender(), approved);
        }
    }

    #[test]
    fn an_end_of_the_migration_ends_the_wait_and_a_missing_answer_does_not() {
        let incoming = Incoming::open(own(), None).unwrap();
        let state = |said| approval(said, &incoming, &mut Silence::default()).unwrap();
        for said in [Said::Done, Said::Over] {
            assert!(matches!(state(said), Approval::Over(_)), "{said:?}");
        }
        for said in [Said::Nothing, Said::Waits("planned")] {
            assert!(matches!(state(said), Approval::Awaited(_)), "{said:?}");
        }
    }

    #[test]
    fn a_certificate_that_is_not_good_is_refused_while_nothing_is_written() {
        let incoming = Incoming::open(own(), None).unwrap();
        let mut moving = part(true, false);
        moving.peer.as_mut().unwrap().certificate = "none".to_owned();
        let refused = approval(Said::Part(&moving), &incoming, &mut Silence::default()).unwrap_err();
        assert!(refused.is_refusal(), "{refused}");
    }
}
