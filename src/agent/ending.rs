//! Ends of a failed installation. Every failure is reported. Then:
//!
//! | failure | reinstall | installation |
//! |---|---|---|
//! | before the point of no return | boots the unchanged installed system; reboots over PXE if the control plane wants another attempt |
//! waits at its console |
//! | the same, but no system is known to be installed (a pool whose control plane does not record it) | waits at its console | waits |
//! | after the point of no return | reboots immediately if the control plane wants another attempt, else waits at its console | waits |
//! | while waiting for an allocation, because the token has expired after a day | reboots immediately, for a new token | the same |
//! | the control plane does not accept the reported success | waits | waits |
//! | at kexec | reboots immediately: the new system is complete, and the control plane has the report | the same |
//!
//! In a migration, the sender reboots unless the receiver has begun, since its disks are intact. The receiver reboots if the control plane
//! wants it to. Otherwise they wait at their consoles.
//!
//! Once an attempt has passed the point of no return, all later attempts count as past it from the start, since the old system is gone. The
//! exception is an attempt that finds the old system intact: see `correct_begun` in `assigned`.

use super::{Agent, BootAgain};
use crate::allocation::Allocation;
use crate::boot::{back, kexec};
use crate::carried::Part;
use crate::console::say;
use crate::control::Acknowledged;
use crate::error::{Error, Result};
use crate::facts::{Done, Ended, EventName, Failed, Outcome, StageTime};
use crate::inventory::Inventory;
use crate::marker::Marker;
use crate::plan::{self, Leaves, StageName};
use crate::ready;
use crate::session::{self, LAST_WORDS};
use std::convert::Infallible;
use std::time::Duration;

/// Time to deliver pending messages before a machine waits at its console.
const NO_HURRY: Duration = Duration::from_secs(20);

/// Failure of an installation.
#[derive(Debug)]
pub struct Failure {
    pub step: String,
    pub error: Error,
    pub leaves: Leaves,
    pub past_point_of_no_return: bool,
    /// Whether the token expired while the machine waited for an allocation.
    pub token_has_ended: bool,
    /// Allocation; empty if none is known.
    pub allocation: Allocation,
    /// Printed plan; empty if there is none.
    pub plan: String,
    /// Marker of this very allocation that was found on a disk but not trusted. The report contains it for the operator.
    pub marker: Option<Marker>,
    /// Whether neither the disks nor the control plane contain a record of the installation.
    pub unmarked: bool,
    /// Whether the control plane rejected the reported success, so that the system must not be booted.
    pub is_success_refused: bool,
    /// Changes to the disks before the failure.
    pub done: Done,
}

/// Next action of the machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Way {
    /// Boots the installed system.
    Back,
    /// Reboots over PXE, for another attempt.
    Again,
    /// Reboots over PXE, for a new token. No allocation has arrived yet.
    Renew,
    /// Reboots into the complete new system, from its disk.
    Complete,
    /// Waits at the console until an operator intervenes or the ramdisk reboots (`drophammer.hold=`).
    Hold,
}

impl Failure {
    pub fn before_the_plan(step: &str, error: Error) -> Failure {
        Failure {
            step: step.to_owned(),
            error,
            leaves: Leaves::Untouched,
            past_point_of_no_return: false,
            token_has_ended: false,
            allocation: Allocation::default(),
            plan: String::new(),
            marker: None,
            unmarked: false,
            is_success_refused: false,
            done: Done::default(),
        }
    }

    pub fn token_has_ended(error: Error) -> Failure {
        Failure { token_has_ended: true, ..Failure::before_the_plan("control.token", error) }
    }

    pub fn of_the_plan(failure: session::Failure, allocation: Allocation, plan: String) -> Failure {
        let session::Failure { stage, leaves, past_point_of_no_return, error, done } = failure;
        let is_success_refused = stage == StageName::ReportFinal && error.is_denial();
        let error = match past_point_of_no_return {
            true => error,
            false if begun_before(&allocation) => Error::new(
                error.phase,
                format!("{error} (this attempt has written nothing, but an earlier one had started to write)"),
            ),
            false => {
                Error::new(error.phase, format!("{error} (before the point of no return: every disk is unchanged)"))
            }
        };
        let at_stage = Failure::before_the_plan(stage.as_str(), error);
        Failure { leaves, past_point_of_no_return, allocation, plan, is_success_refused, done: *done, ..at_stage }
    }

    /// Returns whether this run and all earlier attempts have left every disk unchanged.
    fn is_untouched(&self) -> bool {
        !self.past_point_of_no_return && !begun_before(&self.allocation)
    }

    fn outcome(&self) -> Outcome {
        let (stage, announced) = (self.step.clone(), self.leaves == Leaves::Announced);
        let failed = Failed { stage, announced, unbelieved: self.marker.clone(), unmarked: self.unmarked };
        if self.is_untouched() { Outcome::FailedUntouched(failed) } else { Outcome::FailedBegun(failed) }
    }

    pub fn way(&self, answer: &Acknowledged) -> Way {
        // The final report has already been acknowledged.
        if self.leaves == Leaves::Complete {
            return Way::Complete;
        }
        if self.token_has_ended {
            return Way::Renew;
        }
        match self.allocation.moving.as_ref().map(|moving| (moving.part, moving.begun)) {
            // Its disks are intact, and the control plane decides what it boots.
            Some((Part::Send, false)) => return Way::Again,
            Some((Part::Receive, _)) if answer.retry => return Way::Again,
            Some(_) => return Way::Hold,
            None => {}
        }
        // Another attempt would only be rejected again.
        if self.is_success_refused {
            return Way::Hold;
        }
        match self.allocation.reinstall {
            // Even if nothing was written, if the control plane wants another attempt.
            true if answer.retry => Way::Again,
            // If this allocation replaced another one, the installed system belongs to the other.
            true if self.is_untouched() && !self.allocation.keeps && !self.unmarked => Way::Back,
            _ => Way::Hold,
        }
    }
}

fn begun_before(allocation: &Allocation) -> bool {
    allocation.order.as_ref().is_some_and(|order| order.begun) || !allocation.begun_on.is_empty()
}

impl Agent {
    /// Reports the failure and takes the next action.
    ///
    /// # Errors
    /// Returns the error of the installation if the machine must wait at its console.
    pub fn end(&self, failure: Failure) -> Result<BootAgain> {
        let unmarked = self.is_unmarked(&failure);
        let failure = Failure { unmarked, ..failure };
        let answer = self.tell(&failure);
        match failure.way(&answer) {
            Way::Hold => {
                // With metal-stack, this event is the only report of the failure.
                self.reporter.flush(NO_HURRY);
                return Err(failure.error);
            }
            Way::Again => self.say_reboot("over PXE, since the control plane wants another attempt"),
            Way::Renew => self.say_reboot("over PXE, for a new token: the old one expired while the machine waited"),
            Way::Complete => self.say_reboot("from disk, into the complete new system"),
            Way::Back => {
                let Err(error) = self.go_back(&failure.allocation);
                self.say_reboot(&format!(
                    "the installed system cannot be booted by kexec: {error}; no disk was written, so the firmware will boot it"
                ));
            }
        }
        Ok(BootAgain)
    }

    /// Returns whether no system is known to be installed. If a pool's control plane does not record installations, only the disks can
    /// prove one.
    fn is_unmarked(&self, failure: &Failure) -> bool {
        let asks_the_disks = self.control.pool().is_some() && failure.allocation.reinstall && failure.is_untouched();
        let is_there = |inventory: Inventory| plan::is_installed(&inventory, &self.machine, &failure.allocation.id);
        asks_the_disks && !ready::assembled_inventory().is_ok_and(is_there)
    }

    pub(super) fn say_reboot(&self, why: &str) {
        self.reporter.phase(EventName::PlannedReboot, why);
        self.reporter.flush(LAST_WORDS);
    }

    /// Reports the failure. If the report is not delivered, no other attempt is made.
    fn tell(&self, failure: &Failure) -> Acknowledged {
        let message = format!("{}: {}", failure.step, failure.error);
        let timings = self.reporter.timings();
        say(&format!("\n{}", StageTime::table(&timings)));
        self.reporter.phase(EventName::Crashed, &message);
        let ended = Ended {
            outcome: failure.outcome(),
            message,
            allocation: failure.allocation.id.clone(),
            order: failure.allocation.order_id().map(str::to_owned),
            plan: failure.plan.clone(),
            timings,
            peak_rss_bytes: session::peak_rss_bytes(),
            done: failure.done.clone(),
        };
        self.control.report(&ended).unwrap_or_else(|error| {
            say(&format!("cannot report the failure: {error}"));
            Acknowledged::default()
        })
    }

    /// Boots the installed system by kexec, as it is on the disks.
    fn go_back(&self, allocation: &Allocation) -> Result<Infallible> {
        say(
            "\nThe reinstall ended before its first write. Every disk is unchanged, and the installed system will be booted.",
        );
        let mut machines = vec![self.machine.clone()];
        machines.extend(allocation.former_machines.iter().cloned());
        let installed = back::load(&ready::assembled_inventory()?, &machines, &allocation.id)?;
        let back::Installed { device, marker, boot } = installed;
        say(&format!("{} of {} on {device}: {} {}", marker.image, marker.time, boot.kernel, boot.cmdline));
        self.say_reboot(&format!("back into the installed system, {}", marker.image));
        kexec::start()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::allocation::Order;
    use crate::error::Phase;
    use crate::facts::{Event, KeptProof};
    use crate::report::Reporter;
    use crate::settings::{InCharge, Settings};
    use crate::testing::control::FakeControl;
    use std::sync::Arc;

    /// A failure of a reinstall.
    fn failure(past_point_of_no_return: bool, begun: bool) -> Failure {
        let order = Some(Order { id: "o-1".into(), begun, ..Order::default() });
        let allocation = Allocation { reinstall: true, order, ..Allocation::default() };
        let error = Error::new(Phase::Image, "no answer");
        let leaves = if past_point_of_no_return { Leaves::HalfMade } else { Leaves::Untouched };
        let (stage, done) = (StageName::ImageReach, Box::default());
        let failure = session::Failure { stage, leaves, past_point_of_no_return, error, done };
        Failure::of_the_plan(failure, allocation, "the plan".into())
    }

    #[test]
    fn a_reinstall_goes_back_only_while_nothing_was_written_by_any_attempt() {
        let (retry, enough) = (Acknowledged { retry: true }, Acknowledged::default());
        for (past, begun, answer, way, words) in [
            (false, false, &enough, Way::Back, "every disk is unchanged"),
            (false, false, &retry, Way::Again, "every disk is unchanged"),
            (false, true, &retry, Way::Again, "an earlier one had started to write"),
            (false, true, &enough, Way::Hold, "an earlier one had started to write"),
            (true, false, &retry, Way::Again, "no answer"),
            (true, false, &enough, Way::Hold, "no answer"),
        ] {
            let failure = failure(past, begun);
            assert_eq!(failure.way(answer), way, "{failure:?}");
            assert_eq!(failure.is_untouched(), !past && !begun, "{failure:?}");
            assert!(failure.error.to_string().contains(words), "{failure:?}");
        }
    }

    #[test]
    fn nobody_goes_back_to_what_no_disk_tells_of() {
        let failure = Failure { unmarked: true, ..failure(false, false) };
        assert_eq!(failure.way(&Acknowledged::default()), Way::Hold);
        let Outcome::FailedUntouched(failed) = failure.outcome() else { panic!("{failure:?}") };
        assert!(failed.unmarked);
    }

    fn agent(control: &Arc<FakeControl>) -> Agent {
        let server = InCharge::Server { url: "http://127.0.0.1:9".into(), token: "t".into() };
        let settings = Settings { control: server, machine: None, keys: vec![], minimum: vec![], consoles: vec![] };
        let reporter = Reporter::new(control.clone()).into();
        Agent { settings, machine: "m".into(), reporter, control: control.clone(), leaves: vec![], erased: None }
    }

    /// Some control planes hear of a failure by the event alone.
    #[test]
    fn a_machine_that_waits_for_a_person_has_told_why() {
        let control = Arc::new(FakeControl { delay: Duration::from_millis(300), ..FakeControl::default() });
        let failure = Failure::before_the_plan("control.register", Error::new(Phase::Control, "no"));
        assert!(agent(&control).end(failure).is_err());
        let heard = control.heard.lock().unwrap();
        let [Event { event: EventName::Crashed, message, .. }] = &heard[..] else { panic!("{heard:?}") };
        assert!(message.starts_with("control.register: "), "{message}");
    }

    #[test]
    fn the_report_of_a_failure_has_its_figures() {
        let control = Arc::new(FakeControl::default());
        let agent = agent(&control);
        let done = Done { kept: vec![KeptProof::default()], ..Done::default() };
        let failed = session::Failure {
            stage: StageName::ImageBurn,
            leaves: Leaves::HalfMade,
            past_point_of_no_return: true,
            error: Error::new(Phase::Image, "no answer"),
            done: Box::new(done.clone()),
        };
        agent.tell(&Failure::of_the_plan(failed, Allocation::default(), String::new()));
        agent.tell(&Failure::before_the_plan("tools", Error::new(Phase::Settings, "none")));
        let reports = control.ended.lock().unwrap();
        let figures: Vec<_> =
            reports.iter().map(|ended| (&ended.done, ended.peak_rss_bytes.unwrap() > 1 << 20)).collect();
        assert_eq!(figures, [(&done, true), (&Done::default(), true)]);
    }

    #[test]
    fn what_is_complete_is_booted_from_its_disk() {
        for mut failure in [failure(true, false), failure(false, true), failure(false, false)] {
            failure.leaves = Leaves::Complete;
            assert_eq!(failure.way(&Acknowledged::default()), Way::Complete);
        }
    }

    #[test]
    fn a_machine_that_has_waited_until_its_token_ended_boots_again() {
        let error = || Error::refusal(Phase::Control, "401");
        let waiting = Failure::before_the_plan("control.wait", error());
        for (failure, way) in [(Failure::token_has_ended(error()), Way::Renew), (waiting, Way::Hold)] {
            assert_eq!(failure.way(&Acknowledged::default()), way);
        }
    }

    /// Neither the old nor the new system is booted, and no attempt follows, whatever else the control plane answers.
    #[test]
    fn a_machine_whose_success_is_refused_waits() {
        for (past, error, way) in [
            (true, Error::denial(Phase::Control, "409"), Way::Hold),
            (false, Error::denial(Phase::Control, "409"), Way::Hold),
            (false, Error::new(Phase::Control, "500"), Way::Again),
        ] {
            let (stage, leaves) = (StageName::ReportFinal, Leaves::Unreported);
            let failed = session::Failure { stage, leaves, past_point_of_no_return: past, error, done: Box::default() };
            let allocation = failure(past, true).allocation;
            let failed = Failure::of_the_plan(failed, allocation, String::new());
            assert_eq!(failed.way(&Acknowledged { retry: true }), way, "{failed:?}");
        }
    }

    #[test]
    fn an_install_waits_for_a_person() {
        let error = || Error::new(Phase::Control, "401");
        let unknown = Failure::before_the_plan("control.register", error());
        assert_eq!((unknown.way(&Acknowledged::default()), unknown.is_untouched()), (Way::Hold, true));
        let (stage, leaves) = (StageName::ImageBurn, Leaves::HalfMade);
        let done = Box::default();
        let failed = session::Failure { stage, leaves, past_point_of_no_return: true, error: error(), done };
        let failed = Failure::of_the_plan(failed, Allocation::default(), String::new());
        assert_eq!((failed.way(&Acknowledged::default()), failed.is_untouched()), (Way::Hold, false));
    }
}
