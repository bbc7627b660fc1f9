//! Report of success, and boot of the installed system.

use super::{FINAL_EVENTS_TIMEOUT, PlanExecutor, RunFacts, peak_rss_bytes};
use common::error::{Context, Error, Phase, Result};
use linux::console_log::print_line;
use model::install_report::{EventName, InstallOutcome, InstallResult, StageTime};
use newroot::boot::kexec;
use nix::sys::reboot::{RebootMode, reboot};
use operations::{FailureState, FinalReport, UndoOperation};

impl PlanExecutor {
    pub(super) fn report_success(&self, closing: &FinalReport) -> Result<()> {
        let RunFacts { boot, marker, done } = self.facts.clone();
        let boot = boot.ok_or_else(|| Error::new(Phase::Boot, "cannot report success: no kernel is loaded"))?;
        let FinalReport { allocation, order, message, already, taken_back } = closing.clone();
        let reported = self.control.report_result(&InstallResult {
            outcome: InstallOutcome::Succeeded { boot, marker: marker.or(already) },
            message,
            allocation,
            order,
            plan: self.printed.clone(),
            timings: self.reporter.stage_times(),
            peak_rss_bytes: peak_rss_bytes(),
            done,
        });
        reported
            .map(drop)
            .map_err(|error| if error.is_denial() { self.wipe_rejected(&taken_back, error) } else { error })
    }

    pub(super) fn start_kernel(&mut self) -> Result<()> {
        print_line(&format!("\n{}", StageTime::format_table(&self.reporter.stage_times())));
        self.reporter.start_phase(EventName::BootingNewKernel, "leaving the ramdisk");
        self.reporter.wait_until_sent(FINAL_EVENTS_TIMEOUT);
        // The cleanup below must not unload the kernel that is about to start.
        self.undo.retain(|undo| *undo != UndoOperation::UnloadKernel);
        self.leave_session(FailureState::Complete);
        self.undo.push(UndoOperation::UnloadKernel);
        if self.firmware_boot.is_some() {
            nix::unistd::sync();
            match reboot(RebootMode::RB_AUTOBOOT).context(Phase::Boot, || "reboot into the installed system")? {}
        }
        match kexec::boot_loaded_kernel()? {}
    }
}
