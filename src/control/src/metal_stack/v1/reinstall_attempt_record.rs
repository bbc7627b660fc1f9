//! Note about a reinstall, which the machine stores because the control plane does not count attempts. At each boot,
//! metal-api sends the same reinstall flag, until a report or an abort clears it.
//!
//! The note cannot be stored on the disks: the disk with the install marker is wiped, and preserved disks are never
//! written. It is therefore stored in an EFI variable, which is written atomically. metal-stack's machines boot with
//! EFI. A machine without EFI makes only one attempt.

use common::error::{Context, Phase, Result};
use linux::efi::drophammer_variables;
use model::install_marker::{AttemptRecord, RecordedDisk};
use serde::{Deserialize, Serialize};
use std::path::{Path, PathBuf};

const NAME: &str = "DrophammerReinstall";

/// Maximum number of attempts at a reinstall, as with other control planes (docs/orders.md).
pub(crate) const ATTEMPTS: u32 = 3;

/// Note about a reinstall that is neither completed nor aborted.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct ReinstallNote {
    pub allocation: String,
    /// Id of the image that the reinstall installs.
    pub image: String,
    /// Number of boots for this reinstall so far.
    pub attempt: u32,
    /// Id of the reinstall order under which an attempt has reached the point of no return; `None` if no attempt has.
    /// `disks` are the disks of this attempt.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub order: Option<String>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub disks: Vec<RecordedDisk>,
    /// Record of the attempt that has reached the point of no return. It is less reliable than a record at a server,
    /// because the root user of the installed system can write the EFI variable.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub attempt_record: Option<AttemptRecord>,
}

/// Storage of the note.
#[derive(Debug, Clone)]
pub struct ReinstallNoteStore {
    directory: PathBuf,
}

impl ReinstallNoteStore {
    pub fn new(directory: &Path) -> ReinstallNoteStore {
        ReinstallNoteStore { directory: directory.to_owned() }
    }

    /// Reads the note. Returns `None` if no note exists.
    ///
    /// # Errors
    /// Fails if a note exists but cannot be read. An attempt may then already have started.
    pub(crate) fn read_note(&self) -> Result<Option<ReinstallNote>> {
        drophammer_variables::read_json(&self.directory, NAME)
    }

    /// Writes the note.
    ///
    /// # Errors
    /// Fails if the firmware has no variables or no space.
    pub(crate) fn write_note(&self, note: &ReinstallNote) -> Result<()> {
        let what = || "record the reinstall in an EFI variable";
        let text = serde_json::to_vec(note).context(Phase::Control, what)?;
        drophammer_variables::write_variable(&self.directory, NAME, &text).context(Phase::Control, what)
    }

    /// Deletes the note.
    ///
    /// # Errors
    /// Fails if the firmware does not delete the variable.
    pub(crate) fn delete_note(&self) -> Result<()> {
        let what = || "delete the EFI variable with the record of the reinstall";
        drophammer_variables::remove_variable(&self.directory, NAME).context(Phase::Control, what)
    }
}

impl ReinstallNote {
    /// Returns the note with this boot counted. A reinstall of the same allocation with another image restarts the
    /// count. The point of no return of an earlier attempt remains recorded, because that attempt may have erased the
    /// install marker. The record of the attempt is dropped: a system with the previous image does not complete the
    /// reinstall. If the previous note is about another allocation, returns a new note.
    pub(crate) fn with_boot_counted(before: Option<ReinstallNote>, allocation: &str, image: &str) -> ReinstallNote {
        let new = ReinstallNote { allocation: allocation.into(), image: image.into(), ..ReinstallNote::default() };
        let note = match before.filter(|note| note.allocation == allocation) {
            None => new,
            Some(note) if note.image == image => note,
            Some(ReinstallNote { order, disks, .. }) => ReinstallNote { order, disks, ..new },
        };
        ReinstallNote { attempt: note.attempt.saturating_add(1), ..note }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn attempts_of_the_same_reinstall_are_counted() {
        let first = ReinstallNote::with_boot_counted(None, "a", "i");
        assert_eq!((first.attempt, &first.order), (1, &None));
        let attempt_record = Some(AttemptRecord { image: Some("i".into()), ..AttemptRecord::default() });
        let disks = vec![RecordedDisk::default()];
        let started = ReinstallNote { order: Some("2".into()), disks, attempt_record, ..first };
        assert_eq!(
            ReinstallNote::with_boot_counted(Some(started.clone()), "a", "i"),
            ReinstallNote { attempt: 2, ..started.clone() }
        );
        let other = ReinstallNote::with_boot_counted(Some(started), "b", "i");
        assert_eq!((other.attempt, other.order, other.disks.len()), (1, None, 0));
    }

    /// The attempt with the previous image may have erased the disk with the install marker.
    #[test]
    fn another_image_restarts_the_count_but_keeps_the_point_of_no_return() {
        let before = ReinstallNote {
            attempt: 3,
            order: Some("2".into()),
            disks: vec![RecordedDisk::default()],
            attempt_record: Some(AttemptRecord { image: Some("i".into()), ..AttemptRecord::default() }),
            ..ReinstallNote::with_boot_counted(None, "a", "i")
        };
        let expected = ReinstallNote { image: "j".into(), attempt: 1, attempt_record: None, ..before.clone() };
        assert_eq!(ReinstallNote::with_boot_counted(Some(before), "a", "j"), expected);
        let untouched = ReinstallNote::with_boot_counted(None, "a", "i");
        let other = ReinstallNote::with_boot_counted(Some(untouched), "a", "j");
        assert_eq!((other.attempt, other.order), (1, None));
    }

    #[test]
    fn note_is_readable_until_deleted() {
        let directory = tempfile::tempdir().unwrap();
        let memory = ReinstallNoteStore::new(directory.path());
        assert_eq!(memory.read_note().unwrap(), None);
        for attempt in [1, 300_000_000, 2] {
            let note = ReinstallNote {
                attempt,
                order: (attempt > 1).then(|| "7".into()),
                ..ReinstallNote::with_boot_counted(None, "a", "i")
            };
            memory.write_note(&note).unwrap();
            assert_eq!(memory.read_note().unwrap(), Some(note));
        }
        memory.delete_note().unwrap();
        memory.delete_note().unwrap();
        assert_eq!(memory.read_note().unwrap(), None);
        assert!(ReinstallNoteStore::new(&directory.path().join("no")).write_note(&ReinstallNote::default()).is_err());
    }

    #[test]
    fn malformed_note_is_a_refusal() {
        let directory = tempfile::tempdir().unwrap();
        for value in [&b"["[..], b"{}", b"", b"{\"allocation\": \"a\", \"image\": \"i\", \"attempt\": 4294967296}"] {
            drophammer_variables::write_variable(directory.path(), NAME, value).unwrap();
            let error = ReinstallNoteStore::new(directory.path()).read_note().unwrap_err();
            assert!(error.is_refusal() && error.to_string().contains("DrophammerReinstall-"), "{error}");
        }
    }
}
