//! Machine's own note of a reinstall, since the control plane does not count attempts: metal-api sets the reinstall flag at each boot,
//! until a report or an abort clears it.
//!
//! The disks cannot contain the note: those that are wiped first carry the marker, and preserved ones are never written. So it is an EFI
//! variable, which survives everything done to disks and is written atomically. Machines of metal-stack boot with EFI. A machine without
//! EFI has only one attempt.

use crate::boot::efi::own;
use crate::error::{Context, Phase, Result};
use crate::marker::{AttemptRecord, MarkedDisk};
use serde::{Deserialize, Serialize};
use std::path::{Path, PathBuf};

const NAME: &str = "DrophammerReinstall";

/// Limit of attempts of a reinstall, as everywhere (docs/reinstall.md).
pub const ATTEMPTS: u32 = 3;

/// Note of a reinstall that is neither completed nor aborted.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Note {
    pub allocation: String,
    /// Id of the new image.
    pub image: String,
    /// Number of boots for this reinstall.
    pub attempt: u32,
    /// Order id of an attempt that reached the point of no return, with the disks in `disks`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub order: Option<String>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub disks: Vec<MarkedDisk>,
    /// Record of that attempt. Root of the installed system can write this variable, so it proves less than the record of a server.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub attempt_record: Option<AttemptRecord>,
}

/// Storage of the note.
#[derive(Debug, Clone)]
pub struct Memory {
    directory: PathBuf,
}

impl Memory {
    pub fn new(directory: &Path) -> Memory {
        Memory { directory: directory.to_owned() }
    }

    /// Reads the note. Returns `None` if there is none.
    ///
    /// # Errors
    /// Fails if a note exists but cannot be read, since an attempt may have started.
    pub fn read(&self) -> Result<Option<Note>> {
        own::read_json(&self.directory, NAME)
    }

    /// Writes the note.
    ///
    /// # Errors
    /// Fails if the firmware has no variables or no space.
    pub fn write(&self, note: &Note) -> Result<()> {
        let what = || "record the reinstall in an EFI variable";
        let text = serde_json::to_vec(note).context(Phase::Control, what)?;
        own::write(&self.directory, NAME, &text).context(Phase::Control, what)
    }

    /// Deletes the note.
    ///
    /// # Errors
    /// Fails if the firmware does not delete it.
    pub fn forget(&self) -> Result<()> {
        let what = || "delete the EFI variable with the record of the reinstall";
        own::remove(&self.directory, NAME).context(Phase::Control, what)
    }
}

impl Note {
    /// Returns the note with this boot counted, or a new one if the previous note is for another reinstall.
    pub fn counted(before: Option<Note>, allocation: &str, image: &str) -> Note {
        let same = before.filter(|note| note.allocation == allocation && note.image == image);
        let note =
            same.unwrap_or_else(|| Note { allocation: allocation.into(), image: image.into(), ..Note::default() });
        Note { attempt: note.attempt.saturating_add(1), ..note }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn attempts_of_the_same_reinstall_are_counted() {
        let first = Note::counted(None, "a", "i");
        assert_eq!((first.attempt, &first.order), (1, &None));
        let begun = Note { order: Some("2".into()), disks: vec![MarkedDisk::default()], ..first };
        assert_eq!(Note::counted(Some(begun.clone()), "a", "i"), Note { attempt: 2, ..begun.clone() });
        for (allocation, image) in [("b", "i"), ("a", "j")] {
            let other = Note::counted(Some(begun.clone()), allocation, image);
            assert_eq!((other.attempt, other.order, other.disks.len()), (1, None, 0));
        }
    }

    #[test]
    fn what_is_noted_is_there_until_it_is_forgotten() {
        let directory = tempfile::tempdir().unwrap();
        let memory = Memory::new(directory.path());
        assert_eq!(memory.read().unwrap(), None);
        for attempt in [1, 300_000_000, 2] {
            let note = Note { attempt, order: (attempt > 1).then(|| "7".into()), ..Note::counted(None, "a", "i") };
            memory.write(&note).unwrap();
            assert_eq!(memory.read().unwrap(), Some(note));
        }
        memory.forget().unwrap();
        memory.forget().unwrap();
        assert_eq!(memory.read().unwrap(), None);
        assert!(Memory::new(&directory.path().join("no")).write(&Note::default()).is_err());
    }

    #[test]
    fn a_note_that_cannot_be_parsed_is_neither_absent_nor_a_note() {
        let directory = tempfile::tempdir().unwrap();
        for value in [&b"["[..], b"{}", b"", b"{\"allocation\": \"a\", \"image\": \"i\", \"attempt\": 4294967296}"] {
            own::write(directory.path(), NAME, value).unwrap();
            let error = Memory::new(directory.path()).read().unwrap_err();
            assert!(error.is_refusal() && error.to_string().contains("DrophammerReinstall-"), "{error}");
        }
    }
}
