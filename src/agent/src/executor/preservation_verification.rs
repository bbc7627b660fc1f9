//! Verification of preserved contents, and unmounting and flushing of the target.

use super::PlanExecutor;
use common::error::{Error, Phase, Result};
use linux::probe::{self, ProbeDepth};
use linux::storage::activation_rehearsal::{self, RehearsalResult};
use linux::storage::mount;
use operations::{ActivationRehearsal, FlushDisks, PreservedObject, UndoOperation};
use std::time::Instant;

impl PlanExecutor {
    pub(super) fn run_rehearsal(&self, rehearsal: &ActivationRehearsal) -> Result<()> {
        let began = Instant::now();
        let RehearsalResult { filesystems, memory_bytes } = activation_rehearsal::run_rehearsal(rehearsal)?;
        let (seconds, memory) = (began.elapsed().as_secs_f64(), common::format::format_bytes(memory_bytes));
        self.print_line(&format!(
            "rehearsal: {filesystems} preserved filesystems were assembled and mounted in {seconds:.1} s, using {memory} of memory"
        ));
        Ok(())
    }

    pub(super) fn verify_preserved(&mut self, preserved: &[PreservedObject]) -> Result<()> {
        if !preserved.is_empty() {
            let inventory = probe::read_inventory(ProbeDepth::Deep)?;
            self.facts.done.kept = plan::preservation_proof::compare_preserved(preserved, &inventory);
        }
        let mut changed = plan::preservation_proof::describe_differences(&self.facts.done.kept);
        changed.extend(self.locks.find_changed_ranges());
        match (changed.is_empty(), self.facts.done.kept.len()) {
            (false, _) => {}
            (true, 0) => {
                self.print_line("the ends of the disks that are not part of the layout are unchanged");
                return Ok(());
            }
            (true, count) => {
                self.print_line(&format!("{count} preserved objects are unchanged"));
                return Ok(());
            }
        }
        Err(Error::new(Phase::Storage, format!("preserved contents HAVE CHANGED: {}", changed.join("; "))))
    }

    pub(super) fn unmount_target(&mut self) -> Result<()> {
        self.mounts.unmount_all()?;
        self.undo.retain(|undo| !matches!(undo, UndoOperation::Unmount | UndoOperation::EndProcesses));
        Ok(())
    }

    pub(super) fn flush_disks(&mut self, flush: &FlushDisks) -> Result<()> {
        flush.disks.iter().try_for_each(mount::flush_disk)?;
        if flush.keep_locks {
            return Ok(());
        }
        self.locks.unlock_all()?;
        self.undo.retain(|undo| *undo != UndoOperation::Unlock);
        Ok(())
    }
}
