//! What becomes of a machine when its installation has failed. The failure is reported in every case; then:
//!
//! | failed | reinstall | install |
//! |---|---|---|
//! | before the point of no return | the installed system is booted as it is | the machine waits for a person |
//! | after it | boots again at once while the control plane wants another attempt, then waits for a person | waits |
//! | while it waits, because its token has ended after a day | boots again at once, for another token | the same |
//! | at kexec | boots again at once: the new system is complete, and the control plane knows it | the same |
//!
//! An attempt that follows one which has passed that point is after it from its first moment: the old system is gone. One that
//! finds it whole follows none that has: `correct_begun` in `agent` looks.

use super::{Agent, BootAgain, assembled_inventory};
use crate::allocation::Allocation;
use crate::boot::{back, kexec};
use crate::control::wire::{Acknowledged, EventName, Report, StepTime};
use crate::error::{Error, Result};
use crate::execute::{self, LAST_WORDS};
use crate::marker::Marker;
use crate::plan::StepName;
use std::convert::Infallible;

/// The step in which a machine that has waited for a day ends.
pub const TOKEN_HAS_ENDED: &str = "control.token";

/// Where the installation ended.
#[derive(Debug)]
pub struct Failure {
    pub step: String,
    pub error: Error,
    pub past_point_of_no_return: bool,
    /// Empty when it was not known yet.
    pub allocation: Allocation,
    /// As it was printed.
    pub plan: String,
    /// Of this very allocation, on a disk, and not believed: the operator is to see it.
    pub marker: Option<Marker>,
}

/// How it goes on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Way {
    /// Into the installed system.
    Back,
    /// Over PXE, for another attempt.
    Again,
    /// Over PXE, for another token: nothing was asked for yet.
    Renew,
    /// The whole new system, from its disk.
    Complete,
    /// Not at all, until a person comes or the ramdisk's patience is over.
    Hold,
}

impl Failure {
    pub fn before_the_plan(step: &str, error: Error) -> Failure {
        let (allocation, plan) = (Allocation::default(), String::new());
        Failure { step: step.to_owned(), error, past_point_of_no_return: false, allocation, plan, marker: None }
    }

    pub fn of_the_plan(failure: execute::Failure, allocation: Allocation, plan: String) -> Failure {
        let execute::Failure { step, past_point_of_no_return, error } = failure;
        let error = match past_point_of_no_return {
            true => error,
            false if begun_before(&allocation) => Error::new(
                error.phase,
                format!("{error} (this attempt has written nothing, but an earlier one had begun)"),
            ),
            false => {
                Error::new(error.phase, format!("{error} (before the point of no return: every disk is as it was)"))
            }
        };
        Failure { step: step.to_string(), error, past_point_of_no_return, allocation, plan, marker: None }
    }

    /// Is every disk as it was before this run and before all earlier attempts?
    fn is_untouched(&self) -> bool {
        !self.past_point_of_no_return && !begun_before(&self.allocation)
    }

    pub fn way(&self, answer: &Acknowledged) -> Way {
        // It comes after the acknowledged report.
        if self.step == StepName::BootKexec.as_str() {
            return Way::Complete;
        }
        if self.step == TOKEN_HAS_ENDED {
            return Way::Renew;
        }
        match self.allocation.reinstall {
            // Even when nothing was written, where a control plane wants that.
            true if answer.retry => Way::Again,
            true if self.is_untouched() => Way::Back,
            _ => Way::Hold,
        }
    }
}

fn begun_before(allocation: &Allocation) -> bool {
    allocation.order.as_ref().is_some_and(|order| order.begun) || !allocation.begun_on.is_empty()
}

impl Agent {
    /// Tells people and the control plane, and goes the way that is left.
    ///
    /// # Errors
    /// That of the installation, when the machine is to wait for a person.
    pub fn end(&self, failure: Failure) -> Result<BootAgain> {
        let answer = self.tell(&failure);
        match failure.way(&answer) {
            Way::Hold => return Err(failure.error),
            Way::Again => self.say_reboot("over PXE, since the control plane wants another attempt"),
            Way::Renew => self.say_reboot("over PXE, for a new token: the old one has ended while the machine waited"),
            Way::Complete => self.say_reboot("into the new system, which is complete, from its disk"),
            Way::Back => {
                let Err(error) = self.go_back(&failure.allocation);
                self.say_reboot(&format!(
                    "the installed system cannot be booted from here: {error}. No disk was written, and the firmware is to boot it"
                ));
            }
        }
        Ok(BootAgain)
    }

    fn say_reboot(&self, why: &str) {
        self.reporter.phase(EventName::PlannedReboot, why);
        self.reporter.flush(LAST_WORDS);
    }

    /// That it cannot be told changes nothing for the machine: then nobody has asked for another attempt.
    fn tell(&self, failure: &Failure) -> Acknowledged {
        let message = format!("{}: {}", failure.step, failure.error);
        let timings = self.reporter.timings();
        println!("\n{}", StepTime::table(&timings));
        self.reporter.phase(EventName::Crashed, &message);
        let report = Report {
            success: false,
            message,
            allocationuuid: failure.allocation.id.clone(),
            step: Some(failure.step.clone()),
            timings,
            plan: failure.plan.clone(),
            order: failure.allocation.order_id().to_owned(),
            untouched: failure.is_untouched(),
            marker: failure.marker.clone(),
            ..Report::default()
        };
        self.control.report(&report).unwrap_or_else(|error| {
            println!("the failure could not be reported: {error}");
            Acknowledged::default()
        })
    }

    /// Boots the installed system by kexec, as it is on the disks.
    fn go_back(&self, allocation: &Allocation) -> Result<Infallible> {
        println!(
            "\nThe reinstall ended before its first write: every disk is as it was, and the installed system is booted."
        );
        let mut machines = vec![self.machine.clone()];
        machines.extend(allocation.former_machines.iter().cloned());
        let installed = back::load(&assembled_inventory()?, &machines, &allocation.id)?;
        let back::Installed { device, marker, boot } = installed;
        println!("{} of {} on {device}: {} {}", marker.image, marker.time, boot.kernel, boot.cmdline);
        self.say_reboot(&format!("back into the installed system, {}", marker.image));
        kexec::start()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::allocation::Order;
    use crate::error::Phase;

    /// A failure of a reinstall.
    fn failure(past_point_of_no_return: bool, begun: bool) -> Failure {
        let order = Some(Order { id: "o-1".into(), begun, ..Order::default() });
        let allocation = Allocation { reinstall: true, order, ..Allocation::default() };
        let error = Error::new(Phase::Image, "no answer");
        let failure = execute::Failure { step: StepName::ImageReach, past_point_of_no_return, error };
        Failure::of_the_plan(failure, allocation, "the plan".into())
    }

    #[test]
    fn a_reinstall_goes_back_only_while_nothing_was_written_by_any_attempt() {
        let (retry, enough) = (Acknowledged { retry: true }, Acknowledged::default());
        for (past, begun, answer, way, words) in [
            (false, false, &enough, Way::Back, "every disk is as it was"),
            (false, false, &retry, Way::Again, "every disk is as it was"),
            (false, true, &retry, Way::Again, "an earlier one had begun"),
            (false, true, &enough, Way::Hold, "an earlier one had begun"),
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
    fn what_is_complete_is_booted_from_its_disk() {
        for mut failure in [failure(true, false), failure(false, true), failure(false, false)] {
            failure.step = StepName::BootKexec.to_string();
            assert_eq!(failure.way(&Acknowledged::default()), Way::Complete);
        }
    }

    #[test]
    fn a_machine_that_has_waited_until_its_token_ended_boots_again() {
        let error = || Error::refusal(Phase::Control, "401");
        for (step, way) in [(TOKEN_HAS_ENDED, Way::Renew), ("control.wait", Way::Hold)] {
            assert_eq!(Failure::before_the_plan(step, error()).way(&Acknowledged::default()), way);
        }
    }

    #[test]
    fn an_install_waits_for_a_person() {
        let error = || Error::new(Phase::Control, "401");
        let unknown = Failure::before_the_plan("control.register", error());
        assert_eq!((unknown.way(&Acknowledged::default()), unknown.is_untouched()), (Way::Hold, true));
        let failed = execute::Failure { step: StepName::ImageBurn, past_point_of_no_return: true, error: error() };
        let failed = Failure::of_the_plan(failed, Allocation::default(), String::new());
        assert_eq!((failed.way(&Acknowledged::default()), failed.is_untouched()), (Way::Hold, false));
    }
}
