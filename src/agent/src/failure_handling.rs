//! Handling of a failed installation. Every failure is reported. Then:
//!
//! | failure | reinstall | installation |
//! |---|---|---|
//! | before the point of no return | boots the unchanged installed system; reboots over PXE if the control plane requests another attempt | waits at its console |
//! | before the point of no return, and no system is known to be installed (a pool whose control plane does not record installations) | waits at its console | waits at its console |
//! | after the point of no return | reboots immediately if the control plane requests another attempt, else waits at its console | waits at its console |
//! | while waiting for an allocation, because the token has expired after a day | reboots immediately, for a new token | the same |
//! | the control plane does not accept the report of success | waits at its console | waits at its console |
//! | at kexec | reboots immediately: the new system is complete, and the control plane has the report | the same |
//!
//! In a migration, the sender reboots if the receiver has not started to write, since the disks of the sender are
//! intact. The receiver reboots if the control plane requests another attempt. In all other cases, the machine waits at
//! its console.
//!
//! Once an attempt has passed the point of no return, the old system no longer exists. Later attempts are therefore
//! treated as past the point of no return from their start. The exception is an attempt that finds the old system
//! intact: see `clear_begun_if_intact` in `plan::request_from_allocation`.

use super::{InstallAgent, RebootRequested};
use crate::executor::{self, FINAL_EVENTS_TIMEOUT};
use crate::preflight;
use common::error::{Error, Result};
use control::ReportAcknowledgement;
use linux::console_log::print_line;
use model::allocation::Allocation;
use model::install_marker::InstallMarker;
use model::install_report::{DiskChanges, EventName, FailureSummary, InstallOutcome, InstallResult, StageTime};
use model::inventory::Inventory;
use model::machine_migration::MigrationSide;
use newroot::boot::{installed_system, kexec};
use operations::{FailureState, StageName};
use std::convert::Infallible;
use std::time::Duration;

/// Maximum time for the delivery of pending messages. Afterwards, the machine waits at its console.
const FINAL_DELIVERY_TIMEOUT: Duration = Duration::from_secs(20);

/// Failure of an installation.
#[derive(Debug)]
pub(crate) struct InstallFailure {
    pub step: String,
    pub error: Error,
    pub leaves: FailureState,
    pub past_point_of_no_return: bool,
    /// True if the token expired while the machine waited for an allocation.
    pub token_has_ended: bool,
    /// Allocation of the machine. The value is empty if the failure occurred before the allocation was received.
    pub allocation: Allocation,
    /// Plan or refused plan as printed; empty if the failure occurred before the plan was made.
    pub plan: String,
    /// Install marker of this allocation that was found on a disk, but is not trusted. The marker is reported to the
    /// operator.
    pub marker: Option<InstallMarker>,
    /// True if no record of an installation exists, neither on the disks nor at the control plane.
    pub lacks_record: bool,
    /// True if the control plane rejected the report of success. The system must then not be booted.
    pub is_success_refused: bool,
    /// Changes that this run made to the disks before it failed.
    pub done: DiskChanges,
}

/// Next action of the machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum NextAction {
    /// Boot the installed system.
    BootInstalled,
    /// Reboot over PXE, for another attempt.
    Retry,
    /// Reboot over PXE, for a new token. No allocation has arrived yet.
    Renew,
    /// Reboot into the complete new system, from the disk.
    BootNew,
    /// Wait at the console until an operator intervenes or the hold time ends (`drophammer.hold=`).
    Hold,
}

impl InstallFailure {
    pub(crate) fn new_before_plan(step: &str, error: Error) -> InstallFailure {
        InstallFailure {
            step: step.to_owned(),
            error,
            leaves: FailureState::Untouched,
            past_point_of_no_return: false,
            token_has_ended: false,
            allocation: Allocation::default(),
            plan: String::new(),
            marker: None,
            lacks_record: false,
            is_success_refused: false,
            done: DiskChanges::default(),
        }
    }

    pub(crate) fn new_expired_token(error: Error) -> InstallFailure {
        InstallFailure { token_has_ended: true, ..InstallFailure::new_before_plan("control.token", error) }
    }

    pub(crate) fn from_plan_failure(
        failure: executor::StageFailure,
        allocation: Allocation,
        plan: String,
    ) -> InstallFailure {
        let executor::StageFailure { stage, leaves, past_point_of_no_return, error, done } = failure;
        let is_success_refused = stage == StageName::ReportFinal && error.is_denial();
        let code = error.code();
        let error = match past_point_of_no_return {
            true => error,
            false if has_earlier_attempt_begun(&allocation) => Error::new(
                error.phase,
                format!(
                    "{error} (this attempt has not changed the disks, but an earlier attempt has started to write to them)"
                ),
            ),
            false => Error::new(error.phase, format!("{error} (nothing was written: every disk is unchanged)")),
        };
        let at_stage = InstallFailure::new_before_plan(stage.as_str(), error.with_code(code));
        InstallFailure {
            leaves,
            past_point_of_no_return,
            allocation,
            plan,
            is_success_refused,
            done: *done,
            ..at_stage
        }
    }

    /// Returns whether every disk is unchanged after this run and all earlier attempts.
    fn is_untouched(&self) -> bool {
        !self.past_point_of_no_return && !has_earlier_attempt_begun(&self.allocation)
    }

    fn report_outcome(&self) -> InstallOutcome {
        let (stage, announced) = (self.step.clone(), self.leaves == FailureState::Announced);
        let (untrusted_marker, code) = (self.marker.clone(), Some(self.error.code()));
        let failed = FailureSummary { stage, announced, untrusted_marker, lacks_record: self.lacks_record, code };
        if self.is_untouched() { InstallOutcome::FailedUntouched(failed) } else { InstallOutcome::FailedBegun(failed) }
    }

    pub(crate) fn choose_next_action(&self, answer: &ReportAcknowledgement) -> NextAction {
        // If the new system is complete, the control plane has already acknowledged the report of success.
        if self.leaves == FailureState::Complete {
            return NextAction::BootNew;
        }
        if self.token_has_ended {
            return NextAction::Renew;
        }
        match self.allocation.moving.as_ref().map(|moving| (moving.part, moving.started)) {
            // The receiver has not started: the disks are intact, and the control plane decides what the sender boots.
            Some((MigrationSide::Source, false)) => return NextAction::Retry,
            Some((MigrationSide::Target, _)) if answer.retry => return NextAction::Retry,
            Some(_) => return NextAction::Hold,
            None => {}
        }
        // The control plane has rejected the report of success, and would also reject that of another attempt.
        if self.is_success_refused {
            return NextAction::Hold;
        }
        match self.allocation.reinstall {
            // A request for another attempt takes precedence over booting the old system, even if nothing was written.
            true if answer.retry => NextAction::Retry,
            // If `keeps` is true, the installed system belongs to the replaced allocation, and must not be booted.
            true if self.is_untouched() && !self.allocation.keeps && !self.lacks_record => NextAction::BootInstalled,
            _ => NextAction::Hold,
        }
    }
}

fn has_earlier_attempt_begun(allocation: &Allocation) -> bool {
    allocation.order.as_ref().is_some_and(|order| order.started) || !allocation.begun_on.is_empty()
}

impl InstallAgent {
    /// Reports the failure and takes the next action.
    ///
    /// # Errors
    /// Returns the error of the installation if the machine must wait at its console.
    pub(crate) fn report_and_act(&self, failure: InstallFailure) -> Result<RebootRequested> {
        let lacks_record = self.has_no_record(&failure);
        let failure = InstallFailure { lacks_record, ..failure };
        let answer = self.report_failure(&failure);
        match failure.choose_next_action(&answer) {
            NextAction::Hold => {
                // This event is the only report of the failure that metal-stack receives, so its delivery is awaited.
                self.reporter.wait_until_sent(FINAL_DELIVERY_TIMEOUT);
                return Err(failure.error);
            }
            NextAction::Retry => self.announce_reboot("over PXE, because the control plane requests another attempt"),
            NextAction::Renew => self.announce_reboot(
                "over PXE, to get a new token: the token of this boot expired while the machine waited",
            ),
            NextAction::BootNew => self.announce_reboot("from disk, into the complete new system"),
            NextAction::BootInstalled => {
                let Err(error) = self.boot_old_system(&failure.allocation);
                self.announce_reboot(&format!(
                    "the installed system cannot be booted by kexec: {error}; the disks are unchanged, so the firmware will boot the installed system"
                ));
            }
        }
        Ok(RebootRequested)
    }

    /// Returns whether the disks of a pool machine, which a failed reinstall has left unchanged, are not known to
    /// contain an installed system. The disks are examined because a pool's control plane may not record installations.
    fn has_no_record(&self, failure: &InstallFailure) -> bool {
        let asks_the_disks =
            self.control.machine_pool().is_some() && failure.allocation.reinstall && failure.is_untouched();
        let is_there = |inventory: Inventory| plan::is_installed(&inventory, &self.machine, &failure.allocation.id);
        asks_the_disks && !preflight::read_assembled_inventory().is_ok_and(is_there)
    }

    pub(super) fn announce_reboot(&self, why: &str) {
        self.reporter.start_phase(EventName::PlannedReboot, why);
        self.reporter.wait_until_sent(FINAL_EVENTS_TIMEOUT);
    }

    /// Reports the failure. If the report cannot be delivered, the machine does not start another attempt.
    fn report_failure(&self, failure: &InstallFailure) -> ReportAcknowledgement {
        let message = format!("{}: {}", failure.step, failure.error.to_coded_text());
        let timings = self.reporter.stage_times();
        print_line(&format!("\n{}", StageTime::format_table(&timings)));
        self.reporter.start_phase(EventName::Crashed, &message);
        let ended = InstallResult {
            outcome: failure.report_outcome(),
            message,
            allocation: failure.allocation.id.clone(),
            order: failure.allocation.order_id().map(str::to_owned),
            plan: failure.plan.clone(),
            timings,
            peak_rss_bytes: executor::peak_rss_bytes(),
            done: failure.done.clone(),
        };
        self.control.report_result(&ended).unwrap_or_else(|error| {
            print_line(&format!("cannot report the failure: {error}"));
            ReportAcknowledgement::default()
        })
    }

    /// Boots the installed system from the disks by kexec.
    fn boot_old_system(&self, allocation: &Allocation) -> Result<Infallible> {
        print_line(
            "\nThe reinstall ended before its first write. Every disk is unchanged, and the installed system will be booted.",
        );
        let mut machines = vec![self.machine.clone()];
        machines.extend(allocation.former_machines.iter().cloned());
        let installed = installed_system::load_installed_kernel(
            &preflight::read_assembled_inventory()?,
            &machines,
            &allocation.id,
        )?;
        let installed_system::InstalledSystem { device, marker, boot } = installed;
        print_line(&format!("{} of {} on {device}: {} {}", marker.image, marker.time, boot.kernel, boot.cmdline));
        self.announce_reboot(&format!("back into the installed system (image {image})", image = marker.image));
        kexec::boot_loaded_kernel()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use common::error::Phase;
    use control::fake_control_plane::FakeControl;
    use model::agent_kernel_arguments::{AgentSettings, ControlPlaneSource};
    use model::allocation::OrderedReinstall;
    use model::install_report::{PreservationProof, ProgressEvent};
    use std::sync::Arc;

    /// A failure of a reinstall.
    fn failure(past_point_of_no_return: bool, started: bool) -> InstallFailure {
        let order = Some(OrderedReinstall { id: "o-1".into(), started, ..OrderedReinstall::default() });
        let allocation = Allocation { reinstall: true, order, ..Allocation::default() };
        let error = Error::new(Phase::Image, "no answer");
        let leaves = if past_point_of_no_return { FailureState::Incomplete } else { FailureState::Untouched };
        let (stage, done) = (StageName::ImageReach, Box::default());
        let failure = executor::StageFailure { stage, leaves, past_point_of_no_return, error, done };
        InstallFailure::from_plan_failure(failure, allocation, "the plan".into())
    }

    #[test]
    fn old_system_is_booted_only_without_any_write() {
        let (retry, enough) = (ReportAcknowledgement { retry: true }, ReportAcknowledgement::default());
        for (past, started, answer, way, words) in [
            (false, false, &enough, NextAction::BootInstalled, "every disk is unchanged"),
            (false, false, &retry, NextAction::Retry, "every disk is unchanged"),
            (false, true, &retry, NextAction::Retry, "an earlier attempt has started to write"),
            (false, true, &enough, NextAction::Hold, "an earlier attempt has started to write"),
            (true, false, &retry, NextAction::Retry, "no answer"),
            (true, false, &enough, NextAction::Hold, "no answer"),
        ] {
            let failure = failure(past, started);
            assert_eq!(failure.choose_next_action(answer), way, "{failure:?}");
            assert_eq!(failure.is_untouched(), !past && !started, "{failure:?}");
            assert!(failure.error.to_string().contains(words), "{failure:?}");
        }
    }

    #[test]
    fn old_system_without_a_marker_is_not_booted() {
        let failure = InstallFailure { lacks_record: true, ..failure(false, false) };
        assert_eq!(failure.choose_next_action(&ReportAcknowledgement::default()), NextAction::Hold);
        let InstallOutcome::FailedUntouched(failed) = failure.report_outcome() else { panic!("{failure:?}") };
        assert!(failed.lacks_record);
    }

    fn agent(control: &Arc<FakeControl>) -> InstallAgent {
        let server = ControlPlaneSource::Server { url: "http://127.0.0.1:9".into(), token: "t".into() };
        let settings =
            AgentSettings { control: server, machine: None, keys: vec![], minimum: vec![], consoles: vec![] };
        InstallAgent::new(settings, "m".into(), control.clone())
    }

    /// Some control planes learn of a failure only from the event.
    #[test]
    fn failure_is_reported_before_waiting_for_the_operator() {
        let control = Arc::new(FakeControl { delay: Duration::from_millis(300), ..FakeControl::default() });
        let failure = InstallFailure::new_before_plan("control.register", Error::new(Phase::Control, "no"));
        assert!(agent(&control).report_and_act(failure).is_err());
        let heard = control.heard.lock().unwrap();
        let [ProgressEvent { event: EventName::Crashed, message, .. }] = &heard[..] else { panic!("{heard:?}") };
        assert!(message.starts_with("control.register: "), "{message}");
    }

    #[test]
    fn failure_report_contains_disk_changes_and_memory() {
        let control = Arc::new(FakeControl::default());
        let agent = agent(&control);
        let done = DiskChanges { kept: vec![PreservationProof::default()], ..DiskChanges::default() };
        let failed = executor::StageFailure {
            stage: StageName::ImageBurn,
            leaves: FailureState::Incomplete,
            past_point_of_no_return: true,
            error: Error::new(Phase::Image, "no answer"),
            done: Box::new(done.clone()),
        };
        agent.report_failure(&InstallFailure::from_plan_failure(failed, Allocation::default(), String::new()));
        agent.report_failure(&InstallFailure::new_before_plan("tools", Error::new(Phase::Settings, "none")));
        let reports = control.ended.lock().unwrap();
        let figures: Vec<_> =
            reports.iter().map(|ended| (&ended.done, ended.peak_rss_bytes.unwrap() > 1 << 20)).collect();
        assert_eq!(figures, [(&done, true), (&DiskChanges::default(), true)]);
    }

    #[test]
    fn complete_system_is_booted_from_its_disk() {
        for mut failure in [failure(true, false), failure(false, true), failure(false, false)] {
            failure.leaves = FailureState::Complete;
            assert_eq!(failure.choose_next_action(&ReportAcknowledgement::default()), NextAction::BootNew);
        }
    }

    #[test]
    fn machine_with_expired_token_reboots() {
        let error = || Error::refusal(Phase::Control, "401");
        let waiting = InstallFailure::new_before_plan("control.wait", error());
        for (failure, way) in
            [(InstallFailure::new_expired_token(error()), NextAction::Renew), (waiting, NextAction::Hold)]
        {
            assert_eq!(failure.choose_next_action(&ReportAcknowledgement::default()), way);
        }
    }

    /// Neither the old nor the new system is booted, and no other attempt follows, even if the control plane requests
    /// one.
    #[test]
    fn machine_waits_if_its_success_report_is_refused() {
        for (past, error, way) in [
            (true, Error::denial(Phase::Control, "409"), NextAction::Hold),
            (false, Error::denial(Phase::Control, "409"), NextAction::Hold),
            (false, Error::new(Phase::Control, "500"), NextAction::Retry),
        ] {
            let (stage, leaves) = (StageName::ReportFinal, FailureState::Unreported);
            let failed =
                executor::StageFailure { stage, leaves, past_point_of_no_return: past, error, done: Box::default() };
            let allocation = failure(past, true).allocation;
            let failed = InstallFailure::from_plan_failure(failed, allocation, String::new());
            assert_eq!(failed.choose_next_action(&ReportAcknowledgement { retry: true }), way, "{failed:?}");
        }
    }

    #[test]
    fn failed_installation_waits_for_the_operator() {
        let error = || Error::new(Phase::Control, "401");
        let unknown = InstallFailure::new_before_plan("control.register", error());
        assert_eq!(
            (unknown.choose_next_action(&ReportAcknowledgement::default()), unknown.is_untouched()),
            (NextAction::Hold, true)
        );
        let (stage, leaves) = (StageName::ImageBurn, FailureState::Incomplete);
        let done = Box::default();
        let failed = executor::StageFailure { stage, leaves, past_point_of_no_return: true, error: error(), done };
        let failed = InstallFailure::from_plan_failure(failed, Allocation::default(), String::new());
        assert_eq!(
            (failed.choose_next_action(&ReportAcknowledgement::default()), failed.is_untouched()),
            (NextAction::Hold, false)
        );
    }
}
