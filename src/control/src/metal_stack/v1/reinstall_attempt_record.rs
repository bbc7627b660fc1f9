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
    /// Returns the note with this boot counted. If the previous note is about another reinstall, returns a new note.
    pub(crate) fn with_boot_counted(before: Option<ReinstallNote>, allocation: &str, image: &str) -> ReinstallNote {
        let same = before.filter(|note| note.allocation == allocation && note.image == image);
        let note = same.unwrap_or_else(|| ReinstallNote {
            allocation: allocation.into(),
            image: image.into(),
            ..ReinstallNote::default()
        });
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
        let started = ReinstallNote { order: Some("2".into()), disks: vec![RecordedDisk::default()], ..first };
        assert_eq!(
            ReinstallNote::with_boot_counted(Some(started.clone()), "a", "i"),
            ReinstallNote { attempt: 2, ..started.clone() }
        );
        for (allocation, image) in [("b", "i"), ("a", "j")] {
            let other = ReinstallNote::with_boot_counted(Some(started.clone()), allocation, image);
            assert_eq!((other.attempt, other.order, other.disks.len()), (1, None, 0));
        }
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
