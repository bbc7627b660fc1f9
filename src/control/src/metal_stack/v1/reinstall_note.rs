//! Note about a reinstall. The machine stores the note, because the control plane does not count attempts. metal-api
//! sends the same reinstall flag at each boot until a report or an abort clears the flag.
//!
//! The note cannot be stored on the disks, since the disks with the install marker are wiped first, and preserved disks
//! are never written. It is therefore stored in an EFI variable, which is written atomically and does not depend on the
//! disks. Machines of metal-stack boot with EFI. A machine without EFI gets only one attempt.

use common::error::{Context, Phase, Result};
use linux::efi::drophammer_variables;
use model::install_marker::{AttemptRecord, RecordedDisk};
use serde::{Deserialize, Serialize};
use std::path::{Path, PathBuf};

const NAME: &str = "DrophammerReinstall";

/// Maximum number of attempts at a reinstall. Other control planes use the same maximum (docs/orders.md).
pub(crate) const ATTEMPTS: u32 = 3;

/// Note about a reinstall that is neither completed nor aborted.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct ReinstallNote {
    pub allocation: String,
    /// Id of the new image.
    pub image: String,
    /// Number of boots for this reinstall.
    pub attempt: u32,
    /// Id of the reinstall order whose attempt has reached the point of no return. `disks` contains the disks of this
    /// attempt.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub order: Option<String>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub disks: Vec<RecordedDisk>,
    /// Record of the attempt that has reached the point of no return. This record is less reliable than a record that a
    /// server stores, because the root user of the installed system can write the EFI variable.
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

    /// Reads the note. Returns `None` if there is none.
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
    /// Fails if the firmware does not delete it.
    pub(crate) fn delete_note(&self) -> Result<()> {
        let what = || "delete the EFI variable with the record of the reinstall";
        drophammer_variables::remove_variable(&self.directory, NAME).context(Phase::Control, what)
    }
}

impl ReinstallNote {
    /// Returns the note after counting this boot. If the previous note is about another reinstall, returns a new note.
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
        let begun = ReinstallNote { order: Some("2".into()), disks: vec![RecordedDisk::default()], ..first };
        assert_eq!(
            ReinstallNote::with_boot_counted(Some(begun.clone()), "a", "i"),
            ReinstallNote { attempt: 2, ..begun.clone() }
        );
        for (allocation, image) in [("b", "i"), ("a", "j")] {
            let other = ReinstallNote::with_boot_counted(Some(begun.clone()), allocation, image);
            assert_eq!((other.attempt, other.order, other.disks.len()), (1, None, 0));
        }
    }

    #[test]
    fn what_is_noted_is_there_until_it_is_forgotten() {
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
    fn a_note_that_cannot_be_parsed_is_neither_absent_nor_a_note() {
        let directory = tempfile::tempdir().unwrap();
        for value in [&b"["[..], b"{}", b"", b"{\"allocation\": \"a\", \"image\": \"i\", \"attempt\": 4294967296}"] {
            drophammer_variables::write_variable(directory.path(), NAME, value).unwrap();
            let error = ReinstallNoteStore::new(directory.path()).read_note().unwrap_err();
            assert!(error.is_refusal() && error.to_string().contains("DrophammerReinstall-"), "{error}");
        }
    }
}
