//! Verification, report, and end of a run.

use super::undo::Undo;
use super::{Facts, LAST_WORDS, Session, peak_rss_bytes};
use crate::boot::kexec;
use crate::console::say;
use crate::device::DevicePath;
use crate::error::{Error, Phase, Result};
use crate::facts::{Ended, EventName, Outcome, StageTime};
use crate::plan::{self, Closing, Kept, Leaves, Rehearsal};
use crate::storage::mount;
use crate::storage::rehearse::{self, Rehearsed};
use crate::storage::wipe;
use crate::survey::{self, Depth};
use std::time::Instant;

impl Session {
    pub(super) fn rehearse(&self, rehearsal: &Rehearsal) -> Result<()> {
        let began = Instant::now();
        let Rehearsed { filesystems, memory_bytes } = rehearse::rehearse(rehearsal)?;
        let (seconds, memory) = (began.elapsed().as_secs_f64(), crate::text::bytes(memory_bytes));
        self.say(&format!(
            "rehearsal: {filesystems} preserved filesystems were assembled and mounted; {seconds:.1} s, {memory} of memory"
        ));
        Ok(())
    }

    pub(super) fn prove_kept(&mut self, kept: &[Kept]) -> Result<()> {
        self.facts.done.kept = plan::kept::compare(kept, &survey::read(Depth::Deep)?);
        let mut changed = plan::kept::differences(&self.facts.done.kept);
        changed.extend(self.locks.changed());
        if changed.is_empty() {
            self.say(&format!("{} preserved objects are unchanged", self.facts.done.kept.len()));
            return Ok(());
        }
        Err(Error::new(Phase::Storage, format!("preserved contents HAVE CHANGED: {}", changed.join("; "))))
    }

    pub(super) fn unmount(&mut self) -> Result<()> {
        self.mounts.finish()?;
        self.undo.retain(|undo| !matches!(undo, Undo::Unmount | Undo::EndProcesses));
        Ok(())
    }

    pub(super) fn flush(&mut self, disks: &[DevicePath]) -> Result<()> {
        disks.iter().try_for_each(mount::flush_disk)?;
        self.locks.unlock()?;
        self.undo.retain(|undo| *undo != Undo::Unlock);
        Ok(())
    }

    pub(super) fn report(&self, closing: &Closing) -> Result<()> {
        let Facts { boot, marker, done } = self.facts.clone();
        let boot = boot.ok_or_else(|| Error::new(Phase::Boot, "cannot report success: no kernel is loaded"))?;
        let Closing { allocation, order, message, already, taken_back } = closing.clone();
        let reported = self.control.report(&Ended {
            outcome: Outcome::Succeeded { boot, marker: marker.or(already) },
            message,
            allocation,
            order,
            plan: self.printed.clone(),
            timings: self.reporter.timings(),
            peak_rss_bytes: peak_rss_bytes(),
            done,
        });
        reported.map(drop).map_err(|error| if error.is_denial() { self.taken_back(&taken_back, error) } else { error })
    }

    /// Wipes disks after the control plane rejected the success. Their arrays and volume groups are already stopped.
    fn taken_back(&self, disks: &[DevicePath], denied: Error) -> Error {
        let wipe = |disk: &DevicePath| match self.held.prove_below(disk).and_then(|()| wipe::wipe_ends(disk)) {
            Ok(()) => format!("{disk} was wiped at both ends, so that it does not boot"),
            Err(error) => format!("{disk} MAY STILL BE BOOTABLE: {error}"),
        };
        let said: Vec<String> = disks.iter().map(wipe).collect();
        if said.is_empty() { denied } else { Error::with_source(Phase::Move, said.join("; "), denied) }
    }

    pub(super) fn kexec(&mut self) -> Result<()> {
        say(&format!("\n{}", StageTime::table(&self.reporter.timings())));
        self.reporter.phase(EventName::BootingNewKernel, "leaving the ramdisk");
        self.reporter.flush(LAST_WORDS);
        // The loaded kernel must stay loaded.
        self.undo.retain(|undo| *undo != Undo::UnloadKernel);
        self.leave(Leaves::Complete);
        self.undo.push(Undo::UnloadKernel);
        match kexec::start()? {}
    }
}
