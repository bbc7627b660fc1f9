//! Counter of the attempts at a reinstall. The machine counts the attempts in a note that it stores itself, because the
//! control plane stores only a flag for a reinstall.

use super::reinstall_attempt_record::{ATTEMPTS, ReinstallNote};
use super::{MetalApiV1, REQUEST_TIMEOUT, lock_mutex, messages};
use common::error::Result;
use model::allocation::{Allocation, OrderedReinstall};

impl MetalApiV1 {
    /// Builds a reinstall order from the control plane's reinstall flag and the note of the machine. Each boot counts
    /// as an attempt. The attempt is recorded in the note before any other action.
    pub(super) fn build_order(&self, allocation: &Allocation) -> Result<OrderedReinstall> {
        let mut note = lock_mutex(&self.note);
        let counted = note.take().filter(|note| note.allocation == allocation.id && note.image == allocation.image.id);
        let counted = match counted {
            Some(counted) => counted,
            None => {
                let counted =
                    ReinstallNote::with_boot_counted(self.memory.read_note()?, &allocation.id, &allocation.image.id);
                self.write_note(&counted);
                counted
            }
        };
        let ReinstallNote { attempt, order, disks, attempt_record, .. } = note.insert(counted).clone();
        let (started, id, attempts) = (order.is_some(), order.unwrap_or_default(), ATTEMPTS);
        Ok(OrderedReinstall { id, attempt, attempts, started, disks, attempt_record, ..OrderedReinstall::default() })
    }

    /// Writes the note. Returns false if it cannot be written; no further attempts are then made.
    pub(super) fn write_note(&self, note: &ReinstallNote) -> bool {
        let noted = self.memory.write_note(note);
        noted.inspect_err(|error| tracing::warn!("{error}; this reinstall has only one attempt")).is_ok()
    }

    /// Returns whether the stored note proves that no attempt at this reinstall has passed the point of no return.
    pub(super) fn is_noted_as_not_started(&self) -> bool {
        matches!(self.memory.read_note(), Ok(Some(ReinstallNote { order: None, .. })))
    }

    /// Prevents further attempts after preserved contents have changed. A further attempt would not detect the
    /// change, because it would take the changed contents for the original ones.
    pub(super) fn rule_out_attempts(&self) {
        if let Some(note) = lock_mutex(&self.note).as_mut() {
            note.attempt = note.attempt.max(ATTEMPTS);
            self.write_note(note);
        }
    }

    pub(super) fn delete_note(&self) {
        lock_mutex(&self.note).take();
        if let Err(error) = self.memory.delete_note() {
            tracing::warn!("{error}");
        }
    }

    pub(super) fn abort_reinstall(&self, wiped: bool) -> Result<()> {
        self.call_with_retries(
            self.pace.retries,
            "AbortReinstall",
            &messages::encode_abort_reinstall(&self.machine, wiped),
            REQUEST_TIMEOUT,
        )
        .map(drop)
    }
}
